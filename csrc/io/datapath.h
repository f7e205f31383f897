/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of one engine over UDP sockets: it receives, sends, runs commands and publishes
   results, in its own thread or in its caller's. It owns the engine, the sockets, both rings and
   all descriptors. While its thread runs, other threads use only their ends of the rings. */
#pragma once

#include "io/cause.h"
#include "io/datapath_state.h"

/* Opens everything; the thread does not run yet. On failure nothing stays open. */
int mrc_datapath_open(struct mrc_datapath *datapath, const struct mrc_ctx_config *config,
                      struct mrc_cause *cause) MRC_MUST_CHECK;
int mrc_datapath_start(struct mrc_datapath *datapath, struct mrc_cause *cause) MRC_MUST_CHECK;
/* Stops the thread and waits for its end. Call it from another thread. */
void mrc_datapath_stop(struct mrc_datapath *datapath);
/* mrc_ctx_run and mrc_ctx_arm, for a polled datapath, which has no thread. */
int mrc_datapath_run(struct mrc_datapath *datapath, uint64_t timeout_ns);
bool mrc_datapath_arm(struct mrc_datapath *datapath);
void mrc_datapath_close(struct mrc_datapath *datapath);
/* In a child of fork: closes the child's copies of the descriptors and ends its guards. Touches
   nothing else, because the parent's thread may have left the memory in any state. */
void mrc_datapath_abandon(struct mrc_datapath *datapath);

/* Wakes the thread to read its rings. Call it from another thread. Has no effect when polled. */
void mrc_datapath_wake(struct mrc_datapath *datapath);
