/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/msg.h"

#include <errno.h>
#include <stdlib.h>

#include "msg/operations.h"
#include "msg/receive.h"
#include "msg/send.h"

enum {
  DEFAULT_PEERS = 256,
  DEFAULT_HEAP_BYTES = 1 << 20,
  DEFAULT_EAGER_BYTES = 4096,
  HEAP_BYTES_OF_CHAIN = 1 << 10, /* so a chain has 6 members on average, when the heap is full */
  LEAST_DEPTH = 16,
  PAGE = 4096
};

/* ---- the module ---- */

static bool set_defaults(struct mrc_msg_config *config) {
  if (config->max_peers == 0) config->max_peers = DEFAULT_PEERS;
  if (config->max_operations == 0) config->max_operations = MRC_MSG_MAX_OPERATIONS;
  if (config->heap_bytes == 0) config->heap_bytes = DEFAULT_HEAP_BYTES;
  if (config->eager_bytes == 0) config->eager_bytes = DEFAULT_EAGER_BYTES;
  return config->engine != NULL && config->done != NULL &&
         config->max_operations <= MRC_MSG_MAX_OPERATIONS && config->max_peers <= 1 << 16 &&
         config->eager_bytes <= MRC_MSG_MOST_EAGER &&
         config->heap_bytes >= 2 * MRC_MSG_SLOT_BYTES; /* any one message fits */
}

struct mrc_msg *mrc_msg_new(const struct mrc_msg_config *config) {
  struct mrc_msg *msg = calloc(1, sizeof *msg);
  if (msg == NULL) return NULL;
  msg->config = *config;
  bool good = set_defaults(&msg->config);
  msg->secret = (struct mrc_secret){.key = {config->seed[0], config->seed[1]}};
  msg->expire_ns = UINT64_MAX;
  msg->factor = mrc_secret_next(&msg->secret) | 1;
  mrc_list_init(&msg->posted);
  mrc_list_init(&msg->unexpected);
  mrc_list_init(&msg->claimed);
  mrc_list_init(&msg->busy);
  mrc_list_init(&msg->stalled);
  good = good && mrc_msg_ops_init(msg) == 0;
  if (good) msg->peers = calloc(msg->config.max_peers, sizeof(struct mrc_msg_peer *));
  good = good && msg->peers != NULL && mrc_keymap_init(&msg->by_qpn, msg->config.max_peers) == 0;
  if (good) return msg;
  mrc_msg_ops_free(msg);
  free(msg->peers);
  free(msg);
  return NULL;
}

/* ---- peers ---- */

static struct mrc_msg_peer *peer_at(const struct mrc_msg *msg, uint32_t number) {
  return number < msg->config.max_peers ? msg->peers[number] : NULL;
}

static void free_peer(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  if (peer->inbox_key != 0) mrc_mr_deregister(msg->config.engine, peer->inbox_key);
  if (peer->outbox_key != 0) mrc_mr_deregister(msg->config.engine, peer->outbox_key);
  free(peer->inbox);
  free(peer->outbox);
  free(peer->answers);
  mrc_msg_chains_free(&peer->by_id);
  mrc_msg_chains_free(&peer->by_tag);
  free(peer);
}

static int allocate(struct mrc_msg_peer *peer) {
  peer->inbox = aligned_alloc(PAGE, MRC_MSG_INBOX_BYTES);
  peer->outbox = aligned_alloc(PAGE, MRC_MSG_INBOX_BYTES);
  peer->answers = calloc(MRC_MSG_MAX_OPERATIONS, sizeof *peer->answers);
  if (peer->inbox == NULL || peer->outbox == NULL || peer->answers == NULL) return -ENOMEM;
  memset(peer->inbox, 0, MRC_MSG_INBOX_BYTES);
  const uint32_t n = peer->limits.heap_bytes / HEAP_BYTES_OF_CHAIN;
  const int error = mrc_msg_chains_init(&peer->by_id, n);
  return error != 0 ? error : mrc_msg_chains_init(&peer->by_tag, n);
}

static int register_boxes(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  peer->inbox_key =
      mrc_msg_register(msg, (uintptr_t)peer->inbox, MRC_MSG_INBOX_BYTES, MRC_ACCESS_REMOTE_WRITE);
  peer->outbox_key =
      mrc_msg_register(msg, (uintptr_t)peer->outbox, MRC_MSG_INBOX_BYTES, MRC_ACCESS_LOCAL_READ);
  return peer->inbox_key != 0 && peer->outbox_key != 0 ? 0 : -ENOSPC;
}

