/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/mrc_api.h"

#include <stdlib.h>
#include <string.h>

#include "verbs/objects.h"

struct mrc_api_context {
  struct ibv_context *verbs;
  uint32_t version; /* that the program was compiled for; 0: the newest */
};

enum { MPR_UNIT = 128, MAX_MPR = 32, MAX_WIMM = 1024, MAX_HINTS = 65536 };

struct mrc_api_qp_hint {
  struct mrc_api_qp_hint_attr attr;
  int users; /* QPs */
};

/* A queue of the changes of EVs' states, on this host, in all its programs. */
struct ev_cq {
  struct vb_cq cq; /* its places hold no completions */
  struct ev_cq *next;
  struct mrc_api_ev_event *events; /* ring of cq.size */
  uint32_t head;                   /* free-running */
  uint32_t tail;
  uint32_t dropped; /* since the newest in the ring */
  bool is_short;    /* of a program that knows no states in events */
};

static struct ev_cq *ev_cqs;

static struct ibv_cq *cq_of(struct mrc_api_cq *cq) { return (struct ibv_cq *)cq; }
static struct ibv_qp *qp_of(struct mrc_api_qp *qp) { return (struct ibv_qp *)qp; }
static struct ibv_comp_channel *channel_of(struct mrc_api_channel *channel) {
  return (struct ibv_comp_channel *)channel;
}

/* ---- Devices and contexts ---- */

EXPORT int mrc_query_device(struct ibv_context *context, struct mrc_api_device_attr *attr,
                            int *supported) {
  if (!context || !attr || !supported) return vb_fail(EINVAL);
  *supported = vb_owns(context);
  *attr = (struct mrc_api_device_attr){0};
  if (*supported)
    *attr = (struct mrc_api_device_attr){
        .protocols = MRC_API_PROTOCOL_1,
        .max_wimm = MAX_WIMM,
        .max_wimm_dest = MAX_WIMM,
        .max_mpr = MAX_MPR,
        .mpr_resolution = 1,
        .max_qp_hint = MAX_HINTS,
        .cap = MRC_API_CAP_DYNAMIC_MPR | MRC_API_CAP_TRIM_NACK | MRC_API_CAP_SERVICE_TIME};
  return 0;
}

EXPORT int mrc_query_device_ex(struct ibv_context *context, struct mrc_api_context *own,
                               struct mrc_api_device_attr *attr, int *supported) {
  (void)own;
  return mrc_query_device(context, attr, supported);
}

static void put(uint32_t *to, uint32_t version) {
  if (to) *to = version;
}

EXPORT void mrc_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor,
                              uint32_t *oldest_vendor) {
  put(current, MRC_API_VERSION(1, 0, 1));
  put(oldest, MRC_API_VERSION(1, 0, 0));
  put(vendor, MRC_API_VERSION(1, 0, 0));
  put(oldest_vendor, MRC_API_VERSION(1, 0, 0));
}

EXPORT struct mrc_api_context *mrc_create_context(struct ibv_context *context,
                                                  struct mrc_api_context_attr *attr) {
  if (!context || !vb_owns(context)) return vb_null(context ? EOPNOTSUPP : EINVAL);
  struct mrc_api_context *own = calloc(1, sizeof *own);
  if (!own) return NULL;
  own->verbs = context;
  own->version = attr ? attr->version : 0;
  return own;
}

EXPORT int mrc_destroy_context(struct mrc_api_context *context) {
  if (!context) return vb_fail(EINVAL);
  free(context);
  return 0;
}

/* ---- Channels and CQs ---- */

EXPORT int mrc_create_comp_channel(struct mrc_api_context *context,
                                   struct mrc_api_channel **channel) {
  if (!context || !channel) return EINVAL;
  *channel = (struct mrc_api_channel *)ibv_create_comp_channel(context->verbs);
  return *channel ? 0 : errno;
}

EXPORT int mrc_get_comp_channel_fd(struct mrc_api_channel *channel, int *fd) {
  if (!channel || !fd) return vb_fail(EINVAL);
  *fd = channel_of(channel)->fd;
  return 0;
}

EXPORT int mrc_destroy_comp_channel(struct mrc_api_channel *channel) {
  return channel ? ibv_destroy_comp_channel(channel_of(channel)) : EINVAL;
}

EXPORT struct mrc_api_cq *mrc_create_cq(struct mrc_api_context *context, int cqe, void *cq_context,
                                        struct mrc_api_channel *channel, int vector) {
  if (!context) return vb_null(EINVAL);
  return (struct mrc_api_cq *)ibv_create_cq(context->verbs, cqe, cq_context, channel_of(channel),
                                            vector);
}

EXPORT int mrc_poll_cq(struct mrc_api_cq *cq, int n, struct ibv_wc *wcs) {
  if (!cq || n < 0 || !wcs || vb_cq_of(cq_of(cq))->of_evs) return vb_fail(EINVAL);
  return vb_cq_poll(cq_of(cq), n, wcs);
}

