/* SPDX-License-Identifier: Apache-2.0 */
/* A guard for registered memory that loses its backing, such as a mapped file that a process
   truncates. An access there raises SIGBUS; the guard then maps zero pages and records the fault.
   It owns the process's SIGBUS handler and a table of guarded ranges. A SIGBUS outside these ranges
   goes to the previous handler. */
#pragma once

#include "core/base.h"

#define MRC_SIGBUS_RANGES 4096 /* guarded at a time in one process */

/* Guards [start, start + bytes) and returns a handle >= 0, or -ENOSPC, or the negative errno of
   sigaction. A fault writes 1 to the eventfd wake_fd. Any thread. */
int mrc_sigbus_add(const void *start, size_t bytes, int wake_fd) MRC_MUST_CHECK;
/* Ends the guard; afterwards no repair touches the range. Any thread. */
void mrc_sigbus_remove(int handle);
/* Whether this guard's handler is still installed. If the program has installed another handler
   since, that handler gets the faults in guarded ranges, and they usually end the process. */
bool mrc_sigbus_in_force(void);
/* In a child of fork, where none of the ranges is registered: ends every guard. */
void mrc_sigbus_forget(void);
/* Ranges hit by faults in this process so far. While it is constant, mrc_sigbus_take is false. */
uint32_t mrc_sigbus_faults(void);
/* True once after a fault in the range of this handle. */
bool mrc_sigbus_take(int handle);
/* Reads one byte of every page of [start, start + bytes), so that a range without backing faults
   here and is repaired. A fault inside a system call only returns EFAULT. */
void mrc_sigbus_touch(const void *start, size_t bytes);

/* ---- The MRs of one context that have a guard, by key. It owns the guards, not the memory ---- */

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
