/* SPDX-License-Identifier: Apache-2.0 */
/* What the peer has received, what is lost, and what follows from it; loss.c tells the stages. */
#pragma once

#include "core/qp.h"

/* Choices of ours. */
#define MRC_PROBE_FIRST_NS 5000000ull /* wait before a reliability probe if no RTT is known */
#define MRC_PROBE_FLOOR_NS 1000000ull
#define MRC_LOSS_SKEW 32   /* a plane never heard from may take up to 32 times the others' RTT */
#define MRC_LOSS_STRIKES 3 /* bursts lost in a row after which a plane counts as silent */
/* Minimum times: below them the scheduling noise of a host would look like loss. */
#define MRC_LOSS_REORDER_FLOOR_NS 500000ull  /* minimum spread of one plane */
#define MRC_LOSS_SILENCE_FLOOR_NS 5000000ull /* minimum silence of a plane */

/* Packets from the peer, with a good ICRC or seal. Each returns 0 or a drop reason. */
int mrc_loss_on_sack(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                     const struct mrc_meta *meta, uint64_t now_ns);
int mrc_loss_on_nack(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                     uint64_t now_ns);
int mrc_loss_on_ack(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                    uint64_t now_ns);

/* Loss by time and by silence on every plane. Call it only after all input has been processed. */
void mrc_loss_on_time(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Whether mrc_loss_on_time would find a lost or late packet. */
bool mrc_loss_is_due(const struct mrc_qp *qp, uint64_t now_ns);
/* When a plane counts as silent that has not delivered `oldest`, its oldest packet in flight: a
   packet that leaves on another plane from then on, and arrives, proves it. */
uint64_t mrc_loss_silent_ns(const struct mrc_qp *qp, const struct mrc_txslot *oldest,
                            uint64_t now_ns);
/* The time without news after which a reliability probe is sent. */
uint64_t mrc_loss_patience_ns(const struct mrc_qp *qp, uint64_t now_ns);
/* Declares one packet lost; `why` is one of the LOST_BY counters. */
void mrc_loss_declare(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                      enum mrc_counter why, uint64_t now_ns);

/* ---- the health of EVs and planes ---- */

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
