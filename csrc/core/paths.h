/* SPDX-License-Identifier: Apache-2.0 */
/* The books that a QP keeps of its paths: round trips, guards, probation and delivery, of which the
   states of EVs and planes are made. Nothing here sends. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/base.h"
#include "core/cc.h"
#include "core/services.h"
#include "mrc.h"

/* ---- round trips ---- */

/* The 16-bit timestamp of TSETH with tsr = 1: units of 1.024 us. */
static inline uint16_t mrc_timestamp(uint64_t now_ns) { return (uint16_t)(now_ns >> 10); }
/* Longer times between two timestamps are ambiguous. */
#define MRC_TIMESTAMP_MOST_NS ((uint64_t)INT16_MAX << 10)

/* A round-trip estimate: smoothed value and variation as in RFC 6298, and the smallest seen. */
struct mrc_rtt {
  uint64_t smooth_ns; /* 0: no sample yet */
  uint64_t var_ns;
  uint64_t base_ns; /* the smallest sample */
  uint64_t last_ns; /* the newest sample */
};

static inline void mrc_rtt_sample(struct mrc_rtt *rtt, uint64_t sample_ns) {
  sample_ns = mrc_max_u64(sample_ns, 1);
  rtt->last_ns = sample_ns;
  if (rtt->smooth_ns == 0) {
    *rtt = (struct mrc_rtt){
        .smooth_ns = sample_ns,
        .var_ns = sample_ns / 2,
        .base_ns = rtt->base_ns != 0 ? mrc_min_u64(rtt->base_ns, sample_ns) : sample_ns,
        .last_ns = sample_ns};
    return;
  }
  const uint64_t off =
      sample_ns > rtt->smooth_ns ? sample_ns - rtt->smooth_ns : rtt->smooth_ns - sample_ns;
  rtt->var_ns = (3 * rtt->var_ns + off) / 4;
  rtt->smooth_ns = (7 * rtt->smooth_ns + sample_ns) / 8;
  rtt->base_ns = mrc_min_u64(rtt->base_ns, sample_ns);
}

/* The smoothed value alone, at most 4 s; 0: no sample yet. */
static inline void mrc_rtt_smooth(uint32_t *smooth_ns, uint64_t sample_ns) {
  const uint64_t sample = mrc_min_u64(mrc_max_u64(sample_ns, 1), UINT32_MAX);
  *smooth_ns = (uint32_t)(*smooth_ns == 0 ? sample : (7ull * *smooth_ns + sample) / 8);
}

/* The time after sending at which an answer is overdue. */
static inline uint64_t mrc_rtt_overdue_ns(const struct mrc_rtt *rtt, uint64_t floor_ns) {
  return rtt->smooth_ns + mrc_max_u64(4 * rtt->var_ns, floor_ns);
}

/* ---- guards ---- */

/* Extra time before something counts as lost, learned from what came late. It halves with each
   MRC_GUARD_HALF_LIFE_NS without a new lesson. */

#define MRC_GUARD_HALF_LIFE_NS 5000000000ull
struct mrc_guard {
  uint64_t ns;
  uint64_t since_ns; /* when `ns` was set */
};

/* The guard at `now_ns`. */
static inline uint64_t mrc_guard_ns(const struct mrc_guard *guard, uint64_t now_ns) {
  const uint64_t halvings = (now_ns - guard->since_ns) / MRC_GUARD_HALF_LIFE_NS;
  return halvings < 64 ? guard->ns >> halvings : 0;
}

/* ---- probation ---- */

/* When a failed EV or plane may be used again: after MRC_PROBATION_SUCCESSES probe successes in a
   row, whose spacing doubles with each relapse. It decides when to probe and when the probation
   ends; it sends nothing. */

