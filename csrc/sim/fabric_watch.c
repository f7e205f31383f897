/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fabric_watch.h"

#include <stdlib.h>

#include "core/base.h"
#include "core/windows.h"
#include "virtual/memory.h"

static struct mrc_audit *audit_of(const struct mrc_fabric_watch *watch, uint32_t flow,
                                  uint32_t end) {
  return &watch->of[flow]->ends[end];
}

/* ---- life ---- */

static void make_audits(struct mrc_fabric_watch *watch, uint32_t flow) {
  if (watch->of == NULL) {
    watch->n = watch->flows->n;
    watch->of = calloc(watch->n, sizeof(*watch->of));
    mrc_assert(watch->of);
  }
  watch->of[flow] = calloc(1, sizeof(*watch->of[flow]));
  mrc_assert(watch->of[flow]);
}

static void make_memory(struct mrc_fabric_watch *watch, uint32_t flow, mrc_engine *const engines[2],
                        uint64_t seed) {
  struct mrc_audit *audit = audit_of(watch, flow, MRC_FROM);
  const struct mrc_sim_flow_config *config = &watch->flows->at[flow].config;
  const uint32_t key = mrc_flow_qpn(flow, MRC_FROM);
  mrc_audit_init(audit, (uint64_t)config->bytes * config->writes, seed);
  mrc_audit_init(audit_of(watch, flow, MRC_TO), 0, 0); /* no writes in this direction */
  if (audit->memory_bytes == 0) return;
  mrc_assert(mrc_mr_register(engines[MRC_FROM], (uintptr_t)audit->source, audit->memory_bytes, key,
                             MRC_ACCESS_LOCAL_READ, 0) == 0);
  mrc_assert(mrc_mr_register(engines[MRC_TO], (uintptr_t)audit->target, audit->memory_bytes, key,
                             MRC_ACCESS_REMOTE_WRITE, 0) == 0);
}

void mrc_fabric_watch_connect(struct mrc_fabric_watch *watch, uint32_t flow, uint32_t end,
                              const struct mrc_qp_attr *attr, mrc_engine *const engines[2],
                              struct mrc_prng *prng) {
  if (end == MRC_FROM) {
    make_audits(watch, flow);
    make_memory(watch, flow, engines, mrc_prng_next(prng));
  }
  struct mrc_audit *audit = audit_of(watch, flow, end);
  audit->engine = engines[end];
  audit->qpn = attr->create.qpn;
  audit->sq_psn = attr->rts.sq_psn;
  audit->rq_psn = attr->rtr.rq_psn;
  audit->path_mtu = attr->rts.path_mtu;
  audit->burst_bytes = attr->rts.spray == 0 ? MRC_BURST_BYTES : 0;
  audit->mpr = attr->rts.peer_mpr;
  audit->max_wimm = attr->rts.peer_max_wimm;
}

void mrc_fabric_watch_free(struct mrc_fabric_watch *watch) {
  for (uint32_t i = 0; i < watch->n; i++) {
    if (watch->of[i] == NULL) continue;
    mrc_audit_free(&watch->of[i]->ends[MRC_FROM]);
    mrc_audit_free(&watch->of[i]->ends[MRC_TO]);
    free(watch->of[i]);
  }
  free(watch->of);
  free(watch->touched);
}

void mrc_fabric_watch_place(const struct mrc_fabric_watch *watch, uint32_t flow,
                            struct mrc_wr *wr) {
  const struct mrc_audit *audit = audit_of(watch, flow, MRC_FROM);
  wr->local = (uintptr_t)audit->source + audit->used_bytes;
  wr->va = (uintptr_t)audit->target + audit->used_bytes;
  wr->lkey = wr->rkey = audit->qpn;
}

void mrc_fabric_watch_posted(struct mrc_fabric_watch *watch, uint32_t flow,
                             const struct mrc_wr *wr) {
  mrc_audit_posted(audit_of(watch, flow, MRC_FROM), wr->bytes, wr->opcode == MRC_WR_WRITE_IMM,
                   wr->imm);
}

/* ---- packets ---- */

/* Finds the flow and end that a packet is for; false for endpoint operations, which have no QP. */
static bool find_end(const struct mrc_fabric_watch *watch, uint32_t qpn, uint32_t *flow,
                     uint32_t *end) {
  if (qpn < mrc_flow_qpn(0, MRC_FROM)) return false;
  *flow = mrc_flow_of(qpn);
  *end = mrc_flow_end_of(qpn);
  mrc_assert(*flow < watch->n);
  return true;
}

static void touch(struct mrc_fabric_watch *watch, uint32_t flow, uint32_t end) {
  if (watch->of[flow]->touched[end]) return;
  watch->of[flow]->touched[end] = true;
  watch->touched =
      mrc_grow(watch->touched, watch->n_touched, &watch->touched_capacity, sizeof(*watch->touched));
  watch->touched[watch->n_touched++] = mrc_flow_qpn(flow, end);
}

