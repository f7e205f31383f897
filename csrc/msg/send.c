/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The route of what goes to a peer, in the order of its stages:
 *
 *   1. records about operations, and answers, are queued (mrc_msg_say, mrc_msg_answer)
 *   2. frames take as many as fit, one slot of the peer's inbox each (send_frame); a credit goes
 *      alone if none does (send_credit)
 *   3. messages whose place the peer has named are written, in chunks (send_chunks)
 *   4. READs ask the peer for memory, and FETCHes of the peer are answered by such writes
 *   5. completions free what has been sent (mrc_msg_sent)
 */
#include "msg/send.h"

#include <errno.h>

enum { RESERVED_WRS = 4 }; /* places that messages leave to frames and credits */

/* What a work request was: the upper half of its wr_id. The lower is the id of an operation, or
   the place of a FETCH. */
enum what { FRAME, CREDIT, CHUNK, FETCHED };

void mrc_msg_say(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                 enum mrc_msg_record_kind record) {
  op->record = (uint8_t)record;
  mrc_list_append(&peer->out, &op->out);
  mrc_msg_mark(msg, peer);
}

bool mrc_msg_answer(struct mrc_msg *msg, struct mrc_msg_peer *peer, enum mrc_msg_record_kind kind,
                    uint32_t id, uint64_t bytes) {
  if (peer->answers_n == MRC_MSG_MAX_OPERATIONS) return false;
  const uint32_t at = (peer->answers_head + peer->answers_n++) % MRC_MSG_MAX_OPERATIONS;
  peer->answers[at] = (struct mrc_msg_answer){.bytes = bytes, .id = id, .kind = (uint8_t)kind};
  mrc_msg_mark(msg, peer);
  return true;
}

static bool has_room(const struct mrc_msg_peer *peer, bool imm, uint32_t reserved) {
  return peer->wrs + reserved < peer->limits.sq_depth &&
         (!imm || peer->imms < peer->theirs.max_wimm);
}

/* Posts a write, with an immediate or without. */
static int post(struct mrc_msg *msg, struct mrc_msg_peer *peer, enum what what, uint32_t id,
                const struct mrc_wr *write, uint64_t now_ns) {
  struct mrc_wr wr = *write;
  wr.wr_id = (uint64_t)what << 32 | id;
  const int error = mrc_qp_post(msg->config.engine, peer->qpn, &wr, 1, now_ns);
  if (error != 0) return error;
  peer->wrs++;
  if (wr.opcode == MRC_WR_WRITE_IMM) peer->imms++;
  return 0;
}

/* ---- 2. Frames ---- */

static struct mrc_msg_record record_of(const struct mrc_msg_op *op) {
  const struct mrc_msg_post *post = &op->post;
  struct mrc_msg_record record = {.kind = op->record,
                                  .space = post->space,
                                  .tag = post->tag,
                                  .bytes = post->bytes,
                                  .id = op->id,
                                  .data = post->data,
                                  .address = post->address,
                                  .rkey = op->key};
  if (record.kind == MRC_MSG_CTS) record.other = op->theirs;
  if (record.kind == MRC_MSG_FETCH || record.kind == MRC_MSG_CHANGE)
    record.other = (uint32_t)post->ignore;
  if (record.kind != MRC_MSG_CHANGE) return record;
  record.bytes = post->least;
  record.rkey = post->data | (uint32_t)post->bytes << MRC_MSG_HOW_BITS;
  return record;
}

/* The record has been written to a frame. */
static void left(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op) {
  mrc_node_leave(&op->out);
  if (op->record == MRC_MSG_RTS) op->announced = true;
  if (op->record != MRC_MSG_EAGER) return;
  if (!op->post.delivered) {
    mrc_msg_finish(msg, op, 0);
    return;
  }
  op->state = MRC_MSG_SENT;
  op->theirs = peer->slots.sent;
  mrc_list_append(&peer->sent, &op->node);
}

/* Ends what was in frames that the peer has acknowledged. */
static void end_sent(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  while (!mrc_list_is_empty(&peer->sent)) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, peer->sent.next);
    if ((int32_t)(peer->slots.done - op->theirs) <= 0) return;
    mrc_msg_finish(msg, op, 0);
  }
}