EXPORT int mrc_req_notify_cq(struct mrc_api_cq *cq, int solicited_only) {
  return cq ? vb_cq_req_notify(cq_of(cq), solicited_only) : EINVAL;
}

EXPORT int mrc_get_cq_event(struct mrc_api_channel *channel, struct mrc_api_cq **cq,
                            void **cq_context) {
  if (!channel || !cq || !cq_context) return vb_fail(EINVAL);
  return ibv_get_cq_event(channel_of(channel), (struct ibv_cq **)cq, cq_context);
}

EXPORT void mrc_ack_cq_events(struct mrc_api_cq *cq, unsigned int events) {
  if (cq) ibv_ack_cq_events(cq_of(cq), events);
}

static int destroy_ev_cq(struct ev_cq *cq) {
  pr_lock();
  struct ev_cq **place = &ev_cqs;
  while (*place != cq)
    place = &(*place)->next;
  *place = cq->next;
  pr_unlock();
  free(cq->events);
  return vb_cq_destroy(&cq->cq);
}

EXPORT int mrc_destroy_cq(struct mrc_api_cq *cq) {
  if (!cq) return EINVAL;
  const bool of_evs = vb_cq_of(cq_of(cq))->of_evs;
  return of_evs ? destroy_ev_cq((struct ev_cq *)cq) : ibv_destroy_cq(cq_of(cq));
}

/* ---- Hints ---- */

static void copy_hint(struct mrc_api_qp_hint_attr *to, const struct mrc_api_qp_hint_attr *from,
                      unsigned int mask) {
  if (mask & MRC_API_HINT_QPS_PER_PEER) to->qps_per_peer = from->qps_per_peer;
  if (mask & MRC_API_HINT_SEND_PEERS) to->send_peers = from->send_peers;
  if (mask & MRC_API_HINT_REMOTE_RECV_PEERS) to->remote_recv_peers = from->remote_recv_peers;
  if (mask & MRC_API_HINT_VENDOR) memcpy(to->vendor, from->vendor, sizeof to->vendor);
}

static bool is_hint_mask(unsigned int mask) {
  return (mask & ~(MRC_API_HINT_QPS_PER_PEER | MRC_API_HINT_SEND_PEERS |
                   MRC_API_HINT_REMOTE_RECV_PEERS | MRC_API_HINT_VENDOR)) == 0;
}

EXPORT struct mrc_api_qp_hint *mrc_create_qp_hint(struct mrc_api_context *context,
                                                  struct mrc_api_qp_hint_init *init) {
  if (!context || !init) return vb_null(EINVAL);
  struct mrc_api_qp_hint *hint = calloc(1, sizeof *hint);
  if (hint) hint->attr = init->attr;
  return hint;
}

EXPORT int mrc_query_qp_hint(struct mrc_api_qp_hint *hint, struct mrc_api_qp_hint_attr *attr,
                             int mask) {
  if (!hint || !attr || !is_hint_mask((unsigned int)mask)) return vb_fail(EINVAL);
  pr_lock();
  copy_hint(attr, &hint->attr, (unsigned int)mask);
  pr_unlock();
  return 0;
}

EXPORT int mrc_modify_qp_hint(struct mrc_api_qp_hint *hint, struct mrc_api_qp_hint_attr *attr,
                              int mask) {
  if (!hint || !attr || !is_hint_mask((unsigned int)mask)) return vb_fail(EINVAL);
  pr_lock();
  copy_hint(&hint->attr, attr, (unsigned int)mask);
  pr_unlock();
  return 0;
}

EXPORT int mrc_destroy_qp_hint(struct mrc_api_qp_hint *hint) {
  if (!hint) return vb_fail(EINVAL);
  pr_lock();
  const bool used = hint->users > 0;
  pr_unlock();
  if (used) return vb_fail(EBUSY);
  free(hint);
  return 0;
}

/* ---- QPs ---- */

EXPORT struct mrc_api_qp *mrc_create_qp(struct mrc_api_context *context,
                                        struct mrc_api_qp_init *init) {
  const uint64_t served = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  if (!context || !init || !init->pd || !init->send_cq || !init->recv_cq) return vb_null(EINVAL);
  if (init->send_ops & ~served || init->protocol & ~MRC_API_PROTOCOL_1) return vb_null(EOPNOTSUPP);
  struct ibv_qp_init_attr attr = {.qp_context = init->qp_context,
                                  .send_cq = cq_of(init->send_cq),
                                  .recv_cq = cq_of(init->recv_cq),
                                  .cap = init->cap,
                                  .qp_type = IBV_QPT_RC,
                                  .sq_sig_all = init->signal_all};
  struct ibv_qp *qp = vb_qp_create(init->pd, &attr);
  if (qp) vb_qp_of(qp)->emulated = false; /* it is MRC's, also with --rc */
  if (qp) init->cap = attr.cap;
  return (struct mrc_api_qp *)qp;
}

