/* SPDX-License-Identifier: Apache-2.0 */
#include "burst.h"

#include <string.h>

#include "core/crc.h"

_Static_assert(MRC_MAX_HEADER >= MRC_BTH_BYTES + MRC_SETH_BYTES + MRC_CC_STATE_BYTES, "SACK fits");

static const uint8_t zeros[MRC_MAX_MTU + MRC_MAX_HEADER]; /* padding of EV probes */

struct mrc_burst *mrc_burst_open(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                                 uint8_t tclass) {
  if (!mrc_arena_may_open(&services->arena)) return NULL;
  mrc_assert(ev < qp->evset.n);
  const struct mrc_ev *from = &qp->evset.evs[ev];
  const struct mrc_ev_ends *ends = &qp->evset.ends[from->ends];
  mrc_assert(from->state != MRC_EV_DENIED &&
             mrc_port_is_usable(&services->ports, mrc_plane_of(from->port)));
  struct mrc_burst *burst = &services->arena.bursts[services->arena.n_bursts++];
  *burst = (struct mrc_burst){.flow_label = ends->family == 6 ? from->value & 0xFFFF : 0,
                              .sport = (uint16_t)(from->value >> 16),
                              .dport = ends->dport,
                              .family = ends->family,
                              .port = from->port,
                              .tclass = tclass,
                              .tx_index = from->tx_index,
                              .packets = &services->arena.packets[services->arena.used],
                              ._qp = qp->index,
                              ._ev = ev};
  mrc_evset_addresses(&qp->evset, ev, burst->src, burst->dst);
  services->arena.seal = qp->seal;
  return burst;
}

uint32_t mrc_burst_packet_bytes(const struct mrc_wire *wire) {
  uint32_t bytes = MRC_BTH_BYTES + MRC_METH_BYTES + MRC_RETH_BYTES;
  bytes += wire->sealed ? MRC_SEALED_BYTES : MRC_ICRC_BYTES;
  if (wire->ts) bytes += MRC_TSETH_BYTES;
  if (mrc_opcode_has_imm(wire->opcode)) bytes += MRC_IMM_BYTES;
  return bytes + ((wire->payload_bytes + 3u) & ~3u);
}

static struct mrc_packet *add_packet(struct mrc_services *services, struct mrc_burst *burst,
                                     enum mrc_packet_kind kind, uint32_t slot) {
  mrc_assert(burst == &services->arena.bursts[services->arena.n_bursts - 1]);
  mrc_assert(services->arena.used < MRC_ARENA_PACKETS);
  struct mrc_packet *packet = &services->arena.packets[services->arena.used++];
  packet->_kind = kind;
  packet->_slot = slot;
  burst->n_packets++;
  return packet;
}

/* CRC of the IP and UDP headers. Packets of a burst share it, except a last one that is shorter. */
static uint32_t begin_icrc(struct mrc_burst *burst, uint32_t bytes) {
  if (burst->n_packets > 1 && bytes == burst->packet_bytes) return burst->_icrc;
  const struct mrc_icrc_flow flow = {.src = burst->src,
                                     .dst = burst->dst,
                                     .sport = burst->sport,
                                     .dport = burst->dport,
                                     .family = burst->family};
  const uint32_t crc = mrc_icrc_begin(&flow, bytes);
  if (burst->n_packets == 1) burst->_icrc = crc;
  return crc;
}

/* Room for a packet behind those of its burst; NULL where the burst is not staged. */
static uint8_t *stage(struct mrc_arena *arena, struct mrc_burst *burst, uint32_t total,
                      bool encrypts) {
  if (burst->n_packets == 1 && (encrypts || total <= arena->staged_packet_bytes))
    burst->staged = arena->staged + arena->staged_bytes;
  if (burst->staged == NULL) return NULL;
  mrc_assert(arena->staged_bytes + total <= (size_t)MRC_MAX_BURSTS * arena->max_burst_bytes);
  uint8_t *room = arena->staged + arena->staged_bytes;
  arena->staged_bytes += total;
  if (encrypts) arena->encrypted_bytes += total;
  return room;
}

/* CRC of header and payload. The payload is read once, also if it is copied. */
static uint32_t crc_of(const struct mrc_packet *packet, uint32_t crc, uint8_t *staged) {
  if (staged != NULL && packet->payload_bytes > 0)
    return mrc_crc32_copy(crc, staged + packet->header_bytes, packet->header_bytes, packet->payload,
                          packet->payload_bytes);
  crc = mrc_crc32(crc, packet->header, packet->header_bytes);
  if (packet->payload_bytes > 0) crc = mrc_crc32(crc, packet->payload, packet->payload_bytes);
  return crc;
}

static void add_icrc(struct mrc_burst *burst, struct mrc_packet *packet, uint32_t pad,
                     uint32_t total, uint8_t *staged) {
  uint32_t crc = crc_of(packet, begin_icrc(burst, total), staged);
  if (pad != 0) crc = mrc_crc32(crc, packet->trailer, pad);
  mrc_icrc_store(crc, packet->trailer + pad);
}

