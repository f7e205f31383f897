/* SPDX-License-Identifier: Apache-2.0 */
#include "rc/outgoing.h"

/* What a work request was: the upper half of its wr_id. The lower is its place or number. */
enum what { WRITE, FRAME, CREDIT };

enum { LEAST_PART = 512 }; /* a message does not begin in less than this, unless it fits */

static uint64_t wr_id(enum what what, uint32_t number) { return (uint64_t)what << 32 | number; }

/* A frame that is being filled. */
struct frame {
  uint8_t *bytes;
  uint32_t n;
  uint32_t end; /* of the part that may be filled */
};

static uint32_t room(const struct frame *frame) { return frame->end - frame->n; }

static void put(struct frame *frame, const struct mrc_rc_record *record) {
  frame->n += (uint32_t)mrc_rc_encode(record, frame->bytes + frame->n);
}

/* Closes a record whose `bytes` were copied behind its fields. */
static void pad(struct frame *frame, uint32_t bytes) {
  frame->n += bytes;
  for (; frame->n % 8 != 0; frame->n++)
    frame->bytes[frame->n] = 0;
}

/* How many of `left` bytes fit behind the fields of a record; 0: not even a part worth it. */
static uint32_t part(const struct frame *frame, uint8_t kind, uint32_t left) {
  const size_t fields = mrc_rc_fields(kind);
  if (room(frame) < fields) return 0;
  const uint32_t fit = (room(frame) - (uint32_t)fields) & ~7u;
  if (left <= fit) return left;
  return fit < LEAST_PART ? 0 : fit;
}

static bool fits(const struct frame *frame, uint8_t kind) {
  return room(frame) >= mrc_rc_fields(kind);
}

/* ---- requests ---- */

static void advance(struct mrc_rc *rc) {
  rc->next++;
  rc->sent = 0;
  rc->begun = false;
}

/* Starts a WRITE: its bytes go from memory to memory. */
static void start_write(struct mrc_rc *rc, struct mrc_rc_request *request) {
  if (rc->begun) return;
  rc->begun = true;
  if (request->bytes == 0) {
    request->acked = !request->with_imm;
    return;
  }
  const struct mrc_wr wr = {.wr_id = wr_id(WRITE, rc->next),
                            .local = request->local,
                            .lkey = request->lkey,
                            .va = request->va,
                            .rkey = request->rkey,
                            .bytes = request->bytes,
                            .opcode = MRC_WR_WRITE};
  rc->owner->post(rc->user, &wr);
}

static uint8_t flags_of(const struct mrc_rc_request *request) {
  return (uint8_t)((request->with_imm ? MRC_RC_WITH_IMM : 0) |
                   (request->solicited ? MRC_RC_SOLICITED : 0));
}

/* The next request is a WRITE. False: it has to wait. */
static bool put_write(struct mrc_rc *rc, struct frame *frame, struct mrc_rc_request *request) {
  if (request->with_imm && (mrc_rc_is_starved(rc) || !fits(frame, MRC_RC_WROTE))) return false;
  start_write(rc, request);
  if (request->with_imm) {
    put(frame, &(struct mrc_rc_record){.kind = MRC_RC_WROTE,
                                       .flags = flags_of(request),
                                       .total = request->bytes,
                                       .imm = request->imm});
    rc->messages++;
  }
  advance(rc);
  return true;
}

/* Puts a part of a SEND. False: the rest has to wait. */
static bool put_send(struct mrc_rc *rc, struct frame *frame, const struct mrc_rc_request *request) {
  const uint8_t kind = rc->begun ? MRC_RC_MORE : MRC_RC_SEND;
  const uint32_t left = request->bytes - rc->sent;
  const uint32_t bytes = part(frame, kind, left);
  if (mrc_rc_is_starved(rc) && !rc->begun) return false;
  if (bytes == 0 && (left > 0 || !fits(frame, kind))) return false;
  uint8_t *to = frame->bytes + frame->n + mrc_rc_fields(kind);
  if (bytes > 0 && !rc->owner->gather(rc->user, rc->next, rc->sent, to, bytes)) {
    rc->wrong = MRC_WC_LOC_PROT_ERR;
    return false;
  }
  put(frame, &(struct mrc_rc_record){.kind = kind,
                                     .flags = flags_of(request),
                                     .bytes = bytes,
                                     .total = request->bytes,
                                     .imm = request->imm});
  pad(frame, bytes);
  if (!rc->begun) rc->messages++;
  rc->begun = true;
  rc->sent += bytes;
  if (rc->sent < request->bytes) return false;
  advance(rc);
  return true;
}

