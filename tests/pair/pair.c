/* SPDX-License-Identifier: Apache-2.0 */
#include "pair/pair.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/crc.h"
#include "core/turn.h"
#include "core/windows.h"
#include "virtual/sealer.h"

/* ---- packets ---- */

enum { ECN_CE = 3 };

/* The flow label names the plane. On IPv4 it is that of the port. */
static int plane_of(const struct mrc_burst *burst) {
  return burst->family == 4 ? burst->port : (int)(burst->flow_label >> 12 & 15);
}

struct mrc_datagram *mrc_datagram_make(int from, const struct mrc_burst *burst,
                                       const struct mrc_packet *piece) {
  uint32_t n = piece->header_bytes + piece->payload_bytes + piece->trailer_bytes;
  struct mrc_datagram *packet = malloc(sizeof(*packet) + n);
  mrc_assert(packet);
  *packet = (struct mrc_datagram){
      .meta = {.flow_label = burst->flow_label,
               .sport = burst->sport,
               .dport = burst->dport,
               .family = burst->family,
               .port = burst->port,
               .ecn = burst->tclass & 3},
      .plane = plane_of(burst),
      .tclass = burst->tclass,
      .from = from,
      .to = mrc_address_host(burst->dst),
      .path = mrc_address_path(burst->family, burst->dst, burst->sport),
      .flipped = -1,
      .n = n,
  };
  memcpy(packet->meta.src, burst->src, sizeof(burst->src));
  memcpy(packet->meta.dst, burst->dst, sizeof(burst->dst));
  if (burst->staged) {
    memcpy(packet->bytes, burst->staged + (piece - burst->packets) * burst->packet_bytes, n);
    return packet;
  }
  uint8_t *payload = packet->bytes + piece->header_bytes;
  memcpy(packet->bytes, piece->header, piece->header_bytes);
  if (piece->payload_bytes) memcpy(payload, piece->payload, piece->payload_bytes);
  memcpy(payload + piece->payload_bytes, piece->trailer, piece->trailer_bytes);
  return packet;
}

struct mrc_datagram *mrc_datagram_copy(const struct mrc_datagram *packet) {
  struct mrc_datagram *copy = malloc(sizeof(*copy) + packet->n);
  mrc_assert(copy);
  memcpy(copy, packet, sizeof(*copy) + packet->n);
  return copy;
}

void mrc_datagram_suffer(struct mrc_datagram *packet, const struct mrc_link_fate *fate) {
  if (fate->ce) packet->meta.ecn = ECN_CE;
  if (fate->trimmed && packet->n > MRC_LINK_TRIM_BYTES) {
    packet->meta.trimmed = MRC_TRIMMED;
    packet->n = MRC_LINK_TRIM_BYTES;
  }
  if (fate->corrupt) {
    packet->flipped = (int)(fate->corrupt_bit % (packet->n * 8));
    packet->bytes[packet->flipped / 8] ^= (uint8_t)(1u << packet->flipped % 8);
  }
}

/* ---- what the auditors see ---- */

/* Passes the packets and completions of a pair's hosts to the auditors of their QPs. Checks here
   what belongs to no QP: the form and destination of bursts. */

enum {
  VAR_RES = 4 /* the byte of the BTH that the ICRC does not cover */
};

/* The end at `host` with this QPN; -1 when there is none. */
static int find_end(const struct mrc_pair *pair, int host, uint32_t qpn) {
  for (int i = 0; i < pair->n_ends; i++)
    if (pair->ends[i]->host == host && pair->ends[i]->qpn == qpn) return i;
  return -1;
}

static uint32_t ev_of(const struct mrc_meta *meta) {
  return (uint32_t)meta->sport << 16 | (meta->flow_label & 0xFFFF);
}

/* FNV-1a, a word at a time. */
static uint64_t fnv(uint64_t trace, uint64_t word) { return (trace ^ word) * 0x100000001B3ull; }

static void hash(struct mrc_pair *pair, const void *bytes, size_t n) {
  const uint8_t *at = bytes;
  uint64_t trace = pair->trace, word;
  for (; n >= sizeof word; n -= sizeof word, at += sizeof word) {
    memcpy(&word, at, sizeof word);
    trace = fnv(trace, word);
  }
  while (n-- > 0)
    trace = fnv(trace, *at++);
  pair->trace = trace;
}

