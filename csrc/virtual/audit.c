/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/audit.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/engine.h"
#include "virtual/link.h"

#define FRESH_BIT 0x80 /* clear in bytes that were just placed */
#define EIGHT_TIMES 0x0101010101010101ull

/* ---- Bytes of memory, eight at a time: there are many, and the sanitizers check each access ----
 */

static uint64_t eight(const uint8_t *at) {
  uint64_t bytes;
  memcpy(&bytes, at, sizeof bytes);
  return bytes;
}

/* Whether each byte of `target` is the inverse of its source byte. */
static bool are_inverse(const uint8_t *target, const uint8_t *source, uint64_t n) {
  uint64_t difference = 0;
  uint64_t i = 0;
  for (; n - i >= 8; i += 8)
    difference |= eight(target + i) ^ ~eight(source + i);
  for (; i < n; i++)
    difference |= (uint8_t)(target[i] ^ ~source[i]);
  return difference == 0;
}

static void invert(uint8_t *target, uint64_t n) {
  uint64_t i = 0;
  for (; n - i >= 8; i += 8) {
    const uint64_t inverse = ~eight(target + i);
    memcpy(target + i, &inverse, sizeof inverse);
  }
  for (; i < n; i++)
    target[i] = (uint8_t)~target[i];
}

/* Whether the bits of `mask` are those of `value` in each byte. */
static bool all_have(const uint8_t *bytes, uint64_t n, uint8_t mask, uint8_t value) {
  uint64_t difference = 0;
  uint64_t i = 0;
  for (; n - i >= 8; i += 8)
    difference |= (eight(bytes + i) ^ value * EIGHT_TIMES) & mask * EIGHT_TIMES;
  for (; i < n; i++)
    difference |= (bytes[i] ^ value) & mask;
  return difference == 0;
}

static bool are_filled(const uint8_t *bytes, uint64_t n) {
  return all_have(bytes, n, 0xFF, MRC_AUDIT_FILL);
}

/* ---- The auditor ---- */

void mrc_audit_init(struct mrc_audit *audit, uint64_t memory_bytes, uint64_t seed) {
  audit->prng = (struct mrc_prng){.state = seed};
  audit->memory_bytes = memory_bytes;
  uint64_t n_words = memory_bytes / sizeof(uint64_t) + 1; /* an empty memory has an address too */
  uint8_t *source = malloc(n_words * sizeof(uint64_t));
  uint8_t *guarded = malloc(memory_bytes + 2 * MRC_AUDIT_GUARD);
  mrc_assert(source && guarded);
  audit->source = source;
  memset(guarded, MRC_AUDIT_FILL, memory_bytes + 2 * MRC_AUDIT_GUARD);
  audit->target = guarded + MRC_AUDIT_GUARD;
}

void mrc_audit_free(struct mrc_audit *audit) {
  if (audit->target) free(audit->target - MRC_AUDIT_GUARD);
  free(audit->source);
  free(audit->wrs);
}

/* Source bytes are made when they are posted: many tests send one way only. */
static void make_source(struct mrc_audit *audit) {
  for (; audit->made_bytes < audit->used_bytes; audit->made_bytes += sizeof(uint64_t)) {
    const uint64_t bytes = mrc_prng_next(&audit->prng) & ~(FRESH_BIT * EIGHT_TIMES);
    memcpy(audit->source + audit->made_bytes, &bytes, sizeof bytes);
  }
}

void mrc_audit_posted(struct mrc_audit *audit, const struct mrc_wr *wr) {
  const uint32_t bytes = wr->bytes;
  audit->wrs =
      mrc_grow(audit->wrs, (uint32_t)audit->n_wrs, &audit->wr_capacity, sizeof(*audit->wrs));
  uint64_t before = audit->n_wrs ? audit->wrs[audit->n_wrs - 1].last : 0;
  uint32_t part_bytes = audit->path_mtu;
  if (audit->burst_bytes) part_bytes = mrc_part_bytes(bytes, audit->path_mtu, audit->burst_bytes);
  audit->wrs[audit->n_wrs++] = (struct mrc_audit_wr){.offset = audit->used_bytes,
                                                     .last = before + mrc_parts(bytes, part_bytes),
                                                     .bytes = bytes,
                                                     .imm = wr->imm,
                                                     .has_imm = wr->opcode == MRC_WR_WRITE_IMM,
                                                     .unsignaled = wr->unsignaled != 0,
                                                     .redundant = wr->redundant != 0};
  audit->used_bytes += bytes;
  mrc_assert(audit->used_bytes <= audit->memory_bytes);
  make_source(audit);
}

