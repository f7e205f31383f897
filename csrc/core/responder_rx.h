/* SPDX-License-Identifier: Apache-2.0 */
/* The responder takes packets: places data, moves the cumulative PSN, completes immediates in
 * order. */
#ifndef MRC_CORE_RESPONDER_RX_H
#define MRC_CORE_RESPONDER_RX_H

#include "qp.h"

/* A data packet with a good ICRC from the peer. Returns 0 or a drop reason, as the next two. */
int mrc_responder_on_data(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_wire *wire, const struct mrc_meta *meta,
                          uint64_t now_ns);
/* A data packet whose payload was cut off in flight. */
int mrc_responder_on_trimmed(struct mrc_services *services, struct mrc_qp *qp,
                             const struct mrc_wire *wire, const struct mrc_meta *meta);
/* A reliability probe. */
int mrc_responder_on_probe(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_wire *wire, const struct mrc_meta *meta);
/* A packet for a QP in ERROR: the NAK that ended it is said again. */
void mrc_responder_on_error_packet(struct mrc_services *services, struct mrc_qp *qp,
                                   const struct mrc_meta *meta, uint64_t now_ns);
/* Room came free in the CQ: goes on where immediates of QPs had to wait. */
void mrc_responder_on_cq_room(struct mrc_services *services);

#endif