static void add_seal(struct mrc_seal *seal, const struct mrc_burst *burst,
                     struct mrc_packet *packet, const struct mrc_wire *wire, uint32_t pad,
                     uint8_t *staged) {
  const bool imm =
      wire != NULL && packet->_kind == MRC_KIND_DATA && mrc_opcode_has_imm(wire->opcode);
  const struct mrc_sealing sealing = {.header = packet->header,
                                      .header_bytes = packet->header_bytes,
                                      .imm_bytes = imm ? MRC_IMM_BYTES : 0,
                                      .payload = packet->payload,
                                      .payload_bytes = packet->payload_bytes,
                                      .pad = pad,
                                      .ev = (uint32_t)burst->sport << 16 | burst->flow_label};
  mrc_seal_close(seal, &sealing, packet->trailer, staged);
}

/* Adds padding, and ICRC or seal. `wire` is NULL for a packet in the middle of a message. The first
   packet sets the packet size of the burst; no later packet may be longer. */
static void end_packet(struct mrc_services *services, struct mrc_burst *burst,
                       struct mrc_packet *packet, const struct mrc_wire *wire, uint32_t pad,
                       bool icrc) {
  struct mrc_seal *sealed = services->arena.seal;
  const bool encrypts = sealed != NULL && sealed->mode == MRC_SEAL_AEAD;
  const uint32_t covered = packet->header_bytes + packet->payload_bytes;
  packet->trailer_bytes = (uint16_t)(pad + (sealed != NULL ? MRC_SEALED_BYTES : MRC_ICRC_BYTES));
  const uint32_t total = covered + packet->trailer_bytes;
  uint8_t *staged = stage(&services->arena, burst, total, encrypts);
  memset(packet->trailer, 0, 8); /* padding, and an ICRC that nobody checks */
  if (sealed != NULL) {
    add_seal(sealed, burst, packet, wire, pad, staged);
  } else {
    if (staged != NULL) memcpy(staged, packet->header, packet->header_bytes);
    if (icrc) /* copies, too */
      add_icrc(burst, packet, pad, total, staged);
    else if (staged != NULL && packet->payload_bytes > 0)
      memcpy(staged + packet->header_bytes, packet->payload, packet->payload_bytes);
    if (staged != NULL) memcpy(staged + covered, packet->trailer, packet->trailer_bytes);
  }
  if (burst->n_packets == 1) burst->packet_bytes = total;
  mrc_assert(total <= burst->packet_bytes);
}

void mrc_burst_add(struct mrc_services *services, struct mrc_burst *burst, struct mrc_wire *wire,
                   enum mrc_packet_kind kind, uint32_t slot, bool icrc) {
  struct mrc_packet *packet = add_packet(services, burst, kind, slot);
  const bool data = mrc_opcode_is_data(wire->opcode);
  wire->sealed = services->arena.seal != NULL;
  wire->pad = data ? (uint8_t)(-wire->payload_bytes & 3u) : 0;
  packet->header_bytes = (uint16_t)mrc_wire_encode(wire, packet->header);
  packet->payload = data ? wire->payload : NULL;
  packet->payload_bytes = data ? wire->payload_bytes : 0;
  end_packet(services, burst, packet, wire, wire->pad, icrc);
}

void mrc_burst_add_next(struct mrc_services *services, struct mrc_burst *burst, uint32_t psn,
                        bool ack_req, bool icrc) {
  struct mrc_packet *packet = add_packet(services, burst, MRC_KIND_DATA, psn);
  const struct mrc_packet *before = packet - 1;
  mrc_assert(burst->n_packets > 1 && before->_kind == MRC_KIND_DATA);
  mrc_wire_encode_next(before->header, packet->header, psn, ack_req, before->payload_bytes);
  packet->header_bytes = before->header_bytes;
  packet->payload = before->payload + before->payload_bytes;
  packet->payload_bytes = before->payload_bytes;
  end_packet(services, burst, packet, NULL, 0, icrc);
}

void mrc_burst_add_padded(struct mrc_services *services, struct mrc_burst *burst,
                          struct mrc_wire *wire, uint32_t slot, uint32_t bytes) {
  struct mrc_packet *packet = add_packet(services, burst, MRC_KIND_EV_PROBE, slot);
  wire->sealed = services->arena.seal != NULL;
  packet->header_bytes = (uint16_t)mrc_wire_encode(wire, packet->header);
  const uint32_t end_bytes = wire->sealed ? MRC_SEALED_BYTES : MRC_ICRC_BYTES;
  const uint32_t bare = packet->header_bytes + end_bytes;
  mrc_assert(bytes <= bare + sizeof zeros);
  packet->payload_bytes = bytes > bare ? bytes - bare : 0;
  packet->payload = packet->payload_bytes > 0 ? zeros : NULL;
  end_packet(services, burst, packet, wire, 0, true);
}