/* Fills a frame with answers, then with records. Returns its bytes. */
static uint32_t fill(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint8_t *frame) {
  size_t n = MRC_MSG_FRAME_HEADER;
  for (; peer->answers_n > 0; peer->answers_n--) {
    const struct mrc_msg_answer *answer = &peer->answers[peer->answers_head];
    const struct mrc_msg_record record = {
        .kind = answer->kind, .bytes = answer->bytes, .id = answer->id};
    if (n + mrc_msg_record_bytes(&record) > MRC_MSG_SLOT_BYTES) return (uint32_t)n;
    n += mrc_msg_encode(&record, frame + n);
    peer->answers_head = (peer->answers_head + 1) % MRC_MSG_MAX_OPERATIONS;
  }
  while (!mrc_list_is_empty(&peer->out)) {
    struct mrc_msg_op *op = MRC_MSG_OP(out, peer->out.next);
    const struct mrc_msg_record record = record_of(op);
    const size_t bytes = mrc_msg_record_bytes(&record);
    if (n + bytes > MRC_MSG_SLOT_BYTES) break;
    const size_t head = mrc_msg_encode(&record, frame + n);
    if (record.kind == MRC_MSG_EAGER && record.bytes > 0)
      memcpy(frame + n + head, (const void *)(uintptr_t)op->post.address, record.bytes);
    if (bytes > head + record.bytes && record.kind == MRC_MSG_EAGER)
      memset(frame + n + head + record.bytes, 0, bytes - head - record.bytes);
    n += bytes;
    left(msg, peer, op);
  }
  return (uint32_t)n;
}

static int send_frame(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  const uint32_t place = mrc_slots_place(&peer->slots, peer->slots.sent);
  uint8_t *frame = peer->outbox + place;
  if (peer->filled == 0) peer->filled = fill(msg, peer, frame);
  mrc_put32(frame, peer->slots.freed);
  mrc_put32(frame + 4, 0);
  const struct mrc_wr write = {.local = (uintptr_t)frame,
                               .va = peer->theirs.address + place,
                               .lkey = peer->outbox_key,
                               .rkey = peer->theirs.rkey,
                               .bytes = peer->filled,
                               .imm = mrc_imm(MRC_MSG_IMM_FRAME, peer->slots.sent),
                               .opcode = MRC_WR_WRITE_IMM};
  const int error = post(msg, peer, FRAME, 0, &write, now_ns);
  if (error != 0) return error;
  peer->filled = 0;
  peer->slots.sent++;
  peer->slots.told = peer->slots.freed;
  return 0;
}

static int send_credit(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  const struct mrc_wr write = {.imm = mrc_imm(MRC_MSG_IMM_CREDIT, peer->slots.freed),
                               .opcode = MRC_WR_WRITE_IMM};
  const int error = post(msg, peer, CREDIT, 0, &write, now_ns);
  if (error != 0) return error;
  peer->slots.told = peer->slots.freed;
  msg->counters.credits_sent++;
  return 0;
}

/* ---- 3. Messages ---- */

void mrc_msg_start_write(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op) {
  if (op->bytes == 0) {
    mrc_msg_finish(msg, op, 0);
    return;
  }
  op->state = MRC_MSG_WRITING;
  op->address = op->post.tag;
  op->rkey = (uint32_t)op->post.ignore;
  op->announced = true;
  mrc_list_append(&peer->writing, &op->node);
  mrc_msg_mark(msg, peer);
}

/* Posts the next chunk of a message; the last one has the immediate, if the peer waits for one. */
static int send_chunk(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                      uint32_t bytes, uint64_t now_ns) {
  const bool last = op->begun + bytes == op->bytes;
  const bool imm = last && op->post.kind != MRC_MSG_WRITE;
  const struct mrc_wr write = {.local = op->post.address + op->begun,
                               .va = op->address + op->begun,
                               .lkey = op->key,
                               .rkey = op->rkey,
                               .bytes = bytes,
                               .imm = mrc_imm(MRC_MSG_IMM_DATA, op->theirs),
                               .opcode = imm ? MRC_WR_WRITE_IMM : MRC_WR_WRITE};
  const int error = post(msg, peer, op->fetched ? FETCHED : CHUNK, op->id, &write, now_ns);
  if (error != 0) return error;
  op->begun += bytes;
  op->writes++;
  peer->chunks++;
  if (last) mrc_node_leave(&op->node);
  return 0;
}

/* Whether its memory may be read now. The region of a WRITE is made when its turn comes, because
   thousands may wait; that of a FETCH belongs to the program, which may end it. */
static bool may_read(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                     uint32_t bytes) {
  if (op->fetched)
    return bytes == 0 ||
           mrc_qp_may_reach(msg->config.engine, peer->qpn, op->key, op->post.address + op->begun,
                            bytes, MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_READ);
  return op->key != 0 || mrc_msg_op_register(msg, op, op->bytes);
}

/* Ends what may not read its memory. 0 or an error of the peer. */
static int refuse(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op) {
  if (!op->fetched) {
    mrc_msg_finish(msg, op, -ENOSPC);
    return 0;
  }
  mrc_node_leave(&op->node);
  op->begun = op->bytes; /* the rest is never sent */
  if (op->writes == 0) op->state = MRC_MSG_FREE;
  return mrc_msg_answer(msg, peer, MRC_MSG_UNREADABLE, op->theirs, 0) ? 0 : -EPROTO;
}

