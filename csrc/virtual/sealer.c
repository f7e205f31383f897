/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/sealer.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/crc.h"
#include "core/wire.h"

enum { LOW = (1 << MRC_SEALER_EPOCH_BITS) - 1, COUNTER_BYTES = 8 };

/* The counters of an epoch differ in their low bits only, and so do its nonces behind the EV. */
struct sealer_key {
  uint64_t secret[2];
  bool used;
  bool blind;                    /* to the payload: it is neither encrypted nor covered */
  uint8_t high[COUNTER_BYTES];   /* of every nonce of this key */
  uint64_t seen[(LOW + 1) / 64]; /* by the low bits of the nonce */
};

enum { KEY_BYTES = (sizeof(struct sealer_key) + 63) / 64 * 64 };

static void *reserve(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory != NULL) memset(memory, 0, bytes);
  return memory;
}

static void release(void *memory, size_t bytes) {
  explicit_bzero(memory, bytes);
  free(memory);
}

static void hash(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]) {
  uint64_t words[4], sum[2] = {n, ~(uint64_t)n};
  for (size_t i = 0; i < n; i++)
    sum[i & 1] = mrc_secret_hash(sum, message[i]);
  for (uint64_t i = 0; i < 4; i++)
    words[i] = mrc_secret_hash(sum, i);
  memcpy(digest, words, MRC_DIGEST_BYTES);
}

static void set(void *memory, const uint8_t secret[MRC_SECRET_BYTES]) {
  struct sealer_key *key = memory;
  *key = (struct sealer_key){0};
  memcpy(key->secret, secret, sizeof key->secret);
}

static void set_blind(void *memory, const uint8_t secret[MRC_SECRET_BYTES]) {
  struct sealer_key *key = memory;
  set(key, secret);
  key->blind = true;
}

static void unset(void *memory) { (void)memory; }

/* Asserts that this key has not seen the nonce. */
static void use(struct sealer_key *key, const uint8_t nonce[MRC_NONCE_BYTES]) {
  uint8_t high[COUNTER_BYTES];
  memcpy(high, nonce + MRC_NONCE_BYTES - sizeof high, sizeof high);
  const uint32_t low = ((uint32_t)high[COUNTER_BYTES - 2] << 8 | high[COUNTER_BYTES - 1]) & LOW;
  high[COUNTER_BYTES - 1] = 0;
  high[COUNTER_BYTES - 2] &= (uint8_t)~(LOW >> 8);
  if (!key->used) memcpy(key->high, high, sizeof high);
  key->used = true;
  mrc_assert(memcmp(key->high, high, sizeof high) == 0);
  mrc_assert((key->seen[low / 64] >> low % 64 & 1) == 0);
  key->seen[low / 64] |= (uint64_t)1 << low % 64;
}

static void make_tag(const struct sealer_key *key, const uint8_t nonce[MRC_NONCE_BYTES],
                     uint64_t crcs, uint8_t *tag) {
  uint64_t words[2] = {0, 0};
  memcpy(words, nonce, MRC_NONCE_BYTES);
  words[0] = mrc_secret_hash(key->secret, words[0] ^ crcs);
  words[1] = mrc_secret_hash(key->secret, words[1] ^ words[0]);
  memcpy(tag, words, MRC_TAG_BYTES);
}

static bool is_right(const struct sealer_key *key, const uint8_t nonce[MRC_NONCE_BYTES],
                     uint64_t crcs, const uint8_t *tag) {
  uint8_t made[MRC_TAG_BYTES];
  make_tag(key, nonce, crcs, made);
  return memcmp(made, tag, sizeof made) == 0;
}

static uint64_t crcs_of(const struct sealer_key *key, struct mrc_part clear, const uint8_t *text,
                        size_t n) {
  const uint32_t of_text = key->blind ? (uint32_t)n : mrc_crc32((uint32_t)n, text, n);
  return (uint64_t)mrc_crc32(0, clear.at, clear.n) << 32 | of_text;
}

static void change(const struct sealer_key *key, const uint8_t *text, size_t n, uint8_t *out) {
  for (size_t i = 0; i < n && !key->blind; i++)
    out[i] = text[i] ^ (uint8_t)key->secret[0];
}

static void seal(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 struct mrc_part text, uint8_t *out, uint8_t *tag) {
  use(key, nonce);
  change(key, text.at, text.n, out);
  make_tag(key, nonce, crcs_of(key, clear, out, text.n), tag);
}

static bool open(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 uint8_t *text, size_t n, const uint8_t *tag) {
  const bool right = is_right(key, nonce, crcs_of(key, clear, text, n), tag);
  change(key, text, n, text);
  return right;
}

static void mac(void *key, const uint8_t nonce[MRC_NONCE_BYTES], const struct mrc_part parts[3],
                uint8_t *tag) {
  const bool blind = ((const struct sealer_key *)key)->blind;
  uint32_t crc = 0;
  use(key, nonce);
  for (int i = 0; i < 3 && !blind; i++)
    if (parts[i].n > 0) crc = mrc_crc32(crc, parts[i].at, parts[i].n);
  make_tag(key, nonce, crc, tag);
}

static bool check(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part whole,
                  const uint8_t *tag) {
  const bool blind = ((const struct sealer_key *)key)->blind;
  return is_right(key, nonce, blind ? 0 : mrc_crc32(0, whole.at, whole.n), tag);
}

const struct mrc_aead mrc_sealer = {.name = "simulated",
                                    .key_bytes = KEY_BYTES,
                                    .reserve = reserve,
                                    .release = release,
                                    .hash = hash,
                                    .set = set,
                                    .unset = unset,
                                    .seal = seal,
                                    .open = open,
                                    .mac = mac,
                                    .check = check};

const struct mrc_aead mrc_sealer_of_headers = {.name = "simulated, without payload",
                                               .key_bytes = KEY_BYTES,
                                               .reserve = reserve,
                                               .release = release,
                                               .hash = hash,
                                               .set = set_blind,
                                               .unset = unset,
                                               .seal = seal,
                                               .open = open,
                                               .mac = mac,
                                               .check = check};
