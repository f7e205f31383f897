/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "core/seal.h"
#include "pair/connect.h"
#include "scenario.h"
#include "virtual/sealer.h"

/* A peer behind a NAT, host 0: its packets come from the NAT's address and a port that the NAT has
   chosen, and only packets to that port reach it. */

enum { GUESS = 4791, CHOSEN = 2222 };

static uint16_t nat_sport; /* of the NAT */

static void translate(struct mrc_pair *pair, int host, struct mrc_datagram *packet, bool sent) {
  (void)pair;
  struct mrc_meta *meta = &packet->meta;
  if (host == 0 && sent) {
    meta->src[MRC_ADDRESS_NAT] = 1;
    meta->sport = nat_sport;
  } else if (host == 0) {
    const bool passes = meta->dst[MRC_ADDRESS_NAT] == 1 && meta->dport == nat_sport;
    if (!passes) packet->n = 0; /* the engine takes nothing so short */
    meta->dst[MRC_ADDRESS_NAT] = 0;
  }
}

/* The QP from behind the NAT. */
static int open_through(struct mrc_pair *p, uint8_t seal, bool probe) {
  nat_sport = CHOSEN;
  p->pass = translate;
  const int end = open_qp(p, .memory_bytes = 1000 * MTU, .seal = seal, .nat_sport = GUESS,
                          .probe = probe, .retry_exp = 25);
  p->hosts[0].drops[MRC_DROP_SHORT] = 0;
  return end;
}

static uint16_t learned(const struct mrc_pair *p, int end) {
  return inside(p, p->ends[end]->peer)->peer->nat.sport;
}

TEST(test_nat__writes_arrive_in_both_directions) {
  EACH_OF(uint8_t, mode, MRC_SEAL_AUTH, MRC_SEAL_AEAD + 1) {
    PAIR p = open_pair();
    const int end = open_through(p, mode, true), peer = p->ends[end]->peer;
    CHECK_EQ(learned(p, end), CHOSEN);
    WRITE_IMM_AND_WAIT(p, end, 100 * MTU, 50 * MS);
    WRITE_IMM_AND_WAIT(p, peer, 100 * MTU, 50 * MS);
    CHECK_EQ(retransmitted(p, end) + retransmitted(p, peer), 0);
    CHECK_EQ(p->hosts[0].drops[MRC_DROP_SHORT], 0);
    CHECK_EQ(mrc_pair_ev(p, end, 1, 0).lost_packets, 0);
  }
}

/* The NAT starts anew between two writes, or in one: the next packet teaches its port. */
TEST(test_nat__chooses_another_port) {
  EACH_OF(int, row, 0, 2) {
    PAIR p = open_pair();
    const int end = open_through(p, MRC_SEAL_AEAD, true);
    if (row == 0) WRITE_AND_WAIT(p, end, 100 * MTU, 50 * MS);
    if (row == 1) CHECK_EQ(mrc_pair_write(p, end, 100 * MTU), 0);
    nat_sport = CHOSEN + 1;
    if (row == 0) CHECK_EQ(mrc_pair_write(p, end, 100 * MTU), 0);
    CHECK(mrc_pair_finish(p, 2 * SECOND));
    CHECK_EQ(learned(p, end), CHOSEN + 1);
    CHECK_EQ(succeeded(p, end), row == 0 ? 2 : 1);
  }
}

/* What a stranger sends from the NAT's address, or sends again, moves nothing. */
TEST(test_nat__only_new_packets_teach) {
  PAIR p = open_pair();
  p->tap_room = MRC_PAIR_TAP;
  const int end = open_through(p, MRC_SEAL_AEAD, true);
  audit_of(p, end)->unwatched = audit_of(p, p->ends[end]->peer)->unwatched = true;
  WRITE_AND_WAIT(p, end, 10 * MTU, 50 * MS);
  run_for(p, 50 * MS); /* until all have arrived */
  int requests = 0, others = 0;
  for (int i = 0; i < p->n_tapped; i++) {
    struct mrc_datagram *packet = p->tap[i];
    if (packet->to != 1) continue;
    struct mrc_meta meta = packet->meta;
    meta.src[MRC_ADDRESS_NAT] = 1;
    meta.sport = CHOSEN + 2;
    struct mrc_wire wire;
    CHECK_EQ(mrc_wire_decode(packet->bytes, packet->n, false, &wire), 0);
    if (wire.opcode == MRC_OP_ENDPOINT_REQUEST)
      requests++;
    else
      others++;
    const int drop = mrc_pair_forge(p, 1, packet->bytes, packet->n, &meta);
    CHECK(drop == MRC_DROP_SOURCE || drop == MRC_DROP_SEAL);
    CHECK_EQ(learned(p, end), CHOSEN);
  }
  CHECK(requests > 0 && others > 0);
}

