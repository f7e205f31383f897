/* SPDX-License-Identifier: Apache-2.0 */
/* Intel's IPsec-MB as a cipher of the engine. */
#ifndef MRC_IO_AEAD_IPSEC_MB_H
#define MRC_IO_AEAD_IPSEC_MB_H

#include "core/wire/aead.h"

/* NULL where the library cannot be loaded. */
const struct mrc_aead *mrc_aead_ipsec_mb(void);

#endif
