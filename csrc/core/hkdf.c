/* SPDX-License-Identifier: Apache-2.0 */
/* HKDF with SHA-256 (RFC 5869), for outputs of one block. What it computes with is wiped. */
#include "core/hkdf.h"

#include <string.h>

#include "core/base.h"

enum { BLOCK_BYTES = 64, INNER_PAD = 0x36, OUTER_PAD = 0x5C }; /* of HMAC-SHA-256 */
enum { MOST_BYTES = 64 };                                      /* of the text of an HMAC here */
enum { QPN_BYTES = 3 };

/* HMAC, and with a salt as `key` HKDF-Extract. The key is at most a block of SHA-256 long; `out` is
   none of the arguments. */
static void hmac(const struct mrc_aead *aead, struct mrc_part key, struct mrc_part text,
                 uint8_t out[MRC_DIGEST_BYTES]) {
  uint8_t message[BLOCK_BYTES + MOST_BYTES];
  uint8_t inner[MRC_DIGEST_BYTES];
  mrc_assert(key.n <= BLOCK_BYTES && text.n <= MOST_BYTES);
  memset(message, INNER_PAD, BLOCK_BYTES);
  for (size_t i = 0; i < key.n; i++)
    message[i] ^= key.at[i];
  memcpy(message + BLOCK_BYTES, text.at, text.n);
  aead->hash(message, BLOCK_BYTES + text.n, inner);
  for (size_t i = 0; i < BLOCK_BYTES; i++)
    message[i] ^= INNER_PAD ^ OUTER_PAD;
  memcpy(message + BLOCK_BYTES, inner, sizeof inner);
  aead->hash(message, BLOCK_BYTES + sizeof inner, out);
  explicit_bzero(message, sizeof message);
  explicit_bzero(inner, sizeof inner);
}

void mrc_hkdf_expand(const struct mrc_aead *aead, const uint8_t secret[MRC_SECRET_BYTES],
                     struct mrc_part info, uint8_t out[MRC_DIGEST_BYTES]) {
  uint8_t text[MOST_BYTES];
  mrc_assert(info.n < MOST_BYTES);
  memcpy(text, info.at, info.n);
  text[info.n] = 1; /* number of the block */
  hmac(aead, (struct mrc_part){secret, MRC_SECRET_BYTES}, (struct mrc_part){text, info.n + 1}, out);
}

/* The secret by which `sender` seals for `receiver`. */
static void direct(const struct mrc_aead *aead, const uint8_t key[MRC_SECRET_BYTES],
                   uint32_t sender, uint32_t receiver, uint8_t out[MRC_DIGEST_BYTES]) {
  uint8_t info[] = "mrc direction......"; /* the dots: both QPNs */
  uint8_t *qpns = info + sizeof info - 1 - 2 * QPN_BYTES;
  for (int i = 0; i < QPN_BYTES; i++) {
    qpns[i] = (uint8_t)(sender >> (16 - 8 * i));
    qpns[QPN_BYTES + i] = (uint8_t)(receiver >> (16 - 8 * i));
  }
  mrc_hkdf_expand(aead, key, (struct mrc_part){info, sizeof info - 1}, out);
}

void mrc_hkdf_derive(const struct mrc_aead *aead, struct mrc_seal_attr *attr, uint32_t qpn,
                     const uint8_t random[MRC_SECRET_BYTES],
                     const uint8_t peer_random[MRC_SECRET_BYTES], bool first) {
  const struct mrc_part salt = {(const uint8_t *)"mrc seal 1", strlen("mrc seal 1")};
  uint8_t randoms[2 * MRC_SECRET_BYTES];
  uint8_t key[MRC_DIGEST_BYTES];
  memcpy(randoms + (first ? 0 : MRC_SECRET_BYTES), random, MRC_SECRET_BYTES);
  memcpy(randoms + (first ? MRC_SECRET_BYTES : 0), peer_random, MRC_SECRET_BYTES);
  hmac(aead, salt, (struct mrc_part){randoms, sizeof randoms}, key);
  direct(aead, key, qpn, attr->peer_qpn, attr->send);
  direct(aead, key, attr->peer_qpn, qpn, attr->receive);
  explicit_bzero(randoms, sizeof randoms);
  explicit_bzero(key, sizeof key);
}
