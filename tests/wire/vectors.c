/* SPDX-License-Identifier: Apache-2.0 */
/* Seals and opens one packet with the counter of a test vector. */
#include "core/base.h"
#include "core/seal.h"

#define SECOND_NS 1000000000ull
#define OPENED_NS SECOND_NS            /* the first packet of the peer */
#define NOW_NS (OPENED_NS + SECOND_NS) /* time in which a sender can use up several epochs */

/* Writes the sealed packet to `out`. */
void vector_seal(const struct mrc_aead *aead, const struct mrc_seal_attr *attr, uint32_t qpn,
                 uint64_t counter, uint32_t ev, const uint8_t *packet, uint32_t header_bytes,
                 uint32_t imm_bytes, uint32_t payload_bytes, uint32_t pad, uint8_t *out) {
  struct mrc_seal *seal = mrc_seal_new(aead, qpn, attr, MRC_SEAL_EPOCH_BITS);
  const struct mrc_sealing parts = {
      .header = packet,
      .header_bytes = header_bytes,
      .imm_bytes = imm_bytes,
      .payload = payload_bytes > 0 ? packet + header_bytes : NULL,
      .payload_bytes = payload_bytes,
      .pad = pad,
      .ev = ev,
  };
  uint8_t trailer[3 + MRC_SEALED_BYTES];
  mrc_assert(seal != NULL);
  for (uint64_t epoch = 1; epoch <= counter >> MRC_SEAL_EPOCH_BITS; epoch++) {
    seal->sent = epoch << MRC_SEAL_EPOCH_BITS;
    mrc_seal_close(seal, &parts, trailer, out);
  }
  seal->sent = counter;
  mrc_seal_close(seal, &parts, trailer, out);
  mrc_seal_free(seal);
}

/* Opens the packet in place. Returns a drop reason. */
int vector_open(const struct mrc_aead *aead, const struct mrc_seal_attr *attr, uint32_t qpn,
                uint32_t ev, uint8_t *packet, size_t bytes, uint64_t *counter) {
  struct mrc_seal *seal = mrc_seal_new(aead, qpn, attr, MRC_SEAL_EPOCH_BITS);
  struct mrc_wire wire;
  mrc_assert(seal != NULL);
  seal->opened_ns = OPENED_NS;
  int drop = mrc_wire_decode(packet, bytes, false, &wire);
  if (drop == MRC_DROP_NONE) drop = mrc_seal_open(seal, packet, bytes, ev, &wire, counter, NOW_NS);
  mrc_seal_free(seal);
  return drop;
}
