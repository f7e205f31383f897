/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/host.h"

#include <stdlib.h>

#include "sim/numbers.h"

enum { MAX_TURNS = 64 /* of a host at one time */ };

/* ---- ports ---- */

bool mrc_sim_host_takes(struct mrc_sim_hosts *hosts, uint32_t index,
                        enum mrc_host_transport transport, uint32_t plane, uint64_t limit_bytes) {
  struct mrc_sim_host *host = &hosts->at[index];
  if (mrc_queue_bytes(&mrc_fabric_port(hosts->fabric, plane, index)->queue) > limit_bytes)
    host->full[transport] |= 1u << plane;
  return !(host->full[transport] >> plane & 1);
}

static void on_drained(void *edge, uint32_t index, const struct mrc_hop *hop) {
  struct mrc_sim_hosts *hosts = edge;
  struct mrc_sim_host *host = &hosts->at[index];
  const uint32_t bit = 1u << hop->plane;
  uint32_t full = 0;
  for (int i = 0; i < MRC_HOST_TRANSPORTS; i++)
    full |= host->full[i];
  if (!(full & bit)) return;
  if (mrc_queue_bytes(&hop->queue) > hosts->world->config.sndbuf_bytes / 2) return;
  for (int i = 0; i < MRC_HOST_TRANSPORTS; i++) {
    const struct mrc_transport *own = &hosts->transports[i];
    if (host->full[i] & bit && own->calls->port_room)
      own->calls->port_room(own->transport, index, hop->plane + 1u);
    host->full[i] &= ~bit;
  }
  mrc_sim_host_kick(hosts, index);
}

static void on_port_up(void *edge, uint32_t index, uint32_t port, bool up) {
  struct mrc_sim_hosts *hosts = edge;
  const uint32_t bit = 1u << (port - 1);
  hosts->at[index].down = (hosts->at[index].down & ~bit) | (up ? 0 : bit);
  for (int i = 0; i < MRC_HOST_TRANSPORTS; i++) {
    const struct mrc_transport *own = &hosts->transports[i];
    if (own->calls && own->calls->port_up) own->calls->port_up(own->transport, index, port, up);
  }
  mrc_sim_host_kick(hosts, index);
}

/* ---- receiving ---- */

static void receive(struct mrc_sim_hosts *hosts, uint32_t index) {
  struct mrc_sim_host *host = &hosts->at[index];
  struct mrc_frame *packet = host->inbox;
  host->inbox = NULL;
  while (packet) {
    struct mrc_frame *next = packet->next;
    const struct mrc_transport *own = &hosts->transports[packet->transport];
    if (packet->corrupt)
      hosts->fabric->record->stats.corrupt++;
    else
      own->calls->receive(own->transport, index, packet);
    mrc_frame_pool_put(&hosts->fabric->pool, packet);
    packet = next;
  }
}

static void on_arrive(void *edge, uint32_t index, struct mrc_frame *packet) {
  struct mrc_sim_hosts *hosts = edge;
  struct mrc_world *world = hosts->world;
  struct mrc_sim_host *host = &hosts->at[index];
  mrc_record_line(hosts->fabric->record, "recv",
                  mrc_topology_host_down(&world->config.topology, packet->plane, index), packet);
  packet->next = NULL;
  if (host->inbox == NULL)
    host->inbox = packet;
  else
    host->inbox_last->next = packet;
  host->inbox_last = packet;
  uint64_t run_at_ns = world->now_ns + world->config.wake_ns;
  const uint64_t noise_ns = world->config.wake_noise_ns;
  if (noise_ns > 0) {
    if (host->late_until_ns < world->now_ns)
      host->late_until_ns = run_at_ns + mrc_prng_next(&host->noise) % (noise_ns + 1);
    run_at_ns = host->late_until_ns;
  }
  if (run_at_ns >= host->run_at_ns) return;
  host->run_at_ns = run_at_ns;
  mrc_world_schedule(world, run_at_ns, MRC_SIM_ON_RUN, index, NULL);
}

const struct mrc_fabric_edge mrc_sim_hosts_edge = {
    .arrive = on_arrive, .drained = on_drained, .port_up = on_port_up};

/* ---- turns ---- */

/* Deadlines move with every packet, mostly to later times. One early event serves all of them, so
   that moved deadlines leave no events behind. */
static void set_timer(struct mrc_sim_hosts *hosts, uint32_t index) {
  struct mrc_sim_host *host = &hosts->at[index];
  if (host->run_at_ns >= host->timer_at_ns) return;
  host->timer_at_ns = host->run_at_ns;
  mrc_world_schedule(hosts->world, host->timer_at_ns, MRC_SIM_ON_RUN, index, NULL);
}

void mrc_sim_host_run(struct mrc_sim_hosts *hosts, uint32_t index) {
  const uint64_t now_ns = hosts->world->now_ns;
  struct mrc_sim_host *host = &hosts->at[index];
  if (host->timer_at_ns == now_ns) host->timer_at_ns = MRC_NEVER;
  if (host->run_at_ns != now_ns) { /* it ran before, or its deadline moved */
    set_timer(hosts, index);
    return;
  }
  if (now_ns < host->late_until_ns) { /* a busy host is late for timers too */
    host->run_at_ns = host->late_until_ns;
    mrc_world_schedule(hosts->world, host->run_at_ns, MRC_SIM_ON_RUN, index, NULL);
    return;
  }
  host->run_at_ns = MRC_NEVER;
  uint64_t deadline_ns;
  int turns = 0;
  do {
    mrc_assert(turns++ < MAX_TURNS);
    receive(hosts, index);
    deadline_ns = MRC_NEVER;
    for (int i = 0; i < MRC_HOST_TRANSPORTS; i++) {
      const struct mrc_transport *own = &hosts->transports[i];
      if (own->calls)
        deadline_ns = mrc_min_u64(deadline_ns, own->calls->turn(own->transport, index));
    }
  } while (deadline_ns <= now_ns);
  if (deadline_ns >= host->run_at_ns) return;
  host->run_at_ns = deadline_ns;
  set_timer(hosts, index);
}

void mrc_sim_host_kick(struct mrc_sim_hosts *hosts, uint32_t index) {
  struct mrc_sim_host *host = &hosts->at[index];
  const uint64_t run_at_ns = mrc_max_u64(hosts->world->now_ns, host->late_until_ns);
  if (host->run_at_ns == run_at_ns) return;
  host->run_at_ns = run_at_ns;
  mrc_world_schedule(hosts->world, run_at_ns, MRC_SIM_ON_RUN, index, NULL);
}

/* ---- life ---- */

void mrc_sim_hosts_create(struct mrc_sim_hosts *hosts) {
  const uint32_t n = hosts->world->config.topology.hosts;
  hosts->at = calloc(n, sizeof(*hosts->at));
  mrc_assert(hosts->at);
  for (uint32_t i = 0; i < n; i++) {
    hosts->at[i].run_at_ns = hosts->at[i].timer_at_ns = MRC_NEVER;
    hosts->at[i].noise = mrc_world_stream(hosts->world, MRC_SIM_STREAM_HOST, i);
  }
}

void mrc_sim_hosts_free(struct mrc_sim_hosts *hosts) { free(hosts->at); }

uint64_t mrc_sim_hosts_count_frames(const struct mrc_sim_hosts *hosts) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < hosts->world->config.topology.hosts; i++)
    for (const struct mrc_frame *frame = hosts->at[i].inbox; frame; frame = frame->next)
      n++;
  return n;
}
