/* SPDX-License-Identifier: Apache-2.0 */
/* The queue pair: all state of one QP, and the legal moves between the states of a QP. Higher
   modules act on it. */
#pragma once

#include "core/paths.h"
#include "core/seal.h"
#include "core/services.h"
#include "mrc.h"
#include "requester.h"
#include "responder.h"

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
  struct mrc_probe_user probes; /* slots in use by this QP */
  struct mrc_reverse reverse;
  struct mrc_plane_choice choice;
  struct mrc_plane planes[]; /* one for each port of the engine */
};

/* A QP in RESET, or 0 when there is no memory. */
struct mrc_qp *mrc_qp_new(const struct mrc_qp_create_attr *attr, uint32_t index,
                          const struct mrc_engine_config *config);
void mrc_qp_free(struct mrc_qp *qp);

static inline uint32_t mrc_qp_first_plane(const struct mrc_qp *qp) {
  return (uint32_t)__builtin_ctz(qp->evset.plane_mask);
}
/* The plane whose window limits the packets sent on `plane`. */
static inline uint32_t mrc_qp_window_of(const struct mrc_qp *qp, uint32_t plane) {
  return qp->req.one_window ? mrc_qp_first_plane(qp) : plane;
}
static inline struct mrc_cc *mrc_qp_cc(struct mrc_qp *qp, uint32_t plane) {
  return &qp->planes[mrc_qp_window_of(qp, plane)].cc;
}
static inline const struct mrc_cc *mrc_qp_const_cc(const struct mrc_qp *qp, uint32_t plane) {
  return &qp->planes[mrc_qp_window_of(qp, plane)].cc;
}
/* Bytes in flight that count against that window. */
static inline uint64_t mrc_qp_inflight_bytes(const struct mrc_qp *qp, uint32_t plane) {
  return qp->req.one_window ? qp->req.win.inflight_bytes : qp->req.win.lists[plane].bytes;
}

/* Whether that window has room for a packet of `bytes`. One packet may always be in flight. */
static inline bool mrc_qp_has_room(const struct mrc_qp *qp, uint32_t plane, uint32_t bytes) {
  const uint64_t inflight_bytes = mrc_qp_inflight_bytes(qp, plane);
  return inflight_bytes == 0 || inflight_bytes + bytes <= mrc_qp_const_cc(qp, plane)->cwnd_bytes;
}

/* As masks: the planes that carry data of the QP now, and the planes that may (see plane.h). */
static inline uint32_t mrc_qp_alive_planes(const struct mrc_services *services,
                                           const struct mrc_qp *qp) {
  return mrc_planes_up(qp->planes, &qp->evset, &services->ports, false);
}
static inline uint32_t mrc_qp_eligible_planes(const struct mrc_services *services,
                                              const struct mrc_qp *qp) {
  return mrc_planes_eligible(qp->planes, &qp->evset, &services->ports);
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
/* Whether its packets carry an ICRC that counts. */
static inline bool mrc_qp_has_icrc(const struct mrc_qp *qp) {
  return qp->seal == NULL && qp->attr.rtr.integrity == MRC_INTEGRITY_ICRC;
}
/* UDP payload of a full packet. */
static inline uint32_t mrc_qp_full_bytes(const struct mrc_qp *qp) {
  return qp->attr.rts.path_mtu + MRC_DATA_OVERHEAD_BYTES +
         (qp->seal != NULL ? MRC_SEAL_OVERHEAD_BYTES : 0);
}

bool mrc_qp_may_move(uint32_t from, uint32_t to);

/* The QP has something to send, or its deadline has changed: the next transmit visits it. */
static inline void mrc_qp_touch(struct mrc_services *services, struct mrc_qp *qp) {
  mrc_list_append(&services->ready.ready, &qp->nodes.ready);
}
static inline void mrc_qp_touch_to_answer(struct mrc_services *services, struct mrc_qp *qp) {
  mrc_ready_touch_to_answer(&services->ready, &qp->nodes);
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
