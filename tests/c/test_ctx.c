/* SPDX-License-Identifier: Apache-2.0 */
/* Two contexts of the real engine on loopback, as two hosts would use them: commands in, events
   out, bytes from the memory of one to that of the other. */
#define _GNU_SOURCE 1
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "io/ctx.h"
#include "io/datapath.h"

/* ---- A sendmmsg that finds no route ---- */

enum routes { ALL_ROUTES, NO_ROUTE_FROM_127_0_0_1, NO_ROUTES };

static _Atomic enum routes routes;
static atomic_int n_failed;

static bool has_route(int fd) {
  enum routes now = atomic_load(&routes);
  struct sockaddr_in local;
  socklen_t length = sizeof local;
  if (now != NO_ROUTE_FROM_127_0_0_1) return now == ALL_ROUTES;
  CHECK_EQ(getsockname(fd, (struct sockaddr *)&local, &length), 0);
  return local.sin_addr.s_addr != htonl(INADDR_LOOPBACK);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  if (has_route(fd)) return (int)syscall(SYS_sendmmsg, fd, messages, n, flags);
  atomic_fetch_add(&n_failed, 1);
  errno = ENETUNREACH;
  return -1;
}

static void set_routes(enum routes to) {
  atomic_store(&n_failed, 0);
  atomic_store(&routes, to);
}

/* ---- Two sides ---- */

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

static void create(struct side *side, const struct setup *setup, uint32_t qpn) {
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
  REQUIRE(side->ctx != NULL);
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

static void open_sides(struct side *sides, const struct setup *setup, size_t bytes) {
  create(&sides[0], setup, 0x111111);
  create(&sides[1], setup, 0x222222);
  for (int i = 0; i < 2; i++)
    connect_side(&sides[i], &sides[1 - i], setup);
  for (int i = 0; i < 2; i++)
    make_ready(&sides[i], setup);
  for (int i = 0; i < 2 && bytes > 0; i++)
    register_memory(&sides[i], calloc(1, bytes), bytes);
}

static void close_sides(struct side (*sides)[2]) {
  for (int i = 0; i < 2; i++) {
    if ((*sides)[i].ctx) mrc_ctx_destroy((*sides)[i].ctx);
    free((*sides)[i].memory);
  }
}

/* Two sides that are joined, and close at the end of the block. */
#define OPEN_SIDES(sides, setup, bytes)       \
  FREED_BY(close_sides) struct side sides[2]; \
  open_sides(sides, setup, bytes)

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

/* ---- Tests ---- */

TEST(test_write__one_mebibyte_over_ipv6) {
  OPEN_SIDES(sides, &one_plane_v6, MIB + 13);
  fill(sides[0].memory, MIB + 13, 1);
  post(&sides[0], &sides[1], 0, 0, MIB + 13, MRC_WR_WRITE);
  CHECK(wait_until(sides, first_completed));
  check_wcs(&sides[0], 1);
  CHECK_EQ(sides[0].wcs[0].bytes, MIB + 13);
  CHECK_EQ(query(&sides[1]).received_bytes, MIB + 13);
  CHECK_EQ(sides[1].n_immediates, 0);
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, MIB + 13);
}

static bool all_completed(const struct side *sides) {
  return sides[0].n_wcs == 4 && sides[1].n_wcs == 4 && sides[0].n_immediates == 4 &&
         sides[1].n_immediates == 4;
}

