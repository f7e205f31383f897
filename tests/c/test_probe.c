/* SPDX-License-Identifier: Apache-2.0 */
/* EV probes: batches by command, and how all users of probes share the slots and the link. */
#include <errno.h>

#include "core/engine.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

enum { COMMANDS = MRC_MAX_EV_PROBES / 2 };

static const struct mrc_event *probe_event(const struct mrc_pair *p, int host, int nth) {
  for (int i = 0; i < p->hosts[host].n_events; i++)
    if (p->hosts[host].events[i].type == MRC_EVENT_PROBE && nth-- == 0)
      return &p->hosts[host].events[i];
  static const struct mrc_event none = {.result = -ENOENT};
  return &none;
}

static int n_probe_events(const struct mrc_pair *p, int host) {
  return n_events(p, host, MRC_EVENT_PROBE, MRC_PAIR_ANY);
}

/* Probes the EVs of one end, then of the next, each with its index as cookie. */
static int probe_all(struct mrc_pair *p, int host, const uint32_t *qpns, int n_qps, int n_evs) {
  static struct mrc_probe_attr probes[COMMANDS * 4];
  int n = 0;
  for (int q = 0; q < n_qps; q++)
    for (int ev = 0; ev < n_evs; ev++, n++)
      probes[n] = (struct mrc_probe_attr){
          .cookie = (uint64_t)n, .timeout_ns = 5 * MS, .qpn = qpns[q], .ev_index = (uint32_t)ev};
  const int taken = mrc_engine_probe_evs(p->hosts[host].engine, probes, n, p->now_ns);
  mrc_pair_kick(p, host);
  return taken;
}

/* One event for each EV: answered ones in the order of the answers, with their round trips, then
   the unanswered ones. */
TEST(test_batch__one_event_for_each) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  const uint32_t qpn = p->ends[open_qp(p)]->qpn;
  mrc_pair_path(p, 0, 1, 1, 0)->config.delay_ns = 2 * PATH_DELAY;
  mrc_pair_silence(p, 2, true);
  CHECK_EQ(probe_all(p, 0, &qpn, 1, 4), 4);
  run_for(p, 10 * MS);
  CHECK_EQ(n_probe_events(p, 0), 4);
  bool seen[4] = {false};
  EACH_OF(int, i, 0, 4) {
    const struct mrc_event *event = probe_event(p, 0, i);
    CHECK(event->cookie == event->ev_index && !seen[event->cookie & 3]);
    seen[event->cookie & 3] = true;
    CHECK_EQ(event->qpn, qpn);
    CHECK_EQ(event->port, event->ev_index < 2 ? 1 : 2);
    CHECK_EQ(event->result, event->port == 1 ? 0 : -ETIMEDOUT);
    CHECK_EQ(event->status, 0);
    if (event->port != 1) continue;
    CHECK_EQ(event->ev_index, i == 0 ? 1 : 0); /* the shorter path first */
    CHECK(event->rtt_ns >= (int64_t)((i == 0 ? 2 : 3) * PATH_DELAY));
    CHECK(event->rtt_ns < (int64_t)(4 * PATH_DELAY));
  }
}

/* The engine takes the first probes of a batch, as many as fit; the rest fit when some have ended.
   Another QP adds no room, and the engine's own probes have separate slots. */
TEST(test_batch__takes_what_there_is_room_for) {
  PAIR p = open_pair(.planes = 8, .paths = 32);
  uint32_t qpns[3];
  for (int i = 0; i < 3; i++)
    qpns[i] = p->ends[open_qp(p)]->qpn;
  CHECK_EQ(probe_all(p, 0, qpns, 3, 256), COMMANDS);
  CHECK_EQ(probe_all(p, 0, qpns, 1, 1), 0);
  run_for(p, 10 * MS);
  CHECK_EQ(n_probe_events(p, 0), COMMANDS);
  CHECK_EQ(probe_all(p, 0, qpns + 2, 1, 256), 256);
  run_for(p, 10 * MS);
  CHECK_EQ(n_probe_events(p, 0), COMMANDS + 256);
}

