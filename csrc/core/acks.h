/* SPDX-License-Identifier: Apache-2.0 */
/* What acknowledgements say of the send window: which PSNs the peer has received, and how long
   their round trip was. SACKs are read in sack.c, NACKs and transport ACKs in requester_rx.c. */
#ifndef MRC_CORE_ACKS_H
#define MRC_CORE_ACKS_H

#include "qp.h"

/* Acknowledges everything up to the cumulative PSN and in the bitmap; returns the new bytes, which
   stand at their planes as well. */
uint64_t mrc_acks_take(struct mrc_services *services, struct mrc_qp *qp, uint32_t cum_psn,
                       uint32_t base, uint64_t bitmap, uint64_t now_ns);
/* Whether an acknowledgement up to `cum_psn` is too far back for a packet of this QP, however slow
   its plane: it is of an earlier QP that had this number. */
bool mrc_acks_is_stale(const struct mrc_txwin *win, uint32_t cum_psn);
/* Whether a PSN up to `last_psn` never left: a peer that acknowledges it lies. */
bool mrc_acks_names_unsent(const struct mrc_txwin *win, uint32_t last_psn);

/* Round trip of what was sent at `sent_ns`; 0 when the reflected timestamp makes no sense. The peer
   shifted it by its service time, which is taken off: what remains is the network. The timestamp
   measures only that, so that its 16 bits limit the service time and not the round trip. */
uint64_t mrc_acks_round_trip_ns(const struct mrc_meta *meta, uint16_t reflected, uint64_t sent_ns);
/* A round trip of something that left on this EV. */
void mrc_acks_on_rtt(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns, struct mrc_cc_ack *ack);

#endif
