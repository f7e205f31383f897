/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects behind the handles of a verbs program. Each begins with the public struct, so that a
 * pointer to one is a pointer to the other. The lock of the process guards all fields
 * but those of the public structs that a program reads.
 */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>

#include "agent/process.h"
#include "agent/protocol.h"
#include "core/base.h"
#include "mrc.h"
#include "verbs/api.h"
#include "verbs/rc.h"

enum {
  VB_INLINE_BYTES = 256,         /* most inline data of a work request */
  VB_MAX_SGE = 16,               /* pieces of memory of a work request */
  VB_MAX_QPS = 4096,             /* of a process: its engine has no more */
  VB_MAX_SEND_WR = 16384,        /* work requests of a QP */
  VB_MAX_SRQ_WR = 65536,         /* receives of an SRQ */
  VB_MAX_CQE = 1 << 22,          /* completions of a CQ */
  VB_MAX_HELD_IMMEDIATES = 65536 /* of a QP whose program posts no receives */
};

/* An asynchronous event that a program has not taken. */
struct vb_async {
  struct mrc_node node; /* in the context */
  struct ibv_async_event event;
};

struct vb_context {
  struct vb_context *next;
  struct mrc_node asyncs;     /* queue */
  uint32_t void_reads;        /* of its descriptor: the objects were destroyed meanwhile */
  struct verbs_context verbs; /* last but for nothing: programs see its end */
};

struct vb_pd {
  struct ibv_pd pd;
  uint32_t number; /* of its MRs' and QPs' domain in the engine */
  int users;       /* MRs and QPs */
};

struct vb_mr {
  struct ibv_mr mr;
  int access;         /* IBV_ACCESS_* */
  struct vb_mr *next; /* in its place of the process's table */
};

struct vb_channel {
  struct ibv_comp_channel channel;
  struct mrc_node told; /* CQs with events, in order */
  uint32_t void_reads;  /* of its descriptor: the CQs were destroyed meanwhile */
};

enum vb_armed { VB_NOT_ARMED, VB_ARMED, VB_ARMED_SOLICITED };

struct vb_cq {
  union {
    struct ibv_cq cq;
    struct ibv_cq_ex ex;
  } ibv;
  struct vb_completion *ring;
  uint32_t size;
  uint32_t head; /* free-running */
  uint32_t tail;
  uint32_t events;       /* told to the channel and not taken */
  uint32_t taken_events; /* by the program, which acknowledges them */
  uint32_t taken_async;  /* asynchronous ones, likewise */
  struct mrc_node told;  /* in the channel's queue */
  uint8_t armed;         /* enum vb_armed */
  bool overflow;
  bool of_evs;           /* of the changes of EVs' states (mrc_api.c) */
  int users;             /* QPs */
  struct ibv_wc current; /* of start_poll */
};

/* A posted receive. */
struct vb_receive {
  uint64_t wr_id;
  uint32_t n_sges;
};

/* A receive queue: of a QP, or shared. */
struct vb_receives {
  struct vb_receive *ring;
  struct ibv_sge *sges; /* `max_sge` for each place; NULL: messages only have immediates */
  uint32_t max_sge;
  uint32_t size; /* a power of two: places are numbers modulo 2^32 */
  uint32_t most; /* that the program may post */
  uint32_t head; /* free-running */
  uint32_t tail;
};

/* A shared receive queue. Each QP reserves receives for messages that its peer has posted. */
struct vb_srq {
  struct ibv_srq srq;
  struct vb_receives rq;
  uint32_t reserved;
  uint32_t limit;        /* an event is due when fewer are left; 0: none */
  uint32_t taken_events; /* that the program acknowledges */
  struct mrc_node turns; /* QPs that want receives, in the order of their turns */
  int users;             /* QPs */
};

