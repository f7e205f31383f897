/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/pair.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "sim/address.h"
#include "sim/watch.h"

enum {
  HOPS = 3,          /* port link, path link, port link */
  UDP_IP_BYTES = 48, /* IPv6 and UDP headers, for rates and MTUs */
  CAPACITY = 16,     /* bursts of one transmit call */
  MAX_CAPACITY = 64,
  LIVELOCK_RUNS = 100000, /* events, or bursts, without progress of time */
  MAX_TURNS = 16,         /* of the driver loop before time must go on */
  ECN_CE = 3
};

enum event_kind { EVENT_PACKET, EVENT_RUN, EVENT_UNBLOCK };

struct mrc_pair_packet {
  struct mrc_pair_packet *next;
  struct mrc_meta meta;
  int from;
  int to; /* -1: forged, for nobody's eyes */
  int path;
  int hop;
  bool corrupt;
  uint32_t corrupt_bit;
  uint32_t n;
  uint8_t bytes[];
};

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

/* A host that is busy runs its driver late; what is scheduled after that waits with it. */
static uint64_t stall(struct mrc_pair *pair, struct mrc_pair_host *host, uint64_t at_ns) {
  const struct mrc_pair_driver *driver = &host->driver;
  if (driver->stall_ppm && mrc_prng_below(&pair->prng, 1000000) < driver->stall_ppm)
    host->busy_until_ns = at_ns + mrc_prng_below(&pair->prng, (uint32_t)driver->stall_ns);
  return mrc_max_u64(at_ns, host->busy_until_ns);
}

static void schedule_run(struct mrc_pair *pair, int index, uint64_t at_ns) {
  struct mrc_pair_host *host = &pair->hosts[index];
  if (mrc_max_u64(at_ns, host->busy_until_ns) >= host->run_at_ns) return;
  host->run_at_ns = stall(pair, host, at_ns);
  schedule(pair, host->run_at_ns, EVENT_RUN, (uint32_t)index, NULL);
}

static struct mrc_link *link_of(struct mrc_pair *pair, const struct mrc_pair_packet *packet) {
  const int plane = packet->meta.port;
  if (packet->hop == 0) return &pair->port_out[packet->from][plane - 1];
  if (packet->hop == 1) return mrc_pair_path(pair, packet->from, packet->to, plane, packet->path);
  return &pair->port_in[packet->to][plane - 1];
}

static void suffer(struct mrc_pair_packet *packet, const struct mrc_link_fate *fate) {
  if (fate->ce) packet->meta.ecn = ECN_CE;
  if (fate->trimmed && packet->n > MRC_LINK_TRIM_BYTES) {
    packet->meta.trimmed = 1;
    packet->n = MRC_LINK_TRIM_BYTES;
  }
  if (fate->corrupt) {
    packet->corrupt_bit = (uint32_t)(fate->corrupt_bit % (packet->n * 8));
    packet->bytes[packet->corrupt_bit / 8] ^= (uint8_t)(1u << packet->corrupt_bit % 8);
    packet->corrupt = true;
  }
}

static struct mrc_pair_packet *copy_packet(const struct mrc_pair_packet *packet) {
  struct mrc_pair_packet *copy = malloc(sizeof(*copy) + packet->n);
  mrc_assert(copy);
  memcpy(copy, packet, sizeof(*copy) + packet->n);
  return copy;
}

static void arrive(struct mrc_pair *pair, struct mrc_pair_packet *packet) {
  struct mrc_pair_host *host = &pair->hosts[packet->to];
  packet->next = NULL;
  packet->meta.arrived_ns = host->driver.unstamped ? 0 : pair->now_ns;
  *host->inbox_end = packet;
  host->inbox_end = &packet->next;
  schedule_run(pair, packet->to, pair->now_ns + host->driver.wake_ns);
}

/* Takes the packet over its next links, as far as it comes without delay. */
static void forward(struct mrc_pair *pair, struct mrc_pair_packet *packet) {
  while (packet->hop < HOPS) {
    struct mrc_link *link = link_of(pair, packet);
    struct mrc_link_fate fate = mrc_link_pass(link, packet->n + UDP_IP_BYTES, pair->now_ns);
    if (fate.copies == 0) {
      free(packet);
      return;
    }
    suffer(packet, &fate);
    if (packet->corrupt && pair->config.udp_checksum) {
      free(packet);
      return;
    }
    packet->hop++;
    if (fate.copies == 2) schedule(pair, fate.at_ns[1], EVENT_PACKET, 0, copy_packet(packet));
    if (fate.at_ns[0] > pair->now_ns) {
      schedule(pair, fate.at_ns[0], EVENT_PACKET, 0, packet);
      return;
    }
  }
  arrive(pair, packet);
}

/* ---- the driver of a host ---- */

