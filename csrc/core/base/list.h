/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive lists: the members hold the nodes. Every operation takes constant time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The node of a member is all 0 while it is in no list. In the head of a list `next` is the first
   node and `prev` the last; both point to the head itself if the list is empty. */
struct mrc_node {
  struct mrc_node *next;
  struct mrc_node *prev;
};

/* The struct that holds the node. */
#define MRC_NODE_OWNER(node, type, member) ((type *)((char *)(node) - offsetof(type, member)))

static inline void mrc_list_init(struct mrc_node *list) { list->next = list->prev = list; }

static inline bool mrc_list_is_empty(const struct mrc_node *list) { return list->next == list; }

static inline bool mrc_node_joined(const struct mrc_node *node) { return node->next != NULL; }

/* Inserts a node that is in no list after `before`, which is a member or the head. */
static inline void mrc_node_insert(struct mrc_node *before, struct mrc_node *node) {
  node->prev = before;
  node->next = before->next;
  before->next->prev = node;
  before->next = node;
}

/* Insert a node at the end, or at the front, unless it is in a list already. */
static inline void mrc_list_append(struct mrc_node *list, struct mrc_node *node) {
  if (!mrc_node_joined(node)) mrc_node_insert(list->prev, node);
}
static inline void mrc_list_prepend(struct mrc_node *list, struct mrc_node *node) {
  if (!mrc_node_joined(node)) mrc_node_insert(list, node);
}

/* Removes the node from its list, if it is in one. */
static inline void mrc_node_leave(struct mrc_node *node) {
  if (!mrc_node_joined(node)) return;
  node->prev->next = node->next;
  node->next->prev = node->prev;
  *node = (struct mrc_node){0};
}
