/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of csrc/mrc.h for applications, and those of drivers that move no packets: life of the
   engine, memory and completions, life of a QP, work and control, ports, queries. Packets come in
   by receive.c and leave by schedule.c. */
#include "core/calls.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine.h"
#include "core/loss.h"
#include "core/receive.h"
#include "core/send.h"

/* ---- life of the engine ---- */

static uint32_t or_default(uint32_t value, uint32_t otherwise) {
  return value != 0 ? value : otherwise;
}

static uint32_t sack_threshold_bytes(uint32_t readings) {
  if ((readings & MRC_READING_G2_A) != 0) return 16384;
  return (readings & MRC_READING_G2_B) != 0 ? 4096 : 262144;
}

static bool fill_config(struct mrc_engine_config *config) {
  config->max_qps = or_default(config->max_qps, 1024);
  config->max_mrs = or_default(config->max_mrs, 1024);
  config->ports = or_default(config->ports, 1);
  config->cq_depth = or_default(config->cq_depth, 65536);
  config->trace_entries = or_default(config->trace_entries, 4096);
  config->max_burst_bytes = or_default(config->max_burst_bytes, MRC_BURST_BYTES);
  config->sack_threshold_bytes =
      or_default(config->sack_threshold_bytes, sack_threshold_bytes(config->readings));
  config->sack_delay_ns = or_default(config->sack_delay_ns, 500000);
  config->noise_ns = or_default(config->noise_ns, MRC_NOISE_NS);
  config->seal_epoch_bits = or_default(config->seal_epoch_bits, MRC_SEAL_EPOCH_BITS);
  return mrc_dscps_fill(&config->dscps) && (config->readings & ~(uint32_t)MRC_ALL_READINGS) == 0 &&
         config->ports <= MRC_MAX_PORTS && config->max_qps <= 1u << 20 &&
         config->max_mrs <= 1u << 20 && config->noise_ns >= 1000 &&
         config->noise_ns <= 1000000000u && config->cq_depth <= 1u << 24 &&
         config->seal_epoch_bits >= 6 && config->seal_epoch_bits <= MRC_SEAL_EPOCH_BITS &&
         (config->trace_entries & (config->trace_entries - 1)) == 0 &&
         config->trace_entries <= 1u << 24;
}

struct mrc_engine *mrc_engine_create(const struct mrc_engine_config *given) {
  struct mrc_engine_config config = *given;
  if (!fill_config(&config)) return NULL;
  struct mrc_engine *engine = malloc(sizeof *engine);
  if (engine == NULL) return NULL;
  memset(engine, 0, offsetof(struct mrc_engine, probe_room));
  engine->prng.state = config.seed;
  engine->services.events.ring = engine->events;
  engine->endpoint.answers.ring = engine->answers;
  mrc_probes_init(&engine->services.probes, &engine->probe_room, config.seed);
  engine->qps.at = calloc(config.max_qps, sizeof *engine->qps.at);
  const bool ok = engine->qps.at != NULL && mrc_services_init(&engine->services, &config) == 0 &&
                  mrc_endpoint_init(&engine->endpoint, &config) == 0 &&
                  mrc_keymap_init(&engine->qps.by_qpn, config.max_qps) == 0;
  if (ok) return engine;
  mrc_engine_destroy(engine);
  return NULL;
}

void mrc_engine_destroy(struct mrc_engine *engine) {
  if (engine == NULL) return;
  for (uint32_t i = 0; engine->qps.at != NULL && i < engine->services.config.max_qps; i++)
    if (engine->qps.at[i] != NULL) mrc_qp_free(engine->qps.at[i]);
  free(engine->qps.at);
  mrc_services_free(&engine->services);
  mrc_endpoint_free(&engine->endpoint);
  mrc_keymap_free(&engine->qps.by_qpn);
  free(engine);
}

/* ---- memory and completions ---- */

int mrc_mr_register(struct mrc_engine *engine, uint64_t address, uint64_t bytes, uint32_t key,
                    uint32_t access, uint32_t domain) {
  return mrc_mr_table_add(&engine->services.mrs, address, bytes, key, access, domain);
}

int mrc_mr_deregister(struct mrc_engine *engine, uint32_t key) {
  mrc_assert(!engine->committing); /* bursts point into the MR */
  return mrc_mr_table_remove(&engine->services.mrs, key);
}

bool mrc_qp_may_reach(struct mrc_engine *engine, uint32_t qpn, uint32_t key, uint64_t address,
                      uint64_t bytes, uint32_t access) {
  const struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  return qp != NULL && mrc_mr_find(&engine->services.mrs, key, address, bytes, access,
                                   qp->attr.create.domain) != NULL;
}

