/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/pair.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/psn.h"
#include "sim/driver.h"

enum {
  HOPS = 3,                /* port link, path link, port link */
  UDP_IP_BYTES = 48,       /* IPv6 and UDP headers, for rates and MTUs */
  CAPACITY = 16,           /* bursts of one transmit call */
  LIVELOCK_EVENTS = 100000 /* without progress of time */
};

enum event_kind { EVENT_PACKET, EVENT_RUN, EVENT_UNBLOCK };

struct mrc_link *mrc_pair_path(struct mrc_pair *pair, int from, int to, int plane, int path) {
  const struct mrc_pair_config *config = &pair->config;
  mrc_assert(from < config->hosts && to < config->hosts && path < config->paths);
  mrc_assert(plane >= 1 && plane <= config->planes);
  return &pair->paths[((from * config->hosts + to) * config->planes + plane - 1) * config->paths +
                      path];
}

/* ---- packets on their way ---- */

static void schedule(struct mrc_pair *pair, uint64_t at_ns, enum event_kind kind, uint32_t index,
                     void *pointer) {
  mrc_assert(at_ns >= pair->now_ns);
  mrc_heap_push(&pair->heap, (struct mrc_heap_entry){
                                 .at_ns = at_ns, .kind = kind, .index = index, .pointer = pointer});
}

void mrc_pair_run_at(struct mrc_pair *pair, int index, uint64_t at_ns) {
  struct mrc_pair_host *host = &pair->hosts[index];
  at_ns = mrc_max_u64(at_ns, host->busy_until_ns);
  if (at_ns >= host->run_at_ns) return;
  host->run_at_ns = at_ns;
  schedule(pair, at_ns, EVENT_RUN, (uint32_t)index, NULL);
}

void mrc_pair_unblock_at(struct mrc_pair *pair, int host, int port, uint64_t at_ns) {
  uint32_t index = (uint32_t)(host * MRC_PAIR_MAX_PLANES + port - 1);
  schedule(pair, at_ns, EVENT_UNBLOCK, index, NULL);
}

static struct mrc_link *link_of(struct mrc_pair *pair, const struct mrc_sim_packet *packet) {
  const int plane = packet->meta.port;
  if (packet->hop == 0) return &pair->port_out[packet->from][plane - 1];
  if (packet->hop == 1) return mrc_pair_path(pair, packet->from, packet->to, plane, packet->path);
  return &pair->port_in[packet->to][plane - 1];
}

static void arrive(struct mrc_pair *pair, struct mrc_sim_packet *packet) {
  struct mrc_pair_host *host = &pair->hosts[packet->to];
  packet->next = NULL;
  packet->meta.arrived_ns = host->driver.unstamped ? 0 : pair->now_ns;
  *host->inbox_end = packet;
  host->inbox_end = &packet->next;
  mrc_pair_run_at(pair, packet->to, pair->now_ns + host->driver.wake_ns);
}

/* Takes the packet over its next links, as far as it comes without delay. */
static void forward(struct mrc_pair *pair, struct mrc_sim_packet *packet) {
  while (packet->hop < HOPS) {
    struct mrc_link *link = link_of(pair, packet);
    struct mrc_link_fate fate = mrc_link_pass(link, packet->n + UDP_IP_BYTES, pair->now_ns);
    if (fate.copies == 0) {
      free(packet);
      return;
    }
    mrc_sim_packet_suffer(packet, &fate);
    if (packet->flipped >= 0 && pair->config.udp_checksum) {
      free(packet);
      return;
    }
    packet->hop++;
    if (fate.copies == 2)
      schedule(pair, fate.at_ns[1], EVENT_PACKET, 0, mrc_sim_packet_copy(packet));
    if (fate.at_ns[0] > pair->now_ns) {
      schedule(pair, fate.at_ns[0], EVENT_PACKET, 0, packet);
      return;
    }
  }
  arrive(pair, packet);
}

