/* SPDX-License-Identifier: Apache-2.0 */
#include "sack_send.h"

#include "core/send/burst.h"
#include "reverse.h"

#define MOST_NOISES 4 /* the most that many QPs delay a SACK: timers of the peer bear it */

/* When news that began at `first_ns` is due. */
static uint64_t due_ns(const struct mrc_services *services, uint64_t first_ns) {
  const struct mrc_engine_config *config = &services->config;
  const uint64_t most_ns = mrc_max_u64(config->sack_delay_ns, MOST_NOISES * config->noise_ns);
  const uint64_t delay_ns = (uint64_t)mrc_services_crowd(services) * config->sack_delay_ns;
  return first_ns + mrc_min_u64(delay_ns, most_ns);
}

/* Whether an answer is due now. */
static bool owes_answer(const struct mrc_services *services, const struct mrc_responder *resp,
                        bool now) {
  return now || resp->ack_wanted || resp->sack_now ||
         resp->unsacked_bytes >= services->config.sack_threshold_bytes;
}

void mrc_sack_want(struct mrc_services *services, struct mrc_qp *qp,
                   const struct mrc_arrivals *arrivals, const struct mrc_meta *meta) {
  struct mrc_responder *resp = &qp->resp;
  struct mrc_sack_trigger *news = mrc_responder_trigger(resp, arrivals->psn, arrivals->tx_timestamp,
                                                        meta, false, services->now_ns);
  news->news_words |= arrivals->words;
  if (mrc_services_reads(services, MRC_READING_S4_B) &&
      mrc_marked_take(&resp->marked, news->ev, arrivals->packets, news->m != MRC_M_NONE))
    news->m = MRC_M_ALWAYS_SKIP;
  news->now |= news->m != MRC_M_NONE || arrivals->now;
  resp->unsacked_bytes += arrivals->sack_bytes;
  if (resp->sack_deadline_ns == MRC_NEVER)
    mrc_responder_set_deadline(services, resp, due_ns(services, news->first_ns));
  if (owes_answer(services, resp, news->now))
    mrc_qp_touch_to_answer(services, qp);
  else
    mrc_qp_touch(services, qp);
}

#define PENALTY 64 /* of 128: a window's worth of SACKs halves the peer's window */

/* Packets were dropped here because this host is too slow. The peer does not see that as a delay:
   round trips are without the wait in our sockets. So SACKs reduce its window for a round trip. */
static uint8_t penalty_of(const struct mrc_services *services, const struct mrc_qp *qp) {
  if (services->overflow_ns == 0) return 0;
  const struct mrc_rtt *rtt = mrc_rtt_known(&qp->reverse.rtt) ? &qp->reverse.rtt : &qp->req.rtt;
  const uint64_t span_ns = mrc_rtt_known(rtt) ? rtt->base_ns : services->config.noise_ns;
  return services->now_ns - services->overflow_ns < span_ns ? PENALTY : 0;
}

static void add_sack(struct mrc_services *services, struct mrc_burst *burst, struct mrc_qp *qp,
                     const struct mrc_sack_trigger *t, uint32_t base, uint64_t bitmap) {
  const struct mrc_rxwin *win = &qp->resp.win;
  const uint32_t cum_psn = mrc_psn_sub(win->next_psn, 1);
  /* Adds the time that the packet waited here to the reflected timestamp. After a wait of more than
     15 bits the SACK gives the peer no round trip. */
  const uint64_t waited_units = (services->now_ns - t->arrived_ns) >> 10;
  const uint16_t service_time = mrc_services_reads(services, MRC_READING_G15_B)
                                    ? 0
                                    : (uint16_t)mrc_min_u64(waited_units, INT16_MAX + 1);
  const int32_t out_of_order = mrc_psn_diff(win->end_psn, win->next_psn);
  struct mrc_wire wire = {
      .opcode = MRC_OP_SACK,
      .dest_qpn = qp->attr.rtr.dest_qpn,
      .psn = cum_psn,
      .sack = {
          .ack_psn_offset = t->pr ? (int16_t)t->probe_id : (int16_t)mrc_psn_diff(t->psn, cum_psn),
          .m = t->m,
          .pr = t->pr,
          .ev = mrc_services_ev(services, t->ev),
          .spdcid = (uint16_t)qp->qpn,
          .dpdcid = (uint16_t)qp->attr.rtr.dest_qpn,
          .cum_psn = cum_psn,
          .cc_type = qp->attr.rtr.sack_times != 0 ? MRC_CC_TYPE_TIMES : MRC_CC_TYPE_NSCC,
          .mpr = qp->attr.rtr.dynamic_mpr != 0 ? (uint8_t)(qp->resp.mpr / MRC_MPR_UNIT) : 0,
          .sack_offset = (int16_t)mrc_psn_diff(base, cum_psn),
          .bitmap = bitmap,
          .tx_timestamp = (uint16_t)(t->tx_timestamp + service_time),
          .ooo_count = (uint16_t)(out_of_order > 0 ? out_of_order : 0),
          .sent_timestamp = mrc_timestamp(services->now_ns),
          .rcv_cwnd_pen = penalty_of(services, qp),
          .rcvd_bytes = (uint32_t)((qp->resp.received_bytes + 255) / 256) & 0xFFFFFF}};
  mrc_burst_add(services, burst, &wire, MRC_KIND_SACK, base, mrc_qp_has_icrc(qp));
  mrc_trace(services, MRC_TRACE_SACK_OUT, qp->qpn, cum_psn, bitmap);
  qp->resp.unsacked_bytes -=
      mrc_min_u32(qp->resp.unsacked_bytes, services->config.sack_threshold_bytes);
}