int mrc_cq_poll(struct mrc_engine *engine, struct mrc_wc *wcs, int capacity) {
  struct mrc_services *services = &engine->services;
  int n = 0;
  bool of_qp;
  for (; n < capacity && mrc_cq_pop(&services->cq, &wcs[n], &of_qp); n++) {
    if (!of_qp) continue;
    struct mrc_qp *qp = mrc_qps_find(&engine->qps, wcs[n].qpn);
    uint32_t *places =
        wcs[n].opcode == MRC_WC_RECV_IMM ? &qp->resp.wimm_unpolled : &qp->req.sq_used;
    mrc_assert(*places > 0);
    --*places;
  }
  if (n > 0 && !mrc_list_is_empty(&services->ready.cq_waiting)) mrc_responder_on_cq_room(services);
  return n;
}

/* ---- life of a QP ---- */

static bool valid_create(const struct mrc_qp_create_attr *attr) {
  if (attr->qpn <= MRC_ENDPOINT_QPN || attr->qpn > 0xFFFFFF) return false;
  if (attr->sq_depth < 1 || attr->sq_depth > 65536) return false;
  if (attr->mpr < MRC_MPR_UNIT || attr->mpr > MRC_RXWIN_MAX_PSNS || attr->mpr % MRC_MPR_UNIT != 0)
    return false;
  return attr->max_wimm >= 1 && attr->max_wimm <= 1024;
}

int mrc_qp_create(struct mrc_engine *engine, const struct mrc_qp_create_attr *attr) {
  const struct mrc_engine_config *config = &engine->services.config;
  if (!valid_create(attr)) return -EINVAL;
  uint32_t index = 0;
  while (index < config->max_qps && engine->qps.at[index] != NULL)
    index++;
  if (index == config->max_qps) return -ENOSPC;
  if (mrc_keymap_get(&engine->qps.by_qpn, attr->qpn) != MRC_KEYMAP_NONE) return -EEXIST;
  struct mrc_qp *qp = mrc_qp_new(attr, index, config);
  if (qp == NULL) return -ENOMEM;
  const int error = mrc_keymap_put(&engine->qps.by_qpn, qp->qpn, index);
  mrc_assert(error == 0);
  engine->qps.at[index] = qp;
  return 0;
}

/* Copies the base RTTs of other QPs with the same peer: a QP that starts while a queue is full
   cannot measure the empty path. */
static void take_base_rtts(struct mrc_qp *qp) {
  for (const struct mrc_qp *other = qp->peer->qps; other != NULL; other = other->peer_next) {
    if (other == qp) continue;
    MRC_EACH_BIT(plane, other->evset.plane_mask & qp->evset.plane_mask) {
      const struct mrc_ev_plane *its = &other->evset.planes[plane],
                                *ours = &qp->evset.planes[plane];
      if (its->port != ours->port || its->peer_port != ours->peer_port) continue;
      const struct mrc_rtt *rtt = &other->planes[plane].rtt;
      uint64_t *base_ns = &qp->planes[plane].rtt.base_ns;
      if (rtt->smooth_ns != 0 && (*base_ns == 0 || *base_ns > rtt->base_ns))
        *base_ns = rtt->base_ns;
    }
  }
}

static void set_yields(struct mrc_qp *qp, uint32_t planes) {
  MRC_EACH_BIT(plane, qp->req.one_window ? 0 : planes)
    mrc_cc_set_yields(&qp->planes[plane].cc, (qp->choice.yielding >> plane & 1) != 0);
}

/* Opens the windows of `planes`, with `psns` for the QP. Each plane has its own window. With NSCC
   and equal shares, the QP has one window, as in MRC. 0 or -EINVAL (a profile out of range). */
static int open_windows(struct mrc_qp *qp, uint32_t planes, uint32_t psns) {
  const struct mrc_qp_rts_attr *attr = &qp->attr.rts;
  const uint32_t proven = qp->evset.plane_mask & ~qp->evset.unproven;
  const uint32_t n = mrc_max_u32(1, (uint32_t)__builtin_popcount(proven));
  qp->req.one_window = attr->cc == MRC_CC_NSCC && attr->plane_shares == MRC_SHARES_EQUAL;
  struct mrc_cc_config cc = {.max_bytes = (uint64_t)psns * attr->path_mtu,
                             .mtu_bytes = attr->path_mtu,
                             .planes = qp->req.one_window ? n : 1,
                             .windows = qp->req.one_window ? 1 : n,
                             .kind = attr->cc,
                             .profile = attr->cc_profile};
  if (!qp->req.one_window && cc.profile.max_cwnd != 0) /* limits the sum of all windows */
    cc.profile.max_cwnd = mrc_max_u64(cc.profile.max_cwnd / n, attr->path_mtu);
  MRC_EACH_BIT(plane, planes) {
    const int error = mrc_cc_init(&qp->planes[plane].cc, &cc);
    if (error != 0) return error;
  }
  set_yields(qp, planes);
  return 0;
}

