/* SPDX-License-Identifier: Apache-2.0 */
/* The entropy values of one QP: their states, the rotation in each plane, and which EV is next. It
   does not know packets or time beyond what it is told, and chooses no plane. */
#ifndef MRC_CORE_EV_H
#define MRC_CORE_EV_H

#include "../mrc.h"
#include "port.h"
#include "prng.h"
#include "probation.h"
#include "rtt.h"

#define MRC_EV_NONE UINT16_MAX
#define MRC_EV_MAX_SKIP_LEVEL 6 /* the longest skip is one turn in 64 */
#define MRC_EV_ALWAYS_MARKED 63

/* What EVs have in common: the addresses of both ends, but for what tells paths apart. */
struct mrc_ev_ends {
  uint8_t src[16];
  uint8_t dst[12];
  uint16_t dport;
  uint8_t family;
  uint8_t reserved; /* 0: they are compared as bytes */
};

_Static_assert(sizeof(struct mrc_ev_ends) == 32, "no padding");

struct mrc_ev {
  struct mrc_probation probation; /* while ASSUMED_BAD */
  uint64_t bad_since_ns;          /* when it last went ASSUMED_BAD */
  uint64_t steered_ns;            /* when the skip level last changed */
  uint64_t packets;               /* data packets that the kernel took */
  uint64_t bytes;                 /* their payload */
  uint32_t value;                 /* source port and flow label */
  uint8_t dst[4];                 /* the end of the destination address */
  uint32_t lost;
  uint32_t probes;
  uint32_t rtt_ns; /* smoothed; 0 before the first sample */
  uint16_t ends;   /* index of its struct mrc_ev_ends */
  uint16_t place;  /* index in its plane's order array */
  uint8_t port;
  uint8_t tx_index;
  uint8_t state;      /* enum mrc_ev_state */
  uint8_t skip_level; /* fuller than others: takes one turn in 1 << skip_level */
  uint8_t skip_turns; /* to sit out yet, while SKIP */
  uint8_t marked : 6; /* how often answers told of marks lately, of MRC_EV_ALWAYS_MARKED */
  bool proven : 1;    /* has delivered something, or answered a probe, since it was late */
  bool on_trial : 1;  /* in the rotation, not proven, and a burst is under way */
};

_Static_assert(sizeof(struct mrc_ev) == 80, "with hundreds of EVs much of the memory of a QP");

/* What tells a packet that is late on an EV from one that is lost. */
struct mrc_ev_rack {
  uint64_t newest_ns; /* newest send time among what was acknowledged on it */
  uint64_t heard_ns;  /* that of its plane when it was last heard */
};

/* The EVs of one plane: order[0 .. n_active) rotate, order[n_active .. n) are backups or bad. */
struct mrc_ev_plane {
  uint16_t *order; /* EV indices */
  uint16_t n;
  uint16_t n_active;
  uint16_t target; /* wanted size of the rotation */
  uint16_t floor;  /* the rotation does not shrink below this through losses */
  uint16_t next;   /* position in the rotation */
  uint16_t n_skip; /* EVs with a skip level */
  uint16_t n_on_trial;
  uint32_t marked; /* sum over its EVs */
};

struct mrc_evset {
  struct mrc_ev *evs;
  struct mrc_ev_rack *racks;   /* of each EV; 0: what is late is lost */
  struct mrc_ev_ends *ends;    /* each different one once */
  uint16_t *orders;            /* backs all planes' order arrays */
  uint16_t *by_value;          /* hash table of indices, MRC_EV_NONE where empty */
  struct mrc_ev_plane *planes; /* index: port - 1 */
  uint32_t ports;              /* number of planes */
  uint32_t plane_mask;         /* bit p: plane p has EVs */
  uint32_t hash_mask;          /* cells of by_value - 1 */
  uint32_t noise_ns;           /* of the hosts */
  uint16_t n;
  uint16_t n_ends;
};

/* 0, -EINVAL (a port out of range, a value twice, none at all), -ENOMEM. */
int mrc_evset_init(struct mrc_evset *set, const struct mrc_ev_attr *attrs, int n, uint32_t ports,
                   uint32_t noise_ns) MRC_MUST_CHECK;
