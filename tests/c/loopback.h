/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of the socket driver: bursts through real sockets on loopback. A recorder replaces
 * the engine. A test can make sendmmsg fail, since sockets rarely fill up on loopback. One program
 * includes this header once.
 */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "io/receive.h"
#include "io/send.h"

enum { MAX_RECORDED = 256, HEADER_BYTES = 20, TRAILER_BYTES = 4 };

/* ---- The recorder in place of the engine ---- */

struct recorded {
  struct mrc_meta meta;
  uint32_t bytes;
  uint8_t packet[9000];
};

static struct recorded records[MAX_RECORDED];
static int n_records;

static int record_packet(const uint8_t *packet, size_t bytes, const struct mrc_meta *meta) {
  if (n_records == MAX_RECORDED || bytes > sizeof records[0].packet) {
    CHECK_FAIL("packet %d of %zu bytes is more than the test sent", n_records, bytes);
    return 1;
  }
  struct recorded *record = &records[n_records++];
  record->meta = *meta;
  record->bytes = (uint32_t)bytes;
  memcpy(record->packet, packet, bytes);
  return 0;
}

int mrc_engine_receive(mrc_engine *engine, uint8_t *packets, size_t bytes, size_t packet_bytes,
                       const struct mrc_meta *meta, uint64_t now_ns) {
  (void)engine;
  CHECK_EQ(now_ns, 77);
  int result;
  size_t offset = 0;
  do {
    const size_t n = packet_bytes < bytes - offset ? packet_bytes : bytes - offset;
    result = record_packet(packets + offset, n, meta);
    offset += n;
  } while (offset < bytes);
  return result;
}

/* ---- A sendmmsg that can fail ---- */

/* Results of the next calls, in order: 0 sends all, n > 0 sends n messages, n < 0 fails with -n. */
static int script[16];
static int n_script;
static int script_at;
static int n_sends;

static inline void play(int n, const int *steps) {
  memcpy(script, steps, (size_t)n * sizeof *steps);
  n_script = n;
  script_at = 0;
  n_sends = 0;
}

#define PLAY(...) play((int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

int sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  int step = script_at < n_script ? script[script_at++] : 0;
  n_sends++;
  if (step < 0) {
    errno = -step;
    return -1;
  }
  if (step > 0 && (unsigned)step < n) n = (unsigned)step;
  return (int)syscall(SYS_sendmmsg, fd, messages, n, flags);
}

/* ---- Ports and bursts ---- */

static inline void set_address(uint8_t address[16], const char *text) {
  struct in6_addr v6;
  char mapped[64];
  snprintf(mapped, sizeof mapped, strchr(text, ':') ? "%s" : "::ffff:%s", text);
  CHECK_EQ(inet_pton(AF_INET6, mapped, &v6), 1);
  memcpy(address, &v6, 16);
}

static inline struct mrc_ctx_config config_of(int n_ports, const char *const *addresses,
                                              int tx_sockets) {
  struct mrc_ctx_config config = {.n_ports = (uint32_t)n_ports};
  for (int i = 0; i < n_ports; i++) {
    set_address(config.ports[i].address, addresses[i]);
    config.ports[i].family = strchr(addresses[i], ':') ? 6 : 4;
    config.ports[i].tx_sockets = (uint16_t)tx_sockets;
  }
  return config;
}

/* Sockets that close at the end of the block that declares them. */
#define UDP FREED_BY(mrc_udp_close) struct mrc_udp

static inline struct mrc_udp open_udp(const struct mrc_ctx_config *config) {
  struct mrc_udp udp;
  struct mrc_cause cause = {0};
  if (mrc_udp_open(&udp, config, &cause) != 0) CHECK_FAIL("open: %s", cause.message);
  REQUIRE(cause.error == 0);
  CHECK_EQ(mrc_udp_inbox_open(&udp) + mrc_udp_outbox_open(&udp), 0);
  return udp;
}

static inline struct mrc_udp open_one(const char *address, int tx_sockets) {
  struct mrc_ctx_config config = config_of(1, &address, tx_sockets);
  return open_udp(&config);
}

/* Receives at one port until n packets are recorded. */
static inline void receive_packets(struct mrc_udp *udp, int port, int n) {
  n_records = 0;
  struct pollfd ready = {.fd = mrc_udp_port(udp, port)->receive_fd, .events = POLLIN};
  while (n_records < n && poll(&ready, 1, PATIENCE_MS) == 1) {
    if (mrc_udp_receive(udp, port) > 0) mrc_udp_deliver(udp, port, NULL, 77);
  }
  CHECK_EQ(n_records, n);
  CHECK_EQ(mrc_udp_receive(udp, port), 0);
}