/* What the peer's end must know, or the connection: it leaves with the move to RTR. */
enum {
  BEFORE_RTR = MRC_API_QP_MAX_WIMM_DEST | MRC_API_QP_MPR_DEST | MRC_API_QP_EV_PROFILE |
      MRC_API_QP_CC_PROFILE,
  KNOWN = BEFORE_RTR | MRC_API_QP_MAX_WIMM | MRC_API_QP_MPR | MRC_API_QP_TIMEOUT | MRC_API_QP_HINT |
      MRC_API_QP_RETRY | MRC_API_QP_CAP,
  MAX_TIMEOUT = 24,
  MAX_LINEAR = 7,
  MAX_EXPONENTIAL = 25
};

static int check_api(const struct vb_qp *qp, const struct mrc_api_qp_attr *api, unsigned int mask) {
  if (mask & ~((unsigned int)KNOWN | MRC_API_QP_VENDOR)) return EINVAL;
  if (mask == 0) return 0;
  if (!api) return EINVAL;
  if (mask & BEFORE_RTR && qp->rtr) return EINVAL;
  if (mask & MRC_API_QP_MPR && api->mpr > MAX_MPR) return EINVAL;
  if (mask & MRC_API_QP_MPR_DEST && api->mpr_dest > MAX_MPR) return EINVAL;
  if (mask & MRC_API_QP_MAX_WIMM && api->max_wimm > MAX_WIMM) return EINVAL;
  if (mask & MRC_API_QP_MAX_WIMM_DEST && api->max_wimm_dest > MAX_WIMM) return EINVAL;
  if (mask & MRC_API_QP_TIMEOUT && api->timeout > MAX_TIMEOUT) return EINVAL;
  if (mask & MRC_API_QP_RETRY &&
      (api->retry_linear > MAX_LINEAR || api->retry_exponential > MAX_EXPONENTIAL))
    return EINVAL;
  return 0;
}

static void copy_api(struct mrc_api_qp_attr *to, const struct mrc_api_qp_attr *from,
                     unsigned int mask) {
  if (mask & MRC_API_QP_MPR) to->mpr = from->mpr;
  if (mask & MRC_API_QP_MPR_DEST) to->mpr_dest = from->mpr_dest;
  if (mask & MRC_API_QP_MAX_WIMM) to->max_wimm = from->max_wimm;
  if (mask & MRC_API_QP_MAX_WIMM_DEST) to->max_wimm_dest = from->max_wimm_dest;
  if (mask & MRC_API_QP_TIMEOUT) to->timeout = from->timeout;
  if (mask & MRC_API_QP_EV_PROFILE) to->ev_profile = from->ev_profile;
  if (mask & MRC_API_QP_CC_PROFILE) to->cc_profile = from->cc_profile;
  if (mask & MRC_API_QP_RETRY) {
    to->retry_linear = from->retry_linear;
    to->retry_exponential = from->retry_exponential;
  }
  if (mask & MRC_API_QP_CAP) to->cap = from->cap;
  if (mask & MRC_API_QP_VENDOR) memcpy(to->vendor, from->vendor, sizeof to->vendor);
}

EXPORT int mrc_modify_qp(struct mrc_api_qp *qp, struct ibv_qp_attr *attr, int mask,
                         struct mrc_api_qp_attr *api, int api_mask) {
  const int ignored = IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
                      IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
  if (!qp || (mask != 0 && !attr)) return EINVAL;
  if (pr_process.forked) return EIO;
  struct vb_qp *ours = vb_qp_of(qp_of(qp));
  pr_lock();
  int error = check_api(ours, api, (unsigned int)api_mask);
  if (error == 0 && api_mask != 0) {
    copy_api(&ours->api, api, (unsigned int)api_mask);
    ours->api_set |= (unsigned int)api_mask;
    if (api_mask & MRC_API_QP_HINT) {
      if (ours->api.hint) ours->api.hint->users--;
      if (api->hint) api->hint->users++;
      ours->api.hint = api->hint;
    }
    /* What the agent gets when the QP moves to RTR. */
    ours->connect.max_wimm = ours->api.max_wimm_dest;
    ours->connect.mpr = (uint32_t)ours->api.mpr_dest * MPR_UNIT;
    ours->connect.ev_profile = ours->api.ev_profile;
    ours->connect.cc_profile = ours->api.cc_profile;
    vb_qp_set_retries(ours);
  }
  if (error == 0 && mask != 0) error = vb_qp_modify(ours, attr, mask & ~ignored);
  pr_unlock();
  return error;
}

