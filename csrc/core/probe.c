/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include <errno.h>
#include <string.h>

#include "burst.h"
#include "loss.h"
#include "port_status.h"

#define HEALTH_TIMEOUT_FLOOR_NS 10000000ull /* patience of a probe of ours */

_Static_assert(65536 % MRC_MAX_EV_PROBES == 0, "an id names its slot");

static struct mrc_ev_probe *new_probe(struct mrc_engine *engine) {
  for (int tries = 0; tries < MRC_MAX_EV_PROBES; tries++) {
    const uint16_t id = engine->next_ev_probe_id++;
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

/* 0 when there are too many. */
static struct mrc_ev_probe *start(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                                  uint32_t bytes, uint64_t timeout_ns, uint8_t purpose,
                                  uint64_t cookie) {
  if (engine->n_unsent_ev_probes == MRC_MAX_EV_PROBES) return NULL;
  struct mrc_ev_probe *probe = new_probe(engine);
  if (probe == NULL) return NULL;
  probe->qp = qp->index;
  probe->ev = ev;
  probe->bytes = bytes;
  probe->timeout_ns = timeout_ns;
  probe->purpose = purpose;
  probe->cookie = cookie;
  enqueue(engine, probe->id % MRC_MAX_EV_PROBES);
  return probe;
}

/* Commands leave half of the slots to probes of the engine's own, and find room for their events
   even when nobody polls: there is a place for each that is outstanding. */
static bool has_room_for_command(const struct mrc_engine *engine) {
  const uint32_t events = engine->event_tail - engine->event_head + engine->n_commanded;
  return engine->n_commanded < MRC_MAX_EV_PROBES / 2 && events < MRC_EVENT_RING / 4 * 3;
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
  for (; taken < n && has_room_for_command(engine); taken++) {
    const struct mrc_probe_attr *attr = &probes[taken];
    struct mrc_qp *qp = mrc_engine_qp(engine, attr->qpn);
    struct mrc_ev_probe *probe = start(engine, qp, (uint16_t)attr->ev_index, attr->bytes,
                                       attr->timeout_ns, MRC_EV_PROBE_COMMAND, attr->cookie);
    if (probe == NULL) break;
    probe->dscp = attr->dscp;
    engine->n_commanded++;
    mrc_qp_touch(engine, qp); /* something is to be sent, or waits for its port */
  }
  return taken;
}

const struct mrc_ev_probe *mrc_port_status_message(struct mrc_engine *engine, struct mrc_qp *qp,
                                                   uint16_t ev, uint64_t timeout_ns) {
  return start(engine, qp, ev, 0, timeout_ns, MRC_EV_PROBE_PORT_STATUS, 0);
}

/* Probes of ours are as large as a full packet, so that a path that shrank is not trusted. */
static void probe_for(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev, uint8_t purpose,
                      struct mrc_probation *probation, uint64_t now_ns) {
  const uint64_t patience = mrc_max_u64(2 * mrc_rtt_overdue_ns(&qp->req.rtt, 0),
                                        mrc_floor_ns(HEALTH_TIMEOUT_FLOOR_NS, qp->noise_ns));
  const uint32_t bytes = qp->attr.path_mtu + MRC_DATA_OVERHEAD_BYTES;
  if (ev != MRC_EV_NONE && start(engine, qp, ev, bytes, patience, purpose, 0) != NULL)
    mrc_probation_on_probe(probation);
  else
    mrc_probation_on_timeout(probation, now_ns);
}

void mrc_ev_probe_on_deadline(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  if (qp->state != MRC_QP_RTS || now_ns < qp->ev_probe_ns) return;
  uint64_t next_ns = MRC_NEVER;
  for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1) {
    const uint32_t index = (uint32_t)__builtin_ctz(planes);
    struct mrc_plane *plane = &qp->planes[index];
    if (!plane->suspended || plane->peer_down || !(engine->ports_up >> index & 1)) continue;
    if (now_ns >= plane->probation.next_ns)
      probe_for(engine, qp, mrc_evset_any(&qp->evset, index), MRC_EV_PROBE_PLANE, &plane->probation,
                now_ns);
    next_ns = mrc_min_u64(next_ns, plane->probation.next_ns);
  }
  for (uint16_t i = 0; i < qp->evset.n; i++) {
    struct mrc_ev *ev = &qp->evset.evs[i];
    if (ev->state != MRC_EV_ASSUMED_BAD || qp->planes[ev->attr.port - 1].suspended) continue;
    if (now_ns >= ev->probation.next_ns)
      probe_for(engine, qp, i, MRC_EV_PROBE_EV, &ev->probation, now_ns);
    next_ns = mrc_min_u64(next_ns, ev->probation.next_ns);
  }
  qp->ev_probe_ns = next_ns;
}

static void release(struct mrc_engine *engine, struct mrc_ev_probe *probe) {
  mrc_timers_set(&engine->ev_probe_timers, probe->id % MRC_MAX_EV_PROBES, MRC_NEVER);
  if (probe->purpose == MRC_EV_PROBE_COMMAND) engine->n_commanded--;
  probe->purpose = MRC_EV_PROBE_FREE;
}

static void end_command(struct mrc_engine *engine, const struct mrc_ev_probe *probe,
                        const struct mrc_qp *qp, int result, bool ce, uint64_t now_ns) {
  const struct mrc_event event = {.type = MRC_EVENT_PROBE,
                                  .cookie = probe->cookie,
                                  .qpn = qp->qpn,
                                  .ev_index = probe->ev,
                                  .port = qp->evset.evs[probe->ev].attr.port,
                                  .result = result,
                                  .status = ce,
                                  .rtt_ns = result == 0 ? (int64_t)(now_ns - probe->sent_ns) : 0};
  mrc_event_push(engine, &event);
}

static void fail(struct mrc_engine *engine, struct mrc_ev_probe *probe, int error,
                 uint64_t now_ns) {
  struct mrc_qp *qp = engine->qps[probe->qp];
  mrc_assert(qp != NULL);
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  struct mrc_plane *plane = &qp->planes[ev->attr.port - 1];
  if (probe->purpose == MRC_EV_PROBE_COMMAND) end_command(engine, probe, qp, error, false, now_ns);
  if (probe->purpose == MRC_EV_PROBE_EV) mrc_probation_on_timeout(&ev->probation, now_ns);
  if (probe->purpose == MRC_EV_PROBE_PLANE) mrc_probation_on_timeout(&plane->probation, now_ns);
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS)
    mrc_port_status_on_failure(qp, probe, error, now_ns);
  qp->ev_probe_ns = 0; /* look again at once */
  release(engine, probe);
  mrc_qp_touch(engine, qp);
}

