/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/receives.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int vb_receives_init(struct vb_receives *receives, uint32_t most, uint32_t max_sge,
                     bool with_memory) {
  *receives = (struct vb_receives){.max_sge = max_sge, .size = mrc_ceil_pow2(most), .most = most};
  receives->ring = calloc(receives->size, sizeof *receives->ring);
  if (with_memory && max_sge > 0)
    receives->sges = calloc((size_t)receives->size * max_sge, sizeof *receives->sges);
  const bool complete = receives->ring && (receives->sges || !with_memory || max_sge == 0);
  return complete ? 0 : ENOMEM;
}

void vb_receives_free(struct vb_receives *receives) {
  free(receives->ring);
  free(receives->sges);
}

static struct ibv_sge *sges_at(const struct vb_receives *receives, uint32_t place) {
  return receives->sges + (size_t)(place & (receives->size - 1)) * receives->max_sge;
}

int vb_receives_post(struct vb_receives *receives, struct ibv_recv_wr *list,
                     struct ibv_recv_wr **bad) {
  int error = 0;
  struct ibv_recv_wr *wr = list;
  for (; wr && error == 0; wr = wr->next) {
    if (wr->num_sge < 0 || wr->num_sge > (int)receives->max_sge) error = EINVAL;
    if (vb_receives_n(receives) >= receives->most) error = ENOMEM;
    if (error != 0) break;
    const uint32_t place = receives->tail++;
    const uint32_t n = (uint32_t)wr->num_sge;
    receives->ring[place & (receives->size - 1)] =
        (struct vb_receive){.wr_id = wr->wr_id, .n_sges = n};
    if (receives->sges && n > 0)
      memcpy(sges_at(receives, place), wr->sg_list, n * sizeof *wr->sg_list);
  }
  if (error != 0 && bad) *bad = wr;
  return error;
}

struct vb_receive vb_receives_take(struct vb_receives *receives, struct ibv_sge *sges) {
  const uint32_t place = receives->head++;
  const struct vb_receive taken = receives->ring[place & (receives->size - 1)];
  if (sges && receives->sges && taken.n_sges > 0)
    memcpy(sges, sges_at(receives, place), taken.n_sges * sizeof *sges);
  return taken;
}
