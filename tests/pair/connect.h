/* SPDX-License-Identifier: Apache-2.0 */
/* QPs between the hosts of a pair: connects them over all planes and paths, in place of the OOB
   exchange, and posts work requests, which the auditors check. */
#pragma once

#include "pair/pair.h"

#define MRC_PAIR_MAX_LIST 64 /* work requests of mrc_pair_write_list */

/* Zeros take the default in brackets. */
struct mrc_pair_qp_config {
  int from;                     /* host [0] */
  int to;                       /* host [1] */
  uint64_t memory_bytes;        /* of each end, for all writes of a test */
  uint32_t path_mtu;            /* [1024] */
  uint32_t mpr;                 /* [1024] */
  uint32_t sq_depth;            /* [128] */
  uint32_t max_wimm;            /* [32] */
  uint32_t spray;               /* [grain policy] */
  uint32_t ev_active_per_plane; /* [all] */
  uint32_t sq_psn;              /* of `from`; the peer's is its complement */
  uint32_t integrity;           /* enum mrc_integrity */
  uint32_t dynamic_mpr;         /* 1: the window may change */
  uint32_t sack_times;          /* 1: SACKs carry their send time */
  uint32_t service_times;       /* 1: answers to EV probes add their wait */
  uint32_t domain;
  uint16_t nat_sport;   /* first guess of `to`, if `from` is behind a NAT; one plane, one path */
  uint8_t timeout;      /* [10: 1.05 ms] */
  uint8_t retry_linear; /* no default */
  uint8_t retry_exp;
  uint8_t seal;         /* enum mrc_seal_mode */
  uint8_t cc;           /* enum mrc_cc_kind */
  uint8_t plane_shares; /* enum mrc_plane_shares */
  bool probe;           /* every EV before RTS */
  struct mrc_cc_profile cc_profile;
};

/* Returns the end at `from`. Both ends are in RTS. With `probe` they have probed their EVs in RTR,
   as in the real exchange. */
int mrc_pair_connect(struct mrc_pair *pair, const struct mrc_pair_qp_config *config);
/* Creates both ends and leaves them in INIT. */
int mrc_pair_create_qp(struct mrc_pair *pair, const struct mrc_pair_qp_config *config);
/* Moves one end to a state; the transition must be legal. */
void mrc_pair_modify(struct mrc_pair *pair, int end, uint32_t state);
void mrc_pair_destroy_qp(struct mrc_pair *pair, int end);

/* Posts a write of the next `bytes` of the end's memory. Returns the result of mrc_qp_post. */
int mrc_pair_write(struct mrc_pair *pair, int end, uint32_t bytes);
int mrc_pair_write_imm(struct mrc_pair *pair, int end, uint32_t bytes);
/* The same for a write, or with `imm` a WriteIMM, each of whose packets leaves twice. */
int mrc_pair_write_twice(struct mrc_pair *pair, int end, uint32_t bytes, bool imm);
/* Posts n writes, all but the last one unsignaled. */
int mrc_pair_write_list(struct mrc_pair *pair, int end, const uint32_t *bytes, uint32_t n);
/* Runs until all WRs of all ends are completed; false if some are not after `budget_ns`. */
bool mrc_pair_finish(struct mrc_pair *pair, uint64_t budget_ns);

/* The EVs of the late planes join an end in RTR or RTS: they are UNPROVEN. */
void mrc_pair_join(struct mrc_pair *pair, int end);
/* The controller denies an EV of an end, or allows it again; it also allows an UNPROVEN one. */
void mrc_pair_deny(struct mrc_pair *pair, int end, int plane, int path, bool denied);
/* The engine's information on an end and on one of its EVs; one that has not joined is UNPROVEN. */
struct mrc_qp_info mrc_pair_info(const struct mrc_pair *pair, int end);
struct mrc_ev_info mrc_pair_ev(const struct mrc_pair *pair, int end, int plane, int path);
