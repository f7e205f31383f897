/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MRC's C interface. The functions for data are verbs with other names: a program gets its
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

/*
 * The functions for control: profiles, EVs, probes. Profiles are the agent's:
 * all programs of the host see them, and they outlive programs. All functions return -1 and set
 * errno; what mrc cannot do is refused with EOPNOTSUPP, and a line on stderr says why.
 *
 * An EV of an SRv6 format is the list of uSIDs that selects the path, 16 bits each in network
 * order, as `mrc paths` shows them; its port is the plane. On paths that differ in the UDP source
 * port the kernel chooses the ports, so only profiles with all paths (MRC_API_EVS_AUTO) can be had.
 */

int mrc_ctl_query_device(struct ibv_context *context, struct mrc_api_ctl_device_attr *attr);
int mrc_ctl_query_device_ex(struct ibv_context *context, struct mrc_api_context *own,
                            struct mrc_api_ctl_device_attr *attr, int *supported);
/* Numbers of MRC_API_VERSION; each pointer may be NULL. */
void mrc_ctl_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor,
                           uint32_t *oldest_vendor);

/* Ports are planes; `mask` 1: their administrative state, which is that of the interface. */
int mrc_ctl_query_port(struct mrc_api_context *context, uint8_t port,
                       struct mrc_api_port_attr *attr, int mask);
/* EOPNOTSUPP: interfaces are the host's. */
int mrc_ctl_modify_port(struct mrc_api_context *context, uint8_t port,
                        struct mrc_api_port_attr *attr, int mask);

/* A profile exists from its first move to OFFLINE until its move to INIT. EBUSY: QPs, or profiles
   of EVs, use it; EINVAL: not in this state. */
int mrc_ctl_modify_ev_fmt_profile(struct mrc_api_context *context, uint64_t id,
                                  struct mrc_api_format_attr *attr, int mask);
/* Of arrays, a query fills what fits, and says how many there are. */
int mrc_ctl_query_ev_fmt_profile(struct mrc_api_context *context, uint64_t id,
                                 struct mrc_api_format_attr *attr, int mask);
int mrc_ctl_modify_ev_profile(struct mrc_api_context *context, uint64_t id,
                              struct mrc_api_evs_attr *attr, int mask);
int mrc_ctl_query_ev_profile(struct mrc_api_context *context, uint64_t id,
                             struct mrc_api_evs_attr *attr, int mask);
int mrc_ctl_modify_cc_profile(struct mrc_api_context *context, uint64_t id,
                              struct mrc_api_cc_attr *attr, int mask);
/* `config` of a query, if not NULL, points to a struct mrc_api_nscc that is filled. */
int mrc_ctl_query_cc_profile(struct mrc_api_context *context, uint64_t id,
                             struct mrc_api_cc_attr *attr, int mask);

/* Changes of EVs' states in QPs of all programs of this host, where the profile's `events` asks for
   that state. NULL and errno. */
struct mrc_api_cq *mrc_ctl_create_ev_event_cq(struct mrc_api_context *context, int cqe,
                                              void *cq_context, struct mrc_api_channel *channel,
                                              int vector);
/* The number of events, or -errno. For programs of version 1.0.0 an event ends before `state`. */
int mrc_ctl_poll_ev_event(struct mrc_api_cq *cq, int n, struct mrc_api_ev_event *events);

/* Probes EVs towards hosts that run an agent. ETIMEDOUT: not all have answered. */
int mrc_ctl_ep_batch_send_wait(struct mrc_api_context *context, uint8_t traffic_class, int op,
                               struct mrc_api_request *requests, int n_requests,
                               uint32_t timeout_ns, struct mrc_api_answer *answers, int *n_answers);
