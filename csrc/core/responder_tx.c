/* SPDX-License-Identifier: Apache-2.0 */
/* What the responder says: SACKs, NACKs and transport ACKs, several of them in one burst. */
#include "burst.h"
#include "responder.h"
#include "reverse.h"

static uint16_t ev_of_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t plane) {
  if (!mrc_port_usable(engine, plane) || qp->planes[plane].peer_down) return MRC_EV_NONE;
  return mrc_reverse_ev(qp, plane);
}

/* The EV on which to answer what came in on `port`: a plane that just delivered works, unless it is
   known that answers get lost there. Any other plane serves when that one cannot be sent on, a
   suspended one before none at all. */
static uint16_t reverse_ev(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t port) {
  uint16_t ev = MRC_EV_NONE;
  if (port != 0 && mrc_reverse_works(qp, port - 1u)) ev = ev_of_plane(engine, qp, port - 1u);
  for (int lossy = 0; lossy < 2 && ev == MRC_EV_NONE; lossy++) {
    for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1) {
      const uint32_t plane = (uint32_t)__builtin_ctz(planes);
      if (qp->planes[plane].suspended || mrc_reverse_works(qp, plane) == lossy) continue;
      ev = ev_of_plane(engine, qp, plane);
      if (ev != MRC_EV_NONE) break;
    }
    if (ev == MRC_EV_NONE && port != 0) ev = ev_of_plane(engine, qp, port - 1u);
  }
  for (uint32_t planes = qp->evset.plane_mask; planes != 0 && ev == MRC_EV_NONE;
       planes &= planes - 1)
    ev = ev_of_plane(engine, qp, (uint32_t)__builtin_ctz(planes));
  return ev;
}

static void add_sack(struct mrc_engine *engine, struct mrc_burst *burst, struct mrc_qp *qp,
                     const struct mrc_sack_trigger *t, uint32_t base, uint64_t bitmap) {
  const struct mrc_rxwin *win = &qp->resp.win;
  const uint32_t cum_psn = mrc_psn_sub(win->next_psn, 1);
  /* The reflected timestamp is shifted by the time that the packet waited here. What waited longer
     than 15 bits can say gives the peer no round trip. */
  const uint64_t waited_units = (engine->now_ns - t->arrived_ns) >> 10;
  const uint16_t service_time = (uint16_t)mrc_min_u64(waited_units, INT16_MAX + 1);
  const int32_t out_of_order = mrc_psn_diff(win->end_psn, win->next_psn);
  struct mrc_wire wire = {
      .opcode = MRC_OP_SACK,
      .dest_qpn = qp->attr.dest_qpn,
      .psn = cum_psn,
      .sack = {
          .ack_psn_offset = t->pr ? (int16_t)t->probe_id : (int16_t)mrc_psn_diff(t->psn, cum_psn),
          .m = t->m,
          .pr = t->pr,
          .ev = t->ev,
          .spdcid = (uint16_t)qp->qpn,
          .dpdcid = (uint16_t)qp->attr.dest_qpn,
          .cum_psn = cum_psn,
          .mpr = qp->attr.dynamic_mpr != 0 ? (uint8_t)(qp->resp.mpr / MRC_MPR_UNIT) : 0,
          .sack_offset = (int16_t)mrc_psn_diff(base, cum_psn),
          .bitmap = bitmap,
          .tx_timestamp = (uint16_t)(t->tx_timestamp + service_time),
          .ooo_count = (uint16_t)(out_of_order > 0 ? out_of_order : 0),
          .rcvd_bytes = (uint32_t)((qp->resp.bytes_received + 255) / 256) & 0xFFFFFF}};
  mrc_burst_add(engine, burst, &wire, MRC_KIND_SACK, base, mrc_qp_has_icrc(qp));
  mrc_trace(engine, MRC_TRACE_SACK_OUT, qp->qpn, cum_psn, bitmap);
  qp->resp.unsacked_bytes -=
      mrc_min_u32(qp->resp.unsacked_bytes, engine->config.sack_threshold_bytes);
}

