/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/gbn_host.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base.h"
#include "core/psn.h"
#include "sim/fabric.h"

/* Opcodes of a reliable connection. A switch that trims knows MRC's: these it drops. */
enum {
  RC_WRITE_FIRST = 0x06,
  RC_WRITE_MIDDLE = 0x07,
  RC_WRITE_LAST = 0x08,
  RC_WRITE_ONLY = 0x0A,
  RC_ACK = 0x11
};

enum {
  FROM = 0, /* ends of a flow */
  TO = 1,
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

static void put_u24(uint8_t *bytes, uint32_t value) {
  bytes[0] = (uint8_t)(value >> 16);
  bytes[1] = (uint8_t)(value >> 8);
  bytes[2] = (uint8_t)value;
}

static uint32_t get_u24(const uint8_t *bytes) {
  return (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
}

/* ---- life ---- */

static void join(struct mrc_sim *sim, uint32_t index, uint32_t end) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  struct mrc_sim_host *host = &sim->hosts[end == FROM ? flow->config.from : flow->config.to];
  flow->gbn->next_at[end] = host->gbn_first[end];
  host->gbn_first[end] = index + 1;
}

void mrc_gbn_host_connect(struct mrc_sim *sim, uint32_t index) {
  const struct mrc_sim_config *config = &sim->config;
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  struct mrc_gbn_flow *gbn = calloc(1, sizeof(*gbn));
  mrc_assert(gbn);
  flow->gbn = gbn;
  gbn->plane = (uint8_t)mrc_prng_below(&sim->prng, config->planes);
  gbn->labels[FROM] = (uint32_t)mrc_prng_next(&sim->prng) & 0xFFFFF;
  gbn->labels[TO] = (uint32_t)mrc_prng_next(&sim->prng) & 0xFFFFF;
  gbn->packets_per_write = flow->config.bytes ? (flow->config.bytes - 1) / config->path_mtu + 1 : 1;
  const struct mrc_gbn_config sender = {
      .cc = {.max_bytes = (uint64_t)config->mpr * config->path_mtu,
             .mtu_bytes = config->path_mtu,
             .planes = 1,
             .kind = (uint8_t)config->cc,
             .profile = {.link_bps = config->host_rate_bps, .base_rtt_ns = config->cc_base_rtt_ns}},
      .timeout_ns = 1024ull << config->timeout,
      .retries = config->retry_linear,
      .window = config->mpr};
  mrc_assert(mrc_gbn_sender_init(&gbn->sender, &sender) == 0);
  join(sim, index, FROM);
  join(sim, index, TO);
}

void mrc_gbn_host_free(struct mrc_gbn_flow *gbn) {
  if (gbn == NULL) return;
  mrc_gbn_sender_free(&gbn->sender);
  free(gbn);
}

int mrc_gbn_host_post(struct mrc_sim *sim, uint32_t index) {
  struct mrc_gbn_flow *gbn = sim->traffic.flows[index].gbn;
  if (gbn->has_failed) return -EPERM;
  gbn->sender.end += gbn->packets_per_write;
  return 0;
}

void mrc_gbn_host_info(const struct mrc_gbn_flow *gbn, struct mrc_sim_flow_info *info) {
  info->bytes_received = gbn->bytes_received;
  info->packets_sent = gbn->sender.packets;
  info->packets_retransmitted = gbn->sender.again;
  info->packets_repeated = gbn->receiver.repeated;
  info->packets_lost = gbn->sender.went_back;
  info->rtt_ns = mrc_rtt_known(&gbn->sender.rtt) ? (int64_t)gbn->sender.rtt.smooth_ns : -1;
}

/* ---- sending ---- */

static uint32_t payload_of(const struct mrc_sim *sim, const struct mrc_sim_flow *flow,
                           uint64_t psn) {
  const uint32_t place = (uint32_t)(psn % flow->gbn->packets_per_write);
  if (place < flow->gbn->packets_per_write - 1) return sim->config.path_mtu;
  return flow->config.bytes - place * sim->config.path_mtu;
}

static uint8_t opcode_of(const struct mrc_gbn_flow *gbn, uint64_t psn) {
  const uint64_t place = psn % gbn->packets_per_write;
  if (gbn->packets_per_write == 1) return RC_WRITE_ONLY;
  if (place == 0) return RC_WRITE_FIRST;
  return place == gbn->packets_per_write - 1u ? RC_WRITE_LAST : RC_WRITE_MIDDLE;
}

static struct mrc_frame *make_frame(struct mrc_sim *sim, uint32_t index, uint32_t end,
                                    uint8_t opcode, uint32_t psn) {
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  struct mrc_frame *packet = mrc_frame_pool_get(&sim->pool);
  packet->header[0] = opcode;
  put_u24(&packet->header[QPN_AT], mrc_traffic_qpn(index, 1 - end));
  put_u24(&packet->header[PSN_AT], psn & MRC_PSN_MASK);
  packet->header_bytes = BTH_BYTES;
  packet->trailer_bytes = ICRC_BYTES;
  packet->flow_label = flow->gbn->labels[end];
  packet->sport = mrc_sim_source_port(flow->gbn->plane);
  packet->from = (uint16_t)(end == FROM ? flow->config.from : flow->config.to);
  packet->to = (uint16_t)(end == FROM ? flow->config.to : flow->config.from);
  packet->plane = flow->gbn->plane;
  return packet;
}

static void send_frame(struct mrc_sim *sim, struct mrc_frame *packet) {
  sim->record.stats.packets++;
  mrc_fabric_enter(sim, mrc_fabric_host_up(sim, packet->plane, packet->from), packet);
}

static void send_data(struct mrc_sim *sim, uint32_t index) {
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const uint64_t psn = mrc_gbn_on_sent(&flow->gbn->sender, sim->now_ns);
  const uint8_t opcode = opcode_of(flow->gbn, psn);
  struct mrc_frame *packet = make_frame(sim, index, FROM, opcode, (uint32_t)psn);
  if (opcode == RC_WRITE_FIRST || opcode == RC_WRITE_ONLY) packet->header_bytes += RETH_BYTES;
  packet->payload = sim->memory;
  packet->payload_bytes = payload_of(sim, flow, psn);
  packet->ecn = ECT0;
  send_frame(sim, packet);
}

static void send_answer(struct mrc_sim *sim, uint32_t index) {
  struct mrc_gbn_receiver *receiver = &sim->traffic.flows[index].gbn->receiver;
  if (!receiver->ack_due && !receiver->nak_due) return;
  struct mrc_frame *packet = make_frame(sim, index, TO, RC_ACK, (uint32_t)receiver->expected);
  packet->header[BECN_AT] = receiver->ce ? BECN : 0;
  packet->header[SYNDROME_AT] = receiver->nak_due ? NAK_SEQUENCE : 0;
  packet->header_bytes += AETH_BYTES;
  packet->control = true;
  receiver->ack_due = receiver->nak_due = receiver->ce = false;
  send_frame(sim, packet);
}

/* Whether the flow may send and its port has room; a port that has none is blocked. */
static bool is_ready(struct mrc_sim *sim, struct mrc_sim_host *host, uint32_t from,
                     const struct mrc_gbn_flow *gbn) {
  if (gbn->has_failed || !mrc_gbn_may_send(&gbn->sender)) return false;
  const uint32_t hop = mrc_fabric_host_up(sim, gbn->plane, from);
  if (mrc_queue_bytes(&sim->hops[hop].queue) > sim->config.sndbuf_bytes)
    host->blocked |= 1u << gbn->plane;
  return !(host->blocked >> gbn->plane & 1);
}

/* A packet of every flow in turn, until none may send. */
static void send_all(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_host *host = &sim->hosts[index];
  for (bool sent = true; sent;) {
    sent = false;
    for (uint32_t at = host->gbn_first[FROM]; at;) {
      const struct mrc_gbn_flow *gbn = sim->traffic.flows[at - 1].gbn;
      const bool ready = is_ready(sim, host, index, gbn);
      if (ready) send_data(sim, at - 1);
      sent |= ready;
      at = gbn->next_at[FROM];
    }
  }
}

/* ---- receiving ---- */

static void take_data(struct mrc_sim *sim, uint32_t index, const struct mrc_frame *packet) {
  struct mrc_gbn_flow *gbn = sim->traffic.flows[index].gbn;
  const uint64_t repeated = gbn->receiver.repeated;
  const bool is_new =
      mrc_gbn_receive(&gbn->receiver, get_u24(&packet->header[PSN_AT]), packet->ecn == CE);
  if (packet->extra) gbn->receiver.repeated = repeated;
  if (!is_new) return;
  gbn->bytes_received += packet->payload_bytes;
  if (gbn->receiver.expected % gbn->packets_per_write != 0) return;
  const struct mrc_wc arrival = {.qpn = mrc_traffic_qpn(index, TO), .opcode = MRC_WC_RECV_IMM};
  mrc_traffic_on_completion(sim, &arrival);
}

static void take_answer(struct mrc_sim *sim, uint32_t index, const struct mrc_frame *packet) {
  struct mrc_gbn_flow *gbn = sim->traffic.flows[index].gbn;
  const uint64_t before = gbn->sender.unacked / gbn->packets_per_write;
  mrc_gbn_on_answer(&gbn->sender, get_u24(&packet->header[PSN_AT]),
                    packet->header[SYNDROME_AT] == NAK_SEQUENCE, packet->header[BECN_AT] & BECN,
                    sim->now_ns);
  const uint64_t done = gbn->sender.unacked / gbn->packets_per_write;
  for (uint64_t write = before; write < done; write++) {
    const struct mrc_wc wc = {.wr_id = write, .qpn = mrc_traffic_qpn(index, FROM)};
    mrc_traffic_on_completion(sim, &wc);
  }
}

void mrc_gbn_host_receive(struct mrc_sim *sim, const struct mrc_frame *packet) {
  const uint32_t index = mrc_traffic_flow_of(get_u24(&packet->header[QPN_AT]));
  if (packet->header[0] == RC_ACK)
    take_answer(sim, index, packet);
  else
    take_data(sim, index, packet);
}

/* ---- turns ---- */

/* Every write that was posted ends; traffic sees that no other can be. */
static void fail(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const struct mrc_event news = {.qpn = mrc_traffic_qpn(index, FROM),
                                 .type = MRC_EVENT_QP_ERROR,
                                 .status = MRC_WC_RETRY_EXC_ERR};
  struct mrc_wc wc = {.qpn = news.qpn, .status = MRC_WC_RETRY_EXC_ERR};
  flow->gbn->has_failed = true;
  flow->gbn->sender.deadline_ns = MRC_NEVER;
  mrc_traffic_on_event(sim, &news);
  for (uint32_t open = flow->posted - flow->completed - flow->failed; open > 0; open--)
    mrc_traffic_on_completion(sim, &wc);
}

uint64_t mrc_gbn_host_turn(struct mrc_sim *sim, uint32_t index) {
  const struct mrc_sim_host *host = &sim->hosts[index];
  uint64_t deadline_ns = MRC_NEVER;
  for (uint32_t at = host->gbn_first[TO]; at; at = sim->traffic.flows[at - 1].gbn->next_at[TO])
    send_answer(sim, at - 1);
  for (uint32_t at = host->gbn_first[FROM]; at; at = sim->traffic.flows[at - 1].gbn->next_at[FROM])
    if (sim->traffic.flows[at - 1].gbn->sender.deadline_ns <= sim->now_ns &&
        !mrc_gbn_on_timeout(&sim->traffic.flows[at - 1].gbn->sender))
      fail(sim, at - 1);
  send_all(sim, index);
  for (uint32_t at = host->gbn_first[FROM]; at; at = sim->traffic.flows[at - 1].gbn->next_at[FROM])
    deadline_ns = mrc_min_u64(deadline_ns, sim->traffic.flows[at - 1].gbn->sender.deadline_ns);
  return deadline_ns;
}
