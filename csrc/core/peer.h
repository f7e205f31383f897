/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts that QPs of ours talk to. A peer is the set of sources that its packets come from and
   the UDP port that it receives at; QPs with the same share it, and with it what it
   told of its ports. It sends nothing. */
#ifndef MRC_CORE_PEER_H
#define MRC_CORE_PEER_H

#include "../mrc.h"
#include "qp.h"
#include "share.h"

struct mrc_peer {
  struct mrc_qp *qps;            /* those that share it, the oldest first; 0: the peer is free */
  uint32_t ports_up;             /* its ports, as it last told */
  struct mrc_share_period share; /* in which planes to it are compared */
  struct mrc_share shares[MRC_MAX_PORTS]; /* by plane */
  uint32_t index;                         /* in the table; timer id */
  uint32_t sources;                       /* list in the table; of a free peer the next free one */
  uint32_t n_sources;
  uint32_t matched;  /* the one of the list that matched last */
  uint16_t udp_port; /* its destination port in what we send */
};

/* A source of one peer. References are indices, 0 is none. */
struct mrc_peer_entry {
  struct mrc_peer_source source;
  uint32_t peer;
  uint32_t next; /* with the same hash */
  uint32_t next_of_peer;
  bool proved; /* an answer to a probe came from there; of those with this source one at most */
};

struct mrc_peers {
  struct mrc_peer *peers;
  struct mrc_peer_entry *entries;
  uint32_t *heads; /* by hash of a source; two peers may claim the same one */
  uint32_t head_mask;
  uint64_t salt[2]; /* of the hash: peers choose their sources */
  uint32_t max_peers;
  uint32_t n_peers;    /* ever used: the others were never touched */
  uint32_t free_peers; /* list of those given back; MRC_PEER_NONE ends it */
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
/* The QP joins the peer with these sources and this UDP port, which is made when there is none. 0;
   -EADDRINUSE when one of the sources belongs to a peer of another UDP port; or -ENOSPC when there
   is no room for the sources, or no memory. */
int mrc_peer_join(struct mrc_peers *peers, struct mrc_qp *qp, const struct mrc_peer_source *sources,
                  int n, uint16_t udp_port) MRC_MUST_CHECK;
/* The peer answered a probe from the source that matched last: it belongs to this peer from now on,
   unless another one was first. */
void mrc_peer_prove(struct mrc_peers *peers, const struct mrc_peer *peer);
/* The QP leaves its peer, which is given up with its last QP. */
void mrc_peer_leave(struct mrc_peers *peers, struct mrc_qp *qp);

/* The entry after `entry` (0: the first) that holds this source, one for each peer that claims it;
   0 at the end. */
uint32_t mrc_peers_find(const struct mrc_peers *peers, const uint8_t address[16], uint16_t sport,
                        uint32_t entry);
/* The peer of an entry. */
struct mrc_peer *mrc_peers_at(const struct mrc_peers *peers, uint32_t entry);
/* Whether the peer sends from there; for every packet received. */
bool mrc_peer_knows(const struct mrc_peers *peers, struct mrc_peer *peer, const uint8_t address[16],
                    uint16_t sport);
/* Whether one of the peer's sources has this address; looks at all of them. */
bool mrc_peer_sends_from(const struct mrc_peers *peers, const struct mrc_peer *peer,
                         const uint8_t address[16]);
/* A QP of the peer that may send endpoint messages, or 0. */
struct mrc_qp *mrc_peer_live_qp(const struct mrc_peer *peer);

#endif