/* Each side writes one half of the memory, in four pieces, to the same place at the other. */
static void write_both_ways(const struct setup *setup) {
  enum { PIECE = 2 * MIB };
  OPEN_SIDES(sides, setup, 8 * PIECE);
  for (int i = 0; i < 2; i++)
    fill(sides[i].memory + i * 4 * PIECE, 4 * PIECE, (uint32_t)i);
  for (uint64_t n = 0; n < 4; n++)
    for (int i = 0; i < 2; i++)
      post(&sides[i], &sides[1 - i], n, ((size_t)i * 4 + n) * PIECE, PIECE, MRC_WR_WRITE_IMM);
  CHECK(wait_until(sides, all_completed));
  for (int i = 0; i < 2; i++) {
    check_wcs(&sides[i], 4);
    for (int n = 0; n < 4; n++)
      CHECK_EQ(sides[i].immediates[n].imm, 0x1000 + n);
  }
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, 8 * (size_t)PIECE);

  struct mrc_qp_info info = query(&sides[0]);
  CHECK_EQ(info.acknowledged_bytes, 4 * PIECE);
  CHECK_EQ(info.received_bytes, 4 * PIECE);
  /* How much each carries depends on how busy this machine is: test_engine_transfer knows it. */
  CHECK(info.planes[0].sent_bytes > 0 && info.planes[1].sent_bytes > 0);
}

TEST(test_write_imm__both_ways_over_two_planes_of_ipv4) { write_both_ways(&two_planes_v4); }

/* Without threads: the test drives both sides and sleeps on their descriptors. */
TEST(test_polled__both_ways_and_an_idle_sleep) {
  struct setup setup = two_planes_v4;
  setup.polled = true;
  write_both_ways(&setup);
}

static bool immediate_came(const struct side *sides) {
  return sides[0].n_wcs == 1 && sides[1].n_immediates == 1;
}

/* The caller gets the events first. The acknowledgement leaves together with the caller's reply. */
TEST(test_run__events_before_answers) {
  struct setup setup = one_plane_v6;
  setup.polled = true;
  OPEN_SIDES(sides, &setup, MIB);
  post(&sides[0], &sides[1], 0, 0, 2, MRC_WR_WRITE_IMM);
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 0), 0);
  CHECK_EQ(mrc_ctx_run(sides[1].ctx, 1000000000), 1);
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 0), 0); /* no acknowledgement yet */
  CHECK_EQ(mrc_ctx_run(sides[1].ctx, 0), 1); /* it leaves; the event is still in the ring */
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 1000000000), 1);
  CHECK(wait_until(sides, immediate_came));
  check_wcs(&sides[0], 1);
  CHECK_EQ(sides[1].immediates[0].bytes, 2);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A polled context lets its caller sleep only after it was idle for spin_us. */
TEST(test_polled__spins_before_it_sleeps) {
  struct setup setup = one_plane_v6;
  setup.polled = true;
  setup.spin_us = 20000;
  OPEN_SIDES(sides, &setup, MIB);
  const uint64_t posted_ns = now_ns();
  post(&sides[0], &sides[1], 0, 0, 2, MRC_WR_WRITE_IMM);
  CHECK(wait_until(sides, immediate_came));
  while (!mrc_ctx_arm(sides[0].ctx)) {
    take_events(&sides[0]);
    take_events(&sides[1]);
  }
  CHECK(now_ns() - posted_ns >= setup.spin_us * 1000ull);
}

static bool probe_ended(const struct side *sides) { return sides[0].probe.type == MRC_EVENT_PROBE; }

static struct mrc_event probe(struct side *sides, uint32_t ev_index, uint64_t bytes,
                              uint64_t timeout_ns) {
  sides[0].probe = (struct mrc_event){0};
  CHECK_EQ(run(&sides[0], (struct mrc_command){.op = MRC_COMMAND_QP_PROBE_EV,
                                               .qpn = sides[0].qpn,
                                               .value = ev_index,
                                               .bytes = bytes,
                                               .timeout_ns = timeout_ns}),
           0);
  CHECK(wait_until(sides, probe_ended));
  CHECK_EQ(sides[0].probe.cookie, sides[0].cookie);
  CHECK_EQ(sides[0].probe.ev_index, ev_index);
  return sides[0].probe;
}

