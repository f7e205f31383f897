/* SPDX-License-Identifier: Apache-2.0 */
/* The queue pair: all state of one QP, and the legal moves between the states of a QP. Higher
   modules act on it. */
#pragma once

#include "core/paths.h"
#include "core/seal.h"
#include "core/services.h"
#include "core/windows.h"
#include "mrc.h"

struct mrc_peer;

struct mrc_qp {
  struct mrc_ready_nodes nodes; /* in the lists of mrc_ready */
  uint8_t state;                /* enum mrc_qp_state */
  uint8_t status;               /* enum mrc_wc_status, why it failed */
  uint16_t next_ev_probe;       /* EV to probe next, when slots are short */
  uint32_t index;               /* in the engine's array; timer id */
  uint32_t qpn;
  uint32_t noise_ns; /* of the engine's configuration */
  struct mrc_qp_attr attr;
  struct mrc_evset evset;
  struct mrc_seal *seal; /* NULL: plain */
  struct mrc_peer *peer;
  struct mrc_qp *peer_next; /* among the QPs of that peer */
  struct mrc_qp *peer_prev;
  struct mrc_requester req;
  struct mrc_responder resp;
  uint64_t ev_probe_ns;         /* when an EV or plane on probation is next to be probed */
  uint64_t backup_probe_ns;     /* when backups are, if the QP carries data then */
  struct mrc_probe_user probes; /* slots in use by this QP */
  struct mrc_reverse reverse;
  struct mrc_plane_choice choice;
  struct mrc_plane planes[]; /* as many as the engine has ports */
};

/* The QPs of an engine. */
struct mrc_qps {
  struct mrc_qp **at;       /* by index; 0: free */
  struct mrc_keymap by_qpn; /* QPN -> index */
};

/* The QP of this number, or 0. */
struct mrc_qp *mrc_qps_find(const struct mrc_qps *qps, uint32_t qpn);

/* A QP in RESET, or 0 when there is no memory. */
struct mrc_qp *mrc_qp_new(const struct mrc_qp_create_attr *attr, uint32_t index,
                          const struct mrc_engine_config *config);
void mrc_qp_free(struct mrc_qp *qp);

/* The window that limits the packets sent on `plane`. */
static inline struct mrc_cc *mrc_qp_cc(const struct mrc_qp *qp, uint32_t plane) {
  const uint32_t its = qp->req.one_window ? (uint32_t)__builtin_ctz(qp->evset.plane_mask) : plane;
  return (struct mrc_cc *)&qp->planes[its].cc;
}
/* Bytes in flight that count against that window. */
static inline uint64_t mrc_qp_inflight_bytes(const struct mrc_qp *qp, uint32_t plane) {
  return qp->req.one_window ? qp->req.win.inflight_bytes : qp->req.win.lists[plane].bytes;
}

/* Whether that window has room for a packet of `bytes`. One packet may always be in flight. */
static inline bool mrc_qp_has_room(const struct mrc_qp *qp, uint32_t plane, uint32_t bytes) {
  const uint64_t inflight_bytes = mrc_qp_inflight_bytes(qp, plane);
  return inflight_bytes == 0 || inflight_bytes + bytes <= mrc_qp_cc(qp, plane)->cwnd_bytes;
}

/* The plane of a burst of the QP. */
static inline uint32_t mrc_qp_plane_of(const struct mrc_qp *qp, const struct mrc_burst *burst) {
  return qp->evset.evs[burst->_ev].plane;
}
/* The planes whose port of this host has a full socket. */
static inline uint32_t mrc_qp_blocked(const struct mrc_services *services,
                                      const struct mrc_qp *qp) {
  return mrc_evset_on_ports(&qp->evset, services->ports.blocked);
}

/* The planes of the QP with EVs in use and both ports up, as a mask: those that carry data now, or
   the suspended ones. Full sockets make no difference. */
static inline uint32_t mrc_qp_planes(const struct mrc_services *services, const struct mrc_qp *qp,
                                     bool suspended) {
  uint32_t up = 0;
  MRC_EACH_BIT(plane, mrc_evset_on_ports(&qp->evset, services->ports.up))
    if (qp->planes[plane].suspended == suspended && !qp->planes[plane].peer_down &&
        qp->evset.planes[plane].n_active != 0)
      up |= 1u << plane;
  return up;
}
/* The planes that a reliability probe may take: those in use and backups, or all suspended ones if
   there is none. */
static inline uint32_t mrc_qp_probed_planes(const struct mrc_services *services,
                                            const struct mrc_qp *qp) {
  const uint32_t alive = mrc_qp_planes(services, qp, false);
  return alive != 0 ? alive : mrc_qp_planes(services, qp, true);
}
/* The planes that may carry data: backups only while no other one does. */
static inline uint32_t mrc_qp_eligible_planes(const struct mrc_services *services,
                                              const struct mrc_qp *qp) {
  const uint32_t planes = mrc_qp_probed_planes(services, qp);
  const uint32_t used = planes & ~qp->choice.backups;
  return used != 0 && !qp->choice.needs_backups ? used : planes;
}

