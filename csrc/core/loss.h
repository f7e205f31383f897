/* SPDX-License-Identifier: Apache-2.0 */
/* What counts as lost: by send order on an EV, by time on a plane, by a plane's silence, by NACK
   and at last by the local timeout; and what that means for EVs, planes and the window. */
#ifndef MRC_CORE_LOSS_H
#define MRC_CORE_LOSS_H

#include "engine.h"

/* Choices of ours: floors below which scheduling noise of a host would look like loss. */
#define MRC_LOSS_REORDER_FLOOR_NS 500000ull  /* spread of send times on one plane */
#define MRC_LOSS_SILENCE_FLOOR_NS 5000000ull /* a plane must be silent for so long */
#define MRC_LOSS_SKEW 32   /* a plane never heard may be so many times as long as those that were */
#define MRC_LOSS_STRIKES 3 /* bursts in a row that make a plane silent */
#define MRC_PROBE_FIRST_NS 5000000ull /* patience before any RTT is known */
#define MRC_PROBE_FLOOR_NS 1000000ull

/* How long nothing may be heard before a reliability probe asks. */
static inline uint64_t mrc_loss_patience_ns(const struct mrc_qp *qp) {
  const struct mrc_rtt *rtt = &qp->req.rtt;
  if (!mrc_rtt_known(rtt)) return mrc_floor_ns(MRC_PROBE_FIRST_NS, qp->noise_ns);
  return mrc_rtt_overdue_ns(rtt, mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns)) + rtt->smooth_ns;
}

/* Takes one packet for lost; `why` is one of the LOST_BY counters. */
void mrc_loss_mark(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t psn, enum mrc_counter why,
                   uint64_t now_ns);
/* A packet taken for lost had arrived after all. */
void mrc_loss_on_spurious(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_txslot *slot, uint32_t psn);
/* The peer has no room for a packet, which has been marked as lost: a retry, of which there are as
   many as of expiries of the local timeout. May fail the QP. */
void mrc_loss_on_refusal(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t psn);
/* The holes that a SACK shows, against the order on their EVs. What proves a loss must stand in the
   same SACK: SACKs travel on several planes, and an old one knows less than a newer one that came
   first. */
void mrc_loss_on_holes(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t base, uint64_t bitmap,
                       uint64_t now_ns);
/* Loss by time on every plane; then probes, and at last times out, when nothing is heard. May fail
   the QP. To be called only when everything that has come in was taken. */
void mrc_loss_on_deadline(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns);
uint64_t mrc_loss_deadline(const struct mrc_engine *engine, const struct mrc_qp *qp,
                           uint64_t now_ns);
/* A plane answers its probes again, or is tried again; the controller is told the reason. */
void mrc_loss_resume_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t plane,
                           enum mrc_event_reason reason);
void mrc_loss_suspend_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t plane,
                            enum mrc_event_reason reason, uint64_t now_ns);
/* The peer says that its port of this plane is down. Nobody signs that: probes ask, at their
   slowest, whether it holds. */
void mrc_loss_on_peer_port_down(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t plane,
                                uint64_t now_ns);
/* What suspended the plane is over: it is probed without further waiting. */
void mrc_loss_retry_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t plane,
                          uint64_t now_ns);
/* An EV lost a packet, or somebody calls it bad: it goes, and probes decide on its return. */
void mrc_loss_distrust_ev(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                          enum mrc_event_reason reason, uint64_t now_ns);
/* Tells the controller about an EV. */
void mrc_loss_report_ev(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                        enum mrc_event_reason reason);
/* Tells the controller about a port of a plane, ours or the peer's. */
void mrc_loss_report_port(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t plane, bool up,
                          enum mrc_event_reason reason);

#endif
