/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant: any bytes decode to a packet or a drop reason. A packet lies inside the bytes, the
 * encoder makes headers of the same length from it, and these decode to the same packet again,
 * unless it was trimmed within its headers.
 */
#include <string.h>

#include "core/base.h"
#include "core/wire.h"
#include "fuzz.h"

static void check_packet(const uint8_t *bytes, size_t n, bool trimmed,
                         const struct mrc_wire *packet) {
  uint8_t once[64];
  uint8_t twice[64];
  struct mrc_wire again;
  size_t header = mrc_wire_encode(packet, once);
  if (trimmed && n < header) { /* cut within its headers */
    mrc_assert(packet->payload == NULL && packet->payload_bytes == 0);
    return;
  }
  mrc_assert(header <= n && packet->payload == bytes + header);
  const size_t end = packet->sealed ? MRC_SEALED_BYTES : MRC_ICRC_BYTES;
  size_t tail = trimmed ? 0 : packet->payload_bytes + packet->pad + end;
  mrc_assert(header + tail == n || (trimmed && packet->payload_bytes == 0));
  mrc_assert(once[0] == bytes[0] && packet->opcode == bytes[0]);
  mrc_assert(mrc_wire_decode(once, header, true, &again) == MRC_DROP_NONE);
  mrc_assert(mrc_wire_encode(&again, twice) == header);
  mrc_assert(memcmp(once, twice, header) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct mrc_wire packet;
  for (int trimmed = 0; trimmed <= 1; trimmed++) {
    int drop = mrc_wire_decode(data, size, trimmed, &packet);
    mrc_assert(drop >= 0 && drop <= MRC_DROP_LENGTH);
    if (drop == MRC_DROP_NONE) check_packet(data, size, trimmed, &packet);
  }
  return 0;
}
