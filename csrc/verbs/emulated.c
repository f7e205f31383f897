/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/objects.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STARVED_NS 1000000000ull /* for a host in software to post a receive; not while stopped */
#define PROD_NS 3000000000ull    /* after which a peer that is waited for gets a packet */

enum { WAITS_FOR_EVER = 7 /* rnr_retry */ };

bool vb_rc_is_on(void) {
  const char *value = getenv("MRC_RC");
  const bool on = value && strcmp(value, "1") == 0;
  if (on)
    PR_SAY_ONCE(
        "--rc: SEND, READ, ATOMIC and SRQs are emulated over WRITEs of MRC, which has no others");
  return on;
}

/* ---- Memory ---- */

/* Copies n bytes from or to pieces of memory, from `at` on. False: a piece is not registered. */
static bool copy(const struct vb_qp *qp, const struct ibv_sge *sges, uint32_t n_sges, uint32_t at,
                 uint8_t *to, const uint8_t *from, uint32_t n) {
  uint64_t first = 0;
  for (uint32_t i = 0; i < n_sges && n > 0; first += sges[i++].length) {
    if (at >= first + sges[i].length) continue;
    const uint32_t skipped = (uint32_t)(at - first);
    const uint32_t part = sges[i].length - skipped < n ? sges[i].length - skipped : n;
    void *piece = (void *)(uintptr_t)(sges[i].addr + skipped);
    if (!vb_process_covers(qp->ibv.qp.pd, &sges[i], from ? IBV_ACCESS_LOCAL_WRITE : 0))
      return false;
    if (from) {
      memcpy(piece, from, part);
      from += part;
    } else {
      memcpy(to, piece, part);
      to += part;
    }
    at += part;
    n -= part;
  }
  return n == 0;
}

static struct ibv_sge *sges_of(const struct vb_qp *qp, uint32_t place) {
  return qp->sq_sges + (size_t)(place % qp->sq_size) * qp->cap.max_send_sge;
}

static bool gather(void *user, uint32_t place, uint32_t at, uint8_t *to, uint32_t n) {
  const struct vb_qp *qp = user;
  const struct vb_sent *sent = &qp->sq[place % qp->sq_size];
  if (!sent->inlined) return copy(qp, sges_of(qp, place), sent->n_sges, at, to, NULL, n);
  memcpy(to, qp->inlined + (size_t)(place % qp->sq_size) * VB_INLINE_BYTES + at, n);
  return true;
}

static bool scatter(void *user, uint32_t place, uint32_t at, const uint8_t *from, uint32_t n) {
  const struct vb_qp *qp = user;
  return copy(qp, sges_of(qp, place), qp->sq[place % qp->sq_size].n_sges, at, NULL, from, n);
}

/* ---- Requests ---- */

/* What the engine refuses is told the protocol once this call of it is over. */
static void post(void *user, const struct mrc_wr *wr) {
  struct vb_qp *qp = user;
  const int error = mrc_ctx_post(pr_process.ctx, qp->ibv.qp.qp_num, wr, true);
  if (error == 0 || error == -EPERM || qp->leaving || qp->rc->refusal != 0) return;
  qp->rc->refusal = error;
  qp->rc->refused = (uint32_t)wr->wr_id;
  vb_process_touch(qp);
}

static void done(void *user) { vb_complete_next(user); }

static void fail(struct vb_qp *qp, enum ibv_wc_status status) {
  if (qp->failed) return;
  vb_complete_fail_engine(qp);
  vb_complete_failed(qp, status);
  vb_async_raise_qp(qp, IBV_EVENT_QP_FATAL);
}

static void failed(void *user, enum mrc_wc_status status) { fail(user, vb_status_of(status)); }

/* ---- Messages of the peer ---- */