/* Sets `made`. 0, -ENOMEM or -ENOSPC. */
static int make_peer(struct mrc_msg *msg, uint32_t qpn, const struct mrc_msg_limits *limits,
                     struct mrc_msg_peer **made) {
  struct mrc_msg_peer *peer = calloc(1, sizeof *peer);
  if (peer == NULL) return -ENOMEM;
  peer->qpn = qpn;
  peer->limits = *limits;
  peer->slots = (struct mrc_slots){
      .count = MRC_MSG_SLOTS, .bytes = MRC_MSG_SLOT_BYTES, .least = MRC_MSG_FRAME_HEADER};
  if (limits->heap_bytes == 0) peer->limits.heap_bytes = msg->config.heap_bytes;
  mrc_list_init(&peer->out);
  mrc_list_init(&peer->writing);
  mrc_list_init(&peer->sent);
  mrc_list_init(&peer->reading);
  mrc_list_init(&peer->operations);
  mrc_list_init(&peer->posted);
  mrc_list_init(&peer->unexpected);
  mrc_list_init(&peer->claimed);
  mrc_list_init(&peer->requests);
  int error = allocate(peer);
  if (error == 0) error = register_boxes(msg, peer);
  if (error != 0) free_peer(msg, peer);
  *made = peer;
  return error;
}

int mrc_msg_open(struct mrc_msg *msg, uint32_t qpn, const struct mrc_msg_limits *limits,
                 struct mrc_msg_inbox *inbox) {
  uint32_t number = 0;
  while (number < msg->config.max_peers && msg->peers[number] != NULL)
    number++;
  if (number == msg->config.max_peers) return -ENOSPC;
  const bool any_fits = limits->heap_bytes == 0 || limits->heap_bytes >= 2 * MRC_MSG_SLOT_BYTES;
  if (limits->sq_depth < LEAST_DEPTH || limits->max_wimm < 1 || !any_fits) return -EINVAL;
  if (mrc_msg_owns(msg, qpn)) return -EEXIST;
  struct mrc_msg_peer *peer;
  int error = make_peer(msg, qpn, limits, &peer);
  if (error != 0) return error;
  error = mrc_keymap_put(&msg->by_qpn, qpn, number);
  mrc_assert(error == 0);
  peer->number = number;
  msg->peers[number] = peer;
  *inbox = (struct mrc_msg_inbox){
      .address = (uintptr_t)peer->inbox, .rkey = peer->inbox_key, .max_wimm = limits->max_wimm};
  return (int)number;
}

int mrc_msg_connect(struct mrc_msg *msg, uint32_t number, const struct mrc_msg_inbox *inbox) {
  struct mrc_msg_peer *peer = peer_at(msg, number);
  if (peer == NULL || peer->connected || inbox->max_wimm < 1) return -EINVAL;
  peer->theirs = *inbox;
  peer->connected = true;
  msg->expire_ns = 0; /* it enters the watch */
  mrc_msg_mark(msg, peer);
  return 0;
}

bool mrc_msg_is_idle(const struct mrc_msg *msg, uint32_t number) {
  const struct mrc_msg_peer *peer = peer_at(msg, number);
  if (peer == NULL || peer->error != 0) return true;
  return peer->wrs == 0 && !mrc_msg_has_records(peer) && mrc_list_is_empty(&peer->writing);
}

static void fail(struct mrc_msg *msg, struct mrc_msg_peer *peer, int error, uint64_t now_ns) {
  if (peer->error != 0) return;
  peer->error = error;
  /* It may be there already. */
  mrc_qp_modify(msg->config.engine, peer->qpn, MRC_QP_ERROR, NULL, NULL, now_ns);
  struct mrc_node *next;
  for (struct mrc_node *node = peer->operations.next; node != &peer->operations; node = next) {
    struct mrc_msg_op *op = MRC_MSG_OP(owner, node);
    next = node->next;
    if (op->writes == 0)
      mrc_msg_finish(msg, op, error);
    else /* it ends when its writes are flushed, and its memory is read no longer */
      op->result = error;
  }
  peer->answers_n = 0;
  mrc_msg_forget(peer, true);
  mrc_node_leave(&peer->busy);
  mrc_node_leave(&peer->stalled);
}

void mrc_msg_fail(struct mrc_msg *msg, uint32_t number, int error, uint64_t now_ns) {
  struct mrc_msg_peer *peer = peer_at(msg, number);
  if (peer != NULL) fail(msg, peer, error, now_ns);
}

void mrc_msg_fail_qp(struct mrc_msg *msg, uint32_t qpn, int error, uint64_t now_ns) {
  mrc_msg_fail(msg, mrc_keymap_get(&msg->by_qpn, qpn), error, now_ns);
}

