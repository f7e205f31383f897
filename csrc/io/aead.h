/* SPDX-License-Identifier: Apache-2.0 */
/* The cryptographic libraries that seal packets. They are loaded when a QP is first sealed, so that
   the engine needs neither of them to be built or to run. */
#pragma once

#include <stdint.h>

#include "core/hkdf.h"

/* Intel's IPsec-MB and OpenSSL's libcrypto as ciphers of the engine; NULL where the library cannot
   be loaded. */
const struct mrc_aead *mrc_aead_ipsec_mb(void);
const struct mrc_aead *mrc_aead_libcrypto(void);
/* Intel's IPsec-MB if this host has version 1 or 2, else libcrypto, else NULL. The same in every
   call. MRC_AEAD in the environment selects one by name. */
const struct mrc_aead *mrc_aead_best(void);

/* ---- IPsec-MB ---- */

/* What mrc uses of its interface on x86-64. The layout is the same in all releases from 1.0 to
   2.0.2; version 3 has another one. One build therefore runs with either version, and does not need
   the library's header. A test compares this with the installed header. */

enum {
  IPSEC_MB_FIRST = 1, /* major versions with this layout */
  IPSEC_MB_LAST = 2,
  IPSEC_MB_KEY_BYTES = 1280, /* at least an expanded key, aligned to 64 bytes */
};

/* The state of one message in parts. */
struct ipsec_mb_context {
  uint64_t opaque[11];
};

typedef void ipsec_mb_hash(const void *message, uint64_t n, void *digest);
typedef void ipsec_mb_pre(const void *secret, void *key);
/* Encrypts or decrypts; the tag is always an output. */
typedef void ipsec_mb_gcm(const void *key, struct ipsec_mb_context *context, uint8_t *out,
                          const uint8_t *in, uint64_t n, const uint8_t *nonce, const uint8_t *clear,
                          uint64_t clear_n, uint8_t *tag, uint64_t tag_n);
typedef void ipsec_mb_gmac_in(const void *key, struct ipsec_mb_context *context, const uint8_t *in,
                              uint64_t n);
typedef void ipsec_mb_gmac_out(const void *key, struct ipsec_mb_context *context, uint8_t *tag,
                               uint64_t tag_n);

/* The manager, up to the last function that mrc calls; each number is a field's offset. */
struct ipsec_mb_manager {
  uint8_t from_0[224];
  ipsec_mb_hash *sha256;
  uint8_t from_232[272 - 232];
  ipsec_mb_gcm *gcm256_enc;
  uint8_t from_280[296 - 280];
  ipsec_mb_gcm *gcm256_dec;
  uint8_t from_304[464 - 304];
  ipsec_mb_pre *gcm256_pre;
  uint8_t from_472[736 - 472];
  ipsec_mb_gmac_in *gmac256_init;
  uint8_t from_744[760 - 744];
  ipsec_mb_gmac_in *gmac256_update;
  uint8_t from_768[784 - 768];
  ipsec_mb_gmac_out *gmac256_finalize;
};