/* Answers a reliability probe with the bitmap of the whole window. */
static void add_full_report(struct mrc_services *services, struct mrc_burst *burst,
                            struct mrc_qp *qp, const struct mrc_sack_trigger *t) {
  const struct mrc_rxwin *win = &qp->resp.win;
  uint32_t base = win->next_psn;
  do {
    add_sack(services, burst, qp, t, base, mrc_rxwin_view(win, base));
    base = mrc_psn_add(base, 64);
  } while (mrc_psn_before(base, win->end_psn) && mrc_arena_has_room(&services->arena, burst));
}

/* Reports the packets of a plane on that plane: a slow plane must not delay the reports of a fast
   plane, because the requester would count the late packets as lost. */
static void add_reports(struct mrc_services *services, struct mrc_burst *burst, struct mrc_qp *qp,
                        const struct mrc_sack_trigger *t) {
  uint64_t news_words = t->news_words;
  do {
    uint32_t base;
    const uint64_t bitmap = mrc_rxwin_report(&qp->resp.win, &news_words, &base);
    add_sack(services, burst, qp, t, base, bitmap);
  } while (news_words != 0 && mrc_arena_has_room(&services->arena, burst));
}

/* The SACKs due for packets that came in on one port, in one burst. */
static bool flush_port(struct mrc_services *services, struct mrc_qp *qp, uint8_t port) {
  struct mrc_responder *resp = &qp->resp;
  const uint16_t ev = mrc_reverse_choose(services, qp, port);
  struct mrc_burst *burst =
      ev == MRC_EV_NONE ? NULL : mrc_burst_open(services, qp, ev, mrc_tclass_control(services));
  if (burst == NULL) return false;
  uint8_t kept = 0;
  for (uint8_t i = 0; i < resp->n_triggers; i++) {
    const struct mrc_sack_trigger t = resp->triggers[i];
    if (t.port != port || (burst->n_packets > 0 && !mrc_arena_has_room(&services->arena, burst))) {
      resp->triggers[kept++] = t;
      continue;
    }
    if (t.pr)
      add_full_report(services, burst, qp, &t);
    else
      add_reports(services, burst, qp, &t);
    resp->last_trigger = t;
    resp->last_trigger.pr = false;
    resp->last_trigger.m = MRC_M_NONE;
  }
  resp->n_triggers = kept;
  mrc_assert(burst->n_packets > 0);
  return true;
}

/* Sends all news, with or without a trigger. */
static bool flush_all(struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  do {
    if (resp->n_triggers == 0) {
      resp->last_trigger.news_words = resp->win.unreported; /* news whose trigger is gone */
      resp->triggers[resp->n_triggers++] = resp->last_trigger;
    }
    if (!flush_port(services, qp, resp->triggers[0].port)) return false;
  } while (resp->n_triggers > 0 || mrc_rxwin_has_news(&resp->win));
  resp->sack_now = false;
  return true;
}

bool mrc_sack_flush(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_responder *resp = &qp->resp;
  const uint32_t threshold_bytes = services->config.sack_threshold_bytes;
  if (now_ns >= resp->sack_deadline_ns) resp->sack_now = true;
  if (resp->last_port == 0) return true;
  if (resp->sack_now && !flush_all(services, qp)) return false;
  for (uint8_t port; (port = mrc_responder_due_port(resp, threshold_bytes)) != 0;)
    if (!flush_port(services, qp, port)) return false;
  if (resp->n_triggers == 0) resp->unsacked_bytes = 0;
  mrc_responder_set_deadline(
      services, resp,
      resp->n_triggers == 0 ? MRC_NEVER : due_ns(services, resp->triggers[0].first_ns));
  return true;
}
