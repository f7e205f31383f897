/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant: whatever a peer writes into its inbox and says in its immediates, the messages of a
 * host stay within their memory and their bounds, no receive reports more bytes than it has room
 * for, or bytes without a message, every operation ends once, and another peer's messages arrive.
 *
 * The input is a stream of actions: of the hostile peer (rubbish, records with chosen fields,
 * immediates, failures), of the host's caller (sends, receives, cancels), and of the other peer.
 */
#include "core/base.h"
#include "fuzz.h"
#include "msg/frame.h"
#include "msg/msg.h"
#include "msg_wire.h"

enum { EAGER = 256, MOST_OPERATIONS = 32, MOST_POSTS = 96, OWN_SPACE = 99 };

static const uint32_t sizes[] = {0, 1, 100, EAGER, EAGER + 1, 3000, 2 << 20};

static struct fuzz_input input;
static _Alignas(8) uint8_t shown[4096]; /* region 1 shows it to peers, region 2 does not */
static struct wire_qp *hostile, *good;
static uint8_t *buffers[2][MOST_POSTS];
static uint64_t rooms[2][MOST_POSTS];
static uint64_t n_posts[2];
static uint32_t n_ids; /* of the hostile peer */
static int n_checked[2];

static uint32_t take(size_t n) { return (uint32_t)fuzz_take(&input, n); }

static uint32_t any_size(void) {
  const uint32_t i = take(1);
  return sizes[i % (i >= 0xE0 ? 7 : 6)];
}

/* Makes it an ATOMIC; the peer decides what comes of it. */
static void change(struct mrc_msg_post *post) {
  post->kind = MRC_MSG_ATOMIC;
  post->tag *= 8;
  post->bytes = 8;
  post->data = MRC_MSG_COMPARE_SWAP;
}

/* Posts an operation at a host, with memory of exactly its size. */
static void post(int at, uint32_t peer) {
  if (n_posts[at] == MOST_POSTS) return;
  const uint64_t cookie = n_posts[at]++;
  const uint32_t bits = take(1);
  uint32_t kind = bits & 1 ? MRC_MSG_RECV : MRC_MSG_SEND;
  if (at == 0 && peer == hostile->number && bits >> 6 == 2)
    kind = bits & 1 ? MRC_MSG_READ : MRC_MSG_WRITE;
  struct mrc_msg_post each = {.cookie = cookie,
                              .bytes = any_size(),
                              .tag = bits >> 2 & 3,
                              .space = bits >> 4 & 1,
                              .peer = peer,
                              .kind = (uint8_t)kind,
                              .exact = bits >> 1 & 1,
                              .delivered = bits >> 5 & 1};
  if (each.kind == MRC_MSG_RECV && bits >> 5 & 1) each.ignore = 1;
  if (each.kind == MRC_MSG_RECV && bits >> 6 == 3) each.peer = MRC_MSG_ANY;
  if (each.kind == MRC_MSG_RECV && bits >> 6 == 1) each.least = 64;
  if (each.kind == MRC_MSG_READ && bits >> 1 & 1) change(&each);
  uint8_t *memory = calloc(1, each.bytes + 1);
  mrc_assert(memory != NULL);
  each.address = (uintptr_t)memory;
  buffers[at][cookie] = memory;
  rooms[at][cookie] = each.bytes;
  const int taken = wire_post(&wire[at], &each);
  mrc_assert(taken == 1 || (taken == 0 && wire[at].msg->n_ops == MOST_OPERATIONS));
  if (taken == 0) free(memory);
  if (taken == 0) buffers[at][cookie] = NULL;
}

/* ---- the hostile peer ---- */

/* Most of what the peer says is plausible, or it would not live for long. */
static bool lies(void) { return take(1) >= 0xFC; }

/* An operation with the peer, of one kind; NULL if there is none. */
static const struct mrc_msg_op *any_operation(enum mrc_msg_kind kind) {
  const uint32_t first = take(1);
  for (uint32_t i = 0; i < MOST_OPERATIONS; i++) {
    const struct mrc_msg_op *op = &wire[0].msg->ops[(first + i) % MOST_OPERATIONS];
    if (op->state != MRC_MSG_FREE && op->peer == hostile->number && op->post.kind == kind)
      return op;
  }
  return NULL;
}

