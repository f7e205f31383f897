/* SPDX-License-Identifier: Apache-2.0 */
/* The trace ring of a transfer (csrc/core/trace.def): each point with its two values. */
#include "pair/connect.h"
#include "scenario.h"

enum { ENTRIES = 4096 };

/* The whole trace of a host. */
struct traced {
  struct mrc_trace_entry entries[ENTRIES];
  int n;
};

static struct traced traced_by(const struct mrc_pair *p, int host) {
  struct traced traced;
  traced.n = mrc_engine_trace(p->hosts[host].engine, traced.entries, ENTRIES);
  CHECK(traced.n > 0 && traced.n < ENTRIES);
  return traced;
}

/* The first entry of a point; all zeros, and a failure, when there is none. */
static struct mrc_trace_entry first(const struct traced *traced, enum mrc_trace_point point) {
  for (int i = 0; i < traced->n; i++)
    if (traced->entries[i].point == point) return traced->entries[i];
  CHECK_FAIL("no %s", mrc_trace_name((int)point));
  return (struct mrc_trace_entry){0};
}

static bool has(const struct traced *traced, enum mrc_trace_point point, uint64_t a, uint64_t b) {
  for (int i = 0; i < traced->n; i++)
    if (traced->entries[i].point == point && traced->entries[i].a == a && traced->entries[i].b == b)
      return true;
  return false;
}

static int count(const struct traced *traced, enum mrc_trace_point point) {
  int n = 0;
  for (int i = 0; i < traced->n; i++)
    n += traced->entries[i].point == point;
  return n;
}

/* Each packet that one host traces when it leaves is traced by the other when it arrives. */
static void check_pairs(const struct traced *from, enum mrc_trace_point out,
                        const struct traced *to, enum mrc_trace_point in) {
  CHECK(count(from, out) > 0);
  CHECK_EQ(count(to, in), count(from, out));
  for (int i = 0; i < from->n; i++)
    if (from->entries[i].point == out) CHECK(has(to, in, from->entries[i].a, from->entries[i].b));
}

static struct mrc_pair *open_traced(void) {
  return open_pair(.planes = 2, .paths = 2, .engine.trace_entries = ENTRIES);
}

/* One packet of a message with an immediate is lost; its EV comes back after probes. */
TEST(test_trace__of_a_loss) {
  struct mrc_pair *p = open_traced();
  const int end = open_qp(p, .memory_bytes = 100 * MTU, .spray = 1);
  lose_data(p, 17, 1);
  CHECK_EQ(mrc_pair_write_imm(p, end, 100 * MTU), 0);
  CHECK(mrc_pair_finish(p, 5 * MS));
  run_for(p, 50 * MS);
  const struct traced writer = traced_by(p, 0), reader = traced_by(p, 1);
  const uint64_t ev = first(&writer, MRC_TRACE_EV_STATE).a;
  CHECK_EQ(count(&writer, MRC_TRACE_SEND), 100);
  for (uint64_t psn = 0; psn < 100; psn++)
    CHECK(has(&reader, MRC_TRACE_PLACE, psn, MTU));
  CHECK(has(&writer, MRC_TRACE_SEND, 17, ev));
  CHECK(has(&writer, MRC_TRACE_LOST, 17, MRC_COUNTER_LOST_BY_ORDER));
  CHECK_EQ(count(&writer, MRC_TRACE_RESEND), 1);
  CHECK_EQ(first(&writer, MRC_TRACE_RESEND).a, 17);
  CHECK(has(&writer, MRC_TRACE_EV_STATE, ev, MRC_EV_ASSUMED_BAD));
  CHECK(has(&writer, MRC_TRACE_EV_STATE, ev, MRC_EV_GOOD));
  CHECK_EQ(first(&writer, MRC_TRACE_EV_PROBE_OUT).b, ev);
  CHECK(has(&writer, MRC_TRACE_EV_PROBE_IN, first(&writer, MRC_TRACE_EV_PROBE_OUT).a,
            2 * PATH_DELAY));
  CHECK_EQ(first(&reader, MRC_TRACE_IMMEDIATE).b, 100 * MTU);
  CHECK_EQ(first(&writer, MRC_TRACE_COMPLETE).b, MRC_WC_SUCCESS);
  CHECK(has(&writer, MRC_TRACE_QP_STATE, MRC_QP_RTR, MRC_QP_RTS));
  check_pairs(&reader, MRC_TRACE_SACK_OUT, &writer, MRC_TRACE_SACK_IN);
  check_pairs(&reader, MRC_TRACE_ACK_OUT, &writer, MRC_TRACE_ACK_IN);
  mrc_pair_destroy(p);
}

/* One port goes down and the other plane falls silent: a reliability probe requests the state of
   the last packets, the local timeout expires, and both planes come back. */
TEST(test_trace__of_silence) {
  struct mrc_pair *p = open_traced();
  const int end = open_qp(p, .memory_bytes = 300 * MTU, .timeout = 12);
  CHECK_EQ(mrc_pair_write(p, end, 100 * MTU), 0);
  CHECK(mrc_pair_finish(p, 5 * MS));
  mrc_pair_port_up(p, 0, 2, false);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, end, 10 * MTU), 0);
  run_for(p, 6 * MS);
  mrc_pair_silence(p, 1, false);
  mrc_pair_port_up(p, 0, 2, true);
  CHECK(mrc_pair_finish(p, 20 * MS));
  run_for(p, 50 * MS);
  const struct traced writer = traced_by(p, 0), reader = traced_by(p, 1);
  CHECK(has(&writer, MRC_TRACE_TIMEOUT, 1, 1024 << 12));
  CHECK_EQ(first(&writer, MRC_TRACE_PROBE_OUT).b, 0);
  CHECK(has(&writer, MRC_TRACE_LOST, 100, MRC_COUNTER_LOST_BY_TIMEOUT));
  CHECK(has(&writer, MRC_TRACE_PLANE_SUSPEND, 2, 0));
  CHECK(has(&writer, MRC_TRACE_PLANE_RESUME, 2, 0));
  const struct mrc_trace_entry in = first(&writer, MRC_TRACE_PROBE_IN);
  CHECK(has(&writer, MRC_TRACE_PROBE_OUT, in.a, 0));
  CHECK_EQ(in.b, 2 * PATH_DELAY);
  const struct mrc_trace_entry status = first(&reader, MRC_TRACE_PORT_STATUS_IN);
  CHECK_EQ(status.b, 3);
  CHECK(has(&writer, MRC_TRACE_PORT_STATUS_OUT, status.a, 3));
  CHECK(has(&writer, MRC_TRACE_PORT_STATUS_TOLD, status.a, 3));
  mrc_pair_destroy(p);
}
