/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/objects.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_QPN = 3, MOST_QPN = 0xffffff }; /* the others name no connection */

#define GONE_NS 200000000ull /* for what is on its way from a peer that has ended */

/* ---- Which changes of state verbs allow, and with which attributes ---- */

enum {
  INIT_ATTRIBUTES = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
  RTS_ATTRIBUTES = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
      IBV_QP_PATH_MIG_STATE
};

/* Alternate paths and SQD are not served. Everything else is the kernel's table for RC. */
static const struct transition {
  int required;
  int optional;
  bool legal;
} transitions[IBV_QPS_RTS + 1][IBV_QPS_RTS + 1] = {
    [IBV_QPS_RESET][IBV_QPS_INIT] = {.required = INIT_ATTRIBUTES, .legal = true},
    [IBV_QPS_INIT][IBV_QPS_INIT] = {.optional = INIT_ATTRIBUTES, .legal = true},
    [IBV_QPS_INIT][IBV_QPS_RTR] = {.required = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                               IBV_QP_MIN_RNR_TIMER,
                                   .optional = IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS,
                                   .legal = true},
    [IBV_QPS_RTR][IBV_QPS_RTS] = {.required = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                              IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                                  .optional = RTS_ATTRIBUTES,
                                  .legal = true},
    [IBV_QPS_RTS][IBV_QPS_RTS] = {.optional = RTS_ATTRIBUTES, .legal = true},
};

/* Any state may become RESET or ERR, without further attributes. */
static struct transition transition_of(enum ibv_qp_state from, enum ibv_qp_state to) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return (struct transition){.legal = true};
  if (from > IBV_QPS_RTS || to > IBV_QPS_RTS) return (struct transition){0};
  return transitions[from][to];
}

/* What a transition may require. */
#define NAMED(attribute) [__builtin_ctz(attribute)] = #attribute
static const char *const names[] = {
    NAMED(IBV_QP_PKEY_INDEX),       NAMED(IBV_QP_PORT),
    NAMED(IBV_QP_ACCESS_FLAGS),     NAMED(IBV_QP_AV),
    NAMED(IBV_QP_PATH_MTU),         NAMED(IBV_QP_DEST_QPN),
    NAMED(IBV_QP_RQ_PSN),           NAMED(IBV_QP_SQ_PSN),
    NAMED(IBV_QP_TIMEOUT),          NAMED(IBV_QP_RETRY_CNT),
    NAMED(IBV_QP_RNR_RETRY),        NAMED(IBV_QP_MIN_RNR_TIMER),
    NAMED(IBV_QP_MAX_QP_RD_ATOMIC), NAMED(IBV_QP_MAX_DEST_RD_ATOMIC)};
#undef NAMED

static int check_transition(enum ibv_qp_state from, enum ibv_qp_state to, int mask) {
  static const char *const states[] = {"RESET", "INIT", "RTR", "RTS"};
  const struct transition found = transition_of(from, to);
  const int missing = found.required & ~mask;
  const int more = mask & ~(found.required | found.optional | IBV_QP_STATE);
  if (!found.legal) return EINVAL;
  if (missing != 0)
    PR_SAY_ONCE("a QP does not go from %s to %s: the mask of ibv_modify_qp lacks %s", states[from],
                states[to], names[__builtin_ctz((unsigned)missing)]);
  else if (more != 0)
    PR_SAY_ONCE(
        "a QP in state %d does not go to %d: the mask of ibv_modify_qp has 0x%x, which no"
        " RC QP takes there",
        from, to, more);
  return missing || more ? EINVAL : 0;
}

/* ---- Create ---- */