static int send_chunks(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  int error = 0;
  while (error == 0 && !mrc_list_is_empty(&peer->writing) &&
         peer->chunks < MRC_MSG_CHUNKS_AT_ONCE) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, peer->writing.next);
    const uint32_t bytes = (uint32_t)mrc_min_u64(op->bytes - op->begun, MRC_MSG_CHUNK);
    const bool last = op->begun + bytes == op->bytes;
    if (!op->announced || !has_room(peer, last, RESERVED_WRS)) break;
    if (may_read(msg, peer, op, bytes))
      error = send_chunk(msg, peer, op, bytes, now_ns);
    else
      error = refuse(msg, peer, op);
  }
  return error;
}

/* ---- 4. READs ---- */

static void say_reads(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  while (peer->reads < MRC_MSG_READS && !mrc_list_is_empty(&peer->reading)) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, peer->reading.next);
    mrc_node_leave(&op->node);
    if (!mrc_msg_op_register(msg, op, op->bytes)) {
      mrc_msg_finish(msg, op, -ENOSPC);
      continue;
    }
    peer->reads++;
    mrc_msg_say(msg, peer, op, MRC_MSG_FETCH);
  }
}

void mrc_msg_start_read(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op) {
  op->state = MRC_MSG_READING;
  mrc_list_append(&peer->reading, &op->node);
  say_reads(msg, peer);
}

void mrc_msg_end_read(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                      int32_t result) {
  mrc_assert(peer->reads > 0);
  peer->reads--;
  mrc_msg_finish(msg, op, result);
  say_reads(msg, peer);
}

bool mrc_msg_fetch(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                   const struct mrc_msg_record *fetch) {
  uint32_t place = 0;
  while (place < MRC_MSG_FETCHES && peer->fetches[place].state != MRC_MSG_FREE)
    place++;
  if (place == MRC_MSG_FETCHES) return false;
  struct mrc_msg_op *op = &peer->fetches[place];
  *op = (struct mrc_msg_op){.post = {.address = fetch->tag},
                            .bytes = fetch->bytes,
                            .address = fetch->address,
                            .rkey = fetch->rkey,
                            .key = fetch->other,
                            .id = place,
                            .peer = peer->number,
                            .theirs = fetch->id,
                            .state = MRC_MSG_WRITING,
                            .announced = true,
                            .fetched = true};
  mrc_list_append(&peer->writing, &op->node);
  mrc_msg_mark(msg, peer);
  return true;
}

/* ---- 5. The peer, and its completions ---- */

bool mrc_msg_has_records(const struct mrc_msg_peer *peer) {
  return peer->filled > 0 || peer->answers_n > 0 || !mrc_list_is_empty(&peer->out);
}

int mrc_msg_send(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  int error = 0;
  while (error == 0 && mrc_msg_has_records(peer) && mrc_slots_may_send(&peer->slots) &&
         has_room(peer, true, 0))
    error = send_frame(msg, peer, now_ns);
  const bool owes = mrc_slots_owe(&peer->slots) || (peer->asked && peer->wrs == 0);
  if (error == 0 && owes && has_room(peer, true, 0)) error = send_credit(msg, peer, now_ns);
  if (error == 0) peer->asked = false;
  return error == 0 ? send_chunks(msg, peer, now_ns) : error;
}

/* What has posted a chunk. */
static struct mrc_msg_op *writer_of(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                                    uint64_t wr_id) {
  const uint32_t id = (uint32_t)wr_id;
  if (wr_id >> 32 == FETCHED) return &peer->fetches[id];
  struct mrc_msg_op *send = mrc_msg_op_at(msg, id, peer->number, MRC_MSG_SEND);
  return send != NULL ? send : mrc_msg_op_at(msg, id, peer->number, MRC_MSG_WRITE);
}

struct mrc_msg_op *mrc_msg_sent(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                                const struct mrc_wc *wc) {
  mrc_assert(peer->wrs > 0);
  peer->wrs--;
  if (wc->opcode == MRC_WC_WRITE_IMM) {
    mrc_assert(peer->imms > 0);
    peer->imms--;
  }
  mrc_msg_mark(msg, peer);
  switch ((enum what)(wc->wr_id >> 32)) {
    case FRAME:
      peer->slots.done++;
      if (wc->status == MRC_WC_SUCCESS) end_sent(msg, peer);
      return NULL;
    case CREDIT:
      return NULL;
    case CHUNK:
    case FETCHED:
      break;
  }
  struct mrc_msg_op *op = writer_of(msg, peer, wc->wr_id);
  mrc_assert(op != NULL && op->writes > 0 && peer->chunks > 0);
  peer->chunks--;
  if (--op->writes > 0) return NULL;
  if (!op->fetched) return op;
  if (op->begun == op->bytes || peer->error != 0) op->state = MRC_MSG_FREE;
  return NULL;
}
