/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The route of what comes from a peer. Its functions stand from the last stage to the first:
 *
 *   1. an immediate says what has come: the data of a receive or READ, a frame, or a credit
 *      (mrc_msg_on_imm)
 *   2. frames are read in order, up to one that has to wait (read_frames)
 *   3. each record of a frame is about an operation of this end, or of the peer (on_record)
 *   4. a send that a CTS is for, or a receive that a message is for, goes on; what matches nothing
 *      is kept, and looked through when an operation is posted (mrc_msg_start_receive,
 *      mrc_msg_start_send)
 */
#include "msg/receive.h"

#include <errno.h>

#include "msg/operations.h"
#include "msg/send.h"

enum verdict { TAKEN, WAIT, WRONG };

static enum verdict taken_if(bool good) { return good ? TAKEN : WRONG; }

/* Where the message of an eager record begins. */
static const uint8_t *eager_of(const uint8_t *record) { return record + 24; }

/* ---- 4. ATOMICs: the peer makes them one after the other, also beside atomic accesses of its own
   threads, and answers with the number before ---- */

#define HOW ((1u << MRC_MSG_HOW_BITS) - 1) /* of the `rkey` of CHANGE */

/* A number of 4 or 8 bytes as one of 8, which keeps its sign. */
static int64_t with_sign(uint64_t number, uint32_t bytes) {
  return bytes == 4 ? (int32_t)number : (int64_t)number;
}

/* What a change leaves. */
static uint64_t after(const struct mrc_msg_record *record, uint32_t bytes, uint64_t number) {
  const uint64_t mask = bytes == 4 ? UINT32_MAX : UINT64_MAX;
  const uint64_t operand = record->address & mask;
  const bool less = operand < number;
  const bool signed_less = with_sign(operand, bytes) < with_sign(number, bytes);
  switch ((enum mrc_msg_atomic)(record->rkey & HOW)) {
    case MRC_MSG_ADD:
      return number + operand;
    case MRC_MSG_AND:
      return number & operand;
    case MRC_MSG_OR:
      return number | operand;
    case MRC_MSG_XOR:
      return number ^ operand;
    case MRC_MSG_SWAP:
      return operand;
    case MRC_MSG_COMPARE_SWAP:
      return number == (record->bytes & mask) ? operand : number;
    case MRC_MSG_LOGICAL_AND:
      return number != 0 && operand != 0;
    case MRC_MSG_LOGICAL_OR:
      return number != 0 || operand != 0;
    case MRC_MSG_LOGICAL_XOR:
      return (number != 0) != (operand != 0);
    case MRC_MSG_MIN:
      return less ? operand : number;
    case MRC_MSG_MAX:
      return less ? number : operand;
    case MRC_MSG_SIGNED_MIN:
      return signed_less ? operand : number;
    case MRC_MSG_SIGNED_MAX:
      return signed_less ? number : operand;
  }
  return number;
}