static int check_cap(const struct ibv_qp_init_attr *attr) {
  const struct ibv_qp_cap *cap = &attr->cap;
  if (attr->qp_type != IBV_QPT_RC) {
    PR_SAY_ONCE("a QP of type %d is refused: QPs of MRC are of type RC (%d)", attr->qp_type,
                IBV_QPT_RC);
    return EOPNOTSUPP;
  }
  if (attr->srq && !vb_rc_is_on()) return EOPNOTSUPP; /* not ours */
  if (vb_objects.n_qps >= VB_MAX_QPS) return ENOMEM;
  if (!attr->send_cq || !attr->recv_cq) return EINVAL;
  if (vb_cq_of(attr->send_cq)->of_evs || vb_cq_of(attr->recv_cq)->of_evs) return EINVAL;
  if (cap->max_send_wr > VB_MAX_SEND_WR || cap->max_recv_wr > VB_MAX_SEND_WR) return EINVAL;
  if (cap->max_send_sge > VB_MAX_SGE || cap->max_recv_sge > VB_MAX_SGE) return EINVAL;
  return cap->max_inline_data > VB_INLINE_BYTES ? EINVAL : 0;
}

_Static_assert(VB_MAX_SGE * sizeof(struct ibv_sge) <= VB_INLINE_BYTES, "there is that room");

static int allocate(struct vb_qp *qp) {
  qp->sq_size = mrc_ceil_pow2(qp->cap.max_send_wr);
  qp->sq = calloc(qp->sq_size, sizeof *qp->sq);
  qp->waiting = calloc(qp->sq_size, sizeof *qp->waiting);
  if (qp->emulated)
    qp->sq_sges = calloc((size_t)qp->sq_size * qp->cap.max_send_sge, sizeof *qp->sq_sges);
  if (qp->cap.max_inline_data > 0) qp->inlined = calloc(qp->sq_size, VB_INLINE_BYTES);
  const bool complete = qp->sq && qp->waiting && (qp->sq_sges || !qp->emulated) &&
                        (qp->inlined || qp->cap.max_inline_data == 0);
  if (!complete) return ENOMEM;
  return vb_receives_init(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge, qp->emulated);
}

static void free_qp(struct vb_qp *qp) {
  for (uint32_t i = 0; qp->sq && i < qp->sq_size; i++)
    free(qp->sq[i].gathered);
  free(qp->sq);
  free(qp->waiting);
  free(qp->inlined);
  free(qp->sq_sges);
  vb_receives_free(&qp->rq);
  free(qp->held);
  free(qp->resume);
  free(qp->list);
  free(qp->list_sges);
  free(qp->list_inlined);
  free(qp);
}

struct ibv_qp *vb_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  if (pr_process.forked) return vb_null(EIO);
  pr_lock();
  int error = vb_mr_register_own();
  if (error == 0) error = check_cap(attr);
  struct vb_qp *qp = error == 0 ? calloc(1, sizeof *qp) : NULL;
  if (error == 0 && !qp) error = ENOMEM;
  if (error == 0) {
    qp->cap = attr->cap;
    if (qp->cap.max_send_sge == 0) qp->cap.max_send_sge = 1;
    qp->emulated = vb_rc_is_on();
    /* NICs have room for inline data where SGEs would be, and programs for RC rely on it. */
    const uint32_t room = qp->cap.max_send_sge * (uint32_t)sizeof(struct ibv_sge);
    if (qp->emulated && qp->cap.max_inline_data < room) qp->cap.max_inline_data = room;
    qp->srq = (struct vb_srq *)attr->srq;
    error = allocate(qp);
  }
  const uint32_t number = error == 0 ? pr_number(true) : 0;
  if (error == 0 && number == 0) {
    PR_SAY_ONCE("no QP: the agent of this host has given no number for it: does it run?");
    error = EAGAIN;
  }
  if (error != 0) {
    pr_unlock();
    if (qp) free_qp(qp);
    return vb_null(error);
  }
  attr->cap = qp->cap;
  qp->signal_all = attr->sq_sig_all;
  qp->ibv.qp = (struct ibv_qp){.context = pd->context,
                               .qp_context = attr->qp_context,
                               .pd = pd,
                               .send_cq = attr->send_cq,
                               .recv_cq = attr->recv_cq,
                               .srq = attr->srq,
                               .handle = number,
                               .qp_num = number,
                               .state = IBV_QPS_RESET,
                               .qp_type = IBV_QPT_RC};
  pthread_mutex_init(&qp->ibv.qp.mutex, NULL);
  pthread_cond_init(&qp->ibv.qp.cond, NULL);
  vb_cq_of(attr->send_cq)->users++;
  vb_cq_of(attr->recv_cq)->users++;
  ((struct vb_pd *)pd)->users++;
  if (qp->srq) qp->srq->users++;
  vb_process_add_qp(qp);
  pr_unlock();
  return &qp->ibv.qp;
}

