/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated fabric: the order of events, queues, then hops, switches and faults. */
#include <errno.h>

#include "check.h"
#include "core/base.h"
#include "core/wire.h"
#include "sim/agenda.h"
#include "sim/fabric.h"
#include "sim/numbers.h"
#include "sim/traffic.h"
#include "sim_config.h"

/* ---- Agenda ---- */

static struct mrc_agenda agenda;

/* Times as pushed; kinds alternate, and the index counts down. */
TEST(test_agenda_pop__by_kind_and_index_among_equal_times) {
  static const uint64_t times[] = {5, 3, 90000, 3, 5, 90000, 0, 32767, 32768, 3, 3};
  static const uint32_t order[] = {6, 10, 9, 3, 1, 4, 0, 7, 8, 2, 5}; /* indices of times */
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  CHECK_EQ(mrc_agenda_next_ns(&agenda), UINT64_MAX);
  CHECK(!mrc_agenda_pop(&agenda, &entry));
  for (uint32_t i = 0; i < 11; i++)
    mrc_agenda_push(&agenda,
                    (struct mrc_heap_entry){.at_ns = times[i], .index = 100 - i, .kind = i % 2});
  CHECK_EQ(mrc_agenda_count(&agenda, 0), 6);
  EACH_OF(int, i, 0, 11) {
    CHECK_EQ(mrc_agenda_next_ns(&agenda), times[order[i]]);
    CHECK(mrc_agenda_pop(&agenda, &entry));
    CHECK_EQ(entry.index, 100 - order[i]);
  }
  mrc_agenda_free(&agenda);
}

static void push_at(uint64_t at_ns, uint32_t index, void *pointer) {
  mrc_agenda_push(&agenda,
                  (struct mrc_heap_entry){.at_ns = at_ns, .index = index, .pointer = pointer});
}

/* What is pushed for the time that is being taken follows, whatever its index. */
TEST(test_agenda_pop__without_delay_comes_last) {
  static const uint32_t order[] = {5, 6, 3, 1, 2};
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  push_at(7, 6, NULL);
  push_at(7, 5, NULL);
  EACH_OF(int, i, 0, 5) {
    CHECK(mrc_agenda_pop(&agenda, &entry));
    CHECK_EQ(entry.index, order[i]);
    if (i == 0) push_at(7, 3, NULL);
    if (i == 2) push_at(7, 1, NULL); /* the slot is empty by now */
    if (i == 2) push_at(7, 2, NULL);
  }
  CHECK(!mrc_agenda_pop(&agenda, &entry));
  mrc_agenda_free(&agenda);
}

static uint64_t delay(struct mrc_prng *prng) {
  static const uint32_t ends[] = {1, 3, 100, 32767, 32769, 200000};
  return mrc_prng_below(prng, ends[mrc_prng_below(prng, 6)]);
}

/* One index for all: the order of insertion decides, as in a heap. */
TEST(test_agenda_pop__as_a_heap_does) {
  struct mrc_heap heap = {0};
  struct mrc_prng prng = {.state = 6};
  struct mrc_heap_entry entry, expected = {0};
  mrc_agenda_init(&agenda);
  EACH_OF(uint32_t, i, 0, 200000) {
    /* Many entries wait, then few: the wheel is full, then nearly empty. */
    if (mrc_prng_below(&prng, 100) < (i / 20000 % 2 ? 35 : 65)) {
      const struct mrc_heap_entry new = {.at_ns = expected.at_ns + delay(&prng),
                                         .pointer = (void *)(uintptr_t)i};
      mrc_heap_push(&heap, new);
      mrc_agenda_push(&agenda, new);
    } else {
      const bool any = mrc_heap_pop(&heap, &expected);
      CHECK_EQ(mrc_agenda_pop(&agenda, &entry), any);
      CHECK(!any || (entry.at_ns == expected.at_ns && entry.pointer == expected.pointer));
    }
    CHECK_EQ(mrc_agenda_next_ns(&agenda), mrc_heap_next_ns(&heap));
  }
  mrc_heap_free(&heap);
  mrc_agenda_free(&agenda);
}

/* ---- Queues ---- */

enum { HEADER = 36, TRAILER = 4, ECT = 2, CE = 3 };

static struct mrc_frame write_of(uint32_t wire_bytes) {
  return (struct mrc_frame){
      .header = {MRC_OP_WRITE_MIDDLE},
      .header_bytes = HEADER,
      .trailer_bytes = TRAILER,
      .payload_bytes = (uint16_t)(wire_bytes - HEADER - TRAILER - MRC_FRAME_OVERHEAD_BYTES),
      .ecn = ECT};
}

