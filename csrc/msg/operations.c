/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/operations.h"

#include <errno.h>
#include <stdlib.h>

int mrc_msg_chains_init(struct mrc_msg_chains *chains, uint32_t n) {
  n = mrc_ceil_pow2(n);
  *chains = (struct mrc_msg_chains){.heads = malloc(n * sizeof *chains->heads), .mask = n - 1};
  if (chains->heads == NULL) return -ENOMEM;
  for (uint32_t i = 0; i < n; i++)
    mrc_list_init(&chains->heads[i]);
  return 0;
}

void mrc_msg_chains_free(struct mrc_msg_chains *chains) { free(chains->heads); }

/* ---- the table of operations ---- */

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

/* ==== Which message belongs to which receive, and which CTS to which send ==== */

/* The hash of a peer, space and tag. A peer chooses tags and spaces, but cannot tell which of them
   share a chain. */
static uint64_t hash_of(const struct mrc_msg *msg, uint32_t peer, uint32_t space, uint64_t tag) {
  const uint64_t where = (uint64_t)peer << 32 | space;
  return mrc_secret_hash(msg->secret.key, tag + where * msg->factor);
}

/* ---- operations ---- */

void mrc_msg_prepare(const struct mrc_msg *msg, struct mrc_msg_op *op) {
  op->hash = hash_of(msg, op->post.peer, op->post.space, op->post.tag);
}

static bool fits(const struct mrc_msg_post *receive, uint32_t peer, uint32_t space, uint64_t tag) {
  return receive->kind != MRC_MSG_SEND && receive->space == space &&
         (receive->peer == MRC_MSG_ANY || receive->peer == peer) &&
         ((receive->tag ^ tag) & ~receive->ignore) == 0;
}

/* Whether all that a receive takes has the same peer and tag. */
static bool is_plain(const struct mrc_msg_post *receive) {
  return receive->peer != MRC_MSG_ANY && receive->ignore == 0;
}

/* The oldest receive of a list or chain that takes a message with this record, or NULL. */
static struct mrc_msg_op *oldest(const struct mrc_node *posted, uint32_t peer,
                                 const struct mrc_msg_record *record) {
  const bool eager = record->kind == MRC_MSG_EAGER;
  for (struct mrc_node *node = posted->next; node != posted; node = node->next) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, node);
    /* Only a send that has taken its CTS is announced to a receive that is being cancelled. */
    if (op->state == MRC_MSG_CANCELLING && eager) continue;
    if (fits(&op->post, peer, record->space, record->tag)) return op;
  }
  return NULL;
}

struct mrc_msg_op *mrc_msg_match_receive(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                                         const struct mrc_msg_record *record) {
  const uint32_t number = peer->number;
  const uint64_t hash = hash_of(msg, number, record->space, record->tag);
  struct mrc_msg_op *found[] = {
      oldest(mrc_msg_chain(&msg->by_tag, hash), number, record),
      oldest(&peer->posted, number, record),
      oldest(&msg->posted, number, record),
  };
  struct mrc_msg_op *first = NULL;
  for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
    if (found[i] != NULL && (first == NULL || found[i]->turn < first->turn)) first = found[i];
  return first;
}

void mrc_msg_await(struct mrc_msg *msg, struct mrc_msg_op *op) {
  const struct mrc_msg_post *post = &op->post;
  struct mrc_node *list;
  if (post->kind == MRC_MSG_SEND || is_plain(post))
    list = mrc_msg_chain(&msg->by_tag, op->hash);
  else
    list = post->peer == MRC_MSG_ANY ? &msg->posted : &msg->peers[post->peer]->posted;
  mrc_list_append(list, &op->node);
}

/* Whether a receive of a list could take what the exact one `op` asks for. */
static bool could_take(const struct mrc_node *posted, const struct mrc_msg_op *op) {
  for (struct mrc_node *node = posted->next; node != posted; node = node->next)
    if (fits(&MRC_MSG_OP(node, node)->post, op->post.peer, op->post.space, op->post.tag))
      return true;
  return false;
}

bool mrc_msg_is_ambiguous(struct mrc_msg *msg, const struct mrc_msg_op *op) {
  const struct mrc_msg_post *post = &op->post;
  const struct mrc_node *chain = mrc_msg_chain(&msg->by_tag, op->hash);
  /* Receives of this tag without a CTS are newer than those with one, so the newest one tells. */
  for (struct mrc_node *node = chain->prev; node != chain; node = node->prev) {
    const struct mrc_msg_op *older = MRC_MSG_OP(node, node);
    if (older == op || !fits(&older->post, post->peer, post->space, post->tag)) continue;
    if (older->state == MRC_MSG_POSTED) return true;
    break;
  }
  return could_take(&msg->peers[post->peer]->posted, op) || could_take(&msg->posted, op);
}

struct mrc_msg_op *mrc_msg_match_send(struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                      const struct mrc_msg_record *record) {
  const uint64_t hash = hash_of(msg, peer->number, record->space, record->tag);
  const struct mrc_node *chain = mrc_msg_chain(&msg->by_tag, hash);
  for (struct mrc_node *node = chain->next; node != chain; node = node->next) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, node);
    if (op->post.kind == MRC_MSG_SEND && op->peer == peer->number &&
        op->post.space == record->space && op->post.tag == record->tag)
      return op;
  }
  return NULL;
}

/* ---- what a peer has sent ---- */

