/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of the engine alone: two engines joined by memory, in virtual time. Prints a line for
 * each measurement:
 *
 *     OPERATION QPS EVS OPERATIONS NANOSECONDS
 *
 * OPERATIONS is the number of operations measured, NANOSECONDS their total time; for `memory` they
 * are the number of QPs and their bytes. Under callgrind, with `core --instructions`, it dumps a
 * profile for each line, of the same name. The script `core` builds and runs it and compares the
 * results with their targets.
 *
 * Payload is not copied: a memcpy of ours replaces the library's. The integrity is UDP's, so there
 * is no CRC. `copy` and `crc` measure both separately, `control` the delay-based congestion
 * control.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/cc.h"
#include "core/crc.h"
#include "core/engine.h"
#include "mrc.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define HAVE_CALLGRIND 1
#else
#define CALLGRIND_TOGGLE_COLLECT
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name) ((void)(name))
#define HAVE_CALLGRIND 0
#endif

enum {
  PLANES = 4,
  PAYLOAD = 4096,
  PACKET = PAYLOAD + 128,
  BURSTS = 8, /* of one transmit, as in the UDP driver */
  BURST_PACKETS = 64,
  MESSAGE = 1 << 20,
  SMALL = 64,
  PACKET_NS = 1300, /* of virtual time: 25 Gbit/s */
  KEY = 77,
  UDP_PORT = 4791,
  TURNS = 256,        /* of one measurement */
  COUNTED_TURNS = 64, /* when instructions are counted */
  BEST_OF = 20,
  WARM_VISITS = 4, /* turns of each QP before the measurement */
};

static bool instructions; /* callgrind counts instructions; we measure no time */

static uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Replaces the library's: the copy of payload is not a cost of the engine, see `copy`. */
void *memcpy(void *to, const void *from, size_t bytes) {
  return bytes == PAYLOAD ? to : memmove(to, from, bytes);
}

/* ---- The measured parts ---- */

enum part { PART_SEND, PART_SACK, PART_PLACE, PART_ANSWER, PARTS };

static const char *const part_names[] = {[PART_SEND] = "send",
                                         [PART_SACK] = "take-sack",
                                         [PART_PLACE] = "place",
                                         [PART_ANSWER] = "answer"};

/* Time of each part. With callgrind, a run measures only one part. */
static struct {
  uint64_t ns[PARTS];
  uint64_t begun_ns;
  enum part only;
  bool on;
} meter;

static void begin(enum part part) {
  if (!meter.on) return;
  if (!instructions)
    meter.begun_ns = clock_ns();
  else if (part == meter.only)
    CALLGRIND_TOGGLE_COLLECT;
}

static void end(enum part part) {
  if (!meter.on) return;
  if (!instructions)
    meter.ns[part] += clock_ns() - meter.begun_ns;
  else if (part == meter.only)
    CALLGRIND_TOGGLE_COLLECT;
}

static void report(const char *operation, uint32_t qps, uint32_t evs, uint64_t n, uint64_t ns) {
  char name[64];
  snprintf(name, sizeof name, "%s/%u/%u", operation, qps, evs);
  printf("%s %u %u %llu %llu\n", operation, qps, evs, (unsigned long long)n,
         (unsigned long long)ns);
  fflush(stdout);
  if (instructions) CALLGRIND_DUMP_STATS_AT(name);
}

/* ---- Two hosts ---- */

/* A burst as the other side receives it, in one message. */
struct message {
  struct mrc_meta meta;
  size_t bytes;
  size_t packet_bytes;
  uint8_t packets[BURST_PACKETS * PACKET];
};

struct host {
  mrc_engine *engine;
  uint8_t number; /* last byte of its addresses */
};

struct world {
  struct host near; /* requester of every QP */
  struct host far;
  uint32_t qps;
  uint32_t message_bytes;
  uint64_t now_ns;
  uint64_t packets;  /* data packets sent */
  uint64_t qp_bytes; /* memory of all QPs of both hosts */
  uint8_t *memory;
  struct message *messages;
};

static void set_address(uint8_t address[16], uint8_t host, uint32_t path) {
  memset(address, 0, 16);
  address[0] = 0xfd;
  address[7] = host;
  address[14] = (uint8_t)(path >> 8);
  address[15] = (uint8_t)path;
}

static struct mrc_ev_attr ev_of(uint32_t index, uint8_t from, uint8_t to) {
  const uint8_t port = (uint8_t)(index % PLANES + 1);
  struct mrc_ev_attr attr = {.ev = (40000u + port) << 16 | (index / PLANES + 1),
                             .dport = UDP_PORT,
                             .port = port,
                             .family = 6};
  set_address(attr.src, from, 0);
  set_address(attr.dst, to, index + 1);
  return attr;
}

