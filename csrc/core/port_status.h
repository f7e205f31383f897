/* SPDX-License-Identifier: Apache-2.0 */
/* Tells every peer which ports of this host are up: one endpoint request for each peer and change,
   over a plane that is up, repeated until the peer answers or the news is old. One QP speaks for
   all that share its peer. */
#ifndef MRC_CORE_PORT_STATUS_H
#define MRC_CORE_PORT_STATUS_H

#include "engine.h"

/* Choices of ours. */
#define MRC_PORT_STATUS_FIRST_NS 5000000ull      /* patience with the first message; doubles */
#define MRC_PORT_STATUS_SLOWEST_NS 1024000000ull /* up to this */
#define MRC_PORT_STATUS_SETTLE_NS 100000000ull   /* after which no older message is on its way */

/* What a new peer takes for granted: all ports are up. */
void mrc_port_status_init(const struct mrc_engine *engine, struct mrc_qp *qp);
/* A port of this host, or the state of the QP, has changed: tells the peer what it does not know.
 */
void mrc_port_status_on_change(struct mrc_engine *engine, struct mrc_qp *qp);
/* `to` speaks for the peer from now on, and knows what `from` knew. */
void mrc_port_status_take_over(struct mrc_engine *engine, struct mrc_qp *to,
                               const struct mrc_qp *from);
/* Queues the message that is due. */
void mrc_port_status_on_deadline(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns);
uint64_t mrc_port_status_deadline(const struct mrc_qp *qp);
/* The end of a message: answered, or failed with -ETIMEDOUT or what the kernel said. */
void mrc_port_status_on_answer(struct mrc_engine *engine, struct mrc_qp *qp,
                               const struct mrc_ev_probe *message, uint64_t now_ns);
void mrc_port_status_on_failure(struct mrc_qp *qp, const struct mrc_ev_probe *message, int error,
                                uint64_t now_ns);

#endif
