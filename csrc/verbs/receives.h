/* SPDX-License-Identifier: Apache-2.0 */
/* Receive queues. Under the lock of the process. */
#pragma once

#include "verbs/objects.h"

/* `with_memory`: messages are copied to the memory of receives. 0 or ENOMEM. */
int vb_receives_init(struct vb_receives *receives, uint32_t most, uint32_t max_sge,
                     bool with_memory);
void vb_receives_free(struct vb_receives *receives);
static inline uint32_t vb_receives_n(const struct vb_receives *receives) {
  return receives->tail - receives->head;
}
/* Posts a list. 0, or a positive errno and in `bad` the first that was not posted. */
int vb_receives_post(struct vb_receives *receives, struct ibv_recv_wr *list,
                     struct ibv_recv_wr **bad);
/* Takes the oldest one, which must exist; copies its memory to `sges`, unless that is NULL. */
struct vb_receive vb_receives_take(struct vb_receives *receives, struct ibv_sge *sges);