EXPORT int mrc_query_qp(struct mrc_api_qp *qp, struct ibv_qp_attr *attr, int mask,
                        struct mrc_api_qp_attr *api, int api_mask, struct mrc_api_qp_init *init) {
  if (!qp || api_mask & ~(KNOWN | (int)MRC_API_QP_VENDOR)) return EINVAL;
  struct ibv_qp_attr own;
  struct ibv_qp_init_attr created;
  const int error = ibv_query_qp(qp_of(qp), attr ? attr : &own, mask, &created);
  if (error != 0) return error;
  pr_lock();
  if (api) {
    *api = (struct mrc_api_qp_attr){0};
    copy_api(api, &vb_qp_of(qp_of(qp))->api, (unsigned int)api_mask);
    if (api_mask & MRC_API_QP_HINT) api->hint = vb_qp_of(qp_of(qp))->api.hint;
  }
  pr_unlock();
  if (init)
    *init = (struct mrc_api_qp_init){.qp_context = created.qp_context,
                                     .send_cq = (struct mrc_api_cq *)created.send_cq,
                                     .recv_cq = (struct mrc_api_cq *)created.recv_cq,
                                     .cap = created.cap,
                                     .signal_all = created.sq_sig_all,
                                     .pd = qp_of(qp)->pd,
                                     .protocol = MRC_API_PROTOCOL_1};
  return 0;
}

EXPORT int mrc_get_qpn(struct mrc_api_qp *qp, uint32_t *qpn) {
  if (!qp || !qpn) return vb_fail(EINVAL);
  *qpn = qp_of(qp)->qp_num;
  return 0;
}

EXPORT int mrc_post_send(struct mrc_api_qp *qp, struct ibv_send_wr *list,
                         struct ibv_send_wr **bad) {
  return qp ? vb_post_send(qp_of(qp), list, bad) : EINVAL;
}

EXPORT int mrc_post_recv(struct mrc_api_qp *qp, struct ibv_recv_wr *list,
                         struct ibv_recv_wr **bad) {
  return qp ? vb_post_recv(qp_of(qp), list, bad) : EINVAL;
}

EXPORT int mrc_destroy_qp(struct mrc_api_qp *qp) {
  if (!qp) return EINVAL;
  struct mrc_api_qp_hint *hint = vb_qp_of(qp_of(qp))->api.hint;
  const int error = ibv_destroy_qp(qp_of(qp));
  pr_lock();
  if (error == 0 && hint) hint->users--;
  pr_unlock();
  return error;
}

/* ---- Asynchronous events ---- */

/* The two structs have the same form: a pointer or a port, then the type. */
EXPORT int mrc_get_async_event(struct mrc_api_context *context, struct mrc_api_async_event *event) {
  if (!context || !event) return vb_fail(EINVAL);
  struct ibv_async_event found;
  const int error = ibv_get_async_event(context->verbs, &found);
  if (error == 0) {
    event->type = found.event_type;
    memcpy(&event->element, &found.element, sizeof event->element);
  }
  return error;
}

EXPORT void mrc_ack_async_event(struct mrc_api_async_event *event) {
  if (!event) return;
  struct ibv_async_event taken = {.event_type = event->type};
  memcpy(&taken.element, &event->element, sizeof event->element);
  ibv_ack_async_event(&taken);
}

/* ==== Control ==== */

enum {
  MAX_FORMATS = 64,
  MAX_PROFILES = 1024,
  MAX_EVS = 1024, /* of a profile, and of one operation */
  MAX_EV_BITS = 8 * MRC_API_EV_BYTES,
  MAX_FIELDS = 256,
  MAX_PROBES = 1024,
  CAP_MODIFY_EVS_ONLINE = 1,
  CAP_EV_EVENT = 4,
  CAP_EV_EVENT_COUNT = 16,
  CAP_PROBE = 32
};

static const char *const algorithms[] = {"uet-1.0-nscc", NULL};

#define ANSWER_NS 35000000000ull /* for the agent to answer a request */

struct request {
  struct mrc_node node;
  uint64_t cookie;
  void *reply;
  size_t room;
  size_t bytes; /* of the reply */
  int status;
  bool answered;
};

static struct mrc_node unanswered = {&unanswered, &unanswered};
static uint64_t last_cookie;

void vb_api_answer(const struct pr_frame *frame) {
  for (struct mrc_node *node = unanswered.next; node != &unanswered; node = node->next) {
    struct request *each = MRC_NODE_OWNER(node, struct request, node);
    if (each->cookie != frame->head.cookie || each->answered) continue;
    each->answered = true;
    each->status = frame->head.value;
    each->bytes = frame->bytes < each->room ? frame->bytes : each->room;
    if (each->bytes > 0) memcpy(each->reply, frame->body, each->bytes);
  }
  pthread_cond_broadcast(&pr_process.changed);
}

void vb_api_agent_gone(void) {
  for (struct mrc_node *node = unanswered.next; node != &unanswered; node = node->next) {
    struct request *each = MRC_NODE_OWNER(node, struct request, node);
    if (!each->answered) each->status = -ECONNRESET;
    each->answered = true;
  }
  pthread_cond_broadcast(&pr_process.changed);
}

/* Asks the agent, and waits for its answer. `reply` gets the results, or the line that says why
   not; `bytes` is the room there, then what came. */