/* Answers a reliability probe with all there is to tell. */
static void add_full_report(struct mrc_engine *engine, struct mrc_burst *burst, struct mrc_qp *qp,
                            const struct mrc_sack_trigger *t) {
  const struct mrc_rxwin *win = &qp->resp.win;
  uint32_t base = win->next_psn;
  do {
    add_sack(engine, burst, qp, t, base, mrc_rxwin_view(win, base));
    base = mrc_psn_add(base, 64);
  } while (mrc_psn_before(base, win->end_psn) && mrc_burst_has_room(engine, burst));
}

/* Says what the plane delivered, on that plane: a slow one must not delay the news of a fast one,
   for what is late looks lost. */
static void add_reports(struct mrc_engine *engine, struct mrc_burst *burst, struct mrc_qp *qp,
                        const struct mrc_sack_trigger *t) {
  uint64_t words = t->words;
  do {
    uint32_t base;
    const uint64_t bitmap = mrc_rxwin_report(&qp->resp.win, &words, &base);
    add_sack(engine, burst, qp, t, base, bitmap);
  } while (words != 0 && mrc_burst_has_room(engine, burst));
}

/* The SACKs due for packets that came in on one port, in one burst. */
static bool flush_port(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t port) {
  struct mrc_responder *resp = &qp->resp;
  const uint16_t ev = reverse_ev(engine, qp, port);
  struct mrc_burst *burst =
      ev == MRC_EV_NONE ? NULL : mrc_burst_open(engine, qp, ev, MRC_TCLASS_CONTROL);
  if (burst == NULL) return false;
  uint8_t kept = 0;
  for (uint8_t i = 0; i < resp->n_triggers; i++) {
    const struct mrc_sack_trigger t = resp->triggers[i];
    if (t.port != port || (burst->n_packets > 0 && !mrc_burst_has_room(engine, burst))) {
      resp->triggers[kept++] = t;
      continue;
    }
    if (t.pr)
      add_full_report(engine, burst, qp, &t);
    else
      add_reports(engine, burst, qp, &t);
    resp->told = t;
    resp->told.pr = false;
    resp->told.m = MRC_M_NONE;
  }
  resp->n_triggers = kept;
  mrc_assert(burst->n_packets > 0);
  return true;
}

/* All that there is to report, whether or not a trigger stands for it. */
static bool flush_all(struct mrc_engine *engine, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  do {
    if (resp->n_triggers == 0) {
      resp->told.words = resp->win.unreported; /* news for which no trigger stands any more */
      resp->triggers[resp->n_triggers++] = resp->told;
    }
    if (!flush_port(engine, qp, resp->triggers[0].port)) return false;
  } while (resp->n_triggers > 0 || mrc_rxwin_has_news(&resp->win));
  resp->sack_now = false;
  return true;
}

/* The port whose SACK is due, or 0. When enough has come for a SACK the planes take turns. */
static uint8_t due_port(const struct mrc_engine *engine, const struct mrc_responder *resp) {
  for (uint8_t i = 0; i < resp->n_triggers; i++)
    if (resp->triggers[i].now) return resp->triggers[i].port;
  const bool enough = resp->unsacked_bytes >= engine->config.sack_threshold_bytes;
  return resp->n_triggers > 0 && enough ? resp->triggers[0].port : 0;
}

static bool flush_sacks(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_responder *resp = &qp->resp;
  if (now_ns >= resp->sack_deadline_ns) resp->sack_now = true;
  if (resp->last_port == 0) return true;
  if (resp->sack_now && !flush_all(engine, qp)) return false;
  for (uint8_t port; (port = due_port(engine, resp)) != 0;)
    if (!flush_port(engine, qp, port)) return false;
  if (resp->n_triggers == 0) resp->unsacked_bytes = 0;
  resp->sack_deadline_ns =
      resp->n_triggers == 0 ? MRC_NEVER : resp->triggers[0].first_ns + engine->config.sack_delay_ns;
  return true;
}