/* Choices of ours (the specification leaves cadence and count open). */
#define MRC_PROBATION_SUCCESSES 3
#define MRC_PROBATION_FIRST_NS 2000000ull    /* spacing of the first probes */
#define MRC_PROBATION_SLOWEST_NS 64000000ull /* longest spacing without an answer */
#define MRC_PROBATION_CALM_NS 10000000000ull /* after so long in use, a failure is no relapse */
#define MRC_PROBATION_MAX_RELAPSES 9         /* doublings: 2 ms << 9 is about a second */
#define MRC_PROBATION_MAX_DOUBLINGS 15

struct mrc_probation {
  uint64_t next_ns;          /* when to probe next; MRC_NEVER when in use or a probe is in flight */
  uint64_t returned_us : 48; /* when probation last ended; 0: never */
  uint64_t successes : 4;    /* in a row */
  uint64_t relapses : 4;
  uint64_t doublings : 4; /* of the spacing: one for each probe without an answer */
};

_Static_assert(sizeof(struct mrc_probation) == 16, "each EV has one");

static inline void mrc_probation_init(struct mrc_probation *p) {
  *p = (struct mrc_probation){.next_ns = MRC_NEVER};
}

/* Longest spacing while no probe is answered. Hosts with less noise than MRC_NOISE_NS do not
   shorten it: probes of many bad EVs would fill the link that they test. */
static inline uint64_t mrc_probation_slowest_ns(uint32_t noise_ns) {
  return mrc_floor_ns(MRC_PROBATION_SLOWEST_NS, mrc_max_u32(noise_ns, MRC_NOISE_NS));
}

/* Whether the last probe got no answer, so that the next one probably gets none. */
static inline bool mrc_probation_is_in_doubt(const struct mrc_probation *p) {
  return p->successes == 0 && p->doublings > 0;
}

/* The current spacing. With the least noise it reaches the longest after 14 of 15 doublings.
   Answers are followed by the next probe soon, but if a later one is missing, the long spacing goes
   on. */
static inline uint64_t mrc_probation_interval_ns(const struct mrc_probation *p, uint32_t noise_ns) {
  const uint64_t first_ns = mrc_floor_ns(MRC_PROBATION_FIRST_NS, noise_ns) << p->relapses;
  if (p->successes > 0) return first_ns;
  return mrc_min_u64(first_ns << p->doublings,
                     mrc_max_u64(mrc_probation_slowest_ns(noise_ns), first_ns));
}

static inline void mrc_probation_wait(struct mrc_probation *p, uint32_t noise_ns, uint64_t now_ns) {
  p->next_ns = now_ns + mrc_probation_interval_ns(p, noise_ns);
}

static inline void mrc_probation_on_failure(struct mrc_probation *p, uint32_t noise_ns,
                                            uint64_t now_ns) {
  const uint64_t away_us = (now_ns / 1000 - p->returned_us) & UINT64_MAX >> 16;
  if (p->returned_us == 0 || away_us >= MRC_PROBATION_CALM_NS / 1000)
    p->relapses = 0;
  else if (p->relapses < MRC_PROBATION_MAX_RELAPSES)
    p->relapses++;
  p->successes = 0;
  p->doublings = 0;
  mrc_probation_wait(p, noise_ns, now_ns);
}

static inline void mrc_probation_on_probe(struct mrc_probation *p) { p->next_ns = MRC_NEVER; }

static inline void mrc_probation_on_timeout(struct mrc_probation *p, uint32_t noise_ns,
                                            uint64_t now_ns) {
  p->successes = 0;
  if (p->doublings < MRC_PROBATION_MAX_DOUBLINGS) p->doublings++;
  mrc_probation_wait(p, noise_ns, now_ns);
}

/* The cause of the failure is over: the next probe is due now, without the current spacing. */
static inline void mrc_probation_on_mend(struct mrc_probation *p, uint64_t now_ns) {
  p->successes = 0;
  p->next_ns = now_ns;
}