/* ---- The agent ---- */

static void send_connect(struct vb_qp *qp) {
  struct mrc_agent_connect connect = qp->connect;
  connect.ready = qp->connected;
  qp->connecting = true;
  pr_tell(MRC_AGENT_CONNECT, 0, 0, &connect, sizeof connect, qp->resume,
          qp->connected ? qp->resume_bytes : 0);
}

static bool has_connection(const struct vb_qp *qp) { return qp->rtr && !qp->leaving; }

/* For the next agent. What the former one had begun to connect begins again. */
void vb_qp_tell_all(void) {
  VB_EACH_QP(qp) {
    if (!has_connection(qp)) continue;
    if (qp->exists && !qp->connected) {
      pr_submit(&(struct mrc_command){
          .op = MRC_COMMAND_QP_DESTROY, .cookie = PR_COOKIE_CALL, .qpn = qp->ibv.qp.qp_num});
      qp->exists = false;
      pr_process.n_exist--;
    }
    send_connect(qp);
  }
}

uint32_t vb_qp_to_resume(void) {
  uint32_t n = 0;
  VB_EACH_QP(qp)
    n += has_connection(qp);
  return n;
}

void vb_qp_ready(const struct mrc_agent_ready *ready, const uint8_t *resume,
                 uint32_t resume_bytes) {
  struct vb_qp *qp = vb_process_qp(ready->qpn);
  if (!qp || !qp->connecting || qp->failed) return;
  qp->ready = *ready;
  qp->connected = true;
  free(qp->resume);
  qp->resume = malloc(resume_bytes ? resume_bytes : 1);
  qp->resume_bytes = qp->resume ? resume_bytes : 0;
  if (qp->resume) memcpy(qp->resume, resume, resume_bytes);
  vb_qp_set_retries(qp);
  if (qp->rc) vb_rc_ready(qp, ready);
  vb_post_waiting(qp);
}

/* Of the agent: the timeout is 67 ms, 7 times, then it doubles 6 times. With n times, a QP fails
   after 67 ms * (6 + 2^(n + 1)). */
enum { TIMEOUT = 16, SHORTEST_TIMEOUT = 14, LINEAR = 7, EXPONENTIAL = 6, MOST_EXPONENTIAL = 24 };

/* A QP of verbs fails after retry_cnt + 1 timeouts of 4.096 us << timeout; a device may take four
   times as long. Never sooner than the agent's: what is late in software is seldom dead. */
static uint32_t exponential_of(const struct ibv_qp_attr *attr) {
  const uint64_t most_ns = 4 * (attr->retry_cnt + 1ull) * (4096ull << (attr->timeout & 31));
  uint32_t n = EXPONENTIAL;
  while (n < MOST_EXPONENTIAL && (1024ull << TIMEOUT) * (6 + (4ull << n)) <= most_ns)
    n++;
  return n;
}

void vb_qp_set_retries(struct vb_qp *qp) {
  const bool of_verbs = qp->attr_set & IBV_QP_TIMEOUT && qp->attr_set & IBV_QP_RETRY_CNT;
  const bool of_api = qp->api_set & (MRC_API_QP_TIMEOUT | MRC_API_QP_RETRY);
  if (!qp->connected || qp->failed || qp->leaving || !(of_verbs || of_api)) return;
  struct mrc_command command = {.op = MRC_COMMAND_QP_SET_RETRIES,
                                .cookie = PR_COOKIE_CALL,
                                .qpn = qp->ibv.qp.qp_num,
                                .value = TIMEOUT,
                                .key = LINEAR,
                                .access = EXPONENTIAL};
  if (of_verbs && qp->attr.timeout > 0) command.access = exponential_of(&qp->attr);
  if (qp->api_set & MRC_API_QP_TIMEOUT && qp->api.timeout > 0)
    command.value = qp->api.timeout > SHORTEST_TIMEOUT ? qp->api.timeout : SHORTEST_TIMEOUT;
  if (qp->api_set & MRC_API_QP_RETRY) {
    command.key = qp->api.retry_linear;
    command.access = qp->api.retry_exponential;
  }
  pr_submit(&command);
}

