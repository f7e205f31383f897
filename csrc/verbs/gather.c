/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/gather.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/process.h"

static bool covers(const struct vb_mr *mr, const struct ibv_pd *pd, const struct ibv_sge *sge) {
  if (!mr || mr->mr.pd != pd) return false;
  const uint64_t first = (uint64_t)(uintptr_t)mr->mr.addr;
  /* In this order nothing wraps. */
  return sge->addr >= first && sge->length <= mr->mr.length &&
         sge->addr - first <= mr->mr.length - sge->length;
}

int vb_gather(const struct ibv_pd *pd, const struct ibv_sge *sges, int n, uint8_t **copy,
              uint32_t *bytes) {
  uint64_t sum = 0;
  for (int i = 0; i < n; i++) {
    if (sges[i].length > 0 && !covers(vb_process_mr(sges[i].lkey), pd, &sges[i])) return EACCES;
    sum += sges[i].length;
  }
  if (sum > UINT32_MAX) return EINVAL;
  *bytes = (uint32_t)sum;
  *copy = NULL;
  if (sum == 0) return 0;
  *copy = malloc(sum);
  if (!*copy) return ENOMEM;
  size_t at = 0;
  for (int i = 0; i < n; at += sges[i].length, i++)
    if (sges[i].length > 0)
      memcpy(*copy + at, (const void *)(uintptr_t)sges[i].addr, sges[i].length);
  return 0;
}