/* Skips the address of a data packet, which differs between runs, and the ICRC, which covers it. */
static void hash_packet(struct mrc_pair *pair, const struct mrc_datagram *packet,
                        const struct mrc_wire *wire) {
  hash(pair, &pair->now_ns, sizeof(pair->now_ns));
  hash(pair, &packet->meta, sizeof(packet->meta));
  if (!mrc_opcode_is_data(wire->opcode)) {
    hash(pair, packet->bytes, packet->n);
    return;
  }
  uint32_t ts_bytes = wire->ts ? MRC_TSETH_BYTES : 0;
  hash(pair, packet->bytes, MRC_BTH_BYTES + MRC_METH_BYTES + ts_bytes);
  hash(pair, &wire->imm, sizeof(wire->imm));
  hash(pair, wire->payload, wire->payload_bytes);
}

uint32_t mrc_pair_burst_bytes(const struct mrc_pair *pair) {
  const uint32_t bytes = pair->config.engine.max_burst_bytes;
  return bytes != 0 ? bytes : MRC_BURST_BYTES;
}

static void check_sizes(const struct mrc_pair *pair, const struct mrc_burst *burst) {
  uint32_t sum = 0;
  mrc_assert(burst->n_packets >= 1 && burst->n_packets <= MRC_MAX_BURST_PACKETS);
  for (int i = 0; i < burst->n_packets; i++) {
    const struct mrc_packet *packet = &burst->packets[i];
    uint32_t bytes = packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
    mrc_assert(packet->header_bytes <= MRC_MAX_HEADER);
    mrc_assert(packet->trailer_bytes <= sizeof(packet->trailer));
    mrc_assert(bytes == burst->packet_bytes ||
               (bytes < burst->packet_bytes && i == burst->n_packets - 1));
    sum += bytes;
  }
  mrc_assert(burst->n_packets == 1 || sum <= mrc_pair_burst_bytes(pair));
}

static void watch_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst) {
  int family = pair->config.family;
  int path = mrc_address_path(family, burst->dst, burst->sport);
  const int plane = plane_of(burst), to = mrc_address_host(burst->dst);
  mrc_assert(plane >= 1 && plane <= pair->config.planes);
  mrc_assert(burst->port == mrc_pair_port(&pair->config, host, plane));
  /* no packet leaves a port that is down */
  mrc_assert(!(pair->hosts[host].down >> (burst->port - 1) & 1));
  mrc_assert(burst->family == family);
  mrc_assert(burst->src[MRC_ADDRESS_HOST] == host + 1);
  mrc_assert(burst->src[MRC_ADDRESS_PLANE] == burst->port);
  mrc_assert(burst->dst[MRC_ADDRESS_PLANE] == mrc_pair_port(&pair->config, to, plane));
  mrc_assert(burst->dst[MRC_ADDRESS_NAT] != 0 ||
             burst->dport == mrc_address_udp_port(mrc_address_host(burst->dst)));
  mrc_assert(path >= 0 && path < pair->config.paths);
  mrc_assert(burst->tx_index == mrc_address_tx_index(family, path));
  mrc_assert(burst->sport == mrc_address_sport(burst->port, burst->tx_index));
  mrc_assert((burst->flow_label & 0xFFFF) == mrc_address_label(family, plane, path));
  check_sizes(pair, burst);
}

/* The end that sent the packet; NULL if it belongs to no QP. */
static struct mrc_pair_end *sender_of(const struct mrc_pair *pair,
                                      const struct mrc_datagram *packet,
                                      const struct mrc_wire *wire) {
  const int peer = find_end(pair, packet->to, wire->dest_qpn);
  return peer < 0 ? NULL : pair->ends[pair->ends[peer]->peer];
}

/* The kernel could not send a packet; call it before the engine is informed. Data on a suspended
   plane then counts as in flight, since no other plane is left. */
