/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of an engine (csrc/core/calls.c): names, trace ring, and events that the application does
 * not take. */
#include "core/calls.h"

#include "core/engine.h"

#include "pair/connect.h"
#include "scenario.h"

TEST(test_names__end_with_the_lists) {
  CHECK_STR_EQ(mrc_engine_counter_name(0), "RX_PACKETS");
  CHECK(mrc_engine_counter_name(MRC_COUNTERS - 1) != NULL);
  CHECK(mrc_engine_counter_name(MRC_COUNTERS) == NULL);
  CHECK(mrc_engine_counter_name(-1) == NULL);
  CHECK_STR_EQ(mrc_engine_counter_meaning(0), "packets handed to the engine");
  CHECK(mrc_engine_counter_meaning(MRC_COUNTERS) == NULL);
  CHECK(mrc_engine_counter_meaning(-1) == NULL);
  CHECK_STR_EQ(mrc_drop_name(0), "NONE");
  CHECK_STR_EQ(mrc_drop_name(MRC_DROP_SHORT), "SHORT");
  CHECK_STR_EQ(mrc_drop_name(MRC_DROP_COUNT - 1), "PORT_STATUS");
  CHECK(mrc_drop_name(MRC_DROP_COUNT) == NULL);
  CHECK(mrc_drop_name(-1) == NULL);
  CHECK_STR_EQ(mrc_trace_name(0), "DROP");
  CHECK(mrc_trace_name(MRC_TRACE_POINTS) == NULL);
  CHECK(mrc_trace_name(-1) == NULL);
}

TEST(test_counters__fill_what_there_is_room_for) {
  mrc_engine *engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 1});
  uint64_t values[2] = {7, 7};
  CHECK_EQ(mrc_engine_receive(engine, (uint8_t[1]){0}, 0, 0, &(struct mrc_meta){.port = 1}, 1),
           MRC_DROP_SHORT);
  CHECK_EQ(mrc_engine_counters(engine, values, 1), MRC_COUNTERS);
  CHECK_EQ(values[0], 1);
  CHECK_EQ(values[1], 7);
  CHECK_EQ(mrc_engine_drops(engine, values, 2), MRC_DROP_COUNT);
  CHECK_EQ(values[MRC_DROP_SHORT], 1);
  mrc_engine_destroy(engine);
}

/* The ring keeps the newest entries and returns them oldest first. */
TEST(test_trace__keeps_the_newest) {
  struct mrc_pair *p = open_pair(.engine.trace_entries = 16);
  int end = open_qp(p, .memory_bytes = 100 * MTU, .spray = 1);
  CHECK_EQ(mrc_pair_write(p, end, 100 * MTU), 0);
  CHECK(mrc_pair_finish(p, 10 * MS));
  struct mrc_trace_entry entries[32];
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, entries, 32), 16);
  for (int i = 1; i < 16; i++)
    CHECK(entries[i].now_ns >= entries[i - 1].now_ns);
  CHECK_EQ(entries[15].point, MRC_TRACE_COMPLETE);
  struct mrc_trace_entry newest;
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, &newest, 1), 1);
  CHECK_MEM_EQ(&newest, &entries[15], sizeof newest);
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, NULL, 0), 0);
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, NULL, -1), 0);
  mrc_pair_destroy(p);
}

/* A QP that was just created has no paths and no peer. */
TEST(test_query__of_a_new_qp) {
  mrc_engine *engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 1, .ports = 2});
  const struct mrc_qp_create_attr attr = {.qpn = 7, .sq_depth = 1, .mpr = 128, .max_wimm = 1};
  struct mrc_qp_info info;
  CHECK_EQ(mrc_qp_create(engine, &attr), 0);
  CHECK_EQ(mrc_qp_query(engine, 7, &info), 0);
  CHECK_EQ(info.qpn, 7);
  CHECK_EQ(info.state, MRC_QP_RESET);
  CHECK_EQ(info.rtt_ns, -1);
  CHECK_EQ(info.planes[1].share_percent, 100);
  CHECK_EQ(info.planes[1].slow, 0);
  mrc_engine_destroy(engine);
}