static void succeed(struct mrc_engine *engine, struct mrc_ev_probe *probe, struct mrc_qp *qp,
                    bool ce, uint64_t now_ns) {
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  const uint32_t index = ev->attr.port - 1u;
  struct mrc_plane *plane = &qp->planes[index];
  const uint64_t rtt_ns = now_ns - probe->sent_ns;
  mrc_rtt_sample(&ev->rtt, rtt_ns);
  if (qp->state == MRC_QP_RTR) { /* the first data must not be impatient on a long way */
    mrc_rtt_sample(&plane->rtt, rtt_ns);
    mrc_rtt_sample(&qp->req.rtt, rtt_ns);
  }
  if (probe->purpose == MRC_EV_PROBE_COMMAND) end_command(engine, probe, qp, 0, ce, now_ns);
  if (probe->purpose == MRC_EV_PROBE_EV && ev->state == MRC_EV_ASSUMED_BAD &&
      mrc_probation_on_success(&ev->probation, now_ns)) {
    mrc_evset_on_trust(&qp->evset, probe->ev);
    mrc_count(engine, MRC_COUNTER_EVS_TRUSTED, 1);
    mrc_loss_report_ev(engine, qp, probe->ev, MRC_REASON_PROBES);
    if (ce)
      mrc_evset_on_skip(&qp->evset, probe->ev, probe->sent_ns, now_ns); /* alive, but congested */
  }
  if (probe->purpose == MRC_EV_PROBE_PLANE && plane->suspended &&
      mrc_probation_on_success(&plane->probation, now_ns))
    mrc_loss_resume_plane(engine, qp, index, MRC_REASON_PROBES);
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS)
    mrc_port_status_on_answer(engine, qp, probe, now_ns);
  qp->ev_probe_ns = 0;
  release(engine, probe);
  mrc_qp_touch(engine, qp);
}

void mrc_ev_probe_expire(struct mrc_engine *engine, uint64_t now_ns) {
  for (;;) {
    const uint32_t slot = mrc_timers_pop(&engine->ev_probe_timers, now_ns);
    if (slot == UINT32_MAX) return;
    fail(engine, &engine->ev_probes[slot], -ETIMEDOUT, now_ns);
  }
}

