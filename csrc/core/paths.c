/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- EVs ---- */

/* From this skip level on a path counts as slow. A growing queue that the paths of a plane share
   makes a round trip twice as long as the smoothed ones: that must count for the window. */
#define SLOW_LEVEL 2

uint16_t *mrc_evset_find(const struct mrc_evset *set, uint32_t value) {
  uint32_t i = (uint32_t)((value * 0x9E3779B97F4A7C15ull) >> 32) & set->hash_mask;
  while (set->by_value[i] != MRC_EV_NONE && set->evs[set->by_value[i]].value != value)
    i = (i + 1) & set->hash_mask; /* terminates, because half of the cells are empty */
  return &set->by_value[i];
}

/* The index of the addresses that this EV shares with others. Adds them if they are new. */
static uint16_t share_ends(struct mrc_evset *set, const struct mrc_ev_attr *attr) {
  struct mrc_ev_ends ends = {.dport = attr->dport, .family = attr->family};
  memcpy(ends.src, attr->src, sizeof ends.src);
  memcpy(ends.dst, attr->dst, sizeof ends.dst);
  uint16_t i = 0;
  while (i < set->n_ends && memcmp(&set->ends[i], &ends, sizeof ends) != 0)
    i++;
  if (i == set->n_ends) set->ends[set->n_ends++] = ends;
  return i;
}

void mrc_evset_addresses(const struct mrc_evset *set, uint16_t index, uint8_t src[16],
                         uint8_t dst[16]) {
  const struct mrc_ev *ev = &set->evs[index];
  const struct mrc_ev_ends *ends = &set->ends[ev->ends];
  memcpy(src, ends->src, sizeof ends->src);
  memcpy(dst, ends->dst, sizeof ends->dst);
  memcpy(dst + sizeof ends->dst, ev->dst, sizeof ev->dst);
}

/* Whether the EV fits the other EVs of its plane. Names the ports of a new plane. */
static bool join_plane(struct mrc_evset *set, const struct mrc_ev_attr *attr, uint32_t index) {
  struct mrc_ev_plane *plane = &set->planes[index];
  const uint8_t port = (uint8_t)(attr->port - 1);
  const uint8_t peer_port = attr->peer_port != 0 ? (uint8_t)(attr->peer_port - 1) : (uint8_t)index;
  const uint32_t bit = 1u << index;
  if ((set->plane_mask & bit) != 0) return plane->port == port && plane->peer_port == peer_port;
  plane->port = port;
  plane->peer_port = peer_port;
  set->plane_mask |= bit;
  if (port != index || peer_port != index) set->crossed |= bit;
  return true;
}

static int add_ev(struct mrc_evset *set, const struct mrc_ev_attr *attr, uint16_t index) {
  const uint32_t plane = (attr->plane != 0 ? attr->plane : attr->port) - 1u;
  if (attr->port < 1 || attr->port > set->ports || plane >= set->ports) return -EINVAL;
  if (attr->family != 4 && attr->family != 6) return -EINVAL;
  if (attr->peer_port > MRC_MAX_PORTS) return -EINVAL;
  uint16_t *cell = mrc_evset_find(set, attr->ev);
  if (*cell != MRC_EV_NONE) return -EINVAL;
  if (!join_plane(set, attr, plane)) return -EINVAL;
  *cell = index;
  struct mrc_ev *ev = &set->evs[index];
  *ev = (struct mrc_ev){.value = attr->ev,
                        .ends = share_ends(set, attr),
                        .port = attr->port,
                        .plane = (uint8_t)plane,
                        .tx_index = attr->tx_index};
  memcpy(ev->dst, attr->dst + sizeof attr->dst - sizeof ev->dst, sizeof ev->dst);
  mrc_probation_init(&ev->probation);
  set->planes[plane].n++;
  return 0;
}

