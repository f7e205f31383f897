/* SPDX-License-Identifier: Apache-2.0 */
#include "ev.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int add_evs(struct mrc_evset *set, const struct mrc_ev_attr *attrs, uint32_t ports,
                   uint32_t noise_ns) {
  for (uint16_t i = 0; i < set->n; i++) {
    if (attrs[i].port < 1 || attrs[i].port > ports) return -EINVAL;
    if (attrs[i].family != 4 && attrs[i].family != 6) return -EINVAL;
    if (mrc_keymap_put(&set->by_value, attrs[i].ev, i) != 0) return -EINVAL;
    set->evs[i].attr = attrs[i];
    mrc_probation_init(&set->evs[i].probation, noise_ns);
    set->planes[attrs[i].port - 1].n++;
    set->plane_mask |= 1u << (attrs[i].port - 1);
  }
  uint16_t *order = set->orders;
  for (uint32_t p = 0; p < MRC_MAX_PORTS; p++) {
    set->planes[p].order = order;
    order += set->planes[p].n;
    set->planes[p].n = 0;
  }
  for (uint16_t i = 0; i < set->n; i++) {
    struct mrc_ev_plane *plane = &set->planes[attrs[i].port - 1];
    set->evs[i].place = plane->n;
    plane->order[plane->n++] = i;
  }
  return 0;
}

int mrc_evset_init(struct mrc_evset *set, const struct mrc_ev_attr *attrs, int n, uint32_t ports,
                   uint32_t noise_ns) {
  *set = (struct mrc_evset){0};
  if (n < 1 || n > MRC_MAX_EVS) return -EINVAL;
  set->n = (uint16_t)n;
  set->evs = calloc((size_t)n, sizeof *set->evs);
  set->orders = calloc((size_t)n, sizeof *set->orders);
  if (set->evs == NULL || set->orders == NULL ||
      mrc_keymap_init(&set->by_value, (uint32_t)n) != 0) {
    mrc_evset_free(set);
    return -ENOMEM;
  }
  const int error = add_evs(set, attrs, ports, noise_ns);
  if (error != 0) mrc_evset_free(set);
  return error;
}

void mrc_evset_free(struct mrc_evset *set) {
  free(set->evs);
  free(set->orders);
  mrc_keymap_free(&set->by_value);
  *set = (struct mrc_evset){0};
}

static void swap_places(struct mrc_evset *set, struct mrc_ev_plane *plane, uint16_t a, uint16_t b) {
  const uint16_t ev_a = plane->order[a], ev_b = plane->order[b];
  plane->order[a] = ev_b;
  plane->order[b] = ev_a;
  set->evs[ev_b].place = a;
  set->evs[ev_a].place = b;
}

/* Shuffles the first n places, so that QPs which share paths do not fall into step. */
static void shuffle(struct mrc_evset *set, struct mrc_ev_plane *plane, uint16_t n,
                    struct mrc_prng *prng) {
  for (uint16_t i = n; i > 1; i--)
    swap_places(set, plane, (uint16_t)(i - 1), (uint16_t)mrc_prng_below(prng, i));
}

void mrc_evset_start(struct mrc_evset *set, uint32_t active_per_plane, struct mrc_prng *prng) {
  for (uint32_t p = 0; p < MRC_MAX_PORTS; p++) {
    struct mrc_ev_plane *plane = &set->planes[p];
    if (plane->n == 0) continue;
    shuffle(set, plane, plane->n, prng);
    const uint32_t wanted = active_per_plane == 0 ? plane->n : active_per_plane;
    plane->target = (uint16_t)mrc_min_u32(wanted, plane->n);
    plane->floor = (uint16_t)mrc_max_u32(1, plane->target / 4u);
    uint16_t active = 0;
    for (uint16_t i = 0; i < plane->n && active < plane->target; i++)
      if (set->evs[plane->order[i]].state == MRC_EV_GOOD) swap_places(set, plane, i, active++);
    plane->n_active = active;
    plane->next = 0;
  }
}

/* The turns that an EV of this skip level sits out after each that it takes. */
static void set_skip(struct mrc_ev *ev) {
  ev->state = MRC_EV_SKIP;
  ev->skip_turns = (uint8_t)((1u << ev->skip_level) - 1);
}

static void set_skip_level(struct mrc_evset *set, struct mrc_ev *ev, uint8_t level) {
  struct mrc_ev_plane *plane = &set->planes[ev->attr.port - 1];
  plane->n_skip = (uint16_t)(plane->n_skip + (level > 0) - (ev->skip_level > 0));
  ev->skip_level = level;
}

