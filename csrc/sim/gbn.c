/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/gbn.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base.h"
#include "sim/numbers.h"

int mrc_gbn_sender_init(struct mrc_gbn_sender *sender, const struct mrc_gbn_config *config) {
  *sender = (struct mrc_gbn_sender){.config = *config, .deadline_ns = MRC_NEVER};
  const int error = mrc_cc_init(&sender->cc, &config->cc);
  if (error != 0) return error;
  sender->sent_ns = calloc(config->window, sizeof(*sender->sent_ns));
  mrc_assert(sender->sent_ns);
  return 0;
}

void mrc_gbn_sender_free(struct mrc_gbn_sender *sender) { free(sender->sent_ns); }

static uint64_t inflight_bytes(const struct mrc_gbn_sender *sender) {
  return (sender->next - sender->unacked) * sender->config.cc.mtu_bytes;
}

bool mrc_gbn_may_send(const struct mrc_gbn_sender *sender) {
  if (sender->next == sender->end) return false;
  if (sender->next - sender->unacked == sender->config.window) return false;
  const uint64_t inflight = inflight_bytes(sender);
  return inflight == 0 || inflight + sender->config.cc.mtu_bytes <= sender->cc.cwnd_bytes;
}

uint64_t mrc_gbn_on_sent(struct mrc_gbn_sender *sender, uint64_t now_ns) {
  const uint64_t psn = sender->next++;
  const bool again = psn < sender->sent_end;
  sender->sent_ns[psn % sender->config.window] = again ? MRC_NEVER : now_ns;
  sender->sent_end = mrc_max_u64(sender->sent_end, sender->next);
  sender->packets++;
  sender->again += again;
  if (sender->deadline_ns == MRC_NEVER) sender->deadline_ns = now_ns + sender->config.timeout_ns;
  return psn;
}

/* Samples the round trip of the newest packet acknowledged. 0 if it was retransmitted: the answer
   may be for either copy. */
static uint64_t sample_rtt(struct mrc_gbn_sender *sender, uint64_t expected, uint64_t now_ns) {
  const uint64_t sent_ns = sender->sent_ns[(expected - 1) % sender->config.window];
  if (sent_ns == MRC_NEVER) return 0;
  mrc_rtt_sample(&sender->rtt, now_ns - sent_ns);
  return now_ns - sent_ns;
}

static void advance(struct mrc_gbn_sender *sender, uint64_t expected, bool ce, uint64_t now_ns) {
  const uint64_t rtt_ns = sample_rtt(sender, expected, now_ns);
  const struct mrc_cc_ack ack = {
      .bytes = (expected - sender->unacked) * sender->config.cc.mtu_bytes,
      .inflight_bytes = inflight_bytes(sender),
      .rtt_ns = rtt_ns,
      .base_rtt_ns = sender->rtt.base_ns,
      .smooth_rtt_ns = sender->rtt.smooth_ns,
      .ce = ce};
  mrc_cc_on_ack(&sender->cc, &ack, now_ns);
  sender->unacked = expected;
  sender->next = mrc_max_u64(sender->next, expected); /* it had gone back further than necessary */
  sender->timeouts = 0;
  sender->deadline_ns =
      sender->unacked < sender->next ? now_ns + sender->config.timeout_ns : MRC_NEVER;
}

static void go_back(struct mrc_gbn_sender *sender) {
  sender->next = sender->unacked;
  sender->deadline_ns = MRC_NEVER; /* until the next packet is sent */
  sender->went_back++;
}

void mrc_gbn_on_answer(struct mrc_gbn_sender *sender, uint32_t expected, bool nak, bool ce,
                       uint64_t now_ns) {
  const int32_t ahead = mrc_psn_diff(expected, (uint32_t)sender->unacked & MRC_PSN_MASK);
  if (ahead < 0 || sender->unacked + (uint64_t)ahead > sender->sent_end) return;
  if (ahead > 0) advance(sender, sender->unacked + (uint64_t)ahead, ce, now_ns);
  if (!nak || sender->next == sender->unacked) return;
  const struct mrc_cc_loss loss = {.bytes = sender->config.cc.mtu_bytes,
                                   .inflight_bytes = inflight_bytes(sender)};
  mrc_cc_on_loss(&sender->cc, &loss, now_ns);
  go_back(sender);
}

bool mrc_gbn_on_timeout(struct mrc_gbn_sender *sender) {
  if (sender->timeouts++ == sender->config.retries) return false;
  mrc_cc_on_timeout(&sender->cc);
  go_back(sender);
  return true;
}

