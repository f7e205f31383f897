/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/host.h"

#include <string.h>

#include "core/base.h"
#include "core/burst.h"
#include "core/drops.h"
#include "core/turn.h"
#include "sim/fabric.h"

enum {
  CAPACITY = 16,      /* bursts of one transmit call */
  MAX_TURNS = 64,     /* of the driver loop before time must go on */
  TRACE_ENTRIES = 64, /* the fabric has a trace of its own */
  FIRST_SPORT = 49152,
  QPN_AT = 5 /* byte of the BTH */
};

/* Bytes of an address that name host, plane and path + 1; path 0 is the host's own address. */
enum { HOST_AT = 4, PLANE_AT = 11, PATH_AT = 14 };

/* ---- addresses ---- */

void mrc_sim_path_address(uint8_t out[16], uint32_t host, uint32_t plane, uint32_t path) {
  memset(out, 0, 16);
  out[0] = 0xFD;
  out[HOST_AT] = (uint8_t)(host >> 8);
  out[HOST_AT + 1] = (uint8_t)host;
  out[PLANE_AT] = (uint8_t)plane;
  out[PATH_AT] = (uint8_t)((path + 1) >> 8);
  out[PATH_AT + 1] = (uint8_t)(path + 1);
}

void mrc_sim_host_address(uint8_t out[16], uint32_t host, uint32_t plane) {
  mrc_sim_path_address(out, host, plane, UINT32_MAX);
}

static uint32_t get_u16(const uint8_t *bytes) { return (uint32_t)bytes[0] << 8 | bytes[1]; }

uint16_t mrc_sim_path_of(const uint8_t address[16]) {
  return (uint16_t)(get_u16(&address[PATH_AT]) - 1);
}

uint16_t mrc_sim_source_port(uint32_t plane) { return (uint16_t)(FIRST_SPORT + plane); }

/* Puts the packet together in one piece. Where no payload travels it is zeros, and so it stays. */
static const uint8_t *assemble(struct mrc_sim *sim, const struct mrc_frame *packet) {
  uint8_t *at = sim->scratch;
  memset(at, 0, MRC_MAX_HEADER);
  memcpy(at, packet->header, packet->header_bytes);
  at += packet->header_bytes;
  if ((sim->config.copies_payload || sim->config.audit) && packet->payload_bytes)
    memcpy(at, packet->payload, packet->payload_bytes);
  memcpy(at + packet->payload_bytes, packet->trailer, packet->trailer_bytes);
  return sim->scratch;
}

static void clear_scratch(struct mrc_sim *sim, const struct mrc_frame *packet) {
  const uint32_t bytes = mrc_frame_udp_bytes(packet);
  memset(sim->scratch + bytes - packet->trailer_bytes, 0, packet->trailer_bytes);
}

/* ---- sending ---- */

static void send_packet(struct mrc_sim *sim, uint32_t from, const struct mrc_burst *burst,
                        const struct mrc_packet *piece) {
  struct mrc_frame *packet = mrc_frame_pool_get(&sim->pool);
  packet->payload = piece->payload;
  packet->payload_bytes = piece->payload_bytes;
  packet->header_bytes = piece->header_bytes;
  packet->trailer_bytes = piece->trailer_bytes;
  packet->flow_label = burst->flow_label;
  packet->sport = burst->sport;
  packet->from = (uint16_t)from;
  packet->to = (uint16_t)get_u16(&burst->dst[HOST_AT]);
  packet->path = mrc_sim_path_of(burst->dst);
  packet->plane = (uint8_t)(burst->port - 1);
  packet->ecn = burst->tclass & 3;
  packet->control = burst->tclass == MRC_TCLASS_CONTROL;
  packet->usids = mrc_fabric_usids(sim, from, packet->to, packet->path);
  memcpy(packet->header, piece->header, piece->header_bytes);
  memcpy(packet->trailer, piece->trailer, piece->trailer_bytes);
  sim->record.stats.packets++;
  if (sim->config.audit) {
    mrc_fabric_watch_sent(sim, packet, assemble(sim, packet));
    clear_scratch(sim, packet);
  }
  mrc_fabric_enter(sim, mrc_fabric_host_up(sim, packet->plane, from), packet);
}

static uint32_t bit_of(const struct mrc_burst *burst) { return 1u << (burst->port - 1); }

/* Whether the port takes the burst; one that holds too much is blocked from now on. */
static bool takes(struct mrc_sim *sim, uint32_t index, const struct mrc_burst *burst) {
  struct mrc_sim_host *host = &sim->hosts[index];
  const uint32_t hop = mrc_fabric_host_up(sim, burst->port - 1u, index);
  if (mrc_queue_bytes(&sim->hops[hop].queue) > sim->config.sndbuf_bytes)
    host->blocked |= bit_of(burst);
  if (host->blocked & bit_of(burst)) return false;
  for (int i = 0; i < burst->n_packets; i++)
    send_packet(sim, index, burst, &burst->packets[i]);
  return true;
}