void mrc_fabric_watch_sent(struct mrc_fabric_watch *watch, const struct mrc_frame *packet,
                           const uint8_t *bytes, uint32_t full, uint32_t down) {
  struct mrc_wire wire;
  uint32_t flow, to;
  mrc_assert(!(down >> packet->plane & 1)); /* no packet leaves a port that is down */
  mrc_assert(mrc_wire_decode(bytes, mrc_frame_udp_bytes(packet), false, &wire) == 0);
  if (!find_end(watch, wire.dest_qpn, &flow, &to)) return;
  struct mrc_audit *audit = audit_of(watch, flow, 1 - to);
  touch(watch, flow, 1 - to);
  const uint32_t ev = (uint32_t)packet->sport << 16 | (packet->flow_label & 0xFFFF);
  if (mrc_opcode_is_data(wire.opcode))
    mrc_audit_data_sent(audit, &wire, ev, packet->plane + 1u, ~(full | down));
  if (wire.opcode == MRC_OP_SACK) mrc_audit_sack_sent(audit, &wire);
  if (wire.opcode == MRC_OP_ACK) mrc_audit_ack_sent(audit, audit_of(watch, flow, to), &wire);
}

void mrc_fabric_watch_received(struct mrc_fabric_watch *watch, const struct mrc_frame *packet,
                               const uint8_t *bytes, int drop) {
  struct mrc_wire wire;
  uint32_t flow, end;
  if (packet->trimmed || drop != 0) return;
  mrc_assert(mrc_wire_decode(bytes, mrc_frame_udp_bytes(packet), false, &wire) == 0);
  if (!find_end(watch, wire.dest_qpn, &flow, &end)) return;
  struct mrc_audit *audit = audit_of(watch, flow, end);
  touch(watch, flow, end);
  if (mrc_opcode_is_data(wire.opcode))
    mrc_audit_data_received(audit, audit_of(watch, flow, 1 - end), &wire);
  if (wire.opcode == MRC_OP_SACK) mrc_audit_sack_received(audit, &wire);
  if (wire.opcode == MRC_OP_ACK) mrc_audit_ack_received(audit, &wire);
}

void mrc_fabric_watch_completion(struct mrc_fabric_watch *watch, const struct mrc_wc *wc) {
  struct mrc_audit *audit = audit_of(watch, mrc_flow_of(wc->qpn), MRC_FROM);
  if (wc->opcode == MRC_WC_RECV_IMM)
    mrc_audit_immediate(audit, wc);
  else
    mrc_audit_completion(audit, wc);
}

/* ---- states ---- */

/* Each plane's rotation is full as long as the plane has good EVs to fill it. */
void mrc_fabric_watch_rotation(const struct mrc_fabric_watch *watch, uint32_t qpn) {
  const struct mrc_audit *audit = audit_of(watch, mrc_flow_of(qpn), mrc_flow_end_of(qpn));
  static struct mrc_ev_info infos[MRC_MAX_EVS];
  uint32_t active[MRC_MAX_PORTS] = {0}, spare[MRC_MAX_PORTS] = {0}, all[MRC_MAX_PORTS] = {0};
  const int n = mrc_qp_query_evs(audit->engine, qpn, infos, MRC_MAX_EVS);
  for (int i = 0; i < n; i++) {
    const uint32_t plane = infos[i].port - 1u;
    all[plane]++;
    active[plane] += infos[i].active;
    spare[plane] += !infos[i].active && infos[i].state == MRC_EV_GOOD;
    mrc_assert(!infos[i].active || infos[i].state <= MRC_EV_SKIP);
  }
  const uint32_t wanted = watch->config->ev_active_per_plane;
  for (uint32_t plane = 0; plane < watch->config->planes; plane++) {
    const uint32_t target = wanted ? mrc_min_u32(wanted, all[plane]) : all[plane];
    mrc_assert(active[plane] <= target);
    mrc_assert(active[plane] == target || spare[plane] == 0);
  }
}

void mrc_fabric_watch_state(struct mrc_fabric_watch *watch) {
  for (uint32_t i = 0; i < watch->n_touched; i++) {
    const uint32_t flow = mrc_flow_of(watch->touched[i]);
    const uint32_t end = mrc_flow_end_of(watch->touched[i]);
    watch->of[flow]->touched[end] = false;
    mrc_audit_state(audit_of(watch, flow, end));
  }
  watch->n_touched = 0;
}

/* ---- the end ---- */

void mrc_fabric_watch_end(const struct mrc_fabric_watch *watch) {
  for (uint32_t i = 0; i < watch->n; i++) {
    const struct mrc_sim_flow *flow = &watch->flows->at[i];
    if (watch->of[i] && flow->completed == flow->posted)
      mrc_audit_memory(audit_of(watch, i, MRC_FROM));
  }
}
