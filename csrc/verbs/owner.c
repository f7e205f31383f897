/* SPDX-License-Identifier: Apache-2.0 */
#include "program/owner.h"

#include "verbs/async.h"
#include "verbs/complete.h"
#include "verbs/ev_cq.h"
#include "verbs/process.h"
#include "verbs/qp.h"
#include "verbs/rc.h"

#define LOOK_NS 10000000ull

static uint32_t staying;

static void count(struct vb_qp *qp) { staying += qp->exists && !qp->leaving; }

static uint32_t count_staying(void) {
  staying = 0;
  vb_process_each_qp(count);
  return staying;
}

static void release_all(void) { vb_process_each_qp(vb_qp_release); }

static void ports_changed(bool any_up) {
  vb_async_raise_all(any_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1);
}

static uint32_t domain(uint32_t qpn) {
  const struct vb_qp *qp = vb_process_qp(qpn);
  return qp ? vb_domain_of(qp->ibv.qp.pd) : 0;
}

static void completed(const struct mrc_wc *wc) {
  struct vb_qp *qp = vb_process_qp(wc->qpn);
  if (qp && qp->rc && !qp->leaving)
    vb_rc_complete(qp, wc);
  else
    vb_complete(wc);
}

static void refused(uint32_t qpn, uint32_t place, int error) {
  struct vb_qp *qp = vb_process_qp(qpn);
  if (qp && qp->rc && !qp->leaving)
    vb_rc_refused(qp, place, error);
  else
    vb_complete_refused(qpn, place, error);
}

static bool watches(void) { return true; }

/* The helper calls it often while a program polls. */
static void end_timed(uint64_t now_ns) {
  static uint64_t last_ns;
  if (now_ns - last_ns < LOOK_NS) return;
  last_ns = now_ns;
  vb_qp_end_gone(now_ns);
  vb_rc_tick(now_ns);
}

const struct pr_owner pr_owner = {
    .name = "libmrc",
    .wanted = vb_qp_wanted,
    .staying = count_staying,
    .tell_all = vb_qp_tell_all,
    .release_all = release_all,
    .ready = vb_qp_ready,
    .failed = vb_qp_failed,
    .gone = vb_qp_gone,
    .end_gone = end_timed,
    .ports_changed = ports_changed,
    .ev_event = vb_ev_cq_push,
    .exists = vb_qp_exists,
    .domain = domain,
    .qp_error = vb_complete_error,
    .completed = completed,
    .refused = refused,
    .turned = vb_rc_turned,
    .watches = watches,
};