struct mrc_msg_entry *mrc_msg_oldest_for(const struct mrc_msg_peer *peer,
                                         const struct mrc_msg_op *op, bool cts) {
  const struct mrc_node *chain = mrc_msg_chain(&peer->by_tag, op->hash);
  for (struct mrc_node *node = chain->next; node != chain; node = node->next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(same, node);
    const struct mrc_msg_record *record = &entry->record;
    if ((record->kind == MRC_MSG_CTS) == cts && record->space == op->post.space &&
        record->tag == op->post.tag)
      return entry;
  }
  return NULL;
}

static struct mrc_msg_entry *oldest_of_all(struct mrc_msg *msg, const struct mrc_msg_post *post) {
  for (struct mrc_node *node = msg->unexpected.next; node != &msg->unexpected; node = node->next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(all, node);
    if (fits(post, entry->peer, entry->record.space, entry->record.tag)) return entry;
  }
  return NULL;
}

struct mrc_msg_entry *mrc_msg_match_message(struct mrc_msg *msg, const struct mrc_msg_op *op) {
  const struct mrc_msg_post *post = &op->post;
  if (post->peer == MRC_MSG_ANY) return oldest_of_all(msg, post);
  const struct mrc_msg_peer *peer = msg->peers[post->peer];
  if (is_plain(post)) return mrc_msg_oldest_for(peer, op, false);
  const struct mrc_node *messages = &peer->unexpected;
  for (struct mrc_node *node = messages->next; node != messages; node = node->next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(node, node);
    if (fits(post, entry->peer, entry->record.space, entry->record.tag)) return entry;
  }
  return NULL;
}

void mrc_msg_claim(struct mrc_msg *msg, struct mrc_msg_entry *entry, uint64_t cookie) {
  entry->claim = cookie;
  mrc_node_leave(&entry->all);
  mrc_node_leave(&entry->same);
  mrc_node_leave(&entry->node);
  mrc_list_append(&msg->claimed, &entry->all);
  mrc_list_append(&msg->peers[entry->peer]->claimed, &entry->node);
}

struct mrc_msg_entry *mrc_msg_claimed(struct mrc_msg *msg, const struct mrc_msg_post *post) {
  for (struct mrc_node *node = msg->claimed.next; node != &msg->claimed; node = node->next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(all, node);
    if (entry->claim == post->tag && entry->record.space == post->space) return entry;
  }
  return NULL;
}

static size_t bytes_of(const struct mrc_msg_record *record) {
  const size_t message = record->kind == MRC_MSG_EAGER ? record->bytes : 0;
  return sizeof(struct mrc_msg_entry) + MRC_MSG_HEAP_OVERHEAD + message;
}

/* The chain of a CTS or RTS. The peer chooses the id, but cannot know the chain: the kind sets its
   hash apart from those of small numbers, which are the keys of memory regions. */
static struct mrc_node *chain_of_id(const struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                    enum mrc_msg_record_kind kind, uint32_t id) {
  const uint64_t key = (uint64_t)kind << 56 | id;
  return mrc_msg_chain(&peer->by_id, mrc_secret_hash(msg->secret.key, key));
}

struct mrc_msg_entry *mrc_msg_kept(const struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                   enum mrc_msg_record_kind kind, uint32_t id) {
  const struct mrc_node *chain = chain_of_id(msg, peer, kind, id);
  for (struct mrc_node *node = chain->next; node != chain; node = node->next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(named, node);
    if (entry->record.kind == kind && entry->record.id == id) return entry;
  }
  return NULL;
}

bool mrc_msg_keep(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                  const struct mrc_msg_record *record, const uint8_t *bytes) {
  const size_t n = bytes_of(record);
  if (peer->heap + n > peer->limits.heap_bytes) return false;
  struct mrc_msg_entry *entry = malloc(n - MRC_MSG_HEAP_OVERHEAD);
  if (entry == NULL) return false;
  *entry = (struct mrc_msg_entry){.record = *record, .peer = peer->number};
  if (record->kind == MRC_MSG_EAGER)
    memcpy(entry->bytes, bytes, record->bytes);
  else
    mrc_list_append(chain_of_id(msg, peer, record->kind, record->id), &entry->named);
  const uint64_t hash = hash_of(msg, peer->number, record->space, record->tag);
  mrc_list_append(mrc_msg_chain(&peer->by_tag, hash), &entry->same);
  if (record->kind != MRC_MSG_CTS) mrc_list_append(&msg->unexpected, &entry->all);
  mrc_list_append(record->kind == MRC_MSG_CTS ? &peer->requests : &peer->unexpected, &entry->node);
  peer->heap += n;
  return true;
}

void mrc_msg_drop(struct mrc_msg_peer *peer, struct mrc_msg_entry *entry) {
  const size_t n = bytes_of(&entry->record);
  mrc_assert(peer->number == entry->peer && peer->heap >= n);
  peer->heap -= n;
  mrc_node_leave(&entry->node);
  mrc_node_leave(&entry->all);
  mrc_node_leave(&entry->named);
  mrc_node_leave(&entry->same);
  free(entry);
}

void mrc_msg_forget(struct mrc_msg_peer *peer, bool promises) {
  struct mrc_node *lists[] = {&peer->unexpected, &peer->claimed, &peer->requests};
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    struct mrc_node *next;
    for (struct mrc_node *node = lists[i]->next; node != lists[i]; node = next) {
      struct mrc_msg_entry *entry = MRC_MSG_ENTRY(node, node);
      next = node->next;
      if (!promises || entry->record.kind != MRC_MSG_EAGER) mrc_msg_drop(peer, entry);
    }
  }
  mrc_assert(promises || peer->heap == 0);
}
