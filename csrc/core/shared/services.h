/* SPDX-License-Identifier: Apache-2.0 */
/* State that the parts of an engine share: configuration, time of the current call, counters,
   trace, events, lists of QPs that may send, ports, current transmit, completions, memory and
   probes. It does not depend on qp.h or peer.h. */
#pragma once

#include "arena.h"
#include "core/base/counters.h"
#include "core/base/list.h"
#include "core/base/port.h"
#include "core/base/timer.h"
#include "cq.h"
#include "mr.h"
#include "mrc.h"
#include "probes.h"

#define MRC_EVENT_RING 8192 /* events held before polling */

/* The ring of events for the controller. Events that find it full are dropped and counted. */
struct mrc_events {
  struct mrc_event *ring; /* of MRC_EVENT_RING */
  uint32_t head;          /* next to take; free-running */
  uint32_t tail;          /* next to fill; free-running */
  uint64_t lost;          /* events dropped since the last MRC_EVENT_LOST */
};

/* Which QPs may have something to send, as lists, and when each QP is due. */
struct mrc_ready {
  struct mrc_node ready;        /* may have something to send: round robin */
  struct mrc_node answering;    /* the QPs of `ready` that owe an answer */
  struct mrc_node port_waiting; /* they have a blocked port, or one that is down */
  struct mrc_node cq_waiting;   /* their cumulative PSN waits for room in the CQ */
  struct mrc_node slot_waiting; /* their EV probes wait for a slot, in turn */
  struct mrc_timers timers;     /* one for each QP */
  uint32_t n_reporting;         /* QPs that have received what no SACK has reported */
};

/* The nodes of one QP in these lists. */
struct mrc_ready_nodes {
  struct mrc_node ready;
  struct mrc_node answering;
  struct mrc_node port_waiting;
  struct mrc_node cq_waiting;
  struct mrc_node slot_waiting;
};

/* The newest trace entries. */
struct mrc_trace_ring {
  struct mrc_trace_entry *entries;
  uint64_t n; /* ever pushed */
  uint64_t mask;
};

struct mrc_services {
  struct mrc_engine_config config; /* with every default filled in */
  uint64_t now_ns;                 /* of the current call */
  uint64_t overflow_ns;            /* when packets last found no room at a port; 0: never */
  struct mrc_ready ready;          /* QPs that may send, QPs that are due */
  struct mrc_ports ports;
  struct mrc_arena arena; /* the current transmit */
  struct mrc_cq cq;
  struct mrc_mr_table mrs;
  struct mrc_trace_ring trace;
  struct mrc_events events; /* for the controller */
  uint64_t counters[MRC_COUNTERS];
  uint64_t drops[MRC_DROP_COUNT];
  struct mrc_probes probes; /* endpoint requests that are outstanding */
};

/* 0 or -ENOMEM; call mrc_services_free in either case. */
int mrc_services_init(struct mrc_services *services,
                      const struct mrc_engine_config *config) MRC_MUST_CHECK;
void mrc_services_free(struct mrc_services *services);

/* Whether this engine follows the reading in place of its own. */
static inline bool mrc_services_reads(const struct mrc_services *services,
                                      enum mrc_reading reading) {
  return (services->config.readings & reading) != 0;
}
#define MRC_MOST_CROWD 8
/* How many QPs receive now, at least 1 and at most MRC_MOST_CROWD. SACKs and reverse probes cost as
   much as bursts: each of many QPs sends them more rarely, so that all together send few. */
static inline uint32_t mrc_services_crowd(const struct mrc_services *services) {
  return mrc_min_u32(mrc_max_u32(services->ready.n_reporting, 1), MRC_MOST_CROWD);
}
/* An EV as answers carry it, from the EV as it was seen on the wire; and back. */
static inline uint32_t mrc_services_ev(const struct mrc_services *services, uint32_t ev) {
  return mrc_services_reads(services, MRC_READING_C3_B) ? ev << 16 | ev >> 16 : ev;
}

static inline void mrc_count(struct mrc_services *services, enum mrc_counter counter, uint64_t n) {
  services->counters[counter] += n;
}
void mrc_trace(struct mrc_services *services, enum mrc_trace_point point, uint32_t qpn, uint64_t a,
               uint64_t b);
/* Counts and traces a drop; returns the reason. */
int mrc_drop(struct mrc_services *services, enum mrc_drop reason, uint32_t qpn, size_t bytes);
/* Queues an event for the controller, or counts it as dropped if there is no room. */
void mrc_event_push(struct mrc_services *services, const struct mrc_event *event);
/* Copies and removes the oldest events; returns their number. */
int mrc_events_take(struct mrc_events *events, struct mrc_event *to, int capacity);

/* The QP owes its peer an answer. Answers leave before the data of all QPs. */
static inline void mrc_ready_touch_to_answer(struct mrc_ready *ready,
                                             struct mrc_ready_nodes *nodes) {
  mrc_list_append(&ready->ready, &nodes->ready);
  mrc_list_append(&ready->answering, &nodes->answering);
}
/* A port can send again: each QP that waited for it gets a turn. Answers that are due leave first,
   because data would fill a small socket again each time. */
void mrc_ready_wake_port_waiting(struct mrc_ready *ready);
/* The QP is about to be freed. */
void mrc_ready_forget(struct mrc_ready *ready, struct mrc_ready_nodes *nodes, uint32_t qp);
