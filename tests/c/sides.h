/* SPDX-License-Identifier: Apache-2.0 */
/* Two contexts of the real engine on loopback, as two hosts would use them: commands in, events
   out, bytes from the memory of one to that of the other. One program includes it once. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "check.h"
#include "mrc.h"

enum { MAX_PORTS = 2, EVS_PER_PORT = 4, WINDOW_PSNS = 1024, MIB = 1 << 20 };

/* One host: its context, its QP and the contents of its events. */
struct side {
  mrc_ctx *ctx;
  struct mrc_ctx_config config;
  uint32_t qpn;
  uint32_t key;
  uint8_t *memory;
  size_t bytes;
  uint64_t cookie;
  struct mrc_event reply;   /* the last */
  struct mrc_event probe;   /* the last */
  struct mrc_event warning; /* the last */
  struct mrc_wc wcs[16];    /* completions of its own work requests */
  int n_wcs;
  struct mrc_wc immediates[16];
  int n_immediates;
  bool failed;    /* the QP went to ERROR */
  uint8_t status; /* the reason, when failed */
};

/* How two sides are joined. */
struct setup {
  const char *addresses[MAX_PORTS];
  int n_ports;
  int tx_sockets;
  uint32_t integrity;
  uint32_t path_mtu;
  uint8_t timeout;
  uint8_t retry_exp;
  bool polled;
  uint16_t coalesce_us;
  uint16_t spin_us;
};

static const struct setup one_plane_v6 = {.addresses = {"::1"},
                                          .n_ports = 1,
                                          .tx_sockets = 1,
                                          .path_mtu = 4096,
                                          .timeout = 14,
                                          .retry_exp = 8};
static const struct setup two_planes_v4 = {.addresses = {"127.0.0.1", "127.0.0.2"},
                                           .n_ports = 2,
                                           .tx_sockets = EVS_PER_PORT,
                                           .integrity = MRC_INTEGRITY_UDP,
                                           .path_mtu = 8844,
                                           .timeout = 14,
                                           .retry_exp = 8};

/* ---- Events ---- */

static void take_event(struct side *side, const struct mrc_event *event) {
  if (event->type == MRC_EVENT_REPLY) side->reply = *event;
  if (event->type == MRC_EVENT_PROBE) side->probe = *event;
  if (event->type == MRC_EVENT_WARNING && event->status == MRC_WARNING_MEMORY_FAULT)
    side->warning = *event;
  if (event->type == MRC_EVENT_QP_ERROR) {
    side->failed = true;
    side->status = event->status;
  }
  if (event->type != MRC_EVENT_WC) return;
  if (event->wc.opcode == MRC_WC_RECV_IMM && side->n_immediates < 16)
    side->immediates[side->n_immediates++] = event->wc;
  else if (event->wc.opcode != MRC_WC_RECV_IMM && side->n_wcs < 16)
    side->wcs[side->n_wcs++] = event->wc;
}

static void take_events(struct side *side) {
  struct mrc_event events[32];
  if (side->config.polled) mrc_ctx_run(side->ctx, 0);
  int n = mrc_ctx_poll(side->ctx, events, 32);
  for (int i = 0; i < n; i++)
    take_event(side, &events[i]);
}

/* How long the caller may sleep on the descriptor of the context. */
static int patience_ms(const struct side *side) {
  return side->config.polled && !mrc_ctx_arm(side->ctx) ? 0 : PATIENCE_MS;
}

/* Takes events of both sides until the condition holds; false when no event came for too long. */
static bool wait_until(struct side *sides, bool (*holds)(const struct side *sides)) {
  struct pollfd ready[2] = {{.fd = mrc_ctx_fd(sides[0].ctx), .events = POLLIN},
                            {.fd = mrc_ctx_fd(sides[1].ctx), .events = POLLIN}};
  while (!holds(sides)) {
    int ms = patience_ms(&sides[0]);
    if (patience_ms(&sides[1]) == 0) ms = 0;
    if (poll(ready, 2, ms) <= 0 && ms > 0) return false;
    take_events(&sides[0]);
    take_events(&sides[1]);
  }
  return true;
}

