/* SPDX-License-Identifier: Apache-2.0 */
/* The entropy values of one QP: their states, the rotation in each plane, and which EV is next.
   Callers pass in events and times. Other modules choose the plane. */
#pragma once

#include "core/base.h"
#include "core/services.h"
#include "mrc.h"
#include "probation.h"
#include "rtt.h"

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
  uint8_t port;
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
  uint32_t marked; /* sum of `marked` over its EVs */
};

struct mrc_evset {
  struct mrc_ev *evs;
  struct mrc_ev_rack *racks;   /* one for each EV */
  struct mrc_ev_ends *ends;    /* without duplicates */
  uint16_t *orders;            /* memory of the order arrays of all planes */
  uint16_t *by_value;          /* hash table of indices, MRC_EV_NONE where empty */
  struct mrc_ev_plane *planes; /* index: port - 1 */
  uint32_t ports;              /* number of planes */
  uint32_t plane_mask;         /* bit p: plane p has EVs */
  uint32_t hash_mask;          /* number of cells of by_value - 1 */
  uint32_t noise_ns;           /* of the engine's configuration */
  uint16_t n;
  uint16_t n_ends;
  bool skips_once; /* reading G5-A: marks make an EV sit out one turn, and a turn ends one skip */
  bool by_delay;   /* switches may not mark: round trips tell how full a path is */
};

/* 0, -EINVAL (no EV or too many, a port or family out of range, a value twice), -ENOMEM. */
int mrc_evset_init(struct mrc_evset *set, const struct mrc_ev_attr *attrs, int n, uint32_t ports,
                   uint32_t noise_ns) MRC_MUST_CHECK;
void mrc_evset_free(struct mrc_evset *set);
/* Sets the size of each plane's rotation (0: all EVs) and shuffles it. */
void mrc_evset_start(struct mrc_evset *set, uint32_t active_per_plane, struct mrc_prng *prng);

/* The EV with this value, or MRC_EV_NONE. */
uint16_t mrc_evset_find(const struct mrc_evset *set, uint32_t value);
/* Source and destination address of the EV. */
void mrc_evset_addresses(const struct mrc_evset *set, uint16_t ev, uint8_t src[16],
                         uint8_t dst[16]);

/* The plane that the EV leads through. */
static inline uint32_t mrc_evset_plane_of(const struct mrc_evset *set, uint16_t ev) {
  return mrc_plane_of(set->evs[ev].port);
}
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
/* An EV of the plane that is not DENIED, for answers and probes, or MRC_EV_NONE. Rotates. */
uint16_t mrc_evset_any(struct mrc_evset *set, uint32_t plane);
/* The EV after this one among all EVs of the plane that are not DENIED, or MRC_EV_NONE. The first
   one after MRC_EV_NONE. */
uint16_t mrc_evset_after(const struct mrc_evset *set, uint32_t plane, uint16_t ev);

/* Events. A function that returns bool returns true if the state changed. */
/* A burst leaves on this EV; an unproven EV is on trial now. */
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
bool mrc_evset_on_deny(struct mrc_evset *set, uint16_t ev);
