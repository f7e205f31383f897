/* SPDX-License-Identifier: Apache-2.0 */
/* Acknowledgements and the send window: which PSNs the peer has received, and their round trip.
   sack_take.c reads SACKs; requester_rx.c reads NACKs and transport ACKs. */
#pragma once

#include "core/qp.h"

/* Acknowledges all PSNs up to the cumulative PSN and those in the bitmap. Returns the bytes newly
   acknowledged, and also adds them to newly_acked_bytes of their planes. */
uint64_t mrc_acks_take(struct mrc_services *services, struct mrc_qp *qp, uint32_t cum_psn,
                       uint32_t base, uint64_t bitmap, uint64_t now_ns);
/* Whether an acknowledgement up to `cum_psn` is too far back for this QP, however slow its planes.
   It then belongs to an earlier QP with the same QPN. */
bool mrc_acks_is_stale(const struct mrc_txwin *win, uint32_t cum_psn);
/* Whether some PSN up to `last_psn` was never sent, so that an acknowledgement of it is false. */
bool mrc_acks_names_unsent(const struct mrc_txwin *win, uint32_t last_psn);

/* Round trip of a packet sent at `sent_ns`, without the peer's service time; 0 if the reflected
   timestamp is impossible. The peer shifted the timestamp by its service time. The timestamp serves
   no other purpose, so its 16 bits limit the service time and not the round trip. */
uint64_t mrc_acks_round_trip_ns(const struct mrc_meta *meta, uint16_t reflected, uint64_t sent_ns);
/* Takes a round trip measured on this EV. */
void mrc_acks_on_rtt(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns, struct mrc_cc_ack *ack);
