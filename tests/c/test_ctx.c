/* SPDX-License-Identifier: Apache-2.0 */
/* Two contexts of the real engine on loopback, as two hosts would use them: commands in, events
   out, bytes from the memory of one to that of the other. */
#define _GNU_SOURCE 1
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "io/datapath.h"
#include "mrc.h"

enum { WAIT_MS = 10000, MAX_PORTS = 2, EVS_PER_PORT = 4, WINDOW_PSNS = 1024, MIB = 1 << 20 };

/* One host: its context, its QP and what its events told. */
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
  struct mrc_wc wcs[16];    /* of own work requests */
  int n_wcs;
  struct mrc_wc immediates[16];
  int n_immediates;
  bool failed;    /* the QP went to ERROR */
  uint8_t status; /* then why */
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

/* ---- A pause that is counted ---- */

static atomic_int n_pauses;
static atomic_long longest_pause_ns;

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
  CHECK_EQ(n, 1);
  atomic_fetch_add(&n_pauses, 1);
  if (timeout->tv_nsec > atomic_load(&longest_pause_ns))
    atomic_store(&longest_pause_ns, timeout->tv_nsec);
  return (int)syscall(SYS_ppoll, fds, n, timeout, mask, sizeof *mask);
}

static void set_routes(enum routes to) {
  atomic_store(&n_failed, 0);
  atomic_store(&routes, to);
}

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

/* How long one may sleep on the descriptor of the context. */
static int patience_ms(const struct side *side) {
  return side->config.polled && !mrc_ctx_arm(side->ctx) ? 0 : WAIT_MS;
}

/* Takes events of both sides until the condition holds; false when nothing came for long. */
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

/* An EV of every port and number: a flow label of its own on IPv6, a socket of its own on IPv4. */
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
  struct mrc_command command = {.qpn = side->qpn};
  command.attr = (struct mrc_qp_attr){.qpn = side->qpn,
                                      .sq_depth = 64,
                                      .mpr = WINDOW_PSNS,
                                      .max_wimm = 16,
                                      .dest_qpn = peer->qpn,
                                      .rq_psn = 0xffff00 + (peer->qpn & 0xff),
                                      .integrity = setup->integrity,
                                      .sq_psn = 0xffff00 + (side->qpn & 0xff),
                                      .path_mtu = setup->path_mtu,
                                      .peer_mpr = WINDOW_PSNS,
                                      .peer_max_wimm = 16,
                                      .timeout = setup->timeout,
                                      .retry_linear = 7,
                                      .retry_exp = setup->retry_exp,
                                      .cc = MRC_CC_DELAY};
  command.op = MRC_COMMAND_QP_CREATE;
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
  command.value = MRC_QP_RTR;
  CHECK_EQ(run(side, command), 0);
}

static void make_ready(struct side *side, const struct setup *setup) {
  struct mrc_command command = {.op = MRC_COMMAND_QP_MODIFY, .qpn = side->qpn};
  command.value = MRC_QP_RTS;
  command.attr = (struct mrc_qp_attr){.sq_psn = 0xffff00 + (side->qpn & 0xff),
                                      .path_mtu = setup->path_mtu,
                                      .peer_mpr = WINDOW_PSNS,
                                      .peer_max_wimm = 16,
                                      .timeout = setup->timeout,
                                      .retry_linear = 7,
                                      .retry_exp = setup->retry_exp,
                                      .cc = MRC_CC_DELAY};
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

/* The reply also orders what the thread wrote before it for whoever reads the memory then. */
static struct mrc_qp_info query(struct side *side) {
  struct mrc_qp_info info = {0};
  CHECK_EQ(
      run(side,
          (struct mrc_command){.op = MRC_COMMAND_QP_QUERY, .qpn = side->qpn, .pointer = &info}),
      0);
  return info;
}

/* ---- Tests ---- */

static void test_write__one_mebibyte_over_ipv6(void) {
  struct side sides[2];
  if (!open_sides(sides, &one_plane_v6, MIB + 13)) return;
  fill(sides[0].memory, MIB + 13, 1);
  post(&sides[0], &sides[1], 0, 0, MIB + 13, MRC_WR_WRITE);
  CHECK(wait_until(sides, first_completed));
  check_wcs(&sides[0], 1);
  CHECK_EQ(sides[0].wcs[0].bytes, MIB + 13);
  CHECK_EQ(query(&sides[1]).bytes_received, MIB + 13);
  CHECK_EQ(sides[1].n_immediates, 0);
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, MIB + 13);
  close_sides(sides);
}

