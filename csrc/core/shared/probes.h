/* SPDX-License-Identifier: Apache-2.0 */
/* The outstanding endpoint requests of this host (EV probes and port status messages): their slots,
   ids and timers, and the queue of unsent ones. Other modules send them and handle the results. */
#pragma once

#include "core/base/secret.h"
#include "core/base/timer.h"
#include "mrc.h"

#define MRC_MAX_EV_PROBES 1024 /* requests outstanding */

struct mrc_qp;
struct mrc_peer;

enum mrc_ev_probe_purpose {
  MRC_EV_PROBE_FREE,
  MRC_EV_PROBE_COMMAND,
  MRC_EV_PROBE_EV,
  MRC_EV_PROBE_PLANE,
  MRC_EV_PROBE_PATIENT, /* of a suspended plane, with a long timeout */
  MRC_EV_PROBE_REVERSE,
  MRC_EV_PROBE_PORT_STATUS /* a port status message, answered like a probe */
};

/* Slots used by one QP, or by the port status of one peer. */
struct mrc_probe_user {
  uint32_t n_own;       /* its own requests */
  uint32_t n_commanded; /* by command */
};

struct mrc_ev_probe {
  uint64_t cookie;
  uint64_t sent_ns;
  uint64_t timeout_ns;
  uint64_t waited_ns; /* at the host that answered it */
  struct mrc_probe_user *user;
  struct mrc_qp *qp;     /* of a port status: the QP that carries it, set on sending */
  struct mrc_peer *peer; /* of a port status */
  uint32_t bytes;        /* UDP payload size to pad to; 0: no padding */
  uint32_t ports_up;     /* ports that a port status reported */
  uint16_t ev;
  uint16_t id;           /* private id on the wire */
  uint16_t next;         /* slot + 1 of the next one in the queue, or of the next free one */
  uint16_t tx_timestamp; /* in the request; the answer must echo it */
  uint8_t purpose;       /* enum mrc_ev_probe_purpose */
  uint8_t dscp;
  bool sent; /* taken by the kernel */
};

/* Memory for all requests. What was never used is never touched. */
struct mrc_probe_room {
  struct mrc_ev_probe slots[MRC_MAX_EV_PROBES];
  struct mrc_timer_cell timers[MRC_MAX_EV_PROBES];
};

struct mrc_probes {
  struct mrc_ev_probe *slots; /* MRC_MAX_EV_PROBES */
  struct mrc_timers timers;   /* by slot */
  struct mrc_secret ids;
  uint32_t n_slots;     /* ever used */
  uint32_t n;           /* slots taken */
  uint32_t n_commanded; /* of these, requested by command */
  uint32_t n_unsent;    /* in the queue */
  uint32_t n_stuck;     /* of these, waited for a full socket at the last transmit */
  uint16_t first;       /* slot + 1 of the first one to send, of the last one, and of a free one */
  uint16_t last;
  uint16_t free;
  uint16_t slot_of[MRC_MAX_EV_PROBES]; /* slot + 1, by id modulo MRC_MAX_EV_PROBES; 0: none */
};

void mrc_probes_init(struct mrc_probes *probes, struct mrc_probe_room *room, uint64_t seed);

static inline uint16_t mrc_probes_slot(const struct mrc_probes *probes,
                                       const struct mrc_ev_probe *probe) {
  return (uint16_t)(probe - probes->slots);
}
/* The probe with this id, or 0. */
struct mrc_ev_probe *mrc_probes_find(const struct mrc_probes *probes, uint16_t id);

/* Queues a copy of `request` with a new id; 0 when there is no room. */
const struct mrc_ev_probe *mrc_probes_start(struct mrc_probes *probes, struct mrc_probe_user *user,
                                            const struct mrc_ev_probe *request);
/* Queues a dequeued probe again because it could not be sent. */
void mrc_probes_enqueue(struct mrc_probes *probes, struct mrc_ev_probe *probe);
/* Takes the first probe of the queue, which must not be empty. */
struct mrc_ev_probe *mrc_probes_dequeue(struct mrc_probes *probes);
/* A probe that has timed out, or 0. */
static inline struct mrc_ev_probe *mrc_probes_expired(struct mrc_probes *probes, uint64_t now_ns) {
  const uint32_t slot = mrc_timers_pop(&probes->timers, now_ns);
  return slot == UINT32_MAX ? NULL : &probes->slots[slot];
}
/* Frees the slot of a probe that is not in the queue. */
void mrc_probes_end(struct mrc_probes *probes, struct mrc_ev_probe *probe);
/* Ends every probe of the user; returns how many slots came free. */
uint32_t mrc_probes_drop(struct mrc_probes *probes, const struct mrc_probe_user *user);