/* One invalid probe makes the engine refuse the whole batch, whatever its place. */
TEST(test_batch__is_refused_as_a_whole) {
  static const struct {
    struct mrc_probe_attr probe;
    int error;
  } rows[] = {
      {{.qpn = 3, .timeout_ns = MS}, -ENOENT},
      {{.ev_index = 2, .timeout_ns = MS}, -EINVAL},
      {{.ev_index = 1, .timeout_ns = MS}, -EINVAL}, /* DENIED */
      {{.timeout_ns = 0}, -EINVAL},
      {{.timeout_ns = MS, .bytes = 65536}, -EINVAL},
      {{.timeout_ns = MS, .dscp = 64}, -EINVAL},
  };
  PAIR p = open_pair(.paths = 2);
  const int end = open_qp(p);
  const uint32_t qpn = p->ends[end]->qpn;
  mrc_pair_deny(p, end, 1, 1, true);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (int place = 0; place < 2; place++) {
      CHECK_ROW(i * 10 + (size_t)place);
      struct mrc_probe_attr probes[2] = {{.qpn = qpn, .timeout_ns = MS},
                                         {.qpn = qpn, .timeout_ns = MS}};
      probes[place] = rows[i].probe;
      if (rows[i].probe.qpn == 0) probes[place].qpn = qpn;
      CHECK_EQ(mrc_engine_probe_evs(p->hosts[0].engine, probes, 2, p->now_ns), rows[i].error);
    }
  }
  run_for(p, 10 * MS);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TX_EV_PROBES), 0);
  CHECK_EQ(mrc_engine_probe_evs(p->hosts[0].engine, NULL, 0, p->now_ns), 0);
}

/* No application polls: the engine refuses probes before the event ring could overflow. */
TEST(test_batch__finds_room_for_its_events) {
  PAIR p = open_pair(.planes = 8, .paths = 32);
  const uint32_t qpn = p->ends[open_qp(p)]->qpn;
  p->hosts[0].stops_polling = true;
  int taken = 0;
  for (int round = 0; round < 40; round++) {
    taken += probe_all(p, 0, &qpn, 1, 256);
    run_for(p, 10 * MS);
  }
  CHECK(taken > COMMANDS && taken <= MRC_EVENT_RING);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_EVENTS_DROPPED), 0);
  CHECK_EQ(p->hosts[0].engine->services.events.tail - p->hosts[0].engine->services.events.head,
           taken);
}

/* A probe with a congestion mark is answered like any other, and its event reports the mark. */
TEST(test_batch__tells_of_congestion) {
  PAIR p = open_pair(.port_out.rate_bps = 100000000, .port_out.ecn_bytes = 1);
  const uint32_t qpn = p->ends[open_qp(p)]->qpn;
  struct mrc_probe_attr probes[2] = {{.qpn = qpn, .timeout_ns = 5 * MS, .bytes = 1000},
                                     {.qpn = qpn, .timeout_ns = 5 * MS, .bytes = 1000}};
  CHECK_EQ(mrc_engine_probe_evs(p->hosts[0].engine, probes, 2, p->now_ns), 2);
  mrc_pair_kick(p, 0);
  run_for(p, 10 * MS);
  CHECK_EQ(n_probe_events(p, 0), 2);
  CHECK_EQ(probe_event(p, 0, 0)->status, 0);
  CHECK_EQ(probe_event(p, 0, 1)->result, 0);
  CHECK_EQ(probe_event(p, 0, 1)->status, 1); /* it queued behind the first */
}

/* A probe with a blocked port, or refused by the kernel, leaves when there is room, even if its QP
   is otherwise idle; until then the engine sleeps. */
TEST(test_unsent__leaves_when_there_is_room) {
  PAIR p = open_pair(.planes = 2);
  const uint32_t qpn = p->ends[open_qp(p, .memory_bytes = 0)]->qpn;
  mrc_engine *engine = p->hosts[0].engine;
  run_for(p, MS);
  mrc_engine_port_blocked(engine, 2, true, p->now_ns);
  CHECK_EQ(probe_all(p, 0, &qpn, 1, 2), 2);
  run_for(p, 50 * MS); /* longer than its timeout, which has not begun */
  CHECK_EQ(n_probe_events(p, 0), 1);
  CHECK(mrc_engine_deadline(engine) > p->now_ns);
  mrc_engine_port_blocked(engine, 2, false, p->now_ns);
  CHECK_EQ(mrc_engine_deadline(engine), 0);
  mrc_pair_kick(p, 0);
  run_for(p, 3 * PATH_DELAY);
  CHECK_EQ(n_probe_events(p, 0), 2);
  CHECK_EQ(probe_event(p, 0, 1)->result, 0);
}

