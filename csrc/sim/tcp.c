/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/tcp.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "sim/numbers.h"

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
  const uint64_t rto = mrc_rtt_known(rtt) ? mrc_rtt_overdue_ns(rtt, LEAST_BEYOND_NS) : FIRST_RTO_NS;
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

/* ---- hosts ---- */

/* The first byte of a header; no opcode of MRC or RoCE has these values. QP number and segment are
   at the offsets of QP number and PSN in a BTH, so that the trace shows them. */
enum { TCP_DATA = 0xF0, TCP_ACK = 0xF1 };

enum {
  HEADER_BYTES = 24, /* 32 bytes of TCP with timestamps, less 8 that the frame overhead includes */
  QPN_AT = 5,
  SEGMENT_AT = 9,
  TIME_AT = 12,
  EXPECTED_AT = 20
};

/* Both ends of a flow. */
struct tcp_flow {
  struct mrc_tcp_sender sender;
  struct mrc_tcp_receiver receiver;
  uint32_t labels[2]; /* flow labels of each end, which switches hash with ECMP */
  uint32_t next_at;   /* number + 1 of the next TCP flow that begins at the same host */
  uint32_t path;
  bool started;
};

static struct tcp_flow *state_of(const struct mrc_tcp_hosts *tcp, uint32_t index) {
  return tcp->hosts->flows->at[index].state;
}

/* The number close to `near` with these last 24 bits. */
static uint64_t unwrap(const uint8_t *bytes, uint64_t near) {
  return near + (uint64_t)(int64_t)mrc_psn_diff(mrc_get_u24(bytes), (uint32_t)near & MRC_PSN_MASK);
}

/* ---- connecting ---- */

static void connect(void *transport, uint32_t index) {
  struct mrc_tcp_hosts *tcp = transport;
  struct mrc_sim_flow *flow = &tcp->hosts->flows->at[index];
  struct tcp_flow *own = calloc(1, sizeof(*own));
  mrc_assert(own);
  flow->state = own;
  flow->plane = flow->config.tcp_plane - 1;
  own->path = flow->config.paths ? (uint32_t)__builtin_ctzll(flow->config.paths) : 0;
  for (uint32_t end = MRC_FROM; end <= MRC_TO; end++)
    own->labels[end] = (uint32_t)mrc_prng_next(&tcp->hosts->world->prng) & 0xFFFFF;
  mrc_tcp_sender_init(&own->sender);
  mrc_tcp_receiver_init(&own->receiver);
  own->next_at = tcp->first[flow->config.from];
  tcp->first[flow->config.from] = index + 1;
}

static int post(void *transport, uint32_t index) {
  state_of(transport, index)->started = true;
  return 0;
}

/* ---- sending ---- */

static void send_frame(struct mrc_tcp_hosts *tcp, uint32_t index, uint32_t end, uint8_t kind,
                       uint64_t segment, uint64_t sent_ns) {
  struct mrc_fabric *fabric = tcp->hosts->fabric;
  const struct mrc_sim_flow *flow = &tcp->hosts->flows->at[index];
  const struct tcp_flow *own = flow->state;
  struct mrc_frame *packet = mrc_frame_pool_get(&fabric->pool);
  packet->header[0] = kind;
  mrc_put_u24(&packet->header[QPN_AT], mrc_flow_qpn(index, 1 - end));
  mrc_put_u24(&packet->header[SEGMENT_AT], (uint32_t)segment);
  memcpy(&packet->header[TIME_AT], &sent_ns, sizeof sent_ns);
  if (kind == TCP_ACK) mrc_put_u24(&packet->header[EXPECTED_AT], (uint32_t)own->receiver.expected);
  packet->header_bytes = HEADER_BYTES;
  packet->payload = tcp->memory;
  packet->payload_bytes = kind == TCP_DATA ? flow->config.bytes : 0;
  packet->flow_label = own->labels[end];
  packet->sport = mrc_sim_source_port(flow->plane);
  packet->from = mrc_flow_host(flow, end);
  packet->to = mrc_flow_host(flow, 1 - end);
  packet->path = (uint16_t)own->path;
  packet->plane = (uint8_t)flow->plane;
  packet->transport = MRC_HOST_TCP;
  mrc_fabric_set_usids(fabric, packet);
  mrc_fabric_send(fabric, packet);
}

static bool may_send(struct mrc_tcp_hosts *tcp, const struct mrc_sim_flow *flow) {
  struct tcp_flow *own = flow->state;
  const uint64_t sndbuf_bytes = tcp->hosts->world->config.sndbuf_bytes;
  return own->started && mrc_tcp_may_send(&own->sender) &&
         mrc_sim_host_takes(tcp->hosts, flow->config.from, MRC_HOST_TCP, flow->plane,
                            sndbuf_bytes + sndbuf_bytes / 2);
}

