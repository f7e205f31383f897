/* SPDX-License-Identifier: Apache-2.0 */
/* A plane as one QP sees it: its measurements and counters, and whether it may carry packets.
   spray.c chooses the plane of the next burst; detect.c decides which packets are lost. */
#pragma once

#include "cc.h"
#include "core/services.h"
#include "delivery.h"
#include "ev.h"
#include "guard.h"
#include "probation.h"
#include "reverse_queue.h"
#include "rtt.h"

struct mrc_plane {
  struct mrc_rtt rtt;
  struct mrc_cc cc;               /* the window of this plane; see mrc_qp_cc */
  struct mrc_probation probation; /* while suspended */
  struct mrc_reverse_queue reverse_queue;
  struct mrc_delivery delivery;
  uint32_t answer_ns; /* smoothed round trip without the reverse queue; 0: no sample yet */
  uint64_t empty_ns;  /* that of the newest packet that left while nothing was in flight here */
  uint64_t packets;   /* data packets that the kernel took */
  uint64_t bytes;     /* their payload */
  uint64_t lost;
  uint64_t received_packets;  /* data packets placed */
  uint64_t received_bytes;    /* their payload */
  uint64_t share_bytes;       /* given to it to send; see spray.h */
  uint64_t newly_acked_bytes; /* by the acknowledgement in progress */
  uint64_t share_acked_bytes; /* in the period in progress; see share.h */
  uint64_t unasked_bytes;     /* sent since the last packet that requested a SACK */
  uint64_t rack_ns;           /* newest send time of a packet acknowledged on this plane */
  uint64_t reported_ns;       /* send time up to which all its arrivals are acknowledged */
  uint64_t heard_ns;          /* when something sent on this plane was last acknowledged */
  uint64_t doubted_ns; /* since when answers are missing for packets resent elsewhere; 0: none */
  struct mrc_guard reorder; /* grows when a packet declared lost by order had arrived */
  struct mrc_guard spread;  /* extra difference between its paths; grows likewise */
  uint16_t probed_ev;       /* while suspended: probed last, or MRC_EV_NONE; see ev_probe.c */
  uint16_t reverse_ev;      /* its probe was answered last; or MRC_EV_NONE; see reverse.h */
  uint8_t reverse_failures; /* reverse probes that failed in a row */
  uint8_t strikes;          /* bursts in a row lost by silence; 0 after any acknowledgement */
  bool suspended;           /* silent: it sends only probes */
  bool peer_down;           /* the peer reported its port down */
  bool unsendable;          /* suspended, and the kernel has refused to send there */
  bool patient;             /* a probe with a long timeout is in flight; see ev_probe.c */
};

/* The planes that answered about as fast as the quickest one, at the last comparison. */
struct mrc_quick {
  uint32_t planes;    /* as a mask; 0: unknown */
  uint32_t limited;   /* planes that deliver much less than the others, as a mask */
  uint64_t answer_ns; /* of the quickest */
  uint64_t compared_ns;
};

/* State of the choice of planes; see spray.h. */
struct mrc_plane_choice {
  uint32_t sharing; /* planes that took equal shares at the last choice, as a mask */
  struct mrc_quick quick;
  uint64_t most_share_bytes; /* the largest share_bytes of a plane */
};

/* Probes that find EVs for the answers of a QP that only receives; see reverse.h. */
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
  plane->probed_ev = MRC_EV_NONE;
  plane->reverse_ev = MRC_EV_NONE;
}

/* Whether the plane may carry packets: neither this QP nor the peer reports a failure. */
static inline bool mrc_plane_is_alive(const struct mrc_plane *plane) {
  return !plane->suspended && !plane->peer_down;
}
/* Whether the plane is still suspended and the kernel has refused to send there. */
static inline bool mrc_plane_is_unsendable(const struct mrc_plane *plane) {
  return plane->suspended && plane->unsendable;
}

/* From now on the plane sends only probes. */
static inline void mrc_plane_suspend(struct mrc_plane *plane, uint32_t noise_ns, uint64_t now_ns) {
  plane->suspended = true;
  plane->probed_ev = MRC_EV_NONE; /* the rotation comes first */
  mrc_probation_on_failure(&plane->probation, noise_ns, now_ns);
}
static inline void mrc_plane_resume(struct mrc_plane *plane) {
  plane->suspended = false;
  plane->strikes = 0;
  plane->doubted_ns = 0; /* answered probes have settled it */
  plane->probation.next_ns = MRC_NEVER;
}
/* The answer to a packet of `sent_ns` took `answer_ns`, without the reverse queue. */
static inline void mrc_plane_on_answer(struct mrc_plane *plane, uint64_t sent_ns,
                                       uint64_t answer_ns) {
  mrc_rtt_smooth(&plane->answer_ns, answer_ns);
  if (mrc_delivery_began_with(&plane->delivery, sent_ns)) plane->empty_ns = answer_ns;
}
/* The plane delivered a packet that was sent at `sent_ns`. */
static inline void mrc_plane_on_delivered(struct mrc_plane *plane, uint64_t sent_ns,
                                          uint64_t now_ns) {
  if (sent_ns > plane->rack_ns) mrc_delivery_on_arrived(&plane->delivery);
  plane->rack_ns = mrc_max_u64(plane->rack_ns, sent_ns);
  plane->heard_ns = now_ns;
  plane->doubted_ns = 0;
  plane->strikes = 0;
}

/* Everything that arrived on this plane before a packet of `sent_ns` is acknowledged. */
static inline void mrc_plane_on_reported(struct mrc_plane *plane, uint64_t sent_ns) {
  plane->reported_ns = mrc_max_u64(plane->reported_ns, sent_ns);
}

/* The planes of a QP with EVs in use and both ports up, as a mask: either the suspended ones or the
   others. Full sockets make no difference. */
static inline uint32_t mrc_planes_up(const struct mrc_plane *planes, const struct mrc_evset *set,
                                     const struct mrc_ports *ports, bool suspended) {
  uint32_t up = 0;
  MRC_EACH_BIT(plane, set->plane_mask & ports->up)
    if (planes[plane].suspended == suspended && !planes[plane].peer_down &&
        set->planes[plane].n_active != 0)
      up |= 1u << plane;
  return up;
}
/* The planes that may carry packets: the alive ones, or all suspended ones if none is alive. */
static inline uint32_t mrc_planes_eligible(const struct mrc_plane *planes,
                                           const struct mrc_evset *set,
                                           const struct mrc_ports *ports) {
  const uint32_t alive = mrc_planes_up(planes, set, ports, false);
  return alive != 0 ? alive : mrc_planes_up(planes, set, ports, true);
}