static int ask(int function, const void *body, size_t body_bytes, void *reply, size_t *bytes) {
  const uint64_t until_ns = pr_now_ns() + ANSWER_NS;
  pr_lock();
  struct request request = {
      .cookie = ++last_cookie, .reply = reply, .room = *bytes, .status = -ETIMEDOUT};
  mrc_list_append(&unanswered, &request.node);
  if (pr_process.link.fd < 0) {
    request.status = -ENOTCONN;
    request.answered = true;
  }
  pr_tell(MRC_AGENT_REQUEST, function, request.cookie, body, body_bytes, NULL, 0);
  while (!request.answered && pr_wait(until_ns))
    continue;
  mrc_node_leave(&request.node);
  pr_unlock();
  *bytes = request.bytes;
  if (request.status == 0) return 0;
  if (request.bytes > 0 && request.room >= MRC_AGENT_TEXT)
    pr_say("%.*s", (int)request.bytes, (const char *)reply);
  return vb_fail(-request.status);
}

static int tell(int function, const void *body, size_t bytes) {
  char text[MRC_AGENT_TEXT];
  size_t room = sizeof text;
  return ask(function, body, bytes, text, &room);
}

/* ---- The device ---- */

static uint32_t port_mask(void) {
  uint32_t mask = 0;
  pr_lock();
  for (int i = 0; i < pr_process.n_ports; i++)
    if (!pr_process.ports[i].loopback) mask |= 1u << pr_process.ports[i].number;
  pr_unlock();
  return mask;
}

EXPORT int mrc_ctl_query_device(struct ibv_context *context, struct mrc_api_ctl_device_attr *attr) {
  if (!context || !attr) return vb_fail(EINVAL);
  if (!vb_owns(context)) return vb_fail(EOPNOTSUPP);
  *attr = (struct mrc_api_ctl_device_attr){
      .protocols = MRC_API_PROTOCOL_1,
      .max_formats = MAX_FORMATS,
      .max_ev_profiles = MAX_PROFILES,
      .max_evs = MAX_PROFILES * MAX_EVS,
      .free_evs = MAX_PROFILES * MAX_EVS,
      .max_evs_of_profile = MAX_EVS,
      .ev_count_multiple = 1,
      .max_ev_bits = MAX_EV_BITS,
      .format_modes = MRC_API_FORMAT_SRV6 | MRC_API_FORMAT_UDP,
      .evs_modes = MRC_API_EVS_AUTO | MRC_API_EVS_EXPLICIT | MRC_API_EVS_GENERATED,
      .max_entries = MAX_EVS,
      .cc = {.max_profiles = MAX_PROFILES, .algorithms = (const char **)algorithms},
      .port_mask = port_mask(),
      .options = CAP_MODIFY_EVS_ONLINE | CAP_EV_EVENT | CAP_EV_EVENT_COUNT | CAP_PROBE};
  return 0;
}

EXPORT int mrc_ctl_query_device_ex(struct ibv_context *context, struct mrc_api_context *own,
                                   struct mrc_api_ctl_device_attr *attr, int *supported) {
  (void)own;
  if (!context || !attr || !supported) return vb_fail(EINVAL);
  *supported = vb_owns(context);
  return *supported ? mrc_ctl_query_device(context, attr) : 0;
}

EXPORT void mrc_ctl_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor,
                                  uint32_t *oldest_vendor) {
  mrc_query_version(current, oldest, vendor, oldest_vendor);
}

EXPORT int mrc_ctl_query_port(struct mrc_api_context *context, uint8_t port,
                              struct mrc_api_port_attr *attr, int mask) {
  if (!context || !attr || mask & ~1) return vb_fail(EINVAL);
  int found = -1;
  pr_lock();
  for (int i = 0; i < pr_process.n_ports; i++)
    if (pr_process.ports[i].number == port) found = pr_process.ports[i].up != 0;
  pr_unlock();
  if (found < 0) return vb_fail(EINVAL);
  if (mask) attr->enabled = found;
  return 0;
}

EXPORT int mrc_ctl_modify_port(struct mrc_api_context *context, uint8_t port,
                               struct mrc_api_port_attr *attr, int mask) {
  struct mrc_api_port_attr now;
  if (!attr || mrc_ctl_query_port(context, port, &now, 1) != 0) return vb_fail(EINVAL);
  if (!mask || now.enabled == attr->enabled) return 0;
  pr_say("port %d is an interface of the host: ip link set changes it", port);
  return vb_fail(EOPNOTSUPP);
}

/* ---- Profiles of formats ---- */

EXPORT int mrc_ctl_modify_ev_fmt_profile(struct mrc_api_context *context, uint64_t id,
                                         struct mrc_api_format_attr *attr, int mask) {
  if (!context || !attr) return vb_fail(EINVAL);
  struct mrc_agent_format format = {.id = id,
                                    .mask = (uint32_t)mask,
                                    .state = (uint32_t)attr->state,
                                    .current_state = (uint32_t)attr->current_state,
                                    .mode = (uint32_t)attr->mode};
  if (mask & MRC_API_FORMAT_OP) {
    if (attr->op.op != MRC_API_FIELDS_MODIFY || !attr->op.fields || attr->op.n_fields < 1 ||
        attr->op.n_fields > MAX_FIELDS)
      return vb_fail(EINVAL);
    format.n_fields = (uint32_t)attr->op.n_fields;
    for (int i = 0; i < attr->op.n_fields; i++)
      format.bits[i] = attr->op.fields[i].bits;
  }
  memcpy(format.vendor, attr->vendor, sizeof format.vendor);
  return tell(MRC_AGENT_MODIFY_FORMAT, &format, sizeof format);
}

