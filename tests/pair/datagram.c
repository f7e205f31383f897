/* SPDX-License-Identifier: Apache-2.0 */
#include "pair/datagram.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "pair/address.h"

enum { ECN_CE = 3 };

struct mrc_datagram *mrc_datagram_make(int from, const struct mrc_burst *burst,
                                       const struct mrc_packet *piece) {
  uint32_t n = piece->header_bytes + piece->payload_bytes + piece->trailer_bytes;
  struct mrc_datagram *packet = malloc(sizeof(*packet) + n);
  mrc_assert(packet);
  *packet = (struct mrc_datagram){
      .meta = {.flow_label = burst->flow_label,
               .sport = burst->sport,
               .dport = burst->dport,
               .family = burst->family,
               .port = burst->port,
               .ecn = burst->tclass & 3},
      .tclass = burst->tclass,
      .from = from,
      .to = mrc_address_host(burst->dst),
      .path = mrc_address_path(burst->family, burst->dst, burst->sport),
      .flipped = -1,
      .n = n,
  };
  memcpy(packet->meta.src, burst->src, sizeof(burst->src));
  memcpy(packet->meta.dst, burst->dst, sizeof(burst->dst));
  if (burst->staged) {
    memcpy(packet->bytes, burst->staged + (piece - burst->packets) * burst->packet_bytes, n);
    return packet;
  }
  uint8_t *payload = packet->bytes + piece->header_bytes;
  memcpy(packet->bytes, piece->header, piece->header_bytes);
  if (piece->payload_bytes) memcpy(payload, piece->payload, piece->payload_bytes);
  memcpy(payload + piece->payload_bytes, piece->trailer, piece->trailer_bytes);
  return packet;
}

struct mrc_datagram *mrc_datagram_copy(const struct mrc_datagram *packet) {
  struct mrc_datagram *copy = malloc(sizeof(*copy) + packet->n);
  mrc_assert(copy);
  memcpy(copy, packet, sizeof(*copy) + packet->n);
  return copy;
}

void mrc_datagram_suffer(struct mrc_datagram *packet, const struct mrc_link_fate *fate) {
  if (fate->ce) packet->meta.ecn = ECN_CE;
  if (fate->trimmed && packet->n > MRC_LINK_TRIM_BYTES) {
    packet->meta.trimmed = MRC_TRIMMED;
    packet->n = MRC_LINK_TRIM_BYTES;
  }
  if (fate->corrupt) {
    packet->flipped = (int)(fate->corrupt_bit % (packet->n * 8));
    packet->bytes[packet->flipped / 8] ^= (uint8_t)(1u << packet->flipped % 8);
  }
}
