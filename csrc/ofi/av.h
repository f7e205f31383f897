/* SPDX-License-Identifier: Apache-2.0 */
/* The table of other endpoints, by address, and what is known of each. Under the lock. */
#pragma once

#include <rdma/fi_domain.h>
#include <stdbool.h>

#include "agent/protocol.h"
#include "msg/messages.h"

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