static bool rule_matches(const struct mrc_pair_rule *rule, const struct mrc_pair_packet *packet,
                         const struct mrc_wire *wire) {
  if (rule->times == 0 || rule->host != packet->from) return false;
  if (rule->plane != MRC_PAIR_ANY && rule->plane != packet->meta.port) return false;
  bool data = mrc_opcode_is_data(wire->opcode);
  if (rule->opcode == MRC_PAIR_DATA && !data) return false;
  if (rule->opcode != MRC_PAIR_DATA && rule->opcode != MRC_PAIR_ANY && rule->opcode != wire->opcode)
    return false;
  return rule->n_psns == 0 || ((wire->psn - rule->psn) & 0xFFFFFF) < rule->n_psns;
}

static bool lost_by_rule(struct mrc_pair *pair, const struct mrc_pair_packet *packet,
                         const struct mrc_wire *wire) {
  for (int i = 0; i < pair->n_rules; i++) {
    if (!rule_matches(&pair->rules[i], packet, wire)) continue;
    pair->rules[i].times--;
    return true;
  }
  return false;
}

/* Puts one packet of a burst together, as the socket would. */
static struct mrc_pair_packet *assemble(const struct mrc_burst *burst,
                                        const struct mrc_packet *piece) {
  uint32_t n = piece->header_bytes + piece->payload_bytes + piece->trailer_bytes;
  struct mrc_pair_packet *packet = malloc(sizeof(*packet) + n);
  mrc_assert(packet);
  *packet = (struct mrc_pair_packet){.n = n};
  uint8_t *payload = packet->bytes + piece->header_bytes;
  memcpy(packet->bytes, piece->header, piece->header_bytes);
  if (piece->payload_bytes) memcpy(payload, piece->payload, piece->payload_bytes);
  memcpy(payload + piece->payload_bytes, piece->trailer, piece->trailer_bytes);
  memcpy(packet->meta.src, burst->src, sizeof(burst->src));
  memcpy(packet->meta.dst, burst->dst, sizeof(burst->dst));
  packet->meta.flow_label = burst->flow_label;
  packet->meta.sport = burst->sport;
  packet->meta.dport = burst->dport;
  packet->meta.family = burst->family;
  packet->meta.port = burst->port;
  packet->meta.ecn = burst->tclass & 3;
  return packet;
}

static void send_burst(struct mrc_pair *pair, int from, const struct mrc_burst *burst) {
  mrc_watch_burst(pair, from, burst);
  for (int i = 0; i < burst->n_packets; i++) {
    struct mrc_pair_packet *packet = assemble(burst, &burst->packets[i]);
    packet->from = from;
    packet->to = mrc_address_host(burst->dst);
    packet->path = mrc_address_path(burst->family, burst->dst, burst->sport);
    struct mrc_wire wire = {0};
    mrc_watch_sent(pair, from, &packet->meta, packet->bytes, packet->n, &wire);
    if (lost_by_rule(pair, packet, &wire))
      free(packet);
    else
      forward(pair, packet);
  }
}

static uint32_t bit_of(int port) { return 1u << (port - 1); }

/* Whether the kernel takes the burst; a port whose link holds too much is blocked from now on. */
static bool takes(struct mrc_pair *pair, struct mrc_pair_host *host, const struct mrc_link *out,
                  const struct mrc_burst *burst) {
  host->bursts++;
  uint64_t limit = host->driver.sndbuf_bytes;
  if (limit && mrc_link_backlog(out, pair->now_ns) > limit) host->blocked |= bit_of(burst->port);
  if (host->blocked & bit_of(burst->port)) return false;
  return !host->driver.refuse_every || host->bursts % (uint64_t)host->driver.refuse_every != 0;
}

/* Tells the engine of ports that have just become blocked, until half of the backlog is gone. */
static void tell_blocked(struct mrc_pair *pair, int index, uint32_t before) {
  struct mrc_pair_host *host = &pair->hosts[index];
  for (int port = 1; port <= pair->config.planes; port++) {
    if (!(host->blocked & ~before & bit_of(port))) continue;
    mrc_engine_port_blocked(host->engine, port, true, pair->now_ns);
    const struct mrc_link *out = &pair->port_out[index][port - 1];
    uint64_t drained_ns = pair->now_ns + (out->free_at_ns - pair->now_ns) / 2 + 1;
    uint32_t which = (uint32_t)(index * MRC_PAIR_MAX_PLANES + port - 1);
    schedule(pair, drained_ns, EVENT_UNBLOCK, which, NULL);
  }
}

