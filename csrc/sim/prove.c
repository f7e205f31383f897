/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/prove.h"

#include "core/base.h"
#include "sim/fabric.h"

#define PATIENCE_NS UINT64_C(2000000000)
#define TRIES 3

void mrc_prove_on_answer(struct mrc_sim *sim, const struct mrc_event *event) {
  mrc_assert(sim->proof.waiting > 0);
  sim->proof.waiting--;
  if (event->result == 0) sim->proof.answered |= 1u << (event->port - 1);
}

/* The probes of one path in each plane, but for those that answered; returns how many. */
static int collect(const struct mrc_sim *sim, uint32_t index, uint32_t end, uint32_t path,
                   uint32_t n_paths, uint32_t answered, struct mrc_probe_attr *probes) {
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  int n = 0;
  for (uint32_t ev = path; ev < (uint32_t)flow->n_evs; ev += n_paths) {
    const struct mrc_ev_attr *attr = &flow->evs[end][ev];
    if (mrc_traffic_is_denied(flow, attr) || answered >> (attr->port - 1) & 1) continue;
    probes[n++] = (struct mrc_probe_attr){.qpn = mrc_traffic_qpn(index, end),
                                          .ev_index = ev,
                                          .bytes = sim->config.path_mtu + MRC_DATA_OVERHEAD_BYTES,
                                          .timeout_ns = PATIENCE_NS};
  }
  return n;
}

/* Sends the probes and runs until they have ended; returns in which planes answers came. */
static uint32_t probe(struct mrc_sim *sim, uint32_t host, const struct mrc_probe_attr *probes,
                      int n) {
  mrc_engine *engine = sim->hosts[host].engine;
  sim->proof = (struct mrc_sim_proof){.waiting = (uint32_t)n};
  mrc_assert(mrc_engine_probe_evs(engine, probes, n, sim->now_ns) == n);
  mrc_sim_host_kick(sim, host);
  while (sim->proof.waiting > 0) /* the engine gives up in the end */
    mrc_sim_step(sim);
  return sim->proof.answered;
}

void mrc_prove_evs(struct mrc_sim *sim, uint32_t index, uint32_t end) {
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const struct mrc_ev_attr *evs = flow->evs[end];
  const uint32_t host = end == 0 ? flow->config.from : flow->config.to;
  uint32_t n_paths = 1; /* of each plane; EVs lie plane by plane */
  while (n_paths < (uint32_t)flow->n_evs && evs[n_paths].port == evs[0].port)
    n_paths++;
  for (uint32_t path = 0; path < n_paths; path++) {
    struct mrc_probe_attr probes[MRC_SIM_MAX_PLANES];
    uint32_t answered = 0;
    int n = collect(sim, index, end, path, n_paths, answered, probes);
    for (int tries = 0; tries < TRIES && n > 0; tries++) {
      answered |= probe(sim, host, probes, n);
      n = collect(sim, index, end, path, n_paths, answered, probes);
    }
    for (int i = 0; i < n; i++)
      mrc_assert(mrc_qp_set_ev_state(sim->hosts[host].engine, probes[i].qpn, probes[i].ev_index,
                                     MRC_EV_ASSUMED_BAD, sim->now_ns) == 0);
  }
}