/* One turn of this EV; returns whether it takes it. */
static bool take_turn(struct mrc_ev *ev) {
  if (ev->on_trial) return false;
  if (ev->state == MRC_EV_SKIP) {
    if (--ev->skip_turns == 0) ev->state = MRC_EV_GOOD;
    return false;
  }
  mrc_assert(ev->state == MRC_EV_GOOD);
  if (ev->skip_level > 0) set_skip(ev);
  return true;
}

uint16_t mrc_evset_next(struct mrc_evset *set, uint32_t plane_index, struct mrc_prng *prng) {
  struct mrc_ev_plane *plane = &set->planes[plane_index];
  if (!mrc_evset_has_next(set, plane_index)) return MRC_EV_NONE;
  /* Twice around at most: the first turn lifts every skip of one turn. */
  for (uint32_t turn = 0; turn < 2u * plane->n_active; turn++) {
    if (plane->next >= plane->n_active) {
      shuffle(set, plane, plane->n_active, prng);
      plane->next = 0;
    }
    const uint16_t index = plane->order[plane->next++];
    if (take_turn(&set->evs[index])) return index;
  }
  /* The others have left, and those that stay are all marked: none is busier than the rest. */
  uint16_t first = MRC_EV_NONE;
  for (uint16_t i = 0; i < plane->n_active; i++) {
    struct mrc_ev *ev = &set->evs[plane->order[i]];
    set_skip_level(set, ev, 0);
    ev->state = MRC_EV_GOOD;
    if (first == MRC_EV_NONE && !ev->on_trial) first = plane->order[i];
  }
  return first;
}

static void set_trial(struct mrc_evset *set, struct mrc_ev *ev, bool on_trial) {
  struct mrc_ev_plane *plane = &set->planes[ev->attr.port - 1];
  plane->n_on_trial = (uint16_t)(plane->n_on_trial + on_trial - ev->on_trial);
  ev->on_trial = on_trial;
}

void mrc_evset_on_burst(struct mrc_evset *set, uint16_t index) {
  struct mrc_ev *ev = &set->evs[index];
  const bool rotates = ev->place < set->planes[ev->attr.port - 1].n_active;
  if (!ev->proven && rotates) set_trial(set, ev, true);
}

void mrc_evset_prove(struct mrc_evset *set, uint16_t index) {
  set->evs[index].proven = true;
  set_trial(set, &set->evs[index], false);
}

void mrc_evset_on_missed(struct mrc_evset *set, uint16_t index) {
  set_trial(set, &set->evs[index], false);
}

uint16_t mrc_evset_other(const struct mrc_evset *set, uint32_t plane_index, uint16_t avoid) {
  const struct mrc_ev_plane *plane = &set->planes[plane_index];
  uint16_t best = MRC_EV_NONE;
  for (uint16_t i = 0; i < plane->n_active; i++) {
    const uint16_t index = plane->order[(plane->next + i) % plane->n_active];
    if (index == avoid || set->evs[index].on_trial) continue;
    if (set->evs[index].state == MRC_EV_GOOD) return index;
    if (best == MRC_EV_NONE || set->evs[index].skip_turns < set->evs[best].skip_turns) best = index;
  }
  return best;
}

uint16_t mrc_evset_any(struct mrc_evset *set, uint32_t plane_index) {
  struct mrc_ev_plane *plane = &set->planes[plane_index];
  const uint16_t pool = plane->n_active > 0 ? plane->n_active : plane->n;
  for (uint16_t turn = 0; turn < pool; turn++) {
    if (plane->next >= pool) plane->next = 0;
    const uint16_t index = plane->order[plane->next++];
    if (set->evs[index].state != MRC_EV_DENIED) return index;
  }
  return MRC_EV_NONE;
}

bool mrc_evset_on_skip(struct mrc_evset *set, uint16_t index, uint64_t sent_ns, uint64_t now_ns) {
  struct mrc_ev *ev = &set->evs[index];
  const struct mrc_ev_plane *plane = &set->planes[ev->attr.port - 1];
  if (ev->place >= plane->n_active) return false; /* not in use */
  const bool was_good = ev->state == MRC_EV_GOOD;
  /* What left before the last change says nothing about it. And where half of the paths are busy,
     this one is not busier than the others. */
  const bool counts = sent_ns > ev->steered_ns && ev->skip_level < MRC_EV_MAX_SKIP_LEVEL;
  if (counts && (ev->skip_level > 0 || plane->n_skip < plane->n_active / 2)) {
    set_skip_level(set, ev, (uint8_t)(ev->skip_level + 1));
    set_skip(ev);
    ev->steered_ns = now_ns;
  } else if (was_good) {
    ev->state = MRC_EV_SKIP;
    ev->skip_turns = 1; /* marks within a rotation do not extend it */
  }
  return was_good;
}

