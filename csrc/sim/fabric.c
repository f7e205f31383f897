/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fabric.h"

#include <stdlib.h>

#include "sim/numbers.h"
#include "virtual/link.h"

/* The uSIDs of the test bed (mrc/testbed/topology.py). The last one of a list is USID_PORT + n for
   host n of its T0. T1s have more of them in a fabric with T2s. */
enum {
  USID_T1 = 0x0100,
  USID_T0 = 0x0200,
  USID_T2 = 0x2000,
  USID_T1_OF_PODS = 0x3000,
  USID_PORT = 0xE000,
  USID_BITS = 16
};

#define NO_HOP UINT32_MAX

/* ---- routing ---- */

static const struct mrc_topology *topology_of(const struct mrc_fabric *fabric) {
  return &fabric->world->config.topology;
}

static uint32_t usid_t1(const struct mrc_topology *topology) {
  return topology->t2 ? USID_T1_OF_PODS : USID_T1;
}

static void prepend(struct mrc_frame *packet, uint32_t usid) {
  packet->usids_beyond =
      (uint32_t)packet->usids << (32 - USID_BITS) | packet->usids_beyond >> USID_BITS;
  packet->usids = (uint64_t)usid << (64 - USID_BITS) | packet->usids >> USID_BITS;
}

void mrc_fabric_set_usids(const struct mrc_fabric *fabric, struct mrc_frame *packet) {
  const struct mrc_topology *topology = topology_of(fabric);
  packet->usids = packet->usids_beyond = 0;
  if (fabric->world->config.routing == MRC_SIM_ECMP) return;
  const uint32_t from = mrc_topology_t0_of(topology, packet->from);
  const uint32_t to = mrc_topology_t0_of(topology, packet->to);
  prepend(packet, USID_PORT + packet->to % mrc_topology_hosts_per_t0(topology));
  if (from == to) return;
  const uint32_t from_pod = mrc_topology_pod_of_t0(topology, from);
  const uint32_t to_pod = mrc_topology_pod_of_t0(topology, to);
  prepend(packet, USID_T0 + to);
  if (from_pod != to_pod) {
    prepend(packet, usid_t1(topology) + mrc_topology_t1_on(topology, to_pod, packet->path));
    prepend(packet, USID_T2 + packet->path);
  }
  prepend(packet, usid_t1(topology) + mrc_topology_t1_on(topology, from_pod, packet->path));
}

static uint32_t first_usid(const struct mrc_frame *packet) {
  return (uint32_t)(packet->usids >> (64 - USID_BITS));
}

/* The uSID that decides the next hop. The switch first shifts out its own uSID, as Linux does in
   End with the flavour NEXT-C-SID. */
static uint32_t usid_at(const struct mrc_fabric *fabric, uint32_t own, struct mrc_frame *packet) {
  while (first_usid(packet) == own) {
    packet->usids = packet->usids << USID_BITS | packet->usids_beyond >> (32 - USID_BITS);
    packet->usids_beyond <<= USID_BITS;
    if ((packet->usids | packet->usids_beyond) == 0 && fabric->calls->next_carrier)
      fabric->calls->next_carrier(packet);
  }
  return first_usid(packet);
}

/* The number that a uSID of this kind names, if it is below `n`; otherwise UINT32_MAX. */
static uint32_t number_of(uint32_t usid, uint32_t kind, uint32_t n) {
  return usid >= kind && usid - kind < n ? usid - kind : UINT32_MAX;
}

static uint32_t hop_of_t0(const struct mrc_fabric *fabric, uint32_t plane, uint32_t t0,
                          struct mrc_frame *packet) {
  const struct mrc_topology *topology = topology_of(fabric);
  const uint32_t usid = usid_at(fabric, USID_T0 + t0, packet),
                 each = mrc_topology_hosts_per_t0(topology);
  const uint32_t t1 = number_of(usid, usid_t1(topology), topology->t1);
  if (t1 != UINT32_MAX &&
      mrc_topology_pod_of_t1(topology, t1) == mrc_topology_pod_of_t0(topology, t0))
    return mrc_topology_t0_up(topology, plane, t0, t1);
  const uint32_t port = number_of(usid, USID_PORT, each);
  return port == UINT32_MAX ? NO_HOP : mrc_topology_host_down(topology, plane, t0 * each + port);
}

