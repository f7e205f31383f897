/* SPDX-License-Identifier: Apache-2.0 */
/* Lists through nodes that their members hold: to join, to leave and to ask costs the same however
   long the list is. */
#ifndef MRC_CORE_LIST_H
#define MRC_CORE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* In a member: all 0 while it is in no list. As the head of a list: next is the first, prev the
   last, and both are the head itself when the list is empty. */
struct mrc_node {
  struct mrc_node *next;
  struct mrc_node *prev;
};

/* What holds the node. */
#define MRC_NODE_OWNER(node, type, member) ((type *)((char *)(node) - offsetof(type, member)))

static inline void mrc_list_init(struct mrc_node *list) { list->next = list->prev = list; }

static inline bool mrc_list_is_empty(const struct mrc_node *list) { return list->next == list; }

static inline bool mrc_node_joined(const struct mrc_node *node) { return node->next != NULL; }

/* Puts a node that is in no list behind `before`, which is a member or the head. */
static inline void mrc_node_insert(struct mrc_node *before, struct mrc_node *node) {
  node->prev = before;
  node->next = before->next;
  before->next->prev = node;
  before->next = node;
}

/* At the end, or at the front, unless it is in the list already. */
static inline void mrc_list_append(struct mrc_node *list, struct mrc_node *node) {
  if (!mrc_node_joined(node)) mrc_node_insert(list->prev, node);
}
static inline void mrc_list_prepend(struct mrc_node *list, struct mrc_node *node) {
  if (!mrc_node_joined(node)) mrc_node_insert(list, node);
}

/* Takes it out of its list, if it is in one. */
static inline void mrc_node_leave(struct mrc_node *node) {
  if (!mrc_node_joined(node)) return;
  node->prev->next = node->next;
  node->next->prev = node->prev;
  *node = (struct mrc_node){0};
}

#endif