/* Fills in the order array of each plane. */
static void make_orders(struct mrc_evset *set) {
  uint16_t *order = set->orders;
  for (uint32_t p = 0; p < set->ports; p++) {
    set->planes[p].order = order;
    order += set->planes[p].n;
    set->planes[p].n = 0;
  }
  for (uint16_t i = 0; i < set->n; i++) {
    struct mrc_ev_plane *plane = &set->planes[set->evs[i].plane];
    set->evs[i].place = plane->n;
    plane->order[plane->n++] = i;
  }
}

/* The size of the rotation; 0: all EVs of the plane. */
static void set_target(struct mrc_ev_plane *plane, uint32_t active_per_plane) {
  const uint32_t wanted = active_per_plane == 0 ? plane->n : active_per_plane;
  plane->target = (uint16_t)mrc_min_u32(wanted, plane->n);
  plane->floor = (uint16_t)mrc_max_u32(1, plane->target / 4u);
}

static int allocate(struct mrc_evset *set) {
  const uint32_t cells = mrc_ceil_pow2(2u * set->n);
  set->hash_mask = cells - 1;
  set->evs = calloc(set->n, sizeof *set->evs);
  set->racks = calloc(set->n, sizeof *set->racks);
  set->ends = calloc(set->n, sizeof *set->ends);
  set->orders = calloc(set->n, sizeof *set->orders);
  set->by_value = malloc(cells * sizeof *set->by_value);
  set->planes = calloc(set->ports, sizeof *set->planes);
  if (set->evs == NULL || set->racks == NULL || set->ends == NULL || set->orders == NULL ||
      set->by_value == NULL || set->planes == NULL)
    return -ENOMEM;
  memset(set->by_value, 0xff, cells * sizeof *set->by_value);
  return 0;
}

int mrc_evset_init(struct mrc_evset *set, const struct mrc_ev_attr *attrs, int n, uint32_t ports,
                   uint32_t noise_ns) {
  *set = (struct mrc_evset){.ports = ports, .noise_ns = noise_ns};
  if (n < 1 || n > MRC_MAX_EVS) return -EINVAL;
  set->n = (uint16_t)n;
  int error = allocate(set);
  for (uint16_t i = 0; i < set->n && error == 0; i++)
    error = add_ev(set, &attrs[i], i);
  if (error != 0) {
    mrc_evset_free(set);
    return error;
  }
  make_orders(set);
  struct mrc_ev_ends *fitted = realloc(set->ends, set->n_ends * sizeof *set->ends);
  if (fitted != NULL) set->ends = fitted;
  return 0;
}

int mrc_evset_add(struct mrc_evset *set, const struct mrc_ev_attr *attrs, int n,
                  uint32_t active_per_plane) {
  if (n < 1 || n > MRC_MAX_EVS - set->n) return -ENOSPC;
  struct mrc_evset more = *set;
  more.n = (uint16_t)(set->n + n);
  int error = allocate(&more);
  if (error == 0) {
    memcpy(more.evs, set->evs, set->n * sizeof *set->evs); /* they keep their indices */
    memcpy(more.racks, set->racks, set->n * sizeof *set->racks);
    memcpy(more.ends, set->ends, set->n_ends * sizeof *set->ends);
    memcpy(more.planes, set->planes, set->ports * sizeof *set->planes);
  }
  for (uint16_t i = 0; i < more.n && error == 0; i++) {
    if (i < set->n) {
      *mrc_evset_find(&more, set->evs[i].value) = i;
      continue;
    }
    error = add_ev(&more, &attrs[i - set->n], i);
    if (error == 0) more.evs[i].state = MRC_EV_UNPROVEN;
  }
  if (error != 0) {
    mrc_evset_free(&more);
    return error;
  }
  uint16_t *order = more.orders;
  for (uint32_t p = 0; p < set->ports; p++) {
    struct mrc_ev_plane *plane = &more.planes[p];
    const uint16_t before = set->planes[p].n;
    if (before > 0) memcpy(order, set->planes[p].order, before * sizeof *order);
    plane->order = order;
    order += plane->n;
    plane->n_unproven = (uint16_t)(plane->n_unproven + plane->n - before);
    if (plane->n > 0 && plane->n_unproven == plane->n) more.unproven |= 1u << p;
    if (plane->n > before) set_target(plane, active_per_plane);
    plane->n = before;
  }
  for (uint16_t i = set->n; i < more.n; i++) {
    struct mrc_ev_plane *plane = &more.planes[more.evs[i].plane];
    more.evs[i].place = plane->n;
    plane->order[plane->n++] = i;
  }
  mrc_evset_free(set);
  *set = more;
  return 0;
}