static struct mrc_frame control_of(void) {
  return (struct mrc_frame){
      .header = {MRC_OP_SACK}, .header_bytes = 48, .trailer_bytes = TRAILER, .control = true};
}

/* The fate of a write of 1000 bytes on the wire, by the bytes that are waiting. */
TEST(test_queue_push__room_and_trimming) {
  static const struct {
    uint64_t buffer_bytes, waiting_bytes;
    bool trims;
    bool taken, trimmed;
  } rows[] = {
      {0, 1000000, false, true, false},  /* no limit */
      {3000, 0, false, true, false},     /* empty */
      {3000, 2000, false, true, false},  /* fills the buffer to its last byte */
      {3000, 2001, false, false, false}, /* one byte too many */
      {3000, 2001, true, true, true},    /* cut to its header instead */
      {3000, 2000, true, true, false},
      {100, 0, true, false, false}, /* not even the header fits */
  };
  EACH_ROW(i, rows) {
    const struct mrc_queue_config config = {.buffer_bytes = rows[i].buffer_bytes,
                                            .trims = rows[i].trims};
    struct mrc_queue queue = {0};
    struct mrc_frame packet = write_of(1000);
    queue.data.bytes = rows[i].waiting_bytes;
    CHECK_EQ(mrc_queue_push(&queue, &config, &packet), rows[i].taken);
    CHECK_EQ(packet.trimmed, rows[i].trimmed || (rows[i].trims && !rows[i].taken));
    CHECK_EQ(queue.dropped, !rows[i].taken);
    if (!rows[i].trimmed) continue;
    CHECK_EQ(mrc_frame_udp_bytes(&packet), HEADER);
    CHECK_EQ(queue.control.bytes, HEADER + MRC_FRAME_OVERHEAD_BYTES);
  }
}

TEST(test_queue_push__trimmed_at_the_last_hop) {
  for (int last_hop = 0; last_hop <= 1; last_hop++) {
    const struct mrc_queue_config config = {
        .buffer_bytes = 3000, .trims = true, .last_hop = last_hop};
    struct mrc_queue queue = {0};
    struct mrc_frame packet = write_of(1000);
    queue.data.bytes = 3000;
    CHECK(mrc_queue_push(&queue, &config, &packet));
    CHECK_EQ(packet.trimmed, last_hop ? MRC_TRIMMED_LASTHOP : MRC_TRIMMED);
  }
}

TEST(test_queue_push__only_writes_are_trimmed) {
  struct mrc_queue_config config = {.buffer_bytes = 3000, .trims = true};
  struct mrc_queue queue = {0};
  struct mrc_frame probe = write_of(1000);
  probe.header[0] = MRC_OP_ENDPOINT_REQUEST;
  queue.data.bytes = 3000;
  CHECK(!mrc_queue_push(&queue, &config, &probe));
  CHECK(!probe.trimmed);
}

TEST(test_queue_push__control_has_room_of_its_own) {
  struct mrc_queue_config config = {.buffer_bytes = 300};
  struct mrc_queue queue = {0};
  struct mrc_frame first = control_of(), second = control_of();
  queue.data.bytes = 300;
  CHECK(mrc_queue_push(&queue, &config, &first));
  CHECK(!mrc_queue_push(&queue, &config, &second));
  CHECK_EQ(queue.dropped, 1);
}

/* The number of marked packets among 1000, by the bytes that each leaves waiting. */
TEST(test_queue_pop__ecn_ramp) {
  static const struct {
    uint64_t low, high, waiting;
    int ecn, least, most;
  } rows[] = {
      {1000, 2000, 999, ECT, 0, 0},        /* below the ramp */
      {1000, 2000, 1000, ECT, 0, 0},       /* at its foot */
      {1000, 2000, 1250, ECT, 200, 300},   /* a quarter of the way */
      {1000, 2000, 1750, ECT, 700, 800},   /* three quarters */
      {1000, 2000, 2000, ECT, 1000, 1000}, /* above */
      {1000, 2000, 5000, 0, 0, 0},         /* not ECN-capable */
      {0, 0, 5000, ECT, 0, 0},             /* marking is off */
  };
  EACH_ROW(i, rows) {
    const struct mrc_queue_config config = {.ecn_low_bytes = rows[i].low,
                                            .ecn_high_bytes = rows[i].high};
    struct mrc_queue queue = {.prng = {1}};
    int marked = 0;
    for (int k = 0; k < 1000; k++) {
      struct mrc_frame packet = write_of(1000);
      packet.ecn = rows[i].ecn & 3;
      queue.data = (struct mrc_queue_class){0};
      CHECK(mrc_queue_push(&queue, &config, &packet));
      queue.data.bytes += rows[i].waiting;
      CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packet);
      marked += packet.ecn == CE;
    }
    CHECK(marked >= rows[i].least && marked <= rows[i].most);
    CHECK_EQ(queue.marked, marked);
  }
}

