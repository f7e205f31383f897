/* SPDX-License-Identifier: Apache-2.0 */
#include "services.h"

#include <errno.h>
#include <stdlib.h>

int mrc_services_init(struct mrc_services *services, const struct mrc_engine_config *config) {
  services->config = *config;
  services->ports.up = mrc_all_ports(config->ports);
  services->trace = (struct mrc_trace_ring){
      .entries = calloc(config->trace_entries, sizeof *services->trace.entries),
      .mask = config->trace_entries - 1u}; /* a power of two */
  const bool ok = mrc_ready_init(&services->ready, config->max_qps) == 0 &&
                  mrc_arena_init(&services->arena, config) == 0 &&
                  mrc_cq_init(&services->cq, config->cq_depth) == 0 &&
                  mrc_mr_table_init(&services->mrs, config->max_mrs) == 0 &&
                  services->trace.entries != NULL && mrc_events_init(&services->events) == 0 &&
                  mrc_probes_init(&services->probes, config->seed) == 0;
  return ok ? 0 : -ENOMEM;
}

void mrc_services_free(struct mrc_services *services) {
  mrc_ready_free(&services->ready);
  mrc_arena_free(&services->arena);
  mrc_cq_free(&services->cq);
  mrc_mr_table_free(&services->mrs);
  free(services->trace.entries);
  mrc_events_free(&services->events);
  mrc_probes_free(&services->probes);
}

void mrc_trace(struct mrc_services *services, enum mrc_trace_point point, uint32_t qpn, uint64_t a,
               uint64_t b) {
  services->trace.entries[services->trace.n++ & services->trace.mask] = (struct mrc_trace_entry){
      .now_ns = services->now_ns, .point = point, .qpn = qpn, .a = a, .b = b};
}

int mrc_drop(struct mrc_services *services, enum mrc_drop reason, uint32_t qpn, size_t bytes) {
  services->drops[reason]++;
  mrc_count(services, MRC_COUNTER_RX_DROPPED, 1);
  mrc_trace(services, MRC_TRACE_DROP, qpn, reason, bytes);
  return (int)reason;
}

void mrc_event_push(struct mrc_services *services, const struct mrc_event *event) {
  if (!mrc_events_push(&services->events, event))
    mrc_count(services, MRC_COUNTER_EVENTS_DROPPED, 1);
}
