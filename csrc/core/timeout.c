/* SPDX-License-Identifier: Apache-2.0 */
#include "timeout.h"

#include "detect.h"
#include "loss.h"
#include "reinject.h"
#include "suspension.h"

/* The local timeout: fixed for the linear tries, then doubling. */
static uint64_t timeout_ns(const struct mrc_qp *qp) {
  const struct mrc_requester *req = &qp->req;
  const uint64_t base =
      mrc_max_u64(1024ull << qp->attr.timeout,
                  mrc_rtt_known(&req->rtt) ? 2 * mrc_rtt_overdue_ns(&req->rtt, 0) : 0);
  const uint32_t tries = req->timeouts;
  return tries < qp->attr.retry_linear ? base
                                       : base << mrc_min_u32(tries - qp->attr.retry_linear, 24);
}

static bool retries_exhausted(const struct mrc_qp *qp) {
  if (qp->attr.retry_exp == 25) return false;
  return qp->req.timeouts > (uint32_t)qp->attr.retry_linear + qp->attr.retry_exp;
}

void mrc_timeout_on_refusal(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn) {
  struct mrc_requester *req = &qp->req;
  /* The whole window may be refused in one round trip: only the packet that was first counts. */
  if (req->refused && req->refused_psn != psn) return;
  req->refused = true;
  req->refused_psn = psn;
  req->timeouts++;
  if (retries_exhausted(qp)) mrc_qp_fail(services, qp, MRC_WC_RETRY_EXC_ERR, MRC_WC_RETRY_EXC_ERR);
}

static uint64_t timeout_deadline_ns(const struct mrc_qp *qp) {
  return qp->req.progress_ns + timeout_ns(qp);
}

/* Whether others delivered something sent after all that this plane delivered, and after its oldest
   packet in flight: it is then the plane that fails, and not the peer or all the network. */
static bool falls_behind(const struct mrc_qp *qp, uint32_t index) {
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  uint64_t since_ns = qp->planes[index].rack_ns;
  if (list->oldest != MRC_TX_NONE)
    since_ns = mrc_max_u64(since_ns, qp->req.win.slots[list->oldest].sent_ns);
  else if (!qp->planes[index].suspended)
    return false; /* nothing was sent on it: nothing is missing */
  MRC_EACH_BIT(other, qp->evset.plane_mask & ~(1u << index))
    if (qp->planes[other].rack_ns > since_ns) return true;
  return false;
}

/* The local timeout for one plane. At the first expiry the others may still know better; at the
   next nothing is known any more, and every plane may be tried. */
static void time_out_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                           uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  const bool behind = qp->req.timeouts == 1 && falls_behind(qp, index);
  if (behind && !plane->suspended && ++plane->strikes >= MRC_LOSS_STRIKES)
    mrc_suspension_begin(services, qp, index, MRC_REASON_SILENCE, now_ns);
  while (list->oldest != MRC_TX_NONE)
    mrc_loss_mark(services, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                  MRC_COUNTER_LOST_BY_TIMEOUT, now_ns);
  if (!behind) mrc_suspension_end(services, qp, index, MRC_REASON_TIMEOUT);
}

/* Everything in flight may be lost. */
static void on_timeout(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  req->timeouts++;
  mrc_count(services, MRC_COUNTER_TIMEOUTS, 1);
  if (retries_exhausted(qp)) {
    mrc_qp_fail(services, qp, MRC_WC_RETRY_EXC_ERR, MRC_WC_RETRY_EXC_ERR);
    return;
  }
  mrc_trace(services, MRC_TRACE_TIMEOUT, qp->qpn, req->timeouts, timeout_ns(qp));
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    time_out_plane(services, qp, plane, now_ns);
    mrc_cc_on_timeout(&qp->planes[plane].cc);
  }
  req->progress_ns = now_ns; /* the next interval starts here */
  req->probe.wanted = true;
  req->probed_ns = now_ns;
}

/* Usually when nothing is heard at all; earlier when others are, but the window of PSNs is closed
   by a packet whose answer is overdue: then nothing that is sent later can prove it lost. */
static uint64_t probe_deadline_ns(const struct mrc_qp *qp) {
  const struct mrc_requester *req = &qp->req;
  const uint64_t silent_ns = mrc_max_u64(req->progress_ns, req->probed_ns) + req->probe_wait_ns;
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr);
  if (oldest == NULL || mrc_requester_has_opened_all(req)) return silent_ns;
  const struct mrc_rtt *rtt = &qp->planes[oldest->plane].rtt;
  if (!mrc_rtt_known(rtt)) return silent_ns;
  const uint64_t spare_ns = mrc_max_u64(rtt->smooth_ns / 4, rtt->var_ns);
  const uint64_t closed_ns = mrc_max_u64(oldest->sent_ns, req->probed_ns) + rtt->smooth_ns +
                             mrc_max_u64(spare_ns, mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns));
  return mrc_min_u64(silent_ns, closed_ns);
}

void mrc_timeout_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  if (qp->state != MRC_QP_RTS || !mrc_requester_is_busy(&qp->req)) return;
  mrc_detect_planes(services, qp, now_ns);
  mrc_reinject_on_deadline(services, qp, now_ns);
  if (now_ns >= timeout_deadline_ns(qp)) {
    on_timeout(services, qp, now_ns);
  } else if (now_ns >= probe_deadline_ns(qp)) {
    req->probe.wanted = true;
    req->probed_ns = now_ns;
    /* never sooner than an answer can come: a new probe takes the place of the last */
    const uint64_t longest_ns =
        mrc_max_u64(1024ull << qp->attr.timeout, mrc_timeout_patience_ns(qp));
    req->probe_wait_ns = mrc_min_u64(2 * req->probe_wait_ns, longest_ns);
  }
  mrc_qp_touch(services, qp);
}

uint64_t mrc_timeout_deadline(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint64_t now_ns) {
  if (qp->state != MRC_QP_RTS || !mrc_requester_is_busy(&qp->req)) return MRC_NEVER;
  if (mrc_detect_is_due(qp, now_ns)) return 0;
  const uint64_t next_ns = mrc_min_u64(timeout_deadline_ns(qp), probe_deadline_ns(qp));
  return mrc_min_u64(next_ns, mrc_reinject_deadline(services, qp));
}
