/* SPDX-License-Identifier: Apache-2.0 */
/* The reverse EVs of a QP that only receives: for each plane, an EV on which its SACKs get through.
   Probes find these EVs, one per round trip while data arrives, on planes where no packets of its
   own have arrived lately. */
#pragma once

#include "core/qp.h"

/* Choices of ours. */
#define MRC_REVERSE_BYTES 16384 /* if fewer arrived since the last probe, the next one waits */
#define MRC_REVERSE_SLOW 15     /* this many round trips longer, so that probes stay rare */
#define MRC_REVERSE_FAILURES 2  /* in a row: the plane carries no answers until one succeeds */
#define MRC_REVERSE_FIRST_NS 5000000ull /* between probes, before a round trip is known */

/* Packets may have arrived: probes the next plane if a probe is due. */
void mrc_reverse_on_visit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Queues a probe of this EV; false when there is no slot for it. */
bool mrc_reverse_probe(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                       uint64_t timeout_ns);
/* A probe of this EV of the plane was answered. */
void mrc_reverse_on_answer(struct mrc_qp *qp, uint32_t plane, uint16_t ev, uint64_t rtt_ns);
/* The probe timed out, or the kernel could not send it. `offered`: it reached the kernel. */
void mrc_reverse_on_failure(struct mrc_qp *qp, uint32_t plane, uint16_t ev, bool offered);
/* The peer sent a reliability probe. If nothing arrived since the last one, the answer to that one
   was lost: the next answers try other EVs. */
void mrc_reverse_on_request(struct mrc_qp *qp);
/* Whether answers on this plane get through, unless probes or the kernel showed otherwise. */
bool mrc_reverse_works(const struct mrc_qp *qp, uint32_t plane);
/* An EV of the plane for answers, or MRC_EV_NONE: the one whose probe was answered last, or any. */
uint16_t mrc_reverse_ev(struct mrc_qp *qp, uint32_t plane);
/* The EV for answers to packets from `port` (0: none arrived yet), or MRC_EV_NONE. */
uint16_t mrc_reverse_choose(const struct mrc_services *services, struct mrc_qp *qp, uint8_t port);