static void watch_failed(struct mrc_pair *pair, const struct mrc_datagram *packet) {
  const struct mrc_pair_host *host = &pair->hosts[packet->from];
  const int plane = packet->plane;
  struct mrc_wire wire;
  mrc_assert(mrc_wire_decode(packet->bytes, packet->n, false, &wire) == 0);
  struct mrc_pair_end *end = sender_of(pair, packet, &wire);
  if (end == NULL || end->done || end->audit.unwatched || !mrc_opcode_is_data(wire.opcode)) return;
  struct mrc_qp_info info;
  mrc_assert(mrc_qp_query(host->engine, end->qpn, &info) == 0);
  if (info.planes[plane - 1].suspended)
    mrc_audit_sent(&end->audit, &pair->ends[end->peer]->audit, &wire, ev_of(&packet->meta),
                   (uint32_t)packet->plane, ~(host->blocked | host->down));
}

/* The kernel has accepted a packet; decodes it into `wire`. */
static void watch_sent(struct mrc_pair *pair, const struct mrc_datagram *packet,
                       struct mrc_wire *wire) {
  struct mrc_pair_host *host = &pair->hosts[packet->from];
  const int plane = packet->plane;
  mrc_assert(mrc_wire_decode(packet->bytes, packet->n, false, wire) == 0);
  hash_packet(pair, packet, wire);
  host->plane_packets[plane - 1]++;
  struct mrc_pair_end *end = sender_of(pair, packet, wire);
  if (end == NULL) return;
  struct mrc_audit *audit = &end->audit;
  mrc_assert(!end->denied[plane - 1][packet->path]); /* no packet is sent on a DENIED EV */
  /* nor data on an UNPROVEN one */
  mrc_assert(!end->unproven[plane - 1][packet->path] || !mrc_opcode_is_data(wire->opcode));
  if (end->done || audit->unwatched) return;
  if (mrc_opcode_is_data(wire->opcode)) host->plane_bytes[plane - 1] += wire->payload_bytes;
  mrc_audit_sent(audit, &pair->ends[end->peer]->audit, wire, ev_of(&packet->meta),
                 (uint32_t)packet->plane, ~(host->blocked | host->down));
}

/* `drop` is the result of mrc_engine_receive. */
static void watch_received(struct mrc_pair *pair, const struct mrc_datagram *packet, int drop) {
  struct mrc_wire wire;
  if (packet->meta.trimmed || drop != 0) return;
  /* the ICRC detects every flip except in the byte that it does not cover */
  mrc_assert(packet->flipped < 0 || packet->flipped / 8 == VAR_RES);
  mrc_assert(mrc_wire_decode(packet->bytes, packet->n, false, &wire) == 0);
  int index = find_end(pair, packet->to, wire.dest_qpn);
  if (index < 0) return;
  struct mrc_pair_end *end = pair->ends[index];
  mrc_assert(!end->done); /* no packet is accepted for a destroyed QP */
  if (end->audit.unwatched) return;
  mrc_audit_received(&end->audit, &pair->ends[end->peer]->audit, &wire);
}

static void watch_completion(struct mrc_pair *pair, int host, const struct mrc_wc *wc) {
  int index = find_end(pair, host, wc->qpn);
  mrc_assert(index >= 0);
  struct mrc_pair_end *end = pair->ends[index];
  mrc_audit_completed(wc->opcode == MRC_WC_RECV_IMM ? &pair->ends[end->peer]->audit : &end->audit,
                      wc);
}

/* After the driver has sent. */
static void watch_state(struct mrc_pair *pair, int host) {
  for (int i = 0; i < pair->n_ends; i++) {
    struct mrc_pair_end *end = pair->ends[i];
    if (end->host == host && !end->done && !end->audit.unwatched) mrc_audit_state(&end->audit);
  }
}

/* ---- links, and packets in flight ---- */

enum {
  HOPS = 3,          /* port link, path link, port link */
  UDP_IP_BYTES = 48, /* IPv6 and UDP headers, for rates and MTUs */
};

