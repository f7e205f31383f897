/* SPDX-License-Identifier: Apache-2.0 */
/* A plane as one QP sees it: what was measured and counted there, and whether it may carry packets.
   Which plane the next burst takes is decided in spray.c, and what is lost in detect.c. */
#ifndef MRC_CORE_PLANE_H
#define MRC_CORE_PLANE_H

#include "cc.h"
#include "ev.h"
#include "port.h"
#include "probation.h"
#include "rtt.h"

/* A guard against calling reordering loss. It doubles with each spurious loss and halves with each
   MRC_GUARD_HALF_LIFE_NS without one. */
#define MRC_GUARD_HALF_LIFE_NS 5000000000ull
struct mrc_guard {
  uint64_t ns;
  uint64_t since_ns; /* when it had that value */
};

struct mrc_plane {
  struct mrc_rtt rtt;
  struct mrc_cc cc;               /* the window of this plane; see mrc_qp_cc */
  struct mrc_probation probation; /* while suspended */
  uint64_t packets;               /* data packets that the kernel took */
  uint64_t bytes;                 /* their payload */
  uint64_t lost;
  uint64_t received_packets;  /* data packets placed */
  uint64_t received_bytes;    /* their payload */
  uint64_t share_bytes;       /* given to it to send; see spray.h */
  uint64_t newly_acked_bytes; /* by the acknowledgement in progress */
  uint64_t share_acked_bytes; /* in the period in progress; see peer_share.h */
  uint64_t unasked_bytes;     /* sent since the last packet that asked for a SACK */
  uint64_t rack_ns;           /* newest send time among what was acknowledged on this plane */
  uint64_t heard_ns;          /* when something sent on this plane was last acknowledged */
  uint64_t doubted_ns; /* since when it owes answers to what was sent again elsewhere; 0: none */
  struct mrc_guard reorder; /* grows when what was lost by order had arrived */
  struct mrc_guard spread;  /* by which its paths differ more than expected; grows likewise */
  uint16_t reverse_ev;      /* that answered a probe last, or MRC_EV_NONE; see reverse.h */
  uint8_t reverse_failures; /* of such probes, in a row */
  uint8_t strikes;          /* bursts in a row found lost by silence; ends when it is heard */
  bool suspended;           /* silent: nothing is sent but probes */
  bool peer_down;           /* the peer reported its port down */
  bool unsendable;          /* suspended, and the kernel could send nothing there lately */
};

/* The planes that answer about as soon as the quickest, as they were last compared. */
struct mrc_quick {
  uint32_t planes;    /* as a mask; 0: nothing is known */
  uint64_t answer_ns; /* of the quickest */
  uint64_t compared_ns;
};

/* What the choice of planes remembers; see spray.h. */
struct mrc_plane_choice {
  uint32_t sharing; /* planes that took equal shares at the last choice, as a mask */
  struct mrc_quick quick;
  uint64_t most_share_bytes; /* share of the plane that was given most */
};

/* By which EVs the answers of a QP that only receives get through; see reverse.h. */
struct mrc_reverse {
  struct mrc_rtt rtt;  /* of its probes */
  uint64_t next_ns;    /* no probe before */
  uint64_t seen_ns;    /* arrival of the newest packet at the last probe */
  uint64_t seen_bytes; /* received by then */
  uint32_t probing;    /* planes with a probe on its way, as a mask */
  uint8_t plane;       /* probed last */
  uint8_t backoff;     /* probes that failed since one was answered, at most 6 */
};

static inline void mrc_plane_init(struct mrc_plane *plane) {
  mrc_probation_init(&plane->probation);
  plane->reverse_ev = MRC_EV_NONE;
}

/* Whether the plane may carry packets, as far as this QP knows. */
static inline bool mrc_plane_is_alive(const struct mrc_plane *plane) {
  return !plane->suspended && !plane->peer_down;
}
/* Whether the kernel could send nothing there lately, and the plane is suspended still. */
static inline bool mrc_plane_is_unsendable(const struct mrc_plane *plane) {
  return plane->suspended && plane->unsendable;
}

/* Only probes leave there from now on. */
static inline void mrc_plane_suspend(struct mrc_plane *plane, uint32_t noise_ns, uint64_t now_ns) {
  plane->suspended = true;
  mrc_probation_on_failure(&plane->probation, noise_ns, now_ns);
}
/* The end of a suspension. */
static inline void mrc_plane_resume(struct mrc_plane *plane) {
  plane->suspended = false;
  plane->strikes = 0;
  plane->probation.next_ns = MRC_NEVER;
}
/* The plane delivered something that was sent at `sent_ns`. */
static inline void mrc_plane_on_delivered(struct mrc_plane *plane, uint64_t sent_ns,
                                          uint64_t now_ns) {
  plane->rack_ns = mrc_max_u64(plane->rack_ns, sent_ns);
  plane->heard_ns = now_ns;
  plane->doubted_ns = 0;
  plane->strikes = 0;
}

/* Of all planes of a QP, those with EVs in use and both ports up that are suspended, or are not, as
   a mask; whether or not their socket has room just now. */
static inline uint32_t mrc_planes_up(const struct mrc_plane *planes, const struct mrc_evset *set,
                                     const struct mrc_ports *ports, bool suspended) {
  uint32_t up = 0;
  MRC_EACH_BIT(plane, set->plane_mask & ports->up)
    if (planes[plane].suspended == suspended && !planes[plane].peer_down &&
        set->planes[plane].n_active != 0)
      up |= 1u << plane;
  return up;
}
/* The planes that may carry packets: alive ones, and suspended ones only when there is no other. */
static inline uint32_t mrc_planes_eligible(const struct mrc_plane *planes,
                                           const struct mrc_evset *set,
                                           const struct mrc_ports *ports) {
  const uint32_t alive = mrc_planes_up(planes, set, ports, false);
  return alive != 0 ? alive : mrc_planes_up(planes, set, ports, true);
}

/* The guard at `now_ns`. */
static inline uint64_t mrc_guard_ns(const struct mrc_guard *guard, uint64_t now_ns) {
  const uint64_t halvings = (now_ns - guard->since_ns) / MRC_GUARD_HALF_LIFE_NS;
  return halvings < 64 ? guard->ns >> halvings : 0;
}
/* A loss proved spurious: the guard doubles, from `least_ns` on, to `most_ns` at most. */
static inline void mrc_guard_grow(struct mrc_guard *guard, uint64_t least_ns, uint64_t most_ns,
                                  uint64_t now_ns) {
  const uint64_t wider_ns = mrc_max_u64(2 * mrc_guard_ns(guard, now_ns), least_ns);
  *guard = (struct mrc_guard){.ns = mrc_min_u64(wider_ns, most_ns), .since_ns = now_ns};
}

#endif
