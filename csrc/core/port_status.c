/* SPDX-License-Identifier: Apache-2.0 */
#include "port_status.h"

#include <errno.h>

#include "probe.h"

/* The peer's view is certain when the newest message was answered and no other is on its way. One
   that was not answered may be: it could arrive last and undo the newest. So after any such a
   second message is sent, when the older ones are gone. */
enum { ANSWERS_IN_ORDER = 1, ANSWERS_IN_DOUBT = 2 };

void mrc_port_status_init(const struct mrc_engine *engine, struct mrc_qp *qp) {
  qp->port_status =
      (struct mrc_port_status){.next_ns = MRC_NEVER, .told = mrc_all_ports(engine->config.ports)};
}

static void tell(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t answers) {
  struct mrc_port_status *status = &qp->port_status;
  status->answers_wanted = answers;
  status->interval_ns = mrc_max_u64(mrc_floor_ns(MRC_PORT_STATUS_FIRST_NS, qp->noise_ns),
                                    2 * mrc_rtt_overdue_ns(&qp->req.rtt, 0));
  status->next_ns = 0;
  mrc_qp_touch(engine, qp);
}

void mrc_port_status_on_change(struct mrc_engine *engine, struct mrc_qp *qp) {
  const struct mrc_port_status *status = &qp->port_status;
  if (mrc_endpoint_speaker(engine, qp) != qp) return;
  if (status->answers_wanted != 0)
    tell(engine, qp, ANSWERS_IN_DOUBT);
  else if (status->told != engine->ports_up)
    tell(engine, qp, ANSWERS_IN_ORDER);
}

void mrc_port_status_take_over(struct mrc_engine *engine, struct mrc_qp *to,
                               const struct mrc_qp *from) {
  to->port_status.told = from->port_status.told;
  to->port_status.answers_wanted = from->port_status.answers_wanted;
  mrc_port_status_on_change(engine, to);
}

/* An EV to try, with each message on another plane; suspended planes only for want of others. */
static uint16_t choose_ev(struct mrc_engine *engine, struct mrc_qp *qp) {
  for (int suspended = 0; suspended < 2; suspended++) {
    for (uint32_t turn = 1; turn <= MRC_MAX_PORTS; turn++) {
      const uint32_t index = (qp->port_status.plane + turn) % MRC_MAX_PORTS;
      const struct mrc_plane *plane = &qp->planes[index];
      if (!mrc_port_usable(engine, index) || plane->peer_down || plane->suspended != suspended)
        continue;
      const uint16_t ev = mrc_evset_any(&qp->evset, index);
      if (ev == MRC_EV_NONE) continue;
      qp->port_status.plane = (uint8_t)index;
      return ev;
    }
  }
  return MRC_EV_NONE;
}

void mrc_port_status_on_deadline(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_port_status *status = &qp->port_status;
  if (now_ns < mrc_port_status_deadline(qp)) return;
  const uint16_t ev = choose_ev(engine, qp);
  const struct mrc_ev_probe *message =
      ev != MRC_EV_NONE ? mrc_port_status_message(engine, qp, ev, status->interval_ns) : NULL;
  if (message != NULL) {
    status->id = message->id;
    status->next_ns = MRC_NEVER;
  } else {
    status->next_ns = now_ns + status->interval_ns;
  }
}

uint64_t mrc_port_status_deadline(const struct mrc_qp *qp) {
  return mrc_qp_is_live(qp) ? qp->port_status.next_ns : MRC_NEVER;
}

void mrc_port_status_on_answer(struct mrc_engine *engine, struct mrc_qp *qp,
                               const struct mrc_ev_probe *message, uint64_t now_ns) {
  struct mrc_port_status *status = &qp->port_status;
  mrc_trace(engine, MRC_TRACE_PORT_STATUS_TOLD, qp->qpn, message->id, message->ports_up);
  if (message->id != status->id || status->answers_wanted == 0) return;
  status->told = message->ports_up;
  if (--status->answers_wanted > 0) status->next_ns = now_ns + MRC_PORT_STATUS_SETTLE_NS;
}

void mrc_port_status_on_failure(struct mrc_qp *qp, const struct mrc_ev_probe *message, int error,
                                uint64_t now_ns) {
  struct mrc_port_status *status = &qp->port_status;
  if (message->id != status->id || status->answers_wanted == 0) return;
  status->answers_wanted = ANSWERS_IN_DOUBT;
  status->interval_ns = mrc_min_u64(2 * status->interval_ns, MRC_PORT_STATUS_SLOWEST_NS);
  /* An answer was waited for long enough; what the kernel refused is not offered again at once. */
  status->next_ns = error == -ETIMEDOUT ? now_ns : now_ns + status->interval_ns;
}