void mrc_evset_free(struct mrc_evset *set);
/* From now on what is late on an EV is told from what is lost. 0 or -ENOMEM. */
int mrc_evset_tell_late(struct mrc_evset *set) MRC_MUST_CHECK;
/* Sets the size of each plane's rotation (0: all EVs) and shuffles it. */
void mrc_evset_start(struct mrc_evset *set, uint32_t active_per_plane, struct mrc_prng *prng);

/* The EV with this value, or MRC_EV_NONE. */
uint16_t mrc_evset_find(const struct mrc_evset *set, uint32_t value);
/* Source and destination as they were given. */
void mrc_evset_addresses(const struct mrc_evset *set, uint16_t ev, uint8_t src[16],
                         uint8_t dst[16]);

/* The plane that the EV leads through. */
static inline uint32_t mrc_evset_plane_of(const struct mrc_evset *set, uint16_t ev) {
  return mrc_plane_of(set->evs[ev].port);
}
/* Whether the plane's rotation has an EV that is not on trial. */
static inline bool mrc_evset_has_next(const struct mrc_evset *set, uint32_t plane) {
  return set->planes[plane].n_active > set->planes[plane].n_on_trial;
}
/* The next EV of the plane's rotation, or MRC_EV_NONE. A skipped EV sits out its turns, and one
   that has not proved itself sends one burst until the answer is here. */
uint16_t mrc_evset_next(struct mrc_evset *set, uint32_t plane);
/* Whose turn is next but for `avoid`, skipped only if all are; MRC_EV_NONE when there is no other.
   No turn is taken. */
uint16_t mrc_evset_other(const struct mrc_evset *set, uint32_t plane, uint16_t avoid);
/* Any EV of the plane that is not DENIED, for answers and probes; rotates; MRC_EV_NONE if none. */
uint16_t mrc_evset_any(struct mrc_evset *set, uint32_t plane);

/* Events. Each that has a result returns true when the state changed. */
/* A burst leaves on this EV; then something of it arrived, or it did not. */
void mrc_evset_on_burst(struct mrc_evset *set, uint16_t ev);
void mrc_evset_prove(struct mrc_evset *set, uint16_t ev);
/* `sent_ns`: when that left, 0 when it does not keep to the order of data; `rack_ns`: of the plane.
 */
static inline void mrc_evset_on_delivered(struct mrc_evset *set, uint16_t index, uint64_t sent_ns,
                                          uint64_t rack_ns) {
  struct mrc_ev *ev = &set->evs[index];
  if (!ev->proven) mrc_evset_prove(set, index); /* asked for every packet acknowledged */
  if (set->racks != NULL) {
    struct mrc_ev_rack *rack = &set->racks[index];
    *rack = (struct mrc_ev_rack){.newest_ns = mrc_max_u64(rack->newest_ns, sent_ns),
                                 .heard_ns = rack_ns};
  }
}
void mrc_evset_on_missed(struct mrc_evset *set, uint16_t ev);
/* The network marked or trimmed a packet that left at `sent_ns` on this EV (0: not known when). */
bool mrc_evset_on_skip(struct mrc_evset *set, uint16_t ev, uint64_t sent_ns, uint64_t now_ns);
/* A packet that left at `sent_ns` on this EV met no mark. */
void mrc_evset_on_clear(struct mrc_evset *set, uint16_t ev, uint64_t sent_ns, uint64_t now_ns);
/* A packet is late, and not lost: its EV sends nothing until something of it arrives, and then
   takes fewer turns than before. Not for what left before the level last changed, nor where half of
   the plane's EVs are avoided, nor while others take as long: what left `late_ns` after the packet
   has arrived. */
bool mrc_evset_can_avoid(const struct mrc_evset *set, uint16_t ev, uint64_t sent_ns,
                         uint64_t late_ns);
bool mrc_evset_on_late(struct mrc_evset *set, uint16_t ev, uint64_t now_ns);
/* Whether the rotation can do without this EV: it is not in it, is replaced, or leaves enough. */
bool mrc_evset_can_spare(const struct mrc_evset *set, uint16_t ev);
/* `back`: the EV that is GOOD again in exchange, at the floor, or MRC_EV_NONE. */
bool mrc_evset_on_loss(struct mrc_evset *set, uint16_t ev, uint16_t *back, uint64_t now_ns);
bool mrc_evset_on_trust(struct mrc_evset *set, uint16_t ev);
bool mrc_evset_on_deny(struct mrc_evset *set, uint16_t ev);

#endif
