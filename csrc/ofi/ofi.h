/* SPDX-License-Identifier: Apache-2.0 */
/* What the objects of libfabric have in common: who needs whom, and functions that refuse. */
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdbool.h>

#include "agent/process.h"
#include "msg/messages.h"

/* The tables of libfabric have parameters that this provider does not use. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* A function of such a table that refuses. */
#define OF_REFUSES(type, name, ...) \
  static type name(__VA_ARGS__) { return -FI_ENOSYS; }

/* The beginning of every object: a handle is its address. */
struct of_object {
  union {
    struct fid fid;
    struct fid_fabric fabric;
    struct fid_domain domain;
    struct fid_av av;
    struct fid_cq cq;
    struct fid_eq eq;
    struct fid_ep ep;
    struct fid_mr mr;
    struct fid_cntr counter;
  };
  struct of_object *parent; /* which it was opened in; NULL: of a fabric */
  uint32_t users;           /* objects that need this one: it cannot be closed */
};

/* Allocates an object of so many bytes, which are 0, with its parent; NULL without memory. */
void *of_object_new(size_t bytes, struct fid *parent);
/* Under the lock. 0: it has left its parent, and the caller frees it; -FI_EBUSY: it has users. */
int of_object_leave(struct of_object *object);

int of_no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int of_no_control(struct fid *fid, int command, void *argument);
int of_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
/* Of an object that has nothing else: they close it, and refuse the rest. */
extern struct fi_ops of_plain_ops;

/* ---- Operations ---- */

/* Operations of the endpoint: from their post until the program reads their completion. Under the
   lock. */

struct of_counter;
struct of_cq;

/* As many as csrc/msg takes at one time. */
enum { OF_OPERATIONS = 1 << 14 };

struct of_operation {
  struct of_operation *next;  /* in a CQ, or in the list of free ones */
  struct of_cq *cq;           /* for its completion; NULL: it has none */
  struct of_counter *counter; /* or NULL */
  bool silent;                /* it has one only if it fails */
  void *context;              /* of the program; NULL if silent */
  void *buffer;               /* of the program; NULL of a PEEK, which puts nothing there */
  void *copy;                 /* of an injected message; or NULL */
  uint64_t cookie;            /* never used twice; its low bits are the place of the operation */
  uint64_t flags;             /* FI_SEND or FI_RECV and FI_TAGGED or FI_MSG; or FI_RMA and FI_READ
                                 or FI_WRITE */
  bool sends;                 /* no receive or PEEK */
  bool multi;                 /* a receive with FI_MULTI_RECV */
  bool claims;                /* PEEK: it takes the message aside */
  bool discards;              /* RECV: nobody wants the content. PEEK: such a RECV follows */
  bool ended;                 /* it waits in its CQ */
  struct mrc_msg_done done;   /* once it has ended */
};

/* NULL: too many are in use. */
struct of_operation *of_operation_new(bool sends);
void of_operation_free(struct of_operation *operation);
/* A copy with the completion of one message of several, for the CQ only. */
struct of_operation *of_operation_note(const struct of_operation *operation);
/* Gives it another cookie: it goes on as another operation of csrc/msg. */
void of_operation_renew(struct of_operation *operation);
/* The operation with this cookie, or NULL. */
struct of_operation *of_operation_at(uint64_t cookie);
/* One that has this context and has not ended, or NULL. */
struct of_operation *of_operation_with(const void *context);
/* Calls a function for each operation that is in use; it may not begin others. */
void of_operation_each(void (*call)(struct of_operation *operation));
/* How many are in use; of these, sends and accesses to memory. */
uint32_t of_operations_running(void);
uint32_t of_operations_sending(void);

/* ---- The table of other endpoints, by address, and what is known of each. Under the lock. ---- */

enum {
  OF_QPS = 256, /* as many peers as csrc/msg has */
  OF_CAUSE_BYTES = MRC_AGENT_TEXT
};

/* This end of a connection. */
struct of_qp {
  uint32_t qpn; /* 0: none yet */
  uint32_t dest_qpn;
  uint32_t number; /* of the peer in csrc/msg */
  struct mrc_msg_inbox inbox;
  uint8_t *resume; /* state for the next agent */
  uint32_t resume_bytes;
  bool connect_sent;
  bool connected; /* READY has come */
  bool exists;    /* in the engine */
  bool leaving;   /* RELEASE was sent */
};

struct of_peer {
  struct mrc_agent_endpoint point;
  uint32_t index; /* its fi_addr_t */
  int error;      /* negative: it has failed */
  bool said;      /* why, on stderr */
  char cause[OF_CAUSE_BYTES];
  struct of_qp qps[2]; /* the second one only if it is this process: messages arrive there */
};

/* The peer with this address, or NULL. */
struct of_peer *of_peer_find(const struct mrc_agent_endpoint *point);
/* The peer with this address, which is made if it is new; NULL without memory. */
struct of_peer *of_peer_of(const struct mrc_agent_endpoint *point);
/* NULL: there is none. */
struct of_peer *of_peer_at(uint64_t index);
/* The peer with this number in csrc/msg, or NULL. */
struct of_peer *of_peer_numbered(uint32_t number);
/* The QP with this number and its peer, or NULL. */
struct of_qp *of_peer_qp(uint32_t qpn, struct of_peer **peer);
/* Calls a function for each QP. */
void of_peer_each_qp(void (*call)(struct of_peer *peer, struct of_qp *qp));

