/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous events: of the contexts of a process. */
#pragma once

#include "verbs/objects.h"

/* Under the lock. Raises an event in one context. */
void vb_async_raise(struct ibv_context *context, struct ibv_async_event event);
/* Under the lock. An event of a QP. */
void vb_async_raise_qp(struct vb_qp *qp, enum ibv_event_type type);
/* Under the lock. An event of the device, for every context. */
void vb_async_raise_all(enum ibv_event_type type, int port);
/* The next event; waits on the descriptor, without the lock. -1 and errno. */
int vb_async_take(struct ibv_context *context, struct ibv_async_event *event);
/* Under the lock. Whether the event is of our device, whose objects exist until all their events
   are acknowledged. */
bool vb_async_is_ours(const struct ibv_async_event *event);
void vb_async_acknowledge(const struct ibv_async_event *event);
/* Under the lock. Events of an object that is destroyed, if the program has not taken them. */
void vb_async_forget(struct ibv_context *context, const void *element);
