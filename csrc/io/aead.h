/* SPDX-License-Identifier: Apache-2.0 */
/* The cryptographic libraries that seal packets. They are loaded when a QP is first sealed, so that
   the engine needs neither of them to be built or to run. */
#pragma once

#include "core/seal.h"

/* Intel's IPsec-MB and OpenSSL's libcrypto as ciphers of the engine; NULL where the library cannot
   be loaded. */
const struct mrc_aead *mrc_aead_ipsec_mb(void);
const struct mrc_aead *mrc_aead_libcrypto(void);
/* Intel's IPsec-MB if this host has version 1 or 2, else libcrypto, else NULL. The same in every
   call. MRC_AEAD in the environment selects one by name. */
const struct mrc_aead *mrc_aead_best(void);