static uint32_t hop_of_t1(const struct mrc_fabric *fabric, uint32_t plane, uint32_t t1,
                          struct mrc_frame *packet) {
  const struct mrc_topology *topology = topology_of(fabric);
  const uint32_t usid = usid_at(fabric, usid_t1(topology) + t1, packet);
  const uint32_t pod = mrc_topology_pod_of_t1(topology, t1);
  const uint32_t t0 = number_of(usid, USID_T0, topology->t0);
  if (t0 != UINT32_MAX && mrc_topology_pod_of_t0(topology, t0) == pod)
    return mrc_topology_t1_down(topology, plane, t0, t1);
  const uint32_t t2 = number_of(usid, USID_T2, topology->t2);
  const bool joined = t2 != UINT32_MAX && mrc_topology_are_joined(topology, t1, t2);
  return joined ? mrc_topology_t1_up(topology, plane, pod, t2) : NO_HOP;
}

static uint32_t hop_by_usids(const struct mrc_fabric *fabric, const struct mrc_hop *in,
                             struct mrc_frame *packet) {
  if (in->to_kind == MRC_NODE_T0) return hop_of_t0(fabric, in->plane, in->to, packet);
  if (in->to_kind == MRC_NODE_T1) return hop_of_t1(fabric, in->plane, in->to, packet);
  const struct mrc_topology *topology = topology_of(fabric);
  const uint32_t usid = usid_at(fabric, USID_T2 + in->to, packet);
  const uint32_t t1 = number_of(usid, usid_t1(topology), topology->t1);
  if (t1 == UINT32_MAX || !mrc_topology_are_joined(topology, t1, in->to)) return NO_HOP;
  return mrc_topology_t2_down(topology, in->plane, mrc_topology_pod_of_t1(topology, t1), in->to);
}

/* ---- routing by hash ---- */

/* T1s draw another number than the T0s below them, which would leave each of them only some T2s. */
static uint32_t ecmp_hash(const struct mrc_frame *packet, enum mrc_node_kind at) {
  const uint64_t from = packet->from, to = packet->to, sport = packet->sport;
  struct mrc_prng hash = {.state = from << 48 | (to & 0xFFFF) << 32 | sport << 16 |
                                   (from >> 16) << 8 | to >> 16};
  hash.state ^= mrc_prng_next(&hash) ^ packet->flow_label;
  if (at == MRC_NODE_T1) (void)mrc_prng_next(&hash);
  return (uint32_t)(mrc_prng_next(&hash) >> 32);
}

/* Whether the hops of a path between two T0s exist. */
static bool has_way(const struct mrc_fabric *fabric, uint32_t plane, uint32_t from_t0,
                    uint32_t to_t0, uint32_t path) {
  uint32_t hops[MRC_TOPOLOGY_INNER_HOPS];
  const uint32_t n =
      mrc_topology_inner_hops(topology_of(fabric), plane, from_t0, to_t0, path, hops);
  for (uint32_t i = 0; i < n; i++)
    if (fabric->hops[hops[i]].is_absent) return false;
  return true;
}

/* Whether every hop behind T1 `t1` exists on a path to another pod. */
static bool has_way_up(const struct mrc_fabric *fabric, uint32_t plane, uint32_t t1, uint32_t to_t0,
                       uint32_t path) {
  const struct mrc_topology *topology = topology_of(fabric);
  uint32_t hops[MRC_TOPOLOGY_INNER_HOPS];
  const uint32_t pod = mrc_topology_pod_of_t1(topology, t1);
  const uint32_t n = mrc_topology_inner_hops(
      topology, plane, pod * mrc_topology_t0s_of_pod(topology), to_t0, path, hops);
  for (uint32_t i = 1; i < n; i++)
    if (fabric->hops[hops[i]].is_absent) return false;
  return true;
}