/* Asks for a READ or ATOMIC. */
static bool put_question(struct mrc_rc *rc, struct frame *frame,
                         const struct mrc_rc_request *request) {
  const uint8_t kind = request->kind == MRC_RC_DO_READ ? MRC_RC_READ : MRC_RC_ATOMIC;
  if (rc->asking_tail - rc->asking_head == rc->most_asking || !fits(frame, kind)) return false;
  put(frame, &(struct mrc_rc_record){.kind = kind,
                                     .total = request->bytes,
                                     .rkey = request->rkey,
                                     .va = request->va,
                                     .operation = request->kind == MRC_RC_DO_FETCH_ADD
                                                      ? MRC_RC_FETCH_ADD
                                                      : MRC_RC_COMPARE_SWAP,
                                     .value = request->value,
                                     .swap = request->swap});
  rc->asking[rc->asking_tail++ % MRC_RC_ANSWERS] = rc->next;
  advance(rc);
  return true;
}

/* Puts requests in their order. Without a frame only WRITEs go. */
static void put_requests(struct mrc_rc *rc, struct frame *frame) {
  bool goes = true;
  while (goes && rc->next != rc->tail && rc->wrong == 0) {
    struct mrc_rc_request *request = mrc_rc_request_at(rc, rc->next);
    if (request->fenced && rc->asking_head != rc->asking_tail) return;
    if (request->kind == MRC_RC_DO_WRITE)
      goes = put_write(rc, frame, request);
    else if (request->kind == MRC_RC_DO_SEND)
      goes = put_send(rc, frame, request);
    else
      goes = put_question(rc, frame, request);
  }
}

/* ---- answers ---- */

static void put_refused(struct mrc_rc *rc, struct frame *frame, enum mrc_wc_status status) {
  put(frame, &(struct mrc_rc_record){.kind = MRC_RC_REFUSED, .status = (uint8_t)status});
  rc->asked_head = rc->asked_tail; /* the peer's end fails */
  rc->asked_sent = 0;
}

static void answered(struct mrc_rc *rc) {
  rc->asked_head++;
  rc->asked_sent = 0;
}

/* Puts a part of what a READ asked for. False: the rest has to wait. */
static bool put_data(struct mrc_rc *rc, struct frame *frame, const struct mrc_rc_asked *asked) {
  const uint32_t left = asked->bytes - rc->asked_sent;
  const uint32_t bytes = part(frame, MRC_RC_DATA, left);
  if ((bytes == 0 && left > 0) || !fits(frame, MRC_RC_DATA)) return false;
  const uint64_t va = asked->va + rc->asked_sent;
  uint8_t *to = frame->bytes + frame->n + mrc_rc_fields(MRC_RC_DATA);
  if (bytes > 0 && !rc->owner->read(rc->user, asked->rkey, va, to, bytes)) {
    put_refused(rc, frame, MRC_WC_REM_ACCESS_ERR);
    return false;
  }
  put(frame, &(struct mrc_rc_record){.kind = MRC_RC_DATA, .bytes = bytes});
  pad(frame, bytes);
  rc->asked_sent += bytes;
  if (bytes < left) return false;
  answered(rc);
  return true;
}

static bool put_value(struct mrc_rc *rc, struct frame *frame, const struct mrc_rc_asked *asked) {
  struct mrc_rc_record record = {.kind = MRC_RC_VALUE};
  if (!fits(frame, MRC_RC_VALUE)) return false;
  const enum mrc_wc_status status = rc->owner->atomic(rc->user, asked, &record.value);
  if (status != MRC_WC_SUCCESS) {
    put_refused(rc, frame, status);
    return false;
  }
  put(frame, &record);
  answered(rc);
  return true;
}

static void put_answers(struct mrc_rc *rc, struct frame *frame) {
  bool goes = true;
  while (goes && rc->asked_head != rc->asked_tail) {
    const struct mrc_rc_asked *asked = &rc->asked[rc->asked_head % MRC_RC_ANSWERS];
    goes = asked->kind == MRC_RC_READ ? put_data(rc, frame, asked) : put_value(rc, frame, asked);
  }
}

/* ---- frames ---- */

/* Half of a frame is for answers as long as requests wait too. Returns its bytes. */
static uint32_t fill(struct mrc_rc *rc, uint8_t *bytes) {
  struct frame frame = {.bytes = bytes, .n = MRC_RC_FRAME_HEADER, .end = MRC_RC_SLOT_BYTES / 2};
  if (rc->refusal != 0) {
    put(&frame, &(struct mrc_rc_record){.kind = MRC_RC_FAILED, .status = rc->refusal});
    rc->refusal = 0;
    return frame.n;
  }
  put_answers(rc, &frame);
  frame.end = MRC_RC_SLOT_BYTES;
  put_requests(rc, &frame);
  put_answers(rc, &frame);
  return frame.n;
}

static void tell_credits(struct mrc_rc *rc) {
  rc->slots.told = rc->slots.freed;
  rc->grants_told = rc->grants;
  rc->wanted_told = rc->wanted;
}

