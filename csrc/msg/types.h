/* SPDX-License-Identifier: Apache-2.0 */
/* What programs post as messages, and what comes back. */
#pragma once

#include "mrc.h"

/* cdef begin */

#define MRC_MSG_ANY 0xFFFFFFFF /* RECV: from any peer */

enum mrc_msg_kind {
  MRC_MSG_SEND,
  MRC_MSG_RECV,
  MRC_MSG_PEEK,  /* finds the message that such a RECV would take now, and leaves it there */
  MRC_MSG_WRITE, /* to memory of a peer, which does not notice */
  MRC_MSG_READ,  /* from memory of a peer */
  MRC_MSG_ATOMIC /* on a number in memory of a peer */
};

/* What an ATOMIC leaves in place of a number, which it combines with its operand: */
enum mrc_msg_atomic {
  MRC_MSG_ADD,
  MRC_MSG_AND,
  MRC_MSG_OR,
  MRC_MSG_XOR,
  MRC_MSG_SWAP,         /* the operand */
  MRC_MSG_COMPARE_SWAP, /* the operand if the number is `least`, or else the number */
  MRC_MSG_LOGICAL_AND,  /* 1 or 0 */
  MRC_MSG_LOGICAL_OR,
  MRC_MSG_LOGICAL_XOR,
  MRC_MSG_MIN, /* of numbers without a sign */
  MRC_MSG_MAX,
  MRC_MSG_SIGNED_MIN,
  MRC_MSG_SIGNED_MAX,
  MRC_MSG_LAST_ATOMIC = MRC_MSG_SIGNED_MAX
};

/* One operation. */
struct mrc_msg_post {
  uint64_t cookie;  /* copied to its completion */
  uint64_t address; /* of memory that stays valid until the completion; ignored for 0 bytes.
                       ATOMIC: the operand */
  uint64_t bytes;   /* SEND, WRITE, READ: length. RECV: room. ATOMIC: of the number, 4 or 8 */
  uint64_t tag;    /* RECV with `claim`: the cookie of its PEEK. WRITE, READ, ATOMIC: address at the
                      peer, of an ATOMIC a multiple of `bytes` */
  uint64_t ignore; /* RECV, PEEK: bits of the tag that do not count; 0: all count. WRITE, READ,
                      ATOMIC: key of the region at the peer */
  uint32_t space;  /* operations of different spaces never match */
  uint32_t peer;   /* number of a peer; RECV, PEEK: or MRC_MSG_ANY */
  uint8_t kind;    /* enum mrc_msg_kind */
  uint8_t exact;   /* RECV, one peer and tag: the sender sends exactly `bytes` */
  uint8_t claim;   /* PEEK: no other receive takes the message. RECV: takes it, and no other */
  uint8_t delivered; /* SEND: ends when the message is at the peer, not when it was copied */
  uint32_t data;  /* SEND: the receiver gets it beside the message. ATOMIC: enum mrc_msg_atomic */
  uint64_t least; /* RECV: takes one message after the other, each with a completion, while so
                     many bytes of room are left; 0: takes one message. No `exact`, `claim` */
};

/* One operation that ended. */
struct mrc_msg_done {
  uint64_t cookie;
  uint64_t bytes; /* of the message: with result 0, and with -EMSGSIZE; otherwise 0 */
  uint64_t tag;   /* of the message; ATOMIC: the number before */
  uint32_t space;
  uint32_t peer;
  int32_t result;  /* 0; -ECANCELED; -EMSGSIZE: no room for the message, or not the length that
                      `exact` promised; -EPROTO: the peer broke the protocol; -ECONNRESET,
                      -ETIMEDOUT: its QP failed; -ENOSPC: no memory region is left for now, here or
                      at the peer; -ENOMSG: PEEK has found none, or what was claimed has gone;
                      -EACCES: READ or ATOMIC may not do that there */
  uint8_t kind;    /* enum mrc_msg_kind */
  uint8_t goes_on; /* RECV with `least`: another completion follows */
  uint8_t reserved[2];
  uint32_t data; /* of the message */
  uint32_t reserved2;
  uint64_t address; /* of the operation's memory; RECV with `least`: where this message is */
};

/* Where a peer may write its frames. */
struct mrc_msg_inbox {
  uint64_t address;
  uint32_t rkey;
  uint32_t max_wimm; /* immediates in flight that its QP accepts */
};

/* Limits of a QP, as in struct mrc_qp_create_attr. */
struct mrc_msg_limits {
  uint32_t sq_depth; /* at least 16 */
  uint32_t max_wimm;
  uint32_t heap_bytes; /* that the peer's messages without a receive may take; 0: 1 MiB */
};

/* The pointer of MRC_COMMAND_MSG_OPEN. */
struct mrc_msg_opening {
  struct mrc_msg_limits limits;
  struct mrc_msg_inbox inbox; /* filled in: for the other side's MRC_COMMAND_MSG_CONNECT */
};

/* Called on the datapath thread for each operation that ended; must be quick, and may post. */
typedef void mrc_msg_sink(void *user, const struct mrc_msg_done *done);

/* cdef end */

/* ---- The configuration and the counters ---- */

/* A peer waits for at most one answer about each of its operations: so many have a place. */
enum { MRC_MSG_MAX_OPERATIONS = 1 << 14 };

/* A peer that has said nothing for so long is asked, so that its loss is noticed. */
#define MRC_MSG_SILENCE_NS 10000000000ull

/* 0 in a field takes the default in brackets. */
struct mrc_msg_config {
  mrc_engine *engine;
  uint64_t seed[2];        /* of keys of memory regions: secret */
  uint32_t max_peers;      /* [256] */
  uint32_t max_operations; /* posted and not done [MRC_MSG_MAX_OPERATIONS, the most] */
  uint32_t heap_bytes;     /* of each peer's messages and requests that nothing matches [1 MiB] */
  uint32_t eager_bytes;    /* [4096]; the same at all hosts, or some exact receives get -EMSGSIZE */
  /* called for each operation that ended; may not call this module */
  void (*done)(void *user, const struct mrc_msg_done *done);
  void *user;
};

struct mrc_msg_counters {
  uint64_t credits_sent; /* immediates that carried nothing else */
  uint64_t stalls;       /* frames that had to wait because the heap was full */
  uint64_t violations;   /* peers that failed because of what they sent */
};
