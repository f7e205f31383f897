/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fabric_watch.h"

#include <stdlib.h>

#include "core/base.h"
#include "sim/fabric.h"

enum {
  FROM = 0, /* ends of a flow */
  TO = 1
};

static struct mrc_audit *audit_of(const struct mrc_sim *sim, uint32_t flow, uint32_t end) {
  return &sim->traffic.flows[flow].watch->ends[end];
}

static mrc_engine *engine_of(const struct mrc_sim *sim, uint32_t flow, uint32_t end) {
  const struct mrc_sim_flow_config *config = &sim->traffic.flows[flow].config;
  return sim->hosts[end == FROM ? config->from : config->to].engine;
}

/* ---- life ---- */

static void make_memory(struct mrc_sim *sim, uint32_t index) {
  struct mrc_audit *audit = audit_of(sim, index, FROM);
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const uint32_t key = mrc_traffic_qpn(index, FROM);
  mrc_audit_init(audit, (uint64_t)flow->config.bytes * flow->config.writes,
                 mrc_prng_next(&sim->prng));
  mrc_audit_init(audit_of(sim, index, TO), 0, 0); /* nothing is written that way */
  if (audit->memory_bytes == 0) return;
  mrc_assert(mrc_mr_register(engine_of(sim, index, FROM), (uintptr_t)audit->source,
                             audit->memory_bytes, key, MRC_ACCESS_LOCAL_READ) == 0);
  mrc_assert(mrc_mr_register(engine_of(sim, index, TO), (uintptr_t)audit->target,
                             audit->memory_bytes, key, MRC_ACCESS_REMOTE_WRITE) == 0);
}

void mrc_fabric_watch_connect(struct mrc_sim *sim, uint32_t index, uint32_t end,
                              const struct mrc_qp_attr *attr) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  if (end == FROM) {
    flow->watch = calloc(1, sizeof(*flow->watch));
    mrc_assert(flow->watch);
    make_memory(sim, index);
  }
  struct mrc_audit *audit = audit_of(sim, index, end);
  audit->engine = engine_of(sim, index, end);
  audit->qpn = attr->qpn;
  audit->sq_psn = attr->sq_psn;
  audit->rq_psn = attr->rq_psn;
  audit->path_mtu = attr->path_mtu;
  audit->mpr = attr->peer_mpr;
  audit->max_wimm = attr->peer_max_wimm;
}

void mrc_fabric_watch_free(struct mrc_fabric_watch *watch) {
  if (watch == NULL) return;
  mrc_audit_free(&watch->ends[FROM]);
  mrc_audit_free(&watch->ends[TO]);
  free(watch);
}

void mrc_fabric_watch_place(const struct mrc_fabric_watch *watch, struct mrc_wr *wr) {
  const struct mrc_audit *audit = &watch->ends[FROM];
  wr->local = (uintptr_t)audit->source + audit->used_bytes;
  wr->va = (uintptr_t)audit->target + audit->used_bytes;
  wr->lkey = wr->rkey = audit->qpn;
}

/* ---- packets ---- */

/* The flow and end that a packet is for; false for endpoint operations, which have no QP. */
static bool find_end(const struct mrc_sim *sim, uint32_t qpn, uint32_t *flow, uint32_t *end) {
  if (qpn < mrc_traffic_qpn(0, FROM)) return false;
  *flow = mrc_traffic_flow_of(qpn);
  *end = mrc_traffic_end_of(qpn);
  mrc_assert(*flow < sim->traffic.n_flows);
  return true;
}

static void touch(struct mrc_sim *sim, uint32_t flow, uint32_t end) {
  struct mrc_fabric_watch *watch = sim->traffic.flows[flow].watch;
  if (watch->touched[end]) return;
  watch->touched[end] = true;
  if (sim->n_touched == sim->touched_capacity) {
    sim->touched_capacity = sim->touched_capacity ? 2 * sim->touched_capacity : 64;
    sim->touched = realloc(sim->touched, sim->touched_capacity * sizeof(*sim->touched));
    mrc_assert(sim->touched);
  }
  sim->touched[sim->n_touched++] = mrc_traffic_qpn(flow, end);
}

void mrc_fabric_watch_sent(struct mrc_sim *sim, const struct mrc_frame *packet,
                           const uint8_t *bytes) {
  const struct mrc_sim_host *host = &sim->hosts[packet->from];
  struct mrc_wire wire;
  uint32_t flow, to;
  mrc_assert(!(host->down >> packet->plane & 1)); /* nothing leaves a port that is down */
  mrc_assert(mrc_wire_decode(bytes, mrc_frame_udp_bytes(packet), false, &wire) == 0);
  if (!find_end(sim, wire.dest_qpn, &flow, &to)) return;
  struct mrc_audit *audit = audit_of(sim, flow, 1 - to);
  touch(sim, flow, 1 - to);
  const uint32_t ev = (uint32_t)packet->sport << 16 | (packet->flow_label & 0xFFFF);
  if (mrc_opcode_is_data(wire.opcode))
    mrc_audit_data_sent(audit, &wire, ev, packet->plane + 1u, ~(host->blocked | host->down));
  if (wire.opcode == MRC_OP_SACK) mrc_audit_sack_sent(audit, &wire);
  if (wire.opcode == MRC_OP_ACK) mrc_audit_ack_sent(audit, audit_of(sim, flow, to), &wire);
}