void vb_qp_failed(uint32_t qpn, const char *reason) {
  struct vb_qp *qp = vb_process_qp(qpn);
  if (!qp || !qp->connecting || qp->failed) return;
  if (qp->connected) vb_complete_fail_engine(qp);
  pr_say("QP 0x%06x: %s", qpn, reason);
  vb_complete_failed(qp, IBV_WC_RETRY_EXC_ERR);
  vb_async_raise_qp(qp, IBV_EVENT_QP_FATAL);
}

void vb_qp_gone(uint32_t qpn, const char *reason) {
  struct vb_qp *qp = vb_process_qp(qpn);
  if (!qp || !qp->connected || qp->failed || qp->gone || qp->leaving) return;
  qp->gone = true;
  qp->gone_ns = pr_now_ns();
  snprintf(qp->gone_reason, sizeof qp->gone_reason, "%s", reason);
  pr_process.n_timed++;
}

/* A QP without outstanding work requests stays as it is: as with a NIC, only a request would find
   out. */
void vb_qp_end_gone(uint64_t now_ns) {
  static struct pr_runs runs;
  const uint64_t since_ns = pr_runs_since(&runs, now_ns);
  if (pr_process.n_timed == 0 || now_ns - since_ns < GONE_NS) return;
  VB_EACH_QP(qp) {
    if (!qp->gone || qp->gone_ns > now_ns - GONE_NS || qp->sq_ended == qp->sq_tail) continue;
    vb_complete_fail_engine(qp);
    if (qp->gone_reason[0])
      pr_say("QP 0x%06x: the peer has ended: %s", qp->ibv.qp.qp_num, qp->gone_reason);
    vb_complete_failed(qp, IBV_WC_RETRY_EXC_ERR);
    vb_async_raise_qp(qp, IBV_EVENT_QP_FATAL);
  }
}

void vb_qp_exists(uint32_t qpn, bool exists) {
  pr_process.n_exist += exists ? 1 : -1;
  struct vb_qp *qp = vb_process_qp(qpn);
  if (!exists) vb_rc_gone(qpn);
  if (!qp) return;
  qp->exists = exists;
  if (exists && qp->failed) vb_complete_fail_engine(qp); /* while the agent was connecting it */
  if (exists || !qp->leaving) return;
  qp->leaving = false;
  if (qp->rtr) send_connect(qp);
}

/* ---- States ---- */

/* Forgets everything of the QP's former life. */
static void reset(struct vb_qp *qp) {
  vb_cq_forget_qp(vb_cq_of(qp->ibv.qp.send_cq), qp);
  qp->sq_head = qp->sq_ended = qp->sq_sent = qp->sq_tail = 0;
  vb_rc_leave(qp, qp->exists);
  qp->rq.head = qp->rq.tail = 0;
  qp->held_head = qp->held_tail = 0;
  qp->attr_set = 0;
  qp->attr = (struct ibv_qp_attr){0};
  qp->connect = (struct mrc_agent_connect){0};
  qp->api = (struct mrc_api_qp_attr){.hint = qp->api.hint};
  qp->api_set = 0;
  if (qp->gone) pr_process.n_timed--;
  qp->rtr = qp->connecting = qp->connected = qp->failed = qp->gone = false;
}

static void release(struct vb_qp *qp, bool forever) {
  const bool told = qp->connecting;
  if (qp->sq_ended != qp->sq_tail)
    vb_complete_fail_engine(qp); /* nothing reads the program's memory */
  if (told || forever)
    pr_tell(MRC_AGENT_RELEASE, (int32_t)qp->ibv.qp.qp_num, forever, NULL, 0, NULL, 0);
  qp->leaving = told && qp->exists;
}

void vb_qp_release(struct vb_qp *qp) {
  release(qp, true);
  qp->rtr = false; /* otherwise it would connect again once the former QP is gone */
}

