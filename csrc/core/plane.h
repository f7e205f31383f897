/* SPDX-License-Identifier: Apache-2.0 */
/* A plane as one QP sees it, and which plane the next burst takes. What is lost, and when a plane
   is suspended, is decided in loss.c. */
#ifndef MRC_CORE_PLANE_H
#define MRC_CORE_PLANE_H

#include "cc.h"
#include "probation.h"
#include "rtt.h"

struct mrc_engine;
struct mrc_qp;

/* A guard against calling reordering loss. It doubles with each spurious loss and halves with each
   GUARD_HALF_LIFE_NS without one. */
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
  uint64_t packets_received;  /* data packets placed */
  uint64_t bytes_received;    /* their payload */
  uint64_t share_bytes;       /* given to it to send; see mrc_plane_choose */
  uint64_t newly_acked_bytes; /* by the acknowledgement in progress */
  uint64_t share_acked_bytes; /* in the period in progress; see share.h */
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

/* Planes that may carry packets of this QP, as a mask: alive ones, whether or not their socket has
   room just now. Suspended planes serve only when there is no other. */
uint32_t mrc_plane_eligible(const struct mrc_engine *engine, const struct mrc_qp *qp);
/* Before a choice: of all planes that may be chosen, those that come back, whatever kept them away,
   start level with those that stayed and do not make up for what they missed. When none has stayed,
   all start level. */
void mrc_plane_level(const struct mrc_engine *engine, struct mrc_qp *qp, uint32_t planes);
/* The plane of the next burst, whose first packet has `bytes`; -1 when none may be sent on now.
   `planes`: those with an EV to send on. */
int mrc_plane_choose(const struct mrc_engine *engine, struct mrc_qp *qp, uint32_t planes,
                     uint32_t bytes);

/* Compares the planes; to be called with news of them, and when work begins. */
void mrc_plane_compare(const struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns);
/* How long an answer from the quickest plane other than this one takes at most; MRC_NEVER when
   there is none, or none was measured. */
uint64_t mrc_plane_others_overdue_ns(const struct mrc_engine *engine, const struct mrc_qp *qp,
                                     uint32_t plane);
/* Whether the plane answers much later than the quickest one. */
bool mrc_plane_is_slow(const struct mrc_qp *qp, uint32_t plane);

/* The guard at `now_ns`. */
uint64_t mrc_guard_ns(const struct mrc_guard *guard, uint64_t now_ns);
/* A loss proved spurious: the guard doubles, from `least_ns` on, to `most_ns` at most. */
void mrc_guard_grow(struct mrc_guard *guard, uint64_t least_ns, uint64_t most_ns, uint64_t now_ns);

#endif