/* Threads of this process may change the number meanwhile. Returns what it was. */
static uint64_t change(const struct mrc_msg_record *record, uint32_t bytes) {
  void *at = (void *)(uintptr_t)record->tag;
  if (bytes == 4) {
    uint32_t number = __atomic_load_n((uint32_t *)at, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n((uint32_t *)at, &number,
                                        (uint32_t)after(record, bytes, number), true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      continue;
    return number;
  }
  uint64_t number = __atomic_load_n((uint64_t *)at, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n((uint64_t *)at, &number, after(record, bytes, number), true,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    continue;
  return number;
}

bool mrc_msg_atomic_is_valid(uint32_t change, uint64_t bytes, uint64_t address) {
  return change <= MRC_MSG_LAST_ATOMIC && (bytes == 4 || bytes == 8) && address % bytes == 0;
}

void mrc_msg_start_atomic(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op) {
  op->state = MRC_MSG_READING;
  mrc_msg_say(msg, peer, op, MRC_MSG_CHANGE);
}

/* Answers CHANGE of the peer. False if the peer broke the protocol. */
static bool answer_change(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                          const struct mrc_msg_record *record) {
  const uint32_t bytes = record->rkey >> MRC_MSG_HOW_BITS;
  const uint32_t access = MRC_ACCESS_REMOTE_READ | MRC_ACCESS_REMOTE_WRITE;
  if (!mrc_msg_atomic_is_valid(record->rkey & HOW, bytes, record->tag)) return false;
  if (!mrc_qp_may_reach(msg->config.engine, peer->qpn, record->other, record->tag, bytes, access))
    return mrc_msg_answer(msg, peer, MRC_MSG_UNREADABLE, record->id, 0);
  return mrc_msg_answer(msg, peer, MRC_MSG_CHANGED, record->id, change(record, bytes));
}

/* An answer has come for this operation; NULL: there is none. False if nobody could know of it. */
static bool end_atomic(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t before,
                       int32_t result) {
  if (op == NULL || mrc_node_joined(&op->out)) return false;
  op->post.tag = before;
  mrc_msg_finish(msg, op, result);
  return true;
}

/* ---- 4. Receives ---- */

static bool read_frames(struct mrc_msg *msg, struct mrc_msg_peer *peer);

static void deliver(struct mrc_msg *msg, struct mrc_msg_op *op, const struct mrc_msg_record *record,
                    const uint8_t *bytes) {
  const uint64_t n = record->bytes;
  op->bytes = n;
  op->post.tag = record->tag;
  op->post.data = record->data;
  if (n > 0 && n <= op->post.bytes) memcpy((void *)(uintptr_t)op->post.address, bytes, n);
  mrc_msg_finish(msg, op, n <= op->post.bytes ? 0 : -EMSGSIZE);
}

/* A receive without a CTS takes an announced message. False: too many answers. */
static bool grant(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                  const struct mrc_msg_record *rts) {
  const bool room = rts->bytes <= op->post.bytes;
  mrc_msg_op_join(op, peer);
  op->bytes = rts->bytes;
  op->post.tag = rts->tag;
  op->post.data = rts->data;
  if (!room || !mrc_msg_op_register(msg, op, rts->bytes)) {
    const uint64_t bytes = op->post.bytes;
    mrc_msg_finish(msg, op, room ? -ENOSPC : -EMSGSIZE);
    return mrc_msg_answer(msg, peer, MRC_MSG_TRUNCATED, rts->id, bytes);
  }
  mrc_node_leave(&op->node);
  op->state = MRC_MSG_MATCHED;
  op->theirs = rts->id;
  mrc_msg_say(msg, peer, op, MRC_MSG_CTS);
  return true;
}

/* The message for which a receive has asked is announced. */
static void announce(struct mrc_msg *msg, struct mrc_msg_op *op, const struct mrc_msg_record *rts) {
  mrc_node_leave(&op->node);
  if (op->record == MRC_MSG_CANCEL) mrc_node_leave(&op->out); /* too late */
  op->state = MRC_MSG_MATCHED;
  if (op->result == 0) op->bytes = rts->bytes; /* otherwise it tells of an earlier message */
  op->theirs = rts->id;                        /* for a CTS that has not left yet */
  op->post.data = rts->data;
  if (op->arrived) mrc_msg_finish(msg, op, op->result);
}

/* Reads the frames that wait for room, of one peer or of any: a new operation may take what they
   hold. A peer that broke the protocol, or NULL. */
static struct mrc_msg_peer *read_stalled(struct mrc_msg *msg, uint32_t number) {
  struct mrc_node *next;
  for (struct mrc_node *node = msg->stalled.next; node != &msg->stalled; node = next) {
    struct mrc_msg_peer *peer = MRC_NODE_OWNER(node, struct mrc_msg_peer, stalled);
    next = node->next;
    if (number != MRC_MSG_ANY && number != peer->number) continue;
    if (!read_frames(msg, peer)) return peer;
  }
  return NULL;
}

void mrc_msg_peek(struct mrc_msg *msg, struct mrc_msg_op *op) {
  struct mrc_msg_entry *entry = mrc_msg_match_message(msg, op);
  if (entry != NULL) {
    op->peer = entry->peer;
    op->bytes = entry->record.bytes;
    op->post.tag = entry->record.tag;
    op->post.data = entry->record.data;
    if (op->post.claim) mrc_msg_claim(msg, entry, op->post.cookie);
  }
  mrc_msg_finish(msg, op, entry != NULL ? 0 : -ENOMSG);
}

/* Nothing matches yet. A peer that broke the protocol, or NULL. */
static struct mrc_msg_peer *await(struct mrc_msg *msg, struct mrc_msg_op *op) {
  const struct mrc_msg_post *post = &op->post;
  const bool one_peer = post->peer != MRC_MSG_ANY;
  if (one_peer && msg->peers[post->peer]->error != 0) {
    mrc_msg_finish(msg, op, msg->peers[post->peer]->error);
    return NULL;
  }
  const bool exact = post->exact && post->least == 0 && one_peer && post->ignore == 0 &&
                     post->bytes > msg->config.eager_bytes;
  mrc_msg_await(msg, op);
  struct mrc_msg_peer *wrong = read_stalled(msg, post->peer);
  const bool waits = wrong == NULL && op->state == MRC_MSG_POSTED;
  if (!waits || !exact || mrc_msg_is_ambiguous(msg, op)) return wrong;
  if (!mrc_msg_op_register(msg, op, post->bytes)) return wrong; /* waits for the RTS instead */
  op->state = MRC_MSG_ASKED;
  mrc_msg_say(msg, msg->peers[post->peer], op, MRC_MSG_CTS);
  return wrong;
}

/* An operation takes a message that was kept. False: the peer broke the protocol. */
static bool take(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                 struct mrc_msg_entry *entry) {
  bool good = true;
  op->peer = entry->peer;
  if (entry->record.kind == MRC_MSG_EAGER)
    deliver(msg, op, &entry->record, entry->bytes);
  else
    good = grant(msg, peer, op, &entry->record);
  mrc_msg_drop(peer, entry);
  if (peer->error != 0) return true;
  return good && read_frames(msg, peer); /* a frame may have waited for the room */
}

struct mrc_msg_peer *mrc_msg_start_receive(struct mrc_msg *msg, struct mrc_msg_op *op) {
  const bool claims = op->post.claim;
  const struct mrc_msg_op *taker = NULL;
  op->state = MRC_MSG_POSTED;
  while (taker != op) { /* which has ended then, or waits for the data */
    struct mrc_msg_entry *entry =
        claims ? mrc_msg_claimed(msg, &op->post) : mrc_msg_match_message(msg, op);
    if (entry == NULL && !claims) return await(msg, op);
    if (entry == NULL) {
      mrc_msg_finish(msg, op, -ENOMSG);
      return NULL;
    }
    struct mrc_msg_peer *peer = msg->peers[entry->peer];
    struct mrc_msg_op *part = claims ? op : mrc_msg_op_part(msg, op, entry->record.bytes);
    taker = part;
    if (!take(msg, peer, part, entry)) return peer;
  }
  return NULL;
}

/* ---- 4. Sends ---- */

/* A send has its place. False: too many answers. */
static bool take_cts(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                     const struct mrc_msg_record *cts) {
  const bool room = op->bytes <= cts->bytes;
  if (!room || !mrc_msg_op_register(msg, op, op->bytes)) {
    const uint64_t bytes = op->bytes;
    mrc_msg_finish(msg, op, room ? -ENOSPC : -EMSGSIZE);
    return mrc_msg_answer(msg, peer, MRC_MSG_REFUSE, cts->id, bytes);
  }
  if (op->record == MRC_MSG_WITHDRAW) mrc_node_leave(&op->out); /* too late */
  op->state = MRC_MSG_WRITING;
  op->address = cts->address;
  op->rkey = cts->rkey;
  op->theirs = cts->id;
  mrc_node_leave(&op->node);
  mrc_list_append(&peer->writing, &op->node);
  mrc_msg_mark(msg, peer);
  return true;
}

bool mrc_msg_start_send(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op) {
  if (op->bytes <= msg->config.eager_bytes) {
    op->state = MRC_MSG_QUEUED;
    mrc_msg_say(msg, peer, op, MRC_MSG_EAGER);
    return true;
  }
  mrc_msg_prepare(msg, op);
  struct mrc_msg_entry *request = mrc_msg_oldest_for(peer, op, true);
  op->state = MRC_MSG_WAITING;
  mrc_msg_await(msg, op);
  mrc_msg_say(msg, peer, op, MRC_MSG_RTS);
  if (request == NULL) return read_frames(msg, peer); /* it may be in a frame that waits */
  const struct mrc_msg_record cts = request->record;
  mrc_msg_drop(peer, request);
  return take_cts(msg, peer, op, &cts) && read_frames(msg, peer);
}

/* ---- 3. Records ---- */

static enum verdict on_eager(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                             const struct mrc_msg_record *record, const uint8_t *bytes) {
  struct mrc_msg_op *op = mrc_msg_match_receive(msg, peer, record);
  if (op == NULL) return mrc_msg_keep(msg, peer, record, bytes) ? TAKEN : WAIT;
  if (op->state == MRC_MSG_POSTED) {
    struct mrc_msg_op *part = mrc_msg_op_part(msg, op, record->bytes);
    part->peer = peer->number;
    deliver(msg, part, record, bytes);
    return TAKEN;
  }
  op->peer = peer->number;
  /* Its message was to be a long one, and the peer may know where to write that. */
  const bool left = !mrc_node_joined(&op->out);
  op->bytes = record->bytes;
  op->result = -EMSGSIZE;
  if (left) {
    op->state = MRC_MSG_CANCELLING;
    mrc_msg_say(msg, peer, op, MRC_MSG_CANCEL);
  } else {
    mrc_msg_finish(msg, op, op->result);
  }
  return TAKEN;
}

/* An RTS or CTS. An operation has one, so it is found by its id. */
static enum verdict keep_promise(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                                 const struct mrc_msg_record *record) {
  if (mrc_msg_kept(msg, peer, record->kind, record->id) != NULL) return WRONG;
  return mrc_msg_keep(msg, peer, record, NULL) ? TAKEN : WAIT;
}

static enum verdict on_rts(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                           const struct mrc_msg_record *record) {
  struct mrc_msg_op *op = mrc_msg_match_receive(msg, peer, record);
  if (op == NULL) return keep_promise(msg, peer, record);
  if (op->state == MRC_MSG_POSTED)
    return taken_if(grant(msg, peer, mrc_msg_op_part(msg, op, record->bytes), record));
  if (op->arrived && record->bytes > op->post.bytes) return WRONG; /* it should have refused */
  announce(msg, op, record);
  return TAKEN;
}

static enum verdict on_cts(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                           const struct mrc_msg_record *record) {
  struct mrc_msg_op *op;
  if (record->other != 0) {
    op = mrc_msg_op_at(msg, record->other, peer->number, MRC_MSG_SEND);
    if (op == NULL) return WRONG;
    if (op->state != MRC_MSG_WAITING && op->state != MRC_MSG_WITHDRAWN_ASKED) return WRONG;
  } else {
    op = mrc_msg_match_send(msg, peer, record);
    if (op == NULL) return keep_promise(msg, peer, record);
  }
  return taken_if(take_cts(msg, peer, op, record));
}

/* The data of a READ are in place, or never come. Nobody knows its id before its FETCH has left. */
static bool end_read(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                     int32_t result) {
  if (op == NULL || op->record != MRC_MSG_FETCH || mrc_node_joined(&op->out)) return false;
  mrc_msg_end_read(msg, peer, op, result);
  return true;
}

static enum verdict on_forget(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint32_t id,
                              enum mrc_msg_record_kind what, enum mrc_msg_record_kind answer) {
  struct mrc_msg_entry *entry = mrc_msg_kept(msg, peer, what, id);
  if (entry == NULL) return TAKEN; /* an operation has taken it */
  mrc_msg_drop(peer, entry);
  return taken_if(mrc_msg_answer(msg, peer, answer, id, 0));
}

/* Ends an operation that is in one of two states. */
static enum verdict on_end(struct mrc_msg *msg, struct mrc_msg_op *op, uint8_t one, uint8_t other,
                           int result) {
  if (op == NULL || (op->state != one && op->state != other)) return WRONG;
  mrc_msg_finish(msg, op, op->result != 0 ? op->result : result);
  return TAKEN;
}

static enum verdict on_refuse(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t bytes) {
  if (op == NULL || op->arrived) return WRONG;
  const bool announced = op->state == MRC_MSG_MATCHED;
  if (!announced && op->result == 0) op->bytes = bytes;
  const bool full = op->bytes > 0 && op->bytes <= op->post.bytes;
  const uint8_t one = announced ? MRC_MSG_MATCHED : MRC_MSG_ASKED;
  return on_end(msg, op, one, MRC_MSG_CANCELLING, full ? -ENOSPC : -EMSGSIZE);
}

static enum verdict on_truncated(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t room) {
  const bool full = op != NULL && op->bytes <= room;
  return on_end(msg, op, MRC_MSG_WAITING, MRC_MSG_WITHDRAWN_ASKED, full ? -ENOSPC : -EMSGSIZE);
}

static enum verdict on_record(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                              const struct mrc_msg_record *record, const uint8_t *at) {
  const uint32_t id = record->id;
  struct mrc_msg_op *send = mrc_msg_op_at(msg, id, peer->number, MRC_MSG_SEND);
  struct mrc_msg_op *receive = mrc_msg_op_at(msg, id, peer->number, MRC_MSG_RECV);
  struct mrc_msg_op *read = mrc_msg_op_at(msg, id, peer->number, MRC_MSG_READ);
  struct mrc_msg_op *atomic = mrc_msg_op_at(msg, id, peer->number, MRC_MSG_ATOMIC);
  switch ((enum mrc_msg_record_kind)record->kind) {
    case MRC_MSG_EAGER:
      return on_eager(msg, peer, record, eager_of(at));
    case MRC_MSG_RTS:
      return on_rts(msg, peer, record);
    case MRC_MSG_CTS:
      return on_cts(msg, peer, record);
    case MRC_MSG_CANCEL:
      return on_forget(msg, peer, id, MRC_MSG_CTS, MRC_MSG_CANCELLED);
    case MRC_MSG_WITHDRAW:
      return on_forget(msg, peer, id, MRC_MSG_RTS, MRC_MSG_WITHDRAWN);
    case MRC_MSG_CANCELLED:
      return on_end(msg, receive, MRC_MSG_CANCELLING, MRC_MSG_CANCELLING, -ECANCELED);
    case MRC_MSG_WITHDRAWN:
      return on_end(msg, send, MRC_MSG_WITHDRAWN_ASKED, MRC_MSG_WITHDRAWN_ASKED, -ECANCELED);
    case MRC_MSG_REFUSE:
      return on_refuse(msg, receive, record->bytes);
    case MRC_MSG_TRUNCATED:
      return on_truncated(msg, send, record->bytes);
    case MRC_MSG_FETCH:
      return taken_if(mrc_msg_fetch(msg, peer, record));
    case MRC_MSG_UNREADABLE:
      if (atomic != NULL) return taken_if(end_atomic(msg, atomic, 0, -EACCES));
      return taken_if(end_read(msg, peer, read, -EACCES));
    case MRC_MSG_CHANGE:
      return taken_if(answer_change(msg, peer, record));
    case MRC_MSG_CHANGED:
      return taken_if(end_atomic(msg, atomic, record->bytes, 0));
  }
  return WRONG;
}

/* ---- 2 and 1. Frames and immediates ---- */

/* Reads a frame from `offset`; the peer may change it meanwhile, so each word is read once. */
static enum verdict read_frame(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  const uint32_t place = mrc_slots_place(&peer->slots, peer->slots.freed);
  const uint32_t size = peer->sizes[place / MRC_MSG_SLOT_BYTES];
  const uint8_t *frame = peer->inbox + place;
  if (peer->offset == 0) peer->offset = MRC_MSG_FRAME_HEADER;
  while (peer->offset < size) {
    struct mrc_msg_record record;
    const uint8_t *at = frame + peer->offset;
    const size_t bytes = mrc_msg_decode(at, size - peer->offset, &record);
    if (bytes == 0 || peer->error != 0) return WRONG;
    const enum verdict verdict = on_record(msg, peer, &record, at);
    if (verdict != TAKEN) return verdict;
    peer->offset += (uint32_t)bytes;
  }
  peer->offset = 0;
  peer->slots.freed++;
  mrc_msg_mark(msg, peer);
  return TAKEN;
}

/* Reads the frames that arrived, up to one that has to wait. False as above. */
static bool read_frames(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  while (peer->slots.freed != peer->slots.arrived) {
    const enum verdict verdict = read_frame(msg, peer);
    if (verdict == WAIT && !mrc_node_joined(&peer->stalled)) {
      msg->counters.stalls++;
      mrc_list_append(&msg->stalled, &peer->stalled);
    }
    if (verdict != TAKEN) return verdict == WAIT;
  }
  mrc_node_leave(&peer->stalled);
  return true;
}

static bool on_frame(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint32_t number,
                     uint32_t bytes) {
  const int place = mrc_slots_arrive(&peer->slots, number, MRC_IMM_NUMBER, bytes);
  if (place < 0) return false;
  peer->sizes[place / MRC_MSG_SLOT_BYTES] = (uint16_t)bytes;
  /* The credit counts even while the records have to wait. */
  if (!mrc_slots_credit(&peer->slots, mrc_get32(peer->inbox + place), UINT32_MAX)) return false;
  return read_frames(msg, peer);
}

static bool on_data(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint32_t id) {
  struct mrc_msg_op *op = mrc_msg_op_at(msg, id, peer->number, MRC_MSG_READ);
  if (op != NULL) return end_read(msg, peer, op, 0);
  op = mrc_msg_op_at(msg, id, peer->number, MRC_MSG_RECV);
  if (op == NULL || op->key == 0 || op->arrived) return false;
  if (op->record == MRC_MSG_CTS && mrc_node_joined(&op->out)) return false; /* nobody knows where */
  if (op->state == MRC_MSG_MATCHED) {
    if (op->bytes > op->post.bytes) return false; /* it should have refused */
    mrc_msg_finish(msg, op, op->result);
    return true;
  }
  op->arrived = true; /* its RTS is in a frame that waits */
  return op->state == MRC_MSG_ASKED || op->state == MRC_MSG_CANCELLING;
}

bool mrc_msg_on_imm(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint32_t imm, uint32_t bytes) {
  const uint32_t number = imm & MRC_IMM_NUMBER;
  mrc_msg_mark(msg, peer); /* a credit lets more go */
  switch (imm >> 30) {
    case MRC_MSG_IMM_DATA:
      return on_data(msg, peer, number);
    case MRC_MSG_IMM_FRAME:
      return on_frame(msg, peer, number, bytes);
    case MRC_MSG_IMM_CREDIT:
      return mrc_slots_credit(&peer->slots, number, MRC_IMM_NUMBER);
    default:
      return false;
  }
}
