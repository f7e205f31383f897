/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(MRC_ARENA_PACKETS >= 2 * MRC_MAX_BURST_PACKETS, "a full burst always fits");

int mrc_arena_init(struct mrc_arena *arena, const struct mrc_engine_config *config) {
  *arena = (struct mrc_arena){.packets = calloc(MRC_ARENA_PACKETS, sizeof *arena->packets),
                              .max_burst_bytes = config->max_burst_bytes,
                              .staged_packet_bytes = config->staged_packet_bytes};
  if (arena->packets == NULL) return -ENOMEM;
  if (config->staged_packet_bytes == 0 && config->aead == NULL) return 0;
  arena->staged = calloc(MRC_MAX_BURSTS, config->max_burst_bytes);
  return arena->staged == NULL ? -ENOMEM : 0;
}

void mrc_arena_free(struct mrc_arena *arena) {
  free(arena->packets);
  free(arena->staged);
}

void mrc_arena_begin(struct mrc_arena *arena, struct mrc_burst *bursts, int capacity) {
  arena->bursts = bursts;
  arena->capacity = capacity < MRC_MAX_BURSTS ? capacity : MRC_MAX_BURSTS;
  arena->n_bursts = 0;
  arena->used = 0;
  arena->staged_bytes = 0;
  arena->encrypted_bytes = 0;
}
