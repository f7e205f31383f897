/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/rc.h"

/* ======== Frames and records ======== */

enum { HEAD = 8 };

void mrc_rc_put_header(const struct mrc_rc_header *header, uint8_t *out) {
  mrc_put32(out, header->read);
  mrc_put32(out + 4, header->granted);
  mrc_put32(out + 8, header->wanted);
  mrc_put32(out + 12, 0);
}

static struct mrc_rc_header get_header(const uint8_t *in) {
  return (struct mrc_rc_header){
      .read = mrc_get32(in), .granted = mrc_get32(in + 4), .wanted = mrc_get32(in + 8)};
}

/* Bytes of a record's fields. */
static size_t fields_of(uint8_t kind) {
  switch ((enum mrc_rc_kind)kind) {
    case MRC_RC_SEND:
    case MRC_RC_WROTE:
    case MRC_RC_VALUE:
      return HEAD + 8;
    case MRC_RC_READ:
      return HEAD + 16;
    case MRC_RC_ATOMIC:
      return HEAD + 32;
    case MRC_RC_MORE:
    case MRC_RC_DATA:
    case MRC_RC_REFUSED:
    case MRC_RC_FAILED:
      break;
  }
  return HEAD;
}

size_t mrc_rc_encode(const struct mrc_rc_record *record, uint8_t *out) {
  const uint8_t kind = record->kind;
  out[0] = kind;
  out[1] = record->flags;
  out[2] = record->status;
  out[3] = 0;
  mrc_put32(out + 4, record->bytes);
  if (kind == MRC_RC_SEND || kind == MRC_RC_WROTE) {
    mrc_put32(out + HEAD, record->total);
    mrc_put32(out + HEAD + 4, record->imm);
  } else if (kind == MRC_RC_VALUE) {
    mrc_put64(out + HEAD, record->value);
  } else if (kind == MRC_RC_READ || kind == MRC_RC_ATOMIC) {
    mrc_put64(out + HEAD, record->va);
    mrc_put32(out + HEAD + 8, record->rkey);
    mrc_put32(out + HEAD + 12, kind == MRC_RC_READ ? record->total : record->operation);
  }
  if (kind == MRC_RC_ATOMIC) {
    mrc_put64(out + HEAD + 16, record->value);
    mrc_put64(out + HEAD + 24, record->swap);
  }
  return fields_of(kind);
}

/* Reads a record from the n bytes that are left of a frame. Returns its bytes with those that
   follow, or 0 if it is none. */
static size_t decode(const uint8_t *in, size_t n, struct mrc_rc_record *record) {
  *record = (struct mrc_rc_record){0};
  if (n < HEAD || in[0] < MRC_RC_SEND || in[0] > MRC_RC_LAST_KIND) return 0;
  const uint8_t kind = record->kind = in[0];
  record->flags = in[1];
  record->status = in[2];
  record->bytes = mrc_get32(in + 4);
  const size_t bytes = fields_of(kind) + (((size_t)record->bytes + 7) & ~(size_t)7);
  const bool has_bytes = kind == MRC_RC_SEND || kind == MRC_RC_MORE || kind == MRC_RC_DATA;
  if (bytes > n || (record->bytes > 0 && !has_bytes)) return 0;
  if (kind == MRC_RC_SEND || kind == MRC_RC_WROTE) {
    record->total = mrc_get32(in + HEAD);
    record->imm = mrc_get32(in + HEAD + 4);
  } else if (kind == MRC_RC_VALUE) {
    record->value = mrc_get64(in + HEAD);
  } else if (kind == MRC_RC_READ || kind == MRC_RC_ATOMIC) {
    record->va = mrc_get64(in + HEAD);
    record->rkey = mrc_get32(in + HEAD + 8);
    *(kind == MRC_RC_READ ? &record->total : &record->operation) = mrc_get32(in + HEAD + 12);
  }
  if (kind == MRC_RC_ATOMIC) {
    record->value = mrc_get64(in + HEAD + 16);
    record->swap = mrc_get64(in + HEAD + 24);
    if (record->operation > MRC_RC_FETCH_ADD) return 0;
  }
  return bytes;
}

/* ======== What goes to the peer: WRITEs, frames of records, credits ======== */

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
  const size_t fields = fields_of(kind);
  if (room(frame) < fields) return 0;
  const uint32_t fit = (room(frame) - (uint32_t)fields) & ~7u;
  if (left <= fit) return left;
  return fit < LEAST_PART ? 0 : fit;
}

static bool fits(const struct frame *frame, uint8_t kind) { return room(frame) >= fields_of(kind); }

