/* SPDX-License-Identifier: Apache-2.0 */
/* Which ports are up, at both ends. Each change of this host's ports goes to each peer in one
   endpoint request, over a plane that is up. It is repeated until the peer answers or the ports
   change again. Any QP of the peer may carry it. The state of the peer's ports comes from the
   peer's reports and from the answers to our probes. */
#pragma once

#include "core/qp.h"
#include "core/wire.h"

/* Choices of ours. */
#define MRC_PORT_STATUS_FIRST_NS 5000000ull      /* timeout of the first message; doubles */
#define MRC_PORT_STATUS_SLOWEST_NS 1024000000ull /* up to this */
#define MRC_PORT_STATUS_SETTLE_NS 100000000ull   /* older messages have arrived or are gone */

/* The peer's view of this host's ports. */
struct mrc_port_status {
  struct mrc_port_status *next; /* in the list `waiting` */
  struct mrc_peer *peer;
  uint64_t interval_ns; /* timeout of the next message */
  uint32_t confirmed;   /* the ports that are up, as the peer last confirmed; bit n - 1: port n */
  struct mrc_probe_user messages; /* slots of its messages in flight */
  uint16_t id;                    /* of the newest message */
  uint8_t plane;                  /* of the newest message */
  uint8_t answers_wanted;         /* until the peer's view is certain */
  bool in_doubt;                  /* the peer's view may come from QPs that are gone */
  bool waits;                     /* for a slot; in the list `waiting` */
};

struct mrc_port_statuses {
  struct mrc_port_status *of;      /* by index of the peer */
  struct mrc_port_status *waiting; /* list: their messages wait for a slot */
  struct mrc_timers timers;        /* by index of the peer */
};

/* 0 or -ENOMEM. */
int mrc_port_statuses_init(struct mrc_port_statuses *statuses, uint32_t max_peers) MRC_MUST_CHECK;
void mrc_port_statuses_free(struct mrc_port_statuses *statuses);
static inline struct mrc_port_status *mrc_port_status_of(const struct mrc_port_statuses *statuses,
                                                         const struct mrc_peer *peer) {
  return &statuses->of[peer->index];
}

/* A new peer assumes that all ports are up. If a port was ever down, the view is in doubt: the peer
   may have an older one. */
void mrc_port_status_init(const struct mrc_services *services, struct mrc_port_statuses *statuses,
                          struct mrc_peer *peer);
/* A port of this host, or the state of a QP, has changed: queues a message unless the peer's view
   is already correct. */
void mrc_port_status_on_change(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_peer *peer);
/* A slot came free: true when a waiting status has used it. */
bool mrc_port_status_on_room(struct mrc_services *services, struct mrc_port_statuses *statuses);
/* Queues the messages that are due. */
void mrc_port_status_expire(struct mrc_services *services, struct mrc_port_statuses *statuses,
                            uint64_t now_ns);
/* The peer is about to be freed: its timer stops and its message no longer waits. */
void mrc_port_status_drop(struct mrc_port_statuses *statuses, const struct mrc_peer *peer);

/* Chooses the QP and the EV of the message, on the next plane in turn among `ports`. False when
   none of these ports has a usable EV. */
bool mrc_port_status_choose(const struct mrc_services *services, struct mrc_port_status *status,
                            uint32_t ports, struct mrc_qp **qp, uint16_t *ev);
/* A message has ended and its slot is free: the peer answered, or it failed with -ETIMEDOUT or the
   kernel's error. */
void mrc_port_status_on_answer(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_ev_probe *message, uint64_t now_ns);
void mrc_port_status_on_failure(struct mrc_port_statuses *statuses,
                                const struct mrc_ev_probe *message, int error, uint64_t now_ns);

/* The QP has joined its peer: applies the known state of the peer's ports to it. */
void mrc_port_status_on_joined(const struct mrc_services *services, struct mrc_qp *qp);
/* A port status came from this peer. It holds for every QP of the peer; repeats have no effect. */
void mrc_port_status_on_news(struct mrc_services *services, struct mrc_peer *peer,
                             const struct mrc_wire *wire, uint64_t now_ns);
/* The peer answered probes on a plane: its port is up, even if a port status said otherwise. */
void mrc_port_status_on_proved(struct mrc_services *services, struct mrc_peer *peer, uint32_t plane,
                               uint64_t now_ns);
