/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine needs of a cryptographic library, and the secrets that are derived with it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mrc.h"

/* ---- a cryptographic library ---- */

/* AES-256-GCM, GMAC and SHA-256. The driver provides it: csrc/io by a library, csrc/sim by a check
   of how it is used. */

enum { MRC_SECRET_BYTES = 32, MRC_NONCE_BYTES = 12, MRC_DIGEST_BYTES = 32 };

/* Bytes that belong together. */
struct mrc_part {
  const uint8_t *at;
  size_t n;
};

struct mrc_aead {
  const char *name;
  size_t key_bytes; /* of one expanded key, a multiple of 64 */
  /* Zeroed memory for keys, aligned to 64 bytes; NULL without memory. It is in no core dump and not
     inherited over fork. `release` wipes it. */
  void *(*reserve)(size_t bytes);
  void (*release)(void *memory, size_t bytes);
  void (*hash)(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]);
  /* Expands a key in place of another one, or of zeros; `unset` before its memory is released. */
  void (*set)(void *key, const uint8_t secret[MRC_SECRET_BYTES]);
  void (*unset)(void *key);
  /* Encrypts `text` to `out`, which may be the same, and makes a tag of both. */
  void (*seal)(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
               struct mrc_part text, uint8_t *out, uint8_t *tag);
  /* Decrypts `text` in place. Whether the tag is right; if not, the text is lost. */
  bool (*open)(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
               uint8_t *text, size_t n, const uint8_t *tag);
  /* The tag alone, of the three parts one after the other. */
  void (*mac)(void *key, const uint8_t nonce[MRC_NONCE_BYTES], const struct mrc_part parts[3],
              uint8_t *tag);
  /* Whether `mac` makes this tag of `whole`. */
  bool (*check)(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part whole,
                const uint8_t *tag);
};

/* ---- secrets ---- */

/* HKDF-Expand(secret, info, 32) with SHA-256 (RFC 5869). */
void mrc_hkdf_expand(const struct mrc_aead *aead, const uint8_t secret[MRC_SECRET_BYTES],
                     struct mrc_part info, uint8_t out[MRC_DIGEST_BYTES]);
/* Fills in the secrets of both directions, which follow from the random bytes of both sides and
   from both QPNs. `first`: this side connected. */
void mrc_hkdf_derive(const struct mrc_aead *aead, struct mrc_seal_attr *attr, uint32_t qpn,
                     const uint8_t random[MRC_SECRET_BYTES],
                     const uint8_t peer_random[MRC_SECRET_BYTES], bool first);