EXPORT int mrc_ctl_query_ev_fmt_profile(struct mrc_api_context *context, uint64_t id,
                                        struct mrc_api_format_attr *attr, int mask) {
  if (!context || !attr) return vb_fail(EINVAL);
  struct mrc_agent_format format = {.id = id};
  size_t room = sizeof format;
  if (ask(MRC_AGENT_QUERY_FORMAT, &format, sizeof format, &format, &room) != 0) return -1;
  if (mask & (MRC_API_PROFILE_STATE | MRC_API_PROFILE_CURRENT_STATE))
    attr->state = attr->current_state = (int)format.state;
  if (mask & MRC_API_FORMAT_MODE) attr->mode = (int)format.mode;
  if (mask & MRC_API_FORMAT_OP) {
    const int n = (int)format.n_fields;
    const bool is_short = attr->op.n_fields < n;
    for (int i = 0; attr->op.fields && i < n && i < attr->op.n_fields; i++)
      attr->op.fields[i].bits = format.bits[i];
    attr->op.n_fields = n;
    if (is_short) return vb_fail(E2BIG);
  }
  if ((uint32_t)mask & MRC_API_PROFILE_VENDOR)
    memcpy(attr->vendor, format.vendor, sizeof format.vendor);
  return 0;
}

/* ---- Profiles of EVs ---- */

/* Arrays that belong to a request or a reply. */
struct evs_frame {
  struct mrc_agent_evs head;
  uint8_t arrays[MAX_EVS * sizeof(struct mrc_api_ev_entry) +
                 MAX_FIELDS * sizeof(struct mrc_api_ev_field)];
};

static size_t add(struct evs_frame *frame, size_t bytes, const void *items, size_t item_bytes,
                  uint32_t n) {
  if (n > 0) memcpy((uint8_t *)frame + bytes, items, n * item_bytes);
  return bytes + n * item_bytes;
}

/* An operation on EVs and one on fields exclude each other. */
static bool has_both(int mask) { return mask & MRC_API_EVS_OP && mask & MRC_API_EVS_FIELDS_OP; }

/* 0 or an errno */
static int check_array(const void *items, int n, int most) {
  if (n > most) return E2BIG;
  return n < 0 || (!items && n > 0) ? EINVAL : 0;
}

EXPORT int mrc_ctl_modify_ev_profile(struct mrc_api_context *context, uint64_t id,
                                     struct mrc_api_evs_attr *attr, int mask) {
  if (!context || !attr || has_both(mask)) return vb_fail(EINVAL);
  const bool entries = mask & MRC_API_EVS_OP, fields = mask & MRC_API_EVS_FIELDS_OP;
  int error = 0;
  if (entries) error = check_array(attr->op.entries, attr->op.n_entries, MAX_EVS);
  if (entries && attr->op.op > MRC_API_EVS_MODIFY_STATE) error = EINVAL;
  if (fields) error = check_array(attr->fields_op.fields, attr->fields_op.n_fields, MAX_FIELDS);
  if (fields && attr->fields_op.op != MRC_API_FIELDS_MODIFY) error = EINVAL;
  if (error != 0) return vb_fail(error);
  struct evs_frame *frame = calloc(1, sizeof *frame);
  if (!frame) return -1;
  frame->head = (struct mrc_agent_evs){.id = id,
                                       .format = attr->format,
                                       .mask = (uint32_t)mask,
                                       .state = (uint32_t)attr->state,
                                       .current_state = (uint32_t)attr->current_state,
                                       .mode = (uint32_t)attr->mode,
                                       .n_evs = attr->n_evs,
                                       .min_active = attr->min_active,
                                       .events = (uint32_t)attr->events,
                                       .op = (uint32_t)attr->op.op,
                                       .n_entries = entries ? (uint32_t)attr->op.n_entries : 0,
                                       .n_fields = fields ? (uint32_t)attr->fields_op.n_fields : 0};
  memcpy(frame->head.vendor, attr->vendor, sizeof frame->head.vendor);
  size_t bytes = sizeof frame->head;
  bytes =
      add(frame, bytes, attr->op.entries, sizeof(struct mrc_api_ev_entry), frame->head.n_entries);
  bytes = add(frame, bytes, attr->fields_op.fields, sizeof(struct mrc_api_ev_field),
              frame->head.n_fields);
  const int result = tell(MRC_AGENT_MODIFY_EVS, frame, bytes);
  free(frame);
  return result;
}

/* Copies what fits into the caller's arrays. -1 and E2BIG: an array has too little room; the size
   that it needs is in `attr`. */
