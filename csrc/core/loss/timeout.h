/* SPDX-License-Identifier: Apache-2.0 */
/* The timers of a requester. When nothing is heard, a reliability probe requests a report of all
   PSNs that have arrived; at last the local timeout declares everything in flight lost. A packet on
   a slow plane that blocks all others is sent again on another plane, without evidence that it is
   lost, and the window of the slow plane shrinks. For EV probes see ev_probe.h. */
#pragma once

#include "core/qp.h"

/* Choices of ours. */
#define MRC_PROBE_FIRST_NS 5000000ull /* wait before a probe if no RTT is known */
#define MRC_PROBE_FLOOR_NS 1000000ull

/* The time without news after which a reliability probe is sent. */
static inline uint64_t mrc_timeout_patience_ns(const struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_rtt *rtt = &qp->req.rtt;
  if (!mrc_rtt_known(rtt)) return mrc_floor_ns(MRC_PROBE_FIRST_NS, qp->noise_ns);
  const uint64_t floor_ns = mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns);
  return mrc_qp_overdue_ns(qp, rtt, floor_ns, now_ns) + rtt->smooth_ns;
}

/* Sends the probe: first on the plane with the most overdue packet, because an answer proves that
   packet lost, or on the next plane if that plane may be silent. Then the planes take turns, so
   that a dead plane does not drop every probe. False when the transmit is full. */
bool mrc_timeout_send_probe(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The answer to the probe counts as an acknowledgement at the send time of the probe. */
void mrc_timeout_on_answer(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_sack *sack, const struct mrc_meta *meta,
                           struct mrc_cc_ack *ack, uint64_t now_ns);

/* The peer has refused a packet for lack of room; the caller has marked it as lost. The refusal
   counts as a retry, like a local timeout. May fail the QP. */
void mrc_timeout_on_refusal(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn);
/* Declares packets lost by time. If nothing is heard, requests a probe and at last times out. May
   fail the QP. Call it only after all received packets were handled. */
void mrc_timeout_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
uint64_t mrc_timeout_deadline(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint64_t now_ns);