/* The T2 over which a T1 sends a packet: one of those that have both links. */
static uint32_t t2_by_ecmp(const struct mrc_fabric *fabric, const struct mrc_hop *in,
                           uint32_t to_t0, const struct mrc_frame *packet) {
  const struct mrc_topology *topology = topology_of(fabric);
  const uint32_t t1s = mrc_topology_t1s_of_pod(topology), first = in->to % t1s;
  const uint32_t hash = ecmp_hash(packet, MRC_NODE_T1);
  if (fabric->n_absent == 0) return first + t1s * (hash % (topology->t2 / t1s));
  uint32_t usable[MRC_SIM_MAX_T2], n = 0;
  for (uint32_t t2 = first; t2 < topology->t2; t2 += t1s)
    if (has_way_up(fabric, in->plane, in->to, to_t0, t2)) usable[n++] = t2;
  return n ? usable[hash % n] : first;
}

/* Whether a T0 can send a packet over the T1 at this place of its pod. */
static bool can_go_over(const struct mrc_fabric *fabric, uint32_t plane, uint32_t from_t0,
                        uint32_t to_t0, uint32_t place) {
  const struct mrc_topology *topology = topology_of(fabric);
  if (mrc_topology_pod_of_t0(topology, from_t0) == mrc_topology_pod_of_t0(topology, to_t0))
    return has_way(fabric, plane, from_t0, to_t0, place);
  for (uint32_t t2 = place; t2 < topology->t2; t2 += mrc_topology_t1s_of_pod(topology))
    if (has_way(fabric, plane, from_t0, to_t0, t2)) return true;
  return false;
}

/* The place in its pod of the T1 over which a T0 sends a packet: one of those that have all
   links. */
static uint32_t t1_by_ecmp(const struct mrc_fabric *fabric, const struct mrc_hop *in,
                           uint32_t to_t0, const struct mrc_frame *packet) {
  const uint32_t t1s = mrc_topology_t1s_of_pod(topology_of(fabric));
  const uint32_t hash = ecmp_hash(packet, MRC_NODE_T0);
  if (fabric->n_absent == 0) return hash % t1s;
  uint32_t usable[MRC_SIM_MAX_T1], n = 0;
  for (uint32_t t1 = 0; t1 < t1s; t1++)
    if (can_go_over(fabric, in->plane, in->to, to_t0, t1)) usable[n++] = t1;
  return n ? usable[hash % n] : 0;
}

static uint32_t hop_by_ecmp(const struct mrc_fabric *fabric, const struct mrc_hop *in,
                            const struct mrc_frame *packet) {
  const struct mrc_topology *topology = topology_of(fabric);
  const uint32_t t0 = mrc_topology_t0_of(topology, packet->to);
  const uint32_t to_pod = mrc_topology_pod_of_t0(topology, t0);
  if (in->to_kind == MRC_NODE_T2) return mrc_topology_t2_down(topology, in->plane, to_pod, in->to);
  if (in->to_kind == MRC_NODE_T1) {
    const uint32_t pod = mrc_topology_pod_of_t1(topology, in->to);
    if (pod == to_pod) return mrc_topology_t1_down(topology, in->plane, t0, in->to);
    return mrc_topology_t1_up(topology, in->plane, pod, t2_by_ecmp(fabric, in, t0, packet));
  }
  if (in->to == t0) return mrc_topology_host_down(topology, in->plane, packet->to);
  return mrc_topology_t0_up(topology, in->plane, in->to, t1_by_ecmp(fabric, in, t0, packet));
}

/* ---- at the end of a hop ---- */