/* ---- Address vectors ---- */

/* Address vectors: an fi_addr_t is the place of an endpoint in its vector, in the order of
   insertion. Vectors name endpoints; the table of peers owns them. */

struct of_peer;

int of_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
               void *context);
/* Under the lock. The peer with this address, or NULL. */
struct of_peer *of_av_peer(const struct fid *av, fi_addr_t address);
/* Under the lock. The address of a peer; FI_ADDR_NOTAVAIL: the program has not inserted it. */
fi_addr_t of_av_address(const struct fid *av, const struct of_peer *peer);

/* ---- The process's endpoint, and its QPs: one to each peer, made when either side first needs it.
 * Under the lock. ---- */

/* Spaces of messages, the same in every process. */
enum { OF_TAGGED_SPACE = 0x6669, OF_UNTAGGED_SPACE };

/* Opens the endpoint. 0; -EBUSY: the process has one; -EAGAIN: the agent has given no number in
   time; -EIO. */
int of_connect_open(void);
/* Its address, once it was opened. */
const struct mrc_agent_endpoint *of_connect_point(void);
/* Closes it when all that was sent has arrived, or after half a second. */
void of_connect_close(void);
/* Prepares a peer for operations, and begins to connect if that was not done. 0, or the error of
   the peer. May give the lock away while it waits for a number. */
int of_connect_use(struct of_peer *peer);
/* Asks to cancel an operation, whose completion comes in any case. */
void of_connect_cancel(struct of_operation *operation);
/* The numbers of a peer in csrc/msg: for sends, and for receives. */
uint32_t of_connect_to(const struct of_peer *peer);
uint32_t of_connect_from(const struct of_peer *peer);

/* ---- What an endpoint reports to: counters, completion queues, event queues. Counters of
 * operations that have ended. ---- */

struct of_counter;

int of_counter_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **counter,
                    void *context);

/* ---- Completion queues ---- */

/* Completion queues: operations that have ended, until the program reads them. */

/* Under the lock. Brings what csrc/msg has ended to the CQs. */
void of_cq_take(void);

int of_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
               void *context);
/* The CQ of a handle. */
struct of_cq *of_cq_of(struct fid *fid);
/* Under the lock. The addresses of senders, or NULL: there is no endpoint. */
void of_cq_name_by(struct of_cq *cq, const struct fid *av);

/* ---- Event queues ---- */

/* Event queues. Nothing here happens in the background, so no event ever enters one: they exist
   for programs that open one for every endpoint. */

int of_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
               void *context);

/* ---- Memory that peers may read or write. Only such memory needs a region: csrc/msg registers
 * what operations of this process use. ---- */

extern struct fi_ops_mr of_mr_ops;

/* Under the lock. Whether there is memory that peers may write. */
bool of_mr_is_written(void);

/* ---- Sends and receives of the endpoint, with and without tags. ---- */

enum { OF_INJECT_BYTES = 4096, OF_PIECES = 4 };

/* One call of a program. */
struct of_call {
  void *buffer;
  size_t bytes;
  const struct iovec *pieces; /* that are sent as one, in place of a buffer; or NULL */
  size_t n_pieces;
  fi_addr_t peer;
  uint64_t tag;    /* READ, WRITE, ATOMIC: address at the peer */
  uint64_t ignore; /* and its key */
  void *context;
  uint64_t data;              /* ATOMIC: enum mrc_msg_atomic */
  uint64_t operand, expected; /* of an ATOMIC; its `buffer` gets the number before, unless NULL */
  uint64_t flags;
  enum mrc_msg_kind kind;
  bool tagged;
  bool injects; /* no completion, not even of a failure */
};

/* The endpoint. */
struct of_ep {
  struct of_object object;
  struct fid *av;
  struct fid *eq; /* or NULL */
  struct of_cq *send_cq;
  struct of_cq *receive_cq;
  struct of_counter *counters[MRC_MSG_READ + 1]; /* of each enum mrc_msg_kind, or NULL */
  uint64_t caps; /* FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_ATOMIC, FI_DIRECTED_RECV, as the program
                    asked */
  size_t least_multi;   /* room that a receive with FI_MULTI_RECV keeps for a message */
  bool selective_sends; /* without FI_COMPLETION there is no completion */
  bool selective_receives;
  uint64_t send_flags; /* default op_flags */
  uint64_t receive_flags;
  bool enabled;
};

extern struct fi_ops_tagged of_tagged_ops;
extern struct fi_ops_msg of_untagged_ops;

ssize_t of_transfer_cancel(struct fid *fid, void *context);

/* ---- Memory of other endpoints ---- */

/* Reads and writes of memory of other endpoints. */

extern struct fi_ops_rma of_rma_ops;

/* Atomic changes of one number in memory of other endpoints. */

extern struct fi_ops_atomic of_atomic_ops;
/* The same question for a domain: fi_query_atomic. */
int of_atomic_query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op,
                    struct fi_atomic_attr *attr, uint64_t flags);
