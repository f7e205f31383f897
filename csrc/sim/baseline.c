/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/baseline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "sim/gbn.h"
#include "sim/numbers.h"
#include "sim/tcp.h"

/* Opcodes of a reliable connection: at a full buffer a trimming switch drops these packets, because
   it trims only MRC packets. Then the kinds of TCP, which no opcode of MRC or RoCE is. */
enum {
  RC_WRITE_FIRST = 0x06,
  RC_WRITE_MIDDLE = 0x07,
  RC_WRITE_LAST = 0x08,
  RC_WRITE_ONLY = 0x0A,
  RC_ACK = 0x11,
  TCP_DATA = 0xF0,
  TCP_ACK = 0xF1
};

/* TCP has QP number and segment where a BTH has QP number and PSN, so that the trace shows them. */
enum { QPN_AT = 5, PSN_AT = 9 };

enum {
  BTH_BYTES = 12,
  RETH_BYTES = 16,
  AETH_BYTES = 4,
  ICRC_BYTES = 4,
  BECN_AT = 4, /* byte of the BTH */
  BECN = 0x40,
  SYNDROME_AT = BTH_BYTES,
  NAK_SEQUENCE = 0x60,
  ECT0 = 2,
  CE = 3
};

enum {
  TCP_BYTES = 24, /* 32 bytes of TCP with timestamps, less 8 that the frame overhead includes */
  TIME_AT = 12,
  EXPECTED_AT = 20
};

/* Both ends of a flow. */
struct flow {
  uint32_t labels[2];  /* flow labels of each end, which switches hash with ECMP */
  uint32_t next_at[2]; /* number + 1 of the next flow that begins, or ends, at the same host */
  uint32_t path;
  uint32_t packets_per_write;
  bool is_open; /* go-back-N: it has not failed; TCP: it has started */
  union {
    struct {
      struct mrc_gbn_sender sender;
      struct mrc_gbn_receiver receiver;
    } gbn;
    struct {
      struct mrc_tcp_sender sender;
      struct mrc_tcp_receiver receiver;
    } tcp;
  };
};

static struct flow *state_of(const struct mrc_baseline *baseline, uint32_t index) {
  return baseline->hosts->flows->at[index].state;
}

/* The number close to `near` with these last 24 bits. */
static uint64_t unwrap(const uint8_t *bytes, uint64_t near) {
  return near + (uint64_t)(int64_t)mrc_psn_diff(mrc_get_u24(bytes), (uint32_t)near & MRC_PSN_MASK);
}

/* ---- connecting ---- */

static void open_gbn(const struct mrc_baseline *baseline, struct mrc_sim_flow *flow) {
  const struct mrc_sim_config *config = &baseline->hosts->world->config;
  struct flow *own = flow->state;
  flow->plane = mrc_fabric_draw_plane(baseline->hosts->fabric, flow->config.from, flow->config.to);
  own->is_open = true;
  own->packets_per_write = flow->config.bytes ? (flow->config.bytes - 1) / config->path_mtu + 1 : 1;
  const struct mrc_gbn_config sender = {
      .cc = {.max_bytes = (uint64_t)config->mpr * config->path_mtu,
             .mtu_bytes = config->path_mtu,
             .planes = 1,
             .kind = (uint8_t)config->cc,
             .profile = {.link_bps = config->topology.host_rate_bps,
                         .base_rtt_ns = config->cc_base_rtt_ns}},
      .timeout_ns = 1024ull << config->timeout,
      .retries = config->retry_linear,
      .window = config->mpr};
  mrc_assert(mrc_gbn_sender_init(&own->gbn.sender, &sender) == 0);
}

