/* SPDX-License-Identifier: Apache-2.0 */
#include "windows.h"

#include "core/qp.h"

int mrc_windows_start(struct mrc_qp *qp, uint32_t psns) {
  const struct mrc_qp_rts_attr *attr = &qp->attr.rts;
  const uint32_t planes = (uint32_t)__builtin_popcount(qp->evset.plane_mask);
  qp->req.one_window = attr->cc == MRC_CC_NSCC && attr->plane_shares == MRC_SHARES_EQUAL;
  struct mrc_cc_config cc = {.max_bytes = (uint64_t)psns * attr->path_mtu,
                             .mtu_bytes = attr->path_mtu,
                             .planes = qp->req.one_window ? planes : 1,
                             .windows = qp->req.one_window ? 1 : planes,
                             .kind = attr->cc,
                             .profile = attr->cc_profile};
  if (!qp->req.one_window && cc.profile.max_cwnd != 0) /* limits the sum of all windows */
    cc.profile.max_cwnd = mrc_max_u64(cc.profile.max_cwnd / planes, attr->path_mtu);
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    const int error = mrc_cc_init(&qp->planes[plane].cc, &cc);
    if (error != 0) return error;
  }
  return 0;
}

/* Applies the current acknowledgement to one window. */
static void update_window(struct mrc_qp *qp, struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[ack->plane];
  struct mrc_cc *cc = mrc_qp_cc(qp, ack->plane);
  ack->inflight_bytes = mrc_qp_inflight_bytes(qp, ack->plane) + ack->bytes;
  mrc_cc_on_ack(cc, ack, now_ns);
  const uint64_t base_ns = mrc_cc_take_base(cc);
  if (base_ns != 0) mrc_rtt_rebase(&plane->rtt, base_ns);
}

void mrc_windows_on_ack(struct mrc_services *services, struct mrc_qp *qp, struct mrc_cc_ack *ack,
                        uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  uint64_t all_bytes = 0, others_bytes = 0;
  ack->bytes = 0;
  MRC_EACH_BIT(index, req->acked_planes) {
    struct mrc_plane *plane = &qp->planes[index];
    const uint64_t bytes = plane->newly_acked_bytes;
    plane->newly_acked_bytes = 0;
    mrc_delivery_on_ack(&plane->delivery, bytes, plane->rack_ns, &plane->rtt, now_ns);
    plane->share_acked_bytes += bytes;
    all_bytes += bytes;
    if (index == ack->plane) {
      ack->bytes = bytes;
    } else if (req->one_window) {
      others_bytes += bytes;
    } else {
      update_window(qp, &(struct mrc_cc_ack){.plane = index, .bytes = bytes}, now_ns);
    }
  }
  req->acked_planes = 0;
  ack->bytes += others_bytes;
  update_window(qp, ack, now_ns);
  if (all_bytes > 0) mrc_share_on_acked(services, qp, all_bytes, now_ns);
}