/* Returns true when the probation ends. */
static inline bool mrc_probation_on_success(struct mrc_probation *p, uint32_t noise_ns,
                                            uint64_t now_ns) {
  if (++p->successes < MRC_PROBATION_SUCCESSES) {
    mrc_probation_wait(p, noise_ns, now_ns);
    return false;
  }
  p->returned_us = (now_ns / 1000) & UINT64_MAX >> 16;
  p->next_ns = MRC_NEVER;
  return true;
}

/* ---- delivery ---- */

/* How fast a plane delivers, and how much of it is lost. Rates are measured over flights. A flight
   begins when a packet leaves on a plane that has nothing in flight, and ends when all of it is
   acknowledged. Round trips alone do not show a slow link while messages are short: its first
   packets answer as soon as those of others, and only the end of a long flight is late. */

#define MRC_DELIVERY_BYTES 262144 /* rates are given as the time for so many bytes */
#define MRC_DELIVERY_ALL 65536    /* unit of the part of bursts that is lost */
#define MRC_DELIVERY_LOSSY 4096   /* a plane that loses more is lossy: one in 16 */
#define MRC_DELIVERY_WEIGHT 32    /* bursts in the moving average of losses */

struct mrc_delivery {
  uint64_t began_ns;     /* of the flight, or of the part of it that is measured now */
  uint64_t took_ns;      /* until its newest acknowledgement, without the base RTT */
  uint64_t bytes;        /* of it acknowledged */
  uint64_t clock_ns;     /* its first acknowledgement; 0: none yet */
  uint64_t clock_age_ns; /* how long the newest packet of that one took */
  uint64_t clock_bytes;  /* acknowledged by it */
  uint64_t clocked_ns;   /* from then to the newest acknowledgement */
  uint64_t late_bytes;   /* of it given up: they take longer than `took_ns` */
  uint64_t short_bytes;  /* of flights before that were too short to tell */
  uint64_t short_ns;     /* what they took */
  bool busy;             /* a queue grew on the plane for most of it */
  bool is_part;          /* the flight began earlier */
  uint64_t measured_ns;  /* when a flight was long enough to measure it, or it was forgotten */
  uint64_t takes_ns;     /* for MRC_DELIVERY_BYTES; 0: unknown */
  uint64_t lost_ns;      /* send time of the newest burst that was lost */
  uint32_t losses;       /* the part of bursts that was lost, a moving average in 1/65536 */
};

/* The time for MRC_DELIVERY_BYTES as known now; 0: unknown. */
uint64_t mrc_delivery_takes_ns(const struct mrc_delivery *delivery);

static inline bool mrc_delivery_is_lossy(const struct mrc_delivery *delivery) {
  return delivery->losses > MRC_DELIVERY_LOSSY;
}

/* A burst leaves on a plane that has nothing in flight. */
void mrc_delivery_on_flight(struct mrc_delivery *delivery, uint64_t now_ns);
/* `bytes` were acknowledged, the newest of them sent at `sent_ns`. */
void mrc_delivery_on_ack(struct mrc_delivery *delivery, uint64_t bytes, uint64_t sent_ns,
                         const struct mrc_rtt *rtt, uint64_t now_ns);
/* `bytes` were sent again elsewhere, because they are late: until now the plane was busy. */
void mrc_delivery_on_late(struct mrc_delivery *delivery, uint64_t bytes, uint64_t now_ns);
/* A packet was lost. Losses within a round trip count once: one overflow loses many bursts. */
void mrc_delivery_on_lost(struct mrc_delivery *delivery, uint64_t sent_ns,
                          const struct mrc_rtt *rtt);
/* The loss of a packet was spurious. */
void mrc_delivery_on_spurious(struct mrc_delivery *delivery);
/* A plane may have recovered that has carried too little for `old_ns` to measure it, perhaps
   because of what was measured before. It counts as twice as fast, and as not lossy until it loses
   the next burst. */
void mrc_delivery_forget(struct mrc_delivery *delivery, uint64_t old_ns, uint64_t now_ns);

/* ---- queues on the way back ---- */