/* ---- requests ---- */

static struct mrc_rc_request *request_at(const struct mrc_rc *rc, uint32_t place) {
  return &rc->requests[place & (rc->size - 1)];
}

/* Whether a request takes a receive of the peer. */
static bool takes_receive(const struct mrc_rc_request *request) {
  return request->kind == MRC_RC_DO_SEND || (request->kind == MRC_RC_DO_WRITE && request->with_imm);
}

/* Whether the next request waits for a receive of the peer. */
static bool is_starved(const struct mrc_rc *rc) {
  return rc->next != rc->tail && rc->messages == rc->granted && rc->sent == 0 &&
         takes_receive(request_at(rc, rc->next));
}

bool mrc_rc_waits(const struct mrc_rc *rc, bool *for_receive) {
  *for_receive = is_starved(rc);
  return rc->connected && !rc->ended && (rc->asking_head != rc->asking_tail || *for_receive);
}

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
  if (request->with_imm && (is_starved(rc) || !fits(frame, MRC_RC_WROTE))) return false;
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
  if (is_starved(rc) && !rc->begun) return false;
  if (bytes == 0 && (left > 0 || !fits(frame, kind))) return false;
  uint8_t *to = frame->bytes + frame->n + fields_of(kind);
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
    struct mrc_rc_request *request = request_at(rc, rc->next);
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
  uint8_t *to = frame->bytes + frame->n + fields_of(MRC_RC_DATA);
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

static void send_frames(struct mrc_rc *rc) {
  while (mrc_slots_may_send(&rc->slots)) {
    const uint32_t number = rc->slots.sent, place = mrc_slots_place(&rc->slots, number);
    uint8_t *bytes = rc->outbox + place;
    const uint32_t n = fill(rc, bytes);
    if (n == MRC_RC_FRAME_HEADER) return;
    const struct mrc_rc_header header = {
        .read = rc->slots.freed, .granted = rc->grants, .wanted = rc->wanted};
    mrc_rc_put_header(&header, bytes);
    rc->slots.told = rc->slots.freed;
    rc->grants_told = rc->grants;
    rc->wanted_told = rc->wanted;
    rc->slots.sent++;
    rc->frame_next[number % MRC_RC_SLOTS] = rc->next;
    const struct mrc_wr wr = {.wr_id = wr_id(FRAME, number),
                              .local = (uintptr_t)bytes,
                              .lkey = rc->outbox_key,
                              .va = rc->their_inbox + place,
                              .rkey = rc->their_rkey,
                              .bytes = n,
                              .imm = mrc_imm(MRC_RC_IMM_FRAME, number),
                              .opcode = MRC_WR_WRITE_IMM};
    rc->owner->post(rc->user, &wr);
  }
  struct frame none = {0};
  if (!rc->ended) put_requests(rc, &none);
}

/* ---- credits ---- */

static void send_credit(struct mrc_rc *rc, enum mrc_rc_imm what, uint32_t number) {
  const struct mrc_wr wr = {
      .wr_id = wr_id(CREDIT, 0), .imm = mrc_imm(what, number), .opcode = MRC_WR_WRITE_IMM};
  rc->credits++;
  rc->owner->post(rc->user, &wr);
}

static void send_credits(struct mrc_rc *rc) {
  if (rc->credits < MRC_RC_CREDITS && mrc_slots_owe(&rc->slots)) {
    rc->slots.told = rc->slots.freed;
    send_credit(rc, MRC_RC_IMM_READ, rc->slots.freed);
  }
  /* The peer knows of at most half of the receives that it may use. */
  if (rc->credits < MRC_RC_CREDITS && rc->grants != rc->grants_told &&
      rc->grants_told - rc->arrived <= (rc->grants - rc->arrived) / 2) {
    rc->grants_told = rc->grants;
    send_credit(rc, MRC_RC_IMM_GRANTED, rc->grants);
  }
  if (rc->credits < MRC_RC_CREDITS && rc->their_receives_shared && is_starved(rc) &&
      rc->wanted != rc->wanted_told) {
    rc->wanted_told = rc->wanted;
    send_credit(rc, MRC_RC_IMM_WANTED, rc->wanted);
  }
}

/* ---- sending, completions ---- */

