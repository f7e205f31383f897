/* SPDX-License-Identifier: Apache-2.0 */
#include "core/qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"

/* Legal moves, row from, column to: RESET INIT RTR RTS ERROR. */
static const bool moves[5][5] = {
    [MRC_QP_RESET] = {[MRC_QP_INIT] = true, [MRC_QP_ERROR] = true},
    [MRC_QP_INIT] = {[MRC_QP_RTR] = true, [MRC_QP_ERROR] = true, [MRC_QP_RESET] = true},
    [MRC_QP_RTR] = {[MRC_QP_RTS] = true, [MRC_QP_ERROR] = true},
    [MRC_QP_RTS] = {[MRC_QP_ERROR] = true},
};

bool mrc_qp_may_move(uint32_t from, uint32_t to) {
  return from <= MRC_QP_ERROR && to <= MRC_QP_ERROR && moves[from][to];
}

struct mrc_qp *mrc_qps_find(const struct mrc_qps *qps, uint32_t qpn) {
  const uint32_t index = mrc_keymap_get(&qps->by_qpn, qpn);
  return index == MRC_KEYMAP_NONE ? NULL : qps->at[index];
}

struct mrc_qp *mrc_qp_new(const struct mrc_qp_create_attr *attr, uint32_t index,
                          const struct mrc_engine_config *config) {
  struct mrc_qp *qp = calloc(1, sizeof *qp + config->ports * sizeof qp->planes[0]);
  if (qp == NULL) return NULL;
  qp->index = index;
  qp->qpn = attr->qpn;
  qp->attr.create = *attr;
  qp->noise_ns = config->noise_ns;
  qp->ev_probe_ns = MRC_NEVER;
  for (uint32_t i = 0; i < config->ports; i++)
    mrc_plane_init(&qp->planes[i]);
  if (mrc_requester_init(&qp->req, attr->sq_depth, config->ports) == 0 &&
      mrc_responder_init(&qp->resp, attr->mpr, attr->max_wimm) == 0)
    return qp;
  mrc_qp_free(qp);
  return NULL;
}

void mrc_qp_free(struct mrc_qp *qp) {
  free(qp->req.sq);
  mrc_txwin_free(&qp->req.win);
  free(qp->resp.wimms);
  free(qp->resp.waiting.words);
  mrc_rxwin_free(&qp->resp.win);
  mrc_evset_free(&qp->evset);
  mrc_seal_free(qp->seal);
  free(qp);
}

static void prefetch(const void *first, const void *end) {
  for (const char *at = first; at < (const char *)end; at += 64)
    __builtin_prefetch(at, 1);
}

void mrc_qp_prefetch(const struct mrc_qp *qp) {
  enum { PLANES = 4, TRIGGERS = 4 }; /* of each array, the first ones */
  /* First the lines that an arriving packet needs: the CPU fetches only a few at a time. */
  prefetch(qp, &qp->peer + 1);
  prefetch(&qp->resp, &qp->resp.triggers[TRIGGERS]);
  prefetch(&qp->resp.n_triggers, &qp->planes[PLANES]);
  prefetch(&qp->req, &qp->req + 1);
}

void mrc_qp_prefetch_parts(const struct mrc_qp *qp) {
  enum { SLOTS = 10 }; /* the first ones: the hardware prefetcher fetches the rest */
  const struct mrc_requester *req = &qp->req;
  const struct mrc_evset *set = &qp->evset;
  /* Only up to the last plane in use: the engine may have more ports than that. */
  const uint32_t top = set->n == 0 ? 0 : 32u - (uint32_t)__builtin_clz(set->plane_mask);
  if (mrc_requester_is_busy(&qp->req)) {
    const uint32_t slot = req->win.next_psn & req->win.mask;
    const uint32_t end = mrc_min_u32(slot + SLOTS, req->win.mask + 1);
    const struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
    prefetch(&req->win.slots[slot], &req->win.slots[end]);
    prefetch(wqe, wqe + 1);
    prefetch(req->win.tosend.words, req->win.tosend.words + 1);
    prefetch(req->win.lists, &req->win.lists[top]);
  }
  if (set->n == 0) return;
  prefetch(set->planes, &set->planes[top]);
  prefetch(set->ends, &set->ends[mrc_min_u32(set->n_ends, top)]);
  prefetch(set->orders, set->orders + 1);
  MRC_EACH_BIT(plane, set->plane_mask) {
    const uint16_t ev = qp->planes[plane].reverse_ev;
    if (ev != MRC_EV_NONE) prefetch(&set->evs[ev], &set->evs[ev + 1]);
  }
}

