/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32 of Ethernet, as gzip uses it, and the same while bytes are copied. 0 starts a CRC, and
   calls chain. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t mrc_crc32(uint32_t crc, const uint8_t *bytes, size_t n);
/* Copies `n` bytes, and returns the CRC of `head` bytes that already stand before `to`, followed by
   these. */
uint32_t mrc_crc32_copy(uint32_t crc, uint8_t *to, size_t head, const uint8_t *from, size_t n);
/* What computes CRCs on this machine. */
const char *mrc_crc32_library(void);