/* Planes whose port here or there is down carry no data. */
static void suspend_down_planes(struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                                uint64_t now_ns) {
  const uint32_t up = mrc_evset_on_ports(&qp->evset, services->ports.up);
  MRC_EACH_BIT(plane, planes) {
    if ((up >> plane & 1) == 0)
      mrc_health_suspend_plane(services, qp, plane, MRC_REASON_OWN_PORT, now_ns);
    else if (qp->planes[plane].peer_down)
      mrc_health_on_peer_port_down(services, qp, plane, now_ns);
  }
}

/* Adds EVs to a QP that is set up. New planes get what a move to RTS gives to the others. */
static int add_evs(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_ev_attr *evs,
                   int n) {
  struct mrc_services *services = &engine->services;
  const uint32_t before = qp->evset.plane_mask;
  const int error = mrc_evset_add(&qp->evset, evs, n, qp->attr.rts.ev_active_per_plane);
  if (error != 0) return error;
  const uint32_t planes = qp->evset.plane_mask & ~before;
  mrc_endpoint_know_ports(qp, planes);
  if (qp->state != MRC_QP_RTS || planes == 0) return 0;
  if (qp->req.one_window) { /* that of the first plane, which may be a new one */
    MRC_EACH_BIT(plane, planes)
      qp->planes[plane].cc = qp->planes[__builtin_ctz(before)].cc;
  } else {
    /* The window of the QP limits all planes together: a new one may fill as much as another. */
    const int opened = open_windows(qp, planes, qp->req.win.psns);
    mrc_assert(opened == 0); /* the same values have opened the others */
  }
  take_base_rtts(qp);
  suspend_down_planes(services, qp, planes, services->now_ns);
  return 0;
}

int mrc_qp_set_evs(struct mrc_engine *engine, uint32_t qpn, const struct mrc_ev_attr *evs, int n) {
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  if (mrc_qp_is_live(qp)) return add_evs(engine, qp, evs, n);
  if (qp->state != MRC_QP_INIT) return -EINVAL;
  struct mrc_evset set;
  const int error = mrc_evset_init(&set, evs, n, engine->services.config.ports, qp->noise_ns);
  if (error != 0) return error;
  mrc_evset_free(&qp->evset);
  qp->evset = set;
  qp->evset.skips_once = (engine->services.config.readings & MRC_READING_G5_A) != 0;
  return 0;
}

int mrc_qp_set_peer(struct mrc_engine *engine, uint32_t qpn, const struct mrc_peer_source *sources,
                    int n) {
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  if (n < 1 || n > MRC_MAX_PEER_SOURCES) return -EINVAL;
  const bool live = mrc_qp_is_live(qp), nat = sources[n - 1].is_nat != 0;
  if (nat && (live || n < 2 || qp->seal == NULL)) return -EINVAL;
  if (live) return mrc_peer_add(&engine->endpoint.peers, qp->peer, sources, n);
  if (qp->state != MRC_QP_INIT) return -EINVAL;
  if (qp->peer != NULL || qp->evset.n == 0) return -EINVAL;
  return mrc_endpoint_add_qp(&engine->services, &engine->endpoint, qp, sources, n);
}

int mrc_qp_set_seal(struct mrc_engine *engine, uint32_t qpn, const struct mrc_seal_attr *attr) {
  const struct mrc_engine_config *config = &engine->services.config;
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  if (qp->state != MRC_QP_INIT || qp->peer != NULL || qp->seal != NULL) return -EINVAL;
  if (attr->mode != MRC_SEAL_AUTH && attr->mode != MRC_SEAL_AEAD) return -EINVAL;
  if (attr->peer_qpn <= MRC_ENDPOINT_QPN || attr->peer_qpn > 0xFFFFFF) return -EINVAL;
  if (config->aead == NULL) return -ENOTSUP;
  qp->seal = mrc_seal_new(config->aead, qpn, attr, config->seal_epoch_bits);
  return qp->seal == NULL ? -ENOMEM : 0;
}

/* Restores the state after mrc_qp_create. */
static void to_reset(struct mrc_engine *engine, struct mrc_qp *qp) {
  mrc_seal_free(qp->seal);
  qp->seal = NULL;
  mrc_endpoint_drop_qp(&engine->services, &engine->endpoint, qp);
  mrc_evset_free(&qp->evset);
  for (uint32_t i = 0; i < engine->services.config.ports; i++)
    qp->planes[i].peer_down = false;
}

