/* SPDX-License-Identifier: Apache-2.0 */
#include "responder_tx.h"

#include "core/send/burst.h"
#include "reverse.h"
#include "sack_send.h"

/* The current burst if another NACK for this port fits; otherwise a new burst, or 0. */
static struct mrc_burst *burst_for_nack(struct mrc_services *services, struct mrc_qp *qp,
                                        struct mrc_burst *burst, uint8_t port) {
  if (burst != NULL && burst->port == port && mrc_arena_has_room(&services->arena, burst))
    return burst;
  const uint16_t ev = mrc_reverse_choose(services, qp, port);
  return ev == MRC_EV_NONE ? NULL : mrc_burst_open(services, qp, ev, mrc_tclass_control(services));
}

static bool flush_nacks(struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  struct mrc_burst *burst = NULL;
  while (resp->n_nacks > 0) {
    const struct mrc_nack_out *nack = &resp->nacks[resp->n_nacks - 1];
    burst = burst_for_nack(services, qp, burst, nack->port);
    if (burst == NULL) return false;
    struct mrc_wire wire = {.opcode = MRC_OP_NACK,
                            .dest_qpn = qp->attr.rtr.dest_qpn,
                            .psn = nack->psn,
                            .nack = {.reason = nack->reason,
                                     .ev = mrc_services_ev(services, nack->ev),
                                     .spdcid = (uint16_t)qp->qpn,
                                     .dpdcid = (uint16_t)qp->attr.rtr.dest_qpn,
                                     .nack_psn = nack->psn,
                                     .cc_type = MRC_CC_TYPE_NACK,
                                     .tx_timestamp = nack->tx_timestamp}};
    mrc_burst_add(services, burst, &wire, MRC_KIND_NACK, resp->n_nacks - 1u, mrc_qp_has_icrc(qp));
    mrc_trace(services, MRC_TRACE_NACK_OUT, qp->qpn, nack->psn, nack->reason);
    resp->n_nacks--;
  }
  return true;
}

/* Adds the transport ACK to the last burst of this visit if it fits, else to a new burst. */
static bool flush_ack(struct mrc_services *services, struct mrc_qp *qp, int first_burst) {
  struct mrc_responder *resp = &qp->resp;
  if (!resp->ack_wanted) return true;
  const uint8_t syndrome = resp->nak_syndrome != 0 ? resp->nak_syndrome : MRC_SYNDROME_ACK;
  const bool hole = mrc_psn_diff(resp->win.end_psn, resp->win.next_psn) > 0;
  if (hole && syndrome == MRC_SYNDROME_ACK && mrc_services_reads(services, MRC_READING_S5_B)) {
    resp->ack_wanted = false;
    return true;
  }
  struct mrc_wire wire = {.opcode = MRC_OP_ACK,
                          .dest_qpn = qp->attr.rtr.dest_qpn,
                          .psn = mrc_psn_sub(resp->win.next_psn, 1),
                          .aeth = {.syndrome = syndrome, .msn = resp->done_msn}};
  struct mrc_burst *burst = NULL;
  if (services->arena.n_bursts > first_burst) {
    burst = &services->arena.bursts[services->arena.n_bursts - 1];
    if (!mrc_arena_has_room(&services->arena, burst)) burst = NULL;
  }
  if (burst == NULL) {
    const uint16_t ev = mrc_reverse_choose(services, qp, resp->last_port);
    if (ev != MRC_EV_NONE) burst = mrc_burst_open(services, qp, ev, mrc_tclass_control(services));
  }
  if (burst == NULL) return false;
  mrc_burst_add(services, burst, &wire, MRC_KIND_ACK, 0, mrc_qp_has_icrc(qp));
  mrc_trace(services, MRC_TRACE_ACK_OUT, qp->qpn, syndrome, resp->done_msn);
  resp->ack_wanted = false;
  return true;
}

bool mrc_responder_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const int first_burst = services->arena.n_bursts;
  if (qp->state != MRC_QP_ERROR && !flush_nacks(services, qp)) return false;
  if (qp->state != MRC_QP_ERROR && !mrc_sack_flush(services, qp, now_ns)) return false;
  return flush_ack(services, qp, first_burst);
}

void mrc_responder_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet) {
  if (packet->_kind == MRC_KIND_ACK) qp->resp.ack_wanted = true;
  if (packet->_kind == MRC_KIND_SACK) {
    qp->resp.sack_now = true;
    mrc_rxwin_on_refused(&qp->resp.win, packet->_slot);
  }
  /* No NACK was queued since the transmit, so the slots still hold the sent ones. The last one sent
     comes back first. */
  if (packet->_kind == MRC_KIND_NACK)
    qp->resp.nacks[qp->resp.n_nacks++] = qp->resp.nacks[packet->_slot];
  mrc_qp_touch_to_answer(services, qp);
}