static bool rule_matches(const struct mrc_pair_rule *rule, const struct mrc_sim_packet *packet,
                         const struct mrc_wire *wire) {
  if (rule->times == 0 || rule->host != packet->from) return false;
  if (rule->plane != MRC_PAIR_ANY && rule->plane != packet->meta.port) return false;
  bool data = mrc_opcode_is_data(wire->opcode);
  if (rule->opcode == MRC_PAIR_DATA && !data) return false;
  if (rule->opcode != MRC_PAIR_DATA && rule->opcode != MRC_PAIR_ANY && rule->opcode != wire->opcode)
    return false;
  return rule->n_psns == 0 || mrc_psn_in(wire->psn, rule->psn, rule->n_psns);
}

static bool lost_by_rule(struct mrc_pair *pair, const struct mrc_sim_packet *packet,
                         const struct mrc_wire *wire) {
  for (int i = 0; i < pair->n_rules; i++) {
    if (!rule_matches(&pair->rules[i], packet, wire)) continue;
    pair->rules[i].times--;
    return true;
  }
  return false;
}

void mrc_pair_send(struct mrc_pair *pair, struct mrc_sim_packet *packet,
                   const struct mrc_wire *wire) {
  if (lost_by_rule(pair, packet, wire))
    free(packet);
  else
    forward(pair, packet);
}

/* ---- time ---- */

/* Runs the driver, or finds the host busy with something else for a while. */
static void run(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  const struct mrc_pair_driver *driver = &host->driver;
  host->run_at_ns = MRC_NEVER;
  if (driver->stall_ppm && mrc_prng_below(&pair->prng, 1000000) < driver->stall_ppm) {
    host->busy_until_ns =
        pair->now_ns + 1 + mrc_prng_below(&pair->prng, (uint32_t)driver->stall_ns);
    mrc_pair_run_at(pair, index, host->busy_until_ns);
    return;
  }
  mrc_driver_run(pair, index);
}

static void handle(struct mrc_pair *pair, const struct mrc_heap_entry *event) {
  switch (event->kind) {
    case EVENT_PACKET:
      forward(pair, event->pointer);
      break;
    case EVENT_RUN:
      if (pair->hosts[event->index].run_at_ns == event->at_ns) run(pair, (int)event->index);
      break;
    default:
      mrc_driver_unblock(pair, (int)event->index / MRC_PAIR_MAX_PLANES,
                         (int)event->index % MRC_PAIR_MAX_PLANES + 1);
  }
}

bool mrc_pair_step(struct mrc_pair *pair, uint64_t until_ns) {
  if (mrc_heap_next_ns(&pair->heap) > until_ns) return false;
  pair->now_ns = mrc_heap_next_ns(&pair->heap);
  int events = 0;
  for (struct mrc_heap_entry event; mrc_heap_next_ns(&pair->heap) == pair->now_ns;) {
    mrc_assert(events++ < LIVELOCK_EVENTS);
    mrc_assert(mrc_heap_pop(&pair->heap, &event));
    handle(pair, &event);
  }
  return true;
}

void mrc_pair_run(struct mrc_pair *pair, uint64_t until_ns) {
  while (mrc_pair_step(pair, until_ns)) {
  }
  pair->now_ns = until_ns;
}

void mrc_pair_kick(struct mrc_pair *pair, int host) { mrc_pair_run_at(pair, host, pair->now_ns); }

/* ---- faults ---- */

void mrc_pair_silence(struct mrc_pair *pair, int plane, bool silent) {
  for (int from = 0; from < pair->config.hosts; from++)
    for (int to = 0; to < pair->config.hosts; to++)
      for (int path = 0; path < pair->config.paths; path++)
        mrc_pair_path(pair, from, to, plane, path)->config.silent = silent;
}

void mrc_pair_port_up(struct mrc_pair *pair, int host, int plane, bool up) {
  pair->hosts[host].down &= ~(1u << (plane - 1));
  if (!up) pair->hosts[host].down |= 1u << (plane - 1);
  pair->port_out[host][plane - 1].config.silent = !up;
  pair->port_in[host][plane - 1].config.silent = !up;
  mrc_engine_port_up(pair->hosts[host].engine, plane, up, pair->now_ns);
  mrc_pair_kick(pair, host);
}

