/* SPDX-License-Identifier: Apache-2.0 */
/* EV probes of a QP: which EVs and planes on probation are due for a probe, and the effect of its
   result. probes.h holds the slots, endpoint.h sends. */
#pragma once

#include "core/qp.h"

/* Queues the probes that are due for EVs and planes on probation, and sets qp->ev_probe_ns. */
void mrc_ev_probe_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* A probe of this QP ended, and its slot is free again: it was answered, with or without a mark; or
   it failed with -ETIMEDOUT or the error of the send. */
void mrc_ev_probe_on_answer(struct mrc_services *services, const struct mrc_ev_probe *probe,
                            bool ce, uint64_t now_ns);
/* Takes in the round trip of an answered probe, whatever the probe was for. */
void mrc_ev_probe_measured(struct mrc_qp *qp, uint16_t ev, uint64_t sent_ns, uint64_t rtt_ns);
void mrc_ev_probe_on_failure(struct mrc_services *services, const struct mrc_ev_probe *probe,
                             int error, uint64_t now_ns);
