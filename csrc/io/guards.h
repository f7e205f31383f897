/* SPDX-License-Identifier: Apache-2.0 */
/* The MRs of one context that have a SIGBUS guard, by key. It owns the guards, not the memory. */
#pragma once

#include "core/base.h"

struct mrc_guard {
  uint32_t key;
  int handle; /* of sigbus.h */
};

struct mrc_guards {
  struct mrc_guard *entries;
  uint32_t n;
  uint32_t capacity;
  bool replaced;        /* when an MR was added, the process had another handler */
  bool warned;          /* a warning about it was published */
  uint32_t faults_seen; /* mrc_sigbus_faults at the last complete check */
};

/* -ENOMEM */
int mrc_guards_open(struct mrc_guards *guards, uint32_t capacity) MRC_MUST_CHECK;
void mrc_guards_close(struct mrc_guards *guards);
/* -ENOSPC, or the errno of sigaction. */
int mrc_guards_add(struct mrc_guards *guards, uint32_t key, uint64_t address, uint64_t bytes,
                   int wake_fd) MRC_MUST_CHECK;
void mrc_guards_remove(struct mrc_guards *guards, uint32_t key);
/* Writes the keys of up to `capacity` MRs that lost their backing since the last call, and returns
   how many. */
int mrc_guards_take_faults(struct mrc_guards *guards, uint32_t *keys, int capacity);
