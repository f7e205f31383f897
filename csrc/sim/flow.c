/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/flow.h"

#include <stdlib.h>

#include "core/base.h"

enum { FIRST_QPN = 3 };

uint32_t mrc_flows_add(struct mrc_sim_flows *flows, const struct mrc_sim_flow_config *config) {
  if (flows->n == flows->capacity) {
    flows->capacity = flows->capacity ? 2 * flows->capacity : 64;
    flows->at = realloc(flows->at, flows->capacity * sizeof(*flows->at));
    mrc_assert(flows->at);
  }
  struct mrc_sim_flow *flow = &flows->at[flows->n];
  *flow = (struct mrc_sim_flow){.config = *config,
                                .wanted_ns = calloc(config->writes, sizeof(uint64_t))};
  mrc_assert(flow->wanted_ns);
  return flows->n++;
}

void mrc_flows_free(struct mrc_sim_flows *flows) {
  for (uint32_t i = 0; i < flows->n; i++) {
    free(flows->at[i].wanted_ns);
    free(flows->at[i].evs[MRC_FROM]);
    free(flows->at[i].evs[MRC_TO]);
  }
  free(flows->at);
}

uint32_t mrc_flow_host(const struct mrc_sim_flow *flow, uint32_t end) {
  return end == MRC_FROM ? flow->config.from : flow->config.to;
}

uint32_t mrc_flow_qpn(uint32_t flow, uint32_t end) { return FIRST_QPN + 2 * flow + end; }

uint32_t mrc_flow_of(uint32_t qpn) { return (qpn - FIRST_QPN) / 2; }

uint32_t mrc_flow_end_of(uint32_t qpn) { return (qpn - FIRST_QPN) % 2; }