void mrc_evset_free(struct mrc_evset *set) {
  free(set->evs);
  free(set->racks);
  free(set->ends);
  free(set->orders);
  free(set->by_value);
  free(set->planes);
  *set = (struct mrc_evset){0};
}

static void swap_places(struct mrc_evset *set, struct mrc_ev_plane *plane, uint16_t a, uint16_t b) {
  const uint16_t ev_a = plane->order[a], ev_b = plane->order[b];
  plane->order[a] = ev_b;
  plane->order[b] = ev_a;
  set->evs[ev_b].place = a;
  set->evs[ev_a].place = b;
}

void mrc_evset_start(struct mrc_evset *set, uint32_t active_per_plane, struct mrc_prng *prng) {
  for (uint32_t p = 0; p < set->ports; p++) {
    struct mrc_ev_plane *plane = &set->planes[p];
    if (plane->n == 0) continue;
    /* Shuffles once, so that QPs that share paths do not fall into step. A shuffle in each rotation
       would send packets at short distances on one path, of one QP or of several. */
    for (uint16_t i = plane->n; i > 1; i--)
      swap_places(set, plane, (uint16_t)(i - 1), (uint16_t)mrc_prng_below(prng, i));
    set_target(plane, active_per_plane);
    uint16_t active = 0;
    for (uint16_t i = 0; i < plane->n && active < plane->target; i++)
      if (set->evs[plane->order[i]].state == MRC_EV_GOOD) swap_places(set, plane, i, active++);
    plane->n_active = active;
    plane->next = 0;
  }
}

/* The EV sits out the turns of its skip level. */
static void set_skip(struct mrc_ev *ev) {
  ev->state = MRC_EV_SKIP;
  ev->skip_turns = (uint8_t)((1u << ev->skip_level) - 1);
}

static void set_skip_level(struct mrc_evset *set, struct mrc_ev *ev, uint8_t level) {
  struct mrc_ev_plane *plane = &set->planes[ev->plane];
  plane->n_skip = (uint16_t)(plane->n_skip + (level > 0) - (ev->skip_level > 0));
  ev->skip_level = level;
}

/* Whether the EV may take fewer turns. If half of the paths are avoided, this one is not fuller
   than the others. */
static bool may_avoid(const struct mrc_ev_plane *plane, const struct mrc_ev *ev) {
  if (ev->skip_level == 0) return plane->n_skip < plane->n_active / 2;
  return ev->skip_level < MRC_EV_MAX_SKIP_LEVEL;
}

static void avoid(struct mrc_evset *set, struct mrc_ev *ev, uint64_t now_ns) {
  set_skip_level(set, ev, (uint8_t)(ev->skip_level + 1));
  set_skip(ev);
  ev->steered_ns = now_ns;
}

uint32_t mrc_evset_crossing(const struct mrc_evset *set, uint32_t ports, bool of_peer) {
  uint32_t planes = set->plane_mask & ports & ~set->crossed;
  MRC_EACH_BIT(index, set->crossed) {
    const struct mrc_ev_plane *plane = &set->planes[index];
    planes |= (ports >> (of_peer ? plane->peer_port : plane->port) & 1) << index;
  }
  return planes;
}

uint32_t mrc_evset_plane_from(const struct mrc_evset *set, uint32_t port,
                              const uint8_t address[16]) {
  const uint32_t planes = mrc_evset_on_ports(set, 1u << port);
  if (planes == 0) return port;
  MRC_EACH_BIT(plane, (planes & (planes - 1)) == 0 ? 0 : planes) {
    uint8_t src[16], dst[16];
    mrc_evset_addresses(set, set->planes[plane].order[0], src, dst);
    if (memcmp(dst, address, sizeof dst) == 0) return plane;
  }
  return (uint32_t)__builtin_ctz(planes);
}