static struct mrc_qp_attr qp_attr(uint32_t qpn, uint32_t spray) {
  return (struct mrc_qp_attr){.create = {.qpn = qpn, .sq_depth = 256, .mpr = 1024, .max_wimm = 128},
                              .rtr = {.dest_qpn = qpn, .integrity = MRC_INTEGRITY_UDP},
                              .rts = {.path_mtu = PAYLOAD,
                                      .peer_mpr = 1024,
                                      .peer_max_wimm = 128,
                                      .spray = spray,
                                      .timeout = 16,
                                      .retry_linear = 7,
                                      .retry_exp = 6,
                                      .cc = MRC_CC_NULL}}; /* so that all bursts are whole */
}

static void add_qp(struct host *host, const struct host *peer, uint32_t qpn, uint32_t evs,
                   uint32_t spray, uint64_t now_ns) {
  struct mrc_ev_attr attrs[MRC_MAX_EVS];
  struct mrc_peer_source sources[PLANES];
  struct mrc_qp_attr attr = qp_attr(qpn, spray);
  for (uint32_t i = 0; i < evs; i++)
    attrs[i] = ev_of(i, host->number, peer->number);
  for (uint32_t i = 0; i < PLANES; i++) {
    sources[i] = (struct mrc_peer_source){.sport = (uint16_t)(40001 + i)};
    set_address(sources[i].address, peer->number, 0);
  }
  int error = mrc_qp_create(host->engine, &attr.create);
  if (error == 0) error = mrc_qp_modify(host->engine, qpn, MRC_QP_INIT, NULL, NULL, now_ns);
  if (error == 0) error = mrc_qp_set_evs(host->engine, qpn, attrs, (int)evs);
  if (error == 0) error = mrc_qp_set_peer(host->engine, qpn, sources, PLANES);
  if (error == 0) error = mrc_qp_modify(host->engine, qpn, MRC_QP_RTR, &attr.rtr, NULL, now_ns);
  if (error == 0) error = mrc_qp_modify(host->engine, qpn, MRC_QP_RTS, NULL, &attr.rts, now_ns);
  mrc_assert(error == 0);
}

static void post(struct world *world, uint32_t qpn) {
  const struct mrc_wr wr = {.wr_id = qpn,
                            .local = (uintptr_t)world->memory,
                            .va = (uintptr_t)world->memory,
                            .lkey = KEY,
                            .rkey = KEY,
                            .bytes = world->message_bytes,
                            .opcode = MRC_WR_WRITE};
  const int error = mrc_qp_post(world->near.engine, qpn, &wr, 1, world->now_ns);
  mrc_assert(error == 0);
}

static void open_host(struct host *host, uint8_t number, uint32_t qps, uint8_t *memory) {
  const struct mrc_engine_config config = {.seed = number, .max_qps = qps, .ports = PLANES};
  host->number = number;
  host->engine = mrc_engine_create(&config);
  mrc_assert(host->engine != NULL);
  const int error = mrc_mr_register(host->engine, (uintptr_t)memory, MESSAGE, KEY,
                                    MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE, 0);
  mrc_assert(error == 0);
}

