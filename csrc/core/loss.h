/* SPDX-License-Identifier: Apache-2.0 */
/* What the peer has received, what is lost, and what follows from it; see loss.c. */
#pragma once

#include "core/qp.h"

/* ---- packets of the peer ---- */

/* Handles a SACK for the requester. requester_rx.c handles NACKs and transport ACKs. */

/* A SACK from the peer, with a good ICRC. 0 or a drop reason. */
int mrc_sack_take(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                  const struct mrc_meta *meta, uint64_t now_ns);

/* Packets from the peer, with a good ICRC. Each returns 0 or a drop reason. */
int mrc_requester_on_nack(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_wire *wire, uint64_t now_ns);
int mrc_requester_on_ack(struct mrc_services *services, struct mrc_qp *qp,
                         const struct mrc_wire *wire, uint64_t now_ns);

/* ---- acknowledgements ---- */

/* Acknowledgements and the send window: which PSNs the peer has received, and their round trip.
   sack_take.c reads SACKs; requester_rx.c reads NACKs and transport ACKs. */

/* Acknowledges all PSNs up to the cumulative PSN and those in the bitmap. Returns the bytes newly
   acknowledged, and also adds them to newly_acked_bytes of their planes. */
uint64_t mrc_acks_take(struct mrc_services *services, struct mrc_qp *qp, uint32_t cum_psn,
                       uint32_t base, uint64_t bitmap, uint64_t now_ns);
/* Whether an acknowledgement up to `cum_psn` is too far back for this QP, however slow its planes.
   It then belongs to an earlier QP with the same QPN. */
bool mrc_acks_is_stale(const struct mrc_txwin *win, uint32_t cum_psn);
/* Whether some PSN up to `last_psn` was never sent, so that an acknowledgement of it is false. */
bool mrc_acks_names_unsent(const struct mrc_txwin *win, uint32_t last_psn);

/* Round trip of a packet sent at `sent_ns`, without the peer's service time; 0 if the reflected
   timestamp is impossible. The peer shifted the timestamp by its service time. The timestamp serves
   no other purpose, so its 16 bits limit the service time and not the round trip. */
uint64_t mrc_acks_round_trip_ns(const struct mrc_meta *meta, uint16_t reflected, uint64_t sent_ns);
/* Takes a round trip measured on this EV. */
void mrc_acks_on_rtt(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns, struct mrc_cc_ack *ack);

/* ---- congestion windows ---- */

/* The congestion windows of a QP: which planes have one, and what acknowledgements change. */

/* An acknowledgement was handled. `ack` has its data on one plane; newly_acked_bytes of each plane
   has the bytes that it newly acknowledged. */
void mrc_windows_on_ack(struct mrc_services *services, struct mrc_qp *qp, struct mrc_cc_ack *ack,
                        uint64_t now_ns);

/* ---- which packets are lost ---- */

/* Decides which packets are lost while others arrive: by send order on an EV, by time on a plane,
   or because a plane is silent. */

#define MRC_LOSS_SKEW 32   /* a plane never heard from may take up to 32 times the others' RTT */
#define MRC_LOSS_STRIKES 3 /* bursts lost in a row after which a plane counts as silent */

/* Choices of ours. */
#define MRC_PROBE_FIRST_NS 5000000ull /* wait before a probe if no RTT is known */
#define MRC_PROBE_FLOOR_NS 1000000ull

/* The time without news after which a reliability probe is sent. */
static inline uint64_t mrc_loss_patience_ns(const struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_rtt *rtt = &qp->req.rtt;
  if (!mrc_rtt_known(rtt)) return mrc_floor_ns(MRC_PROBE_FIRST_NS, qp->noise_ns);
  const uint64_t floor_ns = mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns);
  return mrc_qp_overdue_ns(qp, rtt, floor_ns, now_ns) + rtt->smooth_ns;
}

/* Loss by order: checks the holes that a SACK shows. The evidence must be in the same SACK, because
   SACKs travel on several planes and an older SACK may arrive after a newer one. */
void mrc_detect_holes(struct mrc_services *services, struct mrc_qp *qp, uint32_t base,
                      uint64_t bitmap, uint64_t now_ns);
/* Loss by time and by silence on every plane. Call it only after all input has been processed. */
void mrc_detect_planes(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* When a plane counts as silent that has not delivered `oldest`, its oldest packet in flight: a
   packet that leaves on another plane from then on, and arrives, proves it. */
uint64_t mrc_detect_silent_ns(const struct mrc_qp *qp, const struct mrc_txslot *oldest,
                              uint64_t now_ns);
/* Whether mrc_detect_planes would find a lost or late packet. */
bool mrc_detect_is_due(const struct mrc_qp *qp, uint64_t now_ns);

/* Minimum times, our choice: below them the scheduling noise of a host would look like loss. */
#define MRC_LOSS_REORDER_FLOOR_NS 500000ull  /* minimum spread of one plane */
#define MRC_LOSS_SILENCE_FLOOR_NS 5000000ull /* minimum silence of a plane */

/* ---- reports, and the trust in EVs ---- */

/* Reports the state of an EV (MRC_EVENT_EV_STATE). */
void mrc_health_report_ev(struct mrc_services *services, const struct mrc_qp *qp, uint16_t ev,
                          enum mrc_event_reason reason);
/* Reports whether a plane carries data (MRC_EVENT_PLANE), or whether its port on this host or on
   the peer is up (MRC_EVENT_PORT). */
void mrc_health_report_plane(struct mrc_services *services, const struct mrc_qp *qp, uint32_t plane,
                             enum mrc_event_type type, bool alive, enum mrc_event_reason reason);
/* The EV lost a packet or was reported as bad: it becomes ASSUMED_BAD until probes are answered. */
void mrc_health_distrust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                            enum mrc_event_reason reason, uint64_t now_ns);
/* The EV was distrusted wrongly: it becomes GOOD again. */
void mrc_health_trust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                         enum mrc_event_reason reason);

/* ---- lost packets ---- */

/* Declares one packet lost; `why` is one of the LOST_BY counters. */
void mrc_health_on_lost(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                        enum mrc_counter why, uint64_t now_ns);
/* A packet was declared lost, but its original arrived. */
void mrc_health_on_spurious(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_txslot *slot, uint32_t psn);

/* ---- planes ---- */

/* All packets in flight on the plane count as lost. Probes decide when the plane returns. */
void mrc_health_suspend_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                              enum mrc_event_reason reason, uint64_t now_ns);
/* The peer reported its port of this plane down. The report may be forged, so probes check it, at
   the longest spacing. */
void mrc_health_on_peer_port_down(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                                  uint64_t now_ns);
/* The cause of the suspension is over: the next probe is due at once. */
void mrc_health_retry_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                            uint64_t now_ns);
/* The plane answered its probes, or is tried again. Reports the reason to the controller. */
void mrc_health_resume_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                             enum mrc_event_reason reason);