static void connect(void *transport, uint32_t index) {
  struct mrc_baseline *baseline = transport;
  struct mrc_sim_flow *flow = &baseline->hosts->flows->at[index];
  struct flow *own = flow->state = calloc(1, sizeof(*own));
  mrc_assert(own);
  if (baseline->tcp) {
    flow->plane = flow->config.tcp_plane - 1;
    own->path = flow->config.paths ? (uint32_t)__builtin_ctzll(flow->config.paths) : 0;
    mrc_tcp_sender_init(&own->tcp.sender);
    mrc_tcp_receiver_init(&own->tcp.receiver);
  } else {
    open_gbn(baseline, flow);
  }
  for (uint32_t end = MRC_FROM; end <= MRC_TO; end++) {
    uint32_t *first = &baseline->first[mrc_flow_host(flow, end)][end];
    own->labels[end] = (uint32_t)mrc_prng_next(&baseline->hosts->world->prng) & 0xFFFFF;
    own->next_at[end] = *first;
    *first = index + 1;
  }
}

static int post(void *transport, uint32_t index) {
  const struct mrc_baseline *baseline = transport;
  struct flow *own = state_of(baseline, index);
  if (baseline->tcp)
    own->is_open = true;
  else if (own->is_open)
    own->gbn.sender.end += own->packets_per_write;
  return own->is_open ? 0 : -EPERM;
}

/* ---- sending ---- */

/* A packet of an end of a flow, whose header begins with `kind`. */
static struct mrc_frame *make_frame(const struct mrc_baseline *baseline, uint32_t index,
                                    uint32_t end, uint8_t kind, uint64_t number) {
  const struct mrc_sim_flow *flow = &baseline->hosts->flows->at[index];
  const struct flow *own = flow->state;
  struct mrc_frame *packet = mrc_frame_pool_get(&baseline->hosts->fabric->pool);
  packet->header[0] = kind;
  mrc_put_be(&packet->header[QPN_AT], 3, mrc_flow_qpn(index, 1 - end));
  mrc_put_be(&packet->header[PSN_AT], 3, (uint32_t)number & MRC_PSN_MASK);
  packet->header_bytes = baseline->tcp ? TCP_BYTES : BTH_BYTES;
  packet->trailer_bytes = baseline->tcp ? 0 : ICRC_BYTES;
  packet->payload = baseline->memory;
  packet->flow_label = own->labels[end];
  packet->sport = mrc_sim_source_port(flow->plane);
  packet->from = mrc_flow_host(flow, end);
  packet->to = mrc_flow_host(flow, 1 - end);
  packet->path = (uint16_t)own->path;
  packet->plane = (uint8_t)flow->plane;
  packet->transport = baseline->tcp ? MRC_HOST_TCP : MRC_HOST_GBN;
  mrc_fabric_set_usids(baseline->hosts->fabric, packet);
  return packet;
}

static uint8_t opcode_of(const struct flow *gbn, uint64_t psn) {
  const uint64_t place = psn % gbn->packets_per_write;
  if (gbn->packets_per_write == 1) return RC_WRITE_ONLY;
  if (place == 0) return RC_WRITE_FIRST;
  return place == gbn->packets_per_write - 1u ? RC_WRITE_LAST : RC_WRITE_MIDDLE;
}

static void send_gbn(const struct mrc_baseline *baseline, uint32_t index) {
  const struct mrc_world *world = baseline->hosts->world;
  struct flow *own = state_of(baseline, index);
  const uint64_t psn = mrc_gbn_on_sent(&own->gbn.sender, world->now_ns);
  const uint32_t place = (uint32_t)(psn % own->packets_per_write);
  const uint8_t opcode = opcode_of(own, psn);
  struct mrc_frame *packet = make_frame(baseline, index, MRC_FROM, opcode, psn);
  if (opcode == RC_WRITE_FIRST || opcode == RC_WRITE_ONLY) packet->header_bytes += RETH_BYTES;
  packet->payload_bytes = world->config.path_mtu;
  if (place == own->packets_per_write - 1)
    packet->payload_bytes =
        baseline->hosts->flows->at[index].config.bytes - place * world->config.path_mtu;
  packet->ecn = ECT0;
  mrc_fabric_send(baseline->hosts->fabric, packet);
}