void mrc_fabric_arrive(struct mrc_fabric *fabric, uint32_t index, struct mrc_frame *packet) {
  const struct mrc_hop *in = &fabric->hops[index];
  if (in->to_kind == MRC_NODE_HOST) {
    fabric->calls->arrive(fabric->edge, in->to, packet);
    return;
  }
  packet->switches++;
  const uint32_t out = fabric->world->config.routing == MRC_SIM_ECMP
                           ? hop_by_ecmp(fabric, in, packet)
                           : hop_by_usids(fabric, in, packet);
  if (out == NO_HOP || fabric->hops[out].is_absent) {
    fabric->record->stats.unroutable++;
    mrc_frame_pool_put(&fabric->pool, packet);
    return;
  }
  mrc_fabric_enter(fabric, out, packet);
}

/* ---- hops ---- */

uint32_t mrc_fabric_shard_of_end(const struct mrc_fabric *fabric, uint32_t shards,
                                 const struct mrc_hop *hop) {
  const struct mrc_topology *topology = topology_of(fabric);
  switch ((enum mrc_node_kind)hop->to_kind) {
    case MRC_NODE_HOST:
      return mrc_topology_shard_of_host(topology, shards, hop->to);
    case MRC_NODE_T0:
      return mrc_topology_shard_of_t0(topology, shards, hop->to);
    case MRC_NODE_T1:
      return hop->to * shards / topology->t1;
    default:
      return hop->to * shards / topology->t2;
  }
}

/* The other end of a hop between two switches may be in another shard. */
static void schedule_arrival(struct mrc_fabric *fabric, uint64_t at_ns, uint32_t index,
                             struct mrc_frame *packet) {
  const struct mrc_hop *hop = &fabric->hops[index];
  if (fabric->outboxes && !hop->from_host && hop->to_kind != MRC_NODE_HOST) {
    const uint32_t shard = mrc_fabric_shard_of_end(fabric, fabric->shards, hop);
    if (shard != fabric->shard) {
      struct mrc_mailbox *box = &fabric->outboxes[shard];
      box->at = mrc_grow(box->at, box->n, &box->capacity, sizeof(*box->at));
      box->at[box->n++] = (struct mrc_mail){.at_ns = at_ns, .packet = packet, .hop = index};
      return;
    }
  }
  mrc_world_schedule(fabric->world, at_ns, MRC_SIM_ON_ARRIVAL, index, packet);
}

/* A fault has duplicated a packet. The later copy is the extra one. */
static void send_copy(struct mrc_fabric *fabric, uint32_t index, struct mrc_frame *packet,
                      const struct mrc_link_fate *fate) {
  struct mrc_frame *copy = mrc_frame_pool_copy(&fabric->pool, packet);
  (fate->at_ns[1] >= fate->at_ns[0] ? copy : packet)->extra = true;
  schedule_arrival(fabric, fate->at_ns[1], index, copy);
}

/* The host that feeds a hop with `from_host`. */
static uint32_t feeder(const struct mrc_fabric *fabric, uint32_t index) {
  const uint32_t plane = fabric->hops[index].plane;
  return index - mrc_topology_host_up(topology_of(fabric), plane, 0);
}

void mrc_fabric_drain(struct mrc_fabric *fabric, uint32_t index) {
  struct mrc_hop *hop = &fabric->hops[index];
  struct mrc_frame *packet = mrc_queue_pop(&hop->queue, &hop->kind->queue);
  const struct mrc_link_fate fate = mrc_hop_send(hop, packet, fabric->world->now_ns);
  mrc_record_sent(fabric->record, index, packet, fate.copies > 0);
  hop->is_draining = mrc_queue_bytes(&hop->queue) > 0;
  if (hop->is_draining)
    mrc_world_schedule(fabric->world, hop->free_at_ns, MRC_SIM_ON_DRAIN, index, NULL);
  if (fate.copies == 0) {
    mrc_frame_pool_put(&fabric->pool, packet);
  } else {
    packet->corrupt |= fate.corrupt;
    if (fate.copies == 2) send_copy(fabric, index, packet, &fate);
    schedule_arrival(fabric, fate.at_ns[0], index, packet);
  }
  if (hop->from_host) fabric->calls->drained(fabric->edge, feeder(fabric, index), hop);
}