static int to_rtr(struct mrc_qp *qp, const struct mrc_qp_rtr_attr *attr) {
  if (attr == NULL || qp->evset.n == 0 || qp->peer == NULL) return -EINVAL;
  if (attr->dest_qpn <= MRC_ENDPOINT_QPN || attr->dest_qpn > 0xFFFFFF) return -EINVAL;
  if (attr->rq_psn > MRC_PSN_MASK || attr->integrity > MRC_INTEGRITY_UDP) return -EINVAL;
  if (attr->dynamic_mpr > 1 || attr->sack_times > 1) return -EINVAL;
  if (qp->seal != NULL && qp->seal->peer_qpn != attr->dest_qpn) return -EINVAL;
  qp->attr.rtr = *attr;
  mrc_rxwin_start(&qp->resp.win, attr->rq_psn);
  qp->resp.message_bytes = 0;
  return 0;
}

static bool are_retries(uint32_t timeout, uint32_t linear, uint32_t exponential) {
  return timeout >= 1 && timeout <= 24 && linear <= 7 && exponential <= 25;
}

/* Starts the requester with the attributes agreed at connect. 0 or -EINVAL or -ENOMEM. */
static int start_requester(struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_qp_rts_attr *attr = &qp->attr.rts;
  if (attr->path_mtu < MRC_MIN_MTU || attr->path_mtu > MRC_MAX_MTU || attr->path_mtu % 4 != 0)
    return -EINVAL;
  if (attr->peer_mpr < MRC_MPR_UNIT || attr->peer_mpr > MRC_RXWIN_MAX_PSNS) return -EINVAL;
  if (attr->peer_max_wimm == 0) return -EINVAL;
  if (!are_retries(attr->timeout, attr->retry_linear, attr->retry_exp)) return -EINVAL;
  if (attr->sq_psn > MRC_PSN_MASK || attr->plane_shares > MRC_SHARES_EQUAL) return -EINVAL;
  const uint32_t psns = mrc_min_u32(attr->peer_mpr, qp->attr.create.mpr);
  int error = open_windows(qp, qp->evset.plane_mask, psns);
  qp->evset.by_delay = attr->cc == MRC_CC_DELAY; /* NSCC requires switches that mark and trim */
  if (error == 0) error = mrc_requester_start(&qp->req, attr, psns, now_ns);
  if (error != 0) return error;
  qp->req.probe_wait_ns = mrc_loss_patience_ns(qp, now_ns);
  return 0;
}

static int to_rts(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_qp_rts_attr *attr,
                  uint64_t now_ns) {
  if (attr == NULL) return -EINVAL;
  const struct mrc_qp_rts_attr before = qp->attr.rts;
  qp->attr.rts = *attr;
  const int error = start_requester(qp, now_ns);
  if (error != 0) {
    qp->attr.rts = before;
    return error;
  }
  mrc_evset_start(&qp->evset, attr->ev_active_per_plane, &engine->prng);
  mrc_spray_start(qp);
  take_base_rtts(qp);
  suspend_down_planes(&engine->services, qp, qp->evset.plane_mask, now_ns);
  MRC_EACH_BIT(plane, qp->evset.plane_mask)
    qp->planes[plane].reverse_ev = MRC_EV_NONE; /* the rotation has no dead EV now */
  return 0;
}

int mrc_qp_modify(struct mrc_engine *engine, uint32_t qpn, uint32_t state,
                  const struct mrc_qp_rtr_attr *rtr, const struct mrc_qp_rts_attr *rts,
                  uint64_t now_ns) {
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  engine->services.now_ns = now_ns;
  if (!mrc_qp_may_move(qp->state, state)) return -EINVAL;
  if (state == MRC_QP_ERROR) {
    mrc_qp_fail(&engine->services, qp, MRC_WC_WR_FLUSH_ERR, MRC_WC_WR_FLUSH_ERR);
    return 0;
  }
  int error = 0;
  if (state == MRC_QP_RESET) to_reset(engine, qp);
  if (state == MRC_QP_RTR) error = to_rtr(qp, rtr);
  if (state == MRC_QP_RTS) error = to_rts(engine, qp, rts, now_ns);
  if (error != 0) return error;
  mrc_trace(&engine->services, MRC_TRACE_QP_STATE, qpn, qp->state, state);
  qp->state = (uint8_t)state;
  if (state == MRC_QP_RTS) qp->ev_probe_ns = 0; /* probe EVs that failed at connect */
  if (state == MRC_QP_RTR)
    mrc_port_status_on_change(&engine->services, &engine->endpoint.statuses, qp->peer);
  mrc_qp_touch(&engine->services, qp);
  return 0;
}

int mrc_qp_destroy(struct mrc_engine *engine, uint32_t qpn) {
  struct mrc_services *services = &engine->services;
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  mrc_assert(!engine->committing);
  mrc_requester_flush(services, &qp->req, qpn, MRC_WC_WR_FLUSH_ERR);
  mrc_responder_clear(services, &qp->resp);
  mrc_cq_orphan(&services->cq, qpn);
  mrc_endpoint_drop_qp(services, &engine->endpoint, qp);
  mrc_keymap_remove(&engine->qps.by_qpn, qpn);
  mrc_node_leave(&qp->nodes.ready);
  mrc_node_leave(&qp->nodes.answering);
  mrc_node_leave(&qp->nodes.port_waiting);
  mrc_node_leave(&qp->nodes.cq_waiting);
  mrc_timers_set(&services->ready.timers, qp->index, MRC_NEVER);
  engine->qps.at[qp->index] = NULL;
  mrc_qp_free(qp);
  return 0;
}

