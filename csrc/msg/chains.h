/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table of list nodes. It knows neither the members nor their keys: the caller hashes, and
   compares the members of one chain. A member leaves by mrc_node_leave. */
#pragma once

#include "core/base.h"

struct mrc_msg_chains {
  struct mrc_node *heads;
  uint32_t mask; /* number of chains - 1 */
};

/* At least n chains. 0 or -ENOMEM. */
int mrc_msg_chains_init(struct mrc_msg_chains *chains, uint32_t n) MRC_MUST_CHECK;
void mrc_msg_chains_free(struct mrc_msg_chains *chains);

/* The chain of a key with this hash. */
static inline struct mrc_node *mrc_msg_chain(const struct mrc_msg_chains *chains, uint64_t hash) {
  return &chains->heads[hash & chains->mask];
}