bool mrc_gbn_receive(struct mrc_gbn_receiver *receiver, uint32_t psn, bool ce) {
  const int32_t ahead = mrc_psn_diff(psn, (uint32_t)receiver->expected & MRC_PSN_MASK);
  receiver->ce |= ce;
  receiver->repeated += ahead < 0;
  if (ahead > 0) {
    receiver->nak_due |= !receiver->nak_sent;
    receiver->nak_sent = true;
    return false;
  }
  receiver->ack_due = true; /* also for a repeated packet: the first answer may be lost */
  if (ahead < 0) return false;
  receiver->expected++;
  receiver->nak_sent = receiver->nak_due = false;
  return true;
}

/* ---- hosts ---- */

/* Opcodes of a reliable connection. At a full buffer a trimming switch drops these packets, because
   it trims only MRC packets. */
enum {
  RC_WRITE_FIRST = 0x06,
  RC_WRITE_MIDDLE = 0x07,
  RC_WRITE_LAST = 0x08,
  RC_WRITE_ONLY = 0x0A,
  RC_ACK = 0x11
};

enum {
  BTH_BYTES = 12,
  RETH_BYTES = 16,
  AETH_BYTES = 4,
  ICRC_BYTES = 4,
  BECN_AT = 4, /* byte of the BTH */
  BECN = 0x40,
  QPN_AT = 5,
  PSN_AT = 9,
  SYNDROME_AT = BTH_BYTES,
  NAK_SEQUENCE = 0x60,
  ECT0 = 2,
  CE = 3
};

/* Both ends of a flow. */
struct gbn_flow {
  struct mrc_gbn_sender sender;
  struct mrc_gbn_receiver receiver;
  uint32_t packets_per_write;
  uint32_t labels[2];  /* flow labels of each end, which switches hash */
  uint32_t next_at[2]; /* number + 1 of the next flow that begins, or ends, at the same host */
  bool has_failed;
};

static struct gbn_flow *state_of(const struct mrc_gbn_hosts *gbn, uint32_t index) {
  return gbn->hosts->flows->at[index].state;
}

/* ---- connecting ---- */

static void join(struct mrc_gbn_hosts *gbn, uint32_t index, uint32_t end) {
  const struct mrc_sim_flow *flow = &gbn->hosts->flows->at[index];
  uint32_t *first = &gbn->first[mrc_flow_host(flow, end)][end];
  state_of(gbn, index)->next_at[end] = *first;
  *first = index + 1;
}

static void connect(void *transport, uint32_t index) {
  struct mrc_gbn_hosts *gbn = transport;
  struct mrc_world *world = gbn->hosts->world;
  const struct mrc_sim_config *config = &world->config;
  struct mrc_sim_flow *flow = &gbn->hosts->flows->at[index];
  struct gbn_flow *own = calloc(1, sizeof(*own));
  mrc_assert(own);
  flow->state = own;
  flow->plane = mrc_fabric_draw_plane(gbn->hosts->fabric, flow->config.from, flow->config.to);
  own->labels[MRC_FROM] = (uint32_t)mrc_prng_next(&world->prng) & 0xFFFFF;
  own->labels[MRC_TO] = (uint32_t)mrc_prng_next(&world->prng) & 0xFFFFF;
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
  mrc_assert(mrc_gbn_sender_init(&own->sender, &sender) == 0);
  join(gbn, index, MRC_FROM);
  join(gbn, index, MRC_TO);
}

static int post(void *transport, uint32_t index) {
  struct gbn_flow *own = state_of(transport, index);
  if (own->has_failed) return -EPERM;
  own->sender.end += own->packets_per_write;
  return 0;
}

/* ---- sending ---- */

static uint32_t payload_of(const struct mrc_gbn_hosts *gbn, uint32_t index, uint64_t psn) {
  const uint32_t path_mtu = gbn->hosts->world->config.path_mtu;
  const struct gbn_flow *own = state_of(gbn, index);
  const uint32_t place = (uint32_t)(psn % own->packets_per_write);
  if (place < own->packets_per_write - 1) return path_mtu;
  return gbn->hosts->flows->at[index].config.bytes - place * path_mtu;
}

static uint8_t opcode_of(const struct gbn_flow *gbn, uint64_t psn) {
  const uint64_t place = psn % gbn->packets_per_write;
  if (gbn->packets_per_write == 1) return RC_WRITE_ONLY;
  if (place == 0) return RC_WRITE_FIRST;
  return place == gbn->packets_per_write - 1u ? RC_WRITE_LAST : RC_WRITE_MIDDLE;
}