/* The counters of a plane count each byte that arrived on it once. */
TEST(test_planes__count_what_they_bring) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU);
  lose_data(p, 1, 1);
  CHECK_EQ(mrc_pair_write(p, end, 100 * MTU), 0);
  CHECK(mrc_pair_finish(p, 10 * MS));
  const struct mrc_qp_info writer = mrc_pair_info(p, end);
  const struct mrc_qp_info reader = mrc_pair_info(p, p->ends[end]->peer);
  uint64_t packets = 0, bytes = 0;
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(writer.planes[i].received_packets, 0);
    CHECK(reader.planes[i].received_bytes >= 20 * MTU);
    CHECK_EQ(reader.planes[i].received_bytes, MTU * reader.planes[i].received_packets);
    packets += reader.planes[i].received_packets;
    bytes += reader.planes[i].received_bytes;
  }
  CHECK_EQ(packets, 100);
  CHECK_EQ(bytes, reader.received_bytes);
  mrc_pair_destroy(p);
}

/* EV events that are not taken are dropped and counted; an event reports the number, and the QP's
   end is still reported. */
TEST(test_events__overflow_keeps_room_for_what_matters) {
  struct mrc_pair *p = open_pair(.planes = 1, .paths = 2);
  int end = open_qp(p);
  mrc_engine *engine = p->hosts[0].engine;
  const uint32_t qpn = p->ends[end]->qpn;
  for (int i = 0; i < MRC_EVENT_RING; i++)
    CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 0, i % 2 ? MRC_EV_GOOD : MRC_EV_DENIED, p->now_ns),
             0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_EVENTS_DROPPED), MRC_EVENT_RING / 2);
  mrc_pair_modify(p, end, MRC_QP_ERROR);
  struct mrc_event event;
  for (int i = 0; i < MRC_EVENT_RING / 2; i++) {
    CHECK_EQ(mrc_engine_events(engine, &event, 1), 1);
    CHECK_EQ(event.type, MRC_EVENT_EV_STATE);
    CHECK_EQ(event.reason, MRC_REASON_CONTROLLER);
  }
  CHECK_EQ(mrc_engine_events(engine, &event, 1), 1);
  CHECK_EQ(event.type, MRC_EVENT_LOST);
  CHECK_EQ(event.cookie, MRC_EVENT_RING / 2);
  CHECK_EQ(mrc_engine_events(engine, &event, 1), 1);
  CHECK_EQ(event.type, MRC_EVENT_QP_ERROR);
  CHECK_EQ(mrc_engine_events(engine, &event, 1), 0);
  mrc_pair_destroy(p);
}

/* The number of lost events is reported after all earlier events, even if no event follows. */
TEST(test_events__what_was_lost_is_told_last) {
  struct mrc_pair *p = open_pair(.planes = 1, .paths = 2);
  int end = open_qp(p);
  mrc_engine *engine = p->hosts[0].engine;
  for (int i = 0; i < MRC_EVENT_RING / 2 + 3; i++)
    CHECK_EQ(mrc_qp_set_ev_state(engine, p->ends[end]->qpn, 0, i % 2 ? MRC_EV_GOOD : MRC_EV_DENIED,
                                 p->now_ns),
             0);
  struct mrc_event events[64];
  for (int i = 0; i < MRC_EVENT_RING / 2 / 64; i++)
    CHECK_EQ(mrc_engine_events(engine, events, 64), 64);
  CHECK_EQ(mrc_engine_events(engine, events, 64), 1);
  CHECK_EQ(events[0].type, MRC_EVENT_LOST);
  CHECK_EQ(events[0].cookie, 3);
  CHECK_EQ(mrc_engine_events(engine, events, 64), 0);
  mrc_pair_destroy(p);
}