/* Only who is told to pauses, and only while bursts come in. */
static void test_write__takes_bursts_in_one_go(void) {
  static const struct {
    uint16_t coalesce_us;
    bool polled;
    size_t bytes;
    bool pauses;
  } rows[] = {{100, false, 4 * MIB, true},
              {0, false, 4 * MIB, false},
              {100, true, 4 * MIB, false},
              {100, false, 8192, false}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct side sides[2];
    struct setup setup = one_plane_v6;
    setup.coalesce_us = rows[i].coalesce_us;
    setup.polled = rows[i].polled;
    if (!open_sides(sides, &setup, rows[i].bytes)) return;
    atomic_store(&n_pauses, 0);
    atomic_store(&longest_pause_ns, 0);
    fill(sides[0].memory, rows[i].bytes, 1);
    post(&sides[0], &sides[1], 0, 0, rows[i].bytes, MRC_WR_WRITE);
    CHECK(wait_until(sides, first_completed));
    check_wcs(&sides[0], 1);
    CHECK_EQ(query(&sides[1]).bytes_received, rows[i].bytes);
    CHECK_MEM_EQ(sides[1].memory, sides[0].memory, rows[i].bytes);
    CHECK_EQ(atomic_load(&n_pauses) > 0, rows[i].pauses);
    if (rows[i].pauses) CHECK(atomic_load(&longest_pause_ns) <= rows[i].coalesce_us * 1000l);
    close_sides(sides);
  }
}

static bool all_completed(const struct side *sides) {
  return sides[0].n_wcs == 4 && sides[1].n_wcs == 4 && sides[0].n_immediates == 4 &&
         sides[1].n_immediates == 4;
}

/* Each side writes one half of the memory, in four pieces, to the same place at the other. */
static void test_write_imm__both_ways_over_two_planes_of_ipv4(void) {
  enum { PIECE = 2 * MIB };
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 8 * PIECE)) return;
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
  CHECK_EQ(info.bytes_acked, 4 * PIECE);
  CHECK_EQ(info.bytes_received, 4 * PIECE);
  CHECK(info.planes[0].bytes > PIECE && info.planes[1].bytes > PIECE);
  close_sides(sides);
}

static bool immediate_came(const struct side *sides) {
  return sides[0].n_wcs == 1 && sides[1].n_immediates == 1;
}

/* The same without threads: this one drives both sides, and sleeps on their descriptors. */
static void test_polled__both_ways_and_an_idle_sleep(void) {
  struct setup setup = two_planes_v4;
  setup.polled = true;
  struct side sides[2];
  if (!open_sides(sides, &setup, 8 * MIB)) return;
  for (int i = 0; i < 2; i++) {
    fill(sides[i].memory + i * 4 * MIB, 4 * MIB, (uint32_t)i);
    for (uint64_t n = 0; n < 4; n++)
      post(&sides[i], &sides[1 - i], n, ((size_t)i * 4 + n) * MIB, MIB, MRC_WR_WRITE_IMM);
  }
  CHECK(wait_until(sides, all_completed));
  for (int i = 0; i < 2; i++) {
    check_wcs(&sides[i], 4);
    for (int n = 0; n < 4; n++)
      CHECK_EQ(sides[i].immediates[n].imm, 0x1000 + n);
  }
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, 8 * (size_t)MIB);
  close_sides(sides);
}

/* What arrived is given to the caller first, and answered together with what he replies. */
static void test_run__events_before_answers(void) {
  struct setup setup = one_plane_v6;
  setup.polled = true;
  struct side sides[2];
  if (!open_sides(sides, &setup, MIB)) return;
  post(&sides[0], &sides[1], 0, 0, 2, MRC_WR_WRITE_IMM);
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 0), 0);
  CHECK_EQ(mrc_ctx_run(sides[1].ctx, 1000000000), 1);
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 0), 0); /* no acknowledgement yet */
  CHECK_EQ(mrc_ctx_run(sides[1].ctx, 0), 1); /* it leaves, the event stays */
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 1000000000), 1);
  CHECK(wait_until(sides, immediate_came));
  check_wcs(&sides[0], 1);
  CHECK_EQ(sides[1].immediates[0].bytes, 2);
  close_sides(sides);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* One that spins does not let its caller sleep before it was idle for so long. */