/* Bursts with their packets; every byte of payload differs from its neighbours. */
struct traffic {
  struct mrc_burst bursts[MRC_UDP_BURSTS];
  struct mrc_packet packets[MRC_UDP_BURSTS][MRC_MAX_BURST_PACKETS];
  int taken[MRC_UDP_BURSTS];
  int n;
};

static uint8_t payload[65536];

static inline void fill_payload(void) {
  for (size_t i = 0; i < sizeof payload; i++)
    payload[i] = (uint8_t)(i * 7 + i / 256);
}

/* A burst of n packets of packet_bytes each, the last shorter by `less`, from one port of `from` to
   one of `to`. The first header byte is the burst's number, the second the packet's. */
static inline struct mrc_burst *add_burst(struct traffic *traffic, const struct mrc_udp *from,
                                          int port, int tx_index, const struct mrc_udp *to,
                                          int n_packets, uint32_t packet_bytes, uint32_t less) {
  struct mrc_burst *burst = &traffic->bursts[traffic->n];
  *burst = (struct mrc_burst){.family = from->ports[port - 1].config.family,
                              .port = (uint8_t)port,
                              .tx_index = (uint8_t)tx_index,
                              .dport = to->udp_port,
                              .tclass = 2,
                              .n_packets = (uint16_t)n_packets,
                              .packet_bytes = packet_bytes,
                              .packets = traffic->packets[traffic->n]};
  memcpy(burst->src, from->ports[port - 1].config.address, 16);
  memcpy(burst->dst, to->ports[port <= to->n_ports ? port - 1 : 0].config.address, 16);
  uint32_t offset = 0;
  for (int i = 0; i < n_packets; i++) {
    struct mrc_packet *packet = &traffic->packets[traffic->n][i];
    uint32_t bytes = packet_bytes - (i == n_packets - 1 ? less : 0);
    *packet = (struct mrc_packet){.header_bytes = HEADER_BYTES,
                                  .trailer_bytes = TRAILER_BYTES,
                                  .payload = payload + offset,
                                  .payload_bytes = bytes - HEADER_BYTES - TRAILER_BYTES};
    memset(packet->header, 0xa0 + i % 16, HEADER_BYTES);
    packet->header[0] = (uint8_t)traffic->n;
    packet->header[1] = (uint8_t)i;
    memset(packet->trailer, 0xe0, TRAILER_BYTES);
    offset += packet->payload_bytes;
  }
  traffic->n++;
  return burst;
}

static inline uint32_t send_traffic(struct traffic *traffic, struct mrc_udp *from) {
  return mrc_udp_send(from, traffic->bursts, traffic->n, traffic->taken, 1000);
}

static inline void check_fates(const struct traffic *traffic, const int *fates) {
  for (int i = 0; i < traffic->n; i++) {
    CHECK_ROW(i);
    CHECK_EQ(traffic->taken[i], fates[i]);
  }
  CHECK_ROW(-1);
}

static inline void check_packet(const struct recorded *record, const struct mrc_packet *packet) {
  uint32_t bytes = packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
  CHECK_EQ(record->bytes, bytes);
  if (record->bytes != bytes) return;
  CHECK_MEM_EQ(record->packet, packet->header, packet->header_bytes);
  if (packet->payload_bytes > 0)
    CHECK_MEM_EQ(record->packet + packet->header_bytes, packet->payload, packet->payload_bytes);
  CHECK_MEM_EQ(record->packet + bytes - packet->trailer_bytes, packet->trailer,
               packet->trailer_bytes);
}

/* Checks that the records from `at` on are the packets of one burst, whole and in order. */
static inline int check_burst_arrived(const struct traffic *traffic, int burst, int at,
                                      const struct mrc_udp *from, const struct mrc_udp *to) {
  const struct mrc_burst *sent = &traffic->bursts[burst];
  for (int i = 0; i < sent->n_packets && at < n_records; i++, at++) {
    const struct mrc_meta *meta = &records[at].meta;
    check_packet(&records[at], &sent->packets[i]);
    CHECK_MEM_EQ(meta->src, sent->src, 16);
    CHECK_MEM_EQ(meta->dst, sent->dst, 16);
    const struct mrc_udp_port *port = &from->ports[sent->port - 1];
    const bool by_receiver = sent->tx_index == port->n_transmitters;
    CHECK_EQ(meta->sport, by_receiver ? from->udp_port : port->transmitters[sent->tx_index].sport);
    CHECK_EQ(meta->dport, to->udp_port);
    CHECK_EQ(meta->family, sent->family);
    CHECK_EQ(meta->flow_label, sent->flow_label);
    CHECK_EQ(meta->ecn, sent->tclass & 3);
    CHECK_EQ(meta->port, sent->port);
    CHECK(77 - meta->arrived_ns < 10000000000u); /* a moment before it was delivered, at 77 */
  }
  return at;
}
