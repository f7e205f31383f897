/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that share the items of a job. The caller of mrc_crew_each is one of them; between two
   jobs the others wait. */
#pragma once

#include <stdint.h>

#include "sim/traffic.h"

typedef void (*mrc_crew_work)(void *context, uint32_t item);

struct mrc_crew;

/* With one thread, the caller does all the work. */
struct mrc_crew *mrc_crew_create(uint32_t threads);
void mrc_crew_destroy(struct mrc_crew *crew);

/* ---- Shards ---- */

/* Runs the shards of a simulation side by side, in windows shorter than the delay of a link between
   shards: whatever one shard does in a window reaches others in a later one. Windows, and the order
   of events at each node, are the same for any number of shards and threads. */

/* Divides the fabric, and the events that wait in the agenda of the whole. */
void mrc_shards_make(struct mrc_sim *sim);
void mrc_shards_free(struct mrc_sim *sim);
/* Gives the events in the agenda of the whole to the shards whose nodes they concern. */
void mrc_shards_hand_out(struct mrc_sim *sim);
/* Time of the next event in any shard; UINT64_MAX: none. */
uint64_t mrc_shards_next_ns(const struct mrc_sim *sim);
/* Runs a window: the events before `until_ns`. */
void mrc_shards_run(struct mrc_sim *sim, struct mrc_crew *crew, uint64_t until_ns);
/* Flows with unfinished writes. */
uint32_t mrc_shards_unfinished(const struct mrc_sim *sim);
/* When the last write ended. */
uint64_t mrc_shards_done_ns(const struct mrc_sim *sim);
/* Moves the new events and writes of all shards to the record of the whole. */
void mrc_shards_collect(struct mrc_sim *sim);