static void transmit(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  struct mrc_burst bursts[MAX_CAPACITY];
  int taken[MAX_CAPACITY];
  for (int turn = 0; turn < LIVELOCK_RUNS; turn++) {
    int n = mrc_engine_transmit(host->engine, bursts, host->driver.capacity, pair->now_ns);
    mrc_assert(n >= 0 && n <= host->driver.capacity);
    if (n == 0) return;
    uint32_t before = host->blocked;
    for (int i = 0; i < n; i++) {
      mrc_assert(!(before & bit_of(bursts[i].port))); /* a blocked port is not chosen */
      taken[i] = takes(pair, host, &pair->port_out[index][bursts[i].port - 1], &bursts[i]);
      if (taken[i]) send_burst(pair, index, &bursts[i]);
      host->refused += !taken[i];
    }
    mrc_engine_commit(host->engine, bursts, taken, n, pair->now_ns);
    tell_blocked(pair, index, before);
  }
  mrc_assert(!"the engine never runs dry");
}

static void receive(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  struct mrc_pair_packet *packet = host->inbox;
  host->inbox = NULL;
  host->inbox_end = &host->inbox;
  while (packet) {
    struct mrc_pair_packet *next = packet->next;
    int drop =
        mrc_engine_receive(host->engine, packet->bytes, packet->n, &packet->meta, pair->now_ns);
    mrc_assert(drop >= 0 && drop < MRC_PAIR_MAX_DROPS);
    host->drops[drop]++;
    mrc_watch_received(pair, index, &packet->meta, packet->bytes, packet->n, drop,
                       packet->corrupt ? (int)packet->corrupt_bit : -1);
    free(packet);
    packet = next;
  }
}

static void take_results(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  struct mrc_wc wcs[16];
  for (int n; (n = mrc_cq_poll(host->engine, wcs, 16)) > 0;)
    for (int i = 0; i < n; i++)
      mrc_watch_completion(pair, index, &wcs[i]);
  struct mrc_event events[16];
  for (int n; (n = mrc_engine_events(host->engine, events, 16)) > 0;)
    for (int i = 0; i < n; i++)
      if (host->n_events < MRC_PAIR_MAX_EVENTS) host->events[host->n_events++] = events[i];
}

/* The driver loop, the same as a real one's. What is due is done in a few turns at most. */
static void run_host(struct mrc_pair *pair, int index) {
  mrc_engine *engine = pair->hosts[index].engine;
  uint64_t deadline_ns;
  int turns = 0;
  do {
    mrc_assert(turns++ < MAX_TURNS);
    receive(pair, index);
    if (mrc_engine_deadline(engine) <= pair->now_ns) mrc_engine_expire(engine, pair->now_ns);
    transmit(pair, index);
    if (!pair->hosts[index].stops_polling) take_results(pair, index);
    deadline_ns = mrc_engine_deadline(engine);
  } while (deadline_ns <= pair->now_ns);
  if (deadline_ns != MRC_NEVER) schedule_run(pair, index, deadline_ns);
  mrc_watch_state(pair, index);
}

/* ---- time ---- */

static void unblock(struct mrc_pair *pair, uint32_t index) {
  int host = (int)(index / MRC_PAIR_MAX_PLANES), port = (int)(index % MRC_PAIR_MAX_PLANES) + 1;
  pair->hosts[host].blocked &= ~bit_of(port);
  mrc_engine_port_blocked(pair->hosts[host].engine, port, false, pair->now_ns);
  run_host(pair, host);
}

static void handle(struct mrc_pair *pair, const struct mrc_heap_entry *event) {
  struct mrc_pair_host *host = &pair->hosts[event->index];
  switch (event->kind) {
    case EVENT_PACKET:
      forward(pair, event->pointer);
      break;
    case EVENT_RUN:
      if (host->run_at_ns != event->at_ns) break; /* an earlier run was scheduled since */
      host->run_at_ns = MRC_NEVER;
      run_host(pair, (int)event->index);
      break;
    default:
      unblock(pair, event->index);
  }
}

bool mrc_pair_step(struct mrc_pair *pair, uint64_t until_ns) {
  if (mrc_heap_next_ns(&pair->heap) > until_ns) return false;
  pair->now_ns = mrc_heap_next_ns(&pair->heap);
  int events = 0;
  for (struct mrc_heap_entry event; mrc_heap_next_ns(&pair->heap) == pair->now_ns;) {
    mrc_assert(events++ < LIVELOCK_RUNS);
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

void mrc_pair_kick(struct mrc_pair *pair, int host) { schedule_run(pair, host, pair->now_ns); }

/* ---- faults ---- */

void mrc_pair_silence(struct mrc_pair *pair, int plane, bool silent) {
  for (int from = 0; from < pair->config.hosts; from++)
    for (int to = 0; to < pair->config.hosts; to++)
      for (int path = 0; path < pair->config.paths; path++)
        mrc_pair_path(pair, from, to, plane, path)->config.silent = silent;
}

void mrc_pair_port_up(struct mrc_pair *pair, int host, int plane, bool up) {
  pair->hosts[host].down &= ~bit_of(plane);
  if (!up) pair->hosts[host].down |= bit_of(plane);
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
  mrc_assert(host->driver.capacity <= MAX_CAPACITY);
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
  for (struct mrc_pair_packet *packet = host->inbox, *next; packet; packet = next) {
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