void mrc_evset_on_clear(struct mrc_evset *set, uint16_t index, uint64_t sent_ns, uint64_t now_ns) {
  struct mrc_ev *ev = &set->evs[index];
  if (ev->skip_level == 0 || sent_ns <= ev->steered_ns) return;
  set_skip_level(set, ev, (uint8_t)(ev->skip_level - 1));
  ev->steered_ns = now_ns;
  if (ev->skip_level == 0) ev->state = MRC_EV_GOOD;
}

/* The first GOOD backup, or else n. */
static uint16_t find_backup(const struct mrc_evset *set, const struct mrc_ev_plane *plane) {
  uint16_t i = plane->n_active;
  while (i < plane->n && set->evs[plane->order[i]].state != MRC_EV_GOOD)
    i++;
  return i;
}

/* The ASSUMED_BAD EV outside the rotation that has been bad for longest, or else n. */
static uint16_t find_oldest_bad(const struct mrc_evset *set, const struct mrc_ev_plane *plane) {
  uint16_t best = plane->n;
  for (uint16_t i = plane->n_active; i < plane->n; i++) {
    const struct mrc_ev *ev = &set->evs[plane->order[i]];
    if (ev->state != MRC_EV_ASSUMED_BAD) continue;
    if (best == plane->n || ev->bad_since_ns < set->evs[plane->order[best]].bad_since_ns) best = i;
  }
  return best;
}

/* Takes the EV out of the rotation; a replacement comes from the same plane, if there is one. */
static void retire(struct mrc_evset *set, uint16_t index) {
  struct mrc_ev *ev = &set->evs[index];
  struct mrc_ev_plane *plane = &set->planes[ev->attr.port - 1];
  if (ev->place >= plane->n_active) return;
  set_skip_level(set, ev, 0);
  set_trial(set, ev, false);
  const uint16_t backup = find_backup(set, plane);
  if (backup < plane->n) {
    swap_places(set, plane, ev->place, backup);
    return;
  }
  swap_places(set, plane, ev->place, (uint16_t)(plane->n_active - 1));
  plane->n_active--;
}

bool mrc_evset_on_loss(struct mrc_evset *set, uint16_t index, uint16_t *back, uint64_t now_ns) {
  struct mrc_ev *ev = &set->evs[index];
  struct mrc_ev_plane *plane = &set->planes[ev->attr.port - 1];
  *back = MRC_EV_NONE;
  if (ev->state == MRC_EV_DENIED || ev->state == MRC_EV_ASSUMED_BAD) return false;
  if (ev->place < plane->n_active && plane->n_active <= plane->floor &&
      find_backup(set, plane) == plane->n) {
    /* At the floor: swap with the EV that has been bad for longest, or keep the only one. */
    const uint16_t oldest = find_oldest_bad(set, plane);
    if (oldest == plane->n) return false;
    *back = plane->order[oldest];
    set->evs[*back].state = MRC_EV_GOOD;
    set->evs[*back].probation.next_ns = MRC_NEVER;
  }
  ev->state = MRC_EV_ASSUMED_BAD;
  ev->bad_since_ns = now_ns;
  mrc_probation_on_failure(&ev->probation, now_ns);
  retire(set, index);
  return true;
}

bool mrc_evset_on_trust(struct mrc_evset *set, uint16_t index) {
  struct mrc_ev *ev = &set->evs[index];
  struct mrc_ev_plane *plane = &set->planes[ev->attr.port - 1];
  if (ev->state == MRC_EV_GOOD || ev->state == MRC_EV_SKIP) return false;
  ev->state = MRC_EV_GOOD;
  ev->probation.next_ns = MRC_NEVER;
  mrc_assert(ev->place >= plane->n_active);
  if (plane->n_active < plane->target) {
    swap_places(set, plane, ev->place, plane->n_active);
    plane->n_active++;
  }
  return true;
}

bool mrc_evset_on_deny(struct mrc_evset *set, uint16_t index) {
  struct mrc_ev *ev = &set->evs[index];
  if (ev->state == MRC_EV_DENIED) return false;
  ev->state = MRC_EV_DENIED;
  ev->probation.next_ns = MRC_NEVER;
  retire(set, index);
  return true;
}