/* ---- work and control ---- */

int mrc_qp_post(struct mrc_engine *engine, uint32_t qpn, const struct mrc_wr *wrs, uint32_t n,
                uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  services->now_ns = now_ns;
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  struct mrc_requester *req = &qp->req;
  uint32_t signaled = 0;
  if (qp->state != MRC_QP_RTS) return -EPERM;
  if (n > qp->attr.create.sq_depth - req->sq_used) return -ENOBUFS;
  for (uint32_t i = 0; i < n; i++) {
    const struct mrc_wr *wr = &wrs[i];
    const struct mrc_mr *mr = NULL; /* a work request without bytes has no memory region */
    if (wr->opcode > MRC_WR_WRITE_IMM || wr->unsignaled > 1 || wr->redundant > 1) return -EINVAL;
    if (wr->redundant != 0 && wr->bytes > MRC_MAX_REDUNDANT) return -EINVAL;
    if (wr->bytes == 0 && wr->opcode == MRC_WR_WRITE) return -EINVAL; /* the peer drops it */
    if (wr->bytes > 0) {
      mr = mrc_mr_find(&services->mrs, wr->lkey, wr->local, wr->bytes, MRC_ACCESS_LOCAL_READ,
                       qp->attr.create.domain);
      if (mr == NULL) return -EACCES;
      if (wr->va + wr->bytes < wr->va) return -EINVAL;
    }
    if (wr->bytes != req->parted_bytes) {
      const uint32_t mtu = qp->attr.rts.path_mtu;
      req->parted_bytes = wr->bytes;
      req->part_bytes = qp->attr.rts.spray != 0 /* as in MRC */
                            ? mtu
                            : mrc_part_bytes(wr->bytes, mtu, services->config.max_burst_bytes);
    }
    /* It takes no effect before the tail moves over it. */
    req->sq[(req->sq_tail + i) & req->sq_mask] =
        (struct mrc_wqe){.wr_id = wr->wr_id,
                         .local = wr->local,
                         .va = wr->va,
                         .mr = mr == NULL ? MRC_MR_NONE : (uint32_t)(mr - services->mrs.mrs),
                         .rkey = wr->rkey,
                         .bytes = wr->bytes,
                         .imm = wr->imm,
                         .part_words = (uint16_t)(req->part_bytes / 4 & 0x1FFF),
                         .opcode = wr->opcode & 1,
                         .redundant = wr->redundant != 0,
                         .unsignaled = wr->unsignaled != 0};
    signaled += !wr->unsignaled;
  }
  if (!mrc_cq_promise(&services->cq, signaled, true)) return -ENOBUFS;
  if (!mrc_requester_is_busy(&qp->req)) {
    req->progress_ns = now_ns;
    req->probed_ns = now_ns;
    mrc_quick_compare(services, qp, now_ns);
  }
  /* A plane that answers no copies fails here: while the others answer, nothing is missing. */
  if (n > 0 && wrs[0].redundant != 0) mrc_loss_on_time(services, qp, now_ns);
  for (uint32_t i = 0; i < n; i++) {
    struct mrc_wqe *wqe = &req->sq[req->sq_tail++ & req->sq_mask];
    if (wqe->mr != MRC_MR_NONE) services->mrs.mrs[wqe->mr].refs++;
    wqe->rqmsn = req->next_rqmsn;
    if (wqe->opcode == MRC_WR_WRITE_IMM) req->next_rqmsn++;
    req->unsent_bytes += wqe->bytes;
  }
  req->sq_used += n;
  mrc_qp_touch(services, qp);
  return 0;
}

int mrc_qp_set_mpr(struct mrc_engine *engine, uint32_t qpn, uint32_t mpr, uint64_t now_ns) {
  engine->services.now_ns = now_ns;
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  if (!mrc_qp_is_live(qp) || qp->attr.rtr.dynamic_mpr == 0) return -EINVAL;
  if (mpr < MRC_MPR_UNIT || mpr > qp->attr.create.mpr || mpr % MRC_MPR_UNIT != 0) return -EINVAL;
  qp->resp.mpr = mpr;
  qp->resp.sack_now = true;
  mrc_qp_touch_to_answer(&engine->services, qp);
  return 0;
}