void mrc_fabric_enter(struct mrc_fabric *fabric, uint32_t index, struct mrc_frame *packet) {
  struct mrc_hop *hop = &fabric->hops[index];
  const bool trimmed = packet->trimmed;
  if (!mrc_queue_push(&hop->queue, &hop->kind->queue, packet)) {
    mrc_record_line(fabric->record, "drop", index, packet);
    mrc_frame_pool_put(&fabric->pool, packet);
    return;
  }
  if (packet->trimmed && !trimmed) mrc_record_line(fabric->record, "trim", index, packet);
  if (hop->is_draining) return;
  if (hop->free_at_ns <= fabric->world->now_ns) {
    mrc_fabric_drain(fabric, index);
    return;
  }
  hop->is_draining = true;
  mrc_world_schedule(fabric->world, hop->free_at_ns, MRC_SIM_ON_DRAIN, index, NULL);
}

/* ---- absent hops ---- */

void mrc_fabric_remove(struct mrc_fabric *fabric, uint32_t index) {
  fabric->n_absent += !fabric->hops[index].is_absent;
  fabric->hops[index].is_absent = true;
}

bool mrc_fabric_has_path(const struct mrc_fabric *fabric, uint32_t plane, uint32_t from,
                         uint32_t to, uint32_t path) {
  const struct mrc_topology *topology = topology_of(fabric);
  if (fabric->n_absent == 0) return true;
  if (fabric->hops[mrc_topology_host_up(topology, plane, from)].is_absent ||
      fabric->hops[mrc_topology_host_down(topology, plane, to)].is_absent)
    return false;
  return has_way(fabric, plane, mrc_topology_t0_of(topology, from),
                 mrc_topology_t0_of(topology, to), path);
}

bool mrc_fabric_joins(const struct mrc_fabric *fabric, uint32_t plane, uint32_t from, uint32_t to) {
  const uint32_t n = mrc_topology_n_paths(topology_of(fabric), from, to);
  for (uint32_t path = 0; path < n; path++)
    if (mrc_fabric_has_path(fabric, plane, from, to, path)) return true;
  return false;
}

uint32_t mrc_fabric_draw_plane(const struct mrc_fabric *fabric, uint32_t from, uint32_t to) {
  for (;;) {
    const uint32_t plane = mrc_prng_below(&fabric->world->prng, topology_of(fabric)->planes);
    if (mrc_fabric_joins(fabric, plane, from, to)) return plane;
  }
}

/* ---- ports ---- */

struct mrc_hop *mrc_fabric_port(const struct mrc_fabric *fabric, uint32_t plane, uint32_t host) {
  return &fabric->hops[mrc_topology_host_up(topology_of(fabric), plane, host)];
}

void mrc_fabric_send(struct mrc_fabric *fabric, struct mrc_frame *packet) {
  fabric->record->stats.packets++;
  mrc_fabric_enter(fabric, mrc_topology_host_up(topology_of(fabric), packet->plane, packet->from),
                   packet);
}

/* ---- life ---- */

