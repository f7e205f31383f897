/* SPDX-License-Identifier: Apache-2.0 */
#include "responder.h"

#include <errno.h>
#include <stdlib.h>

int mrc_responder_init(struct mrc_responder *resp, uint32_t mpr, uint32_t max_wimm) {
  const uint32_t size = mrc_ceil_pow2(max_wimm);
  const uint32_t bits = mrc_max_u32(64, size);
  *resp = (struct mrc_responder){
      .wimms = malloc(size * sizeof *resp->wimms),
      .waiting = {.words = calloc(bits / 64, sizeof(uint64_t)), .mask = bits - 1},
      .wimm_mask = size - 1,
      .sack_deadline_ns = MRC_NEVER};
  if (resp->wimms == NULL || resp->waiting.words == NULL) return -ENOMEM;
  resp->mpr = mpr;
  return mrc_rxwin_init(&resp->win, mpr);
}

void mrc_responder_free(struct mrc_responder *resp) {
  free(resp->wimms);
  free(resp->waiting.words);
  mrc_rxwin_free(&resp->win);
}

void mrc_responder_start(struct mrc_responder *resp, uint32_t first_psn) {
  mrc_rxwin_start(&resp->win, first_psn);
  resp->message_bytes = 0;
}

void mrc_responder_clear(struct mrc_services *services, struct mrc_responder *resp) {
  resp->arrivals = (struct mrc_arrivals){0};
  resp->n_triggers = 0;
  resp->n_nacks = 0;
  resp->sack_now = false;
  mrc_responder_set_deadline(services, resp, MRC_NEVER);
}

/* One SACK covers all packets of a plane, because the requester has recorded the EV of each packet.
   Only a congestion mark needs a SACK that names its EV. */
static bool shares_a_sack(const struct mrc_sack_trigger *t, uint8_t port, uint8_t m, uint32_t ev) {
  return !t->pr && t->port == port && t->m == m && (m == MRC_M_NONE || t->ev == ev);
}

static struct mrc_sack_trigger *new_trigger(struct mrc_responder *resp, uint64_t now_ns) {
  if (resp->n_triggers < MRC_MAX_TRIGGERS)
    resp->n_triggers++;
  else
    resp->sack_now = true; /* the last trigger is overwritten: report its news without one */
  struct mrc_sack_trigger *trigger = &resp->triggers[resp->n_triggers - 1];
  trigger->news_words = 0;
  trigger->first_ns = now_ns;
  trigger->now = false;
  return trigger;
}

/* Writes each field in place: copying a struct would wait until its stores had left the core. */
struct mrc_sack_trigger *mrc_responder_trigger(struct mrc_responder *resp, uint32_t psn,
                                               uint16_t tx_timestamp, const struct mrc_meta *meta,
                                               bool pr, uint64_t now_ns) {
  const uint8_t m = meta->ecn == 3 ? MRC_M_SKIP_ONCE : MRC_M_NONE;
  const uint32_t ev = mrc_meta_ev(meta);
  struct mrc_sack_trigger *found = NULL;
  for (int i = resp->n_triggers - 1; i >= 0 && found == NULL && !pr; i--)
    if (shares_a_sack(&resp->triggers[i], meta->port, m, ev)) found = &resp->triggers[i];
  if (found == NULL) found = new_trigger(resp, now_ns);
  found->arrived_ns = meta->arrived_ns;
  found->psn = psn;
  found->ev = ev;
  found->tx_timestamp = tx_timestamp;
  found->port = meta->port;
  found->m = m;
  found->pr = pr;
  resp->arrived_ns = meta->arrived_ns;
  resp->last_port = meta->port;
  return found;
}

void mrc_responder_queue_nack(struct mrc_responder *resp, const struct mrc_wire *wire,
                              const struct mrc_meta *meta, uint8_t reason) {
  if (resp->n_nacks == MRC_MAX_NACKS) return;
  resp->nacks[resp->n_nacks++] = (struct mrc_nack_out){.psn = wire->psn,
                                                       .ev = mrc_meta_ev(meta),
                                                       .tx_timestamp = wire->tx_timestamp,
                                                       .reason = reason,
                                                       .port = meta->port};
}

bool mrc_responder_stash(struct mrc_responder *resp, uint32_t max_wimm,
                         const struct mrc_wire *wire) {
  const uint16_t ahead = (uint16_t)(wire->rqmsn - (uint16_t)resp->next_rqmsn);
  if (ahead >= max_wimm) return false;
  const uint32_t rqmsn = resp->next_rqmsn + ahead;
  if (mrc_bitmap_test(&resp->waiting, rqmsn)) return false;
  mrc_bitmap_set(&resp->waiting, rqmsn);
  resp->wimms[rqmsn & resp->wimm_mask] = (struct mrc_wimm){
      .imm = wire->imm, .bytes = wire->payload_bytes, .psn = wire->psn & MRC_PSN_MASK};
  return true;
}

bool mrc_responder_deliver(struct mrc_services *services, struct mrc_responder *resp, uint32_t qpn,
                           uint32_t max_wimm) {
  const struct mrc_wimm *wimm = mrc_responder_next_wimm(resp);
  if (resp->wimm_unpolled == max_wimm || !mrc_cq_promise_delivery(&services->cq)) return false;
  const struct mrc_wc wc = {
      .wr_id = resp->next_rqmsn,
      .qpn = qpn,
      .imm = wimm->imm,
      /* The length in the packet headers is only the peer's claim. */
      .bytes = (uint32_t)mrc_min_u64(resp->message_bytes + wimm->bytes, UINT32_MAX),
      .status = MRC_WC_SUCCESS,
      .opcode = MRC_WC_RECV_IMM};
  mrc_cq_push(&services->cq, &wc);
  mrc_trace(services, MRC_TRACE_IMMEDIATE, qpn, wimm->imm, wc.bytes);
  mrc_bitmap_clear(&resp->waiting, resp->next_rqmsn);
  resp->next_rqmsn++;
  resp->wimm_unpolled++;
  return true;
}