int mrc_qp_set_retries(struct mrc_engine *engine, uint32_t qpn, uint32_t timeout,
                       uint32_t retry_linear, uint32_t retry_exp, uint64_t now_ns) {
  engine->services.now_ns = now_ns;
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  if (qp->state != MRC_QP_RTS || !are_retries(timeout, retry_linear, retry_exp)) return -EINVAL;
  qp->attr.rts.timeout = (uint8_t)timeout;
  qp->attr.rts.retry_linear = (uint8_t)retry_linear;
  qp->attr.rts.retry_exp = (uint8_t)retry_exp;
  mrc_qp_touch(&engine->services, qp);
  return 0;
}

int mrc_qp_set_ev_state(struct mrc_engine *engine, uint32_t qpn, uint32_t ev_index, uint32_t state,
                        uint64_t now_ns) {
  engine->services.now_ns = now_ns;
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  if (ev_index >= qp->evset.n) return -EINVAL;
  const uint16_t ev = (uint16_t)ev_index;
  bool changed = false;
  switch (state) {
    case MRC_EV_GOOD:
      changed = mrc_evset_on_trust(&qp->evset, ev);
      break;
    case MRC_EV_DENIED:
    case MRC_EV_UNPROVEN:
      changed = mrc_evset_on_bar(&qp->evset, ev, (enum mrc_ev_state)state);
      break;
    case MRC_EV_ASSUMED_BAD:
      mrc_health_distrust_ev(&engine->services, qp, ev, MRC_REASON_CONTROLLER, now_ns);
      break;
    default:
      return -EINVAL;
  }
  if (changed) mrc_health_report_ev(&engine->services, qp, ev, MRC_REASON_CONTROLLER);
  if (qp->state == MRC_QP_RTS) qp->ev_probe_ns = 0;
  mrc_qp_touch(&engine->services, qp);
  return 0;
}

int mrc_qp_set_weight(struct mrc_engine *engine, uint32_t qpn, uint32_t plane, uint32_t weight,
                      uint64_t now_ns) {
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  if (plane < 1 || plane > engine->services.config.ports || weight > 100) return -EINVAL;
  engine->services.now_ns = now_ns;
  const uint32_t index = mrc_plane_of(plane), bit = 1u << index;
  qp->planes[index].weight = (uint8_t)weight;
  qp->choice.backups = weight == 0 ? qp->choice.backups | bit : qp->choice.backups & ~bit;
  const bool curbed = weight > 0 && weight < 100;
  qp->choice.curbed = curbed ? qp->choice.curbed | bit : qp->choice.curbed & ~bit;
  mrc_qp_touch(&engine->services, qp);
  return 0;
}

int mrc_qp_set_yielding(struct mrc_engine *engine, uint32_t qpn, uint32_t planes, uint64_t now_ns) {
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  engine->services.now_ns = now_ns;
  qp->choice.yielding = planes;
  set_yields(qp, qp->evset.plane_mask);
  mrc_qp_touch(&engine->services, qp);
  return 0;
}

static int check_command(const struct mrc_engine *engine, const struct mrc_probe_attr *attr) {
  const struct mrc_qp *qp = mrc_qps_find(&engine->qps, attr->qpn);
  if (qp == NULL) return -ENOENT;
  if (!mrc_qp_is_live(qp) || attr->ev_index >= qp->evset.n) return -EINVAL;
  if (qp->evset.evs[attr->ev_index].state == MRC_EV_DENIED) return -EINVAL;
  if (attr->bytes > MRC_MAX_MTU + MRC_DATA_OVERHEAD_BYTES + MRC_SEAL_OVERHEAD_BYTES ||
      attr->timeout_ns == 0)
    return -EINVAL;
  return attr->dscp <= 63 ? 0 : -EINVAL;
}

int mrc_engine_probe_evs(struct mrc_engine *engine, const struct mrc_probe_attr *probes, int n,
                         uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  services->now_ns = now_ns;
  for (int i = 0; i < n; i++) {
    const int error = check_command(engine, &probes[i]);
    if (error != 0) return error;
  }
  int taken = 0;
  for (; taken < n; taken++) {
    /* Each outstanding command has a reserved place for its event, even without polls. */
    const uint32_t waiting = services->events.tail - services->events.head;
    if (waiting + services->probes.n_commanded >= MRC_EVENT_RING / 4 * 3) break;
    const struct mrc_probe_attr *attr = &probes[taken];
    struct mrc_qp *qp = mrc_qps_find(&engine->qps, attr->qpn);
    const struct mrc_ev_probe request = {.ev = (uint16_t)attr->ev_index,
                                         .qp = qp,
                                         .bytes = attr->bytes,
                                         .timeout_ns = attr->timeout_ns,
                                         .purpose = MRC_EV_PROBE_COMMAND,
                                         .cookie = attr->cookie,
                                         .dscp = attr->dscp};
    if (mrc_probes_start(&services->probes, &qp->probes, &request) == NULL) break;
  }
  return taken;
}

/* ---- ports ---- */

