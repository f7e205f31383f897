/* SPDX-License-Identifier: Apache-2.0 */
/* The requester of a QP: takes work requests, turns them into bursts over planes and EVs, and takes
   what comes back. What counts as lost is decided in loss.c. */
#ifndef MRC_CORE_REQUESTER_H
#define MRC_CORE_REQUESTER_H

#include "engine.h"

/* Sizes come from qp->attr. 0 or -ENOMEM. */
int mrc_requester_init(struct mrc_qp *qp, uint32_t planes) MRC_MUST_CHECK;
void mrc_requester_free(struct mrc_qp *qp);
/* The QP moves to RTS: attr holds what was agreed. 0 or -EINVAL or -ENOMEM. */
int mrc_requester_start(struct mrc_qp *qp, uint64_t now_ns) MRC_MUST_CHECK;

int mrc_requester_post(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_wr *wr,
                       uint64_t now_ns);
/* Whether anything waits for the peer. */
bool mrc_requester_is_busy(const struct mrc_qp *qp);
/* PSNs that may still be given out before the peer answers. */
uint32_t mrc_requester_window_left(const struct mrc_qp *qp);
/* Whether nothing may be sent before the peer answers: the window of PSNs is closed, or all that
   was posted has left. */
bool mrc_requester_is_starved(const struct mrc_qp *qp);
/* Completes everything: the oldest with `status`, the rest flushed. */
void mrc_requester_flush(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t status);

/* Packets from the peer, with a good ICRC. Each returns 0 or a drop reason. */
int mrc_requester_on_sack(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_wire *packet, const struct mrc_meta *meta,
                          uint64_t now_ns);
int mrc_requester_on_nack(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_wire *packet, uint64_t now_ns);
int mrc_requester_on_ack(struct mrc_engine *engine, struct mrc_qp *qp,
                         const struct mrc_wire *packet, uint64_t now_ns);

/* Adds the bursts that may go now; false when the transmit is full. */
bool mrc_requester_transmit(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns);
/* The fate of one packet of ours. */
void mrc_requester_on_taken(struct mrc_engine *engine, struct mrc_qp *qp,
                            const struct mrc_packet *packet);
void mrc_requester_on_refused(struct mrc_engine *engine, struct mrc_qp *qp,
                              const struct mrc_packet *packet);

#endif