static uint64_t allocated_bytes(void) {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/* Every QP always has messages to send: each completion posts the next one. */
static struct world open_world(uint32_t qps, uint32_t evs, uint32_t spray, uint32_t message_bytes) {
  struct world world = {.qps = qps,
                        .message_bytes = message_bytes,
                        .now_ns = 1000000000,
                        .memory = calloc(1, MESSAGE),
                        .messages = calloc(BURSTS, sizeof *world.messages)};
  open_host(&world.near, 1, qps, world.memory);
  open_host(&world.far, 2, qps, world.memory);
  const uint64_t before = allocated_bytes();
  for (uint32_t i = 0; i < qps; i++) {
    add_qp(&world.near, &world.far, 1000 + i, evs, spray, world.now_ns);
    add_qp(&world.far, &world.near, 1000 + i, evs, spray, world.now_ns);
  }
  world.qp_bytes = allocated_bytes() - before;
  const uint32_t depth = message_bytes == SMALL ? 250 : 8;
  for (uint32_t n = 0; n < depth; n++)
    for (uint32_t i = 0; i < qps; i++)
      post(&world, 1000 + i);
  return world;
}

static void close_world(struct world *world) {
  mrc_engine_destroy(world->near.engine);
  mrc_engine_destroy(world->far.engine);
  free(world->memory);
  free(world->messages);
}

/* Copies bursts into messages for the other side, without data payload. Returns the packets. */
static int flatten(const struct mrc_burst *bursts, int n, struct message *messages,
                   uint64_t now_ns) {
  int packets = 0;
  for (int i = 0; i < n; i++) {
    const struct mrc_burst *burst = &bursts[i];
    struct message *message = &messages[i];
    message->meta = (struct mrc_meta){.arrived_ns = now_ns,
                                      .flow_label = burst->flow_label,
                                      .sport = burst->sport,
                                      .dport = burst->dport,
                                      .family = burst->family,
                                      .port = burst->port,
                                      .ecn = burst->tclass & 3};
    memmove(message->meta.src, burst->src, 16);
    memmove(message->meta.dst, burst->dst, 16);
    message->packet_bytes = burst->packet_bytes;
    message->bytes = 0;
    for (int k = 0; k < burst->n_packets; k++) {
      const struct mrc_packet *packet = &burst->packets[k];
      uint8_t *to = message->packets + message->bytes;
      message->bytes += packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
      mrc_assert(message->bytes <= sizeof message->packets);
      memmove(to, packet->header, packet->header_bytes);
      if (packet->payload_bytes == 0) /* control: endpoint packets have an ICRC in any case */
        memmove(to + packet->header_bytes, packet->trailer, packet->trailer_bytes);
    }
    packets += burst->n_packets;
  }
  return packets;
}

/* One transmit of a host. Returns the number of bursts, and adds to `packets`. */
static int transmit(struct world *world, struct host *host, enum part part, uint64_t *packets) {
  struct mrc_burst bursts[BURSTS];
  int taken[BURSTS];
  begin(part);
  if (mrc_engine_deadline(host->engine) <= world->now_ns)
    mrc_engine_expire(host->engine, world->now_ns);
  const int n = mrc_engine_transmit(host->engine, bursts, BURSTS, world->now_ns);
  end(part);
  if (n == 0) return 0;
  *packets += (uint64_t)flatten(bursts, n, world->messages, world->now_ns);
  for (int i = 0; i < n; i++)
    taken[i] = 1;
  begin(part);
  mrc_engine_commit(host->engine, bursts, taken, n, world->now_ns);
  end(part);
  return n;
}

static void receive(struct world *world, struct host *host, int messages, enum part part) {
  begin(part);
  for (int i = 0; i < messages; i++)
    mrc_engine_receive(host->engine, world->messages[i].packets, world->messages[i].bytes,
                       world->messages[i].packet_bytes, &world->messages[i].meta, world->now_ns);
  end(part);
}

static void post_again(struct world *world) {
  struct mrc_wc wcs[256];
  begin(PART_SEND);
  const int n = mrc_cq_poll(world->near.engine, wcs, 256);
  for (int i = 0; i < n; i++) {
    mrc_assert(wcs[i].status == MRC_WC_SUCCESS);
    post(world, wcs[i].qpn);
  }
  end(PART_SEND);
}

/* A transmit of data, and all answers to it. */
static void turn(struct world *world) {
  uint64_t packets = 0, answers = 0;
  const int bursts = transmit(world, &world->near, PART_SEND, &packets);
  world->packets += packets;
  world->now_ns += packets * PACKET_NS + 1000;
  receive(world, &world->far, bursts, PART_PLACE);
  for (int n = 1; n > 0;) {
    n = transmit(world, &world->far, PART_ANSWER, &answers);
    receive(world, &world->near, n, PART_SACK);
  }
  post_again(world);
}

/* Runs turns and adds the cost of each part to the meter. Returns the number of data packets. */
static uint64_t run(struct world *world, uint64_t turns) {
  const uint64_t before = world->packets;
  memset(meter.ns, 0, sizeof meter.ns);
  meter.on = true;
  for (uint64_t i = 0; i < turns; i++)
    turn(world);
  meter.on = false;
  return world->packets - before;
}

static void measure_parts(struct world *world, const char *prefix, uint32_t evs, uint64_t turns) {
  uint64_t best[PARTS], packets = 0;
  memset(best, 0xff, sizeof best);
  for (int i = 0; i < (instructions ? (int)PARTS : (int)BEST_OF); i++) {
    meter.only = (enum part)i;
    if (instructions) CALLGRIND_ZERO_STATS;
    packets = run(world, turns);
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, part_names[i % PARTS]);
    if (instructions) report(name, world->qps, evs, packets, 0);
    for (int part = 0; part < PARTS && !instructions; part++)
      best[part] = meter.ns[part] < best[part] ? meter.ns[part] : best[part];
  }
  for (int part = 0; part < PARTS && !instructions; part++) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, part_names[part]);
    report(name, world->qps, evs, packets, best[part]);
  }
}