/* Emulated RC of a QP. It outlives the QP's handle until the engine's QP is destroyed. */
struct vb_rc {
  struct mrc_rc rc;
  struct vb_qp *qp;   /* NULL: the handle is gone, or has a newer one */
  struct vb_rc *next; /* of those without a handle */
  uint8_t *memory;    /* of the inbox, then of the outbox */
  struct mrc_rc_request *requests;
  uint32_t qpn;
  uint32_t inbox_key;
  int refusal;         /* of the engine, which the protocol is still to be told; 0: none */
  uint32_t refused;    /* its place */
  bool timed;          /* counted in `n_timed`: a request waits for the peer */
  uint64_t starved_ns; /* how long the next message has waited for a receive; 0: it does not */
  uint64_t prodded_ns; /* when the peer was last asked whether it is there */
  struct ibv_sge sges[VB_MAX_SGE]; /* of the receive that a message is being copied to */
};

/* A posted work request, until the program polls its completion or a later one's. */
struct vb_sent {
  uint64_t wr_id;
  uint32_t bytes;
  uint8_t opcode; /* enum ibv_wc_opcode */
  bool signaled;
  bool done;    /* the engine does not have it: it ends when it is the oldest */
  bool refused; /* its memory is not registered */
  bool inlined;
  uint8_t n_sges;    /* with emulated RC */
  uint8_t *gathered; /* copy of its pieces of memory, until the engine has sent it; or NULL */
};

struct vb_immediate {
  uint32_t imm; /* host order */
  uint32_t bytes;
};

struct vb_qp {
  union {
    struct ibv_qp qp;
    struct ibv_qp_ex ex;
  } ibv;
  struct vb_qp *next;      /* in its place of the process's table */
  struct ibv_qp_attr attr; /* as the program has set them */
  int attr_set;            /* mask */
  struct ibv_qp_cap cap;
  bool signal_all;

  /* Send queue: head <= ended <= sent <= tail, free-running. Places below `head` are free; those
     below `ended` have completed in the engine; those below `sent` are the engine's. */
  struct vb_sent *sq;
  struct mrc_wr *waiting; /* by place, until the QP is connected */
  uint8_t *inlined;       /* VB_INLINE_BYTES for each place, or NULL */
  uint32_t sq_size;
  uint32_t sq_head;
  uint32_t sq_ended;
  uint32_t sq_sent;
  uint32_t sq_tail;

  /* Receive queue; and immediates that wait for a receive. */
  struct vb_receives rq;
  struct vb_immediate *held;
  uint32_t held_size;
  uint32_t held_head;
  uint32_t held_tail;

  /* Emulated RC (rc.h). */
  bool emulated;
  struct vb_rc *rc;        /* from RTR on */
  struct mrc_node touched; /* in `touched` of the process: something may be sent */
  bool receiving;          /* a message is being copied to `receive` */
  struct vb_receive receive;
  struct vb_srq *srq;
  struct mrc_node turn; /* in the SRQ's list */
  uint32_t srq_wants;   /* receives */
  uint32_t srq_reserved;
  struct ibv_sge *sq_sges; /* cap.max_send_sge for each place of the send queue */

  /* The connection, by the agent. */
  struct mrc_agent_connect connect;
  struct mrc_agent_ready ready;
  uint8_t *resume; /* state for the next agent */
  uint32_t resume_bytes;
  bool rtr;        /* the program has moved it to RTR */
  bool connecting; /* CONNECT was sent */
  bool connected;  /* READY has come */
  bool exists;     /* in the engine */
  bool leaving;    /* RELEASE was sent; what exists in the engine is the former QP */
  bool failed;     /* in ERROR, flushed */
  bool gone;       /* the peer has ended */
  uint64_t gone_ns;
  char gone_reason[MRC_AGENT_TEXT]; /* "": the peer has named none */
  uint32_t taken_events;            /* asynchronous ones that the program acknowledges */

  struct mrc_api_qp_attr api; /* as the program has set them through MRC's C interface */
  unsigned int api_set;       /* mask */