void mrc_qp_prefetch_evs(const struct mrc_qp *qp) {
  const struct mrc_evset *set = &qp->evset;
  if (!mrc_requester_is_busy(&qp->req)) return; /* answers use the reverse EVs */
  MRC_EACH_BIT(index, set->plane_mask) {
    const struct mrc_ev_plane *plane = &set->planes[index];
    const uint16_t ev = plane->order[plane->next < plane->n ? plane->next : 0];
    prefetch(&set->evs[ev], &set->evs[ev + 1]);
  }
}

void mrc_qp_fail(struct mrc_services *services, struct mrc_qp *qp, uint8_t status,
                 uint8_t oldest_status) {
  if (qp->state == MRC_QP_ERROR) return;
  mrc_trace(services, MRC_TRACE_QP_STATE, qp->qpn, qp->state, MRC_QP_ERROR);
  qp->state = MRC_QP_ERROR;
  qp->status = status;
  qp->ev_probe_ns = MRC_NEVER;
  mrc_requester_flush(services, &qp->req, qp->qpn, oldest_status);
  mrc_responder_clear(services, &qp->resp);
  mrc_node_leave(&qp->nodes.cq_waiting);
  const struct mrc_event event = {.type = MRC_EVENT_QP_ERROR, .qpn = qp->qpn, .status = status};
  mrc_event_push(services, &event);
}

/* ---- peers ---- */

#define FIRST_ENTRIES 64u /* before the table has to grow */

int mrc_peers_init(struct mrc_peers *peers, uint32_t max_peers, uint32_t max_sources,
                   uint64_t seed) {
  mrc_assert(max_peers > 0 && max_sources > 0);
  /* Room for one more peer: a join enters its sources before it looks for an equal peer. */
  const uint32_t max_entries = 1 + max_sources + MRC_MAX_PEER_SOURCES;
  const uint32_t room = mrc_min_u32(max_entries, FIRST_ENTRIES);
  const uint32_t heads = mrc_ceil_pow2(room);
  struct mrc_prng prng = {.state = ~seed};
  *peers = (struct mrc_peers){.peers = calloc(max_peers + 1, sizeof *peers->peers),
                              .entries = malloc(room * sizeof *peers->entries),
                              .heads = calloc(heads, sizeof *peers->heads),
                              .head_mask = heads - 1,
                              .salt = {mrc_prng_next(&prng), mrc_prng_next(&prng)},
                              .max_peers = max_peers + 1,
                              .free_peers = MRC_PEER_NONE,
                              .max_entries = max_entries,
                              .n_entries = 1,
                              .room_entries = room};
  if (peers->peers != NULL && peers->entries != NULL && peers->heads != NULL) return 0;
  mrc_peers_free(peers);
  return -ENOMEM;
}

void mrc_peers_free(struct mrc_peers *peers) {
  free(peers->peers);
  free(peers->entries);
  free(peers->heads);
  *peers = (struct mrc_peers){0};
}

static uint32_t *head_of(const struct mrc_peers *peers, const uint8_t address[16], uint16_t sport) {
  uint64_t halves[2];
  memcpy(halves, address, sizeof halves);
  const unsigned __int128 product =
      (unsigned __int128)(halves[0] ^ peers->salt[0]) * (halves[1] ^ peers->salt[1] ^ sport);
  return &peers->heads[((uint64_t)(product >> 64) ^ (uint64_t)product) & peers->head_mask];
}

static bool is_source(const struct mrc_peer_source *source, const uint8_t address[16],
                      uint16_t sport) {
  return source->sport == sport && memcmp(source->address, address, 16) == 0;
}