TEST(test_queue_pop__control_is_never_marked) {
  struct mrc_queue_config config = {.ecn_low_bytes = 1, .ecn_high_bytes = 2};
  struct mrc_queue queue = {0};
  struct mrc_frame packet = control_of();
  packet.ecn = ECT;
  queue.data.bytes = 1000;
  CHECK(mrc_queue_push(&queue, &config, &packet));
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packet);
  CHECK_EQ(packet.ecn, ECT);
}

/* A packet is marked by the queue behind it when it leaves, not by the queue when it arrived. */
TEST(test_queue_pop__marks_by_the_queue_left_behind) {
  struct mrc_queue_config config = {.ecn_low_bytes = 500, .ecn_high_bytes = 1500};
  struct mrc_queue queue = {0};
  struct mrc_frame packets[3];
  for (int i = 0; i < 3; i++) {
    packets[i] = write_of(1000);
    CHECK(mrc_queue_push(&queue, &config, &packets[i]));
  }
  for (int i = 0; i < 3; i++)
    CHECK_EQ(packets[i].ecn, ECT);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packets[0]); /* leaves 2000 bytes */
  CHECK_EQ(packets[0].ecn, CE);
  config.ecn_low_bytes = 1001;
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packets[1]); /* leaves 1000 */
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packets[2]); /* leaves none */
  CHECK_EQ(packets[1].ecn, ECT);
  CHECK_EQ(packets[2].ecn, ECT);
  CHECK_EQ(queue.marked, 1);
}

TEST(test_queue_pop__control_and_trimmed_first) {
  struct mrc_queue_config config = {.buffer_bytes = 2000, .trims = true};
  struct mrc_queue queue = {0};
  struct mrc_frame first = write_of(1000), second = write_of(1000), third = write_of(1000);
  struct mrc_frame control = control_of();
  CHECK(mrc_queue_push(&queue, &config, &first));
  CHECK(mrc_queue_push(&queue, &config, &second));
  CHECK(mrc_queue_push(&queue, &config, &third)); /* trimmed */
  CHECK(mrc_queue_push(&queue, &config, &control));
  CHECK_EQ(queue.peak_bytes, mrc_queue_bytes(&queue));
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &third);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &control);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &first);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &second);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), NULL);
  CHECK_EQ(mrc_queue_bytes(&queue), 0);
}

/* ---- Fabric ---- */

/* Three tiers: three pods of two T0s and two T1s, four T2s, two hosts below each T0. */
enum { HOSTS = 12, T0S = 6, T1S = 6, PODS = 3, T2S = 4, CAPACITY = 8 };

#define open_pods(...)                                                                             \
  open_sim(.topology.hosts = HOSTS, .topology.t0 = T0S, .topology.t1 = T1S, .topology.pods = PODS, \
           .topology.t2 = T2S, .topology.core_rate_bps = 50 * GBIT, .topology.core_delay_ns = 700, \
           .path_mtu = 4096, __VA_ARGS__)

static uint32_t pod_of(uint32_t host) { return host / 4; }

static const struct mrc_topology *topology_of(const mrc_sim *sim) {
  return &sim->whole.world.config.topology;
}

/* A packet that has its uSIDs. */
static struct mrc_frame *make_packet(mrc_sim *sim, uint32_t from, uint32_t to, uint32_t path) {
  struct mrc_frame *packet = mrc_frame_pool_get(&sim->whole.fabric.pool);
  packet->header[0] = MRC_OP_WRITE_MIDDLE;
  packet->header_bytes = 36;
  packet->from = from;
  packet->to = to;
  packet->sport = 49152;
  packet->path = (uint16_t)path;
  mrc_fabric_set_usids(&sim->whole.fabric, packet);
  return packet;
}

/* Moves a packet from its host to the next one, or until it is lost; returns the number of hops
   and lists them. */
static int walk(mrc_sim *sim, struct mrc_frame *packet, uint32_t *hops) {
  struct mrc_heap_entry event;
  int n = 0;
  mrc_fabric_enter(&sim->whole.fabric, mrc_topology_host_up(topology_of(sim), 0, packet->from),
                   packet);
  while (mrc_agenda_pop(&sim->whole.world.agenda, &event)) {
    sim->whole.world.now_ns = event.at_ns;
    if (event.kind != MRC_SIM_ON_ARRIVAL) break; /* its host runs */
    CHECK(n < CAPACITY);
    hops[n++] = event.index;
    mrc_fabric_arrive(&sim->whole.fabric, event.index, event.pointer);
  }
  return n;
}

