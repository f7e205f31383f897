/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of the changes of EVs' states, on this host, in all its programs. */
#pragma once

#include "program/agent.h"
#include "verbs/cq.h"

/* NULL and errno. Without the lock. */
struct vb_cq *vb_ev_cq_create(struct ibv_context *context, int cqe, void *cq_context,
                              struct ibv_comp_channel *channel);
int vb_ev_cq_destroy(struct vb_cq *cq);
/* Under the lock. Puts an event into each queue; a full queue counts it instead. */
void vb_ev_cq_push(const struct mrc_agent_ev_event *event);
/* Under the lock. */
int vb_ev_cq_take(struct vb_cq *cq, int n, struct mrc_api_ev_event *events, size_t stride);
