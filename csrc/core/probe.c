/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include <errno.h>
#include <string.h>

#include "burst.h"
#include "loss.h"
#include "port_status.h"
#include "reverse.h"

#define HEALTH_TIMEOUT_FLOOR_NS 10000000ull /* patience of a probe of ours */

/* How the slots are shared: commands take half of them at most; a QP's own probes an eighth of what
   is free, so that a QP with many bad EVs leaves room for the next; the last few are for port
   status. */
#define MAX_COMMANDED (MRC_MAX_EV_PROBES / 2)
#define QP_SHARE 8
#define KEPT_FOR_STATUS 64

_Static_assert(65536 % MRC_MAX_EV_PROBES == 0, "an id names its slot");

/* A slot at random, so that nobody can answer a probe that he has not seen; or the next free one.
 */
static struct mrc_ev_probe *new_probe(struct mrc_engine *engine) {
  uint16_t id = (uint16_t)mrc_secret_next(&engine->ev_probe_ids);
  for (int tries = 0; tries < MRC_MAX_EV_PROBES; tries++, id++) {
    struct mrc_ev_probe *probe = &engine->ev_probes[id % MRC_MAX_EV_PROBES];
    if (probe->purpose != MRC_EV_PROBE_FREE) continue;
    *probe = (struct mrc_ev_probe){.id = id};
    return probe;
  }
  return NULL;
}

static void enqueue(struct mrc_engine *engine, uint16_t slot) {
  mrc_assert(engine->n_unsent_ev_probes < MRC_MAX_EV_PROBES);
  const uint32_t tail = engine->ev_probe_head + engine->n_unsent_ev_probes++;
  engine->ev_probe_queue[tail % MRC_MAX_EV_PROBES] = slot;
}

static bool is_of_probation(uint8_t purpose) {
  return purpose == MRC_EV_PROBE_EV || purpose == MRC_EV_PROBE_PLANE;
}

static bool is_own(uint8_t purpose) {
  return is_of_probation(purpose) || purpose == MRC_EV_PROBE_REVERSE;
}

static bool has_room(const struct mrc_engine *engine, const struct mrc_qp *qp, uint8_t purpose) {
  const uint32_t free_slots = MRC_MAX_EV_PROBES - engine->n_ev_probes;
  if (purpose == MRC_EV_PROBE_PORT_STATUS) return free_slots > 0;
  if (free_slots <= KEPT_FOR_STATUS) return false;
  if (purpose == MRC_EV_PROBE_COMMAND) return engine->n_commanded < MAX_COMMANDED;
  return qp->n_ev_probes < mrc_max_u32(1, (free_slots - KEPT_FOR_STATUS) / QP_SHARE);
}

/* A probe of the kind that `like` describes; 0 when there is no room for it. `qp` is 0 for a port
   status. */
static struct mrc_ev_probe *start(struct mrc_engine *engine, struct mrc_qp *qp,
                                  const struct mrc_ev_probe *like) {
  if (!has_room(engine, qp, like->purpose)) return NULL;
  struct mrc_ev_probe *probe = new_probe(engine);
  mrc_assert(probe != NULL);
  const uint16_t id = probe->id;
  *probe = *like;
  probe->id = id;
  if (qp != NULL) probe->qp = qp->index;
  engine->n_ev_probes++;
  if (like->purpose == MRC_EV_PROBE_PORT_STATUS) engine->peers.peers[like->peer].status.messages++;
  if (is_own(like->purpose)) qp->n_ev_probes++;
  if (like->purpose == MRC_EV_PROBE_COMMAND) {
    engine->n_commanded++;
    qp->n_commanded++;
  }
  enqueue(engine, id % MRC_MAX_EV_PROBES);
  return probe;
}

/* A slot came free: it passes to a message that waits, or else to the next QP in turn. */
static void wake(struct mrc_engine *engine) {
  if (mrc_port_status_on_room(engine) || mrc_list_is_empty(&engine->slot_waiting)) return;
  struct mrc_qp *qp = MRC_NODE_OWNER(engine->slot_waiting.next, struct mrc_qp, slot_waiting);
  mrc_node_leave(&qp->slot_waiting);
  qp->ev_probe_ns = 0;
  mrc_qp_touch(engine, qp);
}