static void send_frame(struct mrc_rc *rc, uint8_t *bytes, uint32_t place, uint32_t n) {
  const struct mrc_rc_header header = {
      .read = rc->slots.freed, .granted = rc->grants, .wanted = rc->wanted};
  mrc_rc_put_header(&header, bytes);
  tell_credits(rc);
  const uint32_t number = rc->slots.sent++;
  rc->frame_next[number % MRC_RC_SLOTS] = rc->next;
  const struct mrc_wr wr = {.wr_id = wr_id(FRAME, number),
                            .local = (uintptr_t)bytes,
                            .lkey = rc->outbox_key,
                            .va = rc->their_inbox + place,
                            .rkey = rc->their_rkey,
                            .bytes = n,
                            .imm = mrc_rc_imm(MRC_RC_IMM_FRAME, number),
                            .opcode = MRC_WR_WRITE_IMM};
  rc->owner->post(rc->user, &wr);
}

static void send_frames(struct mrc_rc *rc) {
  while (mrc_slots_may_send(&rc->slots) && rc->slots.sent - rc->frames_done < MRC_RC_SLOTS) {
    const uint32_t place = mrc_slots_place(&rc->slots, rc->slots.sent);
    uint8_t *bytes = rc->outbox + place;
    const uint32_t n = fill(rc, bytes);
    if (n == MRC_RC_FRAME_HEADER) return;
    send_frame(rc, bytes, place, n);
  }
  struct frame none = {0};
  if (!rc->ended) put_requests(rc, &none);
}

/* ---- credits ---- */

static void send_credit(struct mrc_rc *rc, enum mrc_rc_imm what, uint32_t number) {
  const struct mrc_wr wr = {
      .wr_id = wr_id(CREDIT, 0), .imm = mrc_rc_imm(what, number), .opcode = MRC_WR_WRITE_IMM};
  rc->credits++;
  rc->owner->post(rc->user, &wr);
}

/* The peer knows of at most half of the receives that it may use. */
static bool owes_grants(const struct mrc_rc *rc) {
  const uint32_t left = rc->grants_told - rc->arrived;
  return rc->grants != rc->grants_told && left <= (rc->grants - rc->arrived) / 2;
}

static void send_credits(struct mrc_rc *rc) {
  if (rc->credits < MRC_RC_CREDITS && mrc_slots_owe(&rc->slots)) {
    rc->slots.told = rc->slots.freed;
    send_credit(rc, MRC_RC_IMM_READ, rc->slots.freed);
  }
  if (rc->credits < MRC_RC_CREDITS && owes_grants(rc)) {
    rc->grants_told = rc->grants;
    send_credit(rc, MRC_RC_IMM_GRANTED, rc->grants);
  }
  if (rc->credits < MRC_RC_CREDITS && rc->their_receives_shared && mrc_rc_is_starved(rc) &&
      rc->wanted != rc->wanted_told) {
    rc->wanted_told = rc->wanted;
    send_credit(rc, MRC_RC_IMM_WANTED, rc->wanted);
  }
}

void mrc_rc_prod(struct mrc_rc *rc) {
  if (!rc->connected || rc->ended || rc->credits > 0) return;
  rc->grants_told = rc->grants;
  send_credit(rc, MRC_RC_IMM_GRANTED, rc->grants);
}

void mrc_rc_send(struct mrc_rc *rc) {
  if (!rc->connected || (rc->ended && rc->refusal == 0)) return;
  send_frames(rc);
  if (rc->ended) return;
  send_credits(rc);
  mrc_rc_settle(rc); /* WRITEs without bytes */
}

/* ---- completions ---- */

static bool is_done(const struct mrc_rc *rc, const struct mrc_rc_request *request) {
  if (request->kind >= MRC_RC_DO_READ) return request->answered;
  return request->acked || (int32_t)(rc->acked - rc->head) > 0;
}

void mrc_rc_settle(struct mrc_rc *rc) {
  while (!rc->ended && rc->head != rc->next) {
    const struct mrc_rc_request *request = mrc_rc_request_at(rc, rc->head);
    if (!is_done(rc, request)) return;
    if (request->status != MRC_WC_SUCCESS) {
      rc->ended = true;
      rc->owner->failed(rc->user, request->status);
      return;
    }
    rc->head++;
    rc->owner->done(rc->user);
  }
  if (rc->ended || rc->wrong == 0) return;
  rc->ended = true;
  rc->owner->failed(rc->user, rc->wrong);
}

void mrc_rc_sent(struct mrc_rc *rc, uint64_t id) {
  const uint32_t number = (uint32_t)id;
  switch ((enum what)(id >> 32)) {
    case WRITE: { /* one with an immediate is done with the frame that tells of it */
      struct mrc_rc_request *request = mrc_rc_request_at(rc, number);
      request->acked = !request->with_imm;
      break;
    }
    case FRAME:
      rc->frames_done = number + 1;
      rc->acked = rc->frame_next[number % MRC_RC_SLOTS];
      break;
    case CREDIT:
      rc->credits--;
      break;
  }
  mrc_rc_settle(rc);
}