uint32_t mrc_peers_find(const struct mrc_peers *peers, const uint8_t address[16], uint16_t sport,
                        bool plain, uint32_t entry) {
  uint32_t i = entry == 0 ? *head_of(peers, address, sport) : peers->entries[entry].next;
  while (i != 0 && (!is_source(&peers->entries[i].source, address, sport) ||
                    (plain && mrc_peers_at(peers, i)->sealed)))
    i = peers->entries[i].next;
  return i;
}

struct mrc_peer *mrc_peers_at(const struct mrc_peers *peers, uint32_t entry) {
  return &peers->peers[peers->entries[entry].peer];
}

/* The entry of this peer that holds the source, or 0. */
static uint32_t find_of(const struct mrc_peers *peers, const struct mrc_peer *peer,
                        const uint8_t address[16], uint16_t sport) {
  uint32_t entry = 0;
  while ((entry = mrc_peers_find(peers, address, sport, false, entry)) != 0)
    if (peers->entries[entry].peer == peer->index) break;
  return entry;
}

static bool has_source(const struct mrc_peers *peers, const struct mrc_peer *peer,
                       const struct mrc_peer_source *source) {
  return find_of(peers, peer, source->address, source->sport) != 0;
}

/* ---- entries ---- */

/* Doubles the room for entries. Entries keep their indices. */
static bool grow(struct mrc_peers *peers) {
  const uint32_t room = mrc_min_u32(peers->max_entries, 2 * peers->room_entries);
  if (room == peers->room_entries) return false;
  struct mrc_peer_entry *entries = realloc(peers->entries, room * sizeof *entries);
  if (entries == NULL) return false;
  peers->entries = entries;
  const uint32_t n_heads = mrc_ceil_pow2(room);
  uint32_t *heads = calloc(n_heads, sizeof *heads), *before = peers->heads;
  if (heads == NULL) return false;
  const uint32_t n_before = peers->head_mask + 1;
  peers->heads = heads;
  peers->head_mask = n_heads - 1;
  peers->room_entries = room;
  for (uint32_t i = 0; i < n_before; i++) {
    for (uint32_t entry = before[i], next; entry != 0; entry = next) {
      next = entries[entry].next;
      uint32_t *head = head_of(peers, entries[entry].source.address, entries[entry].source.sport);
      entries[entry].next = *head;
      *head = entry;
    }
  }
  free(before);
  return true;
}

static uint32_t new_entry(struct mrc_peers *peers) {
  const uint32_t entry = peers->free_entries;
  if (entry != 0) {
    peers->free_entries = peers->entries[entry].next;
    return entry;
  }
  if (peers->n_entries == peers->room_entries && !grow(peers)) return 0;
  return peers->n_entries++;
}

static bool add_source(struct mrc_peers *peers, struct mrc_peer *peer,
                       const struct mrc_peer_source *source) {
  if (has_source(peers, peer, source)) return true;
  const uint32_t entry = new_entry(peers);
  if (entry == 0) return false;
  uint32_t *head = head_of(peers, source->address, source->sport);
  peers->entries[entry] = (struct mrc_peer_entry){
      .source = *source, .peer = peer->index, .next = *head, .next_of_peer = peer->sources};
  *head = entry;
  peer->sources = peer->matched = entry;
  peer->n_sources++;
  return true;
}

static void remove_entry(struct mrc_peers *peers, uint32_t entry) {
  struct mrc_peer_entry *gone = &peers->entries[entry];
  uint32_t *at = head_of(peers, gone->source.address, gone->source.sport);
  while (*at != entry)
    at = &peers->entries[*at].next;
  *at = gone->next;
  gone->next = peers->free_entries;
  peers->free_entries = entry;
}

/* ---- peers ---- */

static struct mrc_peer *new_peer(struct mrc_peers *peers) {
  uint32_t index = peers->free_peers;
  if (index != MRC_PEER_NONE)
    peers->free_peers = peers->peers[index].sources;
  else
    index = peers->n_peers++;
  mrc_assert(index < peers->max_peers); /* one for each QP, and one for a join in progress */
  struct mrc_peer *peer = &peers->peers[index];
  *peer = (struct mrc_peer){.index = index, .ports_up = UINT32_MAX};
  return peer;
}