static void push(struct vb_qp *qp, struct ibv_wc wc, bool solicited) {
  struct vb_cq *cq = vb_cq_of(qp->ibv.qp.recv_cq);
  wc.wr_id = qp->receive.wr_id;
  wc.qp_num = qp->ibv.qp.qp_num;
  wc.src_qp = qp->connect.dest_qpn;
  qp->receiving = false;
  vb_cq_push(cq, &wc, NULL, 0);
  if (solicited) vb_cq_tell(cq);
}

/* The receive that is being filled fails, and the QP with it. The engine's goes on, so that the
   peer is told. */
static enum mrc_wc_status fail_receive(struct vb_qp *qp, enum ibv_wc_status status,
                                       enum mrc_wc_status told) {
  push(qp, (struct ibv_wc){.status = status, .opcode = IBV_WC_RECV}, false);
  vb_complete_failed(qp, IBV_WC_WR_FLUSH_ERR);
  vb_async_raise_qp(qp, IBV_EVENT_QP_REQ_ERR);
  vb_process_touch(qp);
  return told;
}

static void take_receive(struct vb_qp *qp) {
  qp->receive = qp->srq ? vb_srq_take(qp, qp->rc->sges) : vb_receives_take(&qp->rq, qp->rc->sges);
  qp->receiving = true;
}

static enum mrc_wc_status begin(void *user, uint32_t total) {
  struct vb_qp *qp = user;
  uint64_t room = 0;
  take_receive(qp);
  for (uint32_t i = 0; i < qp->receive.n_sges; i++)
    room += qp->rc->sges[i].length;
  if (total <= room) return MRC_WC_SUCCESS;
  return fail_receive(qp, IBV_WC_LOC_LEN_ERR, MRC_WC_REM_INV_REQ_ERR);
}

static enum mrc_wc_status receive(void *user, uint32_t at, const uint8_t *from, uint32_t n) {
  struct vb_qp *qp = user;
  if (copy(qp, qp->rc->sges, qp->receive.n_sges, at, NULL, from, n)) return MRC_WC_SUCCESS;
  return fail_receive(qp, IBV_WC_LOC_PROT_ERR, MRC_WC_REM_OP_ERR);
}

static void received(void *user, const struct mrc_rc_message *message) {
  struct vb_qp *qp = user;
  if (message->written) take_receive(qp);
  const struct ibv_wc wc = {.opcode = message->written ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                            .byte_len = message->bytes,
                            .imm_data = htonl(message->imm),
                            .wc_flags = message->with_imm ? IBV_WC_WITH_IMM : 0};
  push(qp, wc, message->solicited);
}

static void wants(void *user, uint32_t n) {
  struct vb_qp *qp = user;
  if (qp->srq) vb_srq_want(qp, n);
}

/* ---- Questions of the peer ---- */

static bool allows(const struct vb_qp *qp, const struct ibv_sge *sge, unsigned int access) {
  return qp->attr.qp_access_flags & access && vb_process_covers(qp->ibv.qp.pd, sge, (int)access);
}

static bool read_memory(void *user, uint32_t rkey, uint64_t va, uint8_t *to, uint32_t n) {
  const struct ibv_sge sge = {.addr = va, .length = n, .lkey = rkey};
  if (!allows(user, &sge, IBV_ACCESS_REMOTE_READ)) return false;
  memcpy(to, (const void *)(uintptr_t)va, n);
  return true;
}