/* The uSID of the switch at the end of a hop. */
static uint32_t usid_at_end(const mrc_sim *sim, uint32_t hop) {
  static const uint32_t first[] = {
      [MRC_NODE_T0] = 0x0200, [MRC_NODE_T1] = 0x3000, [MRC_NODE_T2] = 0x2000};
  const struct mrc_hop *at = &sim->whole.fabric.hops[hop];
  return first[at->to_kind] + at->to;
}

/* The n-th uSID of a list. */
static uint32_t nth(const struct mrc_frame *packet, int n) {
  return n < 4 ? packet->usids >> (48 - 16 * n) & 0xFFFF
               : packet->usids_beyond >> (80 - 16 * n) & 0xFFFF;
}

TEST(test_usids__are_those_of_the_path) {
  static const struct {
    bool has_pods;
    uint32_t from, to, path;
    uint64_t usids;
    uint32_t beyond;
  } rows[] = {
      {false, 0, 2, 1, 0x01010201E0000000ull, 0}, /* T1 1, T0 1, its port 0 */
      {false, 0, 3, 0, 0x01000201E0010000ull, 0},
      {false, 0, 1, 0, 0xE001000000000000ull, 0},         /* below the same T0 */
      {true, 0, 7, 3, 0x3001200330030203ull, 0xE0010000}, /* to pod 1, over T2 3 */
      {true, 5, 7, 1, 0x30030203E0010000ull, 0},          /* within pod 1, over its second T1 */
      {true, 6, 7, 0, 0xE001000000000000ull, 0},
  };
  EACH_ROW(i, rows) {
    SIM sim = rows[i].has_pods ? open_pods() : open_sim();
    const struct mrc_frame *packet = make_packet(sim, rows[i].from, rows[i].to, rows[i].path);
    CHECK_EQ(packet->usids, rows[i].usids);
    CHECK_EQ(packet->usids_beyond, rows[i].beyond);
  }
}

TEST(test_arrive__follows_the_usids) {
  static const struct {
    uint32_t from, to, path;
    bool is_local;
  } rows[] = {{0, 2, 0, false}, {0, 2, 1, false}, {3, 1, 1, false}, {0, 1, 0, true}};
  EACH_ROW(i, rows) {
    SIM sim = open_sim();
    const uint32_t from = rows[i].from, to = rows[i].to, path = rows[i].path;
    uint32_t hops[CAPACITY];
    const int n = walk(sim, make_packet(sim, from, to, path), hops);
    CHECK_EQ(n, rows[i].is_local ? 2 : 4);
    CHECK_EQ(hops[0], mrc_topology_host_up(topology_of(sim), 0, from));
    CHECK_EQ(hops[n - 1], mrc_topology_host_down(topology_of(sim), 0, to));
    if (!rows[i].is_local) {
      CHECK_EQ(hops[1], mrc_topology_t0_up(topology_of(sim), 0, from / 2, path));
      CHECK_EQ(hops[2], mrc_topology_t1_down(topology_of(sim), 0, to / 2, path));
    }
    CHECK_PTR_EQ(sim->whole.hosts.at[to].inbox, sim->whole.hosts.at[to].inbox_last);
    CHECK(sim->whole.hosts.at[to].inbox != NULL);
  }
}

/* For each two hosts, every path passes the switches that its uSIDs name, and no others. */
TEST(test_arrive__over_the_switches_of_each_path) {
  uint32_t paths = 0;
  for (uint32_t from = 0; from < HOSTS; from++) {
    SIM sim = open_pods();
    const struct mrc_sim_config *config = &sim->whole.world.config;
    for (uint32_t to = 0; to < HOSTS; to++) {
      if (to == from) continue;
      const uint32_t n_paths = mrc_topology_n_paths(&config->topology, from, to);
      CHECK_EQ(n_paths, from / 2 == to / 2 ? 1 : pod_of(from) == pod_of(to) ? 2 : T2S);
      for (uint32_t path = 0; path < n_paths; path++, paths++) {
        uint32_t hops[CAPACITY];
        struct mrc_frame *packet = make_packet(sim, from, to, path);
        const struct mrc_frame sent = *packet;
        const int n = walk(sim, packet, hops);
        CHECK_EQ(n, from / 2 == to / 2 ? 2 : pod_of(from) == pod_of(to) ? 4 : 6);
        for (int i = 1; i < n - 1; i++)
          CHECK_EQ(usid_at_end(sim, hops[i]), nth(&sent, i - 1));
        CHECK_EQ(nth(&sent, n - 2), 0xE000 + to % 2);
        CHECK_EQ(hops[n - 1], mrc_topology_host_down(&config->topology, 0, to));
        uint32_t inner[MRC_TOPOLOGY_INNER_HOPS];
        CHECK_EQ((int)mrc_topology_inner_hops(&config->topology, 0, from / 2, to / 2, path, inner),
                 n - 2);
        CHECK_MEM_EQ(inner, hops + 1, (size_t)(n - 2) * sizeof *inner);
      }
    }
    CHECK_EQ(sim->whole.record.stats.unroutable, 0);
  }
  CHECK_EQ(paths, HOSTS * (1 + 2 * 2 + 8 * T2S));
}