static void give_up(struct mrc_peers *peers, struct mrc_peer *peer) {
  for (uint32_t entry = peer->sources, next; entry != 0; entry = next) {
    next = peers->entries[entry].next_of_peer;
    remove_entry(peers, entry);
  }
  peer->sources = peers->free_peers;
  peers->free_peers = peer->index;
}

static bool same_sources(const struct mrc_peers *peers, const struct mrc_peer *one,
                         const struct mrc_peer *other) {
  if (one->n_sources != other->n_sources) return false;
  for (uint32_t i = one->sources; i != 0; i = peers->entries[i].next_of_peer)
    if (!has_source(peers, other, &peers->entries[i].source)) return false;
  return true;
}

/* An older peer with the same sources, or the peer itself. */
static struct mrc_peer *find_equal(const struct mrc_peers *peers, struct mrc_peer *peer) {
  const struct mrc_peer_source *source = &peers->entries[peer->sources].source;
  uint32_t entry = 0;
  while ((entry = mrc_peers_find(peers, source->address, source->sport, false, entry)) != 0) {
    struct mrc_peer *other = mrc_peers_at(peers, entry);
    if (other != peer && other->udp_port == peer->udp_port && other->sealed == peer->sealed &&
        other->nat.is_nat == 0 && same_sources(peers, peer, other))
      return other;
  }
  return peer;
}

/* The proved entry of this source, or 0. */
static uint32_t find_proved(const struct mrc_peers *peers, const struct mrc_peer_source *source) {
  uint32_t entry = 0;
  while ((entry = mrc_peers_find(peers, source->address, source->sport, false, entry)) != 0)
    if (peers->entries[entry].proved) break;
  return entry;
}

void mrc_peer_prove(struct mrc_peers *peers, const struct mrc_peer *peer) {
  if (peer->nat.is_nat != 0) return; /* hosts behind other NATs have the same inner address */
  struct mrc_peer_entry *entry = &peers->entries[peer->matched];
  if (!entry->proved) entry->proved = find_proved(peers, &entry->source) == 0;
}

/* Whether a source is proved for a peer with another UDP port. A peer with the same UDP port is the
   same process: its sources change with its interfaces, and our answers still reach it. */
static bool any_taken(const struct mrc_peers *peers, const struct mrc_peer_source *sources, int n,
                      uint16_t udp_port) {
  for (int i = 0; i < n; i++) {
    const uint32_t entry = find_proved(peers, &sources[i]);
    if (entry != 0 && mrc_peers_at(peers, entry)->udp_port != udp_port) return true;
  }
  return false;
}

int mrc_peer_join(struct mrc_peers *peers, struct mrc_qp *qp, const struct mrc_peer_source *sources,
                  int n, uint16_t udp_port) {
  const struct mrc_peer_source *nat = sources[n - 1].is_nat != 0 ? &sources[--n] : NULL;
  mrc_assert(qp->peer == NULL && n >= 1);
  if (any_taken(peers, sources, n, udp_port)) return -EADDRINUSE;
  struct mrc_peer *peer = new_peer(peers);
  peer->udp_port = udp_port;
  peer->sealed = qp->seal != NULL;
  if (nat != NULL) {
    peer->nat = *nat;
    peer->inner = sources[0];
  }
  for (int i = 0; i < n; i++) {
    if (add_source(peers, peer, &sources[i])) continue;
    give_up(peers, peer);
    return -ENOSPC;
  }
  struct mrc_peer *equal = nat != NULL ? peer : find_equal(peers, peer);
  if (equal != peer) give_up(peers, peer);
  qp->peer = equal;
  struct mrc_qp **place = equal->qps == NULL ? &equal->qps : &equal->qps->peer_next;
  qp->peer_prev = equal->qps;
  qp->peer_next = *place;
  if (*place != NULL) (*place)->peer_prev = qp;
  *place = qp;
  return 0;
}

int mrc_peer_add(struct mrc_peers *peers, struct mrc_peer *peer,
                 const struct mrc_peer_source *sources, int n) {
  if (any_taken(peers, sources, n, peer->udp_port)) return -EADDRINUSE;
  for (int i = 0; i < n; i++)
    if (peer->n_sources >= MRC_MAX_PEER_SOURCES || !add_source(peers, peer, &sources[i]))
      return -ENOSPC;
  return 0;
}