static struct mrc_frame *make_frame(struct mrc_gbn_hosts *gbn, uint32_t index, uint32_t end,
                                    uint8_t opcode, uint32_t psn) {
  const struct mrc_sim_flow *flow = &gbn->hosts->flows->at[index];
  const struct gbn_flow *own = flow->state;
  struct mrc_frame *packet = mrc_frame_pool_get(&gbn->hosts->fabric->pool);
  packet->header[0] = opcode;
  mrc_put_u24(&packet->header[QPN_AT], mrc_flow_qpn(index, 1 - end));
  mrc_put_u24(&packet->header[PSN_AT], psn & MRC_PSN_MASK);
  packet->header_bytes = BTH_BYTES;
  packet->trailer_bytes = ICRC_BYTES;
  packet->flow_label = own->labels[end];
  packet->sport = mrc_sim_source_port(flow->plane);
  packet->from = mrc_flow_host(flow, end);
  packet->to = mrc_flow_host(flow, 1 - end);
  packet->plane = (uint8_t)flow->plane;
  packet->transport = MRC_HOST_GBN;
  return packet;
}

static void send_data(struct mrc_gbn_hosts *gbn, uint32_t index) {
  struct gbn_flow *own = state_of(gbn, index);
  const uint64_t psn = mrc_gbn_on_sent(&own->sender, gbn->hosts->world->now_ns);
  const uint8_t opcode = opcode_of(own, psn);
  struct mrc_frame *packet = make_frame(gbn, index, MRC_FROM, opcode, (uint32_t)psn);
  if (opcode == RC_WRITE_FIRST || opcode == RC_WRITE_ONLY) packet->header_bytes += RETH_BYTES;
  packet->payload = gbn->memory;
  packet->payload_bytes = payload_of(gbn, index, psn);
  packet->ecn = ECT0;
  mrc_fabric_send(gbn->hosts->fabric, packet);
}

static void send_answer(struct mrc_gbn_hosts *gbn, uint32_t index) {
  struct mrc_gbn_receiver *receiver = &state_of(gbn, index)->receiver;
  if (!receiver->ack_due && !receiver->nak_due) return;
  struct mrc_frame *packet = make_frame(gbn, index, MRC_TO, RC_ACK, (uint32_t)receiver->expected);
  packet->header[BECN_AT] = receiver->ce ? BECN : 0;
  packet->header[SYNDROME_AT] = receiver->nak_due ? NAK_SEQUENCE : 0;
  packet->header_bytes += AETH_BYTES;
  packet->control = true;
  receiver->ack_due = receiver->nak_due = receiver->ce = false;
  mrc_fabric_send(gbn->hosts->fabric, packet);
}

static bool may_send(struct mrc_gbn_hosts *gbn, const struct mrc_sim_flow *flow) {
  const struct gbn_flow *own = flow->state;
  return !own->has_failed && mrc_gbn_may_send(&own->sender) &&
         mrc_sim_host_takes(gbn->hosts, flow->config.from, MRC_HOST_GBN, flow->plane,
                            gbn->hosts->world->config.sndbuf_bytes);
}

/* Sends one packet of every flow in turn, until no flow may send. */
static void send_all(struct mrc_gbn_hosts *gbn, uint32_t host) {
  for (bool sent = true; sent;) {
    sent = false;
    for (uint32_t at = gbn->first[host][MRC_FROM]; at;) {
      const struct gbn_flow *own = state_of(gbn, at - 1);
      const bool ready = may_send(gbn, &gbn->hosts->flows->at[at - 1]);
      if (ready) send_data(gbn, at - 1);
      sent |= ready;
      at = own->next_at[MRC_FROM];
    }
  }
}

/* ---- receiving ---- */

static void complete(const struct mrc_gbn_hosts *gbn, const struct mrc_wc *wc) {
  gbn->hosts->results->on_completion(gbn->hosts->traffic, wc);
}

static void take_data(struct mrc_gbn_hosts *gbn, uint32_t index, const struct mrc_frame *packet) {
  struct gbn_flow *own = state_of(gbn, index);
  const uint64_t repeated = own->receiver.repeated;
  const bool is_new =
      mrc_gbn_receive(&own->receiver, mrc_get_u24(&packet->header[PSN_AT]), packet->ecn == CE);
  if (packet->extra) own->receiver.repeated = repeated;
  if (!is_new) return;
  gbn->hosts->flows->at[index].received_bytes += packet->payload_bytes;
  gbn->hosts->fabric->record->received_bytes += packet->payload_bytes;
  if (own->receiver.expected % own->packets_per_write != 0) return;
  complete(gbn, &(struct mrc_wc){.qpn = mrc_flow_qpn(index, MRC_TO), .opcode = MRC_WC_RECV_IMM});
}