/* Asserts that every byte of the WRs before `end` was placed exactly once. */
static void verify_until(struct mrc_audit *audit, uint64_t end) {
  if (audit->unwatched) return;
  for (; audit->verified < end; audit->verified++) {
    const struct mrc_audit_wr *wr = &audit->wrs[audit->verified];
    mrc_assert(are_inverse(audit->target + wr->offset, audit->source + wr->offset, wr->bytes));
  }
}

/* A completion at the peer. */
static void immediate(struct mrc_audit *audit, const struct mrc_wc *wc) {
  while (audit->next_imm < audit->n_wrs && !audit->wrs[audit->next_imm].has_imm)
    audit->next_imm++;
  mrc_assert(audit->next_imm < audit->n_wrs);
  const struct mrc_audit_wr *wr = &audit->wrs[audit->next_imm++];
  mrc_assert(wc->status == MRC_WC_SUCCESS);
  mrc_assert(wc->wr_id == audit->n_immediates++); /* in posting order */
  mrc_assert(wc->imm == wr->imm && wc->bytes == wr->bytes);
  verify_until(audit, audit->next_imm); /* an immediate is delivered after all earlier WRs */
}

void mrc_audit_completed(struct mrc_audit *audit, const struct mrc_wc *wc) {
  if (wc->opcode == MRC_WC_RECV_IMM) {
    immediate(audit, wc);
    return;
  }
  /* Takes the unsignaled work requests before this completion, which is theirs too. */
  for (; audit->completed < audit->n_wrs && audit->wrs[audit->completed].unsignaled;
       audit->completed++)
    if (wc->status == MRC_WC_SUCCESS) audit->statuses[MRC_WC_SUCCESS]++;
  mrc_assert(audit->completed < audit->n_wrs);
  const struct mrc_audit_wr *wr = &audit->wrs[audit->completed];
  mrc_assert(wc->wr_id == audit->completed); /* in posting order */
  mrc_assert(wc->opcode == (wr->has_imm ? MRC_WC_WRITE_IMM : MRC_WC_WRITE));
  audit->completed++;
  audit->statuses[wc->status]++;
  if (wc->status != MRC_WC_SUCCESS) return;
  mrc_assert(wc->bytes == wr->bytes);
  mrc_assert(audit->statuses[MRC_WC_SUCCESS] == audit->completed); /* nothing succeeds later */
  verify_until(audit, audit->completed);
}

/* Number of a PSN that is close to number `near`; `first` has number 1. */
static int64_t number_of(uint32_t psn, uint32_t first, uint64_t near) {
  return (int64_t)near + 1 + mrc_psn_diff(psn, mrc_psn_add(first, (uint32_t)near));
}

/* Whether the engine could choose an EV other than `ev`. */
static bool has_other_ev(const struct mrc_audit *audit, uint32_t ev, uint32_t usable_ports) {
  static struct mrc_ev_info infos[MRC_MAX_EVS];
  struct mrc_qp_info qp;
  mrc_assert(mrc_qp_query(audit->engine, audit->qpn, &qp) == 0);
  int n = mrc_qp_query_evs(audit->engine, audit->qpn, infos, MRC_MAX_EVS);
  for (int i = 0; i < n; i++) {
    const struct mrc_ev_info *info = &infos[i];
    if (info->ev == ev || !info->active || info->state != MRC_EV_GOOD) continue;
    if (!(usable_ports >> (info->port - 1) & 1)) continue;
    const struct mrc_plane_info *plane = &qp.planes[info->plane - 1];
    if (!plane->suspended && plane->weight > 0) return true;
  }
  return false;
}

/* The WR of a PSN that was sent. */
static const struct mrc_audit_wr *wr_of(const struct mrc_audit *audit, uint64_t number) {
  uint64_t i = audit->opened;
  while (i > 1 && audit->wrs[i - 2].last >= number)
    i--;
  mrc_assert(i > 0);
  return &audit->wrs[i - 1];
}