/* Ends the QP for the program; the agent ends it in the engine. */
static void leave(struct vb_qp *qp) {
  release(qp, true);
  reset(qp);
  vb_cq_forget_qp(vb_cq_of(qp->ibv.qp.recv_cq), qp);
  vb_async_forget(qp->ibv.qp.context, qp);
  vb_cq_of(qp->ibv.qp.send_cq)->users--;
  vb_cq_of(qp->ibv.qp.recv_cq)->users--;
  if (qp->srq) qp->srq->users--;
  ((struct vb_pd *)qp->ibv.qp.pd)->users--;
  vb_process_remove_qp(qp);
}

static const union ibv_gid no_gid;

static bool is_own(const union ibv_gid *gid) {
  for (int i = 0; i < pr_process.n_gids; i++)
    if (memcmp(gid->raw, pr_process.gids[i], sizeof gid->raw) == 0) return true;
  return false;
}

static int to_rtr(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask) {
  const int required = IBV_QP_AV | IBV_QP_DEST_QPN;
  if ((mask & required) != required) return EINVAL;
  if (!attr->ah_attr.is_global) {
    PR_SAY_ONCE(
        "a QP to a LID is refused: only a GID names a peer here; set is_global and grh.dgid");
    return EINVAL;
  }
  if (memcmp(&attr->ah_attr.grh.dgid, &no_gid, sizeof no_gid) == 0) {
    PR_SAY_ONCE("a QP to the GID :: is refused: no host has it");
    return EINVAL;
  }
  if (attr->dest_qp_num < LEAST_QPN || attr->dest_qp_num > MOST_QPN) {
    PR_SAY_ONCE("a QP to QPN 0x%x is refused: no QP has this number", attr->dest_qp_num);
    return EINVAL;
  }
  if (attr->dest_qp_num == qp->ibv.qp.qp_num && is_own(&attr->ah_attr.grh.dgid)) {
    PR_SAY_ONCE("a QP cannot be connected to itself");
    return EOPNOTSUPP;
  }
  struct mrc_agent_connect *connect = &qp->connect;
  *connect = (struct mrc_agent_connect){.qpn = qp->ibv.qp.qp_num,
                                        .dest_qpn = attr->dest_qp_num,
                                        .sq_depth = qp->sq_size,
                                        .max_wimm = connect->max_wimm,
                                        .mpr = connect->mpr,
                                        .ev_profile = qp->connect.ev_profile,
                                        .cc_profile = qp->connect.cc_profile};
  if (qp->emulated) connect->sq_depth += MRC_RC_WRS;
  const int error = qp->emulated ? vb_rc_open(qp) : 0;
  if (error != 0) return error;
  const int sgid =
      attr->ah_attr.grh.sgid_index < pr_process.n_gids ? attr->ah_attr.grh.sgid_index : 0;
  memcpy(connect->sgid, pr_process.gids[sgid], sizeof connect->sgid);
  memcpy(connect->dgid, attr->ah_attr.grh.dgid.raw, sizeof connect->dgid);
  /* A program that wants all that verbs can say gets all that the paths carry. */
  if (mask & IBV_QP_PATH_MTU && attr->path_mtu < vb_process_mtu())
    connect->path_mtu = 128u << attr->path_mtu;
  qp->rtr = true;
  if (!qp->leaving) send_connect(qp);
  return 0;
}

/* Keeps what ibv_query_qp returns. */
static void remember(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask) {
  struct ibv_qp_attr *own = &qp->attr;
  if (mask & IBV_QP_ACCESS_FLAGS) own->qp_access_flags = attr->qp_access_flags;
  if (mask & IBV_QP_PKEY_INDEX) own->pkey_index = attr->pkey_index;
  if (mask & IBV_QP_PORT) own->port_num = attr->port_num;
  if (mask & IBV_QP_QKEY) own->qkey = attr->qkey;
  if (mask & IBV_QP_AV) own->ah_attr = attr->ah_attr;
  if (mask & IBV_QP_PATH_MTU) own->path_mtu = attr->path_mtu;
  if (mask & IBV_QP_TIMEOUT) own->timeout = attr->timeout;
  if (mask & IBV_QP_RETRY_CNT) own->retry_cnt = attr->retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) own->rnr_retry = attr->rnr_retry;
  if (mask & IBV_QP_RQ_PSN) own->rq_psn = attr->rq_psn;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) own->max_rd_atomic = attr->max_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) own->min_rnr_timer = attr->min_rnr_timer;
  if (mask & IBV_QP_SQ_PSN) own->sq_psn = attr->sq_psn;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) own->max_dest_rd_atomic = attr->max_dest_rd_atomic;
  if (mask & IBV_QP_PATH_MIG_STATE) own->path_mig_state = attr->path_mig_state;
  if (mask & IBV_QP_DEST_QPN) own->dest_qp_num = attr->dest_qp_num;
  qp->attr_set |= mask;
}