static void make_kinds(struct mrc_fabric *fabric) {
  const struct mrc_sim_config *config = &fabric->world->config;
  const struct mrc_topology *topology = &config->topology;
  const struct mrc_queue_config queue = {.buffer_bytes = topology->buffer_bytes,
                                         .ecn_low_bytes = topology->ecn_low_bytes,
                                         .ecn_high_bytes = topology->ecn_high_bytes,
                                         .trims = topology->trims,
                                         .one_class = config->one_class};
  const struct mrc_hop_config inner = {.rate_bps = topology->fabric_rate_bps,
                                       .link.delay_ns = topology->fabric_delay_ns,
                                       .jitter_ns = topology->jitter_ns};
  struct mrc_hop_config outer = inner, core = inner;
  core.rate_bps = topology->core_rate_bps;
  core.link.delay_ns = topology->core_delay_ns;
  outer.rate_bps = topology->host_rate_bps;
  outer.link.delay_ns = topology->host_delay_ns;
  /* A host's port has no limit: it is blocked before its host can overrun it. */
  fabric->kinds[MRC_FABRIC_FROM_HOST] =
      (struct mrc_hop_kind){.config = outer, .queue.one_class = config->one_class};
  fabric->kinds[MRC_FABRIC_TO_HOST] = (struct mrc_hop_kind){.config = outer, .queue = queue};
  fabric->kinds[MRC_FABRIC_BETWEEN] = (struct mrc_hop_kind){.config = inner, .queue = queue};
  fabric->kinds[MRC_FABRIC_CORE] = (struct mrc_hop_kind){.config = core, .queue = queue};
  struct mrc_queue_config *last = &fabric->kinds[MRC_FABRIC_TO_HOST].queue;
  last->last_hop = true;
  if (!config->ecn_last_hop) last->ecn_low_bytes = last->ecn_high_bytes = 0;
}

/* The seeds of a hop: of its link, then of its queue. Both follow from its place in the fabric, so
   that a hop without faults needs to keep only one. */
static struct mrc_prng seeds_of(const struct mrc_fabric *fabric, uint32_t index) {
  const struct mrc_topology *topology = topology_of(fabric);
  const struct mrc_topology_place in = mrc_topology_place_of(topology, index);
  const uint32_t each = mrc_topology_hops_per_plane(topology);
  /* both directions of a link in turn */
  const uint64_t place = index / each * each + in.first + 2 * (uint64_t)in.link + in.down;
  return mrc_prng_skipped(fabric->seed, 2 * place);
}

struct mrc_hop_own *mrc_fabric_own(struct mrc_fabric *fabric, uint32_t index) {
  struct mrc_prng seeds = seeds_of(fabric, index);
  mrc_hop_make_own(&fabric->hops[index], mrc_prng_next(&seeds));
  return mrc_hop_own(&fabric->hops[index]);
}

static void make_hop(struct mrc_fabric *fabric, uint32_t index) {
  const struct mrc_topology *topology = topology_of(fabric);
  const struct mrc_topology_place at = mrc_topology_place_of(topology, index);
  const bool to_host = at.tier == MRC_TIER_HOST;
  int kind = at.tier == MRC_TIER_UPLINK ? MRC_FABRIC_BETWEEN : MRC_FABRIC_CORE;
  if (to_host) kind = at.down ? MRC_FABRIC_TO_HOST : MRC_FABRIC_FROM_HOST;
  struct mrc_prng seeds = seeds_of(fabric, index);
  (void)mrc_prng_next(&seeds);
  fabric->hops[index] =
      (struct mrc_hop){.kind = &fabric->kinds[kind],
                       .to = to_host == at.down ? at.end : at.near,
                       .to_kind = (uint8_t)(at.down ? at.tier : at.tier + 1),
                       .plane = (uint8_t)(index / mrc_topology_hops_per_plane(topology)),
                       .from_host = to_host && !at.down,
                       .queue.prng.state = mrc_prng_next(&seeds)};
  if (topology->jitter_ns > 0) mrc_fabric_own(fabric, index);
}

_Static_assert(MRC_NODE_T0 == MRC_TIER_HOST + 1 && MRC_NODE_T1 == MRC_TIER_UPLINK + 1 &&
                   MRC_NODE_T2 == MRC_TIER_CORE + 1,
               "a link leads up to the node behind its tier");

