/* SPDX-License-Identifier: Apache-2.0 */
/* The reverse EVs of a QP that receives and does not send: by which EV of each plane its SACKs
   survive. It learns this from EV probes, one a round trip while data comes in, and forgets what
   fails. */
#ifndef MRC_CORE_REVERSE_H
#define MRC_CORE_REVERSE_H

#include "engine.h"

/* Choices of ours. */
#define MRC_REVERSE_FAILURES 2  /* in a row: the plane serves for no answers until one succeeds */
#define MRC_REVERSE_BYTES 16384 /* when less came in since the last probe, the next has time: */
#define MRC_REVERSE_SLOW 15     /* so many round trips more, so that probes stay few beside data */
#define MRC_REVERSE_FIRST_NS 5000000ull /* between probes, before a round trip is known */

/* Something may have come in: probes the next plane, when it is time. */
void mrc_reverse_on_visit(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns);
void mrc_reverse_on_answer(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns);
/* A probe was not answered in time, or the kernel could not send it; `offered`: it came so far. */
void mrc_reverse_on_failure(struct mrc_qp *qp, uint16_t ev, bool offered);
/* Whether answers on this plane get through, as far as is known. */
bool mrc_reverse_works(const struct mrc_qp *qp, uint32_t plane);
/* The EV of the plane on which to answer, or MRC_EV_NONE: the one that answered last, or any. */
uint16_t mrc_reverse_ev(struct mrc_qp *qp, uint32_t plane);

#endif