void mrc_peer_leave(struct mrc_peers *peers, struct mrc_qp *qp) {
  struct mrc_peer *peer = qp->peer;
  if (qp->peer_prev != NULL)
    qp->peer_prev->peer_next = qp->peer_next;
  else
    peer->qps = qp->peer_next;
  if (qp->peer_next != NULL) qp->peer_next->peer_prev = qp->peer_prev;
  qp->peer = NULL;
  if (peer->qps == NULL) give_up(peers, peer);
}

bool mrc_peer_knows(const struct mrc_peers *peers, struct mrc_peer *peer, const uint8_t address[16],
                    uint16_t sport) {
  if (peer == NULL) return false;
  if (is_source(&peers->entries[peer->matched].source, address, sport)) return true;
  if (peer->nat.is_nat != 0 && is_source(&peer->nat, address, sport)) return true;
  const uint32_t entry = find_of(peers, peer, address, sport);
  if (entry != 0) peer->matched = entry;
  return entry != 0;
}

bool mrc_peer_undo_nat(const struct mrc_peer *peer, struct mrc_meta *meta) {
  if (peer == NULL || peer->nat.is_nat == 0) return false;
  if (memcmp(meta->src, peer->nat.address, sizeof meta->src) != 0) return false;
  memcpy(meta->src, peer->inner.address, sizeof meta->src);
  meta->sport = peer->inner.sport;
  return true;
}

bool mrc_peer_sends_from(const struct mrc_peers *peers, const struct mrc_peer *peer,
                         const uint8_t address[16]) {
  for (uint32_t i = peer->sources; i != 0; i = peers->entries[i].next_of_peer)
    if (memcmp(peers->entries[i].source.address, address, 16) == 0) return true;
  return false;
}

struct mrc_qp *mrc_peer_live_qp(const struct mrc_peer *peer) {
  struct mrc_qp *qp = peer->qps;
  while (qp != NULL && !mrc_qp_is_live(qp))
    qp = qp->peer_next;
  return qp;
}

/* ---- shares of planes ---- */

bool mrc_share_judge(struct mrc_share *share, uint64_t bytes, uint64_t others_bytes,
                     uint32_t n_others) {
  mrc_assert(n_others > 0);
  const uint64_t percent = others_bytes == 0 ? MRC_SHARE_MAX_PERCENT
                                             : mrc_mul_div(bytes, 100ull * n_others, others_bytes);
  share->compared = true;
  share->percent = (uint32_t)mrc_min_u64(percent, MRC_SHARE_MAX_PERCENT);
  const bool against = share->slow ? share->percent > MRC_SHARE_FAIR_PERCENT
                                   : share->percent < MRC_SHARE_SLOW_PERCENT;
  share->against = against ? share->against + 1 : 0;
  if (share->against < MRC_SHARE_PERIODS) return false;
  share->against = 0;
  share->slow = !share->slow;
  return true;
}

bool mrc_share_is_bulk(const struct mrc_share_sum *sum, uint32_t n_planes, uint32_t mtu_bytes) {
  if (sum->bytes < (uint64_t)n_planes * MRC_SHARE_MIN_PACKETS * mtu_bytes) return false;
  return sum->backed_bytes >= sum->bytes / 4 * 3;
}

/* Queues an event for every QP of the peer that uses the plane. */
static void report(struct mrc_services *services, const struct mrc_peer *peer, uint32_t plane) {
  const struct mrc_share *share = &peer->shares[plane];
  for (const struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next) {
    if (qp->state != MRC_QP_RTS || (qp->evset.plane_mask >> plane & 1) == 0) continue;
    if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL) continue;
    mrc_trace(services, MRC_TRACE_PLANE_SHARE, qp->qpn, mrc_port_of(plane), share->percent);
    const struct mrc_event event = {.type = MRC_EVENT_PLANE_SHARE,
                                    .qpn = qp->qpn,
                                    .port = mrc_port_of(plane),
                                    .status = !share->slow,
                                    .result = (int32_t)share->percent,
                                    .reason = MRC_REASON_DELIVERY};
    mrc_event_push(services, &event);
  }
}

