/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile peer within a QP, one test for each false message: no invariant breaks, no queue grows,
   a counter counts it, and valid traffic goes on. */
#include "core/qp.h"
#include "forge.h"
#include "pair/connect.h"

static const uint8_t forged[4] = {0x11, 0x22, 0x33, 0x44};

/* The victim is host 1's requester: it has `packets` in flight, and they will not arrive. */
static struct mrc_pair *open_victim(uint32_t packets, int *end, int *victim) {
  struct mrc_pair *p = open_pair(.planes = 2);
  *end = open_qp(p, .memory_bytes = 64 * MTU, .sq_psn = 5, .dynamic_mpr = 1);
  *victim = p->ends[*end]->peer;
  if (packets == 0) return p;
  mrc_pair_silence(p, 1, true);
  mrc_pair_silence(p, 2, true);
  CHECK_EQ(mrc_pair_write(p, *victim, packets * MTU), 0);
  mrc_pair_run(p, p->now_ns + US);
  return p;
}

static struct forge make_sack(struct mrc_pair *p, int end, uint32_t cum_psn) {
  struct forge forge = make_forge(p, end, forged);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_SACK,
                                 .dest_qpn = forge.wire.dest_qpn,
                                 .psn = cum_psn,
                                 .sack = {.cum_psn = cum_psn, .sack_offset = 1}};
  return forge;
}

/* The peer sends valid packets again: everything completes. */
static void check_recovers(struct mrc_pair *p, int victim, uint64_t writes) {
  mrc_pair_silence(p, 1, false);
  mrc_pair_silence(p, 2, false);
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK_EQ(succeeded(p, victim), writes);
}

/* Eight packets are in flight. A SACK for PSNs beyond them is refused as a whole; a SACK for PSNs
   before them is stale. Neither acknowledges a byte. */
TEST(test_hostile__sacks_for_packets_never_sent) {
  static const struct {
    int32_t cum; /* relative to the first PSN in flight */
    int16_t offset;
    uint64_t bitmap;
    int drop;
  } rows[] = {
      {8, 1, 0, MRC_DROP_ACK_UNSENT},                  /* the next PSN */
      {-1, 9, 1, MRC_DROP_ACK_UNSENT},                 /* the same, in the bitmap */
      {-1, 1, 1ull << 63 | 1, MRC_DROP_ACK_UNSENT},    /* one PSN beyond suffices */
      {-1, INT16_MAX, 1, MRC_DROP_ACK_UNSENT},         /* as far as an offset reaches */
      {(1 << 23) - 1, 1, 0, MRC_DROP_ACK_UNSENT},      /* as far ahead as a PSN may be */
      {-1 - (1 << 22), 1, UINT64_MAX, MRC_DROP_STALE}, /* long ago */
      {-1, INT16_MIN, UINT64_MAX, MRC_DROP_NONE},      /* the bits are stale */
      {-1 - (1 << 22), INT16_MAX, UINT64_MAX, MRC_DROP_STALE},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    int end, victim;
    struct mrc_pair *p = open_victim(8, &end, &victim);
    const struct mrc_txwin *win = &inside(p, victim)->req.win;
    CHECK_EQ(mrc_txwin_outstanding(win), 8);
    struct forge forge = make_sack(p, end, (win->una_psn + (uint32_t)rows[i].cum) & MRC_PSN_MASK);
    forge.wire.sack.sack_offset = rows[i].offset;
    forge.wire.sack.bitmap = rows[i].bitmap;
    const uint64_t drops = p->hosts[1].drops[MRC_DROP_ACK_UNSENT];
    const uint64_t taken = counter(p, 1, MRC_COUNTER_RX_SACKS);
    for (int k = 0; k < 100; k++)
      CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    const bool refused = rows[i].drop != MRC_DROP_NONE;
    uint64_t values[MRC_DROP_COUNT];
    CHECK_EQ(mrc_engine_drops(p->hosts[1].engine, values, MRC_DROP_COUNT), MRC_DROP_COUNT);
    CHECK_EQ(values[MRC_DROP_ACK_UNSENT] - drops, rows[i].drop == MRC_DROP_ACK_UNSENT ? 100 : 0);
    CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_SACKS) - taken, refused ? 0 : 100);
    CHECK_EQ(mrc_pair_info(p, victim).acknowledged_bytes, 0);
    CHECK_EQ(win->inflight_bytes, 8 * MTU);
    check_recovers(p, victim, 1);
    mrc_pair_destroy(p);
  }
}

/* Valid SACKs grant a window smaller than the packets in flight, then no window field, then the old
   window. The requester revokes nothing in flight, sends nothing beyond the grant, and never
   exceeds the agreed window. */
