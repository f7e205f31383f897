/* SPDX-License-Identifier: Apache-2.0 */
#include "hkdf.h"

#include <string.h>

#include "core/base.h"

enum { BLOCK_BYTES = 64, INNER_PAD = 0x36, OUTER_PAD = 0x5C }; /* of HMAC-SHA-256 */

static void hmac(const struct mrc_aead *aead, struct mrc_part key, struct mrc_part text,
                 uint8_t out[MRC_DIGEST_BYTES]) {
  uint8_t message[BLOCK_BYTES + MRC_HKDF_MOST];
  uint8_t inner[MRC_DIGEST_BYTES];
  mrc_assert(key.n <= BLOCK_BYTES && text.n <= MRC_HKDF_MOST);
  memset(message, INNER_PAD, BLOCK_BYTES);
  for (size_t i = 0; i < key.n; i++)
    message[i] ^= key.at[i];
  memcpy(message + BLOCK_BYTES, text.at, text.n);
  aead->hash(message, BLOCK_BYTES + text.n, inner);
  for (size_t i = 0; i < BLOCK_BYTES; i++)
    message[i] ^= INNER_PAD ^ OUTER_PAD;
  memcpy(message + BLOCK_BYTES, inner, sizeof inner);
  aead->hash(message, BLOCK_BYTES + sizeof inner, out);
  mrc_wipe(message, sizeof message);
  mrc_wipe(inner, sizeof inner);
}

void mrc_hkdf_extract(const struct mrc_aead *aead, struct mrc_part salt, struct mrc_part material,
                      uint8_t out[MRC_DIGEST_BYTES]) {
  hmac(aead, salt, material, out);
}

void mrc_hkdf_expand(const struct mrc_aead *aead, const uint8_t secret[MRC_SECRET_BYTES],
                     struct mrc_part info, uint8_t out[MRC_DIGEST_BYTES]) {
  uint8_t text[MRC_HKDF_MOST];
  mrc_assert(info.n < MRC_HKDF_MOST);
  memcpy(text, info.at, info.n);
  text[info.n] = 1; /* number of the block */
  hmac(aead, (struct mrc_part){secret, MRC_SECRET_BYTES}, (struct mrc_part){text, info.n + 1}, out);
}