/* The planes that share the data of the QP now. One with a weight is meant to carry less. */
static uint32_t sharing_planes(const struct mrc_services *services, const struct mrc_qp *qp) {
  return mrc_qp_planes(services, qp, false) &
         ~(qp->choice.backups | qp->choice.curbed | qp->choice.yielding);
}

/* Compares the planes of the busiest QP, summed over all QPs that use the same planes. */
static void compare(struct mrc_services *services, struct mrc_peer *peer) {
  const struct mrc_qp *first = peer->qps; /* the QP that carried most in this period */
  for (const struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    if (qp->req.share.bytes > first->req.share.bytes) first = qp;
  const uint32_t live = sharing_planes(services, first);
  const uint32_t n_planes = (uint32_t)__builtin_popcount(live);
  struct mrc_share_sum sum = {0};
  uint64_t carried[MRC_MAX_PORTS] = {0};
  for (const struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next) {
    if (qp->req.share.bytes == 0 || sharing_planes(services, qp) != live) continue;
    sum.backed_bytes += qp->req.share.backed_bytes;
    MRC_EACH_BIT(plane, live) {
      carried[plane] += qp->planes[plane].share_acked_bytes;
      sum.bytes += qp->planes[plane].share_acked_bytes;
    }
  }
  if (n_planes < 2 || !mrc_share_is_bulk(&sum, n_planes, first->attr.rts.path_mtu)) return;
  MRC_EACH_BIT(plane, live) {
    const uint64_t others_bytes = sum.bytes - carried[plane];
    if (mrc_share_judge(&peer->shares[plane], carried[plane], others_bytes, n_planes - 1))
      report(services, peer, plane);
  }
}

void mrc_share_on_acked(struct mrc_services *services, struct mrc_qp *qp, uint64_t bytes,
                        uint64_t now_ns) {
  if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL) return;
  struct mrc_share_sum *sum = &qp->req.share;
  sum->bytes += bytes;
  if (qp->req.unsent_bytes > 0) sum->backed_bytes += bytes;
  struct mrc_peer *peer = qp->peer;
  if (now_ns < peer->share.end_ns) return;
  if (peer->share.whole) compare(services, peer);
  /* A new period, by the base round trip of the shortest plane. On a slow plane, the base round
     trip may be mostly the time that its packets take on the wire. */
  uint64_t rtt_ns = UINT64_MAX;
  for (struct mrc_qp *other = peer->qps; other != NULL; other = other->peer_next) {
    other->req.share = (struct mrc_share_sum){0};
    MRC_EACH_BIT(index, other->evset.plane_mask) {
      struct mrc_plane *plane = &other->planes[index];
      plane->share_acked_bytes = 0;
      if (!plane->suspended && plane->rtt.base_ns != 0)
        rtt_ns = mrc_min_u64(rtt_ns, plane->rtt.base_ns);
    }
  }
  uint64_t period_ns = mrc_floor_ns(MRC_SHARE_PERIOD_NS, qp->noise_ns);
  if (rtt_ns != UINT64_MAX) period_ns = mrc_max_u64(period_ns, MRC_SHARE_ROUNDS * rtt_ns);
  peer->share = (struct mrc_share_period){.end_ns = now_ns + period_ns, .whole = true};
}

void mrc_share_forget(struct mrc_qp *qp, uint32_t plane) {
  for (const struct mrc_qp *other = qp->peer->qps; other != NULL; other = other->peer_next)
    if (other != qp && !other->planes[plane].suspended &&
        other->planes[plane].share_acked_bytes > 0)
      return;
  qp->peer->shares[plane] = (struct mrc_share){0};
  qp->peer->share = (struct mrc_share_period){0};
}

struct mrc_share mrc_share_of(const struct mrc_qp *qp, uint32_t plane) {
  if (qp->peer == NULL || qp->attr.rts.plane_shares == MRC_SHARES_EQUAL)
    return (struct mrc_share){0};
  return qp->peer->shares[plane];
}

