/* SPDX-License-Identifier: Apache-2.0 */
#include "ready.h"

int mrc_ready_init(struct mrc_ready *ready, uint32_t max_qps) {
  mrc_list_init(&ready->ready);
  mrc_list_init(&ready->answering);
  mrc_list_init(&ready->port_waiting);
  mrc_list_init(&ready->cq_waiting);
  mrc_list_init(&ready->slot_waiting);
  return mrc_timers_init(&ready->timers, max_qps);
}

void mrc_ready_free(struct mrc_ready *ready) { mrc_timers_free(&ready->timers); }

void mrc_ready_wake_port_waiting(struct mrc_ready *ready) {
  while (!mrc_list_is_empty(&ready->port_waiting)) {
    struct mrc_ready_nodes *nodes =
        MRC_NODE_OWNER(ready->port_waiting.next, struct mrc_ready_nodes, port_waiting);
    mrc_node_leave(&nodes->port_waiting);
    mrc_ready_touch_to_answer(ready, nodes);
  }
}

void mrc_ready_forget(struct mrc_ready *ready, struct mrc_ready_nodes *nodes, uint32_t qp) {
  mrc_node_leave(&nodes->ready);
  mrc_node_leave(&nodes->answering);
  mrc_node_leave(&nodes->port_waiting);
  mrc_node_leave(&nodes->cq_waiting);
  mrc_node_leave(&nodes->slot_waiting);
  mrc_timers_set(&ready->timers, qp, MRC_NEVER);
}
