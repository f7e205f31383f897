/* SPDX-License-Identifier: Apache-2.0 */
#include "probes.h"

/* Shares of the slots. Commands take at most half of them. A QP's own probes take at most an eighth
   of the free ones, so that a QP with many bad EVs leaves room for other QPs. The last 64 are kept
   for port status messages. */
#define MAX_COMMANDED (MRC_MAX_EV_PROBES / 2)
#define QP_SHARE 8
#define KEPT_FOR_STATUS 64

_Static_assert(65536 % MRC_MAX_EV_PROBES == 0, "every rest has as many ids");

void mrc_probes_init(struct mrc_probes *probes, struct mrc_probe_room *room, uint64_t seed) {
  *probes = (struct mrc_probes){.slots = room->slots, .ids.key[0] = seed};
  mrc_timers_init(&probes->timers, room->timers, MRC_MAX_EV_PROBES);
}

struct mrc_ev_probe *mrc_probes_find(const struct mrc_probes *probes, uint16_t id) {
  const uint16_t slot = probes->slot_of[id % MRC_MAX_EV_PROBES];
  return slot != 0 && probes->slots[slot - 1].id == id ? &probes->slots[slot - 1] : NULL;
}

/* A random id, so that only a host that has seen the probe can answer it. If another has the same
   rest, the next id that none has. */
static uint16_t new_id(struct mrc_probes *probes) {
  uint16_t id = (uint16_t)mrc_secret_next(&probes->ids);
  while (probes->slot_of[id % MRC_MAX_EV_PROBES] != 0)
    id++; /* ends: a rest is free */
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

/* Takes a free slot, preferably one that was used before: memory for the others was never touched.
   Returns it + 1. */
static uint16_t take_slot(struct mrc_probes *probes) {
  const uint16_t slot = probes->free;
  if (slot == 0) return (uint16_t)++probes->n_slots;
  probes->free = probes->slots[slot - 1].next;
  return slot;
}

const struct mrc_ev_probe *mrc_probes_start(struct mrc_probes *probes, struct mrc_probe_user *user,
                                            const struct mrc_ev_probe *request) {
  if (!has_room(probes, user, request->purpose)) return NULL;
  const uint16_t id = new_id(probes), slot = take_slot(probes);
  struct mrc_ev_probe *probe = &probes->slots[slot - 1];
  probes->slot_of[id % MRC_MAX_EV_PROBES] = slot;
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

void mrc_probes_enqueue(struct mrc_probes *probes, struct mrc_ev_probe *probe) {
  const uint16_t slot = (uint16_t)(mrc_probes_slot(probes, probe) + 1);
  probe->next = 0;
  if (probes->first == 0)
    probes->first = slot;
  else
    probes->slots[probes->last - 1].next = slot;
  probes->last = slot;
  probes->n_unsent++;
}

struct mrc_ev_probe *mrc_probes_dequeue(struct mrc_probes *probes) {
  mrc_assert(probes->n_unsent > 0);
  struct mrc_ev_probe *probe = &probes->slots[probes->first - 1];
  probes->first = probe->next;
  probes->n_unsent--;
  mrc_assert(probe->purpose != MRC_EV_PROBE_FREE);
  return probe;
}

void mrc_probes_end(struct mrc_probes *probes, struct mrc_ev_probe *probe) {
  const uint16_t slot = mrc_probes_slot(probes, probe);
  mrc_timers_set(&probes->timers, slot, MRC_NEVER);
  if (probe->purpose == MRC_EV_PROBE_COMMAND) {
    probes->n_commanded--;
    probe->user->n_commanded--;
  } else {
    probe->user->n_own--;
  }
  probes->n--;
  probes->slot_of[probe->id % MRC_MAX_EV_PROBES] = 0;
  probe->purpose = MRC_EV_PROBE_FREE;
  probe->next = probes->free;
  probes->free = (uint16_t)(slot + 1);
}

/* Takes the probes of this user out of the queue. */
static void dequeue_all(struct mrc_probes *probes, const struct mrc_probe_user *user) {
  uint32_t n = probes->n_unsent;
  while (n-- > 0) {
    struct mrc_ev_probe *probe = mrc_probes_dequeue(probes);
    if (probe->user != user) mrc_probes_enqueue(probes, probe);
  }
}

uint32_t mrc_probes_drop(struct mrc_probes *probes, const struct mrc_probe_user *user) {
  const uint32_t dropped = user->n_own + user->n_commanded;
  if (dropped == 0) return 0;
  dequeue_all(probes, user);
  for (uint32_t slot = 0; slot < probes->n_slots; slot++) {
    struct mrc_ev_probe *probe = &probes->slots[slot];
    if (probe->purpose != MRC_EV_PROBE_FREE && probe->user == user) mrc_probes_end(probes, probe);
  }
  return dropped;
}