/* ---- EVs for answers ---- */

#define MAX_BACKOFF 6 /* doublings of timeout and interval while no probe is answered */
#define TIMEOUT_FLOOR_NS 5000000ull /* timeout of a probe, beyond the round trip */

void mrc_reverse_on_visit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_reverse *reverse = &qp->reverse;
  const uint64_t arrived_ns = qp->resp.arrived_ns;
  if (arrived_ns == reverse->seen_ns || now_ns < reverse->next_ns) return;
  /* A QP that sends data gets the state of its planes from SACKs. */
  if (!mrc_qp_is_live(qp) || mrc_requester_is_busy(&qp->req)) return;
  /* The round trip of reverse probes; before the first answer, that of the probes at connect. */
  const struct mrc_rtt *data = &qp->req.rtt;
  const struct mrc_rtt *rtt = reverse->rtt.smooth_ns != 0 ? &reverse->rtt : data;
  uint64_t base_ns = mrc_floor_ns(MRC_REVERSE_FIRST_NS, qp->noise_ns);
  if (rtt->smooth_ns != 0) base_ns = rtt->base_ns;
  if (data->smooth_ns != 0) base_ns = mrc_min_u64(base_ns, data->base_ns);
  const uint64_t interval_ns = mrc_max_u64(qp->noise_ns, base_ns) << reverse->backoff;
  const bool little = qp->resp.received_bytes - reverse->seen_bytes < MRC_REVERSE_BYTES;
  if (little && now_ns - reverse->next_ns < MRC_REVERSE_SLOW * interval_ns) return;
  reverse->seen_ns = arrived_ns;
  reverse->seen_bytes = qp->resp.received_bytes;
  reverse->next_ns = now_ns + mrc_services_crowd(services) * interval_ns;
  /* The next plane in turn that may be probed. Own packets that arrived lately show that a plane
     works, as a probe does: a QP that sends now and then, such as small requests for data, needs
     few probes. Their SACKs show the state of the plane's EVs, so any EV may carry answers. */
  const uint64_t lately_ns = 2 * (uint64_t)__builtin_popcount(qp->evset.plane_mask) * interval_ns;
  uint32_t needy = 0;
  const uint32_t usable =
      mrc_evset_on_ports(&qp->evset, mrc_ports_usable(&services->ports)) & ~qp->evset.unproven;
  /* Backups carry no answers unless the newest data came there. */
  const uint32_t idle =
      qp->choice.backups & ~(qp->resp.last_port != 0 ? 1u << mrc_plane_of(qp->resp.last_port) : 0);
  MRC_EACH_BIT(index, qp->evset.plane_mask & ~idle) {
    struct mrc_plane *plane = &qp->planes[index];
    if (plane->heard_ns != 0 && now_ns - plane->heard_ns < lately_ns) {
      plane->reverse_ev = MRC_EV_NONE;
      plane->reverse_failures = 0;
    } else if ((usable >> index & 1) != 0 && !plane->suspended && !plane->peer_down &&
               (reverse->probing >> index & 1) == 0) {
      needy |= 1u << index;
    }
  }
  if (needy == 0) return;
  const uint32_t later = needy & ~(UINT32_MAX >> (MRC_MAX_PORTS - 1 - reverse->plane));
  const uint32_t plane = (uint32_t)__builtin_ctz(later != 0 ? later : needy);
  /* After a failure, the EV that was answered before shows whether the plane has failed or only
     another EV. */
  uint16_t ev = qp->planes[plane].reverse_failures > 0 ? qp->planes[plane].reverse_ev : MRC_EV_NONE;
  if (ev == MRC_EV_NONE || qp->evset.evs[ev].state == MRC_EV_DENIED)
    ev = mrc_evset_any(&qp->evset, plane);
  if (ev == MRC_EV_NONE) return;
  const uint64_t floor_ns = mrc_floor_ns(TIMEOUT_FLOOR_NS, qp->noise_ns);
  const struct mrc_ev_probe probe = {.ev = ev,
                                     .qp = qp,
                                     .timeout_ns = mrc_rtt_overdue_ns(rtt, floor_ns)
                                                   << reverse->backoff,
                                     .purpose = MRC_EV_PROBE_REVERSE};
  if (mrc_probes_start(&services->probes, &qp->probes, &probe) == NULL) return;
  reverse->plane = (uint8_t)plane;
  reverse->probing |= 1u << plane;
}

