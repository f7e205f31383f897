/* SPDX-License-Identifier: Apache-2.0 */
#include "pair/watch.h"

#include <string.h>

#include "core/base.h"
#include "core/crc.h"
#include "core/windows.h"
#include "pair/address.h"

enum {
  VAR_RES = 4 /* the byte of the BTH that the ICRC does not cover */
};

/* The end at `host` with this QPN; -1 when there is none. */
static int find_end(const struct mrc_pair *pair, int host, uint32_t qpn) {
  for (int i = 0; i < pair->n_ends; i++)
    if (pair->ends[i]->host == host && pair->ends[i]->qpn == qpn) return i;
  return -1;
}

static uint32_t ev_of(const struct mrc_meta *meta) {
  return (uint32_t)meta->sport << 16 | (meta->flow_label & 0xFFFF);
}

/* FNV-1a, a word at a time. */
static uint64_t fnv(uint64_t trace, uint64_t word) { return (trace ^ word) * 0x100000001B3ull; }

static void hash(struct mrc_pair *pair, const void *bytes, size_t n) {
  const uint8_t *at = bytes;
  uint64_t trace = pair->trace, word;
  for (; n >= sizeof word; n -= sizeof word, at += sizeof word) {
    memcpy(&word, at, sizeof word);
    trace = fnv(trace, word);
  }
  while (n-- > 0)
    trace = fnv(trace, *at++);
  pair->trace = trace;
}

/* Skips the address of a data packet, which differs between runs, and the ICRC, which covers it. */
static void hash_packet(struct mrc_pair *pair, const struct mrc_datagram *packet,
                        const struct mrc_wire *wire) {
  hash(pair, &pair->now_ns, sizeof(pair->now_ns));
  hash(pair, &packet->meta, sizeof(packet->meta));
  if (!mrc_opcode_is_data(wire->opcode)) {
    hash(pair, packet->bytes, packet->n);
    return;
  }
  uint32_t ts_bytes = wire->ts ? MRC_TSETH_BYTES : 0;
  hash(pair, packet->bytes, MRC_BTH_BYTES + MRC_METH_BYTES + ts_bytes);
  hash(pair, &wire->imm, sizeof(wire->imm));
  hash(pair, wire->payload, wire->payload_bytes);
}

uint32_t mrc_watch_burst_bytes(const struct mrc_pair *pair) {
  const uint32_t bytes = pair->config.engine.max_burst_bytes;
  return bytes != 0 ? bytes : MRC_BURST_BYTES;
}

static void check_sizes(const struct mrc_pair *pair, const struct mrc_burst *burst) {
  uint32_t sum = 0;
  mrc_assert(burst->n_packets >= 1 && burst->n_packets <= MRC_MAX_BURST_PACKETS);
  for (int i = 0; i < burst->n_packets; i++) {
    const struct mrc_packet *packet = &burst->packets[i];
    uint32_t bytes = packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
    mrc_assert(packet->header_bytes <= MRC_MAX_HEADER);
    mrc_assert(packet->trailer_bytes <= sizeof(packet->trailer));
    mrc_assert(bytes == burst->packet_bytes ||
               (bytes < burst->packet_bytes && i == burst->n_packets - 1));
    sum += bytes;
  }
  mrc_assert(burst->n_packets == 1 || sum <= mrc_watch_burst_bytes(pair));
}

void mrc_watch_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst) {
  int family = pair->config.family;
  int path = mrc_address_path(family, burst->dst, burst->sport);
  mrc_assert(burst->port >= 1 && burst->port <= pair->config.planes);
  /* no packet leaves a port that is down */
  mrc_assert(!(pair->hosts[host].down >> (burst->port - 1) & 1));
  mrc_assert(burst->family == family);
  mrc_assert(burst->src[MRC_ADDRESS_HOST] == host + 1);
  mrc_assert(burst->src[MRC_ADDRESS_PLANE] == burst->port);
  mrc_assert(burst->dst[MRC_ADDRESS_PLANE] == burst->port);
  mrc_assert(burst->dport == mrc_address_udp_port(mrc_address_host(burst->dst)));
  mrc_assert(path >= 0 && path < pair->config.paths);
  mrc_assert(burst->tx_index == mrc_address_tx_index(family, path));
  mrc_assert(burst->sport == mrc_address_sport(burst->port, burst->tx_index));
  mrc_assert((burst->flow_label & 0xFFFF) == mrc_address_label(family, burst->port, path));
  check_sizes(pair, burst);
}