struct mrc_link *mrc_pair_path(struct mrc_pair *pair, int from, int to, int plane, int path) {
  const struct mrc_pair_config *config = &pair->config;
  mrc_assert(from < config->hosts && to < config->hosts && path < config->paths);
  mrc_assert(plane >= 1 && plane <= config->planes);
  return &pair->paths[((from * config->hosts + to) * config->planes + plane - 1) * config->paths +
                      path];
}

static void schedule(struct mrc_pair *pair, uint64_t at_ns, enum mrc_pair_event kind,
                     uint32_t index, void *pointer) {
  mrc_assert(at_ns >= pair->now_ns);
  mrc_heap_push(&pair->heap, (struct mrc_heap_entry){
                                 .at_ns = at_ns, .kind = kind, .index = index, .pointer = pointer});
}

/* Runs the driver of a host at `at_ns` or earlier. */
static void run_at(struct mrc_pair *pair, int index, uint64_t at_ns) {
  struct mrc_pair_host *host = &pair->hosts[index];
  at_ns = mrc_max_u64(at_ns, host->busy_until_ns);
  if (at_ns >= host->run_at_ns) return;
  host->run_at_ns = at_ns;
  schedule(pair, at_ns, MRC_PAIR_ON_RUN, (uint32_t)index, NULL);
}

static void unblock_at(struct mrc_pair *pair, int host, int port, uint64_t at_ns) {
  uint32_t index = (uint32_t)(host * MRC_PAIR_MAX_PLANES + port - 1);
  schedule(pair, at_ns, MRC_PAIR_ON_UNBLOCK, index, NULL);
}

static struct mrc_link *link_of(struct mrc_pair *pair, const struct mrc_datagram *packet) {
  const int plane = packet->plane;
  const struct mrc_pair_config *config = &pair->config;
  if (packet->hop == 0)
    return &pair->port_out[packet->from][mrc_pair_port(config, packet->from, plane) - 1];
  if (packet->hop == 1) return mrc_pair_path(pair, packet->from, packet->to, plane, packet->path);
  return &pair->port_in[packet->to][mrc_pair_port(config, packet->to, plane) - 1];
}

static void arrive(struct mrc_pair *pair, struct mrc_datagram *packet) {
  struct mrc_pair_host *host = &pair->hosts[packet->to];
  packet->next = NULL;
  packet->meta.port = (uint8_t)mrc_pair_port(&pair->config, packet->to, packet->plane);
  packet->meta.arrived_ns = host->driver.unstamped ? 0 : pair->now_ns;
  *host->inbox_end = packet;
  host->inbox_end = &packet->next;
  run_at(pair, packet->to, pair->now_ns + host->driver.wake_ns);
}

/* Moves a packet over its next links until one delays it. */
static void forward(struct mrc_pair *pair, struct mrc_datagram *packet) {
  while (packet->hop < HOPS) {
    struct mrc_link *link = link_of(pair, packet);
    struct mrc_link_fate fate = mrc_link_pass(link, packet->n + UDP_IP_BYTES, pair->now_ns);
    if (fate.copies == 0) {
      free(packet);
      return;
    }
    mrc_datagram_suffer(packet, &fate);
    if (packet->flipped >= 0 && pair->config.udp_checksum) {
      free(packet);
      return;
    }
    packet->hop++;
    if (fate.copies == 2)
      schedule(pair, fate.at_ns[1], MRC_PAIR_ON_PACKET, 0, mrc_datagram_copy(packet));
    if (fate.at_ns[0] > pair->now_ns) {
      schedule(pair, fate.at_ns[0], MRC_PAIR_ON_PACKET, 0, packet);
      return;
    }
  }
  arrive(pair, packet);
}

static bool rule_matches(const struct mrc_pair_rule *rule, const struct mrc_datagram *packet,
                         const struct mrc_wire *wire) {
  if (rule->times == 0 || rule->host != packet->from) return false;
  if (rule->plane != MRC_PAIR_ANY && rule->plane != (uint32_t)packet->plane) return false;
  bool data = mrc_opcode_is_data(wire->opcode);
  if (rule->opcode == MRC_PAIR_DATA && !data) return false;
  if (rule->opcode != MRC_PAIR_DATA && rule->opcode != MRC_PAIR_ANY && rule->opcode != wire->opcode)
    return false;
  return rule->n_psns == 0 || mrc_psn_sub(wire->psn, rule->psn) < rule->n_psns;
}

