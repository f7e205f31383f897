/* SPDX-License-Identifier: Apache-2.0 */
/* The peer's ports: what it tells of them, and what our own probes prove. */
#ifndef MRC_CORE_PEER_PORTS_H
#define MRC_CORE_PEER_PORTS_H

#include "peer.h"
#include "wire.h"

/* The QP has joined its peer: takes over what is known of the peer's ports. */
void mrc_peer_ports_on_joined(const struct mrc_services *services, struct mrc_qp *qp);
/* A port status came from this peer. It holds for every QP with it; repetitions are no news and
   cost nothing. */
void mrc_peer_ports_on_status(struct mrc_services *services, struct mrc_peer *peer,
                              const struct mrc_wire *wire, uint64_t now_ns);
/* Probes on a plane were answered: whatever the peer is said to have told, its port is up. */
void mrc_peer_ports_on_proved(struct mrc_services *services, struct mrc_peer *peer, uint32_t plane,
                              uint64_t now_ns);

#endif