/* The end that sent the packet; NULL if it belongs to no QP. */
static struct mrc_pair_end *sender_of(const struct mrc_pair *pair,
                                      const struct mrc_datagram *packet,
                                      const struct mrc_wire *wire) {
  const int peer = find_end(pair, packet->to, wire->dest_qpn);
  return peer < 0 ? NULL : pair->ends[pair->ends[peer]->peer];
}

void mrc_watch_failed(struct mrc_pair *pair, const struct mrc_datagram *packet) {
  const struct mrc_pair_host *host = &pair->hosts[packet->from];
  const int plane = packet->meta.port;
  struct mrc_wire wire;
  mrc_assert(mrc_wire_decode(packet->bytes, packet->n, false, &wire) == 0);
  struct mrc_pair_end *end = sender_of(pair, packet, &wire);
  if (end == NULL || end->done || end->audit.unwatched || !mrc_opcode_is_data(wire.opcode)) return;
  struct mrc_qp_info info;
  mrc_assert(mrc_qp_query(host->engine, end->qpn, &info) == 0);
  if (info.planes[plane - 1].suspended)
    mrc_audit_sent(&end->audit, &pair->ends[end->peer]->audit, &wire, ev_of(&packet->meta),
                   packet->meta.port, ~(host->blocked | host->down));
}

void mrc_watch_sent(struct mrc_pair *pair, const struct mrc_datagram *packet,
                    struct mrc_wire *wire) {
  struct mrc_pair_host *host = &pair->hosts[packet->from];
  const int plane = packet->meta.port;
  mrc_assert(mrc_wire_decode(packet->bytes, packet->n, false, wire) == 0);
  hash_packet(pair, packet, wire);
  host->plane_packets[plane - 1]++;
  struct mrc_pair_end *end = sender_of(pair, packet, wire);
  if (end == NULL) return;
  struct mrc_audit *audit = &end->audit;
  mrc_assert(!end->denied[plane - 1][packet->path]); /* no packet is sent on a DENIED EV */
  if (end->done || audit->unwatched) return;
  if (mrc_opcode_is_data(wire->opcode)) host->plane_bytes[plane - 1] += wire->payload_bytes;
  mrc_audit_sent(audit, &pair->ends[end->peer]->audit, wire, ev_of(&packet->meta),
                 packet->meta.port, ~(host->blocked | host->down));
}

void mrc_watch_received(struct mrc_pair *pair, const struct mrc_datagram *packet, int drop) {
  struct mrc_wire wire;
  if (packet->meta.trimmed || drop != 0) return;
  /* the ICRC detects every flip except in the byte that it does not cover */
  mrc_assert(packet->flipped < 0 || packet->flipped / 8 == VAR_RES);
  mrc_assert(mrc_wire_decode(packet->bytes, packet->n, false, &wire) == 0);
  int index = find_end(pair, packet->to, wire.dest_qpn);
  if (index < 0) return;
  struct mrc_pair_end *end = pair->ends[index];
  mrc_assert(!end->done); /* no packet is accepted for a destroyed QP */
  if (end->audit.unwatched) return;
  mrc_audit_received(&end->audit, &pair->ends[end->peer]->audit, &wire);
}

void mrc_watch_completion(struct mrc_pair *pair, int host, const struct mrc_wc *wc) {
  int index = find_end(pair, host, wc->qpn);
  mrc_assert(index >= 0);
  struct mrc_pair_end *end = pair->ends[index];
  mrc_audit_completed(wc->opcode == MRC_WC_RECV_IMM ? &pair->ends[end->peer]->audit : &end->audit,
                      wc);
}

void mrc_watch_state(struct mrc_pair *pair, int host) {
  for (int i = 0; i < pair->n_ends; i++) {
    struct mrc_pair_end *end = pair->ends[i];
    if (end->host == host && !end->done && !end->audit.unwatched) mrc_audit_state(&end->audit);
  }
}
