/* SPDX-License-Identifier: Apache-2.0 */
/* Queries that only drivers use; the others are in csrc/mrc.h. */
#pragma once

#include "mrc.h"

/* The ports that any EV of any QP uses; bit n - 1 for port n. */
uint32_t mrc_engine_ports_used(const mrc_engine *engine);
/* Sets whether bytes placed for a QP also count as RX_RECORDED. 0 or -ENOENT. */
int mrc_qp_record(mrc_engine *engine, uint32_t qpn, bool recorded);

/* For a driver that loads its aead when a QP is first sealed, and whose packets are staged anyway.
 */
void mrc_engine_set_aead(struct mrc_engine *engine, const struct mrc_aead *aead);

/* Fills up to `capacity` values and returns the number of counters. */
int mrc_engine_counters(const mrc_engine *engine, uint64_t *values, int capacity);
/* Drops per reason, indexed by reason. */
int mrc_engine_drops(const mrc_engine *engine, uint64_t *values, int capacity);
/* The newest entries, the oldest first. */
int mrc_engine_trace(const mrc_engine *engine, struct mrc_trace_entry *entries, int capacity);