static void measure_world(const char *prefix, uint32_t qps, uint32_t evs, uint32_t spray,
                          uint32_t message_bytes) {
  struct world world = open_world(qps, evs, spray, message_bytes);
  if (!instructions && prefix[0] == '\0') report("memory", qps, evs, 2 * qps, world.qp_bytes);
  const uint64_t visits = qps > 2 ? qps / 2 : 1; /* turns until each QP has sent */
  for (uint64_t i = 0; i < visits * WARM_VISITS; i++)
    turn(&world);
  CALLGRIND_START_INSTRUMENTATION;
  measure_parts(&world, prefix, evs, instructions ? COUNTED_TURNS : TURNS);
  CALLGRIND_STOP_INSTRUMENTATION;
  mrc_assert(world.near.engine->services.counters[MRC_COUNTER_TX_RETRANSMITTED] == 0);
  close_world(&world);
}

/* ---- What the packets above do not need ---- */

enum { ROUNDS = 1000 };

/* The delay-based congestion control, at each SACK. */
static void control(void *argument) {
  for (uint32_t i = 0; i < ROUNDS; i++) {
    const struct mrc_cc_ack ack = {.bytes = 4 * PAYLOAD,
                                   .inflight_bytes = MESSAGE,
                                   .rtt_ns = 100000 + i % 64 * 1000,
                                   .base_rtt_ns = 100000,
                                   .smooth_rtt_ns = 130000,
                                   .plane = i % PLANES};
    mrc_cc_on_ack(argument, &ack, i * 5000ull);
  }
}

static void copy(void *argument) {
  uint8_t *memory = argument;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    memmove(memory + i % 64 * PAYLOAD, memory + (64 + i % 64) * PAYLOAD, PAYLOAD);
    __asm__ volatile("" ::: "memory");
  }
}

static void crc(void *argument) {
  const uint8_t *memory = argument;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < ROUNDS; i++)
    sum = mrc_crc32(sum, memory + i % 64 * PAYLOAD, PAYLOAD);
  __asm__ volatile("" ::"r"(sum));
}

static void measure(const char *name, void (*operation)(void *), void *argument) {
  uint64_t best_ns = UINT64_MAX;
  operation(argument); /* warm */
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  for (int i = 0; i < (instructions ? 1 : BEST_OF); i++) {
    const uint64_t begun_ns = clock_ns();
    CALLGRIND_TOGGLE_COLLECT;
    operation(argument);
    CALLGRIND_TOGGLE_COLLECT;
    const uint64_t ns = clock_ns() - begun_ns;
    best_ns = ns < best_ns ? ns : best_ns;
  }
  report(name, 1, 0, ROUNDS, best_ns);
  CALLGRIND_STOP_INSTRUMENTATION;
}

static void measure_components(void) {
  struct mrc_cc cc;
  const struct mrc_cc_config config = {
      .kind = MRC_CC_DELAY, .mtu_bytes = PAYLOAD, .max_bytes = 4 * MESSAGE};
  const int refused = mrc_cc_init(&cc, &config);
  mrc_assert(refused == 0);
  measure("control", control, &cc);
  if (instructions) return; /* `copy` and `crc` are measured in time only */
  uint8_t *memory = calloc(128, PAYLOAD);
  measure("copy", copy, memory);
  measure("crc", crc, memory);
  free(memory);
}

int main(int argc, char **argv) {
  instructions = argc > 1 && strcmp(argv[1], "--instructions") == 0;
  if (instructions && !HAVE_CALLGRIND) {
    fprintf(stderr, "core: built without valgrind/callgrind.h: apt-get install valgrind\n");
    return 2;
  }
  measure_components();
  /* 4096 QPs differ only in cache misses, and under callgrind their set-up takes 10 s. */
  for (uint32_t qps = 1; qps <= (instructions ? 256 : 4096); qps *= 16)
    measure_world("", qps, 8, 0, MESSAGE);
  measure_world("", 1, 64, 0, MESSAGE);
  measure_world("", 1, 256, 0, MESSAGE);
  measure_world("sprayed-", 1, 8, 1, MESSAGE);
  measure_world("small-", 1, 8, 0, SMALL);
  return 0;
}