static int take_arrays(const struct evs_frame *reply, struct mrc_api_evs_attr *attr, int mask) {
  const uint32_t n = reply->head.n_entries;
  bool is_short = false;
  if (mask & MRC_API_EVS_OP) {
    const uint32_t fit = attr->op.n_entries < (int)n ? (uint32_t)attr->op.n_entries : n;
    if (attr->op.entries)
      memcpy(attr->op.entries, reply->arrays, fit * sizeof(struct mrc_api_ev_entry));
    is_short = attr->op.n_entries < (int)n;
    attr->op.n_entries = (int)n;
  }
  if (mask & MRC_API_EVS_FIELDS_OP) {
    const uint8_t *fields = reply->arrays + n * sizeof(struct mrc_api_ev_entry);
    const uint32_t m = reply->head.n_fields;
    const uint32_t fit = attr->fields_op.n_fields < (int)m ? (uint32_t)attr->fields_op.n_fields : m;
    if (attr->fields_op.fields)
      memcpy(attr->fields_op.fields, fields, fit * sizeof(struct mrc_api_ev_field));
    is_short = is_short || attr->fields_op.n_fields < (int)m;
    attr->fields_op.n_fields = (int)m;
  }
  return is_short ? vb_fail(E2BIG) : 0;
}

EXPORT int mrc_ctl_query_ev_profile(struct mrc_api_context *context, uint64_t id,
                                    struct mrc_api_evs_attr *attr, int mask) {
  if (!context || !attr || has_both(mask)) return vb_fail(EINVAL);
  const bool entries = mask & MRC_API_EVS_OP, fields = mask & MRC_API_EVS_FIELDS_OP;
  if ((entries && attr->op.n_entries < 0) || (fields && attr->fields_op.n_fields < 0))
    return vb_fail(EINVAL);
  const bool of_given = entries && attr->op.op == MRC_API_EVS_QUERY_STATE;
  const int error = of_given ? check_array(attr->op.entries, attr->op.n_entries, MAX_EVS) : 0;
  if (error != 0) return vb_fail(error);
  struct evs_frame *frame = calloc(1, sizeof *frame);
  if (!frame) return -1;
  frame->head = (struct mrc_agent_evs){.id = id,
                                       .mask = (uint32_t)mask,
                                       .op = (uint32_t)attr->op.op,
                                       .n_entries = of_given ? (uint32_t)attr->op.n_entries : 0};
  const size_t bytes = add(frame, sizeof frame->head, attr->op.entries,
                           sizeof(struct mrc_api_ev_entry), frame->head.n_entries);
  size_t room = sizeof *frame;
  int result = ask(MRC_AGENT_QUERY_EVS, frame, bytes, frame, &room);
  if (result == 0) {
    const struct mrc_agent_evs *head = &frame->head;
    if (mask & (MRC_API_PROFILE_STATE | MRC_API_PROFILE_CURRENT_STATE))
      attr->state = attr->current_state = (int)head->state;
    if (mask & MRC_API_EVS_MODE) attr->mode = (int)head->mode;
    if (mask & MRC_API_EVS_FORMAT) attr->format = head->format;
    if (mask & MRC_API_EVS_COUNT) attr->n_evs = head->n_evs;
    if (mask & MRC_API_EVS_MIN_ACTIVE) attr->min_active = head->min_active;
    if (mask & MRC_API_EVS_EVENTS) attr->events = (int)head->events;
    if ((uint32_t)mask & MRC_API_PROFILE_VENDOR)
      memcpy(attr->vendor, head->vendor, sizeof head->vendor);
    result = take_arrays(frame, attr, mask);
  }
  free(frame);
  return result;
}

/* ---- Profiles of congestion control ---- */

EXPORT int mrc_ctl_modify_cc_profile(struct mrc_api_context *context, uint64_t id,
                                     struct mrc_api_cc_attr *attr, int mask) {
  const bool named = mask & MRC_API_CC_ALGORITHM, set = mask & MRC_API_CC_CONFIG;
  if (!context || !attr || (set && !attr->config)) return vb_fail(EINVAL);
  struct mrc_agent_cc cc = {.id = id,
                            .mask = (uint32_t)mask,
                            .state = (uint32_t)attr->state,
                            .current_state = (uint32_t)attr->current_state};
  const char *name = named && attr->algorithm ? attr->algorithm : algorithms[0];
  if (strlen(name) >= sizeof cc.algorithm) return vb_fail(EINVAL);
  strcpy(cc.algorithm, name);
  if (set) memcpy(&cc.config, attr->config, sizeof cc.config);
  memcpy(cc.vendor, attr->vendor, sizeof cc.vendor);
  return tell(MRC_AGENT_MODIFY_CC, &cc, sizeof cc);
}