TEST(test_hostile__windows_that_shrink) {
  static const struct {
    uint8_t mpr;
    uint32_t granted;
  } rows[] = {{1, 128}, {255, 1024}, {1, 128}, {0, 128}, {8, 1024}, {9, 1024}, {1, 128}};
  int end, victim;
  struct mrc_pair *p = open_pair();
  end = open_qp(p, .memory_bytes = 600 * MTU, .dynamic_mpr = 1, .cc = MRC_CC_NULL);
  victim = p->ends[end]->peer;
  prove_paths(p->hosts[1].engine, p->ends[victim]->qpn);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, victim, 300 * MTU), 0);
  run_for(p, US);
  const struct mrc_txwin *win = &inside(p, victim)->req.win;
  CHECK_EQ(mrc_txwin_outstanding(win), 300);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct forge forge = make_sack(p, end, mrc_psn_sub(win->una_psn, 1));
    forge.wire.sack.mpr = rows[i].mpr;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
    CHECK_EQ(mrc_pair_info(p, victim).peer_mpr, rows[i].granted);
    CHECK_EQ(mrc_txwin_outstanding(win), 300);
    CHECK_EQ(win->inflight_bytes, 300 * MTU);
  }
  CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_SACKS), sizeof rows / sizeof rows[0]);
  CHECK_EQ(mrc_pair_write(p, victim, 300 * MTU), 0);
  run_for(p, US);
  CHECK_EQ(mrc_txwin_outstanding(win), 300); /* 128 are granted */
  mrc_pair_silence(p, 1, false);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, victim), 2);
  mrc_pair_destroy(p);
}

/* The responder's window of 128 starts just before the wrap: it accepts and refuses the same as
   anywhere else, and accepts each PSN once. */
TEST(test_hostile__psns_at_the_wrap) {
  static const struct {
    uint32_t psn;
    int drop;
  } rows[] =
      {
          {0xFFFFEF, MRC_DROP_DUPLICATE},  /* before the first */
          {0x000070, MRC_DROP_PSN_WINDOW}, /* one beyond the last */
          {0x00006F, MRC_DROP_NONE},       /* the last */
          {0x00006F, MRC_DROP_DUPLICATE},
          {0x000000, MRC_DROP_NONE},
          {0xFFFFFF, MRC_DROP_NONE},
          {0xFFFFFF, MRC_DROP_DUPLICATE},
          {0x7FFFF0, MRC_DROP_DUPLICATE}, /* half the space away: behind */
          {0x7FFFEF, MRC_DROP_PSN_WINDOW},
          {0xFFFFF0, MRC_DROP_NONE}, /* the first: the window moves by one */
          {0x000070, MRC_DROP_NONE},
          {0xFFFFF0, MRC_DROP_DUPLICATE},
  };
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64, .mpr = 128, .sq_psn = 0xFFFFF0);
  const struct mrc_rxwin *win = &inside(p, p->ends[end]->peer)->resp.win;
  uint64_t expected[MRC_DROP_COUNT] = {0}, drops[MRC_DROP_COUNT], placed = 0;
  struct forge forge = make_forge(p, end, forged);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    forge.wire.psn = rows[i].psn;
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    expected[rows[i].drop]++;
    placed += rows[i].drop == MRC_DROP_NONE;
    CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_DATA), placed);
  }
  CHECK_EQ(win->next_psn, 0xFFFFF1);
  CHECK_EQ(mrc_engine_drops(p->hosts[1].engine, drops, MRC_DROP_COUNT), MRC_DROP_COUNT);
  CHECK_EQ(drops[MRC_DROP_PSN_WINDOW], expected[MRC_DROP_PSN_WINDOW]);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_DUPLICATES), expected[MRC_DROP_DUPLICATE]);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
  mrc_pair_destroy(p);
}

/* The first wrong rkey ends the QP, so an attacker has one guess a QP. */
TEST(test_hostile__rkeys_guessed) {
  struct mrc_pair *p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 64), other = open_qp(p, .memory_bytes = 4 * MTU);
  struct forge forge = make_forge(p, end, forged);
  const uint32_t rkey = forge.wire.rkey;
  uint64_t drops[MRC_DROP_COUNT];
  for (uint32_t guess = 0; guess < 1000; guess++) {
    forge.wire.rkey = rkey ^ (guess + 1);
    forge.wire.psn = guess;
    CHECK_EQ(send_forge(p, &forge), guess == 0 ? MRC_DROP_ACCESS : MRC_DROP_QP_STATE);
  }
  forge.wire.rkey = rkey; /* too late */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QP_STATE);
  CHECK_EQ(mrc_engine_drops(p->hosts[1].engine, drops, MRC_DROP_COUNT), MRC_DROP_COUNT);
  CHECK_EQ(drops[MRC_DROP_ACCESS], 1);
  CHECK_EQ(drops[MRC_DROP_QP_STATE], 1000);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_ERROR);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).status, MRC_WC_REM_ACCESS_ERR);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_DATA), 0);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  CHECK_EQ(mrc_pair_write(p, other, 4 * MTU), 0); /* other QPs go on */
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(succeeded(p, other), 1);
  mrc_pair_destroy(p);
}