  /* The list that wr_start begins. */
  struct ibv_send_wr *list;
  struct ibv_sge *list_sges;
  uint8_t *list_inlined;
  uint32_t list_size;
  uint32_t list_n;
  int list_error;
};

static inline struct vb_context *vb_context_of(struct ibv_context *context) {
  return (struct vb_context *)((char *)context - offsetof(struct vb_context, verbs) -
                               offsetof(struct verbs_context, context));
}

static inline uint32_t vb_domain_of(const struct ibv_pd *pd) {
  return ((const struct vb_pd *)pd)->number;
}

static inline struct vb_cq *vb_cq_of(struct ibv_cq *cq) { return (struct vb_cq *)cq; }
static inline struct vb_qp *vb_qp_of(struct ibv_qp *qp) { return (struct vb_qp *)qp; }

/* ---- The tables of a process, under its lock ---- */

enum { VB_QP_PLACES = 1024, VB_MR_PLACES = 1024 };

struct vb_objects {
  struct vb_context *contexts;
  struct vb_qp *qps[VB_QP_PLACES];
  struct vb_mr *mrs[VB_MR_PLACES];
  struct mrc_node touched; /* QPs with emulated RC that may have something to send */
  uint32_t own_key;        /* of the library's own memory */
  uint32_t n_pds;          /* ever made */
  uint32_t n_qps;          /* handles */
};

extern struct vb_objects vb_objects;

/* The handle with this QPN, or NULL. */
struct vb_qp *vb_process_qp(uint32_t qpn);
void vb_process_add_qp(struct vb_qp *qp);
void vb_process_remove_qp(struct vb_qp *qp);
/* For each QP; the body may not remove QPs, nor break. */
#define VB_EACH_QP(qp)                                       \
  for (uint32_t place_ = 0; place_ < VB_QP_PLACES; place_++) \
    for (struct vb_qp *qp = vb_objects.qps[place_]; qp; qp = qp->next)

/* Emulated RC of the QP sends what it can after this turn. */
static inline void vb_process_touch(struct vb_qp *qp) {
  mrc_list_append(&vb_objects.touched, &qp->touched);
}

/* Whether a region of this PD covers a piece of memory, and has these rights (IBV_ACCESS_*). */
bool vb_process_covers(const struct ibv_pd *pd, const struct ibv_sge *sge, int access);

/* The path MTU of the smallest plane, as verbs can say it. */
enum ibv_mtu vb_process_mtu(void);

/* Takes one event back from an eventfd that counts them. False: another thread has just read it and
   waits for the lock. */
bool vb_take_back(int fd);

/* ---- The system's own libibverbs, for objects of devices that are not ours ---- */

/* The function of this name and version, or NULL when the system has no libibverbs with it. */
void *vb_next_function(const char *name, const char *version);

/* Returns what the system's library answers, for an object that is not ours; without that library
   `failed`, and errno. */
