/* SPDX-License-Identifier: Apache-2.0 */
/* Passes the packets and completions of all hosts to the auditors of the flows, if the
   configuration sets `audit`. Each flow then has its own memory, with content. After an event only
   the QPs that it touched are checked. */
#pragma once

#include "core/base.h"
#include "sim/flow.h"
#include "sim/frame.h"
#include "virtual/audit.h"

#define MRC_FABRIC_WATCH_MAX_BYTES (1u << 28) /* of all writes of a flow */

/* The auditors of a flow. The auditor of MRC_FROM owns the memory. */
struct mrc_flow_audits {
  struct mrc_audit ends[2];
  bool touched[2]; /* since the last check of its state */
};

struct mrc_fabric_watch {
  const struct mrc_sim_config *config;
  const struct mrc_sim_flows *flows;
  struct mrc_flow_audits **of; /* by flow; 0: the flow has no QPs */
  uint32_t n;
  uint32_t *touched; /* numbers of QPs whose state is not checked yet */
  uint32_t n_touched;
  uint32_t touched_capacity;
};

/* An end of a flow has its attributes, but is not connected yet. */
void mrc_fabric_watch_connect(struct mrc_fabric_watch *watch, uint32_t flow, uint32_t end,
                              const struct mrc_qp_attr *attr, mrc_engine *const engines[2],
                              struct mrc_prng *prng);
void mrc_fabric_watch_free(struct mrc_fabric_watch *watch);
/* Points the next write of a flow to its place in the memory; then: the write was posted. */
void mrc_fabric_watch_place(const struct mrc_fabric_watch *watch, uint32_t flow, struct mrc_wr *wr);
void mrc_fabric_watch_posted(struct mrc_fabric_watch *watch, uint32_t flow,
                             const struct mrc_wr *wr);
/* A host passes a packet to a port; `full` and `down` are the host's masks. Its engine has accepted
   a packet (`drop` 0), or dropped it. `bytes` is the whole packet. */
void mrc_fabric_watch_sent(struct mrc_fabric_watch *watch, const struct mrc_frame *packet,
                           const uint8_t *bytes, uint32_t full, uint32_t down);
void mrc_fabric_watch_received(struct mrc_fabric_watch *watch, const struct mrc_frame *packet,
                               const uint8_t *bytes, int drop);
void mrc_fabric_watch_completion(struct mrc_fabric_watch *watch, const struct mrc_wc *wc);
/* An EV of this QP has changed its state. */
void mrc_fabric_watch_rotation(const struct mrc_fabric_watch *watch, uint32_t qpn);
/* The driver of a host has finished its turn. */
void mrc_fabric_watch_state(struct mrc_fabric_watch *watch);
/* The simulation is about to end: checks the memory of the flows without unfinished or failed
   writes. */
void mrc_fabric_watch_end(const struct mrc_fabric_watch *watch);
