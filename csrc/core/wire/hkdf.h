/* SPDX-License-Identifier: Apache-2.0 */
/* HKDF with SHA-256 (RFC 5869), for outputs of one block. What it computes with is wiped. */
#pragma once

#include "aead.h"

enum { MRC_HKDF_MOST = 64 }; /* bytes of `material`, and of `info` with a byte more */

/* HKDF-Extract. `salt` is at most a block of SHA-256 long. `out` is none of the arguments. */
void mrc_hkdf_extract(const struct mrc_aead *aead, struct mrc_part salt, struct mrc_part material,
                      uint8_t out[MRC_DIGEST_BYTES]);
/* HKDF-Expand(secret, info, 32). */
void mrc_hkdf_expand(const struct mrc_aead *aead, const uint8_t secret[MRC_SECRET_BYTES],
                     struct mrc_part info, uint8_t out[MRC_DIGEST_BYTES]);