static void answer_gbn(const struct mrc_baseline *baseline, uint32_t index) {
  struct mrc_gbn_receiver *receiver = &state_of(baseline, index)->gbn.receiver;
  if (!receiver->ack_due && !receiver->nak_due) return;
  struct mrc_frame *packet = make_frame(baseline, index, MRC_TO, RC_ACK, receiver->expected);
  packet->header[BECN_AT] = receiver->ce ? BECN : 0;
  packet->header[SYNDROME_AT] = receiver->nak_due ? NAK_SEQUENCE : 0;
  packet->header_bytes += AETH_BYTES;
  packet->control = true;
  receiver->ack_due = receiver->nak_due = receiver->ce = false;
  mrc_fabric_send(baseline->hosts->fabric, packet);
}

static void send_tcp(const struct mrc_baseline *baseline, uint32_t index, uint8_t kind,
                     uint64_t segment, uint64_t sent_ns) {
  const bool is_data = kind == TCP_DATA;
  struct mrc_frame *packet =
      make_frame(baseline, index, is_data ? MRC_FROM : MRC_TO, kind, segment);
  memcpy(&packet->header[TIME_AT], &sent_ns, sizeof sent_ns);
  if (is_data) /* the receiver may be in another shard, whose thread changes it now */
    packet->payload_bytes = baseline->hosts->flows->at[index].config.bytes;
  else
    mrc_put_be(&packet->header[EXPECTED_AT], 3,
               (uint32_t)state_of(baseline, index)->tcp.receiver.expected);
  mrc_fabric_send(baseline->hosts->fabric, packet);
}

static bool may_send(const struct mrc_baseline *baseline, uint32_t index) {
  const struct mrc_sim_flow *flow = &baseline->hosts->flows->at[index];
  const uint64_t sndbuf_bytes = baseline->hosts->world->config.sndbuf_bytes;
  struct flow *own = flow->state;
  if (!own->is_open) return false;
  if (baseline->tcp)
    return mrc_tcp_may_send(&own->tcp.sender) &&
           mrc_sim_host_takes(baseline->hosts, flow->config.from, MRC_HOST_TCP, flow->plane,
                              sndbuf_bytes + sndbuf_bytes / 2);
  return mrc_gbn_may_send(&own->gbn.sender) &&
         mrc_sim_host_takes(baseline->hosts, flow->config.from, MRC_HOST_GBN, flow->plane,
                            sndbuf_bytes);
}

/* Sends one packet of every flow in turn, until no flow may send. */
static void send_all(const struct mrc_baseline *baseline, uint32_t host) {
  const uint64_t now_ns = baseline->hosts->world->now_ns;
  const uint32_t first = baseline->first[host][MRC_FROM];
  for (bool sent = true; sent;) {
    sent = false;
    for (uint32_t at = first; at; at = state_of(baseline, at - 1)->next_at[MRC_FROM]) {
      struct flow *own = state_of(baseline, at - 1);
      if (!may_send(baseline, at - 1)) continue;
      if (baseline->tcp)
        send_tcp(baseline, at - 1, TCP_DATA, mrc_tcp_on_sent(&own->tcp.sender, now_ns), now_ns);
      else
        send_gbn(baseline, at - 1);
      sent = true;
    }
  }
}

/* ---- receiving ---- */

static void complete(const struct mrc_baseline *baseline, const struct mrc_wc *wc) {
  baseline->hosts->results->on_completion(baseline->hosts->traffic, wc);
}

