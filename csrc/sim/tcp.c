/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/tcp.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"

enum { ARRIVED, FLYING, LOST }; /* states of a segment */

enum { INITIAL_WINDOW = 10, LEAST_WINDOW = 2, MAX_BACKOFF = 6 };

#define SECOND_NS 1e9
#define LEAST_BEYOND_NS 200000000ull /* as in Linux */
#define FIRST_RTO_NS 1000000000ull

/* ---- CUBIC: constants and names of RFC 9438 ---- */

static const double C = 0.4, BETA = 0.7, ALPHA = 3 * (1 - 0.7) / (1 + 0.7);

/* Newton's method from above, without libm. */
static double cube_root(double x) {
  if (x <= 0) return 0;
  double root = x > 1 ? x : 1;
  for (int i = 0; i < 100; i++)
    root -= (root * root * root - x) / (3 * root * root);
  return root;
}

static void decrease(struct mrc_cubic *cubic) {
  const bool shrank = cubic->cwnd < cubic->max; /* fast convergence: leaves room for a new flow */
  cubic->max = shrank ? cubic->cwnd * (1 + BETA) / 2 : cubic->cwnd;
  cubic->ssthresh = cubic->cwnd * BETA;
  if (cubic->ssthresh < LEAST_WINDOW) cubic->ssthresh = LEAST_WINDOW;
  cubic->epoch_ns = 0;
}

static double curve(const struct mrc_cubic *cubic, double t) {
  const double beyond = t - cubic->k;
  return C * beyond * beyond * beyond + cubic->max;
}

/* One more segment was acknowledged. */
static void grow(struct mrc_cubic *cubic, uint64_t rtt_ns, uint64_t now_ns) {
  if (cubic->cwnd < cubic->ssthresh) {
    cubic->cwnd += 1;
    return;
  }
  if (cubic->epoch_ns == 0) {
    if (cubic->max < cubic->cwnd) cubic->max = cubic->cwnd;
    cubic->epoch_ns = now_ns;
    cubic->estimate = cubic->cwnd;
    cubic->k = cube_root((cubic->max - cubic->cwnd) / C);
  }
  const double t = (double)(now_ns - cubic->epoch_ns) / SECOND_NS;
  cubic->estimate += (cubic->estimate < cubic->max ? ALPHA : 1) / cubic->cwnd;
  if (curve(cubic, t) < cubic->estimate) {
    if (cubic->cwnd < cubic->estimate) cubic->cwnd = cubic->estimate;
    return;
  }
  double target = curve(cubic, t + (double)rtt_ns / SECOND_NS);
  if (target > 1.5 * cubic->cwnd) target = 1.5 * cubic->cwnd;
  if (target > cubic->cwnd) cubic->cwnd += (target - cubic->cwnd) / cubic->cwnd;
}

/* ---- the sender ---- */

void mrc_tcp_sender_init(struct mrc_tcp_sender *sender) {
  *sender =
      (struct mrc_tcp_sender){.cubic = {.cwnd = INITIAL_WINDOW, .ssthresh = MRC_TCP_MAX_WINDOW},
                              .deadline_ns = MRC_NEVER,
                              .state = calloc(MRC_TCP_MAX_WINDOW, sizeof(*sender->state)),
                              .sent_ns = calloc(MRC_TCP_MAX_WINDOW, sizeof(*sender->sent_ns))};
  mrc_assert(sender->state && sender->sent_ns);
}

void mrc_tcp_sender_free(struct mrc_tcp_sender *sender) {
  free(sender->state);
  free(sender->sent_ns);
}

static uint32_t place(uint64_t segment) { return (uint32_t)(segment % MRC_TCP_MAX_WINDOW); }

static uint64_t rto_ns(const struct mrc_tcp_sender *sender) {
  const struct mrc_rtt *rtt = &sender->rtt;
  const uint64_t rto =
      rtt->smooth_ns != 0 ? mrc_rtt_overdue_ns(rtt, LEAST_BEYOND_NS) : FIRST_RTO_NS;
  return rto << mrc_min_u32(sender->timeouts, MAX_BACKOFF);
}

bool mrc_tcp_may_send(struct mrc_tcp_sender *sender) {
  sender->full = sender->in_flight + 1 > sender->cubic.cwnd;
  if (sender->full && !sender->urgent) return false;
  return sender->n_lost > 0 || sender->next - sender->unacked < MRC_TCP_MAX_WINDOW;
}

static uint64_t oldest_lost(struct mrc_tcp_sender *sender) {
  uint64_t segment = mrc_max_u64(sender->lost_from, sender->unacked);
  while (sender->state[place(segment)] != LOST)
    segment++;
  mrc_assert(segment < sender->next);
  sender->lost_from = segment;
  return segment;
}