static bool lost_by_rule(struct mrc_pair *pair, const struct mrc_datagram *packet,
                         const struct mrc_wire *wire) {
  for (int i = 0; i < pair->n_rules; i++) {
    if (!rule_matches(&pair->rules[i], packet, wire)) continue;
    pair->rules[i].times--;
    return true;
  }
  return false;
}

/* A driver sends a packet, which the pair owns from now on. */
static void send_packet(struct mrc_pair *pair, struct mrc_datagram *packet,
                        const struct mrc_wire *wire) {
  if (lost_by_rule(pair, packet, wire))
    free(packet);
  else
    forward(pair, packet);
}

/* ---- the driver of a host ---- */

/* The driver of one host of a pair: the same loop as a real driver's, with a kernel that may refuse
   bursts and block ports. */

enum {
  MAX_TURNS = 16 /* of the loop at one time */
};

static uint32_t bit_of(int port) { return 1u << (port - 1); }

static void send_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst) {
  watch_burst(pair, host, burst);
  pair->hosts[host].handled += burst->n_packets;
  for (int i = 0; i < burst->n_packets; i++) {
    struct mrc_datagram *packet = mrc_datagram_make(host, burst, &burst->packets[i]);
    struct mrc_wire wire = {0};
    watch_sent(pair, packet, &wire);
    if (pair->pass != NULL) pair->pass(pair, host, packet, true);
    if (pair->n_tapped < pair->tap_room) pair->tap[pair->n_tapped++] = mrc_datagram_copy(packet);
    send_packet(pair, packet, &wire);
  }
}

static void fail_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst) {
  for (int i = 0; i < burst->n_packets; i++) {
    struct mrc_datagram *packet = mrc_datagram_make(host, burst, &burst->packets[i]);
    watch_failed(pair, packet);
    free(packet);
  }
}

/* The kernel's answer to a burst: 1 taken, 0 refused, or an error. A port whose link holds too much
   is blocked from now on. */
static int offer(struct mrc_pair *pair, struct mrc_pair_host *host, const struct mrc_link *out,
                 const struct mrc_burst *burst) {
  host->bursts++;
  const int path = mrc_address_path(burst->family, burst->dst, burst->sport);
  if (host->errors[burst->port - 1]) return host->errors[burst->port - 1];
  if (host->path_errors[burst->port - 1][path]) return host->path_errors[burst->port - 1][path];
  uint64_t limit = host->driver.sndbuf_bytes;
  if (limit && mrc_link_backlog(out, pair->now_ns) > limit) host->blocked |= bit_of(burst->port);
  if (host->blocked & bit_of(burst->port)) return 0;
  const uint32_t one_in = (uint32_t)host->driver.refuse_one_in;
  return one_in == 0 || mrc_prng_below(&pair->prng, one_in) != 0;
}

/* Newly blocked ports stay blocked until half of the backlog is gone. */
static void unblock_later(struct mrc_pair *pair, int index, uint32_t ports) {
  for (; ports != 0; ports &= ports - 1) {
    const int port = __builtin_ctz(ports) + 1;
    const struct mrc_link *out = &pair->port_out[index][port - 1];
    uint64_t drained_ns = pair->now_ns + (out->free_at_ns - pair->now_ns) / 2 + 1;
    unblock_at(pair, index, port, drained_ns);
  }
}

/* A host in its turn. */
struct driver {
  struct mrc_pair *pair;
  int index;
};

static uint32_t send_bursts(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                            uint64_t now_ns) {
  (void)now_ns;
  struct mrc_pair *pair = ((struct driver *)driver)->pair;
  const int index = ((struct driver *)driver)->index;
  struct mrc_pair_host *host = &pair->hosts[index];
  mrc_assert(n <= host->driver.capacity);
  const uint32_t before = host->blocked;
  for (int i = 0; i < n; i++) {
    mrc_assert(!(before & bit_of(bursts[i].port))); /* the engine does not choose a blocked port */
    taken[i] = offer(pair, host, &pair->port_out[index][bursts[i].port - 1], &bursts[i]);
    if (taken[i] == 1) send_burst(pair, index, &bursts[i]);
    if (taken[i] < 0) fail_burst(pair, index, &bursts[i]);
    host->refused += taken[i] == 0;
  }
  unblock_later(pair, index, host->blocked & ~before);
  return host->blocked & ~before;
}

