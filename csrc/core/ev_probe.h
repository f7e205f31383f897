/* SPDX-License-Identifier: Apache-2.0 */
/* EV probes of a QP: which EVs and planes on probation want one now, and what its end means. Slots
   and sending are elsewhere: see probes.h and endpoint.h. */
#ifndef MRC_CORE_EV_PROBE_H
#define MRC_CORE_EV_PROBE_H

#include "qp.h"

/* Queues the probes that EVs and planes on probation want now, and sets qp->ev_probe_ns. */
void mrc_ev_probe_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The end of a probe of this QP, whose slot is free again: answered, with or without a mark; or
   failed with -ETIMEDOUT or what the kernel said. */
void mrc_ev_probe_on_answer(struct mrc_services *services, const struct mrc_ev_probe *probe,
                            bool ce, uint64_t now_ns);
void mrc_ev_probe_on_failure(struct mrc_services *services, const struct mrc_ev_probe *probe,
                             int error, uint64_t now_ns);

#endif
