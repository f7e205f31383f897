/* SPDX-License-Identifier: Apache-2.0 */
/* Which ports are up, at both ends. Every peer is told of the ports of this host: one endpoint
   request for each peer and change, over a plane that is up, repeated until the peer answers or the
   news is old. Whichever QP of the peer can carries it. Of the peer's ports it knows what the peer
   tells and our own probes prove. */
#ifndef MRC_CORE_PORT_STATUS_H
#define MRC_CORE_PORT_STATUS_H

#include "peer.h"
#include "wire.h"

/* Choices of ours. */
#define MRC_PORT_STATUS_FIRST_NS 5000000ull      /* patience with the first message; doubles */
#define MRC_PORT_STATUS_SLOWEST_NS 1024000000ull /* up to this */
#define MRC_PORT_STATUS_SETTLE_NS 100000000ull   /* after which no older message is on its way */

/* What the peer knows of this host's ports. */
struct mrc_port_status {
  struct mrc_port_status *next; /* in the list of those that wait for a slot for their message */
  struct mrc_peer *peer;
  uint64_t interval_ns; /* patience with the next message */
  uint32_t confirmed;   /* the ports that are up, as the peer last confirmed; bit n - 1: port n */
  struct mrc_probe_user messages; /* on their way, answered or not */
  uint16_t id;                    /* of the newest message */
  uint8_t plane;                  /* it left on */
  uint8_t answers_wanted;         /* until the peer's view is certain */
  bool in_doubt;                  /* what it knows may stem from QPs that are gone */
  bool waits;                     /* in that list */
};

struct mrc_port_statuses {
  struct mrc_port_status *of;      /* by index of the peer */
  struct mrc_port_status *waiting; /* list of those whose message waits for a slot */
  struct mrc_timers timers;        /* by index of the peer */
};

/* 0 or -ENOMEM. */
int mrc_port_statuses_init(struct mrc_port_statuses *statuses, uint32_t max_peers) MRC_MUST_CHECK;
void mrc_port_statuses_free(struct mrc_port_statuses *statuses);
static inline struct mrc_port_status *mrc_port_status_of(const struct mrc_port_statuses *statuses,
                                                         const struct mrc_peer *peer) {
  return &statuses->of[peer->index];
}

/* What a new peer takes for granted: all ports are up. Another may be wrong about those that have
   been down. */
void mrc_port_status_init(const struct mrc_services *services, struct mrc_port_statuses *statuses,
                          struct mrc_peer *peer);
/* A port of this host, or the state of a QP, has changed: tells the peer what it does not know. */
void mrc_port_status_on_change(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_peer *peer);
/* A slot for a message came free: true when one that waited has taken it. */
bool mrc_port_status_on_room(struct mrc_services *services, struct mrc_port_statuses *statuses);
/* Queues the messages that are due. */
void mrc_port_status_expire(struct mrc_services *services, struct mrc_port_statuses *statuses,
                            uint64_t now_ns);
/* The peer is about to be given up: its message does not wait any more. */
void mrc_port_status_drop(struct mrc_port_statuses *statuses, const struct mrc_peer *peer);

/* The EV on which the message leaves, and its QP; with each message on another plane. False when
   none of the ports can be sent on now. */
bool mrc_port_status_choose(const struct mrc_services *services, struct mrc_port_status *status,
                            uint32_t ports, struct mrc_qp **qp, uint16_t *ev);
/* The end of a message, whose slot is free again: answered, or failed with -ETIMEDOUT or what the
   kernel said. */
void mrc_port_status_on_answer(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_ev_probe *message, uint64_t now_ns);
void mrc_port_status_on_failure(struct mrc_port_statuses *statuses,
                                const struct mrc_ev_probe *message, int error, uint64_t now_ns);

/* The QP has joined its peer: takes over what is known of the peer's ports. */
void mrc_port_status_on_joined(const struct mrc_services *services, struct mrc_qp *qp);
/* A port status came from this peer. It holds for every QP with it; repetitions are no news and
   cost nothing. */
void mrc_port_status_on_news(struct mrc_services *services, struct mrc_peer *peer,
                             const struct mrc_wire *wire, uint64_t now_ns);
/* Probes on a plane were answered: whatever the peer is said to have told, its port is up. */
void mrc_port_status_on_proved(struct mrc_services *services, struct mrc_peer *peer, uint32_t plane,
                               uint64_t now_ns);

#endif
