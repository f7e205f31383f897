/* SPDX-License-Identifier: Apache-2.0 */
/* Tells every peer which ports of this host are up: one endpoint request for each peer and change,
   over a plane that is up, repeated until the peer answers or the news is old. Whichever QP of the
   peer can carries it. */
#ifndef MRC_CORE_PORT_STATUS_H
#define MRC_CORE_PORT_STATUS_H

#include "engine.h"

/* Choices of ours. */
#define MRC_PORT_STATUS_FIRST_NS 5000000ull      /* patience with the first message; doubles */
#define MRC_PORT_STATUS_SLOWEST_NS 1024000000ull /* up to this */
#define MRC_PORT_STATUS_SETTLE_NS 100000000ull   /* after which no older message is on its way */

/* What a new peer takes for granted: all ports are up. Another may be wrong about those that have
   been down. */
void mrc_port_status_init(const struct mrc_engine *engine, struct mrc_peer *peer);
/* A port of this host, or the state of a QP, has changed: tells the peer what it does not know. */
void mrc_port_status_on_change(struct mrc_engine *engine, struct mrc_peer *peer);
/* A slot for a message came free: true when one that waited has taken it. */
bool mrc_port_status_on_room(struct mrc_engine *engine);
/* Queues the messages that are due. */
void mrc_port_status_expire(struct mrc_engine *engine, uint64_t now_ns);
/* The peer is about to be given up. */
void mrc_port_status_drop(struct mrc_engine *engine, struct mrc_peer *peer);

/* The EV on which the message leaves, and its QP; with each message on another plane. False when
   none can be sent on now. */
bool mrc_port_status_choose(struct mrc_engine *engine, struct mrc_peer *peer, uint32_t ports,
                            struct mrc_qp **qp, uint16_t *ev);
/* The end of a message: answered, or failed with -ETIMEDOUT or what the kernel said. */
void mrc_port_status_on_answer(struct mrc_engine *engine, struct mrc_peer *peer,
                               const struct mrc_ev_probe *message, uint64_t now_ns);
void mrc_port_status_on_failure(struct mrc_engine *engine, struct mrc_peer *peer,
                                const struct mrc_ev_probe *message, int error, uint64_t now_ns);

#endif