/* How long a SACK waited in queues on its way here, for SACKs that carry their send time. The
   clocks of two hosts differ by an unknown time, which changes slowly. So a way back is compared
   with the shortest one of the last seconds. */

/* Clocks drift apart by less than 100 us a second, which is short compared with a queue. */
#define MRC_REVERSE_PERIOD_NS 4000000000ull
#define MRC_REVERSE_OLD_NS (4 * MRC_REVERSE_PERIOD_NS)

/* Times are differences of two clocks in units of mrc_timestamp, modulo 2^16. */
struct mrc_reverse_queue {
  uint64_t began_ns;     /* begin of the period; 0: no SACK yet */
  uint16_t least;        /* the shortest way back of this period */
  uint16_t least_before; /* of the period before */
};

static inline int16_t mrc_way_longer(uint16_t took, uint16_t than) {
  return (int16_t)(uint16_t)(took - than);
}

/* The wait of a SACK that left at `sent` by the peer's clock. Waits above 33 ms are ambiguous. */
static inline uint64_t mrc_reverse_queue_ns(struct mrc_reverse_queue *queue, uint16_t sent,
                                            uint64_t arrived_ns) {
  const uint16_t took = (uint16_t)(mrc_timestamp(arrived_ns) - sent);
  const uint64_t age_ns = arrived_ns > queue->began_ns ? arrived_ns - queue->began_ns : 0;
  if (queue->began_ns == 0 || age_ns > MRC_REVERSE_OLD_NS) {
    *queue =
        (struct mrc_reverse_queue){.began_ns = arrived_ns, .least = took, .least_before = took};
    return 0;
  }
  if (age_ns > MRC_REVERSE_PERIOD_NS)
    *queue = (struct mrc_reverse_queue){
        .began_ns = arrived_ns, .least = took, .least_before = queue->least};
  if (mrc_way_longer(took, queue->least) < 0) queue->least = took;
  const uint16_t least =
      mrc_way_longer(queue->least_before, queue->least) < 0 ? queue->least_before : queue->least;
  return (uint64_t)mrc_way_longer(took, least) << 10;
}

/* ---- EVs ---- */

/* The entropy values of one QP: their states, the rotation in each plane, and which EV is next.
   Callers pass in events and times. Other modules choose the plane. */

#define MRC_EV_NONE UINT16_MAX
#define MRC_EV_MAX_SKIP_LEVEL 6 /* the EV takes one turn in 64 */
#define MRC_EV_ALWAYS_MARKED 63

/* The part of the addresses that EVs share: all but the last four bytes of the destination. */
struct mrc_ev_ends {
  uint8_t src[16];
  uint8_t dst[12];
  uint16_t dport;
  uint8_t family;
  uint8_t reserved; /* 0: the structs are compared as bytes */
};

_Static_assert(sizeof(struct mrc_ev_ends) == 32, "no padding");

struct mrc_ev {
  struct mrc_probation probation; /* while ASSUMED_BAD */
  uint64_t bad_since_ns;          /* when it last became ASSUMED_BAD */
  uint64_t steered_ns;            /* when the skip level last changed */
  uint64_t packets;               /* data packets that the kernel took */
  uint64_t bytes;                 /* their payload */
  uint32_t value;                 /* source port and flow label */
  uint8_t dst[4];                 /* last bytes of the destination address */
  uint32_t lost;
  uint32_t probes;
  uint32_t rtt_ns; /* smoothed; 0 before the first sample */
  uint16_t ends;   /* index of its struct mrc_ev_ends */
  uint16_t place;  /* index in its plane's order array */
  uint8_t port;    /* of this host, from 1 */
  uint8_t plane;   /* index */
  uint8_t tx_index;
  uint8_t state;      /* enum mrc_ev_state */
  uint8_t skip_level; /* takes one turn in 1 << skip_level; above 0 while fuller than other EVs */
  uint8_t skip_turns; /* turns left to sit out, while SKIP */
  uint8_t marked : 6; /* smoothed part of answers with a mark; 1 is MRC_EV_ALWAYS_MARKED */
  bool proven : 1;    /* delivered a packet or answered a probe, since it was last late */
  bool on_trial : 1;  /* in the rotation, not proven, and a burst is in flight */
};