static enum ibv_qp_state next_state(const struct vb_qp *qp, const struct ibv_qp_attr *attr,
                                    int mask) {
  return mask & IBV_QP_STATE ? attr->qp_state : qp->ibv.qp.state;
}

/* What verbs demand of attributes and their mask, and MRC's interface does not. A positive errno.
 */
static int check(const struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask) {
  if (mask & IBV_QP_PORT && attr->port_num != 1) return EINVAL;
  if (mask & IBV_QP_PKEY_INDEX && attr->pkey_index != 0) return EINVAL;
  if (mask & IBV_QP_PATH_MTU && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_4096))
    return EINVAL;
  return check_transition(qp->ibv.qp.state, next_state(qp, attr, mask), mask);
}

static int modify(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask) {
  const enum ibv_qp_state from = qp->ibv.qp.state;
  const enum ibv_qp_state to = next_state(qp, attr, mask);
  if (mask & IBV_QP_CUR_STATE && attr->cur_qp_state != from) return EINVAL;
  if (mask & IBV_QP_CAP) return EINVAL;
  if (!transition_of(from, to).legal) return EINVAL;
  if (to == IBV_QPS_RTR) {
    const int error = to_rtr(qp, attr, mask);
    if (error != 0) return error;
  }
  if (to == IBV_QPS_RESET && from != IBV_QPS_RESET) {
    release(qp, false);
    reset(qp);
  }
  if (to == IBV_QPS_ERR && !qp->failed) {
    vb_complete_fail_engine(qp);
    vb_complete_failed(qp, IBV_WC_WR_FLUSH_ERR);
  }
  if (!(qp->failed && to != IBV_QPS_RESET)) {
    remember(qp, attr, to == IBV_QPS_RESET ? 0 : mask);
    qp->ibv.qp.state = to;
    vb_qp_set_retries(qp);
  }
  return 0;
}

int vb_qp_modify(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask) {
  const int error = modify(qp, attr, mask);
  pr_engine_turn();
  return error;
}

/* ---- For programs ---- */

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_create_qp, "IBVERBS_1.1", pd, attr);
  return vb_qp_create(pd, attr);
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) {
  if (!vb_owns(qp->context)) PASS(NULL, ibv_qp_to_qp_ex, "IBVERBS_1.6", qp);
  return vb_qp_of(qp)->list ? &vb_qp_of(qp)->ibv.ex : NULL;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
  if (!vb_owns(qp->context)) PASS(ENOSYS, ibv_modify_qp, "IBVERBS_1.1", qp, attr, mask);
  if (pr_process.forked) return EIO;
  pr_lock();
  int error = check(vb_qp_of(qp), attr, mask);
  if (error == 0) error = vb_qp_modify(vb_qp_of(qp), attr, mask);
  pr_unlock();
  return error;
}

EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                        struct ibv_qp_init_attr *init) {
  if (!vb_owns(qp->context)) PASS(ENOSYS, ibv_query_qp, "IBVERBS_1.1", qp, attr, mask, init);
  const struct vb_qp *ours = vb_qp_of(qp);
  pr_lock();
  *attr = ours->attr;
  attr->qp_state = attr->cur_qp_state = qp->state;
  attr->cap = ours->cap;
  *init = (struct ibv_qp_init_attr){.qp_context = qp->qp_context,
                                    .send_cq = qp->send_cq,
                                    .recv_cq = qp->recv_cq,
                                    .srq = qp->srq,
                                    .cap = ours->cap,
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = ours->signal_all};
  pr_unlock();
  return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp) {
  if (!vb_owns(qp->context)) PASS(ENOSYS, ibv_destroy_qp, "IBVERBS_1.1", qp);
  if (pr_process.forked) return EIO;
  struct vb_qp *ours = vb_qp_of(qp);
  pr_lock();
  leave(ours);
  struct mrc_command settle = {.op =
                                   MRC_COMMAND_COUNTERS}; /* none of them: all before it have run */
  pr_engine_call(&settle); /* from now on the engine reads none of its memory */
  pr_unlock();
  pthread_mutex_lock(&qp->mutex);
  while (qp->events_completed != ours->taken_events)
    pthread_cond_wait(&qp->cond, &qp->mutex);
  pthread_mutex_unlock(&qp->mutex);
  free_qp(ours);
  return 0;
}

/* ---- Extended QPs: the list between wr_start and wr_complete ---- */

static struct vb_qp *of_qp_ex(struct ibv_qp_ex *qp) { return (struct vb_qp *)qp; }

static void wr_start(struct ibv_qp_ex *qp) {
  struct vb_qp *ours = of_qp_ex(qp);
  pthread_mutex_lock(&qp->qp_base.mutex);
  ours->list_n = 0;
  ours->list_error = 0;
}

static struct ibv_send_wr *add(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
                               uint64_t remote_addr) {
  struct vb_qp *ours = of_qp_ex(qp);
  if (ours->list_n == ours->list_size) {
    if (ours->list_error == 0) ours->list_error = ENOMEM;
    return NULL;
  }
  struct ibv_send_wr *wr = &ours->list[ours->list_n];
  *wr = (struct ibv_send_wr){.wr_id = qp->wr_id,
                             .sg_list = &ours->list_sges[ours->list_n * ours->cap.max_send_sge],
                             .opcode = opcode,
                             .send_flags = qp->wr_flags,
                             .wr.rdma = {.remote_addr = remote_addr, .rkey = rkey}};
  if (ours->list_n > 0) wr[-1].next = wr;
  ours->list_n++;
  return wr;
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr) {
  add(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
                              __be32 imm_data) {
  struct ibv_send_wr *wr = add(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr);
  if (wr) wr->imm_data = imm_data;
}

static void wr_send(struct ibv_qp_ex *qp) { add(qp, IBV_WR_SEND, 0, 0); }

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data) {
  struct ibv_send_wr *wr = add(qp, IBV_WR_SEND_WITH_IMM, 0, 0);
  if (wr) wr->imm_data = imm_data;
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr) {
  add(qp, IBV_WR_RDMA_READ, rkey, remote_addr);
}

static void add_atomic(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
                       uint64_t remote_addr, uint64_t compare_add, uint64_t swap) {
  struct ibv_send_wr *wr = add(qp, opcode, 0, 0);
  if (!wr) return;
  wr->wr.atomic.remote_addr = remote_addr;
  wr->wr.atomic.rkey = rkey;
  wr->wr.atomic.compare_add = compare_add;
  wr->wr.atomic.swap = swap;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
                              uint64_t compare, uint64_t swap) {
  add_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
                                uint64_t value) {
  add_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, value, 0);
}

static struct ibv_send_wr *newest(struct ibv_qp_ex *qp) {
  struct vb_qp *ours = of_qp_ex(qp);
  return ours->list_n > 0 ? &ours->list[ours->list_n - 1] : NULL;
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *sges) {
  struct vb_qp *ours = of_qp_ex(qp);
  struct ibv_send_wr *wr = newest(qp);
  if (!wr) return;
  if (n > ours->cap.max_send_sge) {
    ours->list_error = EINVAL;
    return;
  }
  if (n > 0) memcpy(wr->sg_list, sges, n * sizeof *sges);
  wr->num_sge = (int)n;
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length) {
  const struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};
  wr_set_sge_list(qp, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t n,
                                    const struct ibv_data_buf *parts) {
  struct vb_qp *ours = of_qp_ex(qp);
  struct ibv_send_wr *wr = newest(qp);
  if (!wr) return;
  uint8_t *data = NULL; /* no byte fits */
  if (ours->list_inlined) data = ours->list_inlined + (size_t)(ours->list_n - 1) * VB_INLINE_BYTES;
  size_t bytes = 0;
  for (size_t i = 0; i < n; i++) {
    if (parts[i].length > ours->cap.max_inline_data - bytes) {
      ours->list_error = EINVAL;
      return;
    }
    if (parts[i].length > 0) memcpy(data + bytes, parts[i].addr, parts[i].length);
    bytes += parts[i].length;
  }
  *wr->sg_list = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)data, .length = (uint32_t)bytes};
  wr->num_sge = 1;
  wr->send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length) {
  wr_set_inline_data_list(qp, 1, &(struct ibv_data_buf){.addr = addr, .length = length});
}

