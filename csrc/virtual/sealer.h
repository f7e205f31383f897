/* SPDX-License-Identifier: Apache-2.0 */
/* In place of a cryptographic library: no secrecy, but the same sizes and the same drops, and an
   assertion that no key seals two packets with one nonce. */
#pragma once

#include "core/hkdf.h"

#define MRC_SEALER_EPOCH_BITS 14 /* at most: each key remembers the nonces of its epoch */

/* For a fabric that carries no payload: the tag covers the other bytes, and nothing is encrypted.
   The engine's staged bytes stay undefined. */
extern const struct mrc_aead mrc_sealer_of_headers;
/* The tag covers all bytes, and text is changed. */
extern const struct mrc_aead mrc_sealer;