TEST(test_arrive__usid_of_nobody) {
  /* With pods: a T1 of another pod; a T2 that the T1 has no link with; a T0 of another pod; a T1
     that the T2 has no link with; the switches beyond the last ones. */
  static const struct {
    bool has_pods;
    uint64_t usids;
    int hops;
  } rows[] = {
      {false, 0, 1},
      {false, 0x0102ull << 48, 1},
      {false, 0xE002ull << 48, 1},
      {false, 0x0100020200000000ull, 2},
      {true, 0x3002ull << 48, 1},
      {true, 0x30002001ull << 32, 2},
      {true, 0x30000202ull << 32, 2},
      {true, 0x300020003003ull << 16, 3},
      {true, 0x30002004ull << 32, 2},
      {true, 0x300020003006ull << 16, 3},
      {true, 0x0100ull << 48, 1},
  };
  EACH_ROW(i, rows) {
    SIM sim = rows[i].has_pods ? open_pods() : open_sim();
    uint32_t hops[CAPACITY];
    struct mrc_frame *packet = make_packet(sim, 0, rows[i].has_pods ? 7 : 2, 0);
    packet->usids = rows[i].usids;
    CHECK_EQ(walk(sim, packet, hops), rows[i].hops);
    CHECK_EQ(sim->whole.record.stats.unroutable, 1);
  }
}

TEST(test_arrive__ecmp_by_flow_label) {
  SIM sim = open_sim(.routing = MRC_SIM_ECMP, .topology.t1 = 4);
  uint32_t used = 0;
  for (uint32_t label = 0; label < 64; label++) {
    uint32_t hops[2][CAPACITY];
    for (int again = 0; again < 2; again++) {
      struct mrc_frame *packet = make_packet(sim, 0, 2, 0);
      packet->flow_label = label;
      CHECK_EQ(walk(sim, packet, hops[again]), 4);
    }
    CHECK_EQ(hops[0][1], hops[1][1]); /* each label keeps its path */
    CHECK_EQ(hops[0][3], mrc_topology_host_down(topology_of(sim), 0, 2));
    used |= 1u << (hops[0][1] - mrc_topology_t0_up(topology_of(sim), 0, 0, 0));
  }
  CHECK_EQ(used, 0xF); /* all labels together use all uplinks */
}

/* Which T2s the packets of many flow labels use. */
static uint32_t t2s_by_ecmp(mrc_sim *sim) {
  uint32_t used = 0;
  for (uint32_t label = 0; label < 64; label++) {
    uint32_t hops[CAPACITY];
    struct mrc_frame *packet = make_packet(sim, 0, 7, 0);
    packet->flow_label = label;
    CHECK_EQ(walk(sim, packet, hops), 6);
    CHECK_EQ(hops[5], mrc_topology_host_down(topology_of(sim), 0, 7));
    used |= 1u << sim->whole.fabric.hops[hops[2]].to;
  }
  return used;
}

TEST(test_arrive__ecmp_uses_every_t2_that_has_links) {
  SIM sim = open_pods(.routing = MRC_SIM_ECMP);
  CHECK_EQ(t2s_by_ecmp(sim), 0xF);
  mrc_sim_destroy(sim);
  sim = open_pods(.routing = MRC_SIM_ECMP);
  struct mrc_sim_fault target = {.target = MRC_SIM_CORE, .plane = 1, .index = 3, .t2 = 1};
  CHECK_EQ(mrc_sim_remove_links(sim, &target), 0); /* of the receiver's pod */
  CHECK_EQ(t2s_by_ecmp(sim), 0xD);
  target = (struct mrc_sim_fault){.target = MRC_SIM_T2, .plane = 1, .index = 3};
  CHECK_EQ(mrc_sim_remove_links(sim, &target), 0);
  CHECK_EQ(t2s_by_ecmp(sim), 0x5); /* no T0 chooses a T1 that leads nowhere */
}