/* A host in its turn. */
struct driver {
  struct mrc_sim *sim;
  uint32_t index;
};

static uint32_t send_bursts(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                            uint64_t now_ns) {
  (void)now_ns;
  struct mrc_sim *sim = ((struct driver *)driver)->sim;
  const uint32_t index = ((struct driver *)driver)->index;
  const uint32_t before = sim->hosts[index].blocked;
  for (int i = 0; i < n; i++)
    taken[i] = takes(sim, index, &bursts[i]);
  return sim->hosts[index].blocked & ~before;
}

void mrc_sim_host_drained(struct mrc_sim *sim, uint32_t index, const struct mrc_hop *hop) {
  struct mrc_sim_host *host = &sim->hosts[index];
  const uint32_t bit = 1u << hop->plane;
  if (!((host->blocked | host->tcp_blocked) & bit)) return;
  if (mrc_queue_bytes(&hop->queue) > sim->config.sndbuf_bytes / 2) return;
  if (host->blocked & bit)
    mrc_engine_port_blocked(host->engine, hop->plane + 1, false, sim->now_ns);
  host->blocked &= ~bit;
  host->tcp_blocked &= ~bit;
  mrc_sim_host_kick(sim, index);
}

/* ---- receiving ---- */

static uint32_t qpn_of(const struct mrc_frame *packet) {
  const uint8_t *at = &packet->header[QPN_AT];
  return (uint32_t)at[0] << 16 | get_u16(&at[1]);
}

static void receive_packet(struct mrc_sim *sim, uint32_t index, const struct mrc_frame *packet) {
  struct mrc_meta meta = {.flow_label = packet->flow_label,
                          .sport = packet->sport,
                          .dport = MRC_UDP_PORT,
                          .family = 6,
                          .port = (uint8_t)(packet->plane + 1),
                          .ecn = packet->ecn,
                          .trimmed = packet->trimmed};
  mrc_sim_host_address(meta.src, packet->from, packet->plane);
  mrc_sim_path_address(meta.dst, packet->to, packet->plane, packet->path);
  const uint8_t *bytes = assemble(sim, packet);
  const int drop = mrc_engine_receive(sim->hosts[index].engine, bytes, mrc_frame_udp_bytes(packet),
                                      &meta, sim->now_ns);
  if (drop == MRC_DROP_DUPLICATE && !packet->extra) mrc_traffic_on_repeated(sim, qpn_of(packet));
  if (sim->config.audit) mrc_fabric_watch_received(sim, packet, bytes, drop);
  clear_scratch(sim, packet);
}

static void receive(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_host *host = &sim->hosts[index];
  struct mrc_frame *packet = host->inbox;
  host->inbox = NULL;
  while (packet) {
    struct mrc_frame *next = packet->next;
    if (packet->corrupt)
      sim->record.stats.corrupt++;
    else if (mrc_tcp_host_is_ours(packet))
      mrc_tcp_host_receive(sim, packet);
    else if (sim->config.transport == MRC_SIM_GO_BACK_N)
      mrc_gbn_host_receive(sim, packet);
    else
      receive_packet(sim, index, packet);
    mrc_frame_pool_put(&sim->pool, packet);
    packet = next;
  }
}

void mrc_sim_host_arrive(struct mrc_sim *sim, uint32_t index, struct mrc_frame *packet) {
  struct mrc_sim_host *host = &sim->hosts[index];
  mrc_record_line(sim, "recv", mrc_fabric_host_down(sim, packet->plane, index), packet);
  packet->next = NULL;
  if (host->inbox == NULL)
    host->inbox = packet;
  else
    host->inbox_last->next = packet;
  host->inbox_last = packet;
  uint64_t run_at_ns = sim->now_ns + sim->config.wake_ns;
  const uint64_t noise_ns = sim->config.wake_noise_ns;
  if (noise_ns > 0) {
    if (host->late_until_ns < sim->now_ns)
      host->late_until_ns = run_at_ns + mrc_prng_next(&sim->prng) % (noise_ns + 1);
    run_at_ns = host->late_until_ns;
  }
  if (run_at_ns >= host->run_at_ns) return;
  host->run_at_ns = run_at_ns;
  mrc_sim_schedule(sim, run_at_ns, MRC_SIM_ON_RUN, index, NULL);
}

/* ---- the turn ---- */

static uint64_t now(void *driver) { return ((struct driver *)driver)->sim->now_ns; }

