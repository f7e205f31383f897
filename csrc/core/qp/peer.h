/* SPDX-License-Identifier: Apache-2.0 */
/* The remote hosts of our QPs. A peer is the set of sources that its packets come from, plus the
   UDP port that it receives at. QPs with the same sources and UDP port, sealed or plain, share one
   peer and its reported port states. This module sends nothing. */
#pragma once

#include "mrc.h"
#include "qp.h"

/* The verdict of share.c on one plane. */
struct mrc_share {
  uint32_t percent; /* carried, of the others' mean, in the last compared period */
  uint8_t against;  /* periods in a row that contradict `slow` */
  bool compared;    /* at least once */
  bool slow;
};

/* The current period of a peer in share.c. */
struct mrc_share_period {
  uint64_t end_ns;
  bool whole; /* no plane left or returned in it */
};

struct mrc_peer {
  struct mrc_qp *qps;                     /* the QPs that share it; 0: the peer is free */
  uint32_t ports_up;                      /* its ports that are up, as it last reported */
  struct mrc_share_period share;          /* in which its planes are compared */
  struct mrc_share shares[MRC_MAX_PORTS]; /* by plane */
  uint32_t index;                         /* in the table; timer id */
  uint32_t sources;                       /* list in the table; of a free peer the next free one */
  uint32_t n_sources;
  uint32_t matched;  /* entry of the list that matched last */
  uint16_t udp_port; /* destination port of our packets to it */
  bool sealed;       /* its QPs are: what it says in plain packets is not from it */
};

/* A source of one peer. References are indices, 0 is none. */
struct mrc_peer_entry {
  struct mrc_peer_source source;
  uint32_t peer;
  uint32_t next; /* with the same hash */
  uint32_t next_of_peer;
  bool proved; /* a probe answer came from this source; at most one entry per source */
};

struct mrc_peers {
  struct mrc_peer *peers;
  struct mrc_peer_entry *entries;
  uint32_t *heads; /* by hash of a source; several peers may claim one source */
  uint32_t head_mask;
  uint64_t salt[2]; /* of the hash, so that no peer can choose sources that collide */
  uint32_t max_peers;
  uint32_t n_peers;    /* ever used; the rest were never touched */
  uint32_t free_peers; /* list of the freed ones; MRC_PEER_NONE ends it */
  uint32_t max_entries;
  uint32_t n_entries;    /* ever used, entry 0 included */
  uint32_t room_entries; /* allocated; doubles up to max_entries as sources come */
  uint32_t free_entries;
};

#define MRC_PEER_NONE UINT32_MAX

/* 0 or -ENOMEM. */
int mrc_peers_init(struct mrc_peers *peers, uint32_t max_peers, uint32_t max_sources,
                   uint64_t seed) MRC_MUST_CHECK;
void mrc_peers_free(struct mrc_peers *peers);
/* The QP joins the peer with these sources and this UDP port; creates the peer if there is none.
   Returns 0; -EADDRINUSE when a source is proved for a peer with another UDP port; -ENOSPC when
   there is no room or no memory for the sources. */
int mrc_peer_join(struct mrc_peers *peers, struct mrc_qp *qp, const struct mrc_peer_source *sources,
                  int n, uint16_t udp_port) MRC_MUST_CHECK;
/* The peer answered a probe from the source that matched last. The source belongs to this peer from
   now on, unless another peer proved it first. */
void mrc_peer_prove(struct mrc_peers *peers, const struct mrc_peer *peer);
/* The QP leaves its peer. The peer is freed when its last QP leaves. */
void mrc_peer_leave(struct mrc_peers *peers, struct mrc_qp *qp);

/* Whether the peer of the QP has other QPs. */
static inline bool mrc_peer_is_shared(const struct mrc_qp *qp) {
  return qp->peer_next != NULL || qp->peer->qps != qp;
}

/* The next entry with this source after `entry` (0: from the start), or 0. Each peer that claims
   the source has one entry. */
uint32_t mrc_peers_find(const struct mrc_peers *peers, const uint8_t address[16], uint16_t sport,
                        uint32_t entry);
/* The same for peers that do not seal their packets. */
uint32_t mrc_peers_find_plain(const struct mrc_peers *peers, const uint8_t address[16],
                              uint16_t sport, uint32_t entry);
/* The peer of an entry. */
struct mrc_peer *mrc_peers_at(const struct mrc_peers *peers, uint32_t entry);
/* Whether the peer has this source. Runs for every received packet; tries the last match first. */
bool mrc_peer_knows(const struct mrc_peers *peers, struct mrc_peer *peer, const uint8_t address[16],
                    uint16_t sport);
/* Whether one of the peer's sources has this address; searches all of them. */
bool mrc_peer_sends_from(const struct mrc_peers *peers, const struct mrc_peer *peer,
                         const uint8_t address[16]);
/* A QP of the peer that may send endpoint messages, or 0. */
struct mrc_qp *mrc_peer_live_qp(const struct mrc_peer *peer);
