/* SPDX-License-Identifier: Apache-2.0 */
/* The auditor of one end of a QP. It sees every packet that the end sends or accepts, and every
   completion, and asserts the invariants of the protocol against its own model. It changes nothing
   that an engine reads.

   Source bytes have the top bit clear; all other bytes under test have it set. A byte just placed
   is recognized by its top bit, and the auditor inverts it at once. A second placement would
   restore the original byte, and a misplaced byte stands out. A message is correct if every byte of
   the target is the inverse of its source byte. */
#pragma once

#include "core/base.h"
#include "core/wire.h"
#include "mrc.h"

#define MRC_AUDIT_WINDOW 8192 /* PSNs remembered: twice the largest MPR */
#define MRC_AUDIT_GUARD 4096  /* bytes before and after a target; they must not change */
#define MRC_AUDIT_FILL 0xEE   /* initial value of a target's bytes */

/* One PSN as its requester sent it. */
struct mrc_audit_sent {
  uint64_t number; /* of the PSN, counted from 1; compare it, because entries are reused */
  uint32_t ev;     /* of the last transmission */
  uint32_t bytes;  /* payload */
  bool acked;      /* by a SACK or ACK that the engine accepted */
  bool repeated;   /* a copy left, or a retransmission: no copy may follow */
};

/* One posted WR. */
struct mrc_audit_wr {
  uint64_t offset; /* in source and in target */
  uint64_t last;   /* number of its last PSN */
  uint32_t bytes;
  uint32_t imm;
  bool has_imm;
  bool unsignaled;
  bool redundant;
};

struct mrc_audit {
  const mrc_engine *engine; /* of this end; 0 once the QP is destroyed */
  uint32_t qpn;
  uint32_t path_mtu;
  uint32_t burst_bytes; /* bursts that messages are cut for; 0: all packets have the path MTU */
  uint32_t mpr;         /* PSNs allowed beyond the cumulative one */
  uint32_t max_wimm;    /* immediates allowed in flight */
  bool unwatched;       /* the scenario breaks the rules: of the memory only guards are checked */
  /* memory: the source is at this end, the target at the peer, between its guards */
  uint8_t *source;
  uint64_t made_bytes; /* of the source, from `prng`: those that were posted */
  struct mrc_prng prng;
  uint8_t *target;
  uint64_t memory_bytes;
  /* requester; PSNs are counted from 1, so that 0 is "none" */
  uint32_t sq_psn;
  uint64_t sent_max;      /* highest PSN sent */
  uint64_t acked_cum;     /* all PSNs up to this one are acknowledged */
  uint64_t unacked_bytes; /* sent and not acknowledged */
  uint64_t data_packets;
  uint32_t sent_planes;   /* mask of planes with data sent since the last mrc_audit_state */
  uint64_t retransmitted; /* data packets with the rtx bit */
  uint64_t copies;        /* second packets of redundant writes */
  struct mrc_audit_sent sent[MRC_AUDIT_WINDOW];
  /* work requests, in posting order */
  struct mrc_audit_wr *wrs;
  uint64_t n_wrs;
  uint32_t wr_capacity;
  uint64_t opened;      /* WRs with at least one packet sent */
  uint64_t acked;       /* WRs that an ACK completed */
  uint64_t wimm_opened; /* opened WRs with immediate */
  uint64_t wimm_acked;
  uint64_t used_bytes;   /* assigned to WRs, in source and target */
  uint64_t completed;    /* WRs */
  uint64_t verified;     /* WRs whose bytes were compared */
  uint64_t n_immediates; /* delivered at the peer */
  uint64_t next_imm;     /* the first WR that may be the next immediate */
  uint64_t statuses[8];  /* completions by enum mrc_wc_status */
  /* responder: packets accepted from the peer */
  uint32_t rq_psn;
  uint64_t received_cum;
  uint64_t received[MRC_AUDIT_WINDOW]; /* numbers of the accepted PSNs */
  uint64_t sacked_cum;                 /* highest cumulative PSN of a SACK sent */
};

/* Allocates source and target and fills the target; the source bytes come from `seed`. */
void mrc_audit_init(struct mrc_audit *audit, uint64_t memory_bytes, uint64_t seed);
void mrc_audit_free(struct mrc_audit *audit);

/* A WR of the next bytes of source and target was posted. */
void mrc_audit_posted(struct mrc_audit *audit, const struct mrc_wr *wr);
/* A completion of this end's WR, or a completion at the peer for an immediate of this end. */
void mrc_audit_completed(struct mrc_audit *audit, const struct mrc_wc *wc);

/* The end sends a packet to `peer`: data leaves on `ev`, while the end can send on the ports of
   `usable_ports` (bit n - 1: port n). */
void mrc_audit_sent(struct mrc_audit *audit, const struct mrc_audit *peer,
                    const struct mrc_wire *packet, uint32_t ev, uint32_t port,
                    uint32_t usable_ports);
/* The end's engine accepted a packet from `peer`. */
void mrc_audit_received(struct mrc_audit *audit, struct mrc_audit *peer,
                        const struct mrc_wire *packet);

/* Compares the state that the engine reports with the model. Call it right after the engine has
   sent. */
void mrc_audit_state(struct mrc_audit *audit);
/* Asserts over all memory that bytes outside of messages are untouched. */
void mrc_audit_memory(const struct mrc_audit *audit);