static void vacate(struct mrc_engine *engine, struct mrc_ev_probe *probe) {
  struct mrc_qp *qp = engine->qps[probe->qp];
  mrc_timers_set(&engine->ev_probe_timers, probe->id % MRC_MAX_EV_PROBES, MRC_NEVER);
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS)
    engine->peers.peers[probe->peer].status.messages--;
  if (is_own(probe->purpose)) qp->n_ev_probes--;
  if (probe->purpose == MRC_EV_PROBE_COMMAND) {
    engine->n_commanded--;
    qp->n_commanded--;
  }
  engine->n_ev_probes--;
  probe->purpose = MRC_EV_PROBE_FREE;
}

static void release(struct mrc_engine *engine, struct mrc_ev_probe *probe) {
  vacate(engine, probe);
  wake(engine);
}

/* ---- who wants probes ---- */

/* Commands find room for their events even when nobody polls: there is a place for each that is
   outstanding. */
static bool has_room_for_event(const struct mrc_engine *engine) {
  return engine->event_tail - engine->event_head + engine->n_commanded < MRC_EVENT_RING / 4 * 3;
}

static int check_command(const struct mrc_engine *engine, const struct mrc_probe_attr *attr) {
  const struct mrc_qp *qp = mrc_engine_qp(engine, attr->qpn);
  if (qp == NULL) return -ENOENT;
  if (!mrc_qp_is_live(qp) || attr->ev_index >= qp->evset.n) return -EINVAL;
  if (qp->evset.evs[attr->ev_index].state == MRC_EV_DENIED) return -EINVAL;
  if (attr->bytes > MRC_MAX_MTU + MRC_DATA_OVERHEAD_BYTES || attr->timeout_ns == 0) return -EINVAL;
  return attr->dscp <= 63 ? 0 : -EINVAL;
}

int mrc_engine_probe_evs(struct mrc_engine *engine, const struct mrc_probe_attr *probes, int n,
                         uint64_t now_ns) {
  engine->now_ns = now_ns;
  for (int i = 0; i < n; i++) {
    const int error = check_command(engine, &probes[i]);
    if (error != 0) return error;
  }
  int taken = 0;
  for (; taken < n && has_room_for_event(engine); taken++) {
    const struct mrc_probe_attr *attr = &probes[taken];
    const struct mrc_ev_probe like = {.ev = (uint16_t)attr->ev_index,
                                      .bytes = attr->bytes,
                                      .timeout_ns = attr->timeout_ns,
                                      .purpose = MRC_EV_PROBE_COMMAND,
                                      .cookie = attr->cookie,
                                      .dscp = attr->dscp};
    if (start(engine, mrc_engine_qp(engine, attr->qpn), &like) == NULL) break;
  }
  return taken;
}

const struct mrc_ev_probe *mrc_port_status_message(struct mrc_engine *engine,
                                                   const struct mrc_peer *peer,
                                                   uint64_t timeout_ns) {
  const struct mrc_ev_probe like = {
      .peer = peer->index, .timeout_ns = timeout_ns, .purpose = MRC_EV_PROBE_PORT_STATUS};
  return start(engine, NULL, &like);
}

bool mrc_ev_probe_is_queued(const struct mrc_engine *engine, const struct mrc_peer *peer,
                            uint16_t id) {
  const struct mrc_ev_probe *probe = &engine->ev_probes[id % MRC_MAX_EV_PROBES];
  return probe->purpose == MRC_EV_PROBE_PORT_STATUS && probe->peer == peer->index &&
         probe->id == id && !probe->sent;
}

bool mrc_ev_probe_reverse(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                          uint64_t timeout_ns) {
  const struct mrc_ev_probe like = {
      .ev = ev, .timeout_ns = timeout_ns, .purpose = MRC_EV_PROBE_REVERSE};
  return start(engine, qp, &like) != NULL;
}

/* The round trip of the QP is that of whatever EV answers: one on a much longer way would never be
   waited for, and stay bad for good. What its own probes took is known beside it. */
static uint64_t patience_ns(const struct mrc_qp *qp, const struct mrc_ev *ev) {
  const uint64_t floor_ns = mrc_floor_ns(HEALTH_TIMEOUT_FLOOR_NS, qp->noise_ns);
  const uint64_t overdue_ns = mrc_max_u64(mrc_rtt_overdue_ns(&qp->req.rtt, 0), ev->rtt_ns);
  return mrc_max_u64(2 * overdue_ns, floor_ns);
}

/* Probes of ours are as large as a full packet, so that a path that shrank is not trusted. False
   when there is no slot: it stays due. */