/* Runs one command and returns the result of its reply. */
static int run(struct side *side, struct mrc_command command) {
  struct pollfd ready = {.fd = mrc_ctx_fd(side->ctx), .events = POLLIN};
  command.cookie = ++side->cookie;
  CHECK_EQ(mrc_ctx_submit(side->ctx, &command, 1), 1);
  while (side->reply.cookie != side->cookie) {
    int ms = patience_ms(side);
    if (poll(&ready, 1, ms) != 1 && ms > 0) {
      CHECK_FAIL("no reply to command %u", command.op);
      return -ETIMEDOUT;
    }
    take_events(side);
  }
  return side->reply.result;
}

/* ---- Setting up ---- */

static void set_address(uint8_t address[16], const char *text) {
  char mapped[64];
  snprintf(mapped, sizeof mapped, strchr(text, ':') ? "%s" : "::ffff:%s", text);
  CHECK_EQ(inet_pton(AF_INET6, mapped, address), 1);
}

static bool create(struct side *side, const struct setup *setup, uint32_t qpn) {
  *side = (struct side){.qpn = qpn, .key = qpn ^ 0xabcdef};
  side->config = (struct mrc_ctx_config){.n_ports = (uint32_t)setup->n_ports,
                                         .polled = setup->polled,
                                         .spin_us = setup->spin_us,
                                         .coalesce_us = setup->coalesce_us};
  for (int i = 0; i < setup->n_ports; i++) {
    struct mrc_port_config *port = &side->config.ports[i];
    port->family = strchr(setup->addresses[i], ':') ? 6 : 4;
    port->tx_sockets = (uint16_t)setup->tx_sockets;
    set_address(port->address, setup->addresses[i]);
  }
  int error;
  char message[128];
  side->ctx = mrc_ctx_create(&side->config, &error, message, sizeof message);
  if (!side->ctx) CHECK_FAIL("create: %s", message);
  return side->ctx != NULL;
}

/* An EV for each port and number: with a flow label each on IPv6, a socket each on IPv4. */
static int list_evs(const struct side *side, const struct side *peer, struct mrc_ev_attr *evs) {
  int n = 0;
  for (int port = 1; port <= (int)side->config.n_ports; port++) {
    const struct mrc_port_config *own = &side->config.ports[port - 1];
    for (int i = 0; i < EVS_PER_PORT; i++, n++) {
      int tx_index = own->tx_sockets > 1 ? i : 0;
      uint32_t label = own->family == 6 ? (uint32_t)i + 1 : 0;
      evs[n] = (struct mrc_ev_attr){
          .ev = (uint32_t)mrc_ctx_source_port(side->ctx, port, tx_index) << 16 | label,
          .dport = mrc_ctx_udp_port(peer->ctx),
          .port = (uint8_t)port,
          .tx_index = (uint8_t)tx_index,
          .family = own->family};
      memcpy(evs[n].src, own->address, 16);
      memcpy(evs[n].dst, peer->config.ports[port - 1].address, 16);
    }
  }
  return n;
}

static int list_sources(const struct side *peer, struct mrc_peer_source *sources) {
  int n = 0;
  for (int port = 1; port <= (int)peer->config.n_ports; port++)
    for (int i = 0; i < peer->config.ports[port - 1].tx_sockets; i++, n++) {
      sources[n] = (struct mrc_peer_source){.sport = mrc_ctx_source_port(peer->ctx, port, i)};
      memcpy(sources[n].address, peer->config.ports[port - 1].address, 16);
    }
  return n;
}

static void connect_side(struct side *side, const struct side *peer, const struct setup *setup) {
  struct mrc_ev_attr evs[MAX_PORTS * EVS_PER_PORT];
  struct mrc_peer_source sources[MAX_PORTS * EVS_PER_PORT];
  struct mrc_qp_create_attr create = {
      .qpn = side->qpn, .sq_depth = 64, .mpr = WINDOW_PSNS, .max_wimm = 16};
  struct mrc_qp_rtr_attr rtr = {.dest_qpn = peer->qpn,
                                .rq_psn = 0xffff00 + (peer->qpn & 0xff),
                                .integrity = setup->integrity};
  struct mrc_command command = {.op = MRC_COMMAND_QP_CREATE, .pointer = &create, .qpn = side->qpn};
  CHECK_EQ(run(side, command), 0);
  command.op = MRC_COMMAND_QP_MODIFY;
  command.value = MRC_QP_INIT;
  CHECK_EQ(run(side, command), 0);
  command.op = MRC_COMMAND_QP_SET_EVS;
  command.pointer = evs;
  command.value = (uint32_t)list_evs(side, peer, evs);
  CHECK_EQ(run(side, command), 0);
  command.op = MRC_COMMAND_QP_SET_PEER;
  command.pointer = sources;
  command.value = (uint32_t)list_sources(peer, sources);
  CHECK_EQ(run(side, command), 0);
  command.op = MRC_COMMAND_QP_MODIFY;
  command.pointer = &rtr;
  command.value = MRC_QP_RTR;
  CHECK_EQ(run(side, command), 0);
}

