/* SPDX-License-Identifier: Apache-2.0 */
#include "rc/incoming.h"

#include "rc/outgoing.h"

/* ---- credits ---- */

/* The peer's count of the receives that it has granted, by the bits of `mask`. */
static bool on_granted(struct mrc_rc *rc, uint32_t count, uint32_t mask) {
  const uint32_t granted = rc->granted + ((count - rc->granted) & mask);
  if (granted - rc->messages > MRC_RC_MOST_GRANTED) return false;
  rc->granted = granted;
  return true;
}

/* The peer's count of the messages that it has posted. */
static bool on_wanted(struct mrc_rc *rc, uint32_t count, uint32_t mask) {
  const uint32_t wanted = rc->their_wanted + ((count - rc->their_wanted) & mask);
  if (wanted - rc->arrived > MRC_RC_MOST_GRANTED) return false;
  rc->their_wanted = wanted;
  if ((int32_t)(wanted - rc->grants) > 0) rc->owner->wants(rc->user, wanted - rc->grants);
  return true;
}

/* ---- messages ---- */

/* The peer uses a receive. False: it was not granted one. */
static bool use_receive(struct mrc_rc *rc) {
  if (rc->receiving || rc->arrived == rc->grants_told) return false;
  rc->arrived++;
  return true;
}

static void refuse(struct mrc_rc *rc, enum mrc_wc_status status) {
  if (status == MRC_WC_SUCCESS) return;
  rc->refusal = (uint8_t)status;
  rc->ended = true;
}

/* Bytes of the message that arrives. */
static bool on_bytes(struct mrc_rc *rc, const uint8_t *bytes, uint32_t n) {
  if (!rc->receiving || n > rc->message.bytes - rc->received) return false;
  if (n > 0) refuse(rc, rc->owner->receive(rc->user, rc->received, bytes, n));
  if (rc->ended) return true;
  rc->received += n;
  if (rc->received < rc->message.bytes) return true;
  rc->receiving = false;
  rc->owner->received(rc->user, &rc->message);
  return true;
}

static struct mrc_rc_message message_of(const struct mrc_rc_record *record) {
  return (struct mrc_rc_message){.bytes = record->total,
                                 .imm = record->imm,
                                 .with_imm = record->flags & MRC_RC_WITH_IMM,
                                 .solicited = record->flags & MRC_RC_SOLICITED,
                                 .written = record->kind == MRC_RC_WROTE};
}

static bool on_send(struct mrc_rc *rc, const struct mrc_rc_record *record, const uint8_t *bytes) {
  if (!use_receive(rc)) return false;
  rc->message = message_of(record);
  rc->receiving = true;
  rc->received = 0;
  refuse(rc, rc->owner->begin(rc->user, record->total));
  return rc->ended || on_bytes(rc, bytes, record->bytes);
}

static bool on_wrote(struct mrc_rc *rc, const struct mrc_rc_record *record) {
  if (!use_receive(rc)) return false;
  const struct mrc_rc_message message = message_of(record);
  rc->owner->received(rc->user, &message);
  return true;
}

/* ---- questions and answers ---- */

static bool on_question(struct mrc_rc *rc, const struct mrc_rc_record *record) {
  if (rc->asked_tail - rc->asked_head == MRC_RC_ANSWERS) return false;
  rc->asked[rc->asked_tail++ % MRC_RC_ANSWERS] =
      (struct mrc_rc_asked){.kind = record->kind,
                            .rkey = record->rkey,
                            .bytes = record->total,
                            .operation = record->operation,
                            .va = record->va,
                            .value = record->value,
                            .swap = record->swap};
  return true;
}

/* The oldest request without an answer; NULL: there is none. */
static struct mrc_rc_request *oldest(const struct mrc_rc *rc, uint32_t *place) {
  if (rc->asking_head == rc->asking_tail) return NULL;
  *place = rc->asking[rc->asking_head % MRC_RC_ANSWERS];
  return mrc_rc_request_at(rc, *place);
}

static void end_question(struct mrc_rc *rc, struct mrc_rc_request *request,
                         enum mrc_wc_status status) {
  request->status = (uint8_t)status;
  request->answered = true;
  rc->asking_head++;
  rc->answered = 0;
}

static bool on_data(struct mrc_rc *rc, const uint8_t *bytes, uint32_t n) {
  uint32_t place;
  struct mrc_rc_request *request = oldest(rc, &place);
  if (request == NULL || request->kind != MRC_RC_DO_READ) return false;
  if (n > request->bytes - rc->answered) return false;
  if (n > 0 && !rc->owner->scatter(rc->user, place, rc->answered, bytes, n))
    request->status = MRC_WC_LOC_PROT_ERR; /* the rest of its answer means nothing */
  rc->answered += n;
  if (rc->answered == request->bytes) end_question(rc, request, request->status);
  return true;
}

