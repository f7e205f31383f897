/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/sim_parts.h"

/* What the most frequent events read. */
static void look_ahead(struct mrc_sim_parts *parts) {
  struct mrc_agenda_array *arrays = parts->world.agenda.arrays;
  const struct mrc_agenda_array hops = {(const uint8_t *)parts->fabric.hops,
                                        sizeof(struct mrc_hop)};
  arrays[MRC_SIM_ON_ARRIVAL] = arrays[MRC_SIM_ON_DRAIN] = hops;
  arrays[MRC_SIM_ON_RUN] =
      (struct mrc_agenda_array){(const uint8_t *)parts->hosts.at, sizeof(struct mrc_sim_host)};
}

static void join_transports(struct mrc_sim_parts *parts) {
  struct mrc_transport *transports = parts->hosts.transports;
  if (parts->world.config.transport == MRC_SIM_GO_BACK_N)
    transports[MRC_HOST_GBN] = (struct mrc_transport){&mrc_gbn_transport, &parts->gbn};
  else
    transports[MRC_HOST_MRC] = (struct mrc_transport){&mrc_qps_transport, &parts->engines};
  transports[MRC_HOST_TCP] = (struct mrc_transport){&mrc_tcp_transport, &parts->tcp};
}

void mrc_sim_join(struct mrc_sim *sim, struct mrc_sim_parts *parts) {
  struct mrc_fabric_watch *watch = parts->world.config.audit ? &sim->watch : NULL;
  parts->record.world = &parts->world;
  parts->record.file = &sim->file;
  parts->fabric.world = &parts->world;
  parts->fabric.record = &parts->record;
  parts->fabric.calls = &mrc_sim_hosts_edge;
  parts->fabric.edge = &parts->hosts;
  parts->hosts.world = &parts->world;
  parts->hosts.fabric = &parts->fabric;
  parts->hosts.flows = &sim->flows;
  parts->hosts.results = &mrc_traffic_results;
  parts->hosts.traffic = &parts->traffic;
  parts->engines.hosts = parts->gbn.hosts = parts->tcp.hosts = &parts->hosts;
  parts->engines.watch = watch;
  parts->engines.memory = &sim->memory;
  parts->gbn.memory = parts->tcp.memory = sim->memory.at;
  parts->traffic.hosts = &parts->hosts;
  parts->traffic.record = &parts->record;
  parts->traffic.watch = watch;
  parts->traffic.proof = &sim->proof;
  join_transports(parts);
  look_ahead(parts);
}

static void handle(struct mrc_sim_parts *parts, const struct mrc_heap_entry *event) {
  switch ((enum mrc_sim_event_kind)event->kind) {
    case MRC_SIM_ON_POST:
      mrc_traffic_on_time(&parts->traffic, event->index);
      break;
    case MRC_SIM_ON_ARRIVAL:
      mrc_fabric_arrive(&parts->fabric, event->index, event->pointer);
      break;
    case MRC_SIM_ON_DRAIN:
      mrc_fabric_drain(&parts->fabric, event->index);
      break;
    case MRC_SIM_ON_RUN:
      mrc_sim_host_run(&parts->hosts, event->index);
      break;
    default:
      mrc_assert(false); /* an event of the whole */
  }
}

void mrc_sim_step(struct mrc_sim_parts *parts) {
  struct mrc_heap_entry event;
  mrc_assert(mrc_agenda_pop(&parts->world.agenda, &event));
  parts->world.now_ns = event.at_ns;
  parts->record.stats.events++;
  handle(parts, &event);
}