TEST(test_build__queues_by_place) {
  SIM sim = open_sim();
  const struct mrc_hop *up = &sim->whole.fabric.hops[mrc_topology_host_up(topology_of(sim), 0, 0)];
  const struct mrc_hop *spread =
      &sim->whole.fabric.hops[mrc_topology_t0_up(topology_of(sim), 0, 0, 1)];
  const struct mrc_hop *last =
      &sim->whole.fabric.hops[mrc_topology_host_down(topology_of(sim), 0, 0)];
  CHECK_EQ(up->kind->queue.buffer_bytes, 0); /* the host stops before it overflows */
  CHECK_EQ(spread->kind->queue.ecn_high_bytes, 400000);
  CHECK_EQ(spread->kind->queue.trims, true);
  CHECK_EQ(last->kind->queue.ecn_high_bytes, 0); /* ECN is off on the last hop */
  CHECK_EQ(last->kind->queue.buffer_bytes, 1000000);
  mrc_sim_destroy(sim);
  sim = open_sim(.ecn_last_hop = 1);
  last = &sim->whole.fabric.hops[mrc_topology_host_down(topology_of(sim), 0, 0)];
  CHECK_EQ(last->kind->queue.ecn_high_bytes, 400000);
  CHECK_EQ(last->kind->queue.last_hop, true);
}

TEST(test_build__links_of_each_tier) {
  SIM sim = open_pods();
  const struct mrc_sim_config *config = &sim->whole.world.config;
  CHECK_EQ(sim->whole.fabric.n_hops, 2 * HOSTS + 2 * 2 * T0S + 2 * PODS * T2S);
  const struct mrc_hop_config *hop =
      &sim->whole.fabric.hops[mrc_topology_t2_down(&config->topology, 0, 2, 3)].kind->config;
  CHECK_EQ(hop->rate_bps, 50 * GBIT);
  CHECK_EQ(hop->link.delay_ns, 700);
  CHECK_EQ(sim->lookahead_ns, 500);
}

TEST(test_create__refuses_uneven_pods) {
  CHECK_PTR_EQ(open_pods(.topology.pods = 1), NULL);
  CHECK_PTR_EQ(open_pods(.topology.pods = 4), NULL); /* of 6 T0s */
  CHECK_PTR_EQ(open_pods(.topology.t2 = 3), NULL);   /* with 2 T1s in a pod */
  CHECK_PTR_EQ(open_pods(.topology.t2 = 0), NULL);   /* nothing joins the pods */
  CHECK_PTR_EQ(open_pods(.topology.core_rate_bps = 0), NULL);
  CHECK_PTR_EQ(open_pods(.topology.t2 = MRC_SIM_MAX_T2 + 2), NULL);
  SIM sim = open_pods();
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_UPLINK, .index = 0, .t1 = 2), -EINVAL);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_CORE, .index = 0, .t2 = 1), -EINVAL);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T2, .index = T2S), -EINVAL);
}

/* Three packets of 1000 bytes on the wire at 100 Gbit/s: 80 ns each, then 500 ns of delay. */
TEST(test_enter__rate_and_delay) {
  SIM sim = open_sim();
  struct mrc_heap_entry event;
  const uint32_t hop = mrc_topology_t0_up(topology_of(sim), 0, 0, 0);
  uint64_t arrivals[3] = {0};
  for (int i = 0; i < 3; i++) {
    struct mrc_frame *packet = make_packet(sim, 0, 2, 0);
    packet->payload_bytes = 1000 - MRC_FRAME_OVERHEAD_BYTES - 36;
    mrc_fabric_enter(&sim->whole.fabric, hop, packet);
  }
  for (int n = 0; n < 3 && mrc_agenda_pop(&sim->whole.world.agenda, &event);) {
    sim->whole.world.now_ns = event.at_ns;
    if (event.kind == MRC_SIM_ON_DRAIN) mrc_fabric_drain(&sim->whole.fabric, event.index);
    if (event.kind == MRC_SIM_ON_ARRIVAL) arrivals[n++] = event.at_ns;
  }
  CHECK_EQ(arrivals[0], 580);
  CHECK_EQ(arrivals[1], 660);
  CHECK_EQ(arrivals[2], 740);
  CHECK_EQ(sim->whole.fabric.hops[hop].busy_ns, 240);
}

