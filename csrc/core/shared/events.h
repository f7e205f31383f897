/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of events for the controller. Events that find it full are dropped and counted. */
#ifndef MRC_CORE_EVENTS_H
#define MRC_CORE_EVENTS_H

#include "core/base/base.h"
#include "mrc.h"

#define MRC_EVENT_RING 8192 /* events held before polling */

struct mrc_events {
  struct mrc_event *ring; /* of MRC_EVENT_RING */
  uint32_t head;          /* next to take; free-running */
  uint32_t tail;          /* next to fill; free-running */
  uint64_t lost;          /* events dropped since the last MRC_EVENT_LOST */
};

/* 0 or -ENOMEM. */
int mrc_events_init(struct mrc_events *events) MRC_MUST_CHECK;
void mrc_events_free(struct mrc_events *events);
/* False if the event was dropped because the ring is full. */
bool mrc_events_push(struct mrc_events *events, const struct mrc_event *event);
/* Copies and removes the oldest events; returns their number. */
int mrc_events_take(struct mrc_events *events, struct mrc_event *to, int capacity);

#endif