/* Begins a call about this port. Returns its index. */
static uint32_t begin_port(struct mrc_services *services, int port, uint64_t now_ns) {
  mrc_assert(port >= 1 && (uint32_t)port <= services->config.ports);
  services->now_ns = now_ns;
  return mrc_plane_of((uint32_t)port);
}

void mrc_engine_port_blocked(struct mrc_engine *engine, int port, bool blocked, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const uint32_t index = begin_port(services, port, now_ns), bit = 1u << index;
  if (((services->ports.blocked & bit) != 0) == blocked) return;
  services->ports.blocked ^= bit;
  if (blocked) {
    services->ports.blocked_ns[index] = now_ns;
  } else {
    engine->endpoint.answers.n_stuck = services->probes.n_stuck = 0;
    /* Each QP that waited for the port gets a turn. Answers that are due leave first, because data
       would fill a small socket again each time. */
    struct mrc_node *waiting = &services->ready.port_waiting;
    while (!mrc_list_is_empty(waiting)) {
      struct mrc_qp *qp = MRC_NODE_OWNER(waiting->next, struct mrc_qp, nodes.port_waiting);
      mrc_node_leave(&qp->nodes.port_waiting);
      mrc_qp_touch_to_answer(services, qp);
    }
  }
}

void mrc_engine_port_up(struct mrc_engine *engine, int port, bool up, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const uint32_t bit = 1u << begin_port(services, port, now_ns);
  if (((services->ports.up & bit) != 0) == up) return;
  services->ports.up ^= bit;
  services->ports.was_down = true;
  mrc_endpoint_on_port_change(services, &engine->endpoint);
  for (uint32_t i = 0; i < services->config.max_qps; i++) {
    struct mrc_qp *qp = engine->qps.at[i];
    MRC_EACH_BIT(plane, qp != NULL ? mrc_evset_on_ports(&qp->evset, bit) : 0) {
      mrc_health_report_plane(services, qp, plane, MRC_EVENT_PORT, up, MRC_REASON_OWN_PORT);
      if (qp->state != MRC_QP_RTS) continue;
      if (up)
        mrc_health_retry_plane(services, qp, plane, now_ns);
      else
        mrc_health_suspend_plane(services, qp, plane, MRC_REASON_OWN_PORT, now_ns);
    }
  }
}

/* ---- queries ---- */

/* Reads the state of an engine: QPs, EVs, counters, drops, trace, and their names. */

static int64_t ns_or_unknown(const struct mrc_rtt *rtt, uint64_t value_ns) {
  return rtt->smooth_ns != 0 ? (int64_t)value_ns : -1;
}

static enum mrc_held_by held_by(const struct mrc_services *services, const struct mrc_qp *qp) {
  const struct mrc_requester *req = &qp->req;
  uint32_t bytes;
  if (qp->state != MRC_QP_RTS) return MRC_HELD_BY_PROGRAM;
  if (req->win.n_tosend == 0 && !mrc_requester_next_new(req, &qp->attr.rts, &bytes))
    return req->sq_send == req->sq_tail ? MRC_HELD_BY_PROGRAM : MRC_HELD_BY_PEER;
  uint32_t planes = mrc_qp_eligible_planes(services, qp), roomy = 0;
  if ((planes & qp->choice.quick.planes) != 0) planes &= qp->choice.quick.planes;
  MRC_EACH_BIT(plane, planes)
    if (mrc_qp_has_room(qp, plane, qp->attr.rts.path_mtu)) roomy |= 1u << plane;
  if (roomy == 0) return MRC_HELD_BY_NETWORK;
  return (roomy & ~mrc_qp_blocked(services, qp)) == 0 ? MRC_HELD_BY_SOCKET : MRC_HELD_BY_NOTHING;
}

int mrc_qp_query(const struct mrc_engine *engine, uint32_t qpn, struct mrc_qp_info *info) {
  const struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  const struct mrc_requester *req = &qp->req;
  *info = (struct mrc_qp_info){.qpn = qpn,
                               .state = qp->state,
                               .status = qp->status,
                               .outstanding = req->sq_tail - req->sq_head,
                               .sent_packets = req->sent_packets,
                               .retransmitted_packets = req->retransmitted_packets,
                               .spurious_packets = req->spurious_packets,
                               .first_sent_bytes = req->first_sent_bytes,
                               .acknowledged_bytes = req->acknowledged_bytes,
                               .received_bytes = qp->resp.received_bytes,
                               .inflight_bytes = req->win.inflight_bytes,
                               .rtt_ns = ns_or_unknown(&req->rtt, req->rtt.smooth_ns),
                               .path_mtu = qp->attr.rts.path_mtu,
                               .timeouts = req->timeouts,
                               .peer_mpr = req->peer_mpr,
                               .held_by = held_by(&engine->services, qp)};
  for (uint32_t i = 0; i < engine->services.config.ports; i++) {
    const struct mrc_plane *plane = &qp->planes[i];
    const struct mrc_share share = mrc_share_of(qp, i);
    info->planes[i] =
        (struct mrc_plane_info){.sent_packets = plane->packets,
                                .sent_bytes = plane->bytes,
                                .lost_packets = plane->lost,
                                .received_packets = plane->received_packets,
                                .received_bytes = plane->received_bytes,
                                .rtt_ns = ns_or_unknown(&plane->rtt, plane->rtt.smooth_ns),
                                .base_rtt_ns = ns_or_unknown(&plane->rtt, plane->rtt.base_ns),
                                .inflight_bytes = req->win.lists[i].bytes,
                                .cwnd_bytes = mrc_qp_cc(qp, i)->cwnd_bytes,
                                .suspended = plane->suspended,
                                .slow = share.slow,
                                .weight = plane->weight,
                                .share_percent = share.compared ? share.percent : 100};
    if (!req->one_window || i == 0) info->cwnd_bytes += info->planes[i].cwnd_bytes;
  }
  return 0;
}

