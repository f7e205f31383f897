/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/match.h"

#include <stdlib.h>

static bool fits(const struct mrc_msg_post *receive, uint32_t peer, uint32_t space, uint64_t tag) {
  return receive->space == space && (receive->peer == MRC_MSG_ANY || receive->peer == peer) &&
         ((receive->tag ^ tag) & ~receive->ignore) == 0;
}

struct mrc_msg_op *mrc_msg_match_receive(struct mrc_msg *msg, uint32_t peer,
                                         const struct mrc_msg_record *record) {
  const bool eager = record->kind == MRC_MSG_EAGER;
  for (struct mrc_node *node = msg->posted.next; node != &msg->posted; node = node->next) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, node);
    /* Only a send that has taken its CTS is announced to a receive that is being cancelled. */
    if (op->state == MRC_MSG_CANCELLING && eager) continue;
    if (fits(&op->post, peer, record->space, record->tag)) return op;
  }
  return NULL;
}

struct mrc_msg_entry *mrc_msg_match_message(struct mrc_msg *msg, const struct mrc_msg_post *post) {
  for (struct mrc_node *node = msg->unexpected.next; node != &msg->unexpected; node = node->next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(node);
    if (fits(post, entry->peer, entry->record.space, entry->record.tag)) return entry;
  }
  return NULL;
}

bool mrc_msg_is_ambiguous(struct mrc_msg *msg, const struct mrc_msg_op *op) {
  for (struct mrc_node *node = msg->posted.next; node != &msg->posted; node = node->next) {
    const struct mrc_msg_op *older = MRC_MSG_OP(node, node);
    if (older != op && older->state == MRC_MSG_POSTED &&
        fits(&older->post, op->post.peer, op->post.space, op->post.tag))
      return true;
  }
  return false;
}

struct mrc_msg_op *mrc_msg_match_send(struct mrc_msg_peer *peer,
                                      const struct mrc_msg_record *record) {
  for (struct mrc_node *node = peer->waiting.next; node != &peer->waiting; node = node->next) {
    struct mrc_msg_op *op = MRC_MSG_OP(node, node);
    if (op->post.space == record->space && op->post.tag == record->tag) return op;
  }
  return NULL;
}

struct mrc_msg_entry *mrc_msg_match_request(struct mrc_msg_peer *peer,
                                            const struct mrc_msg_op *op) {
  for (struct mrc_node *node = peer->requests.next; node != &peer->requests; node = node->next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(node);
    if (entry->record.space == op->post.space && entry->record.tag == op->post.tag) return entry;
  }
  return NULL;
}

static size_t bytes_of(const struct mrc_msg_record *record) {
  const size_t message = record->kind == MRC_MSG_EAGER ? record->bytes : 0;
  return sizeof(struct mrc_msg_entry) + MRC_MSG_HEAP_OVERHEAD + message;
}

/* The chain of a CTS or RTS. The peer chooses the id, but cannot know the chain. The keys of memory
   regions are hashes of small numbers. */
static struct mrc_node *chain_of(const struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                 enum mrc_msg_record_kind kind, uint32_t id) {
  const uint64_t key = 1ull << 63 | (uint64_t)kind << 32 | id;
  return mrc_msg_chain(&peer->by_id, mrc_secret_hash(msg->secret.key, key));
}

struct mrc_msg_entry *mrc_msg_kept(const struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                   enum mrc_msg_record_kind kind, uint32_t id) {
  const struct mrc_node *chain = chain_of(msg, peer, kind, id);
  for (struct mrc_node *node = chain->next; node != chain; node = node->next) {
    struct mrc_msg_entry *entry = MRC_NODE_OWNER(node, struct mrc_msg_entry, named);
    if (entry->record.kind == kind && entry->record.id == id) return entry;
  }
  return NULL;
}

bool mrc_msg_keep(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                  const struct mrc_msg_record *record, const uint8_t *bytes) {
  const size_t n = bytes_of(record);
  if (peer->heap + n > msg->config.heap_bytes) return false;
  struct mrc_msg_entry *entry = malloc(n - MRC_MSG_HEAP_OVERHEAD);
  if (entry == NULL) return false;
  *entry = (struct mrc_msg_entry){.record = *record, .peer = peer->number};
  if (record->kind == MRC_MSG_EAGER)
    memcpy(entry->bytes, bytes, record->bytes);
  else
    mrc_list_append(chain_of(msg, peer, record->kind, record->id), &entry->named);
  mrc_list_append(record->kind == MRC_MSG_CTS ? &peer->requests : &msg->unexpected, &entry->node);
  peer->heap += n;
  return true;
}

void mrc_msg_drop(struct mrc_msg_peer *peer, struct mrc_msg_entry *entry) {
  const size_t n = bytes_of(&entry->record);
  mrc_assert(peer->number == entry->peer && peer->heap >= n);
  peer->heap -= n;
  mrc_node_leave(&entry->node);
  mrc_node_leave(&entry->named);
  free(entry);
}

static struct mrc_node *list_of(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint8_t kind) {
  return kind == MRC_MSG_CTS ? &peer->requests : &msg->unexpected;
}

/* Drops all entries of this kind. */
static void drop_all(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint8_t kind) {
  struct mrc_node *list = list_of(msg, peer, kind), *next;
  for (struct mrc_node *node = list->next; node != list; node = next) {
    struct mrc_msg_entry *entry = MRC_MSG_ENTRY(node);
    next = node->next;
    if (entry->peer == peer->number && entry->record.kind == kind) mrc_msg_drop(peer, entry);
  }
}

void mrc_msg_forget_promises(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  drop_all(msg, peer, MRC_MSG_RTS);
  drop_all(msg, peer, MRC_MSG_CTS);
}

void mrc_msg_forget_all(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  mrc_msg_forget_promises(msg, peer);
  drop_all(msg, peer, MRC_MSG_EAGER);
  mrc_assert(peer->heap == 0);
}