uint16_t mrc_evset_next(struct mrc_evset *set, uint32_t plane_index) {
  struct mrc_ev_plane *plane = &set->planes[plane_index];
  if (!mrc_evset_has_next(set, plane_index)) return MRC_EV_NONE;
  /* At most two rotations: the first one ends every skip of one turn. */
  uint32_t skips = set->skips_once ? 1 : UINT32_MAX; /* that this turn may still end */
  for (uint32_t turn = 0; turn < 2u * plane->n_active; turn++) {
    if (plane->next >= plane->n_active) plane->next = 0;
    const uint16_t index = plane->order[plane->next++];
    struct mrc_ev *ev = &set->evs[index];
    if (ev->on_trial) continue;
    if (ev->state == MRC_EV_SKIP) {
      if (skips == 0 || --ev->skip_turns > 0) continue;
      ev->state = MRC_EV_GOOD;
      skips--;
      continue;
    }
    mrc_assert(ev->state == MRC_EV_GOOD);
    if (ev->skip_level > 0) set_skip(ev);
    return index;
  }
  /* All EVs that can send are marked, so none is busier than the others: ends all skips. */
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
  struct mrc_ev_plane *plane = &set->planes[ev->plane];
  plane->n_on_trial = (uint16_t)(plane->n_on_trial + on_trial - ev->on_trial);
  ev->on_trial = on_trial;
}

void mrc_evset_on_burst(struct mrc_evset *set, uint16_t index) {
  struct mrc_ev *ev = &set->evs[index];
  if (ev->place < set->planes[ev->plane].n_active) set_trial(set, ev, true);
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
  if ((set->plane_mask >> plane_index & 1) == 0) return MRC_EV_NONE;
  struct mrc_ev_plane *plane = &set->planes[plane_index];
  const uint16_t pool = plane->n_active > 0 ? plane->n_active : plane->n;
  for (uint16_t turn = 0; turn < pool; turn++) {
    if (plane->next >= pool) plane->next = 0;
    const uint16_t index = plane->order[plane->next++];
    if (set->evs[index].state != MRC_EV_DENIED) return index;
  }
  return MRC_EV_NONE;
}

uint16_t mrc_evset_after(const struct mrc_evset *set, uint32_t plane_index, uint16_t ev) {
  const struct mrc_ev_plane *plane = &set->planes[plane_index];
  const uint32_t first = ev == MRC_EV_NONE ? 0 : set->evs[ev].place + 1u;
  for (uint32_t i = 0; i < plane->n; i++) {
    const uint16_t index = plane->order[(first + i) % plane->n];
    if (!mrc_ev_is_barred(&set->evs[index])) return index;
  }
  return MRC_EV_NONE;
}

static void set_marked(struct mrc_evset *set, struct mrc_ev *ev, uint32_t marked) {
  struct mrc_ev_plane *plane = &set->planes[ev->plane];
  plane->marked = plane->marked + marked - ev->marked;
  ev->marked = marked & MRC_EV_ALWAYS_MARKED;
}

bool mrc_evset_on_skip(struct mrc_evset *set, uint16_t index, uint64_t sent_ns, uint64_t now_ns) {
  struct mrc_ev *ev = &set->evs[index];
  const struct mrc_ev_plane *plane = &set->planes[ev->plane];
  if (ev->place >= plane->n_active) return false; /* a backup */
  const bool was_good = ev->state == MRC_EV_GOOD;
  set_marked(set, ev, ev->marked + (MRC_EV_ALWAYS_MARKED - ev->marked + 15u) / 16u);
  /* Whether the EV is marked more often than not, and more than 1.5 times as often as the average
     EV of its plane. If all EVs are equally full, avoiding one overfills the others. */
  const bool fuller = ev->marked > MRC_EV_ALWAYS_MARKED / 2 &&
                      2u * ev->marked * plane->n_active > 3u * plane->marked;
  /* A packet sent before the last change of the level shows nothing about the new level. */
  const bool counts = !set->skips_once && sent_ns > ev->steered_ns && fuller;
  if (counts && may_avoid(plane, ev)) {
    avoid(set, ev, now_ns);
  } else if (was_good) {
    ev->state = MRC_EV_SKIP;
    ev->skip_turns = 1; /* further marks within a rotation do not extend the skip */
  }
  return was_good;
}