static bool on_value(struct mrc_rc *rc, uint64_t value) {
  uint32_t place;
  struct mrc_rc_request *request = oldest(rc, &place);
  if (request == NULL || request->kind == MRC_RC_DO_READ) return false;
  const bool good = rc->owner->scatter(rc->user, place, 0, (const uint8_t *)&value, sizeof value);
  end_question(rc, request, good ? MRC_WC_SUCCESS : MRC_WC_LOC_PROT_ERR);
  return true;
}

/* What a peer may say went wrong. */
static enum mrc_wc_status status_of(uint8_t status) {
  const bool known = status == MRC_WC_REM_ACCESS_ERR || status == MRC_WC_REM_INV_REQ_ERR;
  return known ? (enum mrc_wc_status)status : MRC_WC_REM_OP_ERR;
}

static bool on_refused(struct mrc_rc *rc, uint8_t status) {
  uint32_t place;
  struct mrc_rc_request *request = oldest(rc, &place);
  if (request == NULL) return false;
  end_question(rc, request, status_of(status));
  return true;
}

static bool on_failed(struct mrc_rc *rc, uint8_t status) {
  rc->ended = true;
  rc->owner->failed(rc->user, status_of(status));
  return true;
}

/* ---- frames ---- */

static bool on_record(struct mrc_rc *rc, const struct mrc_rc_record *record, const uint8_t *bytes) {
  switch ((enum mrc_rc_kind)record->kind) {
    case MRC_RC_SEND:
      return on_send(rc, record, bytes);
    case MRC_RC_MORE:
      return record->bytes > 0 && on_bytes(rc, bytes, record->bytes);
    case MRC_RC_WROTE:
      return on_wrote(rc, record);
    case MRC_RC_READ:
    case MRC_RC_ATOMIC:
      return on_question(rc, record);
    case MRC_RC_DATA:
      return on_data(rc, bytes, record->bytes);
    case MRC_RC_VALUE:
      return on_value(rc, record->value);
    case MRC_RC_REFUSED:
      return on_refused(rc, record->status);
    case MRC_RC_FAILED:
      return on_failed(rc, record->status);
  }
  return false;
}

static bool read_frame(struct mrc_rc *rc, const uint8_t *frame, uint32_t size) {
  const struct mrc_rc_header header = mrc_rc_get_header(frame);
  if (!mrc_slots_credit(&rc->slots, header.read, UINT32_MAX)) return false;
  if (!on_granted(rc, header.granted, UINT32_MAX)) return false;
  if (!on_wanted(rc, header.wanted, UINT32_MAX)) return false;
  for (uint32_t at = MRC_RC_FRAME_HEADER; at < size && !rc->ended;) {
    struct mrc_rc_record record;
    const size_t bytes = mrc_rc_decode(frame + at, size - at, &record);
    if (bytes == 0) return false;
    if (!on_record(rc, &record, frame + at + mrc_rc_fields(record.kind))) return false;
    at += (uint32_t)bytes;
  }
  mrc_rc_settle(rc);
  return true;
}

static bool on_frame(struct mrc_rc *rc, uint32_t number, uint32_t bytes) {
  if (!mrc_slots_is_next(&rc->slots, number, MRC_RC_NUMBER)) return false;
  if (!mrc_slots_granted(&rc->slots)) return false;
  if (bytes < MRC_RC_FRAME_HEADER || bytes > MRC_RC_SLOT_BYTES) return false;
  const uint32_t place = mrc_slots_place(&rc->slots, rc->slots.arrived++);
  if (!read_frame(rc, rc->inbox + place, bytes)) return false;
  rc->slots.freed++;
  return true;
}

bool mrc_rc_take(struct mrc_rc *rc, uint32_t imm, uint32_t bytes) {
  const uint32_t number = imm & MRC_RC_NUMBER;
  if (rc->ended && imm >> 30 != MRC_RC_IMM_READ) return true; /* the refusal may need a slot */
  switch ((enum mrc_rc_imm)(imm >> 30)) {
    case MRC_RC_IMM_FRAME:
      return on_frame(rc, number, bytes);
    case MRC_RC_IMM_READ:
      return mrc_slots_credit(&rc->slots, number, MRC_RC_NUMBER);
    case MRC_RC_IMM_GRANTED:
      return on_granted(rc, number, MRC_RC_NUMBER);
    case MRC_RC_IMM_WANTED:
      return on_wanted(rc, number, MRC_RC_NUMBER);
  }
  return false;
}