static void receive(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  struct mrc_datagram *packet = host->inbox;
  host->inbox = NULL;
  host->inbox_end = &host->inbox;
  while (packet) {
    struct mrc_datagram *next = packet->next;
    if (host->unread & bit_of(packet->meta.port)) {
      packet->next = NULL;
      *host->inbox_end = packet;
      host->inbox_end = &packet->next;
      packet = next;
      continue;
    }
    if (pair->pass != NULL) pair->pass(pair, index, packet, false);
    int drop = mrc_engine_receive(host->engine, packet->bytes, packet->n, packet->n, &packet->meta,
                                  pair->now_ns);
    mrc_assert(drop >= 0 && drop < MRC_PAIR_MAX_DROPS);
    host->drops[drop]++;
    host->handled++;
    watch_received(pair, packet, drop);
    free(packet);
    packet = next;
  }
}

static uint64_t now(void *driver) { return ((struct driver *)driver)->pair->now_ns; }

static bool publish(void *driver) {
  struct mrc_pair *pair = ((struct driver *)driver)->pair;
  const int index = ((struct driver *)driver)->index;
  struct mrc_pair_host *host = &pair->hosts[index];
  if (host->stops_polling) return false;
  struct mrc_wc wcs[16];
  for (int n; (n = mrc_cq_poll(host->engine, wcs, 16)) > 0;)
    for (int i = 0; i < n; i++)
      if (pair->take == NULL || !pair->take(pair, index, &wcs[i]))
        watch_completion(pair, index, &wcs[i]);
  if (pair->post != NULL) pair->post(pair, index);
  struct mrc_event events[16];
  for (int n; (n = mrc_engine_events(host->engine, events, 16)) > 0;)
    for (int i = 0; i < n; i++)
      if (host->n_events < MRC_PAIR_MAX_EVENTS) host->events[host->n_events++] = events[i];
  return false;
}

static const struct mrc_turn_calls calls = {.now = now, .publish = publish, .send = send_bursts};

/* Receives, runs due timers, sends until the engine has no more, takes results, schedules its next
   run. */
static void run_driver(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  struct driver driver = {.pair = pair, .index = index};
  struct mrc_turn turn = {.calls = &calls,
                          .driver = &driver,
                          .engine = host->engine,
                          .capacity = host->driver.capacity};
  uint64_t deadline_ns;
  int turns = 0;
  host->handled = 0;
  do {
    mrc_assert(turns++ < MAX_TURNS);
    receive(pair, index);
    deadline_ns = mrc_turn_run_dry(&turn, pair->now_ns);
    watch_state(pair, index);
  } while (deadline_ns <= pair->now_ns);
  const uint64_t idle_ns = pair->now_ns + host->handled * host->driver.packet_ns;
  host->busy_until_ns = mrc_max_u64(host->busy_until_ns, idle_ns);
  if (deadline_ns != MRC_NEVER) run_at(pair, index, deadline_ns);
}

/* The socket of a port has room again. */
static void unblock_port(struct mrc_pair *pair, int host, int port) {
  pair->hosts[host].blocked &= ~bit_of(port);
  mrc_engine_port_blocked(pair->hosts[host].engine, port, false, pair->now_ns);
  run_driver(pair, host);
}

enum {
  EPOCH_BITS = 12,         /* keys change often */
  CAPACITY = 16,           /* bursts of one transmit call */
  LIVELOCK_EVENTS = 100000 /* at one time */
};

/* ---- time ---- */

/* Runs the driver, or delays the run by a random stall of the host. */
static void run(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  const struct mrc_pair_driver *driver = &host->driver;
  host->run_at_ns = MRC_NEVER;
  if (driver->stall_ppm && mrc_prng_below(&pair->prng, 1000000) < driver->stall_ppm) {
    host->busy_until_ns =
        pair->now_ns + 1 + mrc_prng_below(&pair->prng, (uint32_t)driver->stall_ns);
    run_at(pair, index, host->busy_until_ns);
    return;
  }
  run_driver(pair, index);
}