static bool publish(void *driver) {
  struct mrc_sim *sim = ((struct driver *)driver)->sim;
  const uint32_t index = ((struct driver *)driver)->index;
  struct mrc_wc wcs[CAPACITY];
  for (int n; (n = mrc_cq_poll(sim->hosts[index].engine, wcs, CAPACITY)) > 0;)
    for (int i = 0; i < n; i++)
      mrc_traffic_on_completion(sim, &wcs[i]);
  struct mrc_event events[CAPACITY];
  for (int n; (n = mrc_engine_events(sim->hosts[index].engine, events, CAPACITY)) > 0;)
    for (int i = 0; i < n; i++)
      mrc_traffic_on_event(sim, &events[i]);
  return false;
}

static const struct mrc_turn_calls calls = {.now = now, .publish = publish, .send = send_bursts};

/* Returns when the next turn is due. */
static uint64_t run_engine(struct mrc_sim *sim, uint32_t index) {
  struct driver driver = {.sim = sim, .index = index};
  struct mrc_turn turn = {
      .calls = &calls, .driver = &driver, .engine = sim->hosts[index].engine, .capacity = CAPACITY};
  return mrc_turn_run_dry(&turn, sim->now_ns);
}

/* Deadlines move with every packet, mostly to later: one event that is early enough stands for all
   of them, lest each leave one of its own behind. */
static void set_timer(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_host *host = &sim->hosts[index];
  if (host->run_at_ns >= host->timer_at_ns) return;
  host->timer_at_ns = host->run_at_ns;
  mrc_sim_schedule(sim, host->timer_at_ns, MRC_SIM_ON_RUN, index, NULL);
}

void mrc_sim_host_run(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_host *host = &sim->hosts[index];
  if (host->timer_at_ns == sim->now_ns) host->timer_at_ns = MRC_NEVER;
  if (host->run_at_ns != sim->now_ns) { /* it ran before, or its deadline moved */
    set_timer(sim, index);
    return;
  }
  if (sim->now_ns < host->late_until_ns) { /* a busy host is late for timers too */
    host->run_at_ns = host->late_until_ns;
    mrc_sim_schedule(sim, host->run_at_ns, MRC_SIM_ON_RUN, index, NULL);
    return;
  }
  host->run_at_ns = MRC_NEVER;
  uint64_t deadline_ns;
  int turns = 0;
  do {
    mrc_assert(turns++ < MAX_TURNS);
    receive(sim, index);
    deadline_ns = sim->config.transport == MRC_SIM_GO_BACK_N ? mrc_gbn_host_turn(sim, index)
                                                             : run_engine(sim, index);
    if (sim->hosts[index].tcp_first)
      deadline_ns = mrc_min_u64(deadline_ns, mrc_tcp_host_turn(sim, index));
  } while (deadline_ns <= sim->now_ns);
  if (sim->config.audit) mrc_fabric_watch_state(sim);
  if (deadline_ns >= host->run_at_ns) return;
  host->run_at_ns = deadline_ns;
  set_timer(sim, index);
}

void mrc_sim_host_kick(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_host *host = &sim->hosts[index];
  const uint64_t run_at_ns = mrc_max_u64(sim->now_ns, host->late_until_ns);
  if (host->run_at_ns == run_at_ns) return;
  host->run_at_ns = run_at_ns;
  mrc_sim_schedule(sim, run_at_ns, MRC_SIM_ON_RUN, index, NULL);
}

void mrc_sim_host_port_up(struct mrc_sim *sim, uint32_t index, uint32_t port, bool up) {
  const uint32_t bit = 1u << (port - 1);
  sim->hosts[index].down = (sim->hosts[index].down & ~bit) | (up ? 0 : bit);
  mrc_engine_port_up(sim->hosts[index].engine, (int)port, up, sim->now_ns);
  mrc_sim_host_kick(sim, index);
}

/* ---- life ---- */

void mrc_sim_host_create(struct mrc_sim *sim, uint32_t index) {
  const struct mrc_sim_config *config = &sim->config;
  const struct mrc_engine_config engine = {.seed = mrc_prng_next(&sim->prng),
                                           .max_qps = config->qps_per_host,
                                           .max_mrs = 4 + 2 * config->qps_per_host,
                                           .ports = config->planes,
                                           .cq_depth = 4096 + 4 * config->qps_per_host,
                                           .trace_entries = TRACE_ENTRIES,
                                           .sack_threshold_bytes = config->sack_threshold_bytes,
                                           .sack_delay_ns = config->sack_delay_ns,
                                           .noise_ns = config->noise_ns};
  struct mrc_sim_host *host = &sim->hosts[index];
  *host = (struct mrc_sim_host){
      .engine = mrc_engine_create(&engine), .run_at_ns = MRC_NEVER, .timer_at_ns = MRC_NEVER};
  mrc_assert(host->engine);
}

void mrc_sim_host_destroy(struct mrc_sim *sim, uint32_t index) {
  mrc_engine_destroy(sim->hosts[index].engine);
}