/* The time after sending at which an answer is overdue. `rtt` is without the time that packets and
   answers wait in the sockets of busy hosts, so what they waited lately is added. */
static inline uint64_t mrc_qp_overdue_ns(const struct mrc_qp *qp, const struct mrc_rtt *rtt,
                                         uint64_t floor_ns, uint64_t now_ns) {
  return mrc_rtt_overdue_ns(rtt, floor_ns) + mrc_guard_ns(&qp->req.host_waits, now_ns);
}

/* Whether the QP may send probes and endpoint messages: its peer is known and it has not failed. */
static inline bool mrc_qp_is_live(const struct mrc_qp *qp) {
  return qp->state == MRC_QP_RTR || qp->state == MRC_QP_RTS;
}
/* UDP payload of a full packet. */
static inline uint32_t mrc_qp_full_bytes(const struct mrc_qp *qp) {
  return qp->attr.rts.path_mtu + MRC_DATA_OVERHEAD_BYTES +
         (qp->seal != NULL ? MRC_SEAL_OVERHEAD_BYTES : 0);
}

/* Whether the peer was silent, or refused a packet, as often as its owner allows. */
static inline bool mrc_qp_has_no_retry_left(const struct mrc_qp *qp) {
  if (qp->attr.rts.retry_exp == 25) return false;
  return qp->req.timeouts > (uint32_t)qp->attr.rts.retry_linear + qp->attr.rts.retry_exp;
}

bool mrc_qp_may_move(uint32_t from, uint32_t to);

/* The QP has something to send, or its deadline has changed: the next transmit visits it. */
static inline void mrc_qp_touch(struct mrc_services *services, struct mrc_qp *qp) {
  mrc_list_append(&services->ready.ready, &qp->nodes.ready);
}
/* The QP owes its peer an answer. Answers leave before the data of all QPs. */
static inline void mrc_qp_touch_to_answer(struct mrc_services *services, struct mrc_qp *qp) {
  mrc_qp_touch(services, qp);
  mrc_list_append(&services->ready.answering, &qp->nodes.answering);
}

/* Prefetch the cache lines that a turn of the QP, or a packet for it, will touch. With thousands of
   QPs these lines are in memory only, and fetching them one by one costs more than the turn. Each
   step needs the lines of the last: the QP, then the objects it points to, then its next EVs. */
void mrc_qp_prefetch(const struct mrc_qp *qp);
void mrc_qp_prefetch_parts(const struct mrc_qp *qp);
void mrc_qp_prefetch_evs(const struct mrc_qp *qp);
/* Moves the QP to ERROR because of `status`. All outstanding work requests complete: the oldest
   with `oldest_status`, the rest flushed. */
void mrc_qp_fail(struct mrc_services *services, struct mrc_qp *qp, uint8_t status,
                 uint8_t oldest_status);

/* ---- peers ---- */

/* The remote hosts of our QPs. A peer is the set of sources that its packets come from, plus the
   UDP port that it receives at. QPs with the same sources and UDP port, sealed or plain, share one
   peer and its reported port states. This module sends nothing. */

/* The verdict on how much one plane carries. */
struct mrc_share {
  uint32_t percent; /* carried, of the others' mean, in the last compared period */
  uint8_t against;  /* periods in a row that contradict `slow` */
  bool compared;    /* at least once */
  bool slow;
};

/* The current period in which the planes to a peer are compared. */
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
  uint32_t matched;             /* entry of the list that matched last */
  struct mrc_peer_source nat;   /* behind which it is, if is_nat is set: it has one QP then */
  struct mrc_peer_source inner; /* the source that the NAT shows as `nat` */
  uint16_t udp_port;            /* destination port of our packets to it */
  bool sealed;                  /* its QPs are: what it says in plain packets is not from it */
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
/* Adds sources to a peer, for all its QPs. As mrc_peer_join; after -ENOSPC it has some of them. */
int mrc_peer_add(struct mrc_peers *peers, struct mrc_peer *peer,
                 const struct mrc_peer_source *sources, int n) MRC_MUST_CHECK;
/* The QP leaves its peer. The peer is freed when its last QP leaves. */
void mrc_peer_leave(struct mrc_peers *peers, struct mrc_qp *qp);

/* The next entry with this source after `entry` (0: from the start), or 0. Each peer that claims
   the source has one entry. `plain`: only of peers that do not seal their packets. */
uint32_t mrc_peers_find(const struct mrc_peers *peers, const uint8_t address[16], uint16_t sport,
                        bool plain, uint32_t entry);
/* The peer of an entry. */
struct mrc_peer *mrc_peers_at(const struct mrc_peers *peers, uint32_t entry);
/* Whether the peer has this source. Runs for every received packet; tries the last match first. */
bool mrc_peer_knows(const struct mrc_peers *peers, struct mrc_peer *peer, const uint8_t address[16],
                    uint16_t sport);
/* Whether the packet comes from the address of the peer's NAT. Then `meta` becomes what it was on
   the inner side; the peer's packets and EVs have that source. */