/* Ranges outside the region or the address space are refused before a byte is placed. */
TEST(test_hostile__lengths_that_overflow) {
  enum { BYTES = 64 };
  static const struct {
    int64_t from_start; /* of the region; with `wraps`, of the address space's end */
    bool wraps;
    uint32_t dma_bytes;
    int drop;
  } rows[] = {
      {BYTES - 4, false, 4, MRC_DROP_NONE}, /* the last four bytes */
      {BYTES - 3, false, 4, MRC_DROP_ACCESS},
      {BYTES, false, 4, MRC_DROP_ACCESS},
      {-1, false, 4, MRC_DROP_ACCESS},
      {-4, true, 4, MRC_DROP_ACCESS}, /* its end is address 0 */
      {-2, true, 4, MRC_DROP_ACCESS}, /* and beyond */
      {-1, true, 4, MRC_DROP_ACCESS},
      {0, false, UINT32_MAX, MRC_DROP_LENGTH}, /* an Only that is longer than its packet */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair(.planes = 2);
    const int end = open_qp(p, .memory_bytes = BYTES);
    uint8_t expected[BYTES];
    uint64_t drops[MRC_DROP_COUNT];
    memset(expected, MRC_AUDIT_FILL, BYTES);
    if (rows[i].drop == MRC_DROP_NONE) memcpy(expected + BYTES - 4, forged, 4);
    struct forge forge = make_forge(p, end, forged);
    forge.wire.va = (rows[i].wraps ? 0 : forge.wire.va) + (uint64_t)rows[i].from_start;
    forge.wire.dma_bytes = rows[i].dma_bytes;
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    CHECK_MEM_EQ(audit_of(p, end)->target, expected, BYTES);
    CHECK_EQ(mrc_engine_drops(p->hosts[1].engine, drops, MRC_DROP_COUNT), MRC_DROP_COUNT);
    if (rows[i].drop != MRC_DROP_NONE) CHECK_EQ(drops[rows[i].drop], 1);
    mrc_pair_destroy(p); /* checks the guard bytes */
  }
}

/* Feedback on EVs that never carried the packet, or do not exist, changes no EV. */
TEST(test_hostile__ev_echoes_never_used) {
  int end, victim;
  struct mrc_pair *p = open_victim(8, &end, &victim);
  const struct mrc_txwin *win = &inside(p, victim)->req.win;
  const struct mrc_evset *set = &inside(p, victim)->evset;
  const uint32_t value = set->evs[0].value;
  const uint64_t taken = counter(p, 1, MRC_COUNTER_RX_SACKS);
  uint64_t drops[MRC_DROP_COUNT];
  struct forge sack = make_sack(p, end, mrc_psn_sub(win->una_psn, 1));
  for (uint32_t i = 0; i < 1000; i++) {
    sack.wire.sack.ev = i % 2 ? value + 1 + i : i * 0x01000193u ^ 0x80000000u;
    sack.wire.sack.m = i % 4 < 2 ? MRC_M_SKIP_ONCE : MRC_M_ALWAYS_SKIP;
    CHECK(mrc_evset_find(set, sack.wire.sack.ev) == MRC_EV_NONE);
    CHECK_EQ(send_forge(p, &sack), MRC_DROP_NONE);
  }
  for (uint16_t i = 0; i < set->n; i++)
    CHECK_EQ(set->evs[i].state, MRC_EV_GOOD);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_SACKS) - taken, 1000);
  struct forge nack = make_sack(p, end, win->una_psn);
  nack.wire.opcode = MRC_OP_NACK;
  nack.wire.nack = (struct mrc_nack){
      .reason = MRC_NACK_TRIMMED, .nack_psn = win->una_psn, .ev = value ^ 0x7FFF, .cc_type = 2};
  for (int i = 0; i < 100; i++)
    CHECK_EQ(send_forge(p, &nack), MRC_DROP_STALE);
  CHECK_EQ(mrc_engine_drops(p->hosts[1].engine, drops, MRC_DROP_COUNT), MRC_DROP_COUNT);
  CHECK_EQ(drops[MRC_DROP_STALE], 100);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_LOST_BY_NACK), 0);
  CHECK_EQ(win->inflight_bytes, 8 * MTU);
  check_recovers(p, victim, 1);
  mrc_pair_destroy(p);
}

/* A thousand of each false message in one QP: the engine must not allocate; it queues no more than
   its rings hold and sends few answers. */
TEST(test_hostile__answers_stay_bounded) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64, .mpr = 128);
  struct forge forge = make_forge(p, end, forged);
  for (uint32_t i = 0; i < 1000; i++) {
    forge.wire.psn = 128 + i;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_PSN_WINDOW);
    forge.wire.psn = mrc_psn_sub(0, 1 + i);
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_DUPLICATE);
  }
  const struct mrc_responder *resp = &inside(p, p->ends[end]->peer)->resp;
  CHECK(resp->n_nacks <= MRC_MAX_NACKS && resp->n_triggers <= MRC_MAX_TRIGGERS);
  run_for(p, US);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), 1);
  CHECK(counter(p, 1, MRC_COUNTER_TX_SACKS) <= MRC_MAX_TRIGGERS);
  mrc_pair_destroy(p);
}