static void data_sent(struct mrc_audit *audit, const struct mrc_wire *packet, uint32_t ev,
                      uint32_t port, uint32_t usable_ports) {
  int64_t number = number_of(packet->psn, audit->sq_psn, audit->acked_cum);
  mrc_assert(number > 0);
  mrc_assert((uint64_t)number <= audit->acked_cum + audit->mpr); /* within the MPR */
  /* the requester does not read the memory of a completed WR */
  mrc_assert(!audit->completed || (uint64_t)number > audit->wrs[audit->completed - 1].last);
  struct mrc_audit_sent *sent = &audit->sent[number % MRC_AUDIT_WINDOW];
  const bool seen = sent->number == (uint64_t)number, again = packet->rtx;
  mrc_assert(seen || !again);
  audit->data_packets++;
  audit->sent_planes |= 1u << (port - 1);
  audit->retransmitted += again;
  if (seen && !again) { /* a copy: once, of a redundant write, on another EV, if any */
    mrc_assert(!sent->repeated && wr_of(audit, (uint64_t)number)->redundant);
    mrc_assert(sent->ev != ev || !has_other_ev(audit, ev, usable_ports));
    mrc_assert(sent->bytes == packet->payload_bytes);
    sent->repeated = true;
    sent->ev = UINT32_MAX; /* the kernel may have refused the first: either may be the copy */
    audit->copies++;
    return;
  }
  if (again) {
    sent->repeated = true;
    mrc_assert(sent->bytes == packet->payload_bytes);
    mrc_assert(sent->ev != ev ||
               !has_other_ev(audit, ev, usable_ports)); /* on another EV, if any */
    sent->ev = ev;
    return;
  }
  audit->sent_max = mrc_max_u64(audit->sent_max, (uint64_t)number);
  audit->unacked_bytes += packet->payload_bytes;
  /* Counts the WRs that this first transmission opens. */
  while (audit->opened < audit->n_wrs &&
         (audit->opened ? audit->wrs[audit->opened - 1].last : 0) < (uint64_t)number)
    audit->wimm_opened += audit->wrs[audit->opened++].has_imm;
  mrc_assert(audit->wimm_opened - audit->wimm_acked <= audit->max_wimm);
  *sent =
      (struct mrc_audit_sent){.number = (uint64_t)number, .ev = ev, .bytes = packet->payload_bytes};
}

static void acked(struct mrc_audit *audit, uint64_t number) {
  struct mrc_audit_sent *sent = &audit->sent[number % MRC_AUDIT_WINDOW];
  mrc_assert(sent->number == number); /* only sent PSNs are acknowledged */
  if (sent->acked) return;
  sent->acked = true;
  audit->unacked_bytes -= sent->bytes;
}

static void acked_until(struct mrc_audit *audit, uint64_t cum) {
  while (audit->acked_cum < cum)
    acked(audit, ++audit->acked_cum);
}

static void sack_received(struct mrc_audit *audit, const struct mrc_wire *packet) {
  int64_t cum = number_of(packet->psn, audit->sq_psn, audit->acked_cum);
  int64_t base = cum + packet->sack.sack_offset;
  for (int i = 0; i < 64; i++) {
    bool in_window = base + i > (int64_t)audit->acked_cum;
    if (in_window && packet->sack.bitmap >> i & 1) acked(audit, (uint64_t)(base + i));
  }
  if (cum > 0) acked_until(audit, (uint64_t)cum);
}

/* Number of WRs that an ACK completes. MSNs have 24 bits; this one is close to `near`. */
static int64_t done_of(const struct mrc_wire *packet, uint64_t near) {
  return (int64_t)near + mrc_psn_diff(packet->aeth.msn, near & MRC_PSN_MASK);
}

static void ack_received(struct mrc_audit *audit, const struct mrc_wire *packet) {
  int64_t done = done_of(packet, audit->completed);
  mrc_assert(done <= (int64_t)audit->n_wrs);
  for (; (int64_t)audit->acked < done; audit->acked++)
    audit->wimm_acked += audit->wrs[audit->acked].has_imm;
  if (done > 0) acked_until(audit, audit->wrs[done - 1].last);
}

static void ack_sent(const struct mrc_audit *audit, const struct mrc_audit *peer,
                     const struct mrc_wire *packet) {
  int64_t done = done_of(packet, peer->completed);
  mrc_assert(done >= 0 && done <= (int64_t)peer->n_wrs);
  mrc_assert(done == 0 || peer->wrs[done - 1].last <= audit->received_cum); /* all received */
}

static bool was_received(const struct mrc_audit *audit, int64_t number) {
  if (number <= (int64_t)audit->received_cum) return true;
  return audit->received[number % MRC_AUDIT_WINDOW] == (uint64_t)number;
}

static void sack_sent(struct mrc_audit *audit, const struct mrc_wire *packet) {
  int64_t cum = number_of(packet->psn, audit->rq_psn, audit->received_cum);
  mrc_assert(cum <= (int64_t)audit->received_cum); /* only received PSNs are acknowledged */
  mrc_assert(cum >= (int64_t)audit->sacked_cum);   /* it never decreases */
  audit->sacked_cum = (uint64_t)cum;
  for (int i = 0; i < 64; i++) {
    if (!(packet->sack.bitmap >> i & 1)) continue;
    mrc_assert(was_received(audit, cum + packet->sack.sack_offset + i));
  }
}

