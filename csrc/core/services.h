/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of an engine share: its configuration, the time of the call in progress, counters,
   trace, events, the lists of who may send, ports, the transmit in progress, completions, memory
   and probes. It knows neither QPs nor peers. */
#ifndef MRC_CORE_SERVICES_H
#define MRC_CORE_SERVICES_H

#include "../mrc.h"
#include "arena.h"
#include "counters.h"
#include "cq.h"
#include "events.h"
#include "mr.h"
#include "port.h"
#include "probes.h"
#include "ready.h"

/* The newest packet on an EV that a SACK shows as received. */
struct mrc_newest {
  uint32_t serial; /* of that SACK */
  uint16_t slot;   /* in the send window */
};

/* The order of packets on each EV, as the SACK at hand shows it; see detect.c. */
struct mrc_order {
  uint32_t serial;                       /* of the SACK at hand */
  struct mrc_newest newest[MRC_MAX_EVS]; /* by index of the EV */
};

/* The newest things that happened. */
struct mrc_trace_ring {
  struct mrc_trace_entry *entries;
  uint64_t n; /* ever pushed */
  uint64_t mask;
};

struct mrc_services {
  struct mrc_engine_config config; /* with every default filled in */
  uint64_t now_ns;                 /* the time of the call in progress */
  struct mrc_ready ready;          /* who may send, and who is due */
  struct mrc_ports ports;
  struct mrc_arena arena; /* the transmit in progress */
  struct mrc_cq cq;
  struct mrc_mr_table mrs;
  struct mrc_trace_ring trace;
  struct mrc_events events; /* for the controller */
  uint64_t counters[MRC_COUNTERS];
  uint64_t drops[MRC_DROP_COUNT];
  struct mrc_probes probes; /* endpoint requests that are outstanding */
  struct mrc_order order;   /* of packets, as the SACK at hand shows it */
};

/* 0 or -ENOMEM; what was made is to be freed in any case. */
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
/* Tells the controller, or counts that there was no room. */
void mrc_event_push(struct mrc_services *services, const struct mrc_event *event);

#endif