void mrc_fabric_watch_received(struct mrc_sim *sim, const struct mrc_frame *packet,
                               const uint8_t *bytes, int drop) {
  struct mrc_wire wire;
  uint32_t flow, end;
  if (packet->trimmed || drop != 0) return;
  mrc_assert(mrc_wire_decode(bytes, mrc_frame_udp_bytes(packet), false, &wire) == 0);
  if (!find_end(sim, wire.dest_qpn, &flow, &end)) return;
  struct mrc_audit *audit = audit_of(sim, flow, end);
  touch(sim, flow, end);
  if (mrc_opcode_is_data(wire.opcode))
    mrc_audit_data_received(audit, audit_of(sim, flow, 1 - end), &wire);
  if (wire.opcode == MRC_OP_SACK) mrc_audit_sack_received(audit, &wire);
  if (wire.opcode == MRC_OP_ACK) mrc_audit_ack_received(audit, &wire);
}

void mrc_fabric_watch_completion(struct mrc_sim *sim, const struct mrc_wc *wc) {
  struct mrc_audit *audit = audit_of(sim, mrc_traffic_flow_of(wc->qpn), FROM);
  if (wc->opcode == MRC_WC_RECV_IMM)
    mrc_audit_immediate(audit, wc);
  else
    mrc_audit_completion(audit, wc);
}

/* ---- states ---- */

/* Each plane's rotation has its size as long as there are good EVs to fill it from that plane. */
void mrc_fabric_watch_rotation(struct mrc_sim *sim, uint32_t flow, uint32_t end) {
  static struct mrc_ev_info infos[MRC_MAX_EVS];
  uint32_t active[MRC_MAX_PORTS] = {0}, spare[MRC_MAX_PORTS] = {0}, all[MRC_MAX_PORTS] = {0};
  const int n =
      mrc_qp_query_evs(engine_of(sim, flow, end), mrc_traffic_qpn(flow, end), infos, MRC_MAX_EVS);
  for (int i = 0; i < n; i++) {
    const uint32_t plane = infos[i].port - 1u;
    all[plane]++;
    active[plane] += infos[i].active;
    spare[plane] += !infos[i].active && infos[i].state == MRC_EV_GOOD;
    mrc_assert(!infos[i].active || infos[i].state <= MRC_EV_SKIP);
  }
  const uint32_t wanted = sim->config.ev_active_per_plane;
  for (uint32_t plane = 0; plane < sim->config.planes; plane++) {
    const uint32_t target = wanted ? mrc_min_u32(wanted, all[plane]) : all[plane];
    mrc_assert(active[plane] <= target);
    mrc_assert(active[plane] == target || spare[plane] == 0);
  }
}

void mrc_fabric_watch_state(struct mrc_sim *sim) {
  for (uint32_t i = 0; i < sim->n_touched; i++) {
    const uint32_t flow = mrc_traffic_flow_of(sim->touched[i]);
    const uint32_t end = mrc_traffic_end_of(sim->touched[i]);
    sim->traffic.flows[flow].watch->touched[end] = false;
    mrc_audit_state(audit_of(sim, flow, end));
  }
  sim->n_touched = 0;
}

/* ---- the end ---- */

static uint64_t count_frames(const struct mrc_frame *first) {
  uint64_t n = 0;
  for (; first; first = first->next)
    n++;
  return n;
}

static uint64_t frames_somewhere(const struct mrc_sim *sim) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < sim->n_hops; i++)
    n += count_frames(sim->hops[i].queue.control.first) +
         count_frames(sim->hops[i].queue.data.first);
  for (uint32_t i = 0; i < sim->config.hosts; i++)
    n += count_frames(sim->hosts[i].inbox);
  n += mrc_agenda_count(&sim->agenda, MRC_SIM_ON_ARRIVAL);
  return n;
}

void mrc_fabric_watch_end(struct mrc_sim *sim) {
  mrc_assert(frames_somewhere(sim) == sim->pool.n_used);
  for (uint32_t i = 0; i < sim->traffic.n_flows; i++) {
    const struct mrc_sim_flow *flow = &sim->traffic.flows[i];
    if (flow->watch && flow->completed == flow->posted) mrc_audit_memory(audit_of(sim, i, FROM));
  }
}