/* One probe waits for a full socket. The other is refused and stays due after each refusal. */
TEST(test_unsent__beside_one_that_waits) {
  PAIR p = open_pair(.planes = 2);
  const uint32_t qpn = p->ends[open_qp(p, .memory_bytes = 0)]->qpn;
  mrc_engine *engine = p->hosts[0].engine;
  run_for(p, MS);
  mrc_engine_port_blocked(engine, 2, true, p->now_ns);
  for (uint32_t ev = 0; ev < 2; ev++)
    CHECK_EQ(probe_ev(engine, qpn, ev, 0, 10 * MS, ev, p->now_ns), 0);
  EACH_OF(int, i, 0, 4) {
    struct mrc_burst burst;
    CHECK_EQ(transmit(p, 0, &burst, 1, 0), 1);
    CHECK_EQ(mrc_engine_deadline(engine), 0);
  }
  mrc_engine_port_blocked(engine, 2, false, p->now_ns);
}

/* Marks every EV of an end as bad, as far as the floor allows. */
static void distrust_all(struct mrc_pair *p, int end) {
  const int n = p->config.planes * p->config.paths;
  for (int ev = 0; ev < n; ev++)
    distrust(p, end, (uint32_t)ev);
}

static int n_bad(const struct mrc_pair *p, int end) {
  int n = 0;
  for (int plane = 1; plane <= p->config.planes; plane++)
    for (int path = 0; path < p->config.paths; path++)
      n += mrc_pair_ev(p, end, plane, path).state == MRC_EV_ASSUMED_BAD;
  return n;
}

/* Eight QPs with unanswered probes have more bad EVs than there are slots. The bad EV of another QP
   is still probed on time, and so is each of theirs, though never all at once. */
TEST(test_slots__are_shared_by_qps) {
  enum { GREEDY = 8 };
  PAIR p = open_pair(.hosts = 3, .planes = 8, .paths = 32);
  int greedy[GREEDY];
  for (int i = 0; i < GREEDY; i++)
    greedy[i] = open_qp(p, .memory_bytes = 0, .to = 1);
  const int modest = open_qp(p, .memory_bytes = 0, .to = 2);
  for (int plane = 1; plane <= 8; plane++)
    for (int path = 0; path < 32; path++)
      mrc_pair_path(p, 0, 1, plane, path)->config.silent = true;
  int bad = 0;
  for (int i = 0; i < GREEDY; i++) {
    distrust_all(p, greedy[i]);
    bad += n_bad(p, greedy[i]);
  }
  CHECK(bad > MRC_MAX_EV_PROBES);
  run_for(p, 3 * MS);
  const struct mrc_engine *engine = p->hosts[0].engine;
  CHECK(engine->services.probes.n > MRC_MAX_EV_PROBES / 4);
  CHECK(engine->services.probes.n <= MRC_MAX_EV_PROBES - 64);
  distrust(p, modest, 0);
  mrc_pair_kick(p, 0);
  run_for(p, 7 * MS); /* three probes, 2 ms apart */
  CHECK_EQ(n_bad(p, modest), 0);
  run_for(p, 300 * MS);
  for (int i = 0; i < GREEDY; i++)
    for (int path = 0; path < 32; path++) {
      const struct mrc_ev_info ev = mrc_pair_ev(p, greedy[i], 8, path);
      CHECK(ev.state != MRC_EV_ASSUMED_BAD || ev.sent_probes > 0);
    }
}

/* Unanswered probes of commands fill the slots: port status still leaves at once. */
TEST(test_slots__leave_room_for_port_status) {
  PAIR p = open_pair(.planes = 8, .paths = 32);
  uint32_t qpns[2];
  int end = 0;
  for (int i = 0; i < 2; i++)
    qpns[i] = p->ends[end = open_qp(p, .memory_bytes = 0)]->qpn;
  for (int plane = 1; plane <= 7; plane++)
    mrc_pair_silence(p, plane, true);
  distrust_all(p, end);
  CHECK_EQ(probe_all(p, 0, qpns, 2, 256), COMMANDS);
  run_for(p, 2 * MS);
  mrc_pair_port_up(p, 0, 1, false);
  run_for(p, 1 * MS);
  CHECK(counter(p, 0, MRC_COUNTER_TX_PORT_STATUS) >= 1);
}

