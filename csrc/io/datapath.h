/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of one engine over UDP sockets: it receives, transmits, runs commands and publishes
 * what came of them, in a thread of its own or in its caller's. It owns the engine, the sockets,
 * both rings and all descriptors. What the thread uses nobody else touches while it runs, but for
 * the other ends of the rings.
 */
#ifndef MRC_IO_DATAPATH_H
#define MRC_IO_DATAPATH_H

#include "io/cause.h"
#include "io/datapath_state.h"

/* Opens everything; the thread does not run yet. On failure nothing stays open. */
int mrc_datapath_open(struct mrc_datapath *datapath, const struct mrc_ctx_config *config,
                      struct mrc_cause *cause) MRC_MUST_CHECK;
int mrc_datapath_start(struct mrc_datapath *datapath, struct mrc_cause *cause) MRC_MUST_CHECK;
/* Ends the thread and waits for that. Another thread. */
void mrc_datapath_stop(struct mrc_datapath *datapath);
/* Instead of the thread: mrc_ctx_run and mrc_ctx_arm. */
int mrc_datapath_run(struct mrc_datapath *datapath, uint64_t timeout_ns);
bool mrc_datapath_arm(struct mrc_datapath *datapath);
void mrc_datapath_close(struct mrc_datapath *datapath);
/* In a child of fork: gives back the descriptors, which the parent goes on using, and the guards.
   Nothing else is touched: there is no thread, and it may have been in the middle of anything. */
void mrc_datapath_abandon(struct mrc_datapath *datapath);

/* Makes a sleeping thread look at its rings. Another thread. Nothing to do when polled. */
void mrc_datapath_wake(struct mrc_datapath *datapath);

#endif