static void test_polled__spins_before_it_sleeps(void) {
  struct setup setup = one_plane_v6;
  setup.polled = true;
  setup.spin_us = 20000;
  struct side sides[2];
  if (!open_sides(sides, &setup, MIB)) return;
  const uint64_t posted_ns = now_ns();
  post(&sides[0], &sides[1], 0, 0, 2, MRC_WR_WRITE_IMM);
  CHECK(wait_until(sides, immediate_came));
  while (!mrc_ctx_arm(sides[0].ctx)) {
    take_events(&sides[0]);
    take_events(&sides[1]);
  }
  CHECK(now_ns() - posted_ns >= setup.spin_us * 1000ull);
  close_sides(sides);
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

static void test_probe_ev__answered_and_not(void) {
  struct side sides[2];
  if (!open_sides(sides, &one_plane_v6, 0)) return;
  for (uint32_t ev = 0; ev < EVS_PER_PORT; ev++) {
    struct mrc_event end = probe(sides, ev, 8888, 1000000000);
    CHECK_EQ(end.result, 0);
    CHECK(end.rtt_ns > 0 && end.rtt_ns < 1000000000);
    CHECK_EQ(end.port, 1);
  }
  CHECK_EQ(run(&sides[1], (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = sides[1].qpn}),
           0);
  CHECK_EQ(probe(sides, 0, 0, 5000000).result, -ETIMEDOUT);
  close_sides(sides);
}

/* The file behind the sender's memory is cut: what is gone arrives as zeros, and a warning tells.
 */
static void test_write__a_source_that_shrank(void) {
  struct side sides[2];
  if (!open_sides(sides, &one_plane_v6, 0)) return;
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
  close_sides(sides);
  munmap(file, MIB);
  close(fd);
  free(expected);
}

/* One of two planes has no route: all goes over the other, and nothing spins. */
static void test_write__over_the_plane_that_has_a_route(void) {
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 8 * MIB)) return;
  fill(sides[0].memory, 8 * MIB, 3);
  set_routes(NO_ROUTE_FROM_127_0_0_1);
  post(&sides[0], &sides[1], 0, 0, 8 * MIB, MRC_WR_WRITE);
  CHECK(wait_until(sides, first_completed));
  check_wcs(&sides[0], 1);
  struct mrc_qp_info info = query(&sides[0]);
  CHECK_EQ(info.planes[0].suspended, 1);
  CHECK_EQ(info.planes[0].packets, 0);
  CHECK_EQ(info.bytes_acked, 8 * MIB);
  CHECK(atomic_load(&n_failed) > 0 && atomic_load(&n_failed) < 1000);
  set_routes(ALL_ROUTES);
  CHECK_EQ(query(&sides[1]).bytes_received, 8 * MIB);
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, 8 * MIB);
  close_sides(sides);
}

/* No plane has a route: retries are paced by their timer, and at their end the QP fails. */
static void test_write__without_any_route(void) {
  struct setup setup = two_planes_v4;
  setup.timeout = 9; /* 0.5 ms */
  setup.retry_exp = 2;
  struct side sides[2];
  if (!open_sides(sides, &setup, MIB)) return;
  set_routes(NO_ROUTES);
  post(&sides[0], &sides[1], 0, 0, MIB, MRC_WR_WRITE);
  CHECK(wait_until(sides, first_completed));
  CHECK(atomic_load(&n_failed) < 2000);
  set_routes(ALL_ROUTES);
  CHECK_EQ(sides[0].wcs[0].status, MRC_WC_RETRY_EXC_ERR);
  CHECK(sides[0].failed);
  CHECK_EQ(sides[0].status, MRC_WC_RETRY_EXC_ERR);
  close_sides(sides);
}

/* Ends a context in the middle of its work: nothing may touch the memory from then on. */
static void test_destroy__in_the_middle_of_a_write(void) {
  struct side sides[2];
  if (!open_sides(sides, &one_plane_v6, 16 * MIB)) return;
  for (int i = 0; i < 2; i++)
    post(&sides[i], &sides[1 - i], 0, 0, 8 * MIB, MRC_WR_WRITE);
  mrc_ctx_destroy(sides[1].ctx);
  sides[1].ctx = NULL;
  memset(sides[1].memory, 0x33, 16 * MIB);
  CHECK_EQ(run(&sides[0], (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = sides[0].qpn}),
           0);
  for (size_t i = 0; i < 16 * MIB; i += 4096)
    CHECK_EQ(sides[1].memory[i], 0x33);
  close_sides(sides);
}

CHECK_MAIN(RUN(test_write__one_mebibyte_over_ipv6), RUN(test_write__takes_bursts_in_one_go),
           RUN(test_write_imm__both_ways_over_two_planes_of_ipv4),
           RUN(test_polled__both_ways_and_an_idle_sleep), RUN(test_run__events_before_answers),
           RUN(test_polled__spins_before_it_sleeps), RUN(test_probe_ev__answered_and_not),
           RUN(test_write__a_source_that_shrank), RUN(test_write__over_the_plane_that_has_a_route),
           RUN(test_write__without_any_route), RUN(test_destroy__in_the_middle_of_a_write))