/* More peers await a port status message than there are slots, and no message has left. */
static mrc_engine *engine_with_full_slots(uint32_t peers) {
  mrc_engine *engine = mrc_engine_create(&(struct mrc_engine_config){.ports = 2, .max_qps = peers});
  for (uint32_t i = 0; i < peers; i++) {
    const struct mrc_qp_attr attr = {
        .create = {.qpn = 3 + i, .sq_depth = 1, .mpr = 128, .max_wimm = 1}, .rtr = {.dest_qpn = 3}};
    const struct mrc_ev_attr ev = {.ev = 1, .dport = MRC_UDP_PORT, .port = 1, .family = 6};
    const struct mrc_peer_source source = {.address = {0xFD, (uint8_t)(i >> 8), (uint8_t)i}};
    CHECK_EQ(mrc_qp_create(engine, &attr.create), 0);
    CHECK_EQ(mrc_qp_modify(engine, attr.create.qpn, MRC_QP_INIT, NULL, NULL, 1), 0);
    CHECK_EQ(mrc_qp_set_evs(engine, attr.create.qpn, &ev, 1), 0);
    CHECK_EQ(mrc_qp_set_peer(engine, attr.create.qpn, &source, 1), 0);
    CHECK_EQ(mrc_qp_modify(engine, attr.create.qpn, MRC_QP_RTR, &attr.rtr, NULL, 1), 0);
  }
  mrc_engine_port_up(engine, 2, false, 1);
  CHECK_EQ(engine->services.probes.n_unsent, MRC_MAX_EV_PROBES);
  return engine;
}

/* When a peer with a queued message is removed, its slot passes to a waiting one. The queue holds
   each used slot once. */
TEST(test_slots__pass_to_those_that_wait) {
  enum { WAITING = 8, PEERS = MRC_MAX_EV_PROBES + WAITING };
  ENGINE engine = engine_with_full_slots(PEERS);
  EACH_OF(uint32_t, gone, 0, 2 * WAITING) {
    bool queued[MRC_MAX_EV_PROBES] = {false};
    CHECK_EQ(mrc_qp_destroy(engine, 3 + PEERS / 2 - gone), 0);
    CHECK_EQ(engine->services.probes.n, mrc_min_u32(PEERS - 1 - gone, MRC_MAX_EV_PROBES));
    CHECK_EQ(engine->services.probes.n_unsent, engine->services.probes.n);
    uint16_t slot = engine->services.probes.first; /* + 1 */
    for (uint32_t i = 0; i < engine->services.probes.n_unsent; i++) {
      CHECK(slot != 0 && !queued[slot - 1]);
      queued[slot - 1] = true;
      slot = engine->services.probes.slots[slot - 1].next;
    }
    CHECK_EQ(slot, 0);
  }
}

/* An answer counts only if it comes from the probe's destination with its id and its timestamp. */
TEST(test_answer__is_to_this_probe) {
  static const struct {
    int plane; /* the answer's source */
    uint16_t id, timestamp;
    int drop;
  } rows[] = {
      {1, 1, 0, MRC_DROP_UNKNOWN_ID}, {1, MRC_MAX_EV_PROBES, 0, MRC_DROP_UNKNOWN_ID},
      {1, 0, 1, MRC_DROP_UNKNOWN_ID}, {1, 0, UINT16_MAX, MRC_DROP_UNKNOWN_ID},
      {2, 0, 0, MRC_DROP_SOURCE},     {1, 0, 0, MRC_DROP_NONE},
      {1, 0, 0, MRC_DROP_UNKNOWN_ID}, /* a second one */
  };
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p), prober = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(probe_ev(p->hosts[1].engine, p->ends[prober]->qpn, 0, 0, SECOND, 7, p->now_ns), 0);
  mrc_pair_kick(p, 1);
  run_for(p, US);
  const uint16_t timestamp = mrc_timestamp(p->now_ns - US);
  const struct mrc_ev_probe *probe = p->hosts[1].engine->services.probes.slots;
  while (probe->purpose != MRC_EV_PROBE_COMMAND)
    probe++; /* ends, because there is one */
  const uint16_t id = probe->id;
  EACH_ROW(i, rows) {
    set_wire(forge, .opcode = MRC_OP_ENDPOINT_RESPONSE, .dest_qpn = MRC_ENDPOINT_QPN,
             .psn = (uint16_t)(id + rows[i].id),
             .endpoint = {.op = MRC_ENDPOINT_EV_PROBE,
                          .tx_timestamp = (uint16_t)(timestamp + rows[i].timestamp)});
    mrc_address_make(forge.meta.src, 6, 0, rows[i].plane, 0);
    forge.meta.sport = mrc_address_sport(rows[i].plane, 0);
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
  }
  run_for(p, US);
  CHECK_EQ(n_probe_events(p, 1), 1);
}