EXPORT int mrc_ctl_query_cc_profile(struct mrc_api_context *context, uint64_t id,
                                    struct mrc_api_cc_attr *attr, int mask) {
  if (!context || !attr) return vb_fail(EINVAL);
  struct mrc_agent_cc cc = {.id = id};
  size_t room = sizeof cc;
  if (ask(MRC_AGENT_QUERY_CC, &cc, sizeof cc, &cc, &room) != 0) return -1;
  if (mask & (MRC_API_PROFILE_STATE | MRC_API_PROFILE_CURRENT_STATE))
    attr->state = attr->current_state = (int)cc.state;
  if (mask & MRC_API_CC_ALGORITHM) attr->algorithm = algorithms[0];
  if (mask & MRC_API_CC_CONFIG && attr->config)
    memcpy((void *)(uintptr_t)attr->config, &cc.config, sizeof cc.config);
  if ((uint32_t)mask & MRC_API_PROFILE_VENDOR) memcpy(attr->vendor, cc.vendor, sizeof cc.vendor);
  return 0;
}

/* ---- Events ---- */

EXPORT struct mrc_api_cq *mrc_ctl_create_ev_event_cq(struct mrc_api_context *context, int cqe,
                                                     void *cq_context,
                                                     struct mrc_api_channel *channel, int vector) {
  if (!context || vector < 0 || vector >= context->verbs->num_comp_vectors) return vb_null(EINVAL);
  struct ev_cq *cq = calloc(1, sizeof *cq);
  if (!cq) return NULL;
  if (vb_cq_init(&cq->cq, context->verbs, cqe, cq_context, channel_of(channel)) != 0) {
    free(cq);
    return NULL;
  }
  cq->cq.of_evs = true;
  cq->is_short = context->version == MRC_API_VERSION(1, 0, 0);
  cq->events = calloc(cq->cq.size, sizeof *cq->events);
  if (!cq->events) {
    vb_cq_destroy(&cq->cq);
    return NULL;
  }
  pr_lock();
  cq->next = ev_cqs;
  ev_cqs = cq;
  pr_unlock();
  if (tell(MRC_AGENT_WATCH_EVS, NULL, 0) == 0) return (struct mrc_api_cq *)cq;
  const int error = errno;
  destroy_ev_cq(cq);
  return vb_null(error);
}

void vb_ev_cq_push(const struct mrc_agent_ev_event *event) {
  for (struct ev_cq *each = ev_cqs; each; each = each->next) {
    if (each->tail - each->head == each->cq.size) {
      each->dropped++;
      continue;
    }
    each->events[each->tail++ % each->cq.size] =
        (struct mrc_api_ev_event){.profile = event->profile,
                                  .ev = event->ev,
                                  .dropped = each->dropped,
                                  .state = event->state};
    each->dropped = 0;
    vb_cq_tell(&each->cq);
  }
}

EXPORT int mrc_ctl_poll_ev_event(struct mrc_api_cq *cq, int n, struct mrc_api_ev_event *events) {
  struct ev_cq *own = (struct ev_cq *)cq;
  if (!own || !own->cq.of_evs || n < 0 || !events) return -EINVAL;
  const size_t stride = own->is_short ? 48 : sizeof *events;
  int taken = 0;
  pr_lock();
  for (; taken < n && own->head != own->tail; taken++)
    memcpy((char *)events + (size_t)taken * stride, &own->events[own->head++ % own->cq.size],
           stride);
  pr_unlock();
  return taken;
}

/* ---- Probes ---- */

struct probe_frame {
  struct mrc_agent_probe head;
  struct mrc_agent_probed probed[MAX_PROBES];
};

EXPORT int mrc_ctl_ep_batch_send_wait(struct mrc_api_context *context, uint8_t traffic_class,
                                      int op, struct mrc_api_request *requests, int n_requests,
                                      uint32_t timeout_ns, struct mrc_api_answer *answers,
                                      int *n_answers) {
  (void)traffic_class; /* probes are in the class of all control packets */
  if (!context || !requests || !answers || !n_answers || n_requests < 1 ||
      n_requests > MAX_PROBES || timeout_ns == 0)
    return vb_fail(EINVAL);
  *n_answers = 0;
  if (op != MRC_API_PROBE) {
    pr_say("the states of ports are told to peers by mrc itself");
    return vb_fail(EOPNOTSUPP);
  }
  struct probe_frame *frame = calloc(1, sizeof *frame);
  if (!frame) return -1;
  frame->head =
      (struct mrc_agent_probe){.timeout_ns = timeout_ns, .n_probes = (uint32_t)n_requests};
  for (int i = 0; i < n_requests; i++) {
    struct mrc_agent_probed *each = &frame->probed[i];
    each->id = requests[i].id;
    each->format = (uint32_t)requests[i].format;
    each->ev = requests[i].ev;
    memcpy(each->dgid, requests[i].dgid.raw, sizeof each->dgid);
  }
  const size_t bytes = sizeof frame->head + (size_t)n_requests * sizeof frame->probed[0];
  size_t room = sizeof *frame;
  int result = ask(MRC_AGENT_PROBE, frame, bytes, frame, &room);
  if (result == 0) {
    *n_answers = (int)(room / sizeof *answers);
    if (*n_answers > n_requests) *n_answers = n_requests;
    memcpy(answers, frame, (size_t)*n_answers * sizeof *answers);
    if (*n_answers < n_requests) result = vb_fail(ETIMEDOUT);
  }
  free(frame);
  return result;
}