static bool probe_for(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev, uint8_t purpose,
                      struct mrc_probation *probation, uint64_t now_ns) {
  if (ev == MRC_EV_NONE) { /* all are DENIED */
    mrc_probation_on_timeout(probation, qp->noise_ns, now_ns);
    return true;
  }
  const struct mrc_ev_probe like = {.ev = ev,
                                    .bytes = qp->attr.path_mtu + MRC_DATA_OVERHEAD_BYTES,
                                    .timeout_ns = patience_ns(qp, &qp->evset.evs[ev]),
                                    .purpose = purpose};
  if (start(engine, qp, &like) == NULL) return false;
  mrc_probation_on_probe(probation);
  return true;
}

/* The planes that want a probe now get one; returns when the next wants one. */
static uint64_t probe_planes(struct mrc_engine *engine, struct mrc_qp *qp, bool *room,
                             uint64_t now_ns) {
  uint64_t next_ns = MRC_NEVER;
  for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1) {
    const uint32_t index = (uint32_t)__builtin_ctz(planes);
    struct mrc_plane *plane = &qp->planes[index];
    if (!plane->suspended || !(engine->ports_up >> index & 1)) continue;
    if (now_ns >= plane->probation.next_ns && *room)
      *room = probe_for(engine, qp, mrc_evset_any(&qp->evset, index), MRC_EV_PROBE_PLANE,
                        &plane->probation, now_ns);
    if (plane->probation.next_ns > now_ns) next_ns = mrc_min_u64(next_ns, plane->probation.next_ns);
  }
  return next_ns;
}

/* Likewise the EVs. It begins where the slots gave out the last time, so that all have their turn.
 */
static uint64_t probe_evs(struct mrc_engine *engine, struct mrc_qp *qp, bool *room,
                          uint64_t now_ns) {
  uint64_t next_ns = MRC_NEVER;
  const uint16_t first = qp->next_ev_probe;
  for (uint16_t k = 0; k < qp->evset.n; k++) {
    const uint16_t i = (uint16_t)((first + k) % qp->evset.n);
    struct mrc_ev *ev = &qp->evset.evs[i];
    if (ev->state != MRC_EV_ASSUMED_BAD || qp->planes[ev->port - 1].suspended) continue;
    if (now_ns >= ev->probation.next_ns && *room) {
      *room = probe_for(engine, qp, i, MRC_EV_PROBE_EV, &ev->probation, now_ns);
      if (!*room) qp->next_ev_probe = i;
    }
    if (ev->probation.next_ns > now_ns) next_ns = mrc_min_u64(next_ns, ev->probation.next_ns);
  }
  return next_ns;
}

void mrc_ev_probe_on_deadline(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  if (qp->state != MRC_QP_RTS || now_ns < qp->ev_probe_ns) return;
  bool room = true;
  const uint64_t plane_ns = probe_planes(engine, qp, &room, now_ns);
  qp->ev_probe_ns = mrc_min_u64(plane_ns, probe_evs(engine, qp, &room, now_ns));
  if (room) return;
  mrc_list_append(&engine->slot_waiting, &qp->slot_waiting);
  /* The turn may pass to one that needs it no more: then this one is not forgotten for long. */
  const uint64_t longest_ns = mrc_probation_slowest_ns(qp->noise_ns);
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, now_ns + longest_ns);
}

/* ---- how they end ---- */

static void end_command(struct mrc_engine *engine, const struct mrc_ev_probe *probe,
                        const struct mrc_qp *qp, int result, bool ce, uint64_t now_ns) {
  const struct mrc_event event = {.type = MRC_EVENT_PROBE,
                                  .cookie = probe->cookie,
                                  .qpn = qp->qpn,
                                  .ev_index = probe->ev,
                                  .port = qp->evset.evs[probe->ev].port,
                                  .result = result,
                                  .status = ce,
                                  .rtt_ns = result == 0 ? (int64_t)(now_ns - probe->sent_ns) : 0};
  mrc_event_push(engine, &event);
}