/* If both sides agreed, an answer adds the wait of the probe to its timestamp. */
TEST(test_answer__tells_how_long_the_probe_waited) {
  static const struct {
    uint32_t agreed, readings;
    uint64_t waited_ns;
    uint16_t added;
  } rows[] = {{1, 0, 300 * US, 292}, /* units of 1.024 us */
              {1, 0, 1000, 0},
              {1, 0, 40 * MS, 0}, /* beyond the range of the timestamp */
              {1, MRC_READING_G15_B, 300 * US, 0},
              {0, 0, 300 * US, 0}};
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.engine.readings = rows[i].readings);
    const int end = open_qp(p, .service_times = rows[i].agreed);
    run_for(p, 50 * MS);
    struct forge forge = make_forge(p, end);
    set_wire(forge, .opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN, .psn = 9,
             .endpoint = {.op = MRC_ENDPOINT_EV_PROBE, .tx_timestamp = 0xFFF0, .tsr = true});
    forge.meta.arrived_ns = p->now_ns - rows[i].waited_ns;
    CHECK_EQ(send_forge(p, &forge), 0);
    struct mrc_burst burst;
    CHECK_EQ(transmit(p, 1, &burst, 1, 1), 1);
    CHECK_EQ(
        mrc_wire_decode(burst.packets[0].header, burst.packets[0].header_bytes, true, &forge.wire),
        0);
    CHECK_EQ(forge.wire.opcode, MRC_OP_ENDPOINT_RESPONSE);
    CHECK_EQ(forge.wire.endpoint.tx_timestamp, (uint16_t)(0xFFF0 + rows[i].added));
  }
}

/* The round trip of a probe is without its wait, which cannot be longer than the whole time. */
TEST(test_answer__its_wait_is_not_the_network_s) {
  static const struct {
    uint32_t agreed;
    uint16_t added;
    int drop;
    int64_t rtt_ns;
  } rows[] = {{1, 600, MRC_DROP_NONE, (int64_t)(MS - 600 * 1024)},
              {1, 0, MRC_DROP_NONE, (int64_t)MS},
              {1, 1000, MRC_DROP_UNKNOWN_ID, 0},
              {1, UINT16_MAX, MRC_DROP_UNKNOWN_ID, 0},
              {0, 600, MRC_DROP_UNKNOWN_ID, 0}};
  EACH_ROW(i, rows) {
    PAIR p = open_pair();
    const int end = open_qp(p, .service_times = rows[i].agreed), prober = p->ends[end]->peer;
    struct forge forge = make_forge(p, end);
    mrc_pair_silence(p, 1, true);
    CHECK_EQ(probe_ev(p->hosts[1].engine, p->ends[prober]->qpn, 0, 0, SECOND, 7, p->now_ns), 0);
    mrc_pair_kick(p, 1);
    run_for(p, MS);
    const struct mrc_ev_probe *probe = p->hosts[1].engine->services.probes.slots;
    while (probe->purpose != MRC_EV_PROBE_COMMAND)
      probe++; /* ends, because there is one */
    set_wire(forge, .opcode = MRC_OP_ENDPOINT_RESPONSE, .dest_qpn = MRC_ENDPOINT_QPN,
             .psn = probe->id,
             .endpoint = {.op = MRC_ENDPOINT_EV_PROBE,
                          .tx_timestamp = (uint16_t)(probe->tx_timestamp + rows[i].added)});
    const int64_t late_ns = (int64_t)(p->now_ns - probe->sent_ns - MS);
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    run_for(p, US);
    CHECK_EQ(n_probe_events(p, 1), rows[i].drop == MRC_DROP_NONE);
    if (rows[i].drop == MRC_DROP_NONE) {
      CHECK_EQ(probe_event(p, 1, 0)->rtt_ns, rows[i].rtt_ns + late_ns);
    } else { /* what a refused answer told is forgotten */
      const int64_t whole_ns = (int64_t)(p->now_ns - probe->sent_ns);
      forge.wire.endpoint.tx_timestamp = probe->tx_timestamp;
      CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
      run_for(p, US);
      CHECK_EQ(probe_event(p, 1, 0)->rtt_ns, whole_ns);
    }
  }
}

