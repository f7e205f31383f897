/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine tells: completions, and the ring of events with what becomes of those that find
   it full. */
#include "engine.h"
#include "responder.h"

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

/* Each of them once; who got something and wants more stands behind who got nothing. */
static void resume_held(struct mrc_engine *engine) {
  const struct mrc_node *const last = engine->held.prev;
  struct mrc_node *at = &engine->held, *next = engine->held.next;
  while (at != last) {
    at = next;
    next = at->next;
    const bool went_on = mrc_responder_resume(engine, MRC_NODE_OWNER(at, struct mrc_qp, held));
    if (!went_on || !mrc_node_joined(at)) continue;
    mrc_node_leave(at);
    mrc_list_append(&engine->held, at);
  }
}

int mrc_cq_poll(struct mrc_engine *engine, struct mrc_wc *wcs, int capacity) {
  int n = 0;
  bool of_qp;
  for (; n < capacity && mrc_cq_pop(&engine->cq, &wcs[n], &of_qp); n++) {
    if (!of_qp) continue;
    struct mrc_qp *qp = mrc_engine_qp(engine, wcs[n].qpn);
    uint32_t *places =
        wcs[n].opcode == MRC_WC_RECV_IMM ? &qp->resp.wimm_unpolled : &qp->req.sq_used;
    mrc_assert(*places > 0);
    --*places;
  }
  if (n > 0 && !mrc_list_is_empty(&engine->held)) resume_held(engine);
  return n;
}