void mrc_fabric_build(struct mrc_fabric *fabric) {
  struct mrc_prng *prng = &fabric->world->prng;
  fabric->n_hops = topology_of(fabric)->planes * mrc_topology_hops_per_plane(topology_of(fabric));
  fabric->hops = aligned_alloc(_Alignof(struct mrc_hop), fabric->n_hops * sizeof(*fabric->hops));
  mrc_assert(fabric->hops);
  fabric->seed = prng->state;
  *prng = mrc_prng_skipped(fabric->seed, 2 * (uint64_t)fabric->n_hops);
  make_kinds(fabric);
  for (uint32_t i = 0; i < fabric->n_hops; i++)
    make_hop(fabric, i);
}

void mrc_fabric_free(struct mrc_fabric *fabric) {
  mrc_frame_pool_free(&fabric->pool);
  for (uint32_t i = 0; i < fabric->n_hops; i++)
    mrc_hop_free(&fabric->hops[i]);
  free(fabric->hops);
}

uint64_t mrc_fabric_count_frames(const struct mrc_fabric *fabric) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < fabric->n_hops; i++)
    n += mrc_queue_count(&fabric->hops[i].queue.control) +
         mrc_queue_count(&fabric->hops[i].queue.data);
  return n;
}

/* ---- faults ---- */

enum { MILLION = 1000000 };

static void change(struct mrc_hop_config *config, const struct mrc_sim_fault *fault) {
  config->class = (uint8_t)fault->class;
  switch (fault->kind) {
    case MRC_SIM_SILENT:
    case MRC_SIM_DOWN:
      config->link.silent = true;
      break;
    case MRC_SIM_LOSS:
      config->link.loss_ppm = (uint32_t)fault->a;
      break;
    case MRC_SIM_LOSE:
      config->link.lose_n = (uint32_t)fault->a;
      config->link.lose_of = (uint32_t)fault->b;
      break;
    case MRC_SIM_MASK:
      config->link.loss_mask = fault->a;
      break;
    case MRC_SIM_BURST:
      config->burst_ppm = (uint32_t)fault->a;
      config->burst_packets = (uint32_t)fault->b;
      break;
    case MRC_SIM_CORRUPT:
      config->link.corrupt_ppm = (uint32_t)fault->a;
      break;
    case MRC_SIM_DUPLICATE:
      config->link.duplicate_ppm = (uint32_t)fault->a;
      config->link.reorder_ns = fault->b;
      break;
    case MRC_SIM_REORDER:
      config->link.reorder_ppm = (uint32_t)fault->a;
      config->link.reorder_ns = fault->b;
      break;
    case MRC_SIM_DELAY:
      config->link.delay_ns = fault->a;
      break;
    case MRC_SIM_JITTER:
      config->jitter_ns = fault->a;
      break;
    case MRC_SIM_MTU:
      config->link.mtu_bytes = fault->a ? (uint32_t)fault->a + MRC_FRAME_LINK_BYTES : 0;
      break;
    default:
      config->rate_bps = fault->a;
  }
}

/* Resets the property that the fault changes to the topology's value; the hop's other faults
   stay. */
static void restore(struct mrc_hop_config *config, const struct mrc_hop_config *base,
                    const struct mrc_sim_fault *fault) {
  struct mrc_sim_fault none = *fault;
  none.class = base->class;
  none.a = none.b = 0;
  if (fault->kind == MRC_SIM_LOSS) none.a = base->link.loss_ppm;
  if (fault->kind == MRC_SIM_DELAY) none.a = base->link.delay_ns;
  if (fault->kind == MRC_SIM_JITTER) none.a = base->jitter_ns;
  if (fault->kind == MRC_SIM_RATE) none.a = base->rate_bps;
  change(config, &none);
  if (fault->kind == MRC_SIM_MTU) config->link.mtu_bytes = base->link.mtu_bytes;
  if (fault->kind == MRC_SIM_SILENT || fault->kind == MRC_SIM_DOWN) config->link.silent = false;
}

void mrc_fault_add(struct mrc_hop_own *hop, const struct mrc_sim_fault *fault) {
  struct mrc_hop_config config = hop->kind.config;
  struct mrc_sim_fault own = *fault;
  if (own.kind == MRC_SIM_RATE && own.a == 0)
    own.a = mrc_max_u64(1, (uint64_t)((__uint128_t)hop->base.rate_bps * own.b / MILLION));
  change(&config, &own);
  mrc_hop_configure(hop, &config);
}