/* The longest smoothed round trip of the plane's other EVs that take every turn. */
static uint32_t longest_of_others_ns(const struct mrc_evset *set, const struct mrc_ev *ev) {
  const struct mrc_ev_plane *plane = &set->planes[ev->plane];
  uint32_t longest_ns = 0;
  for (uint16_t i = 0; i < plane->n_active; i++) {
    const struct mrc_ev *other = &set->evs[plane->order[i]];
    if (other != ev && other->skip_level == 0) longest_ns = mrc_max_u32(longest_ns, other->rtt_ns);
  }
  return longest_ns;
}

/* A usual round trip in the plane: the shortest of its EVs, and what busy hosts may add. */
static uint64_t usual_ns(const struct mrc_evset *set, const struct mrc_ev_plane *plane) {
  uint32_t shortest_ns = UINT32_MAX;
  for (uint16_t i = 0; i < plane->n_active; i++) {
    const uint32_t rtt_ns = set->evs[plane->order[i]].rtt_ns;
    if (rtt_ns != 0) shortest_ns = mrc_min_u32(shortest_ns, rtt_ns);
  }
  return (uint64_t)shortest_ns + set->noise_ns / 2;
}

/* The skip level that fits a round trip: twice as long as usual, half as many turns. So all EVs
   have about as much in flight, and each carries as much as its path delivers. */
static uint8_t fitting_level(uint64_t rtt_ns, uint64_t usual_ns) {
  uint8_t level = 0;
  while (level < MRC_EV_MAX_SKIP_LEVEL && rtt_ns >> (level + 1) >= usual_ns)
    level++;
  return level;
}

bool mrc_evset_is_slow(const struct mrc_evset *set, uint16_t index, uint64_t rtt_ns) {
  const struct mrc_ev *ev = &set->evs[index];
  if (!set->by_delay || ev->skip_level < SLOW_LEVEL) return false;
  const struct mrc_ev_plane *plane = &set->planes[ev->plane];
  return fitting_level(rtt_ns, usual_ns(set, plane)) >= SLOW_LEVEL;
}

bool mrc_evset_can_avoid(const struct mrc_evset *set, uint16_t index, uint64_t sent_ns,
                         uint64_t late_ns) {
  const struct mrc_ev *ev = &set->evs[index];
  const struct mrc_ev_plane *plane = &set->planes[ev->plane];
  if (ev->place >= plane->n_active || sent_ns <= ev->steered_ns) return false;
  if (!may_avoid(plane, ev)) return false;
  if (set->by_delay) {
    const uint64_t usual = usual_ns(set, plane);
    return fitting_level(usual + late_ns, usual) > ev->skip_level;
  }
  if (ev->skip_level > 0) return true;
  /* If all EVs are equally full, avoiding one overfills the others. The factor 7/8 detects a silent
     path before a whole round trip of the others. */
  const uint64_t full_ns = longest_of_others_ns(set, ev) / 8 * 7;
  return late_ns > full_ns;
}

bool mrc_evset_on_late(struct mrc_evset *set, uint16_t index, uint64_t now_ns) {
  struct mrc_ev *ev = &set->evs[index];
  const bool was_good = ev->state == MRC_EV_GOOD;
  avoid(set, ev, now_ns);
  ev->proven = false;
  set_trial(set, ev, true);
  return was_good;
}

