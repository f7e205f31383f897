/* SPDX-License-Identifier: Apache-2.0 */
/* The QPs of flows over MRC, one at each end, created and connected by the simulator in place of
   the OOB exchange. */
#ifndef MRC_SIM_QPS_H
#define MRC_SIM_QPS_H

#include "sim/engines.h"

/* The transport whose `transport` is struct mrc_engines. A flow that connects has QPs in RTR. */
extern const struct mrc_transport_calls mrc_qps_transport;

/* The QPs of a flow may send from now on. */
void mrc_qps_open(struct mrc_engines *engines, uint32_t flow);
/* The time is over in which a flow may use some of its paths alone. */
void mrc_qps_allow(struct mrc_engines *engines, uint32_t flow);
/* Whether the controller denies this EV of the flow until its `paths_until_ns`. */
bool mrc_qps_is_denied(const struct mrc_sim_flow *flow, const struct mrc_ev_attr *ev);

#endif