/* Sends one segment of every flow in turn, until no flow may send. */
static void send_all(struct mrc_tcp_hosts *tcp, uint32_t host) {
  const uint64_t now_ns = tcp->hosts->world->now_ns;
  for (bool sent = true; sent;) {
    sent = false;
    for (uint32_t at = tcp->first[host]; at;) {
      struct tcp_flow *own = state_of(tcp, at - 1);
      const bool ready = may_send(tcp, &tcp->hosts->flows->at[at - 1]);
      if (ready)
        send_frame(tcp, at - 1, MRC_FROM, TCP_DATA, mrc_tcp_on_sent(&own->sender, now_ns), now_ns);
      sent |= ready;
      at = own->next_at;
    }
  }
}

/* ---- receiving ---- */

static void take_data(struct mrc_tcp_hosts *tcp, uint32_t index, const struct mrc_frame *packet) {
  struct tcp_flow *own = state_of(tcp, index);
  const uint64_t segment = unwrap(&packet->header[SEGMENT_AT], own->receiver.expected);
  const uint64_t repeated = own->receiver.repeated;
  uint64_t sent_ns;
  memcpy(&sent_ns, &packet->header[TIME_AT], sizeof sent_ns);
  if (mrc_tcp_receive(&own->receiver, segment))
    tcp->hosts->flows->at[index].received_bytes += packet->payload_bytes;
  if (packet->extra) own->receiver.repeated = repeated;
  send_frame(tcp, index, MRC_TO, TCP_ACK, segment, sent_ns);
}

static void take_ack(struct mrc_tcp_hosts *tcp, uint32_t index, const struct mrc_frame *packet) {
  struct mrc_tcp_sender *sender = &state_of(tcp, index)->sender;
  struct mrc_tcp_ack ack = {.expected = unwrap(&packet->header[EXPECTED_AT], sender->unacked),
                            .came = unwrap(&packet->header[SEGMENT_AT], sender->unacked)};
  memcpy(&ack.sent_ns, &packet->header[TIME_AT], sizeof ack.sent_ns);
  mrc_tcp_on_ack(sender, &ack, tcp->hosts->world->now_ns);
}

static void receive(void *transport, uint32_t host, const struct mrc_frame *packet) {
  (void)host;
  const uint32_t index = mrc_flow_of(mrc_get_u24(&packet->header[QPN_AT]));
  if (packet->header[0] == TCP_ACK)
    take_ack(transport, index, packet);
  else
    take_data(transport, index, packet);
}

static uint64_t turn(void *transport, uint32_t host) {
  struct mrc_tcp_hosts *tcp = transport;
  uint64_t deadline_ns = MRC_NEVER;
  struct tcp_flow *own;
  for (uint32_t at = tcp->first[host]; at; at = own->next_at) {
    own = state_of(tcp, at - 1);
    if (own->sender.deadline_ns <= tcp->hosts->world->now_ns) mrc_tcp_on_timeout(&own->sender);
  }
  send_all(tcp, host);
  for (uint32_t at = tcp->first[host]; at; at = own->next_at) {
    own = state_of(tcp, at - 1);
    deadline_ns = mrc_min_u64(deadline_ns, own->sender.deadline_ns);
  }
  return deadline_ns;
}

/* ---- counters ---- */

static void info_of(const void *transport, uint32_t index, struct mrc_sim_flow_info *info) {
  const struct tcp_flow *own = state_of(transport, index);
  info->sent_packets = own->sender.packets;
  info->retransmitted_packets = own->sender.again;
  info->repeated_packets = own->receiver.repeated;
  info->lost_packets = own->sender.losses;
  info->rtt_ns = mrc_rtt_known(&own->sender.rtt) ? (int64_t)own->sender.rtt.smooth_ns : -1;
}

const struct mrc_transport_calls mrc_tcp_transport = {
    .receive = receive, .turn = turn, .connect = connect, .post = post, .info = info_of};

/* ---- life ---- */

void mrc_tcp_hosts_create(struct mrc_tcp_hosts *tcp) {
  tcp->first = calloc(tcp->hosts->world->config.topology.hosts, sizeof(*tcp->first));
  mrc_assert(tcp->first);
}

void mrc_tcp_hosts_free(struct mrc_tcp_hosts *tcp) {
  for (uint32_t i = 0; i < tcp->hosts->flows->n; i++) {
    struct tcp_flow *own = state_of(tcp, i);
    if (!tcp->hosts->flows->at[i].config.tcp_plane || own == NULL) continue;
    mrc_tcp_sender_free(&own->sender);
    mrc_tcp_receiver_free(&own->receiver);
    free(own);
  }
  free(tcp->first);
}