uint32_t mrc_engine_ports_used(const struct mrc_engine *engine) {
  uint32_t used = 0;
  for (uint32_t i = 0; i < engine->services.config.max_qps; i++)
    MRC_EACH_BIT(plane, engine->qps.at[i] != NULL ? engine->qps.at[i]->evset.plane_mask : 0)
      used |= 1u << engine->qps.at[i]->evset.planes[plane].port;
  return used;
}

int mrc_qp_query_evs(const struct mrc_engine *engine, uint32_t qpn, struct mrc_ev_info *infos,
                     int capacity) {
  const struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  for (int i = 0; i < qp->evset.n && i < capacity; i++) {
    const struct mrc_ev *ev = &qp->evset.evs[i];
    infos[i] = (struct mrc_ev_info){.ev = ev->value,
                                    .port = ev->port,
                                    .plane = mrc_port_of(ev->plane),
                                    .state = ev->state,
                                    .active = ev->place < qp->evset.planes[ev->plane].n_active,
                                    .sent_packets = ev->packets,
                                    .sent_bytes = ev->bytes,
                                    .lost_packets = ev->lost,
                                    .sent_probes = ev->probes,
                                    .rtt_ns = ev->rtt_ns != 0 ? (int64_t)ev->rtt_ns : -1};
  }
  return qp->evset.n;
}

int mrc_qp_record(struct mrc_engine *engine, uint32_t qpn, bool recorded) {
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  if (qp == NULL) return -ENOENT;
  qp->resp.recorded = recorded;
  return 0;
}

static int copy_values(uint64_t *values, int capacity, const uint64_t *from, int n) {
  for (int i = 0; i < n && i < capacity; i++)
    values[i] = from[i];
  return n;
}

int mrc_engine_counters(const struct mrc_engine *engine, uint64_t *values, int capacity) {
  return copy_values(values, capacity, engine->services.counters, MRC_COUNTERS);
}

int mrc_engine_drops(const struct mrc_engine *engine, uint64_t *values, int capacity) {
  return copy_values(values, capacity, engine->services.drops, MRC_DROP_COUNT);
}

int mrc_engine_trace(const struct mrc_engine *engine, struct mrc_trace_entry *entries,
                     int capacity) {
  const struct mrc_trace_ring *ring = &engine->services.trace;
  const uint64_t kept = mrc_min_u64(ring->n, ring->mask + 1);
  const uint64_t n = mrc_min_u64(kept, capacity < 0 ? 0 : (uint64_t)capacity);
  for (uint64_t i = 0; i < n; i++)
    entries[i] = ring->entries[(ring->n - n + i) & ring->mask];
  return (int)n;
}

int mrc_engine_events(struct mrc_engine *engine, struct mrc_event *events, int capacity) {
  struct mrc_events *ring = &engine->services.events;
  int n = 0;
  while (n < capacity && ring->head != ring->tail)
    events[n++] = ring->ring[ring->head++ % MRC_EVENT_RING];
  if (n < capacity && ring->lost > 0) events[n++] = mrc_events_lost(ring);
  return n;
}

const char *mrc_drop_name(int reason) {
  static const char *const names[] = {
      "NONE",
#define X(name, meaning) #name,
#include "core/drops.def"
#undef X
  };
  return reason >= 0 && reason < MRC_DROP_COUNT ? names[reason] : NULL;
}

const char *mrc_trace_name(int point) {
  static const char *const names[] = {
#define X(name, a, b) #name,
#include "core/trace.def"
#undef X
  };
  return point >= 0 && point < MRC_TRACE_POINTS ? names[point] : NULL;
}

void mrc_engine_set_aead(struct mrc_engine *engine, const struct mrc_aead *aead) {
  mrc_assert(engine->services.arena.staged != NULL);
  engine->services.config.aead = aead;
}
