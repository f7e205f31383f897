/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/ev_cq.h"

#include <stdlib.h>
#include <string.h>

#include "verbs/process.h"

struct vb_ev_cq {
  struct vb_cq cq; /* its places hold no completions */
  struct vb_ev_cq *next;
  struct mrc_api_ev_event *events; /* ring of cq.size */
  uint32_t head;                   /* free-running */
  uint32_t tail;
  uint32_t dropped; /* since the newest in the ring */
};

static struct vb_ev_cq *of(struct vb_cq *cq) { return (struct vb_ev_cq *)cq; }

struct vb_cq *vb_ev_cq_create(struct ibv_context *context, int cqe, void *cq_context,
                              struct ibv_comp_channel *channel) {
  struct vb_ev_cq *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  if (vb_cq_init(&made->cq, context, cqe, cq_context, channel) != 0) {
    free(made);
    return NULL;
  }
  made->cq.of_evs = true;
  made->events = calloc(made->cq.size, sizeof *made->events);
  if (!made->events) {
    vb_cq_destroy(&made->cq);
    return NULL;
  }
  pr_lock();
  made->next = vb_objects.ev_cqs;
  vb_objects.ev_cqs = made;
  pr_unlock();
  return &made->cq;
}

int vb_ev_cq_destroy(struct vb_cq *cq) {
  pr_lock();
  struct vb_ev_cq **place = &vb_objects.ev_cqs;
  while (*place != of(cq))
    place = &(*place)->next;
  *place = of(cq)->next;
  pr_unlock();
  free(of(cq)->events);
  return vb_cq_destroy(cq);
}

void vb_ev_cq_push(const struct mrc_agent_ev_event *event) {
  for (struct vb_ev_cq *each = vb_objects.ev_cqs; each; each = each->next) {
    if (each->tail - each->head == each->cq.size) {
      each->dropped++;
      continue;
    }
    each->events[each->tail++ % each->cq.size] =
        (struct mrc_api_ev_event){.profile = event->profile,
                                  .ev = event->ev,
                                  .dropped = each->dropped,
                                  .state = event->state};
    each->dropped = 0;
    vb_cq_tell(&each->cq);
  }
}

int vb_ev_cq_take(struct vb_cq *cq, int n, struct mrc_api_ev_event *events, size_t stride) {
  struct vb_ev_cq *own = of(cq);
  int taken = 0;
  for (; taken < n && own->head != own->tail; taken++)
    memcpy((char *)events + (size_t)taken * stride, &own->events[own->head++ % cq->size], stride);
  return taken;
}