/* The burst at hand, when another NACK for this port fits; otherwise a new one, or 0. */
static struct mrc_burst *burst_for_nack(struct mrc_engine *engine, struct mrc_qp *qp,
                                        struct mrc_burst *burst, uint8_t port) {
  if (burst != NULL && burst->port == port && mrc_burst_has_room(engine, burst)) return burst;
  const uint16_t ev = reverse_ev(engine, qp, port);
  return ev == MRC_EV_NONE ? NULL : mrc_burst_open(engine, qp, ev, MRC_TCLASS_CONTROL);
}

static bool flush_nacks(struct mrc_engine *engine, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  struct mrc_burst *burst = NULL;
  while (resp->n_nacks > 0) {
    const struct mrc_nack_out *nack = &resp->nacks[resp->n_nacks - 1];
    burst = burst_for_nack(engine, qp, burst, nack->port);
    if (burst == NULL) return false;
    struct mrc_wire wire = {.opcode = MRC_OP_NACK,
                            .dest_qpn = qp->attr.dest_qpn,
                            .psn = nack->psn,
                            .nack = {.reason = nack->reason,
                                     .ev = nack->ev,
                                     .spdcid = (uint16_t)qp->qpn,
                                     .dpdcid = (uint16_t)qp->attr.dest_qpn,
                                     .nack_psn = nack->psn,
                                     .cc_type = 2,
                                     .tx_timestamp = nack->tx_timestamp}};
    mrc_burst_add(engine, burst, &wire, MRC_KIND_NACK, resp->n_nacks - 1u, mrc_qp_has_icrc(qp));
    mrc_trace(engine, MRC_TRACE_NACK_OUT, qp->qpn, nack->psn, nack->reason);
    resp->n_nacks--;
  }
  return true;
}

/* The transport ACK rides behind the SACKs of the same burst when it can. */
static bool flush_ack(struct mrc_engine *engine, struct mrc_qp *qp, int first_burst) {
  struct mrc_responder *resp = &qp->resp;
  if (!resp->ack_wanted) return true;
  const uint8_t syndrome = resp->nak_syndrome != 0 ? resp->nak_syndrome : MRC_SYNDROME_ACK;
  struct mrc_wire wire = {.opcode = MRC_OP_ACK,
                          .dest_qpn = qp->attr.dest_qpn,
                          .psn = mrc_psn_sub(resp->win.next_psn, 1),
                          .aeth = {.syndrome = syndrome, .msn = resp->done_msn}};
  struct mrc_burst *burst = NULL;
  if (engine->n_bursts > first_burst) {
    burst = &engine->bursts[engine->n_bursts - 1];
    if (!mrc_burst_has_room(engine, burst)) burst = NULL;
  }
  if (burst == NULL) {
    const uint16_t ev = reverse_ev(engine, qp, resp->last_port);
    if (ev != MRC_EV_NONE) burst = mrc_burst_open(engine, qp, ev, MRC_TCLASS_CONTROL);
  }
  if (burst == NULL) return false;
  mrc_burst_add(engine, burst, &wire, MRC_KIND_ACK, 0, mrc_qp_has_icrc(qp));
  mrc_trace(engine, MRC_TRACE_ACK_OUT, qp->qpn, syndrome, resp->done_msn);
  resp->ack_wanted = false;
  return true;
}

bool mrc_responder_transmit(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  const int first_burst = engine->n_bursts;
  if (qp->state != MRC_QP_ERROR && !flush_nacks(engine, qp)) return false;
  if (qp->state != MRC_QP_ERROR && !flush_sacks(engine, qp, now_ns)) return false;
  return flush_ack(engine, qp, first_burst);
}

void mrc_responder_on_refused(struct mrc_engine *engine, struct mrc_qp *qp,
                              const struct mrc_packet *packet) {
  if (packet->_kind == MRC_KIND_ACK) qp->resp.ack_wanted = true;
  if (packet->_kind == MRC_KIND_SACK) {
    qp->resp.sack_now = true;
    mrc_rxwin_on_refused(&qp->resp.win, packet->_slot);
  }
  /* Nothing came since: what was sent stands where it stood, and the last sent comes back first. */
  if (packet->_kind == MRC_KIND_NACK)
    qp->resp.nacks[qp->resp.n_nacks++] = qp->resp.nacks[packet->_slot];
  mrc_qp_touch_to_answer(engine, qp);
}
