/* SPDX-License-Identifier: Apache-2.0 */
/* Packets that arrive together, as the kernel merges those of a burst. */
#include "core/engine.h"

#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

enum { PACKETS = 6 };

static const uint8_t payload[4] = {1, 2, 3, 4};

struct together {
  struct mrc_pair *pair;
  int end;
  struct forge forge;
  uint8_t bytes[PACKETS * FORGE_BYTES];
  size_t n;
  size_t packet_bytes;
};

static void start(struct together *t) {
  *t = (struct together){.pair = open_pair()};
  t->end = open_qp(t->pair, .memory_bytes = 64);
  t->forge = make_forge(t->pair, t->end, payload);
  t->forge.wire.opcode = MRC_OP_WRITE_ONLY_IMM;
  t->pair->hosts[1].stops_polling = true;
}

/* Adds the forged packet to the message, and makes the next one of it. */
static void add(struct together *t) {
  const size_t n = encode_forge(&t->forge, t->bytes + t->n);
  if (t->n == 0) t->packet_bytes = n;
  t->n += n;
  t->forge.wire.psn++;
  t->forge.wire.rqmsn++;
  t->forge.wire.imm++;
}

static int receive(struct together *t) {
  return mrc_engine_receive(t->pair->hosts[1].engine, t->bytes, t->n, t->packet_bytes,
                            &t->forge.meta, t->pair->now_ns);
}

static uint64_t drops(const struct together *t, enum mrc_drop reason) {
  uint64_t values[MRC_DROP_COUNT];
  mrc_engine_drops(t->pair->hosts[1].engine, values, MRC_DROP_COUNT);
  return values[reason];
}

static int polled(struct together *t, struct mrc_wc *wcs) {
  return mrc_cq_poll(t->pair->hosts[1].engine, wcs, 8);
}

TEST(test_together__each_packet_is_judged_by_itself) {
  struct together t;
  struct mrc_wc wcs[8];
  start(&t);
  add(&t);
  add(&t);
  t.bytes[t.n - 1] ^= 1; /* of the ICRC */
  t.forge.wire.dest_qpn ^= 1;
  add(&t);
  t.forge.wire.dest_qpn ^= 1;
  t.forge.wire.psn -= 2;
  t.forge.wire.rqmsn -= 2;
  add(&t);
  add(&t);
  CHECK_EQ(receive(&t), MRC_DROP_NONE);
  CHECK_EQ(drops(&t, MRC_DROP_ICRC), 1);
  CHECK_EQ(drops(&t, MRC_DROP_QPN), 1);
  CHECK_EQ(polled(&t, wcs), 3);
  for (uint32_t i = 0; i < 3; i++) {
    CHECK_EQ(wcs[i].wr_id, i);
    CHECK_EQ(wcs[i].bytes, 4);
  }
  CHECK_EQ(counter(t.pair, 1, MRC_COUNTER_RX_PACKETS), 5);
  CHECK_EQ(counter(t.pair, 1, MRC_COUNTER_RX_DATA), 3);
  CHECK_EQ(receive(&t), MRC_DROP_DUPLICATE); /* all of them, and two that are wrong */
  CHECK_EQ(drops(&t, MRC_DROP_DUPLICATE), 3);
  CHECK_EQ(polled(&t, wcs), 0);
  mrc_pair_destroy(t.pair);
}

/* What came before a packet that fails the QP counts. */
TEST(test_together__a_refused_packet_ends_the_qp_in_its_turn) {
  struct together t;
  struct mrc_wc wcs[8];
  start(&t);
  add(&t);
  add(&t);
  t.forge.wire.rkey++;
  add(&t);
  t.forge.wire.rkey--;
  add(&t);
  CHECK_EQ(receive(&t), MRC_DROP_QP_STATE);
  CHECK_EQ(drops(&t, MRC_DROP_ACCESS), 1);
  CHECK_EQ(polled(&t, wcs), 2);
  CHECK_EQ(mrc_pair_info(t.pair, t.pair->ends[t.end]->peer).state, MRC_QP_ERROR);
  mrc_pair_destroy(t.pair);
}

TEST(test_together__the_last_may_be_shorter) {
  struct together t;
  struct mrc_wc wcs[8];
  start(&t);
  add(&t);
  t.forge.wire.payload_bytes = t.forge.wire.dma_bytes = 0;
  add(&t);
  CHECK(t.n < 2 * t.packet_bytes);
  CHECK_EQ(receive(&t), MRC_DROP_NONE);
  CHECK_EQ(polled(&t, wcs), 2);
  CHECK_EQ(wcs[1].bytes, 0);
  t.n--;
  CHECK_EQ(receive(&t), MRC_DROP_SHORT); /* the last one is cut */
  mrc_pair_destroy(t.pair);
}
