/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include "check.h"

struct member {
  char name;
  struct mrc_node node;
};

static char name_of(const struct mrc_node *node) {
  return MRC_NODE_OWNER(node, struct member, node)->name;
}

/* The names of the members in order; checks that the reverse order agrees. */
static const char *names(const struct mrc_node *list) {
  static char text[8];
  int n = 0;
  for (const struct mrc_node *at = list->next; at != list; at = at->next)
    text[n++] = name_of(at);
  text[n] = '\0';
  for (const struct mrc_node *at = list->prev; at != list; at = at->prev)
    CHECK_EQ(name_of(at), text[--n]);
  CHECK_EQ(n, 0);
  return text;
}

TEST(test_append__joins_once_and_prepend_goes_first) {
  struct mrc_node list;
  struct member a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};
  mrc_list_init(&list);
  CHECK(mrc_list_is_empty(&list));
  CHECK(!mrc_node_joined(&a.node));
  mrc_list_append(&list, &a.node);
  mrc_list_append(&list, &b.node);
  mrc_list_append(&list, &a.node);
  CHECK_STR_EQ(names(&list), "ab");
  mrc_list_prepend(&list, &c.node);
  mrc_list_prepend(&list, &b.node);
  CHECK_STR_EQ(names(&list), "cab");
  CHECK(mrc_node_joined(&a.node) && !mrc_list_is_empty(&list));
}

TEST(test_leave__takes_out_whoever_it_is) {
  struct mrc_node list;
  struct member a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};
  mrc_list_init(&list);
  mrc_list_append(&list, &a.node);
  mrc_list_append(&list, &b.node);
  mrc_list_append(&list, &c.node);
  mrc_node_leave(&b.node);
  CHECK_STR_EQ(names(&list), "ac");
  mrc_node_leave(&b.node); /* already left: no effect */
  mrc_node_leave(&a.node);
  mrc_node_leave(&c.node);
  CHECK(mrc_list_is_empty(&list) && !mrc_node_joined(&b.node));
  mrc_list_append(&list, &b.node);
  CHECK_STR_EQ(names(&list), "b");
}