/* The rest of what a failure means, but for a port status. */
static void on_failure(struct mrc_engine *engine, const struct mrc_ev_probe *probe, int error,
                       uint64_t now_ns) {
  struct mrc_qp *qp = engine->qps[probe->qp];
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  struct mrc_plane *plane = &qp->planes[ev->port - 1];
  if (probe->purpose == MRC_EV_PROBE_COMMAND) end_command(engine, probe, qp, error, false, now_ns);
  if (probe->purpose == MRC_EV_PROBE_REVERSE)
    mrc_reverse_on_failure(qp, probe->ev, probe->sent_ns != 0);
  if (probe->purpose == MRC_EV_PROBE_EV)
    mrc_probation_on_timeout(&ev->probation, qp->noise_ns, now_ns);
  if (probe->purpose == MRC_EV_PROBE_PLANE)
    mrc_probation_on_timeout(&plane->probation, qp->noise_ns, now_ns);
  if (is_of_probation(probe->purpose)) qp->ev_probe_ns = 0; /* look again at once */
  mrc_qp_touch(engine, qp);
}

static void fail(struct mrc_engine *engine, struct mrc_ev_probe *probe, int error,
                 uint64_t now_ns) {
  const struct mrc_ev_probe ended = *probe;
  release(engine, probe);
  if (ended.purpose == MRC_EV_PROBE_PORT_STATUS)
    mrc_port_status_on_failure(engine, &engine->peers.peers[ended.peer], &ended, error, now_ns);
  else
    on_failure(engine, &ended, error, now_ns);
}

/* A path answered: what that means to the EV or the plane on probation. */
static void on_alive(struct mrc_engine *engine, const struct mrc_ev_probe *probe, struct mrc_qp *qp,
                     bool ce, uint64_t now_ns) {
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  const uint32_t index = ev->port - 1u;
  struct mrc_plane *plane = &qp->planes[index];
  if (probe->purpose == MRC_EV_PROBE_EV && ev->state == MRC_EV_ASSUMED_BAD &&
      mrc_probation_on_success(&ev->probation, qp->noise_ns, now_ns)) {
    mrc_evset_on_trust(&qp->evset, probe->ev);
    mrc_count(engine, MRC_COUNTER_EVS_TRUSTED, 1);
    mrc_loss_report_ev(engine, qp, probe->ev, MRC_REASON_PROBES);
    if (ce)
      mrc_evset_on_skip(&qp->evset, probe->ev, probe->sent_ns, now_ns); /* alive, but congested */
  }
  if (probe->purpose == MRC_EV_PROBE_PLANE && plane->suspended &&
      mrc_probation_on_success(&plane->probation, qp->noise_ns, now_ns)) {
    mrc_endpoint_on_port_proved(engine, qp->peer, index, now_ns);
    mrc_loss_resume_plane(engine, qp, index, MRC_REASON_PROBES);
  }
  qp->ev_probe_ns = 0;
}

static void succeed(struct mrc_engine *engine, struct mrc_ev_probe *probe, bool ce,
                    uint64_t now_ns) {
  const struct mrc_ev_probe ended = *probe;
  const uint64_t rtt_ns = now_ns - ended.sent_ns;
  release(engine, probe);
  if (ended.purpose == MRC_EV_PROBE_PORT_STATUS) {
    mrc_port_status_on_answer(engine, &engine->peers.peers[ended.peer], &ended, now_ns);
    return;
  }
  struct mrc_qp *qp = engine->qps[ended.qp];
  struct mrc_ev *ev = &qp->evset.evs[ended.ev];
  mrc_trace(engine, MRC_TRACE_EV_PROBE_IN, qp->qpn, ended.id, rtt_ns);
  mrc_rtt_smooth(&ev->rtt_ns, rtt_ns);
  mrc_evset_on_delivered(&qp->evset, ended.ev, 0, qp->planes[ev->port - 1].rack_ns);
  if (qp->state == MRC_QP_RTR) { /* the first data must not be impatient on a long way */
    mrc_rtt_sample(&qp->planes[ev->port - 1].rtt, rtt_ns);
    mrc_rtt_sample(&qp->req.rtt, rtt_ns);
  }
  if (ended.purpose == MRC_EV_PROBE_COMMAND)
    end_command(engine, &ended, qp, 0, ce, now_ns);
  else if (ended.purpose == MRC_EV_PROBE_REVERSE)
    mrc_reverse_on_answer(qp, ended.ev, rtt_ns);
  else
    on_alive(engine, &ended, qp, ce, now_ns);
  mrc_qp_touch(engine, qp);
}

void mrc_ev_probe_expire(struct mrc_engine *engine, uint64_t now_ns) {
  for (;;) {
    const uint32_t slot = mrc_timers_pop(&engine->ev_probe_timers, now_ns);
    if (slot == UINT32_MAX) return;
    fail(engine, &engine->ev_probes[slot], -ETIMEDOUT, now_ns);
  }
}

