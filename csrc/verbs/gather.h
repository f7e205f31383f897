/* SPDX-License-Identifier: Apache-2.0 */
/* Several pieces of memory, copied into one: the engine sends from one MR. Under the lock. */
#ifndef MRC_VERBS_GATHER_H
#define MRC_VERBS_GATHER_H

#include "verbs/objects.h"

/* 0, and a copy that the caller frees: NULL if the pieces are empty. A positive errno: EACCES if
   no MR of the PD covers a piece, EINVAL if they are too long together, ENOMEM. */
int vb_gather(const struct ibv_pd *pd, const struct ibv_sge *sges, int n, uint8_t **copy,
              uint32_t *bytes);

#endif