/* How many hops are silent when a fault has begun or ended. */
static uint32_t silent_hops(mrc_sim *sim, const struct mrc_sim_fault *fault, bool begins) {
  uint32_t silent = 0;
  mrc_fault_switch(&sim->whole.fabric, fault, begins);
  for (uint32_t hop = 0; hop < sim->whole.fabric.n_hops; hop++)
    silent += sim->whole.fabric.hops[hop].kind->config.link.silent;
  return silent;
}

TEST(test_fault__hops_of_a_target) {
  static const struct {
    bool has_pods;
    uint32_t target, index, t1, t2, hops;
  } rows[] = {
      {false, MRC_SIM_ALL, 0, 0, 0, 32}, {false, MRC_SIM_PLANE, 0, 0, 0, 16},
      {false, MRC_SIM_T0, 1, 0, 0, 8},   {false, MRC_SIM_T1, 1, 0, 0, 4},
      {false, MRC_SIM_PORT, 3, 0, 0, 2}, {false, MRC_SIM_UPLINK, 0, 1, 0, 2},
      {true, MRC_SIM_ALL, 0, 0, 0, 144}, {true, MRC_SIM_PLANE, 0, 0, 0, 72},
      {true, MRC_SIM_T0, 1, 0, 0, 8},    {true, MRC_SIM_T1, 3, 0, 0, 8},
      {true, MRC_SIM_T2, 3, 0, 0, 6},    {true, MRC_SIM_PORT, 3, 0, 0, 2},
      {true, MRC_SIM_CORE, 3, 0, 1, 2},  {true, MRC_SIM_UPLINK, 2, 3, 0, 2},
  };
  EACH_ROW(i, rows) {
    SIM sim = rows[i].has_pods ? open_pods(.topology.planes = 2) : open_sim(.topology.planes = 2);
    const struct mrc_sim_fault fault = {.target = rows[i].target,
                                        .plane = 2,
                                        .index = rows[i].index,
                                        .t1 = rows[i].t1,
                                        .t2 = rows[i].t2,
                                        .kind = MRC_SIM_SILENT};
    struct mrc_sim_fault up = fault, down = fault;
    up.direction = MRC_SIM_UPWARD;
    down.direction = MRC_SIM_DOWNWARD;
    CHECK_EQ(silent_hops(sim, &fault, true), rows[i].hops);
    CHECK_EQ(silent_hops(sim, &down, false), rows[i].hops / 2);
    CHECK_EQ(silent_hops(sim, &up, false), 0);
    CHECK_EQ(silent_hops(sim, &up, true), rows[i].hops / 2);
    CHECK_EQ(silent_hops(sim, &fault, false), 0);
  }
}

/* A fault on a link hits the paths that cross it, and only those. */
TEST(test_fault__hits_the_paths_of_its_link) {
  SIM sim = open_pods();
  const struct mrc_sim_fault fault = {.target = MRC_SIM_CORE,
                                      .plane = 1,
                                      .index = 3,
                                      .t2 = 1,
                                      .direction = MRC_SIM_DOWNWARD,
                                      .kind = MRC_SIM_SILENT};
  mrc_fault_switch(&sim->whole.fabric, &fault, true);
  uint32_t hops[CAPACITY];
  CHECK_EQ(walk(sim, make_packet(sim, 0, 7, 1), hops), 3); /* lost between T2 1 and T1 3 */
  CHECK_EQ(walk(sim, make_packet(sim, 0, 7, 3), hops), 6); /* another T2, the same T1 */
  CHECK_EQ(walk(sim, make_packet(sim, 7, 0, 1), hops), 6); /* up over the same link */
  CHECK_EQ(walk(sim, make_packet(sim, 0, 8, 1), hops), 6); /* the same T2, another pod */
}

TEST(test_remove__paths_over_it) {
  SIM sim = open_pods();
  const struct mrc_fabric *fabric = &sim->whole.fabric;
  const struct mrc_sim_fault target = {.target = MRC_SIM_CORE, .plane = 1, .index = 3, .t2 = 1};
  CHECK_EQ(mrc_sim_remove_links(sim, &target), 0);
  CHECK(!mrc_fabric_has_path(fabric, 0, 0, 7, 1) && !mrc_fabric_has_path(fabric, 0, 7, 0, 1));
  CHECK(mrc_fabric_has_path(fabric, 0, 0, 7, 3) && mrc_fabric_has_path(fabric, 0, 0, 8, 1));
  CHECK(mrc_fabric_has_path(fabric, 0, 4, 7, 1)); /* within the pod */
}