void mrc_evset_on_clear(struct mrc_evset *set, uint16_t index, uint64_t sent_ns, uint64_t rtt_ns,
                        uint64_t now_ns) {
  struct mrc_ev *ev = &set->evs[index];
  const struct mrc_ev_plane *plane = &set->planes[ev->plane];
  if (ev->marked > 0) set_marked(set, ev, ev->marked - (ev->marked + 15u) / 16u);
  if (ev->place >= plane->n_active || sent_ns <= ev->steered_ns) return;
  uint8_t fitting = 0;
  if (set->by_delay && (ev->skip_level > 0 || rtt_ns >= set->noise_ns)) {
    if (rtt_ns == 0) return;
    fitting = fitting_level(rtt_ns, usual_ns(set, plane));
  }
  /* One step towards the level that fits. */
  if (fitting > ev->skip_level) {
    if (may_avoid(plane, ev)) avoid(set, ev, now_ns);
  } else if (fitting < ev->skip_level) {
    set_skip_level(set, ev, (uint8_t)(ev->skip_level - 1));
    ev->steered_ns = now_ns;
    if (ev->skip_level == 0) ev->state = MRC_EV_GOOD;
  }
}

/* The place of the first GOOD backup, or n. */
static uint16_t find_backup(const struct mrc_evset *set, const struct mrc_ev_plane *plane) {
  uint16_t i = plane->n_active;
  while (i < plane->n && set->evs[plane->order[i]].state != MRC_EV_GOOD)
    i++;
  return i;
}

/* The place of the EV that has been ASSUMED_BAD for longest, or n. */
static uint16_t find_oldest_bad(const struct mrc_evset *set, const struct mrc_ev_plane *plane) {
  uint16_t best = plane->n;
  for (uint16_t i = plane->n_active; i < plane->n; i++) {
    const struct mrc_ev *ev = &set->evs[plane->order[i]];
    if (ev->state != MRC_EV_ASSUMED_BAD) continue;
    if (best == plane->n || ev->bad_since_ns < set->evs[plane->order[best]].bad_since_ns) best = i;
  }
  return best;
}

/* Removes the EV from the rotation. A GOOD backup of the same plane replaces it, if one exists. */
static void retire(struct mrc_evset *set, uint16_t index) {
  struct mrc_ev *ev = &set->evs[index];
  struct mrc_ev_plane *plane = &set->planes[ev->plane];
  if (ev->place >= plane->n_active) return;
  set_skip_level(set, ev, 0);
  set_marked(set, ev, 0);
  set_trial(set, ev, false);
  const uint16_t backup = find_backup(set, plane);
  if (backup < plane->n) {
    swap_places(set, plane, ev->place, backup);
    return;
  }
  swap_places(set, plane, ev->place, (uint16_t)(plane->n_active - 1));
  plane->n_active--;
}

bool mrc_evset_can_spare(const struct mrc_evset *set, uint16_t index) {
  const struct mrc_ev_plane *plane = &set->planes[set->evs[index].plane];
  return set->evs[index].place >= plane->n_active || plane->n_active > plane->floor ||
         find_backup(set, plane) < plane->n;
}

bool mrc_evset_on_loss(struct mrc_evset *set, uint16_t index, uint16_t *back, uint64_t now_ns) {
  struct mrc_ev *ev = &set->evs[index];
  struct mrc_ev_plane *plane = &set->planes[ev->plane];
  *back = MRC_EV_NONE;
  if (mrc_ev_is_barred(ev) || ev->state == MRC_EV_ASSUMED_BAD) return false;
  if (!mrc_evset_can_spare(set, index)) {
    /* At the minimum: swap with the EV that has been bad for longest; without one, keep this EV. */
    const uint16_t oldest = find_oldest_bad(set, plane);
    if (oldest == plane->n) return false;
    *back = plane->order[oldest];
    set->evs[*back].state = MRC_EV_GOOD;
    set->evs[*back].probation.next_ns = MRC_NEVER;
  }
  ev->state = MRC_EV_ASSUMED_BAD;
  ev->bad_since_ns = now_ns;
  mrc_probation_on_failure(&ev->probation, set->noise_ns, now_ns);
  retire(set, index);
  return true;
}

