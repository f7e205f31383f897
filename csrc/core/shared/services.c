/* SPDX-License-Identifier: Apache-2.0 */
#include "services.h"

#include <errno.h>
#include <stdlib.h>

static int ready_init(struct mrc_ready *ready, uint32_t max_qps) {
  mrc_list_init(&ready->ready);
  mrc_list_init(&ready->answering);
  mrc_list_init(&ready->port_waiting);
  mrc_list_init(&ready->cq_waiting);
  mrc_list_init(&ready->slot_waiting);
  struct mrc_timer_cell *cells = malloc(max_qps * sizeof *cells);
  mrc_timers_init(&ready->timers, cells, max_qps);
  return cells == NULL ? -ENOMEM : 0;
}

int mrc_services_init(struct mrc_services *services, const struct mrc_engine_config *config) {
  services->config = *config;
  services->ports.up = mrc_all_ports(config->ports);
  services->trace = (struct mrc_trace_ring){
      .entries = malloc(config->trace_entries * sizeof *services->trace.entries),
      .mask = config->trace_entries - 1u}; /* a power of two */
  const bool ok = ready_init(&services->ready, config->max_qps) == 0 &&
                  mrc_arena_init(&services->arena, config) == 0 &&
                  mrc_cq_init(&services->cq, config->cq_depth) == 0 &&
                  mrc_mr_table_init(&services->mrs, config->max_mrs) == 0 &&
                  services->trace.entries != NULL;
  return ok ? 0 : -ENOMEM;
}

void mrc_services_free(struct mrc_services *services) {
  free(services->ready.timers.cells);
  mrc_arena_free(&services->arena);
  mrc_cq_free(&services->cq);
  mrc_mr_table_free(&services->mrs);
  free(services->trace.entries);
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

static struct mrc_event take_lost(struct mrc_events *events) {
  const struct mrc_event lost = {.type = MRC_EVENT_LOST, .cookie = events->lost};
  events->lost = 0;
  return lost;
}

static bool push(struct mrc_events *events, const struct mrc_event *event) {
  /* State changes use half of the ring at most. The rest is reserved for the other events. */
  const bool news = event->type == MRC_EVENT_EV_STATE || event->type == MRC_EVENT_PLANE ||
                    event->type == MRC_EVENT_PORT || event->type == MRC_EVENT_PLANE_SHARE;
  const uint32_t limit = news ? MRC_EVENT_RING / 2 : MRC_EVENT_RING;
  const uint32_t used = events->tail - events->head;
  const uint32_t room = used < limit ? limit - used : 0;
  if (room < (news && events->lost > 0 ? 2 : 1)) {
    events->lost++;
    return false;
  }
  /* MRC_EVENT_LOST comes before the event, but does not use the last quarter of the ring. */
  if (events->lost > 0 && room > (news ? 1 : MRC_EVENT_RING / 4))
    events->ring[events->tail++ % MRC_EVENT_RING] = take_lost(events);
  events->ring[events->tail++ % MRC_EVENT_RING] = *event;
  return true;
}

void mrc_event_push(struct mrc_services *services, const struct mrc_event *event) {
  if (!push(&services->events, event)) mrc_count(services, MRC_COUNTER_EVENTS_DROPPED, 1);
}

int mrc_events_take(struct mrc_events *events, struct mrc_event *to, int capacity) {
  int n = 0;
  while (n < capacity && events->head != events->tail)
    to[n++] = events->ring[events->head++ % MRC_EVENT_RING];
  if (n < capacity && events->lost > 0) to[n++] = take_lost(events);
  return n;
}

void mrc_ready_wake_port_waiting(struct mrc_ready *ready) {
  while (!mrc_list_is_empty(&ready->port_waiting)) {
    struct mrc_ready_nodes *nodes =
        MRC_NODE_OWNER(ready->port_waiting.next, struct mrc_ready_nodes, port_waiting);
    mrc_node_leave(&nodes->port_waiting);
    mrc_ready_touch_to_answer(ready, nodes);
  }
}

void mrc_ready_forget(struct mrc_ready *ready, struct mrc_ready_nodes *nodes, uint32_t qp) {
  mrc_node_leave(&nodes->ready);
  mrc_node_leave(&nodes->answering);
  mrc_node_leave(&nodes->port_waiting);
  mrc_node_leave(&nodes->cq_waiting);
  mrc_node_leave(&nodes->slot_waiting);
  mrc_timers_set(&ready->timers, qp, MRC_NEVER);
}