TEST(test_probe_ev__answered_and_not) {
  OPEN_SIDES(sides, &one_plane_v6, 0);
  for (uint32_t ev = 0; ev < EVS_PER_PORT; ev++) {
    struct mrc_event end = probe(sides, ev, 8888, PATIENCE_MS * 1000000ull);
    CHECK_EQ(end.result, 0);
    CHECK(end.rtt_ns > 0 && end.rtt_ns < PATIENCE_MS * INT64_C(1000000));
    CHECK_EQ(end.port, 1);
  }
  CHECK_EQ(run(&sides[1], (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = sides[1].qpn}),
           0);
  CHECK_EQ(probe(sides, 0, 0, 5000000).result, -ETIMEDOUT);
}

/* The file behind the sender's memory is truncated: the missing bytes arrive as zeros, with a
   warning. */
TEST(test_write__a_source_that_shrank) {
  OPEN_SIDES(sides, &one_plane_v6, 0);
  int fd = memfd_create("test_ctx", MFD_CLOEXEC);
  CHECK_EQ(ftruncate(fd, MIB), 0);
  uint8_t *file = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(file != MAP_FAILED);
  fill(file, MIB, 5);
  uint8_t *expected = calloc(1, MIB);
  memcpy(expected, file, MIB / 4);
  register_memory(&sides[0], file, MIB);
  register_memory(&sides[1], calloc(1, MIB), MIB);
  CHECK_EQ(ftruncate(fd, MIB / 4), 0);
  post(&sides[0], &sides[1], 0, 0, MIB, MRC_WR_WRITE_IMM);
  CHECK(wait_until(sides, immediate_came));
  check_wcs(&sides[0], 1);
  CHECK_MEM_EQ(sides[1].memory, expected, MIB);
  CHECK_EQ(sides[0].warning.type, MRC_EVENT_WARNING);
  CHECK_EQ(sides[0].warning.cookie, sides[0].key);
  sides[0].memory = NULL;
  munmap(file, MIB);
  close(fd);
  free(expected);
}

/* One of two planes has no route: all packets use the other plane, and no thread spins. */
TEST(test_write__over_the_plane_that_has_a_route) {
  OPEN_SIDES(sides, &two_planes_v4, 8 * MIB);
  fill(sides[0].memory, 8 * MIB, 3);
  set_routes(NO_ROUTE_FROM_127_0_0_1);
  post(&sides[0], &sides[1], 0, 0, 8 * MIB, MRC_WR_WRITE);
  CHECK(wait_until(sides, first_completed));
  check_wcs(&sides[0], 1);
  struct mrc_qp_info info = query(&sides[0]);
  CHECK_EQ(info.planes[0].suspended, 1);
  CHECK_EQ(info.planes[0].sent_packets, 0);
  CHECK_EQ(info.acknowledged_bytes, 8 * MIB);
  CHECK(atomic_load(&n_failed) > 0 && atomic_load(&n_failed) < 1000);
  set_routes(ALL_ROUTES);
  CHECK_EQ(query(&sides[1]).received_bytes, 8 * MIB);
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, 8 * MIB);
}

/* No plane has a route: a timer paces the retries, and the QP fails after the last one. */
TEST(test_write__without_any_route) {
  struct setup setup = two_planes_v4;
  setup.timeout = 9; /* 0.5 ms */
  setup.retry_exp = 2;
  OPEN_SIDES(sides, &setup, MIB);
  set_routes(NO_ROUTES);
  post(&sides[0], &sides[1], 0, 0, MIB, MRC_WR_WRITE);
  CHECK(wait_until(sides, first_completed));
  CHECK(atomic_load(&n_failed) < 2000);
  set_routes(ALL_ROUTES);
  CHECK_EQ(sides[0].wcs[0].status, MRC_WC_RETRY_EXC_ERR);
  CHECK(sides[0].failed);
  CHECK_EQ(sides[0].status, MRC_WC_RETRY_EXC_ERR);
}

