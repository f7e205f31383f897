/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MRC's C interface, the functions for data. They are verbs with other names: a program gets its
 * device, context, PD and MRs from libibverbs, and CQs and QPs here. Functions of contexts, hints,
 * and those that return a number through a pointer return -1 and set errno; the others return a
 * positive errno as their verbs do.
 */
#pragma once

#include "verbs/api.h"

int mrc_query_device(struct ibv_context *context, struct mrc_api_device_attr *attr, int *supported);
int mrc_query_device_ex(struct ibv_context *context, struct mrc_api_context *own,
                        struct mrc_api_device_attr *attr, int *supported);
/* Numbers of MRC_API_VERSION; each pointer may be NULL. */
void mrc_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor,
                       uint32_t *oldest_vendor);

/* `attr` may be NULL. NULL and errno. */
struct mrc_api_context *mrc_create_context(struct ibv_context *context,
                                           struct mrc_api_context_attr *attr);
int mrc_destroy_context(struct mrc_api_context *context);

int mrc_create_comp_channel(struct mrc_api_context *context, struct mrc_api_channel **channel);
int mrc_get_comp_channel_fd(struct mrc_api_channel *channel, int *fd);
int mrc_destroy_comp_channel(struct mrc_api_channel *channel);

/* NULL and errno. */
struct mrc_api_cq *mrc_create_cq(struct mrc_api_context *context, int cqe, void *cq_context,
                                 struct mrc_api_channel *channel, int vector);
int mrc_poll_cq(struct mrc_api_cq *cq, int n, struct ibv_wc *wcs);
int mrc_req_notify_cq(struct mrc_api_cq *cq, int solicited_only);
int mrc_get_cq_event(struct mrc_api_channel *channel, struct mrc_api_cq **cq, void **cq_context);
void mrc_ack_cq_events(struct mrc_api_cq *cq, unsigned int events);
int mrc_destroy_cq(struct mrc_api_cq *cq);

/* Hints are kept and change nothing. NULL and errno. */
struct mrc_api_qp_hint *mrc_create_qp_hint(struct mrc_api_context *context,
                                           struct mrc_api_qp_hint_init *init);
int mrc_query_qp_hint(struct mrc_api_qp_hint *hint, struct mrc_api_qp_hint_attr *attr, int mask);
int mrc_modify_qp_hint(struct mrc_api_qp_hint *hint, struct mrc_api_qp_hint_attr *attr, int mask);
/* EBUSY while a QP has it. */
int mrc_destroy_qp_hint(struct mrc_api_qp_hint *hint);

/* NULL and errno. */
struct mrc_api_qp *mrc_create_qp(struct mrc_api_context *context, struct mrc_api_qp_init *init);
/* `api_mask`: MRC_API_QP_*. What a responder promises and the profiles can be set up to RTR. Verbs'
   timeouts and retries are ignored, and ports; MRC's own hold, from 16.8 ms on. */
int mrc_modify_qp(struct mrc_api_qp *qp, struct ibv_qp_attr *attr, int mask,
                  struct mrc_api_qp_attr *api, int api_mask);
/* Each of the three results may be NULL. */
int mrc_query_qp(struct mrc_api_qp *qp, struct ibv_qp_attr *attr, int mask,
                 struct mrc_api_qp_attr *api, int api_mask, struct mrc_api_qp_init *init);
int mrc_get_qpn(struct mrc_api_qp *qp, uint32_t *qpn);
int mrc_post_send(struct mrc_api_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad);
int mrc_post_recv(struct mrc_api_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
int mrc_destroy_qp(struct mrc_api_qp *qp);

int mrc_get_async_event(struct mrc_api_context *context, struct mrc_api_async_event *event);
void mrc_ack_async_event(struct mrc_api_async_event *event);