/* A new request that was changed, or comes from elsewhere, moves nothing either. */
TEST(test_nat__a_forged_request_teaches_nothing) {
  PAIR p = open_pair();
  p->tap_room = MRC_PAIR_TAP;
  nat_sport = CHOSEN;
  p->pass = translate;
  const int end = open_qp(p, .memory_bytes = MTU, .seal = MRC_SEAL_AUTH, .nat_sport = GUESS);
  lose_kind(p, 0, MRC_OP_ENDPOINT_REQUEST, 1);
  const struct mrc_probe_attr probe = {.qpn = p->ends[end]->qpn, .timeout_ns = MS};
  CHECK_EQ(mrc_engine_probe_evs(p->hosts[0].engine, &probe, 1, p->now_ns), 1);
  mrc_pair_kick(p, 0);
  run_for(p, 10 * MS);
  CHECK_EQ(p->n_tapped, 1);
  struct mrc_datagram *packet = p->tap[0];
  struct mrc_meta meta = packet->meta;
  meta.sport = CHOSEN;
  meta.src[MRC_ADDRESS_NAT] = 2; /* an address that is not the NAT's */
  CHECK_EQ(mrc_pair_forge(p, 1, packet->bytes, packet->n, &meta), MRC_DROP_SOURCE);
  meta.src[MRC_ADDRESS_NAT] = 1;
  packet->bytes[packet->n - 1] ^= 1;
  CHECK_EQ(mrc_pair_forge(p, 1, packet->bytes, packet->n, &meta), MRC_DROP_SEAL);
  CHECK_EQ(learned(p, end), GUESS);
  packet->bytes[packet->n - 1] ^= 1;
  CHECK_EQ(mrc_pair_forge(p, 1, packet->bytes, packet->n, &meta), 0);
  CHECK_EQ(learned(p, end), CHOSEN);
}

/* Two QPs from behind one NAT, or hosts with one inner address behind two, are peers of their own.
 */
TEST(test_nat__each_qp_is_a_peer) {
  PAIR p = open_pair();
  const int first = open_through(p, MRC_SEAL_AEAD, true);
  const int second = open_through(p, MRC_SEAL_AEAD, false);
  CHECK(inside(p, p->ends[first]->peer)->peer != inside(p, p->ends[second]->peer)->peer);
  CHECK_EQ(learned(p, second), GUESS);
  CHECK(inside(p, first)->peer == inside(p, second)->peer);
}

TEST(test_set_peer__of_a_nat) {
  const struct mrc_peer_source sources[3] = {{.address = {0xFD}, .sport = 1},
                                             {.address = {0xFD, 1}, .sport = 1, .is_nat = 1}};
  const struct mrc_engine_config config = {.seed = 1, .aead = &mrc_sealer};
  const struct mrc_qp_create_attr attr = {.qpn = 7, .sq_depth = 1, .mpr = 128, .max_wimm = 1};
  const struct mrc_ev_attr ev = {.dport = 1, .port = 1, .family = 6};
  const struct mrc_seal_attr seal = {.mode = MRC_SEAL_AEAD, .peer_qpn = 9};
  ENGINE engine = mrc_engine_create(&config);
  CHECK_EQ(mrc_qp_create(engine, &attr), 0);
  CHECK_EQ(mrc_qp_modify(engine, 7, MRC_QP_INIT, NULL, NULL, 0), 0);
  CHECK_EQ(mrc_qp_set_evs(engine, 7, &ev, 1), 0);
  CHECK_EQ(mrc_qp_set_peer(engine, 7, sources, 2), -EINVAL); /* it is plain */
  CHECK_EQ(mrc_qp_set_seal(engine, 7, &seal), 0);
  CHECK_EQ(mrc_qp_set_peer(engine, 7, sources + 1, 1), -EINVAL);
  const struct mrc_peer_source more[3] = {
      sources[0], {.address = {0xFD, 2}, .sport = 1}, sources[1]};
  CHECK_EQ(mrc_qp_set_peer(engine, 7, more, 3), 0);
  const struct mrc_peer *peer = mrc_qps_find(&engine->qps, 7)->peer;
  CHECK_EQ(peer->n_sources, 2);
  CHECK_MEM_EQ(peer->inner.address, sources[0].address, 16);
}