static void violate(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  if (peer->error == 0) msg->counters.violations++;
  fail(msg, peer, -EPROTO, now_ns);
}

void mrc_msg_close(struct mrc_msg *msg, uint32_t number) {
  struct mrc_msg_peer *peer = peer_at(msg, number);
  if (peer == NULL) return;
  fail(msg, peer, -ECONNRESET, 0);
  while (!mrc_list_is_empty(&peer->operations)) { /* their completions went with the QP */
    struct mrc_msg_op *op = MRC_MSG_OP(owner, peer->operations.next);
    op->writes = 0;
    mrc_msg_finish(msg, op, op->result);
  }
  mrc_msg_forget(peer, false);
  mrc_keymap_remove(&msg->by_qpn, peer->qpn);
  msg->peers[number] = NULL;
  free_peer(msg, peer);
}

static void ignore(void *user, const struct mrc_msg_done *done) {
  (void)user;
  (void)done;
}

void mrc_msg_free(struct mrc_msg *msg) {
  msg->config.done = ignore;
  for (uint32_t i = 0; i < msg->config.max_peers; i++)
    mrc_msg_close(msg, i);
  mrc_keymap_free(&msg->by_qpn);
  free(msg->peers);
  mrc_msg_ops_free(msg);
  free(msg);
}

/* ---- operations ---- */

static bool is_valid(const struct mrc_msg *msg, const struct mrc_msg_post *post) {
  const bool matched = post->kind == MRC_MSG_RECV || post->kind == MRC_MSG_PEEK;
  const bool any = matched && post->peer == MRC_MSG_ANY;
  if (post->kind > MRC_MSG_ATOMIC || (!any && peer_at(msg, post->peer) == NULL)) return false;
  const bool atomic = post->kind == MRC_MSG_ATOMIC;
  const bool remote = post->kind == MRC_MSG_WRITE || post->kind == MRC_MSG_READ || atomic;
  if (remote && (post->tag + post->bytes < post->tag || post->ignore > UINT32_MAX)) return false;
  if (atomic) return mrc_msg_atomic_is_valid(post->data, post->bytes, post->tag);
  return post->bytes == 0 || post->kind == MRC_MSG_PEEK ||
         (post->address != 0 && post->address + post->bytes > post->address);
}

static void start(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t now_ns) {
  struct mrc_msg_peer *peer = peer_at(msg, op->post.peer);
  struct mrc_msg_peer *wrong = NULL;
  op->state = op->post.kind == MRC_MSG_SEND ? MRC_MSG_WAITING : MRC_MSG_POSTED;
  if (peer != NULL) mrc_msg_op_join(op, peer);
  if (op->post.kind == MRC_MSG_RECV || op->post.kind == MRC_MSG_PEEK) mrc_msg_prepare(msg, op);
  if (op->post.kind == MRC_MSG_PEEK) {
    mrc_msg_peek(msg, op);
    return;
  }
  const bool ended = peer != NULL && peer->error != 0;
  const bool came =
      ended && op->post.kind == MRC_MSG_RECV && mrc_msg_match_message(msg, op) != NULL;
  if (ended && !came) /* a message that arrived before is taken all the same */
    mrc_msg_finish(msg, op, peer->error);
  else if (op->post.kind == MRC_MSG_RECV)
    wrong = mrc_msg_start_receive(msg, op);
  else if (op->post.kind == MRC_MSG_WRITE)
    mrc_msg_start_write(msg, peer, op);
  else if (op->post.kind == MRC_MSG_READ)
    mrc_msg_start_read(msg, peer, op);
  else if (op->post.kind == MRC_MSG_ATOMIC)
    mrc_msg_start_atomic(msg, peer, op);
  else if (!mrc_msg_start_send(msg, peer, op))
    wrong = peer;
  if (wrong != NULL) violate(msg, wrong, now_ns);
}

int mrc_msg_post(struct mrc_msg *msg, const struct mrc_msg_post *posts, int n, uint64_t now_ns) {
  int taken = 0;
  for (; taken < n; taken++) {
    if (!is_valid(msg, &posts[taken])) return taken > 0 ? taken : -EINVAL;
    struct mrc_msg_op *op = mrc_msg_op_new(msg, &posts[taken]);
    if (op == NULL) break;
    start(msg, op, now_ns);
  }
  return taken;
}

/* A record of the operation waits for its frame, so that the peer knows nothing of it. */
static bool is_unsaid(const struct mrc_msg_op *op) { return mrc_node_joined(&op->out); }