/* Destroys a context during a write: from then on nothing may touch the memory. */
TEST(test_destroy__in_the_middle_of_a_write) {
  OPEN_SIDES(sides, &one_plane_v6, 16 * MIB);
  for (int i = 0; i < 2; i++)
    post(&sides[i], &sides[1 - i], 0, 0, 8 * MIB, MRC_WR_WRITE);
  mrc_ctx_destroy(sides[1].ctx);
  sides[1].ctx = NULL;
  memset(sides[1].memory, 0x33, 16 * MIB);
  CHECK_EQ(run(&sides[0], (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = sides[0].qpn}),
           0);
  for (size_t i = 0; i < 16 * MIB; i += 4096)
    CHECK_EQ(sides[1].memory[i], 0x33);
}

/* ---- Ports ---- */

/* Ports that close and open while two contexts on loopback use them. */
static int close_port(struct side *side, uint32_t port) {
  return run(side, (struct mrc_command){.op = MRC_COMMAND_PORT_CLOSE, .value = port});
}

static int open_port(struct side *side, uint32_t port, const struct mrc_port_config *config,
                     struct mrc_port_opening *opening) {
  *opening = (struct mrc_port_opening){.config = *config};
  struct mrc_command command = {.op = MRC_COMMAND_PORT_OPEN, .value = port, .pointer = opening};
  return run(side, command);
}

static int wanted_wcs;
static bool wanted_completed(const struct side *sides) { return sides[0].n_wcs == wanted_wcs; }

/* A write continues while one of its planes is closed; afterwards the plane carries data again. */
TEST(test_close__in_the_middle_of_a_write_and_back) {
  OPEN_SIDES(sides, &two_planes_v4, 16 * MIB);
  fill(sides[0].memory, 16 * MIB, 1);
  const struct mrc_port_config *config = &sides[0].config.ports[1];
  const uint16_t sport = mrc_ctx_source_port(sides[0].ctx, 2, 3);
  struct mrc_port_opening opening;
  post(&sides[0], &sides[1], 0, 0, 16 * MIB, MRC_WR_WRITE);
  CHECK_EQ(close_port(&sides[0], 2), 0);
  CHECK_EQ(close_port(&sides[0], 2), -ENOENT);
  CHECK(wait_until(sides, first_completed));
  CHECK_EQ(query(&sides[0]).planes[1].suspended, 1);

  CHECK_EQ(open_port(&sides[0], 2, &sides[0].config.ports[0], &opening), -EINVAL);
  CHECK_STR_EQ(opening.cause, "ports 1 and 2 have the same interface and address");
  struct mrc_port_config other = *config;
  set_address(other.address, "127.0.0.3");
  CHECK_EQ(open_port(&sides[0], 2, &other, &opening), -EBUSY);
  CHECK_EQ(open_port(&sides[0], 2, config, &opening), 0);
  CHECK_EQ(opening.sports[3], sport);
  CHECK_EQ(opening.udp_port, mrc_ctx_udp_port(sides[0].ctx));
  const uint64_t before = query(&sides[0]).planes[1].sent_bytes;
  /* On a busy machine late answers suspend the plane once more. */
  wanted_wcs = 1;
  while (query(&sides[0]).planes[1].sent_bytes == before) {
    while (query(&sides[0]).planes[1].suspended) {
    }
    post(&sides[0], &sides[1], (uint64_t)wanted_wcs, 0, 16 * MIB, MRC_WR_WRITE);
    wanted_wcs++;
    CHECK(wait_until(sides, wanted_completed));
  }
  check_wcs(&sides[0], wanted_wcs);
  query(&sides[1]); /* its thread's writes come before what follows */
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, 16 * MIB);
}

