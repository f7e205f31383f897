/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the data of a QP, and builds the bursts of all packets; send.c tells the stages. */
#pragma once

#include "core/qp.h"
#include "core/wire.h"

/* ---- the turn of a QP ---- */

/* Sends the requester's bursts over planes and EVs, and handles the fate of each packet. */

#define MRC_QUANTUM_BURSTS 4 /* in one turn of a QP; 1 if attr.rts.spray is set */

/* Adds the bursts of a QP in RTS that may leave now; false when the transmit is full. */
bool mrc_requester_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The kernel took a burst of data. */
void mrc_requester_on_taken(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_burst *burst);
/* The kernel refused one packet. */
void mrc_requester_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet);

/* ---- quick and limited planes ---- */

/* Which planes are quick, which answer late, and which are limited: they deliver far less than the
   others. */

/* Compares the planes. Call it after new measurements and when work begins. */
void mrc_quick_compare(const struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The time that an answer from this plane takes now, without the reverse queue, which says nothing
   about our data. While nothing is in flight the plane's own queue drains: what was measured above
   the time of a packet that found the plane empty halves again and again. 0: unknown, or measured
   so long ago that the plane is tried again because it may have recovered. */
uint64_t mrc_quick_answer_ns(const struct mrc_qp *qp, uint32_t plane, uint64_t now_ns);
/* How long a limited plane takes for what it has in flight, and `bytes` more; without its base RTT.
 */
uint64_t mrc_quick_queue_ns(const struct mrc_qp *qp, uint32_t plane, uint32_t bytes);
/* The time after which a packet on a slow plane is late: an answer from the quickest other plane
   would be overdue. A plane is slow if it answers much later than the quickest one, or is limited.
   MRC_NEVER if the plane is not slow, or no other plane was measured. */
uint64_t mrc_quick_late_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                           uint32_t plane);

/* ---- the plane of the next burst ---- */

/* Chooses the plane of the next burst: by equal shares, or by the windows of the planes. */

/* In RTS. Equal shares are taken in an order that follows from the QPN: otherwise the first
   packets of all QPs would meet on one. */
void mrc_spray_start(struct mrc_qp *qp);
/* Call it before a choice, with all planes that may be chosen. A plane that returns starts with the
   smallest share of the planes that stayed, so it does not make up for its absence. If none stayed,
   all start with the same share. */
void mrc_spray_level(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes);
/* The plane of the next burst, whose first packet has `bytes`; -1 when no plane can send now.
   `planes`: those with a usable EV. */
int mrc_spray_choose(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                     uint32_t bytes);

/* ---- bursts ---- */

/* Builds bursts in the engine's arena: addresses and ports, packets, padding and ICRC. Other
   modules decide what is sent. */

/* Opens a burst on an EV of the QP; its traffic class is this code point with these ECN bits:
   switches do not mark answers (MRC_ECN_NONE), and may mark data and probes (MRC_ECN_CAPABLE).
   Returns 0 if the transmit is full. */
struct mrc_burst *mrc_burst_open(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                                 uint8_t dscp, uint8_t ecn);
/* Adds a packet: encodes `wire`, points to its payload, pads it and adds its ICRC or seal. */
void mrc_burst_add(struct mrc_services *services, struct mrc_burst *burst, struct mrc_wire *wire,
                   enum mrc_packet_kind kind, uint32_t slot);
