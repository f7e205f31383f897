/* SPDX-License-Identifier: Apache-2.0 */
/* What a QP does when its time has come. When nothing is heard, a reliability probe asks the peer
   for all that has arrived, and at last the local timeout takes everything in flight for lost. A
   packet that all others wait for, on a slow plane, is sent again elsewhere, although nothing says
   that it is lost, and its plane gets less from then on. EV probes are another thing: see
   ev_probe.h. */
#ifndef MRC_CORE_TIMEOUT_H
#define MRC_CORE_TIMEOUT_H

#include "qp.h"

/* Choices of ours. */
#define MRC_PROBE_FIRST_NS 5000000ull /* patience before any RTT is known */
#define MRC_PROBE_FLOOR_NS 1000000ull

/* How long nothing may be heard before a reliability probe asks. */
static inline uint64_t mrc_timeout_patience_ns(const struct mrc_qp *qp) {
  const struct mrc_rtt *rtt = &qp->req.rtt;
  if (!mrc_rtt_known(rtt)) return mrc_floor_ns(MRC_PROBE_FIRST_NS, qp->noise_ns);
  return mrc_rtt_overdue_ns(rtt, mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns)) + rtt->smooth_ns;
}

/* Sends the probe: first where a packet is overdue, for an answer proves it lost; then the planes
   take turns, so that a dead one cannot swallow every probe. False when the transmit is full. */
bool mrc_timeout_send_probe(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Its answer stands for a packet sent when the probe was. */
void mrc_timeout_on_answer(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_sack *sack, const struct mrc_meta *meta,
                           struct mrc_cc_ack *ack, uint64_t now_ns);

/* The peer has no room for a packet, which has been marked as lost: a retry, of which there are as
   many as of expiries of the local timeout. May fail the QP. */
void mrc_timeout_on_refusal(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn);
/* Takes for lost what is lost by time; then probes, and at last times out, when nothing is heard.
   May fail the QP. To be called only when everything that has come in was taken. */
void mrc_timeout_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
uint64_t mrc_timeout_deadline(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint64_t now_ns);

#endif