static uint32_t any_id(void) {
  const uint32_t kind = take(1) & 7;
  const struct mrc_msg_op *op = any_operation(kind == 7   ? MRC_MSG_ATOMIC
                                              : kind == 3 ? MRC_MSG_READ
                                                          : kind & 1);
  return op != NULL && !lies() ? op->id : take(4);
}

/* What ends an operation in its state. */
static struct mrc_msg_record answer(const struct mrc_msg_op *op) {
  struct mrc_msg_record record = {.kind = MRC_MSG_CANCELLED, .bytes = any_size(), .id = op->id};
  if (op->state == MRC_MSG_ASKED || op->state == MRC_MSG_MATCHED) record.kind = MRC_MSG_REFUSE;
  if (op->state == MRC_MSG_WAITING) record.kind = MRC_MSG_TRUNCATED;
  if (op->state == MRC_MSG_READING) record.kind = MRC_MSG_UNREADABLE;
  if (op->post.kind == MRC_MSG_ATOMIC && record.bytes > 1) record.kind = MRC_MSG_CHANGED;
  if (op->state == MRC_MSG_WITHDRAWN_ASKED) record.kind = MRC_MSG_WITHDRAWN;
  if (op->state == MRC_MSG_POSTED || op->state == MRC_MSG_WRITING) record.kind = MRC_MSG_EAGER;
  if (record.kind == MRC_MSG_EAGER) record.bytes %= EAGER + 1;
  return record;
}

/* A FETCH or CHANGE of memory that may be read, or next to it, or with no right. */
static void aim(struct mrc_msg_record *record) {
  record->tag = (uintptr_t)shown + take(1) % 4 * sizeof shown / 2 - take(1) % 2;
  record->other = 1 + take(1) % 8 / 6;
  if (record->kind != MRC_MSG_CHANGE) return;
  const uint32_t how = take(1);
  record->tag &= how >= 0xF8 ? ~0ull : ~7ull;
  record->rkey = how % (MRC_MSG_LAST_ATOMIC + 1) | (how & 8 ? 4u : 8u) << 8;
}

static struct mrc_msg_record any_record(void) {
  static const uint8_t harmless[] = {MRC_MSG_EAGER, MRC_MSG_CHANGE, MRC_MSG_RTS,    MRC_MSG_CTS,
                                     MRC_MSG_RTS,   MRC_MSG_EAGER,  MRC_MSG_CANCEL, MRC_MSG_FETCH};
  const uint32_t bits = take(1);
  const struct mrc_msg_op *op = any_operation(bits >> 6 == 3   ? MRC_MSG_READ
                                              : bits >> 6 == 2 ? MRC_MSG_ATOMIC
                                                               : bits >> 4 & 1);
  struct mrc_msg_record record = {.kind = harmless[bits % 8],
                                  .space = bits >> 4 & 1,
                                  .tag = bits >> 5 & 3,
                                  .bytes = any_size(),
                                  .id = take(1),
                                  .address = 1,
                                  .rkey = 1};
  if (bits % 32 == 31 && op != NULL) return answer(op);
  if (lies()) record.kind = (uint8_t)(1 + bits % MRC_MSG_LAST_KIND);
  const bool promises = record.kind == MRC_MSG_RTS || record.kind == MRC_MSG_CTS;
  record.id = promises && record.id < 0xFC ? ++n_ids : record.id % (n_ids + 1);
  if (record.kind == MRC_MSG_EAGER) record.bytes %= EAGER + 1;
  if (record.kind == MRC_MSG_FETCH || record.kind == MRC_MSG_CHANGE) aim(&record);
  const bool waits = op != NULL && op->state == MRC_MSG_WAITING;
  if (record.kind == MRC_MSG_CTS && (waits || lies())) record.other = waits ? op->id : any_id();
  return record;
}