_Static_assert(sizeof(struct mrc_ev) == 80, "hundreds of EVs are much of the memory of a QP");

/* Distinguishes late packets of an EV from lost ones. */
struct mrc_ev_rack {
  uint64_t newest_ns; /* newest send time among the packets acknowledged on the EV */
  uint64_t heard_ns;  /* rack_ns of the plane when the EV last delivered */
};

/* The EVs of one plane: order[0 .. n_active) rotate, order[n_active .. n) are backups or bad. */
struct mrc_ev_plane {
  uint16_t *order; /* EV indices */
  uint16_t n;
  uint16_t n_active;
  uint16_t target; /* configured size of the rotation */
  uint16_t floor;  /* minimum size of the rotation after losses */
  uint16_t next;   /* position in the rotation */
  uint16_t n_skip; /* EVs with a skip level */
  uint16_t n_on_trial;
  uint16_t n_unproven;
  uint8_t port;      /* index of the port of this host */
  uint8_t peer_port; /* index of the port of the peer */
  uint32_t marked;   /* sum of `marked` over its EVs */
};

struct mrc_evset {
  struct mrc_ev *evs;
  struct mrc_ev_rack *racks; /* one for each EV */
  struct mrc_ev_ends *ends;  /* without duplicates */
  uint16_t *orders;          /* memory of the order arrays of all planes */
  uint16_t *by_value;        /* hash table of indices, MRC_EV_NONE where empty */
  struct mrc_ev_plane *planes;
  uint32_t ports;      /* number of planes */
  uint32_t plane_mask; /* bit p: plane p has EVs */
  uint32_t crossed;    /* planes with a port, of this host or the peer, of another index */
  uint32_t unproven;   /* planes all of whose EVs are UNPROVEN */
  uint32_t hash_mask;  /* number of cells of by_value - 1 */
  uint32_t noise_ns;   /* of the engine's configuration */
  uint16_t n;
  uint16_t n_ends;
  bool skips_once; /* reading G5-A: marks make an EV sit out one turn, and a turn ends one skip */
  bool by_delay;   /* switches may not mark: round trips tell how full a path is */
};

/* 0, -EINVAL (no EV or too many, a port or family out of range, a value twice), -ENOMEM. */
int mrc_evset_init(struct mrc_evset *set, const struct mrc_ev_attr *attrs, int n, uint32_t ports,
                   uint32_t noise_ns) MRC_MUST_CHECK;
/* Adds EVs, which are UNPROVEN: those that are there keep their indices. -ENOSPC: too many. */
int mrc_evset_add(struct mrc_evset *set, const struct mrc_ev_attr *attrs, int n,
                  uint32_t active_per_plane) MRC_MUST_CHECK;
void mrc_evset_free(struct mrc_evset *set);
/* Sets the size of each plane's rotation (0: all EVs) and shuffles it. */
void mrc_evset_start(struct mrc_evset *set, uint32_t active_per_plane, struct mrc_prng *prng);

/* The planes whose port of this host, or of the peer, is in `ports`. */
uint32_t mrc_evset_crossing(const struct mrc_evset *set, uint32_t ports, bool of_peer);
static inline uint32_t mrc_evset_on_ports(const struct mrc_evset *set, uint32_t ports) {
  const uint32_t planes = set->plane_mask & ports; /* inline: runs for every packet */
  return __builtin_expect(set->crossed == 0, true) ? planes : mrc_evset_crossing(set, ports, false);
}
/* The plane on which a packet came that `address` sent to this port. Without such a pair of ports,
   one of the port's planes; without any, the plane of the port's index. */
uint32_t mrc_evset_plane_from(const struct mrc_evset *set, uint32_t port,
                              const uint8_t address[16]);

