/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects behind the handles of a verbs program. Each begins with the public struct, so that a
 * pointer to one is a pointer to the other. The lock of the process (process.h) guards all fields
 * but those of the public structs that a program reads.
 */
#pragma once

#include <infiniband/verbs.h>

#include "core/base.h"
#include "mrc.h"
#include "program/agent.h"
#include "rc/rc.h"
#include "verbs/api.h"

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
  struct vb_async *next;
  struct ibv_async_event event;
};

struct vb_context {
  struct vb_context *next;
  struct vb_async *first; /* queue */
  struct vb_async *last;
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
  struct vb_cq *first; /* CQs with events, in order */
  struct vb_cq *last;
  uint32_t void_reads; /* of its descriptor: the CQs were destroyed meanwhile */
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
  uint32_t events;         /* told to the channel and not taken */
  uint32_t taken_events;   /* by the program, which acknowledges them */
  uint32_t taken_async;    /* asynchronous ones, likewise */
  struct vb_cq *next_told; /* in the channel */
  uint8_t armed;           /* enum vb_armed */
  bool told;               /* in the channel's queue */
  bool overflow;
  bool of_evs;           /* a struct vb_ev_cq */
  bool short_events;     /* of a program that knows no states in them */
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
  struct vb_qp *waiting; /* QPs that want receives, in the order of their turns */
  struct vb_qp *waiting_last;
  int users; /* QPs */
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
  bool timed;          /* counted in `n_timed`: a request waits for the peer */
  uint64_t starved_ns; /* since when the next message waits for a receive; 0: it does not */
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
  struct vb_rc *rc; /* from RTR on */
  struct vb_qp *next_touched;
  bool touched;   /* something may be sent */
  bool receiving; /* a message is being copied to `receive` */
  struct vb_receive receive;
  struct vb_srq *srq;
  struct vb_qp *next_waiting;
  bool waits;         /* in the SRQ's list */
  uint32_t srq_wants; /* receives */
  uint32_t srq_reserved;
  struct ibv_sge *sq_sges; /* cap.max_send_sge for each place of the send queue */

  /* The connection, by the agent. */
  struct mrc_agent_connect connect;
  struct mrc_agent_ready ready;
  uint8_t *note;
  uint32_t note_bytes;
  bool wanted;     /* the program has moved it to RTR */
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
