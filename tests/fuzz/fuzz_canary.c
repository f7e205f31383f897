/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant, deliberately false: no input begins with CA 80. The seed begins with CA 00, one bit
 * away, so if a replay does not fail here, the replays of the other targets prove nothing.
 */
#include "core/base.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mrc_assert(size < 2 || data[0] != 0xCA || data[1] != 0x80);
  return 0;
}