uint64_t mrc_tcp_on_sent(struct mrc_tcp_sender *sender, uint64_t now_ns) {
  const bool again = sender->n_lost > 0;
  const uint64_t segment = again ? oldest_lost(sender) : sender->next++;
  mrc_assert(sender->next - sender->unacked <= MRC_TCP_MAX_WINDOW);
  sender->state[place(segment)] = FLYING;
  sender->sent_ns[place(segment)] = now_ns;
  sender->in_flight++;
  sender->n_lost -= again;
  sender->packets++;
  sender->again += again;
  sender->urgent = false;
  if (sender->deadline_ns == MRC_NEVER) sender->deadline_ns = now_ns + rto_ns(sender);
  return segment;
}

/* A segment was acknowledged; false if it was acknowledged before. */
static bool settle(struct mrc_tcp_sender *sender, uint64_t segment) {
  uint8_t *state = &sender->state[place(segment)];
  sender->in_flight -= *state == FLYING;
  sender->n_lost -= *state == LOST;
  const bool is_new = *state != ARRIVED;
  *state = ARRIVED;
  return is_new;
}

static void lose(struct mrc_tcp_sender *sender, uint64_t segment) {
  sender->state[place(segment)] = LOST;
  sender->in_flight--;
  sender->n_lost++;
  sender->losses++;
  sender->lost_from = mrc_min_u64(sender->lost_from, segment);
}

/* A segment counts as lost when a segment sent a quarter of a round trip later has arrived. */
static void find_losses(struct mrc_tcp_sender *sender) {
  bool congested = false;
  for (uint64_t segment = sender->unacked; segment < sender->next; segment++) {
    if (sender->state[place(segment)] != FLYING) continue;
    if (sender->sent_ns[place(segment)] + sender->rtt.base_ns / 4 >= sender->newest_ns) continue;
    congested |= segment >= sender->recover;
    lose(sender, segment);
  }
  if (!congested) return;
  decrease(&sender->cubic);
  sender->cubic.cwnd = sender->cubic.ssthresh;
  sender->recover = sender->next;
  sender->recovers = true;
  sender->urgent = true;
}

void mrc_tcp_on_ack(struct mrc_tcp_sender *sender, const struct mrc_tcp_ack *ack, uint64_t now_ns) {
  if (ack->expected > sender->next || ack->came >= sender->next) return;
  uint32_t arrived = 0;
  if (ack->came >= sender->unacked) arrived += settle(sender, ack->came);
  for (; sender->unacked < ack->expected; sender->unacked++) {
    arrived += settle(sender, sender->unacked);
    sender->timeouts = 0;
    sender->deadline_ns = MRC_NEVER;
  }
  mrc_rtt_sample(&sender->rtt, now_ns - ack->sent_ns);
  sender->newest_ns = mrc_max_u64(sender->newest_ns, ack->sent_ns);
  if (sender->unacked >= sender->recover) sender->recovers = false;
  if (sender->full && !sender->recovers)
    for (uint32_t i = 0; i < arrived; i++)
      grow(&sender->cubic, sender->rtt.smooth_ns, now_ns);
  if (ack->came >= sender->unacked || sender->n_lost > 0 || sender->unacked < sender->recover)
    find_losses(sender);
  if (sender->deadline_ns == MRC_NEVER && sender->unacked < sender->next)
    sender->deadline_ns = now_ns + rto_ns(sender);
}

void mrc_tcp_on_timeout(struct mrc_tcp_sender *sender) {
  for (uint64_t segment = sender->unacked; segment < sender->next; segment++)
    if (sender->state[place(segment)] == FLYING) lose(sender, segment);
  if (sender->timeouts++ == 0) decrease(&sender->cubic);
  sender->cubic.cwnd = 1;
  sender->recover = sender->next;
  sender->recovers = false;
  sender->deadline_ns = MRC_NEVER; /* until the next segment is sent */
}

/* ---- the receiver ---- */

void mrc_tcp_receiver_init(struct mrc_tcp_receiver *receiver) {
  *receiver =
      (struct mrc_tcp_receiver){.came = calloc(MRC_TCP_MAX_WINDOW, sizeof(*receiver->came))};
  mrc_assert(receiver->came);
}

void mrc_tcp_receiver_free(struct mrc_tcp_receiver *receiver) { free(receiver->came); }

bool mrc_tcp_receive(struct mrc_tcp_receiver *receiver, uint64_t segment) {
  mrc_assert(segment < receiver->expected + MRC_TCP_MAX_WINDOW);
  if (segment < receiver->expected || receiver->came[place(segment)]) {
    receiver->repeated++;
    return false;
  }
  receiver->came[place(segment)] = true;
  for (; receiver->came[place(receiver->expected)]; receiver->expected++)
    receiver->came[place(receiver->expected)] = false;
  return true;
}
