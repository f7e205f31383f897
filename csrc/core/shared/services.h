/* SPDX-License-Identifier: Apache-2.0 */
/* State that the parts of an engine share: configuration, time of the current call, counters,
   trace, events, lists of QPs that may send, ports, current transmit, completions, memory and
   probes. It does not depend on qp.h or peer.h. */
#ifndef MRC_CORE_SERVICES_H
#define MRC_CORE_SERVICES_H

#include "arena.h"
#include "core/base/counters.h"
#include "core/base/port.h"
#include "cq.h"
#include "events.h"
#include "mr.h"
#include "mrc.h"
#include "probes.h"
#include "ready.h"

/* The newest packet on an EV that a SACK shows as received. */
struct mrc_newest {
  uint32_t serial; /* of that SACK */
  uint16_t slot;   /* in the send window */
};

/* The order of packets on each EV in the current SACK; see detect.c. */
struct mrc_order {
  uint32_t serial;                       /* of the current SACK */
  struct mrc_newest newest[MRC_MAX_EVS]; /* by index of the EV */
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
  struct mrc_order order;   /* of packets in the current SACK */
};

/* 0 or -ENOMEM; call mrc_services_free in either case. */
int mrc_services_init(struct mrc_services *services,
                      const struct mrc_engine_config *config) MRC_MUST_CHECK;
void mrc_services_free(struct mrc_services *services);

static inline void mrc_count(struct mrc_services *services, enum mrc_counter counter, uint64_t n) {
  services->counters[counter] += n;
}
void mrc_trace(struct mrc_services *services, enum mrc_trace_point point, uint32_t qpn, uint64_t a,
               uint64_t b);
/* Counts and traces a drop; returns the reason. */
int mrc_drop(struct mrc_services *services, enum mrc_drop reason, uint32_t qpn, size_t bytes);
/* Queues an event for the controller, or counts it as dropped if there is no room. */
void mrc_event_push(struct mrc_services *services, const struct mrc_event *event);

#endif
