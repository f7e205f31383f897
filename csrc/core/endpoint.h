/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoint operations, connectionless and addressed to QP 2: EV probes and port status of this
   host, and answers to those of peers. It owns the peers. */
#pragma once

#include "core/qp.h"
#include "core/wire.h"

/* ---- answers to requests of peers ---- */

/* Answers to endpoint requests. The engine answers only peers of its QPs, and at most
   MRC_MAX_ANSWERS requests at a time, so that no host can use it to reflect traffic. */

#define MRC_MAX_ANSWERS 256                     /* endpoint responses waiting to be sent */
#define MRC_ANSWER_PLACES (2 * MRC_MAX_ANSWERS) /* see mrc_answer_on_refused */

/* An endpoint request that waits for its response. */
struct mrc_answer {
  uint64_t arrived_ns;         /* when the request reached this host */
  uint8_t asker[16];           /* address that sent the request */
  const struct mrc_peer *peer; /* peer that sent the request */
  struct mrc_qp *qp;           /* whose key sealed it, and seals the answer; NULL: plain */
  uint16_t id;
  uint16_t tx_timestamp;
  uint8_t op;
  uint8_t port;
  uint8_t m; /* enum mrc_sack_m */
};

struct mrc_answers {
  struct mrc_answer *ring; /* MRC_ANSWER_PLACES */
  uint32_t head;           /* free-running */
  uint32_t n;
  uint32_t n_stuck; /* number of these that found their port's socket full at the last transmit */
};

/* Adds waiting answers to the transmit, up to half of it. False if the transmit is full. */
bool mrc_answer_transmit(struct mrc_services *services, const struct mrc_peers *peers,
                         struct mrc_answers *answers);
/* The kernel refused the answer from this place of the ring: queues it again. */
void mrc_answer_on_refused(struct mrc_answers *answers, uint32_t place);

/* ---- which ports are up, at both ends ---- */

/* Which ports are up, at both ends. Each change of this host's ports goes to each peer in one
   endpoint request, over a plane that is up. It is repeated until the peer answers or the ports
   change again. Any QP of the peer may carry it. The state of the peer's ports comes from the
   peer's reports and from the answers to our probes. */

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

static inline struct mrc_port_status *mrc_port_status_of(const struct mrc_port_statuses *statuses,
                                                         const struct mrc_peer *peer) {
  return &statuses->of[peer->index];
}

/* A port of this host, or the state of a QP, has changed: queues a message unless the peer's view
   is already correct. */
void mrc_port_status_on_change(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_peer *peer);

/* ---- the endpoint ---- */

struct mrc_endpoint {
  struct mrc_peers peers;
  struct mrc_answers answers;
  struct mrc_port_statuses statuses;
};

/* 0 or -ENOMEM. Call mrc_endpoint_free in both cases. */
int mrc_endpoint_init(struct mrc_endpoint *endpoint,
                      const struct mrc_engine_config *config) MRC_MUST_CHECK;
void mrc_endpoint_free(struct mrc_endpoint *endpoint);

/* Adds the QP to its peer, and copies the known state of the peer's ports to it. 0, -EADDRINUSE or
   -ENOSPC. */
int mrc_endpoint_add_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                        struct mrc_qp *qp, const struct mrc_peer_source *sources,
                        int n) MRC_MUST_CHECK;
/* Copies the known state of the peer's ports to `planes` of the QP. */
void mrc_endpoint_know_ports(struct mrc_qp *qp, uint32_t planes);
/* Removes every probe of the QP, and the QP from its peer. */
void mrc_endpoint_drop_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                          struct mrc_qp *qp);
/* A port of this host went up or down: sends a port status to every peer. */
void mrc_endpoint_on_port_change(struct mrc_services *services, struct mrc_endpoint *endpoint);

/* Takes an endpoint request or response that `sealer` has opened; if that is NULL, a plain one with
   a good ICRC. 0 or a drop reason. */
int mrc_endpoint_receive(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         const struct mrc_wire *wire, const struct mrc_meta *meta,
                         struct mrc_qp *sealer, uint64_t now_ns);
/* Adds waiting probes to the transmit. False if the transmit is full. */
bool mrc_endpoint_transmit_probes(struct mrc_services *services, struct mrc_endpoint *endpoint,
                                  uint64_t now_ns);
/* The result of sending a probe. `taken`: the kernel took it (1), had no room (0), or failed
   (negative errno). */
void mrc_endpoint_on_commit(struct mrc_services *services, struct mrc_endpoint *endpoint,
                            uint32_t slot, int taken, uint64_t now_ns);
/* Probes time out, and port statuses are due. */
void mrc_endpoint_expire(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         uint64_t now_ns);

/* ---- EV probes ---- */

/* At qp->ev_probe_ns, in RTS: queues the probes that are due for EVs and planes on probation, and
   sets that time anew. */
void mrc_ev_probe_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* At qp->backup_probe_ns, while the QP carries data: probes backups that carry none, so that their
   round trip is known, and a dead one is suspended before it is needed. */
void mrc_ev_probe_backups(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Takes in the round trip of an answered probe, whatever the probe was for. */
void mrc_ev_probe_measured(struct mrc_qp *qp, uint16_t ev, uint64_t sent_ns, uint64_t rtt_ns);
