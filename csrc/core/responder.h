/* SPDX-License-Identifier: Apache-2.0 */
/* The responder of a QP: places what arrives, completes immediates in order, and answers with
   SACKs, NACKs and transport ACKs. */
#ifndef MRC_CORE_RESPONDER_H
#define MRC_CORE_RESPONDER_H

#include "engine.h"

/* max_wimm and the window come from qp->attr. 0 or -ENOMEM. */
int mrc_responder_init(struct mrc_qp *qp) MRC_MUST_CHECK;
void mrc_responder_free(struct mrc_qp *qp);

/* A data packet with a good ICRC from the peer. Returns 0 or a drop reason. */
int mrc_responder_on_data(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_wire *packet, const struct mrc_meta *meta,
                          uint64_t now_ns);
/* A data packet whose payload was cut off in flight. */
int mrc_responder_on_trimmed(struct mrc_engine *engine, struct mrc_qp *qp,
                             const struct mrc_wire *packet, const struct mrc_meta *meta);
int mrc_responder_on_probe(struct mrc_engine *engine, struct mrc_qp *qp,
                           const struct mrc_wire *packet, const struct mrc_meta *meta);
/* A packet for a QP in ERROR: the NAK that ended it is said again. */
void mrc_responder_on_error_packet(struct mrc_engine *engine, struct mrc_qp *qp,
                                   const struct mrc_meta *meta, uint64_t now_ns);
/* Room came free in the CQ: goes on where an immediate of this QP had to wait; returns
   whether it did. */
bool mrc_responder_resume(struct mrc_engine *engine, struct mrc_qp *qp);

/* Adds the bursts that are due; false when the transmit is full. */
bool mrc_responder_transmit(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns);
/* The kernel refused a control burst: what it said is due again. */
void mrc_responder_on_refused(struct mrc_engine *engine, struct mrc_qp *qp,
                              const struct mrc_packet *packet);
/* The next time it has something to do by itself. */
uint64_t mrc_responder_deadline(const struct mrc_qp *qp);

#endif