static enum mrc_wc_status atomic(void *user, const struct mrc_rc_asked *asked, uint64_t *value) {
  uint64_t *at = (uint64_t *)(uintptr_t)asked->va;
  const struct ibv_sge sge = {.addr = asked->va, .length = sizeof *at, .lkey = asked->rkey};
  if (asked->va % sizeof *at != 0) return MRC_WC_REM_INV_REQ_ERR;
  if (!allows(user, &sge, IBV_ACCESS_REMOTE_ATOMIC)) return MRC_WC_REM_ACCESS_ERR;
  *value = asked->value;
  if (asked->operation == MRC_RC_FETCH_ADD)
    *value = __atomic_fetch_add(at, asked->value, __ATOMIC_SEQ_CST);
  else /* it leaves what it has found in `value` */
    __atomic_compare_exchange_n(at, value, asked->swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return MRC_WC_SUCCESS;
}

static const struct mrc_rc_owner owner = {.post = post,
                                          .gather = gather,
                                          .scatter = scatter,
                                          .done = done,
                                          .failed = failed,
                                          .begin = begin,
                                          .receive = receive,
                                          .received = received,
                                          .wants = wants,
                                          .read = read_memory,
                                          .atomic = atomic};

/* ---- Life ---- */

static struct vb_rc *left; /* without a handle; the engine's QPs exist */

static void drop(struct vb_rc *rc) {
  if (rc->inbox_key != 0) vb_mr_remove_inbox(rc->inbox_key);
  if (rc->memory) munmap(rc->memory, 2 * MRC_RC_INBOX_BYTES);
  free(rc->requests);
  free(rc);
}

/* Pages of the boxes are made when they are used. */
static int allocate(struct vb_rc *rc, const struct vb_qp *qp) {
  void *memory = mmap(NULL, 2 * MRC_RC_INBOX_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  rc->memory = memory == MAP_FAILED ? NULL : memory;
  rc->requests = calloc(qp->sq_size, sizeof *rc->requests);
  if (!rc->memory || !rc->requests) return ENOMEM;
  return vb_mr_add_inbox(rc->memory, MRC_RC_INBOX_BYTES, qp->ibv.qp.pd, &rc->inbox_key);
}

int vb_rc_open(struct vb_qp *qp) {
  struct vb_rc *rc = calloc(1, sizeof *rc);
  const int error = rc ? allocate(rc, qp) : ENOMEM;
  if (error != 0) {
    if (rc) drop(rc);
    return error;
  }
  rc->qp = qp;
  rc->qpn = qp->ibv.qp.qp_num;
  const struct mrc_rc_config config = {.owner = &owner,
                                       .user = qp,
                                       .inbox = rc->memory,
                                       .outbox = rc->memory + MRC_RC_INBOX_BYTES,
                                       .outbox_key = vb_objects.own_key,
                                       .requests = rc->requests,
                                       .size = qp->sq_size};
  mrc_rc_init(&rc->rc, &config);
  qp->rc = rc;
  if (!qp->srq) mrc_rc_grant(&rc->rc, vb_receives_n(&qp->rq));
  qp->connect.emulated = 1;
  qp->connect.shared = qp->srq != NULL;
  qp->connect.rkey = rc->inbox_key;
  qp->connect.address = (uint64_t)(uintptr_t)rc->memory;
  return 0;
}

void vb_rc_ready(struct vb_qp *qp, const struct mrc_agent_ready *ready) {
  const uint32_t most = qp->attr.max_rd_atomic;
  const struct mrc_rc_peer peer = {
      .inbox = ready->address,
      .rkey = ready->rkey,
      .most_asking = most > 0 && most < MRC_RC_ANSWERS ? most : MRC_RC_ANSWERS,
      .shared = ready->shared != 0};
  mrc_rc_connect(&qp->rc->rc, &peer);
  vb_process_touch(qp);
}

/* `waits`: a request waits for the peer. */
static void set_timed(struct vb_rc *rc, bool waits, bool starved) {
  const uint64_t now_ns = waits && !rc->timed ? pr_now_ns() : rc->prodded_ns;
  if (rc->timed != waits) pr_process.n_timed += waits ? 1 : -1;
  rc->timed = waits;
  rc->prodded_ns = now_ns;
  if (!starved || rc->starved_ns == 0) rc->starved_ns = starved;
}

void vb_rc_leave(struct vb_qp *qp, bool exists) {
  struct vb_rc *rc = qp->rc;
  if (qp->srq) vb_srq_leave(qp);
  if (!rc) return;
  set_timed(rc, false, false);
  qp->rc = NULL;
  qp->receiving = false;
  if (!exists) {
    drop(rc);
    return;
  }
  rc->qp = NULL;
  rc->next = left;
  left = rc;
}

void vb_rc_gone(uint32_t qpn) {
  struct vb_rc **place = &left;
  while (*place) {
    struct vb_rc *rc = *place;
    if (rc->qpn != qpn) {
      place = &rc->next;
      continue;
    }
    *place = rc->next;
    drop(rc);
  }
}

/* ---- Turns ---- */

void vb_rc_complete(struct vb_qp *qp, const struct mrc_wc *wc) {
  struct mrc_rc *rc = &qp->rc->rc;
  vb_process_touch(qp);
  rc->ended = rc->ended || qp->failed;
  if (wc->opcode == MRC_WC_RECV_IMM) {
    if (mrc_rc_take(rc, wc->imm, wc->bytes)) return;
    pr_say("QP 0x%06x: its peer has broken the protocol of --rc: the QP fails", wc->qpn);
    rc->ended = true;
    failed(qp, MRC_WC_WR_FLUSH_ERR);
    return;
  }
  if (wc->status == MRC_WC_SUCCESS) {
    mrc_rc_sent(rc, wc->wr_id);
    return;
  }
  rc->ended = true;
  failed(qp, wc->status);
}

void vb_rc_receives(struct vb_qp *qp, uint32_t n) {
  if (!qp->rc || n == 0) return;
  mrc_rc_grant(&qp->rc->rc, n);
  vb_process_touch(qp);
}

/* The engine has refused a work request: the WRITE at this place, unless it was for want of room.
 */
static void fail_refused(struct vb_qp *qp) {
  const int error = qp->rc->refusal;
  qp->rc->refusal = 0;
  if (error == -ENOBUFS) {
    PR_SAY_ONCE("QP 0x%06x: too many work requests of this program are outstanding: the QP fails",
                qp->ibv.qp.qp_num);
    qp->rc->rc.ended = true;
    fail(qp, IBV_WC_GENERAL_ERR);
    return;
  }
  mrc_rc_fail(&qp->rc->rc, qp->rc->refused, MRC_WC_LOC_PROT_ERR);
}

void vb_rc_send(struct vb_qp *qp) {
  struct mrc_rc *rc = &qp->rc->rc;
  rc->ended = rc->ended || qp->failed;
  mrc_rc_send(rc);
  if (qp->rc->refusal != 0) fail_refused(qp);
  const bool counts = qp->attr_set & IBV_QP_RNR_RETRY && qp->attr.rnr_retry != WAITS_FOR_EVER;
  bool for_receive;
  const bool waits = mrc_rc_waits(rc, &for_receive);
  set_timed(qp->rc, waits, waits && counts && for_receive);
}

void vb_rc_turned(void) {
  while (!mrc_list_is_empty(&vb_objects.touched)) {
    struct vb_qp *qp = MRC_NODE_OWNER(vb_objects.touched.next, struct vb_qp, touched);
    mrc_node_leave(&qp->touched);
    if (qp->rc) vb_rc_send(qp);
  }
}

void vb_rc_tick(uint64_t now_ns) {
  static uint64_t looked_ns;
  if (pr_process.n_timed == 0) return;
  const uint64_t ran_ns = now_ns - looked_ns < PR_STOP_NS ? now_ns - looked_ns : PR_STOP_NS;
  looked_ns = now_ns;
  VB_EACH_QP(qp) {
    struct vb_rc *rc = qp->rc;
    if (!rc || !rc->timed || qp->failed) continue;
    if (rc->starved_ns != 0 && (rc->starved_ns += ran_ns) > STARVED_NS) {
      rc->rc.ended = true;
      fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
      vb_process_touch(qp);
    } else if (rc->prodded_ns != 0 && now_ns - rc->prodded_ns > PROD_NS) {
      rc->prodded_ns = now_ns;
      mrc_rc_prod(&rc->rc);
    }
  }
}
