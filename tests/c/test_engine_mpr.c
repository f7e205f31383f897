/* SPDX-License-Identifier: Apache-2.0 */
/* The window of PSNs: a requester may use less than the peer grants, and under dynamic MPR the
   responder narrows and widens what it grants. */
#include <errno.h>

#include "core/engine.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

static const uint8_t nothing[4];

static int set_mpr(struct mrc_pair *p, int end, uint32_t mpr) {
  const struct mrc_pair_end *e = p->ends[end];
  const int error = mrc_qp_set_mpr(p->hosts[e->host].engine, e->qpn, mpr, p->now_ns);
  mrc_pair_kick(p, e->host);
  return error;
}

static uint32_t ahead(const struct mrc_pair *p, int end) {
  const struct mrc_requester *req = &inside(p, end)->req;
  return mrc_psn_sub(req->win.next_psn, req->peer_next_psn);
}

/* The largest lead of an end's PSN over its peer's, in a period. */
static uint32_t most_ahead(struct mrc_pair *p, int end, uint64_t ns) {
  uint32_t most = 0;
  for (const uint64_t end_ns = p->now_ns + ns; p->now_ns < end_ns;) {
    run_for(p, 20 * US);
    most = mrc_max_u32(most, ahead(p, end));
  }
  return most;
}

/* A path of 4 ms at 500 Mbit/s: more than 400 packets of 1 KiB are in flight. */
static struct mrc_pair *open_long(void) {
  return open_pair(.planes = 2, .paths = 2, .path.delay_ns = 2 * MS,
                   .port_out.rate_bps = 500000000);
}

static int open_busy(struct mrc_pair *p, uint32_t dynamic_mpr) {
  const int end = open_qp(p, .memory_bytes = 32u << 20, .mpr = 1024, .cc = MRC_CC_NULL,
                          .dynamic_mpr = dynamic_mpr);
  for (int i = 0; i < 32; i++)
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  return end;
}

/* The peer grants 4096 PSNs; this end uses only 256 and holds memory for 256. */
TEST(test_rts__takes_less_than_the_peer_grants) {
  struct mrc_pair *p = open_long();
  const struct mrc_pair_qp_config config = {.memory_bytes = 8u << 20,
                                            .path_mtu = MTU,
                                            .mpr = 4096,
                                            .timeout = 14,
                                            .retry_linear = 3,
                                            .retry_exp = 4,
                                            .cc = MRC_CC_NULL};
  const int end = mrc_pair_create_qp(p, &config), peer = p->ends[end]->peer;
  p->ends[end]->attr.rts.peer_mpr = 256;
  for (int i = 0; i < 2; i++)
    mrc_pair_modify(p, i == 0 ? end : peer, MRC_QP_RTR);
  for (int i = 0; i < 2; i++)
    mrc_pair_modify(p, i == 0 ? end : peer, MRC_QP_RTS);
  CHECK_EQ(inside(p, end)->req.win.mask, 255);
  CHECK_EQ(inside(p, peer)->req.win.mask, 4095);
  CHECK_EQ(mrc_pair_info(p, end).peer_mpr, 256);
  for (int i = 0; i < 8; i++)
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  CHECK_EQ(most_ahead(p, end, 20 * MS), 256);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, end), 8);
  mrc_pair_destroy(p);
}

TEST(test_mpr__narrower_and_wider) {
  struct mrc_pair *p = open_long();
  const int end = open_busy(p, 1), peer = p->ends[end]->peer;
  CHECK_EQ(most_ahead(p, end, 30 * MS), 1024);
  CHECK_EQ(set_mpr(p, peer, 256), 0);
  run_for(p, 50 * MS); /* the packets in flight drain */
  CHECK_EQ(mrc_pair_info(p, end).peer_mpr, 256);
  CHECK_EQ(most_ahead(p, end, 20 * MS), 256);
  CHECK_EQ(set_mpr(p, peer, 640), 0);
  run_for(p, 20 * MS);
  CHECK_EQ(most_ahead(p, end, 20 * MS), 640);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, end), 32);
  mrc_pair_destroy(p);
}

