/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/chains.h"

#include <errno.h>
#include <stdlib.h>

int mrc_msg_chains_init(struct mrc_msg_chains *chains, uint32_t n) {
  n = mrc_ceil_pow2(n);
  *chains = (struct mrc_msg_chains){.heads = malloc(n * sizeof *chains->heads), .mask = n - 1};
  if (chains->heads == NULL) return -ENOMEM;
  for (uint32_t i = 0; i < n; i++)
    mrc_list_init(&chains->heads[i]);
  return 0;
}

void mrc_msg_chains_free(struct mrc_msg_chains *chains) { free(chains->heads); }