static uint32_t next_credit(uint32_t n) {
  const struct mrc_msg_peer *peer = wire[0].msg->peers[hostile->number];
  const uint32_t unread = peer->slots.sent - peer->slots.credit;
  return peer->slots.credit + (n < unread || lies() ? n : unread);
}

/* Writes a frame of records into its slot. */
static void send_frame(void) {
  uint8_t *frame = wire_next_frame(hostile);
  const uint32_t credit = next_credit(take(1) & 1);
  uint32_t n = MRC_MSG_FRAME_HEADER;
  memcpy(frame, &credit, sizeof credit);
  for (uint32_t records = take(1) % 8; records > 0; records--) {
    const struct mrc_msg_record record = any_record();
    mrc_msg_encode(&record, frame + n);
    n += (uint32_t)mrc_msg_record_bytes(&record);
  }
  wire_frame(hostile, n);
  wire_turn(&wire[0]);
}

static void send_rubbish(void) {
  uint8_t *frame = wire_next_frame(hostile);
  const uint32_t n = take(1);
  for (uint32_t i = 0; i < n; i++)
    frame[i] = (uint8_t)take(1);
  wire_frame(hostile, n < 4 ? take(4) : MRC_MSG_FRAME_HEADER + n);
}

static void send_data(void) {
  const struct mrc_msg_op *op = any_operation(take(1) & 3 ? MRC_MSG_RECV : MRC_MSG_READ);
  const bool asked = op != NULL && op->key != 0 && !mrc_node_joined(&op->out);
  if (asked || lies())
    wire_immediate(hostile, mrc_imm(MRC_MSG_IMM_DATA, asked ? op->id : take(4)), take(2));
}

static void act_hostile(uint32_t action) {
  const uint32_t n = 1 + take(1) % 20;
  if (action == 0)
    send_rubbish();
  else if (action == 1)
    wire_immediate(hostile, take(4), take(2));
  else if (action == 2)
    wire_fail(hostile, (uint8_t)take(1) % (MRC_WC_RETRY_EXC_ERR + 1));
  else if (action < 0x18)
    send_data();
  else if (action < 0x28)
    wire_immediate(hostile, mrc_imm(MRC_MSG_IMM_CREDIT, next_credit(n)), 0);
  else if (action < 0x50)
    for (uint32_t i = 0; i < n; i++)
      action & 1 ? wire_deliver(hostile) : wire_complete(hostile);
  else
    for (uint32_t i = 0; i < n; i++)
      send_frame();
}

/* ---- checks ---- */

static void check_done(int at) {
  struct wire_host *host = &wire[at];
  for (; n_checked[at] < host->n_done; n_checked[at]++) {
    const struct mrc_msg_done *done = &host->done[n_checked[at]];
    if (done->cookie >= MOST_POSTS) continue;
    uint8_t **buffer = &buffers[at][done->cookie];
    mrc_assert(*buffer != NULL); /* it ends once */
    const bool tells = done->result == 0 || done->result == -EMSGSIZE;
    const uint64_t before = done->address - (uintptr_t)*buffer;
    if (done->result == 0) mrc_assert(before + done->bytes <= rooms[at][done->cookie]);
    if (!tells) mrc_assert(done->bytes == 0);
    if (done->goes_on) continue;
    free(*buffer); /* it is not used any more */
    *buffer = NULL;
  }
}

static void check_bounds(void) {
  for (int at = 0; at < 2; at++) {
    const struct wire_host *host = &wire[at];
    check_done(at);
    mrc_assert(host->msg->n_ops <= MOST_OPERATIONS);
    mrc_assert(host->n_mrs <= 2 * host->n_qps + (int)host->msg->n_ops + 2);
    for (int i = 0; i < host->n_qps; i++)
      mrc_assert(host->msg->peers[host->qps[i].number]->heap <= host->msg->config.heap_bytes);
  }
  mrc_assert(!good->failed && !good->peer->failed);
  mrc_assert(wire[0].msg->counters.violations <= 1);
}