/* Slots were vacated: none is given away before the queue has forgotten them all. */
static void give_away(struct mrc_engine *engine, uint32_t n_slots) {
  const uint32_t n = engine->n_unsent_ev_probes, head = engine->ev_probe_head;
  engine->n_unsent_ev_probes = 0;
  for (uint32_t i = 0; i < n; i++) {
    const uint16_t slot = engine->ev_probe_queue[(head + i) % MRC_MAX_EV_PROBES];
    if (engine->ev_probes[slot].purpose != MRC_EV_PROBE_FREE) enqueue(engine, slot);
  }
  for (; n_slots > 0; n_slots--)
    wake(engine);
}

void mrc_ev_probe_drop_qp(struct mrc_engine *engine, struct mrc_qp *qp) {
  mrc_node_leave(&qp->slot_waiting);
  const uint32_t n = qp->n_ev_probes + qp->n_commanded;
  if (n == 0) return;
  for (uint32_t slot = 0; slot < MRC_MAX_EV_PROBES; slot++) {
    struct mrc_ev_probe *probe = &engine->ev_probes[slot];
    const bool of_qp = is_own(probe->purpose) || probe->purpose == MRC_EV_PROBE_COMMAND;
    if (of_qp && probe->qp == qp->index) vacate(engine, probe);
  }
  give_away(engine, n);
}

void mrc_ev_probe_drop_messages(struct mrc_engine *engine, const struct mrc_peer *peer) {
  const uint32_t n = peer->status.messages;
  if (n == 0) return;
  for (uint32_t slot = 0; slot < MRC_MAX_EV_PROBES; slot++) {
    struct mrc_ev_probe *probe = &engine->ev_probes[slot];
    if (probe->purpose == MRC_EV_PROBE_PORT_STATUS && probe->peer == peer->index)
      vacate(engine, probe);
  }
  give_away(engine, n);
}

/* ---- out and in ---- */

static uint8_t op_of(const struct mrc_ev_probe *probe) {
  return probe->purpose == MRC_EV_PROBE_PORT_STATUS ? MRC_ENDPOINT_PORT_STATUS
                                                    : MRC_ENDPOINT_EV_PROBE;
}

static bool send_probe(struct mrc_engine *engine, struct mrc_ev_probe *probe, uint64_t now_ns) {
  struct mrc_qp *qp = engine->qps[probe->qp];
  struct mrc_burst *burst =
      mrc_burst_open(engine, qp, probe->ev, (uint8_t)(probe->dscp << 2 | MRC_TCLASS_DATA));
  if (burst == NULL) return false;
  const bool port_status = probe->purpose == MRC_EV_PROBE_PORT_STATUS;
  probe->ports_up = engine->ports_up;
  probe->tx_timestamp = mrc_timestamp(now_ns);
  struct mrc_wire wire = {.opcode = MRC_OP_ENDPOINT_REQUEST,
                          .dest_qpn = MRC_ENDPOINT_QPN,
                          .psn = probe->id,
                          .endpoint = {.op = op_of(probe),
                                       .port_status_mask = port_status ? probe->ports_up : 0,
                                       .tx_timestamp = probe->tx_timestamp,
                                       .tsr = true}};
  mrc_burst_add_padded(engine, burst, &wire, probe->id % MRC_MAX_EV_PROBES, probe->bytes);
  mrc_trace(engine, port_status ? MRC_TRACE_PORT_STATUS_OUT : MRC_TRACE_EV_PROBE_OUT, qp->qpn,
            probe->id, port_status ? probe->ports_up : probe->ev);
  return true;
}

/* Whether the probe may leave now: 1, 0 when its port's socket is full, or a negative errno. A port
   status takes whichever port is free. */
static int aim(struct mrc_engine *engine, struct mrc_ev_probe *probe) {
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) {
    struct mrc_peer *peer = &engine->peers.peers[probe->peer];
    const uint32_t usable = engine->ports_up & ~engine->ports_blocked;
    struct mrc_qp *qp;
    const bool now = mrc_port_status_choose(engine, peer, usable, &qp, &probe->ev);
    if (!now && !mrc_port_status_choose(engine, peer, engine->ports_up, &qp, &probe->ev))
      return -ENETUNREACH;
    probe->qp = qp->index;
    return now;
  }
  const struct mrc_ev *ev = &engine->qps[probe->qp]->evset.evs[probe->ev];
  const uint32_t plane = ev->port - 1u;
  if (ev->state == MRC_EV_DENIED || !(engine->ports_up >> plane & 1)) return -ENETUNREACH;
  return mrc_port_usable(engine, plane);
}

