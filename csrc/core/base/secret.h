/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that a peer cannot guess from earlier ones: SipHash-2-4 of a counter. They are as secret
   as the seed, and the same seed gives the same numbers. */
#pragma once

#include <stdint.h>

struct mrc_secret {
  uint64_t key[2];
  uint64_t n; /* numbers generated */
};

static inline uint64_t mrc_secret_rotate(uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}

static inline void mrc_secret_rounds(uint64_t v[4], int rounds) {
  for (; rounds > 0; rounds--) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = mrc_secret_rotate(v[1], 13) ^ v[0];
    v[3] = mrc_secret_rotate(v[3], 16) ^ v[2];
    v[0] = mrc_secret_rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = mrc_secret_rotate(v[3], 21) ^ v[0];
    v[1] = mrc_secret_rotate(v[1], 17) ^ v[2];
    v[2] = mrc_secret_rotate(v[2], 32);
  }
}

/* SipHash-2-4 of the eight bytes of `message`. */
static inline uint64_t mrc_secret_hash(const uint64_t key[2], uint64_t message) {
  uint64_t v[4] = {key[0] ^ 0x736F6D6570736575ull, key[1] ^ 0x646F72616E646F6Dull,
                   key[0] ^ 0x6C7967656E657261ull, key[1] ^ 0x7465646279746573ull};
  const uint64_t words[] = {message, 8ull << 56}; /* the second holds the length */
  for (int i = 0; i < 2; i++) {
    v[3] ^= words[i];
    mrc_secret_rounds(v, 2);
    v[0] ^= words[i];
  }
  v[2] ^= 0xFF;
  mrc_secret_rounds(v, 4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static inline uint64_t mrc_secret_next(struct mrc_secret *secret) {
  return mrc_secret_hash(secret->key, secret->n++);
}
