/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include <errno.h>
#include <stdlib.h>

int mrc_events_init(struct mrc_events *events) {
  *events = (struct mrc_events){.ring = calloc(MRC_EVENT_RING, sizeof *events->ring)};
  return events->ring == NULL ? -ENOMEM : 0;
}

void mrc_events_free(struct mrc_events *events) { free(events->ring); }

static struct mrc_event take_lost(struct mrc_events *events) {
  const struct mrc_event lost = {.type = MRC_EVENT_LOST, .cookie = events->lost};
  events->lost = 0;
  return lost;
}

bool mrc_events_push(struct mrc_events *events, const struct mrc_event *event) {
  /* State changes use half of the ring at most. The rest is reserved for the other events. */
  const bool news = event->type == MRC_EVENT_EV_STATE || event->type == MRC_EVENT_PLANE ||
                    event->type == MRC_EVENT_PORT || event->type == MRC_EVENT_PLANE_SHARE;
  const uint32_t limit = news ? MRC_EVENT_RING / 2 : MRC_EVENT_RING;
  const uint32_t used = events->tail - events->head;
  const uint32_t room = used < limit ? limit - used : 0;
  if (room < (news && events->lost > 0 ? 2 : 1)) {
    events->lost++;
    return false;
  }
  /* MRC_EVENT_LOST comes before the event, but does not use the last quarter of the ring. */
  if (events->lost > 0 && room > (news ? 1 : MRC_EVENT_RING / 4))
    events->ring[events->tail++ % MRC_EVENT_RING] = take_lost(events);
  events->ring[events->tail++ % MRC_EVENT_RING] = *event;
  return true;
}

int mrc_events_take(struct mrc_events *events, struct mrc_event *to, int capacity) {
  int n = 0;
  while (n < capacity && events->head != events->tail)
    to[n++] = events->ring[events->head++ % MRC_EVENT_RING];
  if (n < capacity && events->lost > 0) to[n++] = take_lost(events);
  return n;
}
