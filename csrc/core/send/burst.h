/* SPDX-License-Identifier: Apache-2.0 */
/* Builds bursts in the engine's arena: addresses and ports, packets, padding and ICRC. Other
   modules decide what is sent. */
#pragma once

#include "core/qp.h"
#include "core/wire.h"

enum { MRC_ECN_NONE = 0, MRC_ECN_CAPABLE = 2 /* ECT(0) */ };

/* The traffic class of answers, which switches do not mark. */
static inline uint8_t mrc_tclass_control(const struct mrc_services *services) {
  return (uint8_t)(services->config.dscps.control << 2 | MRC_ECN_NONE);
}
/* That of probes, which switches may mark. */
static inline uint8_t mrc_tclass_probe(const struct mrc_services *services) {
  return (uint8_t)(services->config.dscps.control << 2 | MRC_ECN_CAPABLE);
}
/* That of data; `again`: it is a retransmission. */
static inline uint8_t mrc_tclass_data(const struct mrc_services *services, bool again) {
  const struct mrc_dscps *dscps = &services->config.dscps;
  return (uint8_t)((again ? dscps->retransmission : dscps->data) << 2 | MRC_ECN_CAPABLE);
}

/* Opens a burst on an EV of the QP. Returns 0 if the transmit is full. */
struct mrc_burst *mrc_burst_open(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                                 uint8_t tclass);
/* Adds a packet: encodes `wire`, points to its payload, pads and seals it. */
void mrc_burst_add(struct mrc_services *services, struct mrc_burst *burst, struct mrc_wire *wire,
                   enum mrc_packet_kind kind, uint32_t slot, bool icrc);
/* Adds the data packet after the last one of the burst: the next one of its message, which has the
   same size. Neither is the last of the message. */
void mrc_burst_add_next(struct mrc_services *services, struct mrc_burst *burst, uint32_t psn,
                        bool ack_req, bool icrc);
/* Adds an EV probe padded to `bytes` of UDP payload. */
void mrc_burst_add_padded(struct mrc_services *services, struct mrc_burst *burst,
                          struct mrc_wire *wire, uint32_t slot, uint32_t bytes);
/* UDP payload of a data packet with this header and payload. */
uint32_t mrc_burst_packet_bytes(const struct mrc_wire *wire);
