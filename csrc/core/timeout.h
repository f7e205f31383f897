/* SPDX-License-Identifier: Apache-2.0 */
/* The timers of a requester. When nothing is heard, a reliability probe requests a report of all
   PSNs that have arrived; at last the local timeout declares everything in flight lost. A packet on
   a slow plane that blocks all others is sent again on another plane, without evidence that it is
   lost, and the window of the slow plane shrinks. For EV probes see endpoint.h. */
#pragma once

#include "core/qp.h"

/* Sends the probe: first on the plane with the most overdue packet, because an answer proves that
   packet lost, or on the next plane if that plane may be silent. Then the planes take turns, so
   that a dead plane does not drop every probe. False when the transmit is full. */
bool mrc_timeout_send_probe(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Declares packets lost by time. If nothing is heard, requests a probe and at last times out. May
   fail the QP. Call it only after all received packets were handled. */
void mrc_timeout_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
uint64_t mrc_timeout_deadline(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint64_t now_ns);