void mrc_pair_lose(struct mrc_pair *pair, struct mrc_pair_rule rule) {
  mrc_assert(pair->n_rules < MRC_PAIR_MAX_RULES);
  pair->rules[pair->n_rules++] = rule;
}

int mrc_pair_forge(struct mrc_pair *pair, int host, const uint8_t *bytes, size_t n,
                   const struct mrc_meta *meta) {
  int drop = mrc_engine_receive(pair->hosts[host].engine, bytes, n, meta, pair->now_ns);
  mrc_pair_kick(pair, host);
  return drop;
}

/* ---- life ---- */

static void create_host(struct mrc_pair *pair, int index) {
  struct mrc_engine_config config = pair->config.engine;
  config.seed = mrc_prng_next(&pair->prng);
  config.ports = (uint32_t)pair->config.planes;
  struct mrc_pair_host *host = &pair->hosts[index];
  host->engine = mrc_engine_create(&config);
  mrc_assert(host->engine);
  host->driver = pair->config.driver;
  if (host->driver.capacity == 0) host->driver.capacity = CAPACITY;
  host->inbox_end = &host->inbox;
  host->run_at_ns = MRC_NEVER;
  for (int i = 0; i < pair->config.planes; i++) {
    pair->port_out[index][i] = (struct mrc_link){.config = pair->config.port_out,
                                                 .prng.state = mrc_prng_next(&pair->prng)};
    pair->port_in[index][i] =
        (struct mrc_link){.config = pair->config.port_in, .prng.state = mrc_prng_next(&pair->prng)};
  }
}

struct mrc_pair *mrc_pair_create(const struct mrc_pair_config *config) {
  struct mrc_pair *pair = calloc(1, sizeof(*pair));
  mrc_assert(pair);
  pair->config = *config;
  if (pair->config.hosts == 0) pair->config.hosts = 2;
  if (pair->config.planes == 0) pair->config.planes = 1;
  if (pair->config.paths == 0) pair->config.paths = 1;
  if (pair->config.family == 0) pair->config.family = 6;
  mrc_assert(pair->config.hosts <= MRC_PAIR_MAX_HOSTS);
  mrc_assert(pair->config.planes <= MRC_PAIR_MAX_PLANES);
  mrc_assert(pair->config.paths <= MRC_PAIR_MAX_PATHS);
  pair->prng.state = config->seed;
  pair->now_ns = 1000000000; /* clocks do not start at 0 */
  int n = pair->config.hosts * pair->config.hosts * pair->config.planes * pair->config.paths;
  pair->paths = calloc((size_t)n, sizeof(*pair->paths));
  mrc_assert(pair->paths);
  for (int i = 0; i < n; i++)
    pair->paths[i] =
        (struct mrc_link){.config = pair->config.path, .prng.state = mrc_prng_next(&pair->prng)};
  for (int i = 0; i < pair->config.hosts; i++)
    create_host(pair, i);
  return pair;
}

static void free_inbox(struct mrc_pair_host *host) {
  for (struct mrc_sim_packet *packet = host->inbox, *next; packet; packet = next) {
    next = packet->next;
    free(packet);
  }
}

void mrc_pair_destroy(struct mrc_pair *pair) {
  for (int i = 0; i < pair->config.hosts; i++)
    mrc_engine_destroy(pair->hosts[i].engine);
  for (int i = 0; i < pair->n_ends; i++) {
    mrc_audit_memory(&pair->ends[i]->audit);
    mrc_audit_free(&pair->ends[i]->audit);
    free(pair->ends[i]);
  }
  for (struct mrc_heap_entry event; mrc_heap_pop(&pair->heap, &event);)
    free(event.pointer);
  for (int i = 0; i < pair->config.hosts; i++)
    free_inbox(&pair->hosts[i]);
  mrc_heap_free(&pair->heap);
  free(pair->paths);
  free(pair);
}