TEST(test_remove__no_packet_enters) {
  SIM sim = open_sim(.topology.planes = 2);
  struct mrc_fabric *fabric = &sim->whole.fabric;
  const struct mrc_sim_config *config = &sim->whole.world.config;
  struct mrc_sim_fault target = {.target = MRC_SIM_UPLINK, .plane = 1, .index = 1, .t1 = 0};
  CHECK(mrc_fabric_has_path(fabric, 0, 0, 2, 0));
  CHECK_EQ(mrc_sim_remove_links(sim, &target), 0);
  CHECK_EQ(mrc_sim_remove_links(sim, &target), 0);
  CHECK_EQ(fabric->n_absent, 2);
  CHECK(!mrc_fabric_has_path(fabric, 0, 0, 2, 0));
  CHECK(!mrc_fabric_has_path(fabric, 0, 2, 0, 0));
  CHECK(mrc_fabric_has_path(fabric, 0, 0, 2, 1));
  CHECK(mrc_fabric_has_path(fabric, 0, 0, 1, 0)); /* below one T0 */
  CHECK(mrc_fabric_has_path(fabric, 1, 0, 2, 0));
  target = (struct mrc_sim_fault){.target = MRC_SIM_PORT, .plane = 2, .index = 2};
  CHECK_EQ(mrc_sim_remove_links(sim, &target), 0);
  CHECK(!mrc_fabric_joins(fabric, 1, 0, 2));
  CHECK(mrc_fabric_joins(fabric, 0, 0, 2));
  for (int i = 0; i < 20; i++)
    CHECK_EQ(mrc_fabric_draw_plane(fabric, 0, 2), 0);
  struct mrc_frame *packet = mrc_frame_pool_get(&fabric->pool);
  packet->to = 2;
  mrc_fabric_set_usids(fabric, packet); /* over the uplink that is absent */
  mrc_fabric_arrive(fabric, mrc_topology_t0_up(&config->topology, 0, 0, 0), packet);
  CHECK_EQ(sim->whole.record.stats.unroutable, 1);
  CHECK_EQ(fabric->pool.n_used, 0);
  target.direction = MRC_SIM_UPWARD;
  CHECK_EQ(mrc_sim_remove_links(sim, &target), -EINVAL);
  target = (struct mrc_sim_fault){.target = MRC_SIM_PORT, .plane = 3};
  CHECK_EQ(mrc_sim_remove_links(sim, &target), -EINVAL);
}

TEST(test_fault__ends_as_the_topology_has_it) {
  SIM sim = open_sim(.topology.jitter_ns = 7);
  const struct mrc_hop_own *hop =
      mrc_fabric_own(&sim->whole.fabric, mrc_topology_t0_up(topology_of(sim), 0, 0, 0));
  const struct mrc_sim_fault lossy = {.target = MRC_SIM_ALL, .kind = MRC_SIM_LOSS, .a = 70};
  const struct mrc_sim_fault small = {.target = MRC_SIM_ALL, .kind = MRC_SIM_MTU, .a = 1500};
  CHECK_EQ(mrc_sim_set_links(sim, &lossy), 0);
  CHECK_EQ(mrc_sim_set_links(sim, &small), 0);
  EACH_OF(uint32_t, kind, MRC_SIM_SILENT, MRC_SIM_MTU + 1) {
    const struct mrc_sim_fault fault = {
        .target = MRC_SIM_ALL, .kind = kind, .a = 5, .b = 9, .class = MRC_SIM_DATA_CLASS};
    mrc_fault_switch(&sim->whole.fabric, &fault, true);
    CHECK(memcmp(&hop->kind.config, &hop->base, sizeof(hop->base)) != 0);
    mrc_fault_switch(&sim->whole.fabric, &fault, false);
    CHECK_EQ(hop->kind.config.rate_bps, 100 * GBIT);
    CHECK_EQ(hop->kind.config.jitter_ns, 7);
    CHECK_EQ(hop->kind.config.class, MRC_HOP_ALL);
    CHECK_EQ(hop->kind.config.burst_ppm + hop->kind.config.burst_packets, 0);
    CHECK_EQ(hop->link.config.delay_ns, 500);
    CHECK_EQ(hop->link.config.silent, false);
    CHECK_EQ(hop->link.config.loss_ppm, 70);
    CHECK_EQ(hop->link.config.mtu_bytes, 1500 + MRC_FRAME_LINK_BYTES);
    CHECK_EQ(hop->link.config.corrupt_ppm, 0);
    CHECK_EQ(hop->link.config.duplicate_ppm + hop->link.config.reorder_ppm, 0);
    CHECK_EQ(hop->link.config.lose_n + hop->link.config.lose_of + hop->link.config.loss_mask, 0);
  }
}