static void drop_freed_from_queue(struct mrc_engine *engine) {
  const uint32_t n = engine->n_unsent_ev_probes, head = engine->ev_probe_head;
  engine->n_unsent_ev_probes = 0;
  for (uint32_t i = 0; i < n; i++) {
    const uint16_t slot = engine->ev_probe_queue[(head + i) % MRC_MAX_EV_PROBES];
    if (engine->ev_probes[slot].purpose != MRC_EV_PROBE_FREE) enqueue(engine, slot);
  }
}

void mrc_ev_probe_drop_qp(struct mrc_engine *engine, const struct mrc_qp *qp) {
  for (uint32_t slot = 0; slot < MRC_MAX_EV_PROBES; slot++) {
    struct mrc_ev_probe *probe = &engine->ev_probes[slot];
    if (probe->purpose != MRC_EV_PROBE_FREE && probe->qp == qp->index) release(engine, probe);
  }
  drop_freed_from_queue(engine);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < engine->n_answers; i++) {
    const struct mrc_answer answer = engine->answers[(engine->answer_head + i) % MRC_MAX_ANSWERS];
    if (answer.qp == qp->index) continue;
    engine->answers[(engine->answer_head + kept++) % MRC_MAX_ANSWERS] = answer;
  }
  engine->n_answers = kept;
  engine->n_answers_stuck = 0;
}

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
  struct mrc_wire wire = {.opcode = MRC_OP_ENDPOINT_REQUEST,
                          .dest_qpn = MRC_ENDPOINT_QPN,
                          .psn = probe->id,
                          .endpoint = {.op = op_of(probe),
                                       .port_status_mask = port_status ? probe->ports_up : 0,
                                       .tx_timestamp = mrc_timestamp(now_ns),
                                       .tsr = true}};
  mrc_burst_add_padded(engine, burst, &wire, probe->id % MRC_MAX_EV_PROBES, probe->bytes);
  mrc_trace(engine, port_status ? MRC_TRACE_PORT_STATUS_OUT : MRC_TRACE_EV_PROBE_OUT, qp->qpn,
            probe->id, port_status ? probe->ports_up : probe->ev);
  return true;
}

/* Every probe waiting is looked at once; those whose port is full wait for the next transmit. */
bool mrc_ev_probe_transmit(struct mrc_engine *engine, uint64_t now_ns) {
  for (uint32_t n = engine->n_unsent_ev_probes; n > 0; n--) {
    const uint16_t slot = engine->ev_probe_queue[engine->ev_probe_head % MRC_MAX_EV_PROBES];
    struct mrc_ev_probe *probe = &engine->ev_probes[slot];
    engine->ev_probe_head++;
    engine->n_unsent_ev_probes--;
    mrc_assert(probe->purpose != MRC_EV_PROBE_FREE);
    const struct mrc_ev *ev = &engine->qps[probe->qp]->evset.evs[probe->ev];
    if (ev->state == MRC_EV_DENIED || !(engine->ports_up >> (ev->attr.port - 1) & 1)) {
      fail(engine, probe, -ENETUNREACH, now_ns);
      continue;
    }
    if (!mrc_port_usable(engine, ev->attr.port - 1u)) {
      enqueue(engine, slot);
      continue;
    }
    if (!send_probe(engine, probe, now_ns)) {
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
      engine->qps[probe->qp]->evset.evs[probe->ev].probes++;
      mrc_count(engine, MRC_COUNTER_TX_EV_PROBES, 1);
    }
  }
}

int mrc_endpoint_on_response(struct mrc_engine *engine, const struct mrc_wire *packet,
                             const struct mrc_meta *meta, uint64_t now_ns) {
  const uint16_t id = (uint16_t)packet->psn;
  struct mrc_ev_probe *probe = &engine->ev_probes[id % MRC_MAX_EV_PROBES];
  if (probe->purpose == MRC_EV_PROBE_FREE || probe->id != id || !probe->sent ||
      packet->endpoint.op != op_of(probe))
    return mrc_drop(engine, MRC_DROP_UNKNOWN_ID, MRC_ENDPOINT_QPN, 0);
  struct mrc_qp *qp = engine->qps[probe->qp];
  if (!mrc_qp_knows_source(qp, meta->src))
    return mrc_drop(engine, MRC_DROP_SOURCE, MRC_ENDPOINT_QPN, 0);
  if (probe->purpose != MRC_EV_PROBE_PORT_STATUS)
    mrc_trace(engine, MRC_TRACE_EV_PROBE_IN, qp->qpn, id, now_ns - probe->sent_ns);
  succeed(engine, probe, qp, packet->endpoint.m == MRC_M_SKIP_ONCE, now_ns);
  return MRC_DROP_NONE;
}
