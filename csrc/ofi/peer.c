/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/peer.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_PEERS = 64 };

static struct of_peer **peers;
static uint32_t n_peers, room;

struct of_peer *of_peer_at(uint64_t index) { return index < n_peers ? peers[index] : NULL; }

static bool is_at(const struct of_peer *peer, const struct mrc_agent_endpoint *point) {
  return peer->point.number == point->number &&
         memcmp(peer->point.gid, point->gid, sizeof point->gid) == 0 &&
         memcmp(peer->point.token, point->token, sizeof point->token) == 0;
}

struct of_peer *of_peer_find(const struct mrc_agent_endpoint *point) {
  for (uint32_t i = 0; i < n_peers; i++)
    if (is_at(peers[i], point)) return peers[i];
  return NULL;
}

struct of_peer *of_peer_of(const struct mrc_agent_endpoint *point) {
  struct of_peer *peer = of_peer_find(point);
  if (peer) return peer;
  if (n_peers == room) {
    const uint32_t larger = room ? 2 * room : FIRST_PEERS;
    struct of_peer **moved = realloc(peers, larger * sizeof(struct of_peer *));
    if (!moved) return NULL;
    peers = moved;
    room = larger;
  }
  peer = calloc(1, sizeof *peer);
  if (!peer) return NULL;
  peer->point = *point;
  peer->index = n_peers;
  peers[n_peers++] = peer;
  return peer;
}

struct of_peer *of_peer_numbered(uint32_t number) {
  for (uint32_t i = 0; i < n_peers; i++)
    for (int j = 0; j < 2; j++)
      if (peers[i]->qps[j].qpn != 0 && peers[i]->qps[j].number == number) return peers[i];
  return NULL;
}

struct of_qp *of_peer_qp(uint32_t qpn, struct of_peer **peer) {
  for (uint32_t i = 0; i < n_peers; i++)
    for (int j = 0; j < 2; j++)
      if (qpn != 0 && peers[i]->qps[j].qpn == qpn) {
        *peer = peers[i];
        return &peers[i]->qps[j];
      }
  return NULL;
}

void of_peer_each_qp(void (*call)(struct of_peer *peer, struct of_qp *qp)) {
  for (uint32_t i = 0; i < n_peers; i++)
    for (int j = 0; j < 2; j++)
      if (peers[i]->qps[j].qpn != 0) call(peers[i], &peers[i]->qps[j]);
}