/* ---- effects on a hop ---- */

typedef void (*action)(struct mrc_fabric *fabric, uint32_t index,
                       const struct mrc_sim_fault *fault);

static void tell_host(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault,
                      bool up) {
  const struct mrc_hop *hop = &fabric->hops[index];
  if (fault->kind == MRC_SIM_DOWN && hop->from_host)
    fabric->calls->port_up(fabric->edge, feeder(fabric, index), hop->plane + 1, up);
}

static void begin(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault) {
  mrc_fault_add(mrc_fabric_own(fabric, index), fault);
  tell_host(fabric, index, fault, false);
}

static void end(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault) {
  struct mrc_hop_own *hop = mrc_fabric_own(fabric, index);
  struct mrc_hop_config config = hop->kind.config;
  restore(&config, &hop->base, fault);
  mrc_hop_configure(hop, &config);
  tell_host(fabric, index, fault, true);
}

static void rebase(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault) {
  struct mrc_hop_own *hop = mrc_fabric_own(fabric, index);
  change(&hop->base, fault);
  mrc_hop_configure(hop, &hop->base);
}

static void leave_out(struct mrc_fabric *fabric, uint32_t index,
                      const struct mrc_sim_fault *target) {
  (void)target;
  mrc_fabric_remove(fabric, index);
}

/* ---- which hops ---- */

/* Whether a link is one of a switch that the fault affects, or of the plane. */
static bool is_hit(const struct mrc_sim_fault *fault, const struct mrc_topology_place *at) {
  switch (fault->target) {
    case MRC_SIM_T0:
      return at->tier != MRC_TIER_CORE && at->near == fault->index;
    case MRC_SIM_T1:
      if (at->tier == MRC_TIER_CORE) return at->near == fault->index;
      return at->tier == MRC_TIER_UPLINK && at->end == fault->index;
    case MRC_SIM_T2:
      return at->tier == MRC_TIER_CORE && at->end == fault->index;
    default:
      return true;
  }
}

/* Calls `act` for each direction of every link that the fault affects. */
static void each_hop(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, action act) {
  const struct mrc_topology *topology = topology_of(fabric);
  const uint32_t plane = fault->plane - 1, all = mrc_topology_hops_per_plane(topology);
  uint32_t hop = plane * all, n = all;
  if (fault->target == MRC_SIM_ALL) {
    hop = 0;
    n = fabric->n_hops;
  } else if (fault->target == MRC_SIM_PORT) {
    hop = mrc_topology_host_up(topology, plane, fault->index);
    n = 1;
  } else if (fault->target == MRC_SIM_UPLINK) {
    hop = mrc_topology_t0_up(topology, plane, fault->index, fault->t1);
    n = 1;
  } else if (fault->target == MRC_SIM_CORE) {
    hop = mrc_topology_t1_up(topology, plane, mrc_topology_pod_of_t1(topology, fault->index),
                             fault->t2);
    n = 1;
  }
  for (; n > 0; hop++, n--) {
    const struct mrc_topology_place at = mrc_topology_place_of(topology, hop);
    if (at.down || !is_hit(fault, &at)) continue;
    if (fault->direction != MRC_SIM_DOWNWARD) act(fabric, hop, fault);
    if (fault->direction == MRC_SIM_UPWARD) continue;
    act(fabric, hop + mrc_topology_links(topology, at.tier), fault);
  }
}

void mrc_fault_switch(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, bool begins) {
  each_hop(fabric, fault, begins ? begin : end);
}

void mrc_fault_rebase(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault) {
  each_hop(fabric, fault, rebase);
}

void mrc_fault_remove(struct mrc_fabric *fabric, const struct mrc_sim_fault *target) {
  each_hop(fabric, target, leave_out);
}