static void take_gbn(const struct mrc_baseline *baseline, uint32_t index,
                     const struct mrc_frame *packet) {
  struct flow *own = state_of(baseline, index);
  struct mrc_gbn_receiver *receiver = &own->gbn.receiver;
  const uint64_t repeated = receiver->repeated;
  const bool is_new =
      mrc_gbn_receive(receiver, mrc_get_u24(&packet->header[PSN_AT]), packet->ecn == CE);
  if (packet->extra) receiver->repeated = repeated;
  if (!is_new) return;
  baseline->hosts->flows->at[index].received_bytes += packet->payload_bytes;
  baseline->hosts->fabric->record->received_bytes += packet->payload_bytes;
  if (receiver->expected % own->packets_per_write != 0) return;
  complete(baseline,
           &(struct mrc_wc){.qpn = mrc_flow_qpn(index, MRC_TO), .opcode = MRC_WC_RECV_IMM});
}

static void take_gbn_answer(const struct mrc_baseline *baseline, uint32_t index,
                            const struct mrc_frame *packet) {
  struct flow *own = state_of(baseline, index);
  struct mrc_gbn_sender *sender = &own->gbn.sender;
  const uint64_t before = sender->unacked / own->packets_per_write;
  mrc_gbn_on_answer(sender, mrc_get_u24(&packet->header[PSN_AT]),
                    packet->header[SYNDROME_AT] == NAK_SEQUENCE, packet->header[BECN_AT] & BECN,
                    baseline->hosts->world->now_ns);
  const uint64_t done = sender->unacked / own->packets_per_write;
  for (uint64_t write = before; write < done; write++)
    complete(baseline, &(struct mrc_wc){.wr_id = write, .qpn = mrc_flow_qpn(index, MRC_FROM)});
}

static void take_tcp(const struct mrc_baseline *baseline, uint32_t index,
                     const struct mrc_frame *packet, uint64_t sent_ns) {
  struct mrc_tcp_receiver *receiver = &state_of(baseline, index)->tcp.receiver;
  const uint64_t segment = unwrap(&packet->header[PSN_AT], receiver->expected);
  const uint64_t repeated = receiver->repeated;
  if (mrc_tcp_receive(receiver, segment))
    baseline->hosts->flows->at[index].received_bytes += packet->payload_bytes;
  if (packet->extra) receiver->repeated = repeated;
  send_tcp(baseline, index, TCP_ACK, segment, sent_ns);
}

static void take_tcp_ack(const struct mrc_baseline *baseline, uint32_t index,
                         const struct mrc_frame *packet, uint64_t sent_ns) {
  struct mrc_tcp_sender *sender = &state_of(baseline, index)->tcp.sender;
  const struct mrc_tcp_ack ack = {.expected = unwrap(&packet->header[EXPECTED_AT], sender->unacked),
                                  .came = unwrap(&packet->header[PSN_AT], sender->unacked),
                                  .sent_ns = sent_ns};
  mrc_tcp_on_ack(sender, &ack, baseline->hosts->world->now_ns);
}

static void receive(void *transport, uint32_t host, const struct mrc_frame *packet) {
  const uint32_t index = mrc_flow_of(mrc_get_u24(&packet->header[QPN_AT]));
  uint64_t sent_ns;
  (void)host;
  memcpy(&sent_ns, &packet->header[TIME_AT], sizeof sent_ns);
  switch (packet->header[0]) {
    case TCP_DATA:
      take_tcp(transport, index, packet, sent_ns);
      break;
    case TCP_ACK:
      take_tcp_ack(transport, index, packet, sent_ns);
      break;
    case RC_ACK:
      take_gbn_answer(transport, index, packet);
      break;
    default:
      take_gbn(transport, index, packet);
  }
}

/* ---- turns ---- */

