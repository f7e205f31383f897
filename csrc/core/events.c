/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of events, and what becomes of those that find it full. */
#include "engine.h"

static struct mrc_event take_lost(struct mrc_engine *engine) {
  const struct mrc_event lost = {.type = MRC_EVENT_LOST, .cookie = engine->events_lost};
  engine->events_lost = 0;
  return lost;
}

void mrc_event_push(struct mrc_engine *engine, const struct mrc_event *event) {
  /* The last part of the ring is kept for what nobody may miss. */
  const bool news = event->type == MRC_EVENT_EV_STATE || event->type == MRC_EVENT_PLANE ||
                    event->type == MRC_EVENT_PORT || event->type == MRC_EVENT_PLANE_SHARE;
  const uint32_t limit = news ? MRC_EVENT_RING / 2 : MRC_EVENT_RING;
  const uint32_t used = engine->event_tail - engine->event_head;
  const uint32_t room = used < limit ? limit - used : 0;
  if (room < (news && engine->events_lost > 0 ? 2 : 1)) {
    mrc_count(engine, MRC_COUNTER_EVENTS_DROPPED, 1);
    engine->events_lost++;
    return;
  }
  /* What was lost is told before, but not at the cost of the last quarter of the ring. */
  if (engine->events_lost > 0 && room > (news ? 1 : MRC_EVENT_RING / 4))
    engine->events[engine->event_tail++ % MRC_EVENT_RING] = take_lost(engine);
  engine->events[engine->event_tail++ % MRC_EVENT_RING] = *event;
}

int mrc_engine_events(struct mrc_engine *engine, struct mrc_event *events, int capacity) {
  int n = 0;
  while (n < capacity && engine->event_head != engine->event_tail)
    events[n++] = engine->events[engine->event_head++ % MRC_EVENT_RING];
  if (n < capacity && engine->events_lost > 0) events[n++] = take_lost(engine);
  return n;
}
