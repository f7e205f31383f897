/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/outgoing.h"

#include <endian.h>
#include <errno.h>

#include "msg/operations.h"

enum { RESERVED_WRS = 4 }; /* places that messages leave to frames and credits */

/* What a work request was: the upper half of its wr_id. The lower is the id of an operation. */
enum what { FRAME, CREDIT, CHUNK };

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

bool mrc_msg_credited(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint32_t read,
                      uint32_t mask) {
  if (!mrc_msg_slots_credit(&peer->slots, read, mask)) return false;
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

/* ---- frames ---- */

static struct mrc_msg_record record_of(const struct mrc_msg_op *op) {
  return (struct mrc_msg_record){.kind = op->record,
                                 .space = op->post.space,
                                 .tag = op->post.tag,
                                 .bytes = op->post.bytes,
                                 .id = op->id,
                                 .data = op->post.data,
                                 .other = op->record == MRC_MSG_CTS ? op->theirs : 0,
                                 .address = op->post.address,
                                 .rkey = op->key};
}

/* The record has been written to a frame. */
static void left(struct mrc_msg *msg, struct mrc_msg_op *op) {
  mrc_node_leave(&op->out);
  if (op->record == MRC_MSG_RTS) op->announced = true;
  if (op->record == MRC_MSG_EAGER) mrc_msg_finish(msg, op, 0);
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
    left(msg, op);
  }
  return (uint32_t)n;
}

static bool may_send_frame(const struct mrc_msg_peer *peer) {
  return mrc_msg_slots_may_send(&peer->slots) &&
         peer->slots.sent - peer->frames_done < MRC_MSG_SLOTS && has_room(peer, true, 0);
}

static int send_frame(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  const uint32_t place = mrc_msg_slots_place(&peer->slots, peer->slots.sent);
  uint8_t *frame = peer->outbox + place;
  if (peer->filled == 0) peer->filled = fill(msg, peer, frame);
  const uint32_t header[2] = {htole32(peer->slots.freed), 0};
  memcpy(frame, header, sizeof header);
  const struct mrc_wr write = {.local = (uintptr_t)frame,
                               .va = peer->theirs.address + place,
                               .lkey = peer->outbox_key,
                               .rkey = peer->theirs.rkey,
                               .bytes = peer->filled,
                               .imm = mrc_msg_imm(MRC_MSG_IMM_FRAME, peer->slots.sent),
                               .opcode = MRC_WR_WRITE_IMM};
  const int error = post(msg, peer, FRAME, 0, &write, now_ns);
  if (error != 0) return error;
  peer->filled = 0;
  peer->slots.sent++;
  peer->slots.told = peer->slots.freed;
  msg->counters.frames_sent++;
  return 0;
}

static int send_credit(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  const struct mrc_wr write = {.imm = mrc_msg_imm(MRC_MSG_IMM_CREDIT, peer->slots.freed),
                               .opcode = MRC_WR_WRITE_IMM};
  const int error = post(msg, peer, CREDIT, 0, &write, now_ns);
  if (error != 0) return error;
  peer->slots.told = peer->slots.freed;
  msg->counters.credits_sent++;
  return 0;
}

/* ---- messages ---- */

/* Posts the next chunk of a message; the last one has the immediate. */
static int send_chunk(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                      uint32_t bytes, uint64_t now_ns) {
  const bool last = op->begun + bytes == op->bytes;
  const struct mrc_wr write = {.local = op->post.address + op->begun,
                               .va = op->address + op->begun,
                               .lkey = op->key,
                               .rkey = op->rkey,
                               .bytes = bytes,
                               .imm = mrc_msg_imm(MRC_MSG_IMM_DATA, op->theirs),
                               .opcode = last ? MRC_WR_WRITE_IMM : MRC_WR_WRITE};
  const int error = post(msg, peer, CHUNK, op->id, &write, now_ns);
  if (error != 0) return error;
  op->begun += bytes;
  op->writes++;
  peer->chunks++;
  if (last) mrc_node_leave(&op->node);
  return 0;
}

static int send_chunks(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  int error = 0;
  while (error == 0 && !mrc_list_is_empty(&peer->writing) &&
         peer->chunks < MRC_MSG_CHUNKS_AT_ONCE) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, peer->writing.next);
    const uint32_t bytes = (uint32_t)mrc_min_u64(op->bytes - op->begun, MRC_MSG_CHUNK);
    const bool last = op->begun + bytes == op->bytes;
    if (!op->announced || !has_room(peer, last, RESERVED_WRS)) break;
    error = send_chunk(msg, peer, op, bytes, now_ns);
  }
  return error;
}

static bool has_records(const struct mrc_msg_peer *peer) {
  return peer->filled > 0 || peer->answers_n > 0 || !mrc_list_is_empty(&peer->out);
}

int mrc_msg_send(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  int error = 0;
  while (error == 0 && has_records(peer) && may_send_frame(peer))
    error = send_frame(msg, peer, now_ns);
  if (error == 0 && mrc_msg_slots_owe(&peer->slots) && has_room(peer, true, 0))
    error = send_credit(msg, peer, now_ns);
  return error == 0 ? send_chunks(msg, peer, now_ns) : error;
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
      peer->frames_done++;
      return NULL;
    case CREDIT:
      return NULL;
    case CHUNK:
      break;
  }
  struct mrc_msg_op *op = mrc_msg_op_at(msg, (uint32_t)wc->wr_id, peer->number, MRC_MSG_SEND);
  mrc_assert(op != NULL && op->writes > 0 && peer->chunks > 0);
  peer->chunks--;
  return --op->writes == 0 ? op : NULL;
}
