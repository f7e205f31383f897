/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"

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
                        uint32_t entry) {
  uint32_t i = entry == 0 ? *head_of(peers, address, sport) : peers->entries[entry].next;
  for (; i != 0; i = peers->entries[i].next) {
    if (is_source(&peers->entries[i].source, address, sport)) return i;
  }
  return 0;
}

uint32_t mrc_peers_find_plain(const struct mrc_peers *peers, const uint8_t address[16],
                              uint16_t sport, uint32_t entry) {
  do {
    entry = mrc_peers_find(peers, address, sport, entry);
  } while (entry != 0 && mrc_peers_at(peers, entry)->sealed);
  return entry;
}

struct mrc_peer *mrc_peers_at(const struct mrc_peers *peers, uint32_t entry) {
  return &peers->peers[peers->entries[entry].peer];
}

/* The entry of this peer that holds the source, or 0. */
static uint32_t find_of(const struct mrc_peers *peers, const struct mrc_peer *peer,
                        const uint8_t address[16], uint16_t sport) {
  uint32_t entry = 0;
  while ((entry = mrc_peers_find(peers, address, sport, entry)) != 0)
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
  while ((entry = mrc_peers_find(peers, source->address, source->sport, entry)) != 0) {
    struct mrc_peer *other = mrc_peers_at(peers, entry);
    if (other != peer && other->udp_port == peer->udp_port && other->sealed == peer->sealed &&
        same_sources(peers, peer, other))
      return other;
  }
  return peer;
}

/* The proved entry of this source, or 0. */
static uint32_t find_proved(const struct mrc_peers *peers, const struct mrc_peer_source *source) {
  uint32_t entry = 0;
  while ((entry = mrc_peers_find(peers, source->address, source->sport, entry)) != 0)
    if (peers->entries[entry].proved) break;
  return entry;
}

void mrc_peer_prove(struct mrc_peers *peers, const struct mrc_peer *peer) {
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
  mrc_assert(qp->peer == NULL && n >= 1);
  if (any_taken(peers, sources, n, udp_port)) return -EADDRINUSE;
  struct mrc_peer *peer = new_peer(peers);
  peer->udp_port = udp_port;
  peer->sealed = qp->seal != NULL;
  for (int i = 0; i < n; i++) {
    if (add_source(peers, peer, &sources[i])) continue;
    give_up(peers, peer);
    return -ENOSPC;
  }
  struct mrc_peer *equal = find_equal(peers, peer);
  if (equal != peer) give_up(peers, peer);
  qp->peer = equal;
  struct mrc_qp **place = equal->qps == NULL ? &equal->qps : &equal->qps->peer_next;
  qp->peer_prev = equal->qps;
  qp->peer_next = *place;
  if (*place != NULL) (*place)->peer_prev = qp;
  *place = qp;
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
  const uint32_t entry = find_of(peers, peer, address, sport);
  if (entry != 0) peer->matched = entry;
  return entry != 0;
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
