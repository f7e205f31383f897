/* SPDX-License-Identifier: Apache-2.0 */
/* Event channels: queues with a descriptor that is readable while they hold events. */
#pragma once

#include "cm/process.h"

struct cm_channel *cm_channel_create(void);
void cm_channel_destroy(struct cm_channel *channel);

/* Appends an event of an id to its channel; the event is freed with the program's acknowledgement.
   Under the lock. */
void cm_channel_put(struct cm_id *id, struct cm_event *event);
/* The same for one that this library makes itself. False: no memory. */
bool cm_channel_raise(struct cm_id *id, enum rdma_cm_event_type type, int status);
/* The next event; waits, unless the program has made the descriptor O_NONBLOCK. NULL: errno.
   Without the lock. */
struct cm_event *cm_channel_take(struct cm_channel *channel);
/* Moves the events of an id to another channel. Under the lock. */
void cm_channel_move(struct cm_id *id, struct cm_channel *to);
/* Takes the events of an id out of its channel, and returns them as a list. Under the lock. */
struct cm_event *cm_channel_forget(struct cm_id *id);