/* Every probe waiting is looked at once; those whose port is full wait until it is not. */
bool mrc_ev_probe_transmit(struct mrc_engine *engine, uint64_t now_ns) {
  engine->n_ev_probes_stuck = 0;
  for (uint32_t n = engine->n_unsent_ev_probes; n > 0; n--) {
    const uint16_t slot = engine->ev_probe_queue[engine->ev_probe_head % MRC_MAX_EV_PROBES];
    struct mrc_ev_probe *probe = &engine->ev_probes[slot];
    engine->ev_probe_head++;
    engine->n_unsent_ev_probes--;
    mrc_assert(probe->purpose != MRC_EV_PROBE_FREE);
    const int aimed = aim(engine, probe);
    if (aimed < 0) {
      fail(engine, probe, aimed, now_ns);
    } else if (aimed == 0) {
      enqueue(engine, slot);
      engine->n_ev_probes_stuck++;
    } else if (!send_probe(engine, probe, now_ns)) {
      enqueue(engine, slot);
      return false;
    }
  }
  return true;
}

void mrc_ev_probe_on_commit(struct mrc_engine *engine, uint32_t slot, int taken, uint64_t now_ns) {
  struct mrc_ev_probe *probe = &engine->ev_probes[slot];
  if (probe->purpose == MRC_EV_PROBE_FREE) return;
  if (taken == 0) {
    enqueue(engine, (uint16_t)slot);
  } else if (taken < 0) {
    probe->sent_ns = now_ns;
    fail(engine, probe, taken, now_ns);
  } else {
    probe->sent = true;
    probe->sent_ns = now_ns;
    mrc_timers_set(&engine->ev_probe_timers, slot, now_ns + probe->timeout_ns);
    if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) {
      mrc_count(engine, MRC_COUNTER_TX_PORT_STATUS, 1);
    } else {
      struct mrc_qp *qp = engine->qps[probe->qp];
      struct mrc_ev *ev = &qp->evset.evs[probe->ev];
      ev->probes++;
      qp->planes[ev->port - 1].unsendable = false;
      mrc_count(engine, MRC_COUNTER_TX_EV_PROBES, 1);
    }
  }
}

/* Whether the answer comes from where the probe went. Under SRv6 EVs have destinations of their
   own, from which the peer does not send: then any of its sources will do. */
static bool is_from_destination(const struct mrc_engine *engine, const struct mrc_ev_probe *probe,
                                const struct mrc_peer *peer, const struct mrc_meta *meta) {
  uint8_t src[16], dst[16];
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) return true; /* its QP may be gone */
  mrc_evset_addresses(&engine->qps[probe->qp]->evset, probe->ev, src, dst);
  return memcmp(dst, meta->src, 16) == 0 || !mrc_peer_sends_from(&engine->peers, peer, dst);
}

int mrc_endpoint_on_response(struct mrc_engine *engine, const struct mrc_wire *packet,
                             const struct mrc_meta *meta, uint64_t now_ns) {
  const uint16_t id = (uint16_t)packet->psn;
  struct mrc_ev_probe *probe = &engine->ev_probes[id % MRC_MAX_EV_PROBES];
  if (probe->purpose == MRC_EV_PROBE_FREE || probe->id != id || !probe->sent ||
      packet->endpoint.op != op_of(probe) || packet->endpoint.tx_timestamp != probe->tx_timestamp)
    return mrc_drop(engine, MRC_DROP_UNKNOWN_ID, MRC_ENDPOINT_QPN, 0);
  struct mrc_peer *peer = probe->purpose == MRC_EV_PROBE_PORT_STATUS
                              ? &engine->peers.peers[probe->peer]
                              : engine->qps[probe->qp]->peer;
  if (!mrc_peer_knows(&engine->peers, peer, meta->src, meta->sport) ||
      !is_from_destination(engine, probe, peer, meta))
    return mrc_drop(engine, MRC_DROP_SOURCE, MRC_ENDPOINT_QPN, 0);
  mrc_peer_prove(&engine->peers, peer);
  succeed(engine, probe, packet->endpoint.m == MRC_M_SKIP_ONCE, now_ns);
  return MRC_DROP_NONE;
}
