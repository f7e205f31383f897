/* SPDX-License-Identifier: Apache-2.0 */
/* The reverse EVs of a QP that receives and does not send: by which EV of each plane its SACKs
   survive. Probes find it out, one a round trip while data comes in. */
#ifndef MRC_CORE_REVERSE_H
#define MRC_CORE_REVERSE_H

#include "qp.h"

/* Choices of ours. */
#define MRC_REVERSE_BYTES 16384 /* when less came in since the last probe, the next has time: */
#define MRC_REVERSE_SLOW 15     /* so many round trips more, so that probes stay few beside data */
#define MRC_REVERSE_FAILURES 2  /* in a row: the plane serves for no answers until one succeeds */
#define MRC_REVERSE_FIRST_NS 5000000ull /* between probes, before a round trip is known */

/* Something may have come in: probes the next plane, when it is time. */
void mrc_reverse_on_visit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Queues a probe of this EV; false when there is no slot for it. */
bool mrc_reverse_probe(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                       uint64_t timeout_ns);
/* A probe of this EV of the plane was answered. */
void mrc_reverse_on_answer(struct mrc_qp *qp, uint32_t plane, uint16_t ev, uint64_t rtt_ns);
/* It was not answered in time, or the kernel could not send it; `offered`: it came so far. */
void mrc_reverse_on_failure(struct mrc_qp *qp, uint32_t plane, uint16_t ev, bool offered);
/* Whether answers on this plane get through, as far as is known. */
bool mrc_reverse_works(const struct mrc_qp *qp, uint32_t plane);
/* The EV on which to answer what came in on `port` (0: nothing did), or MRC_EV_NONE. */
uint16_t mrc_reverse_choose(const struct mrc_services *services, struct mrc_qp *qp, uint8_t port);

#endif