/* Ends requests in their order, as far as they are done. */
static void settle(struct mrc_rc *rc) {
  while (!rc->ended && rc->head != rc->next) {
    const struct mrc_rc_request *request = request_at(rc, rc->head);
    const bool acked = request->acked || (int32_t)(rc->acked - rc->head) > 0;
    if (request->kind >= MRC_RC_DO_READ ? !request->answered : !acked) return;
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
  settle(rc); /* WRITEs without bytes */
}

void mrc_rc_sent(struct mrc_rc *rc, uint64_t id) {
  const uint32_t number = (uint32_t)id;
  switch ((enum what)(id >> 32)) {
    case WRITE: { /* one with an immediate is done with the frame that tells of it */
      struct mrc_rc_request *request = request_at(rc, number);
      request->acked = !request->with_imm;
      break;
    }
    case FRAME:
      rc->slots.done = number + 1;
      rc->acked = rc->frame_next[number % MRC_RC_SLOTS];
      break;
    case CREDIT:
      rc->credits--;
      break;
  }
  settle(rc);
}

/* ======== What comes from the peer: immediates, and frames of records ======== */

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
  return request_at(rc, *place);
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
      rc->ended = true;
      rc->owner->failed(rc->user, status_of(record->status));
      return true;
  }
  return false;
}

static bool on_frame(struct mrc_rc *rc, uint32_t number, uint32_t size) {
  const int place = mrc_slots_arrive(&rc->slots, number, MRC_IMM_NUMBER, size);
  if (place < 0) return false;
  const uint8_t *frame = rc->inbox + place;
  const struct mrc_rc_header header = get_header(frame);
  if (!mrc_slots_credit(&rc->slots, header.read, UINT32_MAX)) return false;
  if (!on_granted(rc, header.granted, UINT32_MAX)) return false;
  if (!on_wanted(rc, header.wanted, UINT32_MAX)) return false;
  for (uint32_t at = MRC_RC_FRAME_HEADER; at < size && !rc->ended;) {
    struct mrc_rc_record record;
    const size_t bytes = decode(frame + at, size - at, &record);
    if (bytes == 0) return false;
    if (!on_record(rc, &record, frame + at + fields_of(record.kind))) return false;
    at += (uint32_t)bytes;
  }
  settle(rc);
  rc->slots.freed++;
  return true;
}

bool mrc_rc_take(struct mrc_rc *rc, uint32_t imm, uint32_t bytes) {
  const uint32_t number = imm & MRC_IMM_NUMBER;
  if (rc->ended && imm >> 30 != MRC_RC_IMM_READ) return true; /* the refusal may need a slot */
  switch ((enum mrc_rc_imm)(imm >> 30)) {
    case MRC_RC_IMM_FRAME:
      return on_frame(rc, number, bytes);
    case MRC_RC_IMM_READ:
      return mrc_slots_credit(&rc->slots, number, MRC_IMM_NUMBER);
    case MRC_RC_IMM_GRANTED:
      return on_granted(rc, number, MRC_IMM_NUMBER);
    case MRC_RC_IMM_WANTED:
      return on_wanted(rc, number, MRC_IMM_NUMBER);
  }
  return false;
}

/* ======== What the owner does ======== */

void mrc_rc_init(struct mrc_rc *rc, const struct mrc_rc_config *config) {
  mrc_assert(config->size > 0 && (config->size & (config->size - 1)) == 0);
  *rc = (struct mrc_rc){
      .owner = config->owner,
      .user = config->user,
      .inbox = config->inbox,
      .outbox = config->outbox,
      .outbox_key = config->outbox_key,
      .requests = config->requests,
      .size = config->size,
      .slots = {.count = MRC_RC_SLOTS, .bytes = MRC_RC_SLOT_BYTES, .least = MRC_RC_FRAME_HEADER}};
}

void mrc_rc_connect(struct mrc_rc *rc, const struct mrc_rc_peer *peer) {
  mrc_assert(peer->most_asking > 0 && peer->most_asking <= MRC_RC_ANSWERS);
  rc->their_inbox = peer->inbox;
  rc->their_rkey = peer->rkey;
  rc->most_asking = peer->most_asking;
  rc->their_receives_shared = peer->shared;
  rc->connected = true;
}

uint32_t mrc_rc_post(struct mrc_rc *rc, const struct mrc_rc_request *request) {
  mrc_assert(rc->tail - rc->head < rc->size);
  *request_at(rc, rc->tail) = *request;
  if (takes_receive(request)) rc->wanted++;
  return rc->tail++;
}

void mrc_rc_grant(struct mrc_rc *rc, uint32_t n) { rc->grants += n; }

void mrc_rc_fail(struct mrc_rc *rc, uint32_t place, enum mrc_wc_status status) {
  struct mrc_rc_request *request = request_at(rc, place);
  request->status = (uint8_t)status;
  request->acked = true;
  rc->wrong = (uint8_t)status;
  settle(rc);
}
