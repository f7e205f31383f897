/* SPDX-License-Identifier: Apache-2.0 */
/* The health of EVs and planes: what a lost packet, a silent plane or a port that is down changes,
   and what the controller is told. detect.c and timeout.c decide which packets are lost. */
#pragma once

#include "core/qp.h"

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
