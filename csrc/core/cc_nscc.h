/* SPDX-License-Identifier: Apache-2.0 */
/* NSCC, as Ultra Ethernet describes it and MRC takes it over. */
#ifndef MRC_CORE_CC_NSCC_H
#define MRC_CORE_CC_NSCC_H

#include "cc_algorithm.h"

extern const struct mrc_cc_algorithm mrc_cc_nscc_algorithm;

#endif