static int set_evs(struct side *side, const struct side *peer) {
  struct mrc_ev_attr evs[MAX_PORTS * EVS_PER_PORT];
  struct mrc_qp_create_attr attr = {.qpn = 77, .sq_depth = 1, .mpr = 128, .max_wimm = 1};
  struct mrc_command command = {.op = MRC_COMMAND_QP_CREATE, .pointer = &attr, .qpn = 77};
  CHECK_EQ(run(side, command), 0);
  command.op = MRC_COMMAND_QP_MODIFY;
  command.value = MRC_QP_INIT;
  CHECK_EQ(run(side, command), 0);
  command = (struct mrc_command){.op = MRC_COMMAND_QP_SET_EVS, .pointer = evs, .qpn = 77};
  command.value = (uint32_t)list_evs(side, peer, evs);
  const int error = run(side, command);
  CHECK_EQ(run(side, (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = 77}), 0);
  return error;
}

/* EVs of a connect that began before the reopening name sockets of another address, so they are
 * refused.
 */
TEST(test_open__evs_of_before_are_refused) {
  OPEN_SIDES(sides, &two_planes_v4, 0);
  struct mrc_port_config other = sides[0].config.ports[1];
  set_address(other.address, "127.0.0.3");
  struct mrc_port_opening opening;
  CHECK_EQ(set_evs(&sides[0], &sides[1]), 0);
  CHECK_EQ(close_port(&sides[0], 2), 0);
  CHECK_EQ(set_evs(&sides[0], &sides[1]), -ENETDOWN);
  CHECK_EQ(run(&sides[0], (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = sides[0].qpn}),
           0);
  CHECK_EQ(open_port(&sides[0], 2, &other, &opening), 0);
  CHECK_EQ(set_evs(&sides[0], &sides[1]), -ENETDOWN);
  set_address(sides[0].config.ports[1].address, "127.0.0.3");
  CHECK_EQ(set_evs(&sides[0], &sides[1]), 0);
}

TEST(test_commands__of_ports_that_are_not) {
  OPEN_SIDES(sides, &two_planes_v4, 0);
  const struct mrc_port_config *config = &sides[0].config.ports[1];
  struct mrc_port_opening opening;
  CHECK_EQ(close_port(&sides[0], 0), -EINVAL);
  CHECK_EQ(close_port(&sides[0], 3), -EINVAL);
  CHECK_EQ(close_port(&sides[0], UINT32_MAX), -EINVAL);
  CHECK_EQ(open_port(&sides[0], 0, config, &opening), -EINVAL);
  CHECK_EQ(open_port(&sides[0], 3, config, &opening), -EINVAL);
  CHECK_EQ(open_port(&sides[0], UINT32_MAX, config, &opening), -EINVAL);
  CHECK_EQ(open_port(&sides[0], 2, config, &opening), -EEXIST);
  struct mrc_command up = {.op = MRC_COMMAND_PORT_UP, .value = 2, .key = 1};
  CHECK_EQ(run(&sides[0], up), 0);
  CHECK_EQ(close_port(&sides[0], 2), 0);
  CHECK_EQ(run(&sides[0], up), -ENOENT);
}

/* ---- Pauses ---- */

/* The pause of the datapath thread between looks at its sockets. */
/* ---- Counting the pauses ---- */

static atomic_int n_pauses;
static atomic_long longest_pause_ns;

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
  CHECK_EQ(n, 1);
  atomic_fetch_add(&n_pauses, 1);
  if (timeout->tv_nsec > atomic_load(&longest_pause_ns))
    atomic_store(&longest_pause_ns, timeout->tv_nsec);
  return (int)syscall(SYS_ppoll, fds, n, timeout, mask, sizeof *mask);
}