/* The window narrows under full load: no sent packet is refused or retransmitted. */
TEST(test_mpr__a_narrower_window_revokes_nothing) {
  struct mrc_pair *p = open_long();
  const int end = open_busy(p, 1), peer = p->ends[end]->peer;
  run_for(p, 30 * MS);
  CHECK_EQ(ahead(p, end), 1024);
  CHECK_EQ(set_mpr(p, peer, 128), 0);
  CHECK(mrc_pair_finish(p, 4 * SECOND));
  CHECK_EQ(succeeded(p, end), 32);
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), 0);
  CHECK_EQ(p->hosts[1].drops[MRC_DROP_PSN_WINDOW], 0);
  mrc_pair_destroy(p);
}

/* Every SACK carries the grant, so a lost SACK does no harm. */
TEST(test_mpr__survives_lost_sacks) {
  struct mrc_pair *p = open_long();
  const int end = open_busy(p, 1), peer = p->ends[end]->peer;
  run_for(p, 30 * MS);
  lose_kind(p, 1, MRC_OP_SACK, 20);
  CHECK_EQ(set_mpr(p, peer, 256), 0);
  run_for(p, 100 * MS);
  CHECK_EQ(mrc_pair_info(p, end).peer_mpr, 256);
  CHECK(mrc_pair_finish(p, 4 * SECOND));
  mrc_pair_destroy(p);
}

/* The effect of a SACK with this field on the agreed window of 1024. */
TEST(test_mpr__what_a_sack_may_say) {
  static const struct {
    uint32_t dynamic_mpr;
    uint8_t mpr;
    uint32_t granted;
  } rows[] = {
      {1, 2, 256},
      {1, 0, 1024},   /* no grant */
      {1, 255, 1024}, /* never more than agreed */
      {0, 2, 1024},   /* not agreed */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair();
    const int end = open_qp(p, .memory_bytes = 2 * MTU, .dynamic_mpr = rows[i].dynamic_mpr);
    const int peer = p->ends[end]->peer;
    CHECK_EQ(mrc_pair_write(p, peer, MTU), 0);
    CHECK(mrc_pair_finish(p, 10 * MS));
    const uint32_t cum_psn = mrc_psn_sub(inside(p, peer)->req.win.next_psn, 1);
    struct forge forge = make_forge(p, end, nothing);
    forge.wire = (struct mrc_wire){.opcode = MRC_OP_SACK,
                                   .dest_qpn = p->ends[peer]->qpn,
                                   .psn = cum_psn,
                                   .sack = {.cum_psn = cum_psn, .mpr = rows[i].mpr}};
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
    CHECK_EQ(mrc_pair_info(p, peer).peer_mpr, rows[i].granted);
    if (rows[i].granted != 1024) { /* an older SACK has no effect */
      forge.wire.psn = forge.wire.sack.cum_psn = mrc_psn_sub(cum_psn, 1);
      forge.wire.sack.mpr = 8;
      send_forge(p, &forge);
      CHECK_EQ(mrc_pair_info(p, peer).peer_mpr, rows[i].granted);
    }
    mrc_pair_destroy(p);
  }
}

TEST(test_set_mpr__refuses) {
  struct mrc_pair *p = open_pair();
  const int fixed = open_qp(p, .mpr = 512), end = open_qp(p, .mpr = 512, .dynamic_mpr = 1);
  CHECK_EQ(set_mpr(p, fixed, 128), -EINVAL);
  CHECK_EQ(set_mpr(p, end, 128), 0);
  CHECK_EQ(set_mpr(p, end, 512), 0);
  CHECK_EQ(set_mpr(p, end, 0), -EINVAL);
  CHECK_EQ(set_mpr(p, end, 192), -EINVAL);
  CHECK_EQ(set_mpr(p, end, 640), -EINVAL);
  CHECK_EQ(mrc_qp_set_mpr(p->hosts[0].engine, 1, 128, p->now_ns), -ENOENT);
  mrc_pair_modify(p, end, MRC_QP_ERROR);
  CHECK_EQ(set_mpr(p, end, 128), -EINVAL);
  mrc_pair_destroy(p);
}
