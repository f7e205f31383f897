/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/operations.h"

#include <errno.h>
#include <stdlib.h>

enum { INDEX_BITS = 16, ID_BITS = 30, ALIGNMENT = 8 };

#define INDEX(id) ((id) & ((1u << INDEX_BITS) - 1))
#define NO_OP UINT32_MAX

_Static_assert(MRC_MSG_MAX_OPERATIONS <= 1 << INDEX_BITS, "of an id");

int mrc_msg_ops_init(struct mrc_msg *msg) {
  const uint32_t n = msg->config.max_operations;
  msg->ops = calloc(n, sizeof *msg->ops);
  if (msg->ops == NULL || mrc_msg_chains_init(&msg->by_cookie, n) != 0 ||
      mrc_msg_chains_init(&msg->by_tag, n) != 0)
    return -ENOMEM;
  for (uint32_t i = 0; i < n; i++) {
    msg->ops[i].id = 1u << INDEX_BITS | i;
    msg->ops[i].theirs = i + 1 < n ? i + 1 : NO_OP;
  }
  return 0;
}

void mrc_msg_ops_free(struct mrc_msg *msg) {
  mrc_msg_chains_free(&msg->by_cookie);
  mrc_msg_chains_free(&msg->by_tag);
  free(msg->ops);
}

/* Cookies are often counted, or addresses. Every bit has its part in the hash, and neighbours have
   neighbouring chains, which are in the cache. */
static struct mrc_node *chain_of(const struct mrc_msg *msg, uint32_t space, uint64_t cookie) {
  const uint64_t key = cookie ^ (uint64_t)space << 32;
  return mrc_msg_chain(&msg->by_cookie, key ^ key >> 12 ^ key >> 24 ^ key >> 36 ^ key >> 48);
}

struct mrc_msg_op *mrc_msg_op_new(struct mrc_msg *msg, const struct mrc_msg_post *post) {
  if (msg->free_op == NO_OP) return NULL;
  struct mrc_msg_op *op = &msg->ops[msg->free_op];
  mrc_assert(op->state == MRC_MSG_FREE);
  msg->free_op = op->theirs;
  msg->n_ops++;
  *op = (struct mrc_msg_op){.post = *post,
                            .turn = msg->n_posts++,
                            .bytes = post->bytes,
                            .id = op->id,
                            .peer = MRC_MSG_ANY};
  mrc_list_append(chain_of(msg, post->space, post->cookie), &op->named);
  return op;
}

struct mrc_msg_op *mrc_msg_op_named(struct mrc_msg *msg, uint32_t space, uint64_t cookie) {
  const struct mrc_node *chain = chain_of(msg, space, cookie);
  for (struct mrc_node *node = chain->next; node != chain; node = node->next) {
    struct mrc_msg_op *op = MRC_MSG_OP(named, node);
    if (op->post.space == space && op->post.cookie == cookie) return op;
  }
  return NULL;
}

/* The id that the entry has next: a late word of a peer about the last one means nothing. */
static uint32_t next_id(uint32_t id) {
  const uint32_t next = (id + (1u << INDEX_BITS)) & ((1u << ID_BITS) - 1);
  return next >> INDEX_BITS == 0 ? 1u << INDEX_BITS | INDEX(id) : next;
}

struct mrc_msg_op *mrc_msg_op_at(struct mrc_msg *msg, uint32_t id, uint32_t peer,
                                 enum mrc_msg_kind kind) {
  if (INDEX(id) >= msg->config.max_operations) return NULL;
  struct mrc_msg_op *op = &msg->ops[INDEX(id)];
  const bool fits = op->state != MRC_MSG_FREE && op->id == id && op->peer == peer;
  return fits && op->post.kind == kind ? op : NULL;
}

void mrc_msg_op_join(struct mrc_msg_op *op, struct mrc_msg_peer *peer) {
  mrc_assert(op->peer == MRC_MSG_ANY || op->peer == peer->number);
  op->peer = peer->number;
  mrc_list_append(&peer->operations, &op->owner);
}

struct mrc_msg_op *mrc_msg_op_part(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t bytes) {
  struct mrc_msg_post *rest = &op->post;
  /* A message takes some room even if it is empty, so there is an end of them. */
  const uint64_t used = (mrc_max_u64(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (rest->least == 0 || bytes > rest->bytes || used > rest->bytes) return op;
  if (rest->bytes - used < rest->least) return op;
  struct mrc_msg_op *part = mrc_msg_op_new(msg, rest);
  if (part == NULL) return op; /* it is the last message */
  part->post.bytes = bytes;
  part->state = MRC_MSG_POSTED;
  part->whole = op;
  op->parts++;
  rest->address += used;
  rest->bytes -= used;
  return part;
}

uint32_t mrc_msg_register(struct mrc_msg *msg, uint64_t address, uint64_t bytes, uint32_t access) {
  int error = -EEXIST;
  uint32_t key = 0;
  while (error == -EEXIST) { /* the key is in use, or 0 */
    key = (uint32_t)mrc_secret_next(&msg->secret);
    if (key != 0) error = mrc_mr_register(msg->config.engine, address, bytes, key, access, 0);
  }
  return error == 0 ? key : 0;
}

bool mrc_msg_op_register(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t bytes) {
  mrc_assert(op->key == 0);
  if (bytes == 0) return true;
  const bool sends = op->post.kind == MRC_MSG_SEND || op->post.kind == MRC_MSG_WRITE;
  op->key = mrc_msg_register(msg, op->post.address, bytes,
                             sends ? MRC_ACCESS_LOCAL_READ : MRC_ACCESS_REMOTE_WRITE);
  return op->key != 0;
}

static void give_back(struct mrc_msg *msg, struct mrc_msg_op *op) {
  op->state = MRC_MSG_FREE;
  op->theirs = msg->free_op;
  msg->free_op = INDEX(op->id);
  msg->n_ops--;
}

/* Frees an operation that has ended. Whether others with the same cookie have not: the receive of
   which this was a part, or parts of this one. */
static bool leave(struct mrc_msg *msg, struct mrc_msg_op *op) {
  struct mrc_msg_op *whole = op->whole != NULL ? op->whole : op;
  if (whole != op) {
    give_back(msg, op);
    whole->parts--;
  } else if (op->parts > 0) {
    op->state = MRC_MSG_SPENT;
  } else {
    give_back(msg, op);
  }
  if (whole->state == MRC_MSG_SPENT && whole->parts == 0) give_back(msg, whole);
  return whole->state != MRC_MSG_FREE;
}

void mrc_msg_finish(struct mrc_msg *msg, struct mrc_msg_op *op, int32_t result) {
  mrc_assert(op->state != MRC_MSG_FREE && op->writes == 0);
  if (op->key != 0) {
    const int error = mrc_mr_deregister(msg->config.engine, op->key);
    mrc_assert(error == 0);
  }
  mrc_node_leave(&op->node);
  mrc_node_leave(&op->out);
  mrc_node_leave(&op->owner);
  mrc_node_leave(&op->named);
  op->id = next_id(op->id);
  const struct mrc_msg_done done = {.cookie = op->post.cookie,
                                    .bytes = result == 0 || result == -EMSGSIZE ? op->bytes : 0,
                                    .tag = op->post.tag,
                                    .space = op->post.space,
                                    .peer = op->peer,
                                    .result = result,
                                    .kind = op->post.kind,
                                    .goes_on = leave(msg, op),
                                    .data = op->post.data,
                                    .address = op->post.address};
  msg->config.done(msg->config.user, &done);
}
