/* SPDX-License-Identifier: Apache-2.0 */
/* QPs: their states as a program sees them, and what the agent is told. Under the lock. */
#pragma once

#include <infiniband/verbs.h>
#include <stdbool.h>

#include "verbs/objects.h"

/* A QP with a number of the agent's; NULL and errno. Sets the `cap` that it has. Both take the
   lock. */
struct ibv_qp *vb_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *vb_qp_create_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
/* What verbs demand of attributes and their mask, and MRC's interface does not. A positive errno.
 */
int vb_qp_check(const struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask);
/* Without the checks of verbs' masks. A positive errno. */
int vb_qp_modify(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask);
/* Tells the engine how long to try, as the program has asked. */
void vb_qp_set_retries(struct vb_qp *qp);
void vb_qp_query(const struct vb_qp *qp, struct ibv_qp_attr *attr, struct ibv_qp_init_attr *init);
/* Ends the QP for the program; the agent ends it in the engine. The caller frees it. */
void vb_qp_leave(struct vb_qp *qp);
void vb_qp_free(struct vb_qp *qp);
/* Tells the agent that the QP has ended. */
void vb_qp_release(struct vb_qp *qp);

/* News of the agent. */
void vb_qp_ready(const struct mrc_agent_ready *ready, const uint8_t *resume, uint32_t resume_bytes);
void vb_qp_failed(uint32_t qpn, const char *reason);
void vb_qp_gone(uint32_t qpn, const char *reason);
/* The engine has created or destroyed a QP at the agent's command. */
void vb_qp_exists(uint32_t qpn, bool exists);
/* Fails QPs whose peers have been gone for long enough. */
void vb_qp_end_gone(uint64_t now_ns);
/* A new agent: tells it all QPs. */
void vb_qp_tell_all(void);
/* How many it will be told. */
uint32_t vb_qp_to_resume(void);