/* Fails every posted write; later posts are refused. */
static void fail(const struct mrc_baseline *baseline, uint32_t index) {
  const struct mrc_sim_flow *flow = &baseline->hosts->flows->at[index];
  struct flow *own = flow->state;
  const struct mrc_event news = {.qpn = mrc_flow_qpn(index, MRC_FROM),
                                 .type = MRC_EVENT_QP_ERROR,
                                 .status = MRC_WC_RETRY_EXC_ERR};
  const struct mrc_wc wc = {.qpn = news.qpn, .status = MRC_WC_RETRY_EXC_ERR};
  own->is_open = false;
  own->gbn.sender.deadline_ns = MRC_NEVER;
  baseline->hosts->results->on_event(baseline->hosts->traffic, &news);
  for (uint32_t open = flow->posted - flow->completed - flow->failed; open > 0; open--)
    complete(baseline, &wc);
}

static uint64_t deadline_of(const struct mrc_baseline *baseline, const struct flow *own) {
  return baseline->tcp ? own->tcp.sender.deadline_ns : own->gbn.sender.deadline_ns;
}

static uint64_t turn(void *transport, uint32_t host) {
  const struct mrc_baseline *baseline = transport;
  const uint32_t *first = baseline->first[host];
  uint64_t deadline_ns = MRC_NEVER;
  struct flow *own;
  for (uint32_t at = baseline->tcp ? 0 : first[MRC_TO]; at; at = own->next_at[MRC_TO]) {
    own = state_of(baseline, at - 1);
    answer_gbn(baseline, at - 1);
  }
  for (uint32_t at = first[MRC_FROM]; at; at = own->next_at[MRC_FROM]) {
    own = state_of(baseline, at - 1);
    if (deadline_of(baseline, own) > baseline->hosts->world->now_ns) continue;
    if (baseline->tcp)
      mrc_tcp_on_timeout(&own->tcp.sender);
    else if (!mrc_gbn_on_timeout(&own->gbn.sender))
      fail(baseline, at - 1);
  }
  send_all(baseline, host);
  for (uint32_t at = first[MRC_FROM]; at; at = own->next_at[MRC_FROM]) {
    own = state_of(baseline, at - 1);
    deadline_ns = mrc_min_u64(deadline_ns, deadline_of(baseline, own));
  }
  return deadline_ns;
}

/* ---- counters ---- */

static void info_of(const void *transport, uint32_t index, struct mrc_sim_flow_info *info) {
  const struct mrc_baseline *baseline = transport;
  const struct flow *own = state_of(baseline, index);
  const struct mrc_gbn_sender *gbn = &own->gbn.sender;
  const struct mrc_tcp_sender *tcp = &own->tcp.sender;
  const struct mrc_rtt *rtt = baseline->tcp ? &tcp->rtt : &gbn->rtt;
  info->sent_packets = baseline->tcp ? tcp->packets : gbn->packets;
  info->retransmitted_packets = baseline->tcp ? tcp->again : gbn->again;
  info->lost_packets = baseline->tcp ? tcp->losses : gbn->went_back;
  info->repeated_packets = baseline->tcp ? own->tcp.receiver.repeated : own->gbn.receiver.repeated;
  info->rtt_ns = rtt->smooth_ns != 0 ? (int64_t)rtt->smooth_ns : -1;
}

const struct mrc_transport_calls mrc_baseline_transport = {
    .receive = receive, .turn = turn, .connect = connect, .post = post, .info = info_of};

/* ---- life ---- */

void mrc_baseline_create(struct mrc_baseline *baseline) {
  baseline->first = calloc(baseline->hosts->world->config.topology.hosts, sizeof(*baseline->first));
  mrc_assert(baseline->first);
}

void mrc_baseline_free(struct mrc_baseline *baseline) {
  for (uint32_t i = 0; i < baseline->hosts->flows->n; i++) {
    struct flow *own = state_of(baseline, i);
    if (own == NULL || baseline->tcp != (baseline->hosts->flows->at[i].config.tcp_plane > 0))
      continue;
    if (baseline->tcp) {
      mrc_tcp_sender_free(&own->tcp.sender);
      mrc_tcp_receiver_free(&own->tcp.receiver);
    } else {
      mrc_gbn_sender_free(&own->gbn.sender);
    }
    free(own);
  }
  free(baseline->first);
}
