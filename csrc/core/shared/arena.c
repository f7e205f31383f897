/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(MRC_ARENA_PACKETS >= 2 * MRC_MAX_BURST_PACKETS, "a full burst always fits");

struct mrc_scratch *mrc_scratch_create(const struct mrc_engine_config *config) {
  struct mrc_scratch *scratch = calloc(1, sizeof *scratch);
  if (scratch == NULL) return NULL;
  const uint32_t burst = config->max_burst_bytes != 0 ? config->max_burst_bytes : MRC_BURST_BYTES;
  const bool stages = config->staged_packet_bytes != 0 || config->aead != NULL;
  scratch->packets = calloc(MRC_ARENA_PACKETS, sizeof *scratch->packets);
  if (stages) scratch->staged = calloc(MRC_MAX_BURSTS, burst);
  if (scratch->packets != NULL && (scratch->staged != NULL || !stages)) return scratch;
  mrc_scratch_destroy(scratch);
  return NULL;
}

void mrc_scratch_destroy(struct mrc_scratch *scratch) {
  if (scratch == NULL) return;
  free(scratch->packets);
  free(scratch->staged);
  free(scratch);
}

int mrc_arena_init(struct mrc_arena *arena, const struct mrc_engine_config *config) {
  *arena = (struct mrc_arena){.max_burst_bytes = config->max_burst_bytes,
                              .staged_packet_bytes = config->staged_packet_bytes};
  struct mrc_scratch *scratch = config->scratch;
  arena->shares_scratch = scratch != NULL;
  if (scratch == NULL) scratch = mrc_scratch_create(config);
  if (scratch == NULL) return -ENOMEM;
  arena->scratch = scratch;
  arena->packets = scratch->packets;
  arena->staged = scratch->staged;
  return 0;
}

void mrc_arena_free(struct mrc_arena *arena) {
  if (!arena->shares_scratch) mrc_scratch_destroy(arena->scratch);
}

void mrc_arena_begin(struct mrc_arena *arena, struct mrc_burst *bursts, int capacity) {
  arena->bursts = bursts;
  arena->capacity = capacity < MRC_MAX_BURSTS ? capacity : MRC_MAX_BURSTS;
  arena->n_bursts = 0;
  arena->used = 0;
  arena->staged_bytes = 0;
  arena->encrypted_bytes = 0;
}
