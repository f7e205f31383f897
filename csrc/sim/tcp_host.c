/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/tcp_host.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/psn.h"
#include "sim/fabric.h"

/* The first byte of a header tells packets apart, and no opcode of MRC or RoCE is like these.
   QP number and segment stand where those have theirs: the trace shows them. */
enum { TCP_DATA = 0xF0, TCP_ACK = 0xF1 };

enum {
  FROM = 0, /* ends of a flow */
  TO = 1,
  HEADER_BYTES = 24, /* 32 of TCP with its timestamps, of which the overhead of a frame has 8 */
  QPN_AT = 5,
  SEGMENT_AT = 9,
  TIME_AT = 12,
  EXPECTED_AT = 20
};

static void put_u24(uint8_t *bytes, uint64_t value) {
  bytes[0] = (uint8_t)(value >> 16);
  bytes[1] = (uint8_t)(value >> 8);
  bytes[2] = (uint8_t)value;
}

static uint32_t get_u24(const uint8_t *bytes) {
  return (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
}

/* The number near another one that has these last 24 bits. */
static uint64_t unwrap(const uint8_t *bytes, uint64_t near) {
  return near + (uint64_t)(int64_t)mrc_psn_diff(get_u24(bytes), (uint32_t)near & MRC_PSN_MASK);
}

/* ---- life ---- */

void mrc_tcp_host_connect(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  struct mrc_sim_host *host = &sim->hosts[flow->config.from];
  struct mrc_tcp_flow *tcp = calloc(1, sizeof(*tcp));
  mrc_assert(tcp);
  flow->tcp = tcp;
  tcp->plane = (uint8_t)(flow->config.tcp_plane - 1);
  tcp->path = flow->config.paths ? (uint32_t)__builtin_ctzll(flow->config.paths) : 0;
  for (uint32_t end = FROM; end <= TO; end++)
    tcp->labels[end] = (uint32_t)mrc_prng_next(&sim->prng) & 0xFFFFF;
  mrc_tcp_sender_init(&tcp->sender);
  mrc_tcp_receiver_init(&tcp->receiver);
  tcp->next_at = host->tcp_first;
  host->tcp_first = index + 1;
}

void mrc_tcp_host_free(struct mrc_tcp_flow *tcp) {
  if (tcp == NULL) return;
  mrc_tcp_sender_free(&tcp->sender);
  mrc_tcp_receiver_free(&tcp->receiver);
  free(tcp);
}

void mrc_tcp_host_start(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  flow->first_ns = mrc_sim_time(sim);
  flow->tcp->has_begun = true;
  mrc_sim_host_kick(sim, flow->config.from);
}

void mrc_tcp_host_info(const struct mrc_tcp_flow *tcp, struct mrc_sim_flow_info *info) {
  info->bytes_received = tcp->bytes_received;
  info->packets_sent = tcp->sender.packets;
  info->packets_retransmitted = tcp->sender.again;
  info->packets_repeated = tcp->receiver.repeated;
  info->packets_lost = tcp->sender.losses;
  info->rtt_ns = tcp->sender.smooth_ns ? (int64_t)tcp->sender.smooth_ns : -1;
}

/* ---- sending ---- */

static void send_frame(struct mrc_sim *sim, uint32_t index, uint32_t end, uint8_t kind,
                       uint64_t segment, uint64_t sent_ns) {
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const struct mrc_tcp_flow *tcp = flow->tcp;
  struct mrc_frame *packet = mrc_frame_pool_get(&sim->pool);
  packet->header[0] = kind;
  put_u24(&packet->header[QPN_AT], mrc_traffic_qpn(index, 1 - end));
  put_u24(&packet->header[SEGMENT_AT], segment);
  memcpy(&packet->header[TIME_AT], &sent_ns, sizeof sent_ns);
  put_u24(&packet->header[EXPECTED_AT], tcp->receiver.expected);
  packet->header_bytes = HEADER_BYTES;
  packet->payload = sim->memory;
  packet->payload_bytes = kind == TCP_DATA ? flow->config.bytes : 0;
  packet->flow_label = tcp->labels[end];
  packet->sport = mrc_sim_source_port(tcp->plane);
  packet->from = (uint16_t)(end == FROM ? flow->config.from : flow->config.to);
  packet->to = (uint16_t)(end == FROM ? flow->config.to : flow->config.from);
  packet->path = (uint16_t)tcp->path;
  packet->plane = tcp->plane;
  packet->usids = mrc_fabric_usids(sim, packet->from, packet->to, tcp->path);
  sim->record.stats.packets++;
  mrc_fabric_enter(sim, mrc_fabric_host_up(sim, tcp->plane, packet->from), packet);
}

/* Whether the port takes a segment; one that holds too much is blocked from now on. */
static bool takes(struct mrc_sim *sim, uint32_t index, uint32_t plane) {
  struct mrc_sim_host *host = &sim->hosts[index];
  const struct mrc_hop *hop = &sim->hops[mrc_fabric_host_up(sim, plane, index)];
  const uint64_t room_bytes = sim->config.sndbuf_bytes + sim->config.sndbuf_bytes / 2;
  if (mrc_queue_bytes(&hop->queue) > room_bytes) host->tcp_blocked |= 1u << plane;
  return !(host->tcp_blocked >> plane & 1);
}

/* A segment of every flow in turn, until none may send. */
static void send_all(struct mrc_sim *sim, uint32_t index) {
  for (bool sent = true; sent;) {
    sent = false;
    for (uint32_t at = sim->hosts[index].tcp_first; at;) {
      struct mrc_tcp_flow *tcp = sim->traffic.flows[at - 1].tcp;
      if (tcp->has_begun && mrc_tcp_may_send(&tcp->sender) && takes(sim, index, tcp->plane)) {
        const uint64_t segment = mrc_tcp_on_sent(&tcp->sender, sim->now_ns);
        send_frame(sim, at - 1, FROM, TCP_DATA, segment, sim->now_ns);
        sent = true;
      }
      at = tcp->next_at;
    }
  }
}

/* ---- receiving ---- */

bool mrc_tcp_host_is_ours(const struct mrc_frame *packet) {
  return packet->header[0] == TCP_DATA || packet->header[0] == TCP_ACK;
}

static void take_data(struct mrc_sim *sim, uint32_t index, const struct mrc_frame *packet) {
  struct mrc_tcp_flow *tcp = sim->traffic.flows[index].tcp;
  const uint64_t segment = unwrap(&packet->header[SEGMENT_AT], tcp->receiver.expected);
  const uint64_t repeated = tcp->receiver.repeated;
  uint64_t sent_ns;
  memcpy(&sent_ns, &packet->header[TIME_AT], sizeof sent_ns);
  if (mrc_tcp_receive(&tcp->receiver, segment)) tcp->bytes_received += packet->payload_bytes;
  if (packet->extra) tcp->receiver.repeated = repeated;
  send_frame(sim, index, TO, TCP_ACK, segment, sent_ns);
}

static void take_ack(struct mrc_sim *sim, uint32_t index, const struct mrc_frame *packet) {
  struct mrc_tcp_sender *sender = &sim->traffic.flows[index].tcp->sender;
  struct mrc_tcp_ack ack = {.expected = unwrap(&packet->header[EXPECTED_AT], sender->unacked),
                            .came = unwrap(&packet->header[SEGMENT_AT], sender->unacked)};
  memcpy(&ack.sent_ns, &packet->header[TIME_AT], sizeof ack.sent_ns);
  mrc_tcp_on_ack(sender, &ack, sim->now_ns);
}

void mrc_tcp_host_receive(struct mrc_sim *sim, const struct mrc_frame *packet) {
  const uint32_t index = mrc_traffic_flow_of(get_u24(&packet->header[QPN_AT]));
  if (packet->header[0] == TCP_ACK)
    take_ack(sim, index, packet);
  else
    take_data(sim, index, packet);
}

uint64_t mrc_tcp_host_turn(struct mrc_sim *sim, uint32_t index) {
  const uint32_t first = sim->hosts[index].tcp_first;
  uint64_t deadline_ns = MRC_NEVER;
  for (uint32_t at = first; at; at = sim->traffic.flows[at - 1].tcp->next_at)
    if (sim->traffic.flows[at - 1].tcp->sender.deadline_ns <= sim->now_ns)
      mrc_tcp_on_timeout(&sim->traffic.flows[at - 1].tcp->sender);
  send_all(sim, index);
  for (uint32_t at = first; at; at = sim->traffic.flows[at - 1].tcp->next_at)
    deadline_ns = mrc_min_u64(deadline_ns, sim->traffic.flows[at - 1].tcp->sender.deadline_ns);
  return deadline_ns;
}
