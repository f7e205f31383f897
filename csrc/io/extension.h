/* SPDX-License-Identifier: Apache-2.0 */
/* What a product adds to the datapath: operations of its own, over QPs of the same engine. The
   datapath calls it by a table, and is complete without one. */
#pragma once

#include "mrc.h"

struct mrc_extension {
  /* NULL without memory */
  void *(*open)(void);
  /* When the datapath runs no longer. */
  void (*close)(void *state);
  /* Whether operations of other threads wait for the datapath. */
  bool (*waits)(const void *state);
  /* When `run` has work without further input; UINT64_MAX: never. */
  uint64_t (*deadline)(const void *state);
  /* Whether QPs of this engine may be its own. */
  bool (*is_used)(const void *state);
  /* Starts the operations that were posted, and does what it is time for. */
  void (*run)(void *state, mrc_engine *engine, uint64_t now_ns);
  /* Takes completions of its QPs out of an array, and returns how many are left. */
  int (*take)(void *state, struct mrc_wc *wcs, int n, uint64_t now_ns);
  /* Looks at the events of the engine: a QP of it may have failed. */
  void (*look)(void *state, const struct mrc_event *events, int n, uint64_t now_ns);
  /* Whether its program has to be woken for what has ended since the last call. */
  bool (*has_published)(void *state);
  /* Runs a command from MRC_COMMAND_MSG_OPEN on; returns its result. */
  int (*command)(void *state, mrc_engine *engine, const struct mrc_command *command,
                 uint64_t now_ns);
};

/* csrc/msg. NULL where it is not linked. */
extern const struct mrc_extension mrc_messages_extension __attribute__((weak));
