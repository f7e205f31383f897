/* SPDX-License-Identifier: Apache-2.0 */
/* What every host of the fabric sends, takes and completes, shown to the auditors of the flows. On
   when the configuration says `audit`; then each flow has memory of its own, with content, and each
   event costs its QP only. */
#ifndef MRC_SIM_FABRIC_WATCH_H
#define MRC_SIM_FABRIC_WATCH_H

#include <stdint.h>

#include "mrc.h"
#include "sim/audit.h"
#include "sim/frame.h"

#define MRC_FABRIC_WATCH_MAX_BYTES (1u << 28) /* of all writes of a flow */

struct mrc_sim;

/* The ends of a flow. The auditor of the first holds the memory. */
struct mrc_fabric_watch {
  struct mrc_audit ends[2];
  bool touched[2]; /* since its state was last looked at */
};

/* An end of a flow has been given its attributes, and has not connected yet. */
void mrc_fabric_watch_connect(struct mrc_sim *sim, uint32_t flow, uint32_t end,
                              const struct mrc_qp_attr *attr);
void mrc_fabric_watch_free(struct mrc_fabric_watch *watch);
/* Points the next write of a flow to its place in the memory. */
void mrc_fabric_watch_place(const struct mrc_fabric_watch *watch, struct mrc_wr *wr);
/* A host hands a packet to a port; its engine has taken one, or not; `bytes` is all of it. */
void mrc_fabric_watch_sent(struct mrc_sim *sim, const struct mrc_frame *packet,
                           const uint8_t *bytes);
void mrc_fabric_watch_received(struct mrc_sim *sim, const struct mrc_frame *packet,
                               const uint8_t *bytes, int drop);
void mrc_fabric_watch_completion(struct mrc_sim *sim, const struct mrc_wc *wc);
/* An EV of an end of a flow has changed its state. */
void mrc_fabric_watch_rotation(struct mrc_sim *sim, uint32_t flow, uint32_t end);
/* The driver of a host has done all that there was to do. */
void mrc_fabric_watch_state(struct mrc_sim *sim);
/* The simulation is about to end: no byte is astray, no packet was forgotten. */
void mrc_fabric_watch_end(struct mrc_sim *sim);

#endif