static int wr_complete(struct ibv_qp_ex *qp) {
  struct vb_qp *ours = of_qp_ex(qp);
  struct ibv_send_wr *bad;
  int error = ours->list_error;
  if (error == 0 && ours->list_n > 0) error = vb_post_send(&qp->qp_base, ours->list, &bad);
  pthread_mutex_unlock(&qp->qp_base.mutex);
  return error;
}

static void wr_abort(struct ibv_qp_ex *qp) { pthread_mutex_unlock(&qp->qp_base.mutex); }

static bool allocate_list(struct vb_qp *qp) {
  const uint32_t n = qp->sq_size;
  qp->list = calloc(n, sizeof *qp->list);
  qp->list_sges = calloc((size_t)n * qp->cap.max_send_sge, sizeof *qp->list_sges);
  if (qp->inlined) qp->list_inlined = calloc(n, VB_INLINE_BYTES);
  qp->list_size = n;
  return qp->list && qp->list_sges && (!qp->inlined || qp->list_inlined);
}

struct ibv_qp *vb_qp_create_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr) {
  (void)context;
  const uint32_t known =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  const uint64_t emulated = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                            IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                            IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  const uint64_t served = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          (vb_rc_is_on() ? emulated : 0);
  const bool ex = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const bool flags = attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags != 0;
  const bool sends_others = ex && attr->send_ops_flags & ~served;
  if (sends_others)
    PR_SAY_ONCE(
        "a QP for other work requests than WRITE and WRITE_IMM is refused: MRC has no others;"
        " mrc run --rc emulates some");
  if (attr->comp_mask & ~known || !(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || flags || sends_others)
    return vb_null(EOPNOTSUPP);
  struct ibv_qp_init_attr plain = {.qp_context = attr->qp_context,
                                   .send_cq = attr->send_cq,
                                   .recv_cq = attr->recv_cq,
                                   .srq = attr->srq,
                                   .cap = attr->cap,
                                   .qp_type = attr->qp_type,
                                   .sq_sig_all = attr->sq_sig_all};
  struct ibv_qp *qp = vb_qp_create(attr->pd, &plain);
  if (qp) attr->cap = plain.cap;
  if (!qp || !ex) return qp;
  struct vb_qp *ours = vb_qp_of(qp);
  if (!allocate_list(ours)) {
    ibv_destroy_qp(qp);
    return vb_null(ENOMEM);
  }
  ours->ibv.ex.wr_start = wr_start;
  ours->ibv.ex.wr_complete = wr_complete;
  ours->ibv.ex.wr_abort = wr_abort;
  ours->ibv.ex.wr_rdma_write = wr_rdma_write;
  ours->ibv.ex.wr_rdma_write_imm = wr_rdma_write_imm;
  ours->ibv.ex.wr_send = wr_send;
  ours->ibv.ex.wr_send_imm = wr_send_imm;
  ours->ibv.ex.wr_rdma_read = wr_rdma_read;
  ours->ibv.ex.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  ours->ibv.ex.wr_atomic_fetch_add = wr_atomic_fetch_add;
  ours->ibv.ex.wr_set_sge = wr_set_sge;
  ours->ibv.ex.wr_set_sge_list = wr_set_sge_list;
  ours->ibv.ex.wr_set_inline_data = wr_set_inline_data;
  ours->ibv.ex.wr_set_inline_data_list = wr_set_inline_data_list;
  return qp;
}
