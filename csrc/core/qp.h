/* SPDX-License-Identifier: Apache-2.0 */
/* The queue pair: everything that belongs to one QP, its states and their legal moves. What is done
   with it lives in the modules above. */
#ifndef MRC_CORE_QP_H
#define MRC_CORE_QP_H

#include "../mrc.h"
#include "plane.h"
#include "requester.h"
#include "responder.h"
#include "services.h"

struct mrc_peer;

struct mrc_qp {
  struct mrc_ready_nodes nodes; /* in the lists of who may send */
  uint8_t state;                /* enum mrc_qp_state */
  uint8_t status;               /* enum mrc_wc_status that ended it */
  uint32_t index;               /* in the engine's array; timer id */
  uint32_t qpn;
  struct mrc_qp_attr attr;
  struct mrc_evset evset;
  struct mrc_peer *peer;
  struct mrc_qp *peer_next; /* among the QPs of that peer */
  struct mrc_qp *peer_prev;
  struct mrc_requester req;
  struct mrc_responder resp;
  uint64_t ev_probe_ns;         /* next time an EV or plane on probation wants a probe */
  uint32_t noise_ns;            /* of the hosts, as the engine's configuration has it */
  uint16_t next_ev_probe;       /* EV whose turn it is to be probed, when slots are short */
  struct mrc_probe_user probes; /* slots that it has taken */
  struct mrc_reverse reverse;
  struct mrc_plane_choice choice;
  struct mrc_plane planes[]; /* of each port of the engine */
};

/* A QP in RESET, or 0 when there is no memory. */
struct mrc_qp *mrc_qp_new(const struct mrc_qp_attr *attr, uint32_t index,
                          const struct mrc_engine_config *config);
void mrc_qp_free(struct mrc_qp *qp);

static inline uint32_t mrc_qp_first_plane(const struct mrc_qp *qp) {
  return (uint32_t)__builtin_ctz(qp->evset.plane_mask);
}
/* The plane whose window governs what leaves on `plane`. */
static inline uint32_t mrc_qp_window_of(const struct mrc_qp *qp, uint32_t plane) {
  return qp->req.one_window ? mrc_qp_first_plane(qp) : plane;
}
static inline struct mrc_cc *mrc_qp_cc(struct mrc_qp *qp, uint32_t plane) {
  return &qp->planes[mrc_qp_window_of(qp, plane)].cc;
}
static inline const struct mrc_cc *mrc_qp_const_cc(const struct mrc_qp *qp, uint32_t plane) {
  return &qp->planes[mrc_qp_window_of(qp, plane)].cc;
}
/* What counts against that window. */
static inline uint64_t mrc_qp_inflight_bytes(const struct mrc_qp *qp, uint32_t plane) {
  return qp->req.one_window ? qp->req.win.inflight_bytes : qp->req.win.lists[plane].bytes;
}

/* Whether it has room for a packet of `bytes` more; one packet always may leave. */
static inline bool mrc_qp_has_room(const struct mrc_qp *qp, uint32_t plane, uint32_t bytes) {
  const uint64_t inflight_bytes = mrc_qp_inflight_bytes(qp, plane);
  return inflight_bytes == 0 || inflight_bytes + bytes <= mrc_qp_const_cc(qp, plane)->cwnd_bytes;
}

/* Planes that carry data of the QP now, as a mask; and those that may, see plane.h. */
static inline uint32_t mrc_qp_alive_planes(const struct mrc_services *services,
                                           const struct mrc_qp *qp) {
  return mrc_planes_up(qp->planes, &qp->evset, &services->ports, false);
}
static inline uint32_t mrc_qp_eligible_planes(const struct mrc_services *services,
                                              const struct mrc_qp *qp) {
  return mrc_planes_eligible(qp->planes, &qp->evset, &services->ports);
}

/* Whether the QP may send probes and endpoint messages: its peer is known and it has not failed. */
static inline bool mrc_qp_is_live(const struct mrc_qp *qp) {
  return qp->state == MRC_QP_RTR || qp->state == MRC_QP_RTS;
}
/* Whether its packets carry an ICRC. */
static inline bool mrc_qp_has_icrc(const struct mrc_qp *qp) {
  return qp->attr.integrity == MRC_INTEGRITY_ICRC;
}

/* Whether the move is legal. */
bool mrc_qp_may_move(uint32_t from, uint32_t to);

/* The QP has something to send or to re-time; the next transmit visits it. */
static inline void mrc_qp_touch(struct mrc_services *services, struct mrc_qp *qp) {
  mrc_list_append(&services->ready.ready, &qp->nodes.ready);
}
static inline void mrc_qp_touch_to_answer(struct mrc_services *services, struct mrc_qp *qp) {
  mrc_ready_touch_to_answer(&services->ready, &qp->nodes);
}

/* Ask the cache for what a turn of the QP or a packet for it will touch: with thousands of QPs all
   of it lies in memory, and to fetch one line after the other costs more than the turn. First the
   QP; when that is there, what it points to; and then the EVs whose turn it is. */
void mrc_qp_prefetch(const struct mrc_qp *qp);
void mrc_qp_prefetch_parts(const struct mrc_qp *qp);
void mrc_qp_prefetch_evs(const struct mrc_qp *qp);
/* Ends the QP for the reason `status`: everything outstanding completes, the oldest work request
   with `oldest_status`, the rest flushed. */
void mrc_qp_fail(struct mrc_services *services, struct mrc_qp *qp, uint8_t status,
                 uint8_t oldest_status);

#endif