/* Inverts the bytes that the engine has just placed; false when it placed none of them. */
static bool invert_placed(struct mrc_audit *peer, const struct mrc_wire *packet) {
  uint64_t offset = packet->va - (uint64_t)(uintptr_t)peer->target;
  mrc_assert(offset <= peer->memory_bytes);
  mrc_assert(packet->payload_bytes <= peer->memory_bytes - offset);
  uint8_t *placed = peer->target + offset;
  if (packet->payload_bytes == 0 || placed[0] & FRESH_BIT) return false;
  invert(placed, packet->payload_bytes);
  return true;
}

static void data_received(struct mrc_audit *audit, struct mrc_audit *peer,
                          const struct mrc_wire *packet) {
  int64_t number = number_of(packet->psn, audit->rq_psn, audit->received_cum);
  mrc_assert(number > 0 && !was_received(audit, number)); /* placed once */
  mrc_assert(invert_placed(peer, packet) == (packet->payload_bytes > 0));
  audit->received[number % MRC_AUDIT_WINDOW] = (uint64_t)number;
  while (was_received(audit, (int64_t)audit->received_cum + 1))
    audit->received_cum++;
}

void mrc_audit_sent(struct mrc_audit *audit, const struct mrc_audit *peer,
                    const struct mrc_wire *packet, uint32_t ev, uint32_t port,
                    uint32_t usable_ports) {
  if (mrc_opcode_is_data(packet->opcode)) data_sent(audit, packet, ev, port, usable_ports);
  if (packet->opcode == MRC_OP_SACK) sack_sent(audit, packet);
  if (packet->opcode == MRC_OP_ACK) ack_sent(audit, peer, packet);
}

void mrc_audit_received(struct mrc_audit *audit, struct mrc_audit *peer,
                        const struct mrc_wire *packet) {
  if (mrc_opcode_is_data(packet->opcode)) data_received(audit, peer, packet);
  if (packet->opcode == MRC_OP_SACK) sack_received(audit, packet);
  if (packet->opcode == MRC_OP_ACK) ack_received(audit, packet);
}

/* A window that has just shrunk may be exceeded, but then the engine sends nothing. One packet in
   flight is always allowed. */
static void check_window(const struct mrc_audit *audit, uint64_t inflight_bytes,
                         uint64_t cwnd_bytes) {
  mrc_assert(inflight_bytes <= mrc_max_u64(cwnd_bytes, audit->path_mtu));
}

/* Each plane has its own window, or all planes share one. */
static void check_windows(const struct mrc_audit *audit, const struct mrc_qp_info *info) {
  uint64_t sum_bytes = 0;
  for (int i = 0; i < MRC_MAX_PORTS; i++)
    sum_bytes += info->planes[i].cwnd_bytes;
  if (sum_bytes != info->cwnd_bytes && audit->sent_planes != 0) {
    check_window(audit, info->inflight_bytes, info->cwnd_bytes);
    return;
  }
  MRC_EACH_BIT(plane, audit->sent_planes)
    check_window(audit, info->planes[plane].inflight_bytes, info->planes[plane].cwnd_bytes);
}

void mrc_audit_state(struct mrc_audit *audit) {
  struct mrc_qp_info info;
  mrc_assert(mrc_qp_query(audit->engine, audit->qpn, &info) == 0);
  uint64_t sum = 0;
  for (int i = 0; i < MRC_MAX_PORTS; i++)
    sum += info.planes[i].inflight_bytes;
  mrc_assert(sum == info.inflight_bytes);
  mrc_assert(info.inflight_bytes <= audit->unacked_bytes);
  check_windows(audit, &info);
  audit->sent_planes = 0;
  mrc_assert(info.outstanding <= audit->n_wrs - audit->completed);
}

void mrc_audit_memory(const struct mrc_audit *audit) {
  const uint8_t *target = audit->target;
  const uint64_t used = audit->used_bytes;
  mrc_assert(are_filled(target - MRC_AUDIT_GUARD, MRC_AUDIT_GUARD));
  mrc_assert(are_filled(target + audit->memory_bytes, MRC_AUDIT_GUARD));
  if (audit->unwatched) return;
  mrc_assert(all_have(target, used, FRESH_BIT, FRESH_BIT));
  mrc_assert(are_filled(target + used, audit->memory_bytes - used));
}