/* Call it before the state of the EV changes. */
static void set_unproven(struct mrc_evset *set, const struct mrc_ev *ev, bool unproven) {
  struct mrc_ev_plane *plane = &set->planes[ev->plane];
  const bool was = ev->state == MRC_EV_UNPROVEN;
  plane->n_unproven = (uint16_t)(plane->n_unproven + unproven - was);
  const uint32_t bit = 1u << ev->plane;
  set->unproven = plane->n_unproven == plane->n ? set->unproven | bit : set->unproven & ~bit;
}

bool mrc_evset_on_trust(struct mrc_evset *set, uint16_t index) {
  struct mrc_ev *ev = &set->evs[index];
  struct mrc_ev_plane *plane = &set->planes[ev->plane];
  if (ev->state == MRC_EV_GOOD || ev->state == MRC_EV_SKIP) return false;
  set_unproven(set, ev, false);
  ev->state = MRC_EV_GOOD;
  ev->probation.next_ns = MRC_NEVER;
  mrc_assert(ev->place >= plane->n_active);
  if (plane->n_active < plane->target) {
    swap_places(set, plane, ev->place, plane->n_active);
    plane->n_active++;
  }
  return true;
}

bool mrc_evset_on_bar(struct mrc_evset *set, uint16_t index, enum mrc_ev_state state) {
  struct mrc_ev *ev = &set->evs[index];
  if (ev->state == state) return false;
  set_unproven(set, ev, state == MRC_EV_UNPROVEN);
  ev->state = (uint8_t)state;
  ev->probation.next_ns = MRC_NEVER;
  retire(set, index);
  return true;
}

/* ---- delivery ---- */

#define MIN_BYTES 32768   /* shorter flights tell nothing */
#define SURE_BYTES 131072 /* token buckets let the first bytes of a flight pass */
#define STEP_BYTES 16384  /* an acknowledgement may wait until so many have arrived */
#define ROUNDS 8          /* longer flights are measured in parts of so many RTTs */

/* ---- rates ---- */

/* How long they take at least: only what came after the first acknowledgement counts, because the
   delay is not rate. 0: unknown, perhaps because the plane was not busy. */
static uint64_t at_least_ns(const struct mrc_delivery *delivery, uint64_t min_bytes) {
  const uint64_t bytes = delivery->bytes - delivery->clock_bytes;
  if (!delivery->busy || bytes + delivery->late_bytes < min_bytes) return 0;
  return mrc_mul_div(MRC_DELIVERY_BYTES, delivery->clocked_ns, mrc_max_u64(bytes, STEP_BYTES));
}

uint64_t mrc_delivery_takes_ns(const struct mrc_delivery *delivery) {
  return mrc_max_u64(delivery->takes_ns, at_least_ns(delivery, SURE_BYTES));
}

/* `weight`: of the new value, in eighths. */
static uint64_t mean_ns(uint64_t old_ns, uint64_t new_ns, uint32_t weight) {
  return old_ns == 0 ? new_ns : ((8 - weight) * old_ns + weight * new_ns) / 8;
}

/* The flight, or a part of it, is over. A slower rate counts at once, a faster one bit by bit: a
   token bucket looks fast for a while. */
static void end_flight(struct mrc_delivery *delivery) {
  const uint64_t least_ns = at_least_ns(delivery, MIN_BYTES);
  /* How long MRC_DELIVERY_BYTES take at most, going by this flight; 0: unknown. A longer delay than
     the base RTT counts as time here, so the plane may be faster. */
  const uint64_t most_ns =
      delivery->bytes < MIN_BYTES
          ? 0
          : mrc_mul_div(MRC_DELIVERY_BYTES, delivery->took_ns, delivery->bytes);
  const bool sure = delivery->bytes + delivery->late_bytes >= SURE_BYTES;
  if (least_ns > delivery->takes_ns)
    delivery->takes_ns = mean_ns(delivery->takes_ns, least_ns, sure ? 6 : 2);
  else if (most_ns != 0 && most_ns < delivery->takes_ns && delivery->late_bytes == 0)
    delivery->takes_ns = mean_ns(delivery->takes_ns, most_ns, sure ? 2 : 1);
  delivery->bytes = delivery->late_bytes = delivery->clock_bytes = delivery->clock_ns = 0;
  delivery->busy = false;
}

