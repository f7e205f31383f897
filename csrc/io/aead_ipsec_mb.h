/* SPDX-License-Identifier: Apache-2.0 */
/* Intel's IPsec-MB as a cipher of the engine. */
#pragma once

#include "core/seal.h"

/* NULL where the library cannot be loaded. */
const struct mrc_aead *mrc_aead_ipsec_mb(void);
