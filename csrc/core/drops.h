/* SPDX-License-Identifier: Apache-2.0 */
/* Why a received packet is ignored: the numbers of drops.def. 0 means that it was taken. */
#ifndef MRC_CORE_DROPS_H
#define MRC_CORE_DROPS_H

enum mrc_drop {
  MRC_DROP_NONE,
#define X(name, meaning) MRC_DROP_##name,
#include "drops.def"
#undef X
  MRC_DROP_COUNT
};

#endif