static void make_ready(struct side *side, const struct setup *setup) {
  struct mrc_qp_rts_attr attr = {.sq_psn = 0xffff00 + (side->qpn & 0xff),
                                 .path_mtu = setup->path_mtu,
                                 .peer_mpr = WINDOW_PSNS,
                                 .peer_max_wimm = 16,
                                 .timeout = setup->timeout,
                                 .retry_linear = 7,
                                 .retry_exp = setup->retry_exp,
                                 .cc = MRC_CC_DELAY};
  struct mrc_command command = {
      .op = MRC_COMMAND_QP_MODIFY, .pointer = &attr, .qpn = side->qpn, .value = MRC_QP_RTS};
  CHECK_EQ(run(side, command), 0);
}

static void register_memory(struct side *side, uint8_t *memory, size_t bytes) {
  side->memory = memory;
  side->bytes = bytes;
  CHECK_EQ(
      run(side, (struct mrc_command){.op = MRC_COMMAND_MR_REGISTER,
                                     .address = (uintptr_t)memory,
                                     .bytes = bytes,
                                     .key = side->key,
                                     .access = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE}),
      0);
}

static bool open_sides(struct side *sides, const struct setup *setup, size_t bytes) {
  memset(sides, 0, 2 * sizeof *sides);
  if (!create(&sides[0], setup, 0x111111) || !create(&sides[1], setup, 0x222222)) return false;
  for (int i = 0; i < 2; i++)
    connect_side(&sides[i], &sides[1 - i], setup);
  for (int i = 0; i < 2; i++)
    make_ready(&sides[i], setup);
  for (int i = 0; i < 2 && bytes > 0; i++)
    register_memory(&sides[i], calloc(1, bytes), bytes);
  return true;
}

static void close_sides(struct side *sides) {
  for (int i = 0; i < 2; i++) {
    if (sides[i].ctx) mrc_ctx_destroy(sides[i].ctx);
    free(sides[i].memory);
  }
}

static void fill(uint8_t *memory, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; i++) {
    seed = seed * 1664525 + 1013904223;
    memory[i] = (uint8_t)(seed >> 24);
  }
}

/* Posts a write of [offset, offset + bytes) to the same place at the peer. */
static void post(struct side *side, const struct side *peer, uint64_t wr_id, size_t offset,
                 size_t bytes, uint8_t opcode) {
  struct mrc_command command = {.op = MRC_COMMAND_QP_POST, .qpn = side->qpn};
  command.wr = (struct mrc_wr){.wr_id = wr_id,
                               .local = (uintptr_t)side->memory + offset,
                               .va = (uintptr_t)peer->memory + offset,
                               .lkey = side->key,
                               .rkey = peer->key,
                               .bytes = (uint32_t)bytes,
                               .imm = 0x1000 + (uint32_t)wr_id,
                               .opcode = opcode};
  CHECK_EQ(mrc_ctx_submit(side->ctx, &command, 1), 1);
}

static void check_wcs(const struct side *side, int n) {
  CHECK(!side->failed);
  CHECK_EQ(side->n_wcs, n);
  for (int i = 0; i < side->n_wcs; i++) {
    CHECK_EQ(side->wcs[i].status, MRC_WC_SUCCESS);
    CHECK_EQ(side->wcs[i].wr_id, i);
    CHECK_EQ(side->wcs[i].qpn, side->qpn);
  }
}

static bool first_completed(const struct side *sides) { return sides[0].n_wcs == 1; }

/* After this reply the caller may read the memory: the reply orders the thread's earlier writes
   before it. */
static struct mrc_qp_info query(struct side *side) {
  struct mrc_qp_info info = {0};
  CHECK_EQ(
      run(side,
          (struct mrc_command){.op = MRC_COMMAND_QP_QUERY, .qpn = side->qpn, .pointer = &info}),
      0);
  return info;
}
