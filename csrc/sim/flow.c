/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/flow.h"

#include <stdlib.h>

#include "core/base.h"
#include "virtual/memory.h"

uint32_t mrc_flows_add(struct mrc_sim_flows *flows, const struct mrc_sim_flow_config *config) {
  flows->at = mrc_grow(flows->at, flows->n, &flows->capacity, sizeof(*flows->at));
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