bool mrc_peer_undo_nat(const struct mrc_peer *peer, struct mrc_meta *meta);
/* Directs a burst for the inner side to the NAT: no seal covers addresses. */
static inline void mrc_peer_do_nat(const struct mrc_peer *peer, struct mrc_burst *burst) {
  if (peer->nat.is_nat == 0 || memcmp(burst->dst, peer->inner.address, 16) != 0) return;
  memcpy(burst->dst, peer->nat.address, sizeof burst->dst);
  burst->dport = peer->nat.sport;
}
/* Whether one of the peer's sources has this address; searches all of them. */
bool mrc_peer_sends_from(const struct mrc_peers *peers, const struct mrc_peer *peer,
                         const uint8_t address[16]);
/* A QP of the peer that may send endpoint messages, or 0. */
struct mrc_qp *mrc_peer_live_qp(const struct mrc_peer *peer);

/* ---- shares of planes ---- */

/* Compares how much each plane to a peer carries, period by period, and reports slow planes in
   events. The QPs to one peer are summed up: they share the planes, and a plane that another QP
   fills is not slow. send.c decides which plane a burst takes. */

/* Choices of ours. */
#define MRC_SHARE_PERIOD_NS 200000000ull /* scaled by the noise of the hosts */
#define MRC_SHARE_ROUNDS 8        /* base round trips of the shortest plane in a period, at least */
#define MRC_SHARE_MIN_PACKETS 64  /* full packets in a period, as a mean of the planes */
#define MRC_SHARE_SLOW_PERCENT 50 /* below, a plane is slow */
#define MRC_SHARE_FAIR_PERCENT 75 /* above, it no longer is */
#define MRC_SHARE_PERIODS 2       /* in a row that must agree */
#define MRC_SHARE_MAX_PERCENT 10000 /* higher values count as this */

/* Judges a period in which the plane carried `bytes` and the `n_others` others together
   `others_bytes`. Returns whether `slow` changed. */
bool mrc_share_judge(struct mrc_share *share, uint64_t bytes, uint64_t others_bytes,
                     uint32_t n_others);
/* Whether the period can compare the planes: there was enough data, and most of the time more was
   waiting. Short messages avoid slow planes on purpose, so they compare nothing. */
bool mrc_share_is_bulk(const struct mrc_share_sum *sum, uint32_t n_planes, uint32_t mtu_bytes);

/* `bytes` were acknowledged, and share_acked_bytes of their planes already include them. At the end
   of a period, compares the planes and reports each plane that became slow or is no longer slow.
   Does nothing with equal shares. */
void mrc_share_on_acked(struct mrc_services *services, struct mrc_qp *qp, uint64_t bytes,
                        uint64_t now_ns);
/* The QP leaves the plane or returns to it. Unless other QPs use the plane, its verdict is cleared
   and a new period begins. */
void mrc_share_forget(struct mrc_qp *qp, uint32_t plane);
/* The verdict on a plane of the QP. */
struct mrc_share mrc_share_of(const struct mrc_qp *qp, uint32_t plane);

/* ---- EVs for answers ---- */

/* The reverse EVs of a QP that only receives: for each plane, an EV on which its SACKs get through.
   Probes find these EVs, one per round trip while data arrives, on planes where no packets of its
   own have arrived lately. */

/* Choices of ours. */
#define MRC_REVERSE_BYTES 16384 /* if fewer arrived since the last probe, the next one waits */
#define MRC_REVERSE_SLOW 15     /* this many round trips longer, so that probes stay rare */
#define MRC_REVERSE_FAILURES 2  /* in a row: the plane carries no answers until one succeeds */
#define MRC_REVERSE_FIRST_NS 5000000ull /* between probes, before a round trip is known */

/* Packets may have arrived: probes the next plane if a probe is due. */
void mrc_reverse_on_visit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* A probe of this EV of the plane was answered. */
void mrc_reverse_on_answer(struct mrc_qp *qp, uint32_t plane, uint16_t ev, uint64_t rtt_ns);
/* The probe timed out, or the kernel could not send it. `offered`: it reached the kernel. */
void mrc_reverse_on_failure(struct mrc_qp *qp, uint32_t plane, uint16_t ev, bool offered);
/* The peer sent a reliability probe. If nothing arrived since the last one, the answer to that one
   was lost: the next answers try other EVs. */
void mrc_reverse_on_request(struct mrc_qp *qp);
/* Whether answers on this plane get through, unless probes or the kernel showed otherwise. */
bool mrc_reverse_works(const struct mrc_qp *qp, uint32_t plane);
/* An EV of the plane for answers, or MRC_EV_NONE: the one whose probe was answered last, or any. */
uint16_t mrc_reverse_ev(struct mrc_qp *qp, uint32_t plane);
/* The EV for answers to packets of plane number `own` (0: none arrived yet), or MRC_EV_NONE. */
uint16_t mrc_reverse_choose(const struct mrc_services *services, struct mrc_qp *qp, uint8_t own);
