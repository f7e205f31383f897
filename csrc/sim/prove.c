/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/prove.h"

#include "sim/qps.h"

#define PATIENCE_NS UINT64_C(2000000000)
#define TRIES 3

void mrc_prove_begin(struct mrc_sim_proof *proof, uint32_t index, uint32_t end) {
  const struct mrc_sim_flow *flow = &proof->engines->hosts->flows->at[index];
  const struct mrc_ev_attr *evs = flow->evs[end];
  *proof =
      (struct mrc_sim_proof){.engines = proof->engines, .flow = index, .end = end, .n_paths = 1};
  while (proof->n_paths < (uint32_t)flow->n_evs && evs[proof->n_paths].port == evs[0].port)
    proof->n_paths++;
}

void mrc_prove_on_answer(struct mrc_sim_proof *proof, const struct mrc_event *event) {
  mrc_assert(proof->waiting > 0);
  proof->waiting--;
  if (event->result == 0) proof->answered |= 1u << (event->port - 1);
}

/* The probes of the path in each plane, but for those that answered; returns how many. */
static int collect(const struct mrc_sim_proof *proof, struct mrc_probe_attr *probes) {
  const struct mrc_sim_hosts *hosts = proof->engines->hosts;
  const struct mrc_sim_flow *flow = &hosts->flows->at[proof->flow];
  int n = 0;
  for (uint32_t ev = proof->path; ev < (uint32_t)flow->n_evs; ev += proof->n_paths) {
    const struct mrc_ev_attr *attr = &flow->evs[proof->end][ev];
    if (mrc_qps_is_denied(flow, attr) || proof->answered >> (attr->port - 1) & 1) continue;
    probes[n++] =
        (struct mrc_probe_attr){.qpn = mrc_flow_qpn(proof->flow, proof->end),
                                .ev_index = ev,
                                .bytes = hosts->world->config.path_mtu + MRC_DATA_OVERHEAD_BYTES,
                                .timeout_ns = PATIENCE_NS};
  }
  return n;
}

static void give_up(const struct mrc_sim_proof *proof, mrc_engine *engine,
                    const struct mrc_probe_attr *probes, int n) {
  for (int i = 0; i < n; i++)
    mrc_assert(mrc_qp_set_ev_state(engine, probes[i].qpn, probes[i].ev_index, MRC_EV_ASSUMED_BAD,
                                   proof->engines->hosts->world->now_ns) == 0);
}

bool mrc_prove_next(struct mrc_sim_proof *proof) {
  struct mrc_sim_hosts *hosts = proof->engines->hosts;
  const uint32_t host = mrc_flow_host(&hosts->flows->at[proof->flow], proof->end);
  mrc_engine *engine = proof->engines->of[host];
  mrc_assert(proof->waiting == 0);
  for (; proof->path < proof->n_paths; proof->path++, proof->tries = 0, proof->answered = 0) {
    struct mrc_probe_attr probes[MRC_SIM_MAX_PLANES];
    const int n = collect(proof, probes);
    if (n > 0 && proof->tries++ < TRIES) {
      proof->waiting = (uint32_t)n;
      mrc_assert(mrc_engine_probe_evs(engine, probes, n, hosts->world->now_ns) == n);
      mrc_sim_host_kick(hosts, host);
      return true;
    }
    give_up(proof, engine, probes, n);
  }
  return false;
}
