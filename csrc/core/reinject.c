/* SPDX-License-Identifier: Apache-2.0 */
#include "reinject.h"

#include "spray.h"

#define MAX_REINJECTIONS 3 /* of one packet */

/* How long after it left on a slow plane that packet is late: the quickest plane would have brought
   it by then. MRC_NEVER when its plane is not slow. */
static uint64_t late_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                        const struct mrc_txslot *oldest) {
  if (!mrc_spray_is_slow(qp, oldest->plane)) return MRC_NEVER;
  return mrc_spray_others_overdue_ns(services, qp, oldest->plane);
}

uint64_t mrc_reinject_deadline(const struct mrc_services *services, const struct mrc_qp *qp) {
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr);
  if (oldest == NULL || oldest->tries > MAX_REINJECTIONS) return MRC_NEVER;
  const uint64_t wait_ns = late_ns(services, qp, oldest);
  if (wait_ns == MRC_NEVER) return MRC_NEVER;
  const bool at_end = mrc_requester_has_opened_all(&qp->req);
  const uint64_t way_ns = at_end ? qp->planes[oldest->plane].rtt.base_ns * 3 / 2 : 0;
  return oldest->sent_ns + (mrc_max_u64(wait_ns, way_ns) << (oldest->tries - 1));
}

/* Sends the oldest burst again elsewhere. */
static void reinject(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_txwin *win = &qp->req.win;
  const struct mrc_txslot oldest = *mrc_txwin_slot(win, win->una_psn);
  struct mrc_plane *plane = &qp->planes[oldest.plane];
  if (plane->doubted_ns == 0) plane->doubted_ns = now_ns;
  for (uint32_t psn = win->una_psn; mrc_txwin_holds(win, psn); psn = mrc_psn_add(psn, 1)) {
    struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state != MRC_TX_INFLIGHT || slot->ev != oldest.ev || slot->sent_ns != oldest.sent_ns)
      return;
    slot->reinjected = true;
    mrc_txwin_on_lost(win, psn);
    mrc_evset_on_missed(&qp->evset, slot->ev);
    mrc_count(services, MRC_COUNTER_REINJECTED, 1);
    mrc_trace(services, MRC_TRACE_REINJECT, qp->qpn, psn, slot->ev);
  }
}

/* What stands in the queue of a slow plane holds up the window of PSNs that all planes share: less
   goes there from now on. */
static void relieve_window(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr);
  if (oldest == NULL || mrc_requester_has_opened_all(&qp->req)) return;
  const uint64_t wait_ns = late_ns(services, qp, oldest);
  if (wait_ns == MRC_NEVER || now_ns < oldest->sent_ns + wait_ns) return;
  const struct mrc_cc_loss loss = {.cause = MRC_CC_LOSS_LATE,
                                   .bytes = oldest->bytes,
                                   .inflight_bytes = mrc_qp_inflight_bytes(qp, oldest->plane)};
  mrc_cc_on_loss(mrc_qp_cc(qp, oldest->plane), &loss, now_ns);
}

void mrc_reinject_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  relieve_window(services, qp, now_ns);
  if (now_ns >= mrc_reinject_deadline(services, qp)) reinject(services, qp, now_ns);
}