static void take_answer(struct mrc_gbn_hosts *gbn, uint32_t index, const struct mrc_frame *packet) {
  struct gbn_flow *own = state_of(gbn, index);
  const uint64_t before = own->sender.unacked / own->packets_per_write;
  mrc_gbn_on_answer(&own->sender, mrc_get_u24(&packet->header[PSN_AT]),
                    packet->header[SYNDROME_AT] == NAK_SEQUENCE, packet->header[BECN_AT] & BECN,
                    gbn->hosts->world->now_ns);
  const uint64_t done = own->sender.unacked / own->packets_per_write;
  for (uint64_t write = before; write < done; write++)
    complete(gbn, &(struct mrc_wc){.wr_id = write, .qpn = mrc_flow_qpn(index, MRC_FROM)});
}

static void receive(void *transport, uint32_t host, const struct mrc_frame *packet) {
  (void)host;
  const uint32_t index = mrc_flow_of(mrc_get_u24(&packet->header[QPN_AT]));
  if (packet->header[0] == RC_ACK)
    take_answer(transport, index, packet);
  else
    take_data(transport, index, packet);
}

/* ---- turns ---- */

/* Fails every posted write; later posts are refused. */
static void fail(struct mrc_gbn_hosts *gbn, uint32_t index) {
  const struct mrc_sim_flow *flow = &gbn->hosts->flows->at[index];
  struct gbn_flow *own = flow->state;
  const struct mrc_event news = {.qpn = mrc_flow_qpn(index, MRC_FROM),
                                 .type = MRC_EVENT_QP_ERROR,
                                 .status = MRC_WC_RETRY_EXC_ERR};
  const struct mrc_wc wc = {.qpn = news.qpn, .status = MRC_WC_RETRY_EXC_ERR};
  own->has_failed = true;
  own->sender.deadline_ns = MRC_NEVER;
  gbn->hosts->results->on_event(gbn->hosts->traffic, &news);
  for (uint32_t open = flow->posted - flow->completed - flow->failed; open > 0; open--)
    complete(gbn, &wc);
}

static uint64_t turn(void *transport, uint32_t host) {
  struct mrc_gbn_hosts *gbn = transport;
  uint64_t deadline_ns = MRC_NEVER;
  struct gbn_flow *own;
  for (uint32_t at = gbn->first[host][MRC_TO]; at; at = own->next_at[MRC_TO]) {
    own = state_of(gbn, at - 1);
    send_answer(gbn, at - 1);
  }
  for (uint32_t at = gbn->first[host][MRC_FROM]; at; at = own->next_at[MRC_FROM]) {
    own = state_of(gbn, at - 1);
    if (own->sender.deadline_ns <= gbn->hosts->world->now_ns && !mrc_gbn_on_timeout(&own->sender))
      fail(gbn, at - 1);
  }
  send_all(gbn, host);
  for (uint32_t at = gbn->first[host][MRC_FROM]; at; at = own->next_at[MRC_FROM]) {
    own = state_of(gbn, at - 1);
    deadline_ns = mrc_min_u64(deadline_ns, own->sender.deadline_ns);
  }
  return deadline_ns;
}

/* ---- counters ---- */

static void info_of(const void *transport, uint32_t index, struct mrc_sim_flow_info *info) {
  const struct gbn_flow *own = state_of(transport, index);
  info->sent_packets = own->sender.packets;
  info->retransmitted_packets = own->sender.again;
  info->repeated_packets = own->receiver.repeated;
  info->lost_packets = own->sender.went_back;
  info->rtt_ns = mrc_rtt_known(&own->sender.rtt) ? (int64_t)own->sender.rtt.smooth_ns : -1;
}

const struct mrc_transport_calls mrc_gbn_transport = {
    .receive = receive, .turn = turn, .connect = connect, .post = post, .info = info_of};

/* ---- life ---- */

void mrc_gbn_hosts_create(struct mrc_gbn_hosts *gbn) {
  gbn->first = calloc(gbn->hosts->world->config.topology.hosts, sizeof(*gbn->first));
  mrc_assert(gbn->first);
}

void mrc_gbn_hosts_free(struct mrc_gbn_hosts *gbn) {
  for (uint32_t i = 0; i < gbn->hosts->flows->n; i++) {
    struct gbn_flow *own = state_of(gbn, i);
    if (gbn->hosts->flows->at[i].config.tcp_plane || own == NULL) continue;
    mrc_gbn_sender_free(&own->sender);
    free(own);
  }
  free(gbn->first);
}