void mrc_reverse_on_answer(struct mrc_qp *qp, uint32_t plane, uint16_t ev, uint64_t rtt_ns) {
  struct mrc_reverse *reverse = &qp->reverse;
  mrc_rtt_sample(&reverse->rtt, rtt_ns);
  qp->planes[plane].reverse_ev = ev;
  qp->planes[plane].reverse_failures = 0;
  reverse->backoff = 0;
  reverse->probing &= ~(1u << plane);
}

void mrc_reverse_on_failure(struct mrc_qp *qp, uint32_t index, uint16_t ev, bool offered) {
  struct mrc_reverse *reverse = &qp->reverse;
  struct mrc_plane *plane = &qp->planes[index];
  reverse->probing &= ~(1u << index);
  if (!offered) return; /* it never reached the kernel: no evidence about the path */
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE;
  if (plane->reverse_failures < MRC_REVERSE_FAILURES) plane->reverse_failures++;
  if (reverse->backoff < MAX_BACKOFF) reverse->backoff++;
}

void mrc_reverse_on_request(struct mrc_qp *qp) {
  const bool again = qp->reverse.asked_bytes == qp->resp.received_bytes;
  qp->reverse.asked_bytes = qp->resp.received_bytes;
  MRC_EACH_BIT(plane, again ? qp->evset.plane_mask : 0)
    qp->planes[plane].reverse_ev = MRC_EV_NONE;
}

bool mrc_reverse_works(const struct mrc_qp *qp, uint32_t plane) {
  if (qp->planes[plane].suspended && qp->planes[plane].unsendable) return false;
  return mrc_requester_is_busy(&qp->req) ||
         qp->planes[plane].reverse_failures < MRC_REVERSE_FAILURES;
}

uint16_t mrc_reverse_ev(struct mrc_qp *qp, uint32_t index) {
  const struct mrc_plane *plane = &qp->planes[index];
  uint16_t ev = mrc_requester_is_busy(&qp->req) ? MRC_EV_NONE : plane->reverse_ev;
  if (plane->suspended && plane->probation.successes > 0) ev = plane->probed_ev;
  if (ev != MRC_EV_NONE && qp->evset.evs[ev].state != MRC_EV_DENIED) return ev;
  return mrc_evset_any(&qp->evset, index);
}

/* First choice is the plane of the packet to answer, unless answers get lost there. If that plane
   cannot send, any other plane serves; suspended planes come last. Backups serve only if no other
   plane can: if all answers get lost on the others, the peer moves its data to a backup. */
uint16_t mrc_reverse_choose(const struct mrc_services *services, struct mrc_qp *qp, uint8_t own) {
  static const struct {
    bool own, works, alive; /* only the plane of that packet; where answers get through; in use */
    bool spares;            /* no backups */
  } choices[] = {{.own = true, .works = true},
                 {.works = true, .alive = true, .spares = true},
                 {.own = true},
                 {.alive = true, .spares = true},
                 {.works = true, .alive = true},
                 {.alive = true},
                 {.own = false}};
  const uint32_t usable = mrc_evset_on_ports(&qp->evset, mrc_ports_usable(&services->ports));
  const uint32_t first = own != 0 ? 1u << mrc_plane_of(own) : 0;
  const uint32_t others = qp->evset.plane_mask & ~qp->evset.unproven;
  for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
    MRC_EACH_BIT(index, (choices[i].own ? first : others) & usable) {
      const struct mrc_plane *plane = &qp->planes[index];
      if (plane->peer_down || (choices[i].alive && plane->suspended)) continue;
      if (choices[i].spares && (qp->choice.backups >> index & 1) != 0) continue;
      if (choices[i].works && !mrc_reverse_works(qp, index)) continue;
      const uint16_t ev = mrc_reverse_ev(qp, index);
      if (ev != MRC_EV_NONE) return ev;
    }
  }
  return MRC_EV_NONE;
}