/* The cell of by_value with the EV of this value; MRC_EV_NONE stands there if there is none. */
uint16_t *mrc_evset_find(const struct mrc_evset *set, uint32_t value);
/* Source and destination address of the EV. */
void mrc_evset_addresses(const struct mrc_evset *set, uint16_t ev, uint8_t src[16],
                         uint8_t dst[16]);

/* Whether the EV takes at most every fourth turn, and its round trip is still four times as long as
   those of others: then it tells nothing about the plane. */
bool mrc_evset_is_slow(const struct mrc_evset *set, uint16_t ev, uint64_t rtt_ns);
/* Whether the plane's rotation has an EV that is not on trial. */
static inline bool mrc_evset_has_next(const struct mrc_evset *set, uint32_t plane) {
  return set->planes[plane].n_active > set->planes[plane].n_on_trial;
}
/* The next EV of the plane's rotation, or MRC_EV_NONE. A skipped EV sits out its turns. An unproven
   EV sends one burst and then none until that is answered or lost. */
uint16_t mrc_evset_next(struct mrc_evset *set, uint32_t plane);
/* The next EV of the rotation that is not `avoid`, a skipped one only if there is no GOOD one;
   MRC_EV_NONE if there is no other. The rotation does not advance. */
uint16_t mrc_evset_other(const struct mrc_evset *set, uint32_t plane, uint16_t avoid);
/* Whether the controller keeps data and the engine's own probes from the EV. */
static inline bool mrc_ev_is_barred(const struct mrc_ev *ev) {
  return ev->state == MRC_EV_DENIED || ev->state == MRC_EV_UNPROVEN;
}
/* An EV of the plane that is not DENIED, for answers and probes, or MRC_EV_NONE. Rotates. */
uint16_t mrc_evset_any(struct mrc_evset *set, uint32_t plane);
/* The EV after this one among all EVs of the plane that are not barred, or MRC_EV_NONE. The first
   one after MRC_EV_NONE. */
uint16_t mrc_evset_after(const struct mrc_evset *set, uint32_t plane, uint16_t ev);

/* Events. A function that returns bool returns true if the state changed. */
/* A burst leaves on this EV, which is not proven: it is on trial now. */
void mrc_evset_on_burst(struct mrc_evset *set, uint16_t ev);
/* The EV delivered a packet or answered a probe: its trial ends. */
void mrc_evset_prove(struct mrc_evset *set, uint16_t ev);
/* The EV delivered a packet. `sent_ns`: its send time, or 0 for a probe, whose order relative to
   data does not count; `rack_ns`: that of the plane. */
static inline void mrc_evset_on_delivered(struct mrc_evset *set, uint16_t index, uint64_t sent_ns,
                                          uint64_t rack_ns) {
  struct mrc_ev *ev = &set->evs[index];
  if (!ev->proven) mrc_evset_prove(set, index); /* inline: runs for every packet acknowledged */
  struct mrc_ev_rack *rack = &set->racks[index];
  *rack =
      (struct mrc_ev_rack){.newest_ns = mrc_max_u64(rack->newest_ns, sent_ns), .heard_ns = rack_ns};
}
/* A packet of the EV was lost or refused, or its arrival is no evidence: the EV's trial ends. */
void mrc_evset_on_missed(struct mrc_evset *set, uint16_t ev);
/* The network marked or trimmed a packet sent at `sent_ns` on this EV (0: unknown time). */
bool mrc_evset_on_skip(struct mrc_evset *set, uint16_t ev, uint64_t sent_ns, uint64_t now_ns);
/* A packet sent at `sent_ns` on this EV arrived without a mark. With `by_delay` its round trip
   (0: unknown) tells whether the EV takes too many turns or too few. */
void mrc_evset_on_clear(struct mrc_evset *set, uint16_t ev, uint64_t sent_ns, uint64_t rtt_ns,
                        uint64_t now_ns);