/* A message between the other peer and the host, in a space of their own. */
static void check_good_peer(uint64_t bytes) {
  static uint8_t from[3000], to[3000];
  memset(from, (int)bytes | 1, sizeof from);
  memset(to, 0, sizeof to);
  const struct mrc_msg_post receive = {.cookie = 1000 + bytes,
                                       .address = (uintptr_t)to,
                                       .bytes = bytes,
                                       .space = OWN_SPACE,
                                       .peer = good->number,
                                       .kind = MRC_MSG_RECV,
                                       .exact = true};
  const struct mrc_msg_post send = {.cookie = 1000 + bytes,
                                    .address = (uintptr_t)from,
                                    .bytes = bytes,
                                    .space = OWN_SPACE,
                                    .kind = MRC_MSG_SEND};
  mrc_assert(wire_post(&wire[0], &receive) == 1 && wire_post(&wire[1], &send) == 1);
  wire_run();
  const struct mrc_msg_done *done = wire_ended(&wire[0], 1000 + bytes);
  mrc_assert(done != NULL && done->result == 0 && done->bytes == bytes);
  mrc_assert(memcmp(from, to, bytes) == 0);
}

static void cancel_all(void) {
  for (int at = 0; at < 2; at++)
    for (uint64_t i = 0; i < n_posts[at]; i++)
      for (uint32_t space = 0; space < 2; space++)
        mrc_msg_cancel(wire[at].msg, space, i);
  wire_run();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const struct mrc_msg_limits limits = {.sq_depth = 32, .max_wimm = 8};
  const struct mrc_msg_config config = {.max_operations = MOST_OPERATIONS,
                                        .heap_bytes = 2 * MRC_MSG_SLOT_BYTES,
                                        .eager_bytes = EAGER};
  struct mrc_msg_inbox inbox;
  input = (struct fuzz_input){data, size};
  memset(n_posts, 0, sizeof n_posts);
  n_ids = 0;
  memset(n_checked, 0, sizeof n_checked);
  wire_start(0, &config);
  wire_start(1, &config);
  const uint32_t hidden = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE;
  mrc_engine *engine = (mrc_engine *)&wire[0];
  int error =
      mrc_mr_register(engine, (uintptr_t)shown, sizeof shown, 1,
                      MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_READ | MRC_ACCESS_REMOTE_WRITE, 0);
  error |= mrc_mr_register(engine, (uintptr_t)shown, sizeof shown, 2, hidden, 0);
  mrc_assert(error == 0);
  hostile = wire_open(0, &limits, &inbox);
  good = wire_join(0, 1, &limits);
  mrc_assert(mrc_msg_connect(wire[0].msg, hostile->number, &inbox) == 0);
  while (input.n > 0) {
    const uint32_t action = take(1);
    if (action < 0x80)
      act_hostile(action);
    else if (action < 0xC0)
      post(0, action & 1 ? good->number : hostile->number);
    else if (action < 0xD0)
      post(1, 0);
    else if (action < 0xE0)
      mrc_msg_cancel(wire[action & 1].msg, action >> 1 & 1, take(1) % MOST_POSTS);
    else if (action < 0xF0)
      wire_deliver(action & 1 ? good : good->peer);
    else
      wire_complete(action & 1 ? good : good->peer);
    if (take(1) & 1) wire_turn(&wire[0]);
    if (action & 2) wire_turn(&wire[1]);
    check_bounds();
  }
  mrc_msg_fail(wire[0].msg, hostile->number, -ECONNRESET, 1);
  cancel_all();
  check_good_peer(100);
  check_good_peer(3000);
  cancel_all();
  check_bounds();
  mrc_assert(wire[0].msg->n_ops == 0 && wire[1].msg->n_ops == 0);
  for (uint32_t key = 1; key <= 2; key++)
    error |= mrc_mr_deregister(engine, key);
  mrc_assert(error == 0);
  wire_stop();
  for (int at = 0; at < 2; at++)
    for (uint64_t i = 0; i < n_posts[at]; i++)
      mrc_assert(buffers[at][i] == NULL);
  return 0;
}