void mrc_delivery_on_flight(struct mrc_delivery *delivery, uint64_t now_ns) {
  if (delivery->is_part) delivery->bytes = 0; /* the rest of a flight is too short to tell */
  if (delivery->bytes + delivery->late_bytes >= MIN_BYTES) {
    delivery->measured_ns = now_ns;
  } else if (delivery->late_bytes == 0) {
    /* Short flights are added up: together they show how fast the plane is at least. */
    delivery->bytes += delivery->short_bytes;
    delivery->took_ns += delivery->short_ns;
    const bool enough = delivery->bytes >= MIN_BYTES;
    delivery->short_bytes = enough ? 0 : delivery->bytes;
    delivery->short_ns = enough ? 0 : delivery->took_ns;
    delivery->clock_bytes = delivery->bytes;
    delivery->busy = false;
  }
  end_flight(delivery);
  delivery->began_ns = now_ns;
  delivery->took_ns = 0;
  delivery->is_part = false;
}

void mrc_delivery_on_ack(struct mrc_delivery *delivery, uint64_t bytes, uint64_t sent_ns,
                         const struct mrc_rtt *rtt, uint64_t now_ns) {
  if (bytes == 0) return;
  delivery->bytes += bytes;
  const uint64_t whole_ns = now_ns - delivery->began_ns;
  const uint64_t age_ns = now_ns - mrc_min_u64(now_ns, sent_ns);
  delivery->took_ns = whole_ns - mrc_min_u64(whole_ns, delivery->is_part ? 0 : rtt->base_ns);
  if (delivery->clock_ns == 0) {
    delivery->clock_ns = now_ns;
    delivery->clock_age_ns = age_ns;
    delivery->clock_bytes = delivery->bytes;
  }
  delivery->clocked_ns = now_ns - delivery->clock_ns;
  const uint64_t grown_ns = age_ns - mrc_min_u64(age_ns, delivery->clock_age_ns);
  delivery->busy =
      delivery->late_bytes != 0 || (grown_ns != 0 && grown_ns >= delivery->clocked_ns / 4);
  if (whole_ns < ROUNDS * rtt->smooth_ns) return;
  end_flight(delivery);
  delivery->began_ns = delivery->measured_ns = now_ns;
  delivery->is_part = true;
}

void mrc_delivery_on_late(struct mrc_delivery *delivery, uint64_t bytes, uint64_t now_ns) {
  delivery->late_bytes += bytes;
  if (delivery->clock_ns == 0) return; /* nothing has arrived: that may be the delay */
  delivery->clocked_ns = now_ns - delivery->clock_ns;
  delivery->busy = true;
}

void mrc_delivery_forget(struct mrc_delivery *delivery, uint64_t old_ns, uint64_t now_ns) {
  if (now_ns - delivery->measured_ns < old_ns) return;
  delivery->measured_ns = now_ns;
  delivery->takes_ns /= 2;
  delivery->losses = mrc_min_u32(delivery->losses, MRC_DELIVERY_LOSSY);
}

/* ---- losses ---- */

void mrc_delivery_on_lost(struct mrc_delivery *delivery, uint64_t sent_ns,
                          const struct mrc_rtt *rtt) {
  if (delivery->lost_ns != 0 && sent_ns <= delivery->lost_ns + rtt->smooth_ns) return;
  delivery->lost_ns = sent_ns;
  delivery->losses += (MRC_DELIVERY_ALL - delivery->losses) / MRC_DELIVERY_WEIGHT;
}

void mrc_delivery_on_spurious(struct mrc_delivery *delivery) {
  delivery->losses -= mrc_min_u32(delivery->losses, MRC_DELIVERY_ALL / MRC_DELIVERY_WEIGHT);
}