/* A context pauses only when its configuration enables it, and only while bursts arrive. */
TEST(test_write__takes_bursts_in_one_go) {
  static const struct {
    uint16_t coalesce_us;
    bool polled;
    size_t bytes;
    bool pauses;
  } rows[] = {{100, false, 4 * MIB, true},
              {0, false, 4 * MIB, false},
              {100, true, 4 * MIB, false},
              {100, false, 8192, false}};
  EACH_ROW(i, rows) {
    struct setup setup = one_plane_v6;
    setup.coalesce_us = rows[i].coalesce_us;
    setup.polled = rows[i].polled;
    OPEN_SIDES(sides, &setup, rows[i].bytes);
    atomic_store(&n_pauses, 0);
    atomic_store(&longest_pause_ns, 0);
    fill(sides[0].memory, rows[i].bytes, 1);
    post(&sides[0], &sides[1], 0, 0, rows[i].bytes, MRC_WR_WRITE);
    CHECK(wait_until(sides, first_completed));
    check_wcs(&sides[0], 1);
    CHECK_EQ(query(&sides[1]).received_bytes, rows[i].bytes);
    CHECK_MEM_EQ(sides[1].memory, sides[0].memory, rows[i].bytes);
    CHECK_EQ(atomic_load(&n_pauses) > 0, rows[i].pauses);
    if (rows[i].pauses) CHECK(atomic_load(&longest_pause_ns) <= rows[i].coalesce_us * 1000l);
  }
}

/* ---- Length of the pause ---- */

enum { LONGEST_NS = 16000, BURST = 62 * 1024, TURNS = 3 * MRC_PAUSE_TURNS };

TEST(test_pause__grows_while_bursts_come) {
  struct mrc_pause pause = {.longest_ns = LONGEST_NS};
  EACH_OF(uint64_t, turn, 1, TURNS + 1)
    CHECK_EQ(mrc_pause_after(&pause, BURST, 7, false), LONGEST_NS / 16 * mrc_min_u64(turn, 16));
  CHECK_EQ(mrc_pause_after(&pause, 0, 0, false), 0); /* a turn for other reasons */
  CHECK_EQ(mrc_pause_after(&pause, BURST, 7, false), LONGEST_NS);
  CHECK_EQ(mrc_pause_after(&pause, BURST, 7, true), 0); /* a socket may hold more */
  CHECK_EQ(mrc_pause_after(&pause, BURST, 7, false), LONGEST_NS);
  CHECK_EQ(mrc_pause_after(&pause, 1000, 1, false), 0);
  CHECK_EQ(mrc_pause_after(&pause, BURST, 7, false), LONGEST_NS / 16 * 9);
}

/* The pause is limited so that a turn does not exceed MRC_PAUSE_PACKETS by much: here a packet
   arrives each us. */
TEST(test_pause__leaves_windows_of_small_packets_room) {
  struct mrc_pause pause = {.longest_ns = 1000000};
  uint64_t pause_ns = 0;
  for (int turn = 0; turn < 10 * MRC_PAUSE_TURNS; turn++) {
    const uint32_t packets = 64 + (uint32_t)(pause_ns / 1000);
    pause_ns = mrc_pause_after(&pause, packets * 1024, packets, false);
    CHECK_ROW(turn);
    CHECK(packets <= MRC_PAUSE_PACKETS + pause.longest_ns / 1000 / MRC_PAUSE_TURNS);
  }
  CHECK(pause_ns > 0);
}

/* One message that the peer sends after the answer to the last comes in each pause, however long.
 */
TEST(test_pause__is_short_where_a_peer_waits_for_each_answer) {
  static const struct {
    uint64_t bytes, longest_ns;
  } rows[] = {{32 << 10, 16000}, {64 << 10, 48000}};
  EACH_ROW(i, rows) {
    struct mrc_pause pause = {.longest_ns = 250000};
    for (int turn = 0; turn < TURNS; turn++)
      CHECK(mrc_pause_after(&pause, rows[i].bytes, 8, false) <= rows[i].longest_ns);
  }
}

TEST(test_pause__never) {
  struct mrc_pause pause = {0};
  for (int turn = 0; turn < TURNS; turn++)
    CHECK_EQ(mrc_pause_after(&pause, BURST, 7, false), 0);
}
