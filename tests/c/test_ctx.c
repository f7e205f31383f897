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
#include "sides.h"

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

/* ---- Tests ---- */

TEST(test_write__one_mebibyte_over_ipv6) {
  struct side sides[2];
  if (!open_sides(sides, &one_plane_v6, MIB + 13)) return;
  fill(sides[0].memory, MIB + 13, 1);
  post(&sides[0], &sides[1], 0, 0, MIB + 13, MRC_WR_WRITE);
  CHECK(wait_until(sides, first_completed));
  check_wcs(&sides[0], 1);
  CHECK_EQ(sides[0].wcs[0].bytes, MIB + 13);
  CHECK_EQ(query(&sides[1]).received_bytes, MIB + 13);
  CHECK_EQ(sides[1].n_immediates, 0);
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, MIB + 13);
  close_sides(sides);
}

static bool all_completed(const struct side *sides) {
  return sides[0].n_wcs == 4 && sides[1].n_wcs == 4 && sides[0].n_immediates == 4 &&
         sides[1].n_immediates == 4;
}

/* Each side writes one half of the memory, in four pieces, to the same place at the other. */
static void write_both_ways(const struct setup *setup) {
  enum { PIECE = 2 * MIB };
  struct side sides[2];
  if (!open_sides(sides, setup, 8 * PIECE)) return;
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
  close_sides(sides);
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
  struct side sides[2];
  if (!open_sides(sides, &setup, MIB)) return;
  post(&sides[0], &sides[1], 0, 0, 2, MRC_WR_WRITE_IMM);
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 0), 0);
  CHECK_EQ(mrc_ctx_run(sides[1].ctx, 1000000000), 1);
  CHECK_EQ(mrc_ctx_run(sides[0].ctx, 0), 0); /* no acknowledgement yet */
  CHECK_EQ(mrc_ctx_run(sides[1].ctx, 0), 1); /* it leaves; the event is still in the ring */
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

/* A polled context lets its caller sleep only after it was idle for spin_us. */
TEST(test_polled__spins_before_it_sleeps) {
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

TEST(test_probe_ev__answered_and_not) {
  struct side sides[2];
  if (!open_sides(sides, &one_plane_v6, 0)) return;
  for (uint32_t ev = 0; ev < EVS_PER_PORT; ev++) {
    struct mrc_event end = probe(sides, ev, 8888, PATIENCE_MS * 1000000ull);
    CHECK_EQ(end.result, 0);
    CHECK(end.rtt_ns > 0 && end.rtt_ns < PATIENCE_MS * INT64_C(1000000));
    CHECK_EQ(end.port, 1);
  }
  CHECK_EQ(run(&sides[1], (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = sides[1].qpn}),
           0);
  CHECK_EQ(probe(sides, 0, 0, 5000000).result, -ETIMEDOUT);
  close_sides(sides);
}

/* The file behind the sender's memory is truncated: the missing bytes arrive as zeros, with a
   warning. */
TEST(test_write__a_source_that_shrank) {
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

/* One of two planes has no route: all packets use the other plane, and no thread spins. */
TEST(test_write__over_the_plane_that_has_a_route) {
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 8 * MIB)) return;
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
  close_sides(sides);
}

/* No plane has a route: a timer paces the retries, and the QP fails after the last one. */
TEST(test_write__without_any_route) {
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

/* Destroys a context during a write: from then on nothing may touch the memory. */
TEST(test_destroy__in_the_middle_of_a_write) {
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
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 16 * MIB)) return;
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
  close_sides(sides);
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
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 0)) return;
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
  close_sides(sides);
}

TEST(test_commands__of_ports_that_are_not) {
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 0)) return;
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
  close_sides(sides);
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
    CHECK_EQ(query(&sides[1]).received_bytes, rows[i].bytes);
    CHECK_MEM_EQ(sides[1].memory, sides[0].memory, rows[i].bytes);
    CHECK_EQ(atomic_load(&n_pauses) > 0, rows[i].pauses);
    if (rows[i].pauses) CHECK(atomic_load(&longest_pause_ns) <= rows[i].coalesce_us * 1000l);
    close_sides(sides);
  }
}

/* ---- Length of the pause ---- */

enum { LONGEST_NS = 16000, BURST = 62 * 1024, TURNS = 3 * MRC_PAUSE_TURNS };

TEST(test_pause__grows_while_bursts_come) {
  struct mrc_pause pause = {.longest_ns = LONGEST_NS};
  for (uint64_t turn = 1; turn <= TURNS; turn++) {
    CHECK_ROW(turn);
    CHECK_EQ(mrc_pause_after(&pause, BURST, 7), LONGEST_NS / 16 * mrc_min_u64(turn, 16));
  }
  CHECK_EQ(mrc_pause_after(&pause, 0, 0), 0); /* a turn for other reasons */
  CHECK_EQ(mrc_pause_after(&pause, BURST, 7), LONGEST_NS);
  CHECK_EQ(mrc_pause_after(&pause, 1000, 1), 0);
  CHECK_EQ(mrc_pause_after(&pause, BURST, 7), LONGEST_NS / 16 * 9);
}

/* The pause is limited so that a turn does not exceed MRC_PAUSE_PACKETS by much: here a packet
   arrives each us. */
TEST(test_pause__leaves_windows_of_small_packets_room) {
  struct mrc_pause pause = {.longest_ns = 1000000};
  uint64_t pause_ns = 0;
  for (int turn = 0; turn < 10 * MRC_PAUSE_TURNS; turn++) {
    const uint32_t packets = 64 + (uint32_t)(pause_ns / 1000);
    pause_ns = mrc_pause_after(&pause, packets * 1024, packets);
    CHECK_ROW(turn);
    CHECK(packets <= MRC_PAUSE_PACKETS + pause.longest_ns / 1000 / MRC_PAUSE_TURNS);
  }
  CHECK(pause_ns > 0);
}

TEST(test_pause__never) {
  struct mrc_pause pause = {0};
  for (int turn = 0; turn < TURNS; turn++)
    CHECK_EQ(mrc_pause_after(&pause, BURST, 7), 0);
}
