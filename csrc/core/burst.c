/* SPDX-License-Identifier: Apache-2.0 */
#include "burst.h"

#include <string.h>

#include "icrc.h"

_Static_assert(MRC_ARENA_PACKETS >= 2 * MRC_MAX_BURST_PACKETS, "a full burst always fits");
_Static_assert(MRC_MAX_HEADER >= MRC_BTH_BYTES + MRC_SETH_BYTES + MRC_CC_STATE_BYTES, "SACK fits");

static const uint8_t zeros[MRC_MAX_MTU + MRC_MAX_HEADER]; /* padding of EV probes */

bool mrc_burst_may_open(const struct mrc_engine *engine) {
  return engine->n_bursts < engine->burst_capacity &&
         MRC_ARENA_PACKETS - engine->arena_used >= MRC_MAX_BURST_PACKETS;
}

struct mrc_burst *mrc_burst_open(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                                 uint8_t tclass) {
  if (!mrc_burst_may_open(engine)) return NULL;
  mrc_assert(ev < qp->evset.n);
  const struct mrc_ev *from = &qp->evset.evs[ev];
  const struct mrc_ev_ends *ends = &qp->evset.ends[from->ends];
  mrc_assert(from->state != MRC_EV_DENIED && mrc_port_usable(engine, from->port - 1u));
  struct mrc_burst *burst = &engine->bursts[engine->n_bursts++];
  *burst = (struct mrc_burst){.flow_label = ends->family == 6 ? from->value & 0xFFFF : 0,
                              .sport = (uint16_t)(from->value >> 16),
                              .dport = ends->dport,
                              .family = ends->family,
                              .port = from->port,
                              .tclass = tclass,
                              .tx_index = from->tx_index,
                              .packets = &engine->arena[engine->arena_used],
                              ._qp = qp->index,
                              ._ev = ev};
  mrc_evset_addresses(&qp->evset, ev, burst->src, burst->dst);
  return burst;
}

bool mrc_burst_has_room(const struct mrc_engine *engine, const struct mrc_burst *burst) {
  if (burst->n_packets == MRC_MAX_BURST_PACKETS) return false;
  return (burst->n_packets + 1u) * burst->packet_bytes <= engine->config.max_burst_bytes;
}

uint32_t mrc_burst_packet_bytes(const struct mrc_wire *wire) {
  uint32_t bytes = MRC_BTH_BYTES + MRC_METH_BYTES + MRC_RETH_BYTES + MRC_ICRC_BYTES;
  if (wire->ts) bytes += MRC_TSETH_BYTES;
  if (mrc_opcode_has_imm(wire->opcode)) bytes += MRC_IMM_BYTES;
  return bytes + ((wire->payload_bytes + 3u) & ~3u);
}

static struct mrc_packet *add_packet(struct mrc_engine *engine, struct mrc_burst *burst,
                                     enum mrc_packet_kind kind, uint32_t slot) {
  mrc_assert(burst == &engine->bursts[engine->n_bursts - 1]);
  mrc_assert(engine->arena_used < MRC_ARENA_PACKETS);
  struct mrc_packet *packet = &engine->arena[engine->arena_used++];
  packet->_kind = kind;
  packet->_slot = slot;
  burst->n_packets++;
  return packet;
}

/* The packets of a burst begin alike, but for a last one that is shorter. */
static uint32_t begin_icrc(struct mrc_burst *burst, uint32_t bytes) {
  if (burst->n_packets > 1 && bytes == burst->packet_bytes) return burst->_begun;
  const struct mrc_icrc_flow flow = {.src = burst->src,
                                     .dst = burst->dst,
                                     .sport = burst->sport,
                                     .dport = burst->dport,
                                     .family = burst->family};
  const uint32_t crc = mrc_icrc_begin(&flow, bytes);
  if (burst->n_packets == 1) burst->_begun = crc;
  return crc;
}

/* Padding and ICRC; then the packet's length must fit the burst. */
static void seal(struct mrc_burst *burst, struct mrc_packet *packet, uint32_t pad, bool icrc) {
  const uint32_t total = packet->header_bytes + packet->payload_bytes + pad + MRC_ICRC_BYTES;
  memset(packet->trailer, 0, sizeof packet->trailer);
  packet->trailer_bytes = (uint16_t)(pad + MRC_ICRC_BYTES);
  if (icrc) {
    uint32_t crc = mrc_icrc_header(begin_icrc(burst, total), packet->header, packet->header_bytes);
    if (packet->payload_bytes != 0)
      crc = mrc_icrc_update(crc, packet->payload, packet->payload_bytes);
    if (pad != 0) crc = mrc_icrc_update(crc, packet->trailer, pad);
    mrc_icrc_store(crc, packet->trailer + pad);
  }
  if (burst->n_packets == 1) burst->packet_bytes = total;
  mrc_assert(total <= burst->packet_bytes);
}

void mrc_burst_add(struct mrc_engine *engine, struct mrc_burst *burst, struct mrc_wire *wire,
                   enum mrc_packet_kind kind, uint32_t slot, bool icrc) {
  struct mrc_packet *packet = add_packet(engine, burst, kind, slot);
  const bool data = mrc_opcode_is_data(wire->opcode);
  wire->pad = data ? (uint8_t)(-wire->payload_bytes & 3u) : 0;
  packet->header_bytes = (uint16_t)mrc_wire_encode(wire, packet->header);
  packet->payload = data ? wire->payload : NULL;
  packet->payload_bytes = data ? wire->payload_bytes : 0;
  seal(burst, packet, wire->pad, icrc);
}

void mrc_burst_add_padded(struct mrc_engine *engine, struct mrc_burst *burst, struct mrc_wire *wire,
                          uint32_t slot, uint32_t bytes) {
  struct mrc_packet *packet = add_packet(engine, burst, MRC_KIND_EV_PROBE, slot);
  packet->header_bytes = (uint16_t)mrc_wire_encode(wire, packet->header);
  const uint32_t bare = packet->header_bytes + MRC_ICRC_BYTES;
  mrc_assert(bytes <= bare + sizeof zeros);
  packet->payload_bytes = bytes > bare ? bytes - bare : 0;
  packet->payload = packet->payload_bytes > 0 ? zeros : NULL;
  seal(burst, packet, 0, true);
}
