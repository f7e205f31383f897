/* SPDX-License-Identifier: Apache-2.0 */
/* A peer refuses packets for lack of resources: the requester retries a limited number of times. */
#include "core/engine.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

enum { RETRIES = 7 }; /* 3 + 4, as in scenario.h */

static const uint8_t nothing[4];

/* Host 1 writes and receives only forged packets. Returns host 0's end. */
static int open_silent(struct mrc_pair *p, uint8_t retry_exp) {
  const int end = open_qp(p, .memory_bytes = 64 * MTU, .retry_exp = retry_exp);
  CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  CHECK(mrc_pair_finish(p, 10 * MS));
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 2 * MTU), 0);
  run_for(p, 10 * US);
  return end;
}

/* Refuses the n-th packet of host 1 that is in flight, and lets host 1 retransmit it. */
static void refuse(struct mrc_pair *p, int end, uint32_t n, uint8_t reason) {
  const struct mrc_qp *qp = inside(p, p->ends[end]->peer);
  const uint32_t psn = mrc_psn_add(qp->req.win.una_psn, n);
  const struct mrc_txslot *slot = mrc_txwin_slot(&qp->req.win, psn);
  CHECK_EQ(slot->state, MRC_TX_INFLIGHT);
  struct forge forge = make_forge(p, end, nothing);
  forge.wire = (struct mrc_wire){
      .opcode = MRC_OP_NACK,
      .dest_qpn = qp->qpn,
      .psn = psn,
      .nack = {
          .reason = reason, .ev = qp->evset.evs[slot->ev].value, .nack_psn = psn, .cc_type = 2}};
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
  run_for(p, 10 * US);
}

TEST(test_refusal__counts_as_a_retry) {
  static const uint8_t reasons[] = {MRC_NACK_NO_BITMAP, MRC_NACK_NO_PKT_BUFFER,
                                    MRC_NACK_NO_RESOURCE, MRC_NACK_PSN_OOR_WINDOW};
  for (size_t row = 0; row < sizeof reasons; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair(.paths = 4);
    const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
    for (int i = 0; i < RETRIES; i++)
      refuse(p, end, 0, reasons[row]);
    CHECK_EQ(mrc_pair_info(p, peer).state, MRC_QP_RTS);
    CHECK_EQ(mrc_pair_info(p, peer).timeouts, RETRIES);
    refuse(p, end, 0, reasons[row]);
    CHECK_EQ(mrc_pair_info(p, peer).state, MRC_QP_ERROR);
    CHECK_EQ(mrc_pair_info(p, peer).status, MRC_WC_RETRY_EXC_ERR);
    mrc_pair_destroy(p);
  }
}

/* Refusals of a whole window count as one retry. */
TEST(test_refusal__of_several_packets_counts_once) {
  struct mrc_pair *p = open_pair(.paths = 4);
  const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
  for (int i = 0; i < RETRIES; i++) {
    refuse(p, end, 1, MRC_NACK_NO_RESOURCE);
    refuse(p, end, 0, MRC_NACK_NO_RESOURCE);
  }
  CHECK_EQ(mrc_pair_info(p, peer).timeouts, RETRIES);
  CHECK_EQ(mrc_pair_info(p, peer).state, MRC_QP_RTS);
  mrc_pair_destroy(p);
}

/* One counter counts expiries of the local timeout and refusals together. */
TEST(test_refusal__shares_the_counter_with_timeouts) {
  struct mrc_pair *p = open_pair(.paths = 4);
  const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
  for (int i = 0; i < RETRIES; i++)
    refuse(p, end, 0, MRC_NACK_NO_RESOURCE);
  run_for(p, 3 * SECOND); /* the next expiry, after a doubled interval, exceeds the limit */
  CHECK_EQ(mrc_pair_info(p, peer).status, MRC_WC_RETRY_EXC_ERR);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TIMEOUTS), 1);
  mrc_pair_destroy(p);
}

TEST(test_refusal__progress_starts_anew) {
  struct mrc_pair *p = open_pair(.paths = 4);
  const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
  for (int i = 0; i < RETRIES; i++)
    refuse(p, end, 0, MRC_NACK_NO_RESOURCE);
  mrc_pair_silence(p, 1, false);
  CHECK(mrc_pair_finish(p, 3 * SECOND));
  CHECK_EQ(mrc_pair_info(p, peer).timeouts, 0);
  CHECK(!inside(p, peer)->req.refused);
  CHECK_EQ(succeeded(p, peer), 1);
  mrc_pair_destroy(p);
}

/* Trims are congestion, not refusals; and the number of retries may be unlimited. */
TEST(test_refusal__what_does_not_count) {
  static const struct {
    uint8_t reason, retry_exp;
  } rows[] = {{MRC_NACK_TRIMMED, 4}, {MRC_NACK_TRIMMED_LASTHOP, 4}, {MRC_NACK_NO_RESOURCE, 25}};
  for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair(.paths = 4);
    const int end = open_silent(p, rows[row].retry_exp);
    for (int i = 0; i < 30; i++)
      refuse(p, end, 0, rows[row].reason);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
    mrc_pair_destroy(p);
  }
}

/* After a trim inside the fabric the EV skips turns; after a trim at the last hop no EV does. */
TEST(test_trim__at_the_last_hop_blames_no_path) {
  static const uint8_t reasons[] = {MRC_NACK_TRIMMED, MRC_NACK_TRIMMED_LASTHOP};
  for (int row = 0; row < 2; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair(.paths = 4);
    const int end = open_silent(p, 4);
    refuse(p, end, 0, reasons[row]);
    static struct mrc_trace_entry entries[4096];
    const int n = mrc_engine_trace(p->hosts[1].engine, entries, 4096);
    int skips = 0;
    for (int i = 0; i < n; i++)
      skips += entries[i].point == MRC_TRACE_EV_STATE && entries[i].b == MRC_EV_SKIP;
    CHECK_EQ(skips, reasons[row] == MRC_NACK_TRIMMED);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).retransmitted_packets, 1);
    mrc_pair_destroy(p);
  }
}