#define PASS(failed, name, version, ...)                       \
  do {                                                         \
    __typeof__(name) *next = vb_next_function(#name, version); \
    if (next) return next(__VA_ARGS__);                        \
    errno = ENOSYS;                                            \
    return failed;                                             \
  } while (0)

/* The same of a function without a result. */
#define PASS_VOID(name, version, ...)                          \
  do {                                                         \
    __typeof__(name) *next = vb_next_function(#name, version); \
    if (next) next(__VA_ARGS__);                               \
  } while (0)

/* ---- Asynchronous events, of the contexts of a process ---- */

/* Under the lock. Raises an event in one context. */
void vb_async_raise(struct ibv_context *context, struct ibv_async_event event);
/* Under the lock. An event of a QP. */
void vb_async_raise_qp(struct vb_qp *qp, enum ibv_event_type type);
/* Under the lock. An event of the device, for every context. */
void vb_async_raise_all(enum ibv_event_type type, int port);
/* Under the lock. Events of an object that is destroyed, if the program has not taken them. */
void vb_async_forget(struct ibv_context *context, const void *element);

/* ---- Memory regions, under the lock ---- */

/* Before vb_objects.own_key is used: the key of memory that the library itself sends from. A
   positive errno. */
int vb_mr_register_own(void);

/* Lets the peers of this PD's QPs write to memory of the library. A positive errno. */
int vb_mr_add_inbox(void *address, size_t bytes, const struct ibv_pd *pd, uint32_t *key);
/* Ends that before the engine receives anything more. */
void vb_mr_remove_inbox(uint32_t key);

/* ---- The engine's words in those of verbs ---- */

static inline enum ibv_wc_status vb_status_of(uint32_t status) {
  switch ((enum mrc_wc_status)status) {
    case MRC_WC_SUCCESS:
      return IBV_WC_SUCCESS;
    case MRC_WC_LOC_PROT_ERR:
      return IBV_WC_LOC_PROT_ERR;
    case MRC_WC_WR_FLUSH_ERR:
      return IBV_WC_WR_FLUSH_ERR;
    case MRC_WC_REM_ACCESS_ERR:
      return IBV_WC_REM_ACCESS_ERR;
    case MRC_WC_REM_INV_REQ_ERR:
      return IBV_WC_REM_INV_REQ_ERR;
    case MRC_WC_REM_OP_ERR:
      return IBV_WC_REM_OP_ERR;
    case MRC_WC_RETRY_EXC_ERR:
      return IBV_WC_RETRY_EXC_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

/* ---- Completion queues and their channels, without the engine. Under the lock of the process.
 * ---- */

/* Tells the channel, if the program waits for it: after the completion of a message whose sender
   asks for an event. */
void vb_cq_tell(struct vb_cq *cq);
/* `place` is the first place of the send queue that is free once the program has the completion.
   It frees none if `qp` is NULL. */
void vb_cq_push(struct vb_cq *cq, const struct ibv_wc *wc, struct vb_qp *qp, uint32_t place);
void vb_cq_forget_qp(struct vb_cq *cq, const struct vb_qp *qp);
/* Without the lock. With `cqe` places; -1 and errno. */
int vb_cq_init(struct vb_cq *cq, struct ibv_context *context, int cqe, void *cq_context,
               struct ibv_comp_channel *channel);
/* Without the lock. Waits until the program has acknowledged the events of the CQ. EBUSY: QPs use
   it. */
int vb_cq_destroy(struct vb_cq *cq);

/* ---- MRC's C interface. Under the lock. ---- */

/* The answer to a request of it; the agent has gone, so that none comes. */
void vb_api_answer(const struct pr_frame *frame);
void vb_api_agent_gone(void);
/* Puts an event into each queue of the changes of EVs' states; a full queue counts it instead. */
void vb_ev_cq_push(const struct mrc_agent_ev_event *event);

/* ---- The table of a context; each takes the lock ---- */

int vb_cq_poll(struct ibv_cq *cq, int n, struct ibv_wc *wcs);
int vb_cq_req_notify(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *vb_cq_create_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

/* ---- The work queues of QPs: receives, shared ones too, and how what was posted completes. Under
 * the lock of the process. ---- */

/* `with_memory`: messages are copied to the memory of receives. 0 or ENOMEM. */
int vb_receives_init(struct vb_receives *receives, uint32_t most, uint32_t max_sge,
                     bool with_memory);
void vb_receives_free(struct vb_receives *receives);
static inline uint32_t vb_receives_n(const struct vb_receives *receives) {
  return receives->tail - receives->head;
}
/* Posts a list. 0, or a positive errno and in `bad` the first that was not posted. */
int vb_receives_post(struct vb_receives *receives, struct ibv_recv_wr *list,
                     struct ibv_recv_wr **bad);
/* Takes the oldest one, which must exist; copies its memory to `sges`, unless that is NULL. */
struct vb_receive vb_receives_take(struct vb_receives *receives, struct ibv_sge *sges);

/* ---- Shared receive queues, of QPs with emulated RC ---- */

/* A peer is granted a receive only for a message that it has posted, so none lies idle at a QP
   whose peer has nothing to send. */

/* The peer of a QP has messages for so many receives more than it was granted. */
void vb_srq_want(struct vb_qp *qp, uint32_t n);
/* Takes a receive that was granted. */
struct vb_receive vb_srq_take(struct vb_qp *qp, struct ibv_sge *sges);
/* The QP has failed or is reset: what it has reserved is free for others. */
void vb_srq_leave(struct vb_qp *qp);

/* ---- From completions of the engine to those of verbs ---- */

/* A completion of the engine. */
void vb_complete(const struct mrc_wc *wc);
/* Completes work requests that the engine never sees, if it is their turn. */
void vb_complete_done(struct vb_qp *qp);
/* The oldest outstanding work request is done. */
void vb_complete_next(struct vb_qp *qp);
/* Moves the QP to ERROR in the engine, too. */
void vb_complete_fail_engine(struct vb_qp *qp);
/* The QP is in ERROR: the oldest outstanding work request completes with `status`, the others are
   flushed. */
void vb_complete_failed(struct vb_qp *qp, enum ibv_wc_status status);
/* A receive was posted. */
void vb_complete_held(struct vb_qp *qp);
/* The engine's event: a QP went to ERROR. */
void vb_complete_error(uint32_t qpn, uint32_t status);

/* ---- QPs: their states as a program sees them, and what the agent is told. Under the lock. ----
 */

/* A QP with a number of the agent's; NULL and errno. Sets the `cap` that it has. Both take the
   lock. */
struct ibv_qp *vb_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *vb_qp_create_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
/* Without the checks of verbs' masks. A positive errno. */
int vb_qp_modify(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask);
/* Tells the engine how long to try, as the program has asked. */
void vb_qp_set_retries(struct vb_qp *qp);
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

/* ---- Posted work requests: checked, numbered, and given to the engine. ---- */

/* Of the table of a context; each takes the lock. 0, or a positive errno and in `bad` the first
   that was not posted. */
int vb_post_send(struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad);
int vb_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);

/* Under the lock. The QP is connected: posts what has waited for that. */
void vb_post_waiting(struct vb_qp *qp);

/* ---- Emulated RC (rc.h) of a program's QPs: their memory, receives and completions. Under the
 * lock. ---- */

/* Whether the program was started with `mrc run --rc`. The first time it says so on stderr. */
bool vb_rc_is_on(void);
/* The QP moves to RTR: makes its inbox, and tells `qp->connect` where it is. A positive errno. */
int vb_rc_open(struct vb_qp *qp);
/* Both ends are in RTS. */
void vb_rc_ready(struct vb_qp *qp, const struct mrc_agent_ready *ready);
/* The handle is reset or destroyed. `exists`: the engine may still send from its memory. */
void vb_rc_leave(struct vb_qp *qp, bool exists);
/* The engine's QP is destroyed. */
void vb_rc_gone(uint32_t qpn);

/* A completion of the engine. */
void vb_rc_complete(struct vb_qp *qp, const struct mrc_wc *wc);
/* The program has posted n receives. */
void vb_rc_receives(struct vb_qp *qp, uint32_t n);
/* Sends what can be sent. */
void vb_rc_send(struct vb_qp *qp);
/* After a turn of the engine: the same for all QPs that were touched. */
void vb_rc_turned(void);
/* Fails QPs that have waited for a receive of the peer for longer than the program allows. Others
   that wait for their peer send it something from time to time. */
void vb_rc_tick(uint64_t now_ns);

/* ---- The device of this host ---- */

extern struct ibv_device *const vb_own_device;

/* What functions of verbs return with errno: NULL, or -1. */
static inline void *vb_null(int error) {
  errno = error;
  return NULL;
}
static inline int vb_fail(int error) {
  errno = error;
  return -1;
}

/* Whether an object's context is of our device. */
static inline bool vb_owns(const struct ibv_context *context) {
  return context->device == vb_own_device;
}