static void cancel(struct mrc_msg *msg, struct mrc_msg_op *op) {
  struct mrc_msg_peer *peer = peer_at(msg, op->peer);
  switch ((enum mrc_msg_state)op->state) {
    case MRC_MSG_QUEUED:
    case MRC_MSG_POSTED:
      mrc_msg_finish(msg, op, -ECANCELED);
      return;
    case MRC_MSG_WAITING:
    case MRC_MSG_ASKED: {
      const bool sends = op->post.kind == MRC_MSG_SEND;
      if (is_unsaid(op)) {
        mrc_msg_finish(msg, op, -ECANCELED);
        return;
      }
      op->state = sends ? MRC_MSG_WITHDRAWN_ASKED : MRC_MSG_CANCELLING;
      mrc_msg_say(msg, peer, op, sends ? MRC_MSG_WITHDRAW : MRC_MSG_CANCEL);
      return;
    }
    default: /* matched, or cancelled before */
      return;
  }
}

int mrc_msg_cancel(struct mrc_msg *msg, uint32_t space, uint64_t cookie) {
  struct mrc_msg_op *op = mrc_msg_op_named(msg, space, cookie);
  if (op == NULL) return -ENOENT;
  cancel(msg, op);
  return 0;
}

/* ---- the QPs ---- */

bool mrc_msg_owns(const struct mrc_msg *msg, uint32_t qpn) {
  return mrc_keymap_get(&msg->by_qpn, qpn) != MRC_KEYMAP_NONE;
}

void mrc_msg_take(struct mrc_msg *msg, const struct mrc_wc *wc, uint64_t now_ns) {
  struct mrc_msg_peer *peer = peer_at(msg, mrc_keymap_get(&msg->by_qpn, wc->qpn));
  mrc_assert(peer != NULL);
  peer->heard_ns = now_ns;
  if (wc->opcode == MRC_WC_RECV_IMM) {
    const bool good = peer->error != 0 || mrc_msg_on_imm(msg, peer, wc->imm, wc->bytes);
    if (!good) violate(msg, peer, now_ns);
    return;
  }
  struct mrc_msg_op *op = mrc_msg_sent(msg, peer, wc);
  if (wc->status != MRC_WC_SUCCESS && peer->error == 0) { /* ends the operation too */
    fail(msg, peer, wc->status == MRC_WC_RETRY_EXC_ERR ? -ETIMEDOUT : -ECONNRESET, now_ns);
    return;
  }
  if (op == NULL) return;
  const bool whole = op->begun == op->bytes && wc->status == MRC_WC_SUCCESS;
  if (whole || peer->error != 0) mrc_msg_finish(msg, op, whole ? 0 : peer->error);
}

uint64_t mrc_msg_deadline(const struct mrc_msg *msg) { return msg->expire_ns; }

/* When a peer will have been silent for too long; it is asked if that is now. */
static uint64_t listen(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns) {
  if (peer->heard_ns == 0) peer->heard_ns = now_ns;
  if (now_ns - peer->heard_ns >= MRC_MSG_SILENCE_NS) {
    peer->heard_ns = now_ns; /* from now on the QP watches it: the credit has a completion */
    peer->asked = true;
    mrc_msg_mark(msg, peer);
  }
  return peer->heard_ns + MRC_MSG_SILENCE_NS;
}

void mrc_msg_expire(struct mrc_msg *msg, uint64_t now_ns) {
  if (now_ns < msg->expire_ns) return;
  msg->expire_ns = UINT64_MAX;
  for (uint32_t i = 0; i < msg->config.max_peers; i++) {
    struct mrc_msg_peer *peer = msg->peers[i];
    if (peer == NULL || !peer->connected || peer->error != 0) continue;
    msg->expire_ns = mrc_min_u64(msg->expire_ns, listen(msg, peer, now_ns));
  }
  mrc_msg_pump(msg, now_ns);
}

void mrc_msg_pump(struct mrc_msg *msg, uint64_t now_ns) {
  struct mrc_node refused; /* the engine had no room for their work requests */
  mrc_list_init(&refused);
  while (!mrc_list_is_empty(&msg->busy)) {
    struct mrc_msg_peer *peer = MRC_NODE_OWNER(msg->busy.next, struct mrc_msg_peer, busy);
    mrc_node_leave(&peer->busy);
    if (!peer->connected || peer->error != 0) continue;
    const int error = mrc_msg_send(msg, peer, now_ns);
    if (error == -ENOBUFS)
      mrc_list_append(&refused, &peer->busy);
    else if (error != 0)
      fail(msg, peer, -ECONNRESET, now_ns);
  }
  while (!mrc_list_is_empty(&refused)) {
    struct mrc_node *node = refused.next;
    mrc_node_leave(node);
    mrc_list_append(&msg->busy, node);
  }
}