/* False for a run that was moved to another time; one time may have many of these. */
static bool handle(struct mrc_pair *pair, const struct mrc_heap_entry *event) {
  switch (event->kind) {
    case MRC_PAIR_ON_PACKET:
      forward(pair, event->pointer);
      return true;
    case MRC_PAIR_ON_RUN:
      if (pair->hosts[event->index].run_at_ns != event->at_ns) return false;
      run(pair, (int)event->index);
      return true;
    default:
      unblock_port(pair, (int)event->index / MRC_PAIR_MAX_PLANES,
                   (int)event->index % MRC_PAIR_MAX_PLANES + 1);
      return true;
  }
}

bool mrc_pair_step(struct mrc_pair *pair, uint64_t until_ns) {
  if (mrc_heap_next_ns(&pair->heap) > until_ns) return false;
  pair->now_ns = mrc_heap_next_ns(&pair->heap);
  int events = 0;
  for (struct mrc_heap_entry event; mrc_heap_next_ns(&pair->heap) == pair->now_ns;) {
    mrc_assert(mrc_heap_pop(&pair->heap, &event));
    events += handle(pair, &event);
    mrc_assert(events <= LIVELOCK_EVENTS);
  }
  return true;
}

void mrc_pair_run(struct mrc_pair *pair, uint64_t until_ns) {
  while (mrc_pair_step(pair, until_ns)) {
  }
  pair->now_ns = until_ns;
}

void mrc_pair_kick(struct mrc_pair *pair, int host) { run_at(pair, host, pair->now_ns); }

/* ---- faults ---- */

void mrc_pair_silence(struct mrc_pair *pair, int plane, bool silent) {
  for (int from = 0; from < pair->config.hosts; from++)
    for (int to = 0; to < pair->config.hosts; to++)
      for (int path = 0; path < pair->config.paths; path++)
        mrc_pair_path(pair, from, to, plane, path)->config.silent = silent;
}

void mrc_pair_port_up(struct mrc_pair *pair, int host, int port, bool up) {
  pair->hosts[host].down &= ~bit_of(port);
  if (!up) pair->hosts[host].down |= bit_of(port);
  pair->port_out[host][port - 1].config.silent = !up;
  pair->port_in[host][port - 1].config.silent = !up;
  mrc_engine_port_up(pair->hosts[host].engine, port, up, pair->now_ns);
  mrc_pair_kick(pair, host);
}

void mrc_pair_lose(struct mrc_pair *pair, struct mrc_pair_rule rule) {
  mrc_assert(pair->n_rules < MRC_PAIR_MAX_RULES);
  pair->rules[pair->n_rules++] = rule;
}

int mrc_pair_forge(struct mrc_pair *pair, int host, const uint8_t *bytes, size_t n,
                   const struct mrc_meta *meta) {
  uint8_t *arrived = malloc(n > 0 ? n : 1); /* exactly as long, so that a sanitizer sees its end */
  mrc_assert(arrived);
  memcpy(arrived, bytes, n);
  int drop = mrc_engine_receive(pair->hosts[host].engine, arrived, n, n, meta, pair->now_ns);
  free(arrived);
  mrc_pair_kick(pair, host);
  return drop;
}

/* ---- life ---- */

static void create_host(struct mrc_pair *pair, int index) {
  struct mrc_engine_config config = pair->config.engine;
  config.seed = mrc_prng_next(&pair->prng);
  config.ports = (uint32_t)pair->config.planes;
  config.aead = &mrc_sealer;
  if (config.seal_epoch_bits == 0) config.seal_epoch_bits = EPOCH_BITS;
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
  for (struct mrc_datagram *packet = host->inbox, *next; packet; packet = next) {
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
  for (int i = 0; i < pair->n_tapped; i++)
    free(pair->tap[i]);
  mrc_heap_free(&pair->heap);
  free(pair->paths);
  free(pair);
}