/* Whether the EV of a late packet can be avoided. The packet was sent at `sent_ns`, and a packet
   sent `late_ns` later has arrived. Not if the packet was sent before the skip level last changed,
   half of the plane's EVs are already avoided, or other EVs have about as long a round trip. */
bool mrc_evset_can_avoid(const struct mrc_evset *set, uint16_t ev, uint64_t sent_ns,
                         uint64_t late_ns);
/* A packet is late, but not lost. The EV sends nothing until it delivers again, and then takes half
   as many turns as before. */
bool mrc_evset_on_late(struct mrc_evset *set, uint16_t ev, uint64_t now_ns);
/* Whether the rotation can lose this EV: the EV is a backup, has a GOOD replacement, or the
   rotation is above its minimum. */
bool mrc_evset_can_spare(const struct mrc_evset *set, uint16_t ev);
/* `back`: the EV that becomes GOOD in exchange, at the minimum of the rotation, or MRC_EV_NONE. */
bool mrc_evset_on_loss(struct mrc_evset *set, uint16_t ev, uint16_t *back, uint64_t now_ns);
bool mrc_evset_on_trust(struct mrc_evset *set, uint16_t ev);
/* The controller bars the EV: DENIED or UNPROVEN. */
bool mrc_evset_on_bar(struct mrc_evset *set, uint16_t ev, enum mrc_ev_state state);

/* ---- planes ---- */

/* A plane as one QP sees it: its measurements and counters, and whether it may carry packets.
   send.c chooses the plane of the next burst; loss.c decides which packets are lost. */

struct mrc_plane {
  struct mrc_rtt rtt;
  struct mrc_cc cc;               /* the window of this plane; see mrc_qp_cc */
  struct mrc_probation probation; /* while suspended */
  struct mrc_reverse_queue reverse_queue;
  struct mrc_delivery delivery;
  uint32_t answer_ns;     /* smoothed round trip without the reverse queue; 0: no sample yet */
  uint32_t weighed_bytes; /* given to it lately, if a plane has a weight; see send.c */
  uint64_t empty_ns;      /* that of the newest packet that left while nothing was in flight here */
  uint64_t packets;       /* data packets that the kernel took */
  uint64_t bytes;         /* their payload */
  uint64_t lost;
  uint64_t received_packets;  /* data packets placed */
  uint64_t received_bytes;    /* their payload */
  uint64_t share_bytes;       /* given to it to send; see send.c */
  uint64_t newly_acked_bytes; /* by the acknowledgement in progress */
  uint64_t share_acked_bytes; /* in the period in progress; see qp.h */
  uint64_t rack_ns;           /* newest send time of a packet acknowledged on this plane */
  uint64_t reported_ns;       /* send time up to which all its arrivals are acknowledged */
  uint64_t heard_ns;          /* when something sent on this plane was last acknowledged */
  uint64_t longer_ns;         /* since when its way seems longer, if it yields; 0: it does not */
  uint64_t doubted_ns; /* since when answers are missing for packets resent elsewhere; 0: none */
  struct mrc_guard reorder; /* grows when a packet declared lost by order had arrived */
  struct mrc_guard spread;  /* extra difference between its paths; grows likewise */
  uint32_t copied_units;    /* since when packets that left twice have no answer here; 0: none */
  uint16_t probed_ev;       /* while suspended: probed last, or MRC_EV_NONE; see endpoint.c */
  uint16_t reverse_ev;      /* its probe was answered last; or MRC_EV_NONE; see qp.h */
  uint8_t reverse_failures; /* reverse probes that failed in a row */
  uint8_t weight;           /* per cent of the plane that carries most; 0: a backup */
  uint8_t strikes;          /* bursts in a row lost by silence; 0 after any acknowledgement */
  bool suspended;           /* silent: it sends only probes */
  bool peer_down;           /* the peer reported its port down */
  bool unsendable;          /* suspended, and the kernel has refused to send there */
  bool patient;             /* a probe with a long timeout is in flight; see endpoint.c */
};

