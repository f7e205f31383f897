/* SPDX-License-Identifier: Apache-2.0 */
#include "probes.h"

#include <errno.h>
#include <stdlib.h>

/* Shares of the slots. Commands take at most half of them. A QP's own probes take at most an eighth
   of the free ones, so that a QP with many bad EVs leaves room for other QPs. The last 64 are kept
   for port status messages. */
#define MAX_COMMANDED (MRC_MAX_EV_PROBES / 2)
#define QP_SHARE 8
#define KEPT_FOR_STATUS 64

_Static_assert(65536 % MRC_MAX_EV_PROBES == 0, "an id names its slot");

int mrc_probes_init(struct mrc_probes *probes, uint64_t seed) {
  *probes = (struct mrc_probes){.slots = calloc(MRC_MAX_EV_PROBES, sizeof *probes->slots),
                                .ids.key[0] = seed};
  return probes->slots == NULL ? -ENOMEM : mrc_timers_init(&probes->timers, MRC_MAX_EV_PROBES);
}

void mrc_probes_free(struct mrc_probes *probes) {
  free(probes->slots);
  mrc_timers_free(&probes->timers);
}

struct mrc_ev_probe *mrc_probes_find(const struct mrc_probes *probes, uint16_t id) {
  struct mrc_ev_probe *probe = &probes->slots[id % MRC_MAX_EV_PROBES];
  return probe->purpose != MRC_EV_PROBE_FREE && probe->id == id ? probe : NULL;
}

/* A random id, so that only a host that has seen the probe can answer it. If the slot of the id is
   taken, the next id with a free slot. */
static uint16_t new_id(struct mrc_probes *probes) {
  uint16_t id = (uint16_t)mrc_secret_next(&probes->ids);
  while (probes->slots[id % MRC_MAX_EV_PROBES].purpose != MRC_EV_PROBE_FREE)
    id++; /* ends: a slot is free */
  return id;
}

static bool has_room(const struct mrc_probes *probes, const struct mrc_probe_user *user,
                     uint8_t purpose) {
  const uint32_t free_slots = MRC_MAX_EV_PROBES - probes->n;
  if (purpose == MRC_EV_PROBE_PORT_STATUS) return free_slots > 0;
  if (free_slots <= KEPT_FOR_STATUS) return false;
  if (purpose == MRC_EV_PROBE_COMMAND) return probes->n_commanded < MAX_COMMANDED;
  return user->n_own < mrc_max_u32(1, (free_slots - KEPT_FOR_STATUS) / QP_SHARE);
}

const struct mrc_ev_probe *mrc_probes_start(struct mrc_probes *probes, struct mrc_probe_user *user,
                                            const struct mrc_ev_probe *request) {
  if (!has_room(probes, user, request->purpose)) return NULL;
  const uint16_t id = new_id(probes);
  struct mrc_ev_probe *probe = &probes->slots[id % MRC_MAX_EV_PROBES];
  *probe = *request;
  probe->id = id;
  probe->user = user;
  probes->n++;
  if (request->purpose == MRC_EV_PROBE_COMMAND) {
    probes->n_commanded++;
    user->n_commanded++;
  } else {
    user->n_own++;
  }
  mrc_probes_enqueue(probes, probe);
  return probe;
}

void mrc_probes_enqueue(struct mrc_probes *probes, const struct mrc_ev_probe *probe) {
  mrc_assert(probes->n_unsent < MRC_MAX_EV_PROBES);
  const uint32_t place = (probes->head + probes->n_unsent++) % MRC_MAX_EV_PROBES;
  probes->queue[place] = mrc_probes_slot(probe);
}

struct mrc_ev_probe *mrc_probes_dequeue(struct mrc_probes *probes) {
  mrc_assert(probes->n_unsent > 0);
  struct mrc_ev_probe *probe = &probes->slots[probes->queue[probes->head % MRC_MAX_EV_PROBES]];
  probes->head++;
  probes->n_unsent--;
  mrc_assert(probe->purpose != MRC_EV_PROBE_FREE);
  return probe;
}

void mrc_probes_end(struct mrc_probes *probes, struct mrc_ev_probe *probe) {
  mrc_timers_set(&probes->timers, mrc_probes_slot(probe), MRC_NEVER);
  if (probe->purpose == MRC_EV_PROBE_COMMAND) {
    probes->n_commanded--;
    probe->user->n_commanded--;
  } else {
    probe->user->n_own--;
  }
  probes->n--;
  probe->purpose = MRC_EV_PROBE_FREE;
}

uint32_t mrc_probes_drop(struct mrc_probes *probes, const struct mrc_probe_user *user) {
  const uint32_t dropped = user->n_own + user->n_commanded;
  if (dropped == 0) return 0;
  for (uint32_t slot = 0; slot < MRC_MAX_EV_PROBES; slot++) {
    struct mrc_ev_probe *probe = &probes->slots[slot];
    if (probe->purpose != MRC_EV_PROBE_FREE && probe->user == user) mrc_probes_end(probes, probe);
  }
  const uint32_t n = probes->n_unsent, head = probes->head;
  probes->n_unsent = 0;
  for (uint32_t i = 0; i < n; i++) {
    const struct mrc_ev_probe *probe =
        &probes->slots[probes->queue[(head + i) % MRC_MAX_EV_PROBES]];
    if (probe->purpose != MRC_EV_PROBE_FREE) mrc_probes_enqueue(probes, probe);
  }
  return dropped;
}
