/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of 24 bits in the headers of simulated packets. */
#ifndef MRC_SIM_BYTES_H
#define MRC_SIM_BYTES_H

#include <stdint.h>

static inline void mrc_put_u24(uint8_t *bytes, uint32_t value) {
  bytes[0] = (uint8_t)(value >> 16);
  bytes[1] = (uint8_t)(value >> 8);
  bytes[2] = (uint8_t)value;
}

static inline uint32_t mrc_get_u24(const uint8_t *bytes) {
  return (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
}

#endif
