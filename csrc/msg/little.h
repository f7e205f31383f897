/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers in frames, at any alignment. */
#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void mrc_put32(uint8_t *out, uint32_t value) {
  value = htole32(value);
  memcpy(out, &value, sizeof value);
}

static inline void mrc_put64(uint8_t *out, uint64_t value) {
  value = htole64(value);
  memcpy(out, &value, sizeof value);
}

static inline uint32_t mrc_get32(const uint8_t *in) {
  uint32_t value;
  memcpy(&value, in, sizeof value);
  return le32toh(value);
}

static inline uint64_t mrc_get64(const uint8_t *in) {
  uint64_t value;
  memcpy(&value, in, sizeof value);
  return le64toh(value);
}