/* The ids of the probes of one batch, in their order. */
static void ids_of(uint64_t seed, uint16_t ids[16]) {
  PAIR p = open_pair(.seed = seed, .paths = 16);
  const uint32_t qpn = p->ends[open_qp(p)]->qpn;
  CHECK_EQ(probe_all(p, 0, &qpn, 1, 16), 16);
  int n = 0;
  const struct mrc_probes *probes = &p->hosts[0].engine->services.probes;
  for (uint32_t slot = 0; slot < probes->n_slots; slot++)
    if (probes->slots[slot].purpose == MRC_EV_PROBE_COMMAND) ids[n++ & 15] = probes->slots[slot].id;
  CHECK_EQ(n, 16);
}

/* Ids derive from the seed; no id reveals the next. */
TEST(test_ids__follow_from_the_seed) {
  uint16_t ids[16], same[16], other[16];
  ids_of(1, ids);
  ids_of(1, same);
  ids_of(2, other);
  CHECK_MEM_EQ(ids, same, sizeof ids);
  int n_equal = 0, n_next = 0;
  for (int i = 1; i < 16; i++) {
    n_equal += ids[i] == other[i];
    n_next += (uint16_t)(ids[i] - ids[i - 1]) < 4;
  }
  CHECK(n_equal < 3 && n_next < 3);
}

/* Hosts with little noise, a slow link, and most paths dead. Probes are as large as full packets;
   they must not fill the link, or data and probes would wait for each other for ever. */
TEST(test_own__do_not_fill_a_slow_link) {
  enum { QPS = 8, PATHS = 32, BYTES = 100000 };
  PAIR p = open_pair(.paths = PATHS, .engine.noise_ns = 1000, .port_out.rate_bps = 1000000000,
                     .port_out.queue_bytes = 300000);
  int ends[QPS];
  for (int i = 0; i < QPS; i++) {
    ends[i] = open_qp(p, .memory_bytes = BYTES, .path_mtu = 8844, .retry_exp = 25, .probe = true);
    distrust_all(p, ends[i]);
  }
  for (int path = PATHS / 4; path < PATHS; path++)
    mrc_pair_path(p, 0, 1, 1, path)->config.silent = true;
  for (int i = 0; i < QPS; i++)
    CHECK_EQ(mrc_pair_write(p, ends[i], BYTES), 0);
  CHECK(mrc_pair_finish(p, 1 * SECOND)); /* 7 ms alone */
  const uint64_t probes = counter(p, 0, MRC_COUNTER_TX_EV_PROBES);
  run_for(p, 1 * SECOND);
  CHECK(counter(p, 0, MRC_COUNTER_TX_EV_PROBES) - probes <= QPS * (PATHS - PATHS / 4) * 1000 / 64);
  mrc_pair_silence(p, 1, false);
  run_for(p, 1 * SECOND);
  for (int i = 0; i < QPS; i++)
    CHECK_EQ(n_bad(p, ends[i]), 0);
}

/* Data only uses the short path. The bad EV's round trip is 5000 times as long; the probes measured
   it at connecting, so the engine waits long enough for its probes. */
TEST(test_own__wait_for_an_ev_on_a_long_way) {
  PAIR p = open_pair(.paths = 2);
  mrc_pair_path(p, 0, 1, 1, 1)->config.delay_ns = 100 * MS;
  const int end = open_qp(p, .memory_bytes = 1000 * MTU, .timeout = 16, .probe = true);
  distrust(p, end, 1);
  for (int i = 0; i < 100; i++)
    WRITE_AND_WAIT(p, end, MTU, SECOND);
  CHECK(mrc_pair_info(p, end).rtt_ns < (int64_t)MS);
  CHECK_EQ(n_bad(p, end), 1);
  run_for(p, SECOND);
  CHECK_EQ(n_bad(p, end), 0);
}

/* Other traffic fills a queue of plane 2, which answers after 120 ms from then on. No probe waited
   so long, and the plane stayed suspended as long as that traffic lasted. */
TEST(test_own__a_plane_behind_a_long_queue_returns) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 9000 * MTU, .timeout = 16, .probe = true);
  WRITE_AND_WAIT(p, end, MTU, SECOND);
  mrc_pair_path(p, 0, 1, 2, 0)->config.delay_ns = 120 * MS;
  uint32_t n_suspended = 0;
  for (int i = 0; i < 4000; i++) {
    WRITE_AND_WAIT(p, end, 2 * MTU, SECOND);
    run_for(p, MS);
    n_suspended += mrc_pair_info(p, end).planes[1].suspended;
  }
  CHECK(n_suspended > 100);
  CHECK(!mrc_pair_info(p, end).planes[1].suspended);
}
