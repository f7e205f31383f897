/* SPDX-License-Identifier: Apache-2.0 */
/* A new QP has the QPN of an old one: packets still in flight to the old QP change nothing. */
#include "core/engine.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

enum { APART = 1 << 20 }; /* first PSNs of two QPs, random, so almost always far apart */

static const uint8_t four[4] = {0x11, 0x22, 0x33, 0x44};

/* Host 1 has two packets in flight and a reliability probe outstanding; it receives only forged
   packets from host 0. */
static int open_waiting(struct mrc_pair *p) {
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 2 * MTU), 0);
  while (!inside(p, p->ends[end]->peer)->req.probe.outstanding)
    run_for(p, 100 * US);
  return end;
}

/* A packet of host 0's old QP, `away` PSNs from the current PSN of the new QP. */
static struct forge stale(struct mrc_pair *p, int end, enum mrc_opcode opcode, uint32_t away) {
  const struct mrc_requester *req = &inside(p, p->ends[end]->peer)->req;
  const uint32_t psn = mrc_psn_add(req->win.una_psn, away);
  struct forge forge = make_forge(p, end, four);
  const uint32_t ev = inside(p, p->ends[end]->peer)->evset.evs[0].value;
  const struct mrc_wire data = forge.wire;
  forge.wire = (struct mrc_wire){.opcode = opcode, .dest_qpn = data.dest_qpn, .psn = psn};
  if (opcode == MRC_OP_WRITE_ONLY) {
    forge.wire = data;
    forge.wire.psn = mrc_psn_add(data.psn, away);
  } else if (opcode == MRC_OP_SACK) {
    forge.wire.sack = (struct mrc_sack){.cum_psn = psn,
                                        .sack_offset = 1,
                                        .bitmap = 0xF,
                                        .m = MRC_M_ALWAYS_SKIP,
                                        .ev = ev,
                                        .mpr = 1,
                                        .restore_cwnd = true};
  } else if (opcode == MRC_OP_ACK) {
    forge.wire.aeth.syndrome = MRC_SYNDROME_ACK;
  } else if (opcode == MRC_OP_NACK) {
    forge.wire.nack =
        (struct mrc_nack){.reason = MRC_NACK_UNEXP_EVENT, .ev = ev, .nack_psn = psn, .cc_type = 2};
  }
  return forge;
}

/* The packet changes nothing but counters and the trace. */
static void check_unchanged(struct mrc_pair *p, int end, struct forge forge) {
  struct mrc_qp *qp = inside(p, p->ends[end]->peer);
  static struct mrc_qp before;
  before = *qp;
  const uint8_t ev_state = qp->evset.evs[0].state;
  const int drop = send_forge(p, &forge);
  CHECK(drop == MRC_DROP_STALE || drop == MRC_DROP_ACK_UNSENT || drop == MRC_DROP_PSN_WINDOW ||
        drop == MRC_DROP_DUPLICATE);
  CHECK_EQ(qp->state, MRC_QP_RTS);
  CHECK_MEM_EQ(&qp->req, &before.req, sizeof qp->req);
  CHECK_MEM_EQ(&qp->resp.win, &before.resp.win, sizeof qp->resp.win);
  CHECK_EQ(qp->resp.received_bytes, before.resp.received_bytes);
  CHECK_EQ(qp->evset.evs[0].state, ev_state);
}

TEST(test_stale__packets_change_nothing) {
  static const enum mrc_opcode opcodes[] = {MRC_OP_WRITE_ONLY, MRC_OP_SACK, MRC_OP_NACK,
                                            MRC_OP_ACK};
  static const uint32_t away[] = {APART, -APART & MRC_PSN_MASK};
  for (size_t row = 0; row < 2 * sizeof opcodes / sizeof opcodes[0]; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair();
    const int end = open_waiting(p);
    check_unchanged(p, end, stale(p, end, opcodes[row / 2], away[row % 2]));
    mrc_pair_destroy(p);
  }
}

/* An old acknowledgement may have a plausible message number, and an old answer a plausible probe
   id. An old NAK would end the QP. */
TEST(test_stale__acks_and_probe_answers_with_likely_numbers) {
  for (int row = 0; row < 3; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair();
    const int end = open_waiting(p);
    const struct mrc_requester *req = &inside(p, p->ends[end]->peer)->req;
    struct forge forge = stale(p, end, row == 2 ? MRC_OP_SACK : MRC_OP_ACK, -APART & MRC_PSN_MASK);
    if (row == 2) {
      forge.wire.sack.pr = true;
      forge.wire.sack.ack_psn_offset = (int16_t)req->probe.id;
    } else {
      forge.wire.aeth.syndrome = row == 0 ? MRC_SYNDROME_ACK : MRC_SYNDROME_NAK_REM_OP;
      forge.wire.aeth.msn = req->acked_msn + (row == 0);
    }
    check_unchanged(p, end, forge);
    mrc_pair_destroy(p);
  }
}

/* An old probe is answered and has no other effect. */
TEST(test_stale__probe_is_answered_and_forgotten) {
  struct mrc_pair *p = open_pair();
  const int end = open_waiting(p);
  struct mrc_qp *qp = inside(p, p->ends[end]->peer);
  const struct forge forge = stale(p, end, MRC_OP_PROBE, 0);
  static struct mrc_qp before;
  before = *qp;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
  CHECK_MEM_EQ(&qp->req, &before.req, sizeof qp->req);
  CHECK_MEM_EQ(&qp->resp.win, &before.resp.win, sizeof qp->resp.win);
  CHECK_EQ(qp->state, MRC_QP_RTS);
  mrc_pair_destroy(p);
}