/* The planes that answered about as fast as the quickest one, at the last comparison. */
struct mrc_quick {
  uint32_t planes;    /* as a mask; 0: unknown */
  uint32_t limited;   /* planes that deliver much less than the others, as a mask */
  uint64_t answer_ns; /* of the quickest */
  uint64_t compared_ns;
};

/* State of the choice of planes; see send.c. */
struct mrc_plane_choice {
  uint32_t backups;   /* planes of weight 0: they carry data only while no other can, as a mask */
  uint32_t curbed;    /* planes of a weight from 1 to 99, as a mask */
  uint32_t yielding;  /* planes that carry what others leave of their links, as a mask */
  uint32_t sharing;   /* planes that took equal shares at the last choice, as a mask */
  bool needs_backups; /* all planes in use may be silent */
  struct mrc_quick quick;
  uint64_t most_share_bytes; /* the largest share_bytes of a plane */
};

/* Probes that find EVs for the answers of a QP that only receives; see qp.h. */
struct mrc_reverse {
  struct mrc_rtt rtt;   /* of its probes */
  uint64_t next_ns;     /* no probe before */
  uint64_t seen_ns;     /* arrival of the newest packet at the last probe */
  uint64_t seen_bytes;  /* received by then */
  uint64_t asked_bytes; /* received by the last reliability probe of the peer */
  uint32_t probing;     /* planes with a probe in flight, as a mask */
  uint8_t plane;        /* probed last */
  uint8_t backoff;      /* probes that failed since one was answered, at most 6 */
};

static inline void mrc_plane_init(struct mrc_plane *plane) {
  mrc_probation_init(&plane->probation);
  plane->weight = 100;
  plane->probed_ev = MRC_EV_NONE;
  plane->reverse_ev = MRC_EV_NONE;
}

/* A packet leaves on the plane, and a copy of it on another EV. */
static inline void mrc_plane_on_copy(struct mrc_plane *plane, uint64_t now_ns) {
  if (plane->copied_units == 0) plane->copied_units = mrc_max_u32(1, (uint32_t)(now_ns >> 10));
}
/* Since when such packets have no answer; 0: none has none. Half an hour ago at most. */
static inline uint64_t mrc_plane_copied_ns(const struct mrc_plane *plane, uint64_t now_ns) {
  const int32_t age_units = (int32_t)((uint32_t)(now_ns >> 10) - plane->copied_units);
  if (plane->copied_units == 0) return 0;
  return now_ns - ((uint64_t)(age_units > 0 ? age_units : 0) << 10);
}

/* The answer to a packet of `sent_ns` took `answer_ns`, without the reverse queue. */
static inline void mrc_plane_on_answer(struct mrc_plane *plane, uint64_t sent_ns,
                                       uint64_t answer_ns) {
  mrc_rtt_smooth(&plane->answer_ns, answer_ns);
  /* Whether the newest flight began with this packet. */
  if (!plane->delivery.is_part && plane->delivery.began_ns == sent_ns) plane->empty_ns = answer_ns;
}
/* The plane delivered a packet that was sent at `sent_ns`. */
static inline void mrc_plane_on_delivered(struct mrc_plane *plane, uint64_t sent_ns,
                                          uint64_t now_ns) {
  if (sent_ns > plane->rack_ns) /* a burst arrived */
    plane->delivery.losses -= plane->delivery.losses / MRC_DELIVERY_WEIGHT;
  plane->rack_ns = mrc_max_u64(plane->rack_ns, sent_ns);
  plane->heard_ns = now_ns;
  plane->doubted_ns = 0;
  plane->copied_units = 0;
  plane->strikes = 0;
}

/* Everything that arrived on this plane before a packet of `sent_ns` is acknowledged. */
static inline void mrc_plane_on_reported(struct mrc_plane *plane, uint64_t sent_ns) {
  plane->reported_ns = mrc_max_u64(plane->reported_ns, sent_ns);
}
