/* SPDX-License-Identifier: Apache-2.0 */
/* The thread, its rings and its commands, driven through the public context. The engine is
   the fake one; test_ctx.c has the real one. */
#define _GNU_SOURCE 1
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fake_engine.h"
#include "io/ctx.h"
#include "io/datapath.h"
#include "io/udp.h"

/* ---- A sendmmsg with a set number of failures ---- */

static int failures_left;
static int failure;

int sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  if (failures_left > 0) {
    failures_left--;
    errno = failure;
    return -1;
  }
  return (int)syscall(SYS_sendmmsg, fd, messages, n, flags);
}

/* ---- An epoll_wait that counts; the thread calls it only to look, not to sleep ---- */

static atomic_int n_looks;

int epoll_wait(int epoll_fd, struct epoll_event *events, int capacity, int timeout_ms) {
  atomic_fetch_add(&n_looks, 1);
  return (int)syscall(SYS_epoll_pwait, epoll_fd, events, capacity, timeout_ms, NULL, 8);
}

/* ---- Helpers ---- */

static struct mrc_ctx_config config_of(uint32_t ring_entries) {
  struct mrc_ctx_config config = {.n_ports = 1, .ring_entries = ring_entries};
  config.rcvbuf_bytes = 100000;
  config.sndbuf_bytes = 100000;
  config.ports[0] = (struct mrc_port_config){.family = 6, .tx_sockets = 2, .address = {[15] = 1}};
  return config;
}

/* A context that ends with the block that declares it. */
#define CTX FREED_BY(destroy_ctx) mrc_ctx *
static void destroy_ctx(mrc_ctx **ctx) { mrc_ctx_destroy(*ctx); }

static mrc_ctx *create_with(const struct mrc_ctx_config *config) {
  int error = -1;
  char message[128] = "";
  mrc_ctx *ctx = mrc_ctx_create(config, &error, message, sizeof message);
  CHECK_EQ(error, 0);
  CHECK_STR_EQ(message, "");
  REQUIRE(ctx != NULL);
  return ctx;
}

static mrc_ctx *create(uint32_t ring_entries) {
  struct mrc_ctx_config config = config_of(ring_entries);
  return create_with(&config);
}

static bool wait_readable(const mrc_ctx *ctx) {
  struct pollfd ready = {.fd = mrc_ctx_fd(ctx), .events = POLLIN};
  return poll(&ready, 1, PATIENCE_MS) == 1;
}

static bool is_readable(const mrc_ctx *ctx) {
  struct pollfd ready = {.fd = mrc_ctx_fd(ctx), .events = POLLIN};
  return poll(&ready, 1, 0) == 1;
}

/* The next event; an invalid type when none comes. */
static struct mrc_event next_event(mrc_ctx *ctx) {
  struct mrc_event event = {.type = UINT8_MAX};
  while (mrc_ctx_poll(ctx, &event, 1) == 0 && wait_readable(ctx)) {
  }
  return event;
}

/* Runs one command and returns the result in its reply. */
static int run_one(mrc_ctx *ctx, struct mrc_command command) {
  static uint64_t cookie = 1000;
  command.cookie = ++cookie;
  CHECK_EQ(mrc_ctx_submit(ctx, &command, 1), 1);
  struct mrc_event event = next_event(ctx);
  CHECK_EQ(event.type, MRC_EVENT_REPLY);
  CHECK_EQ(event.cookie, cookie);
  return event.result;
}

static struct mrc_command post(uint32_t qpn, uint64_t wr_id) {
  return (struct mrc_command){
      .op = MRC_COMMAND_QP_POST, .qpn = qpn, .cookie = wr_id, .wr.wr_id = wr_id};
}

/* ---- Commands ---- */

/* An EV of the only port; it has two transmit sockets. */
static struct mrc_ev_attr ev_of(const mrc_ctx *ctx, uint8_t tx_index) {
  return (struct mrc_ev_attr){.ev = (uint32_t)mrc_ctx_source_port(ctx, 1, tx_index) << 16 | 9,
                              .src = {[15] = 1},
                              .port = 1,
                              .tx_index = tx_index,
                              .family = 6};
}

static struct mrc_qp_rtr_attr rtr = {.dest_qpn = 6};
static struct mrc_qp_rts_attr rts = {.sq_psn = 5};

TEST(test_commands__each_reaches_its_engine_function) {
  mrc_ctx *ctx = create(0);
  struct mrc_ev_attr evs[2] = {ev_of(ctx, 1), ev_of(ctx, 3)};
  struct mrc_peer_source source = {.sport = 8};
  struct mrc_qp_info qp_info = {0};
  struct mrc_ev_info ev_info = {0};
  struct mrc_trace_entry trace;
  const uint32_t qpn = 77;
  uint64_t bins[2] = {0};
  struct mrc_recording recording = {
      .qpns = &qpn, .n_qps = 1, .n_ports = 1, .bytes = bins, .n_bins = 2, .width_ns = 1000};
  struct mrc_qp_create_attr first = {.qpn = 77}, second = {.qpn = 78};
  uint64_t drops = 0, memory[2];
  uint64_t address = (uintptr_t)memory;
  const struct {
    struct mrc_command command;
    int result;
  } rows[] = {
      {{.op = MRC_COMMAND_MR_REGISTER, .address = address, .bytes = 16, .key = 3, .access = 1}, 0},
      {{.op = MRC_COMMAND_MR_REGISTER, .address = address, .key = 3, .access = 1}, -EINVAL},
      {{.op = MRC_COMMAND_MR_DEREGISTER, .key = 3}, 0},
      {{.op = MRC_COMMAND_MR_DEREGISTER, .key = 3}, -ENOENT},
      {{.op = MRC_COMMAND_QP_CREATE, .pointer = &first}, 0},
      {{.op = MRC_COMMAND_QP_CREATE, .pointer = &second}, -EEXIST},
      {{.op = MRC_COMMAND_QP_CREATE}, -EINVAL},
      {{.op = MRC_COMMAND_QP_MODIFY, .qpn = 77, .value = MRC_QP_INIT}, 0},
      {{.op = MRC_COMMAND_QP_MODIFY, .qpn = 77, .value = MRC_QP_RTR, .pointer = &rtr}, 0},
      {{.op = MRC_COMMAND_QP_MODIFY, .qpn = 77, .value = MRC_QP_RTR}, -EINVAL},
      {{.op = MRC_COMMAND_QP_MODIFY, .qpn = 77, .value = MRC_QP_RTS, .pointer = &rts}, 0},
      {{.op = MRC_COMMAND_QP_MODIFY, .qpn = 77, .value = MRC_QP_RTS}, -EINVAL},
      {{.op = MRC_COMMAND_QP_SET_EVS, .qpn = 77, .value = 1, .pointer = evs}, 0},
      {{.op = MRC_COMMAND_QP_SET_EVS, .qpn = 77, .value = 2, .pointer = evs}, -EINVAL},
      {{.op = MRC_COMMAND_QP_SET_EVS, .qpn = 77, .value = 1}, -EINVAL},
      {{.op = MRC_COMMAND_QP_SET_EVS, .qpn = 77, .value = UINT32_MAX, .pointer = evs}, -EINVAL},
      {{.op = MRC_COMMAND_QP_SET_PEER, .qpn = 77, .value = 1, .pointer = &source}, 0},
      {{.op = MRC_COMMAND_QP_DESTROY, .qpn = 77}, 0},
      {{.op = MRC_COMMAND_QP_POST, .qpn = REFUSED_QPN}, -ENOBUFS},
      {{.op = MRC_COMMAND_QP_PROBE_EV, .bytes = 65536}, -EMSGSIZE},
      {{.op = MRC_COMMAND_QP_SET_EV_STATE, .qpn = 77, .value = 3, .key = MRC_EV_DENIED}, 0},
      {{.op = MRC_COMMAND_QP_QUERY, .qpn = 77, .pointer = &qp_info}, 0},
      {{.op = MRC_COMMAND_QP_QUERY, .qpn = 77}, -EINVAL},
      {{.op = MRC_COMMAND_QP_QUERY_EVS, .value = 1, .pointer = &ev_info}, 7},
      {{.op = MRC_COMMAND_DROPS, .value = 1, .pointer = &drops}, 21},
      {{.op = MRC_COMMAND_TRACE, .value = 1, .pointer = &trace}, 1},
      {{.op = MRC_COMMAND_PORT_UP, .value = 0, .key = 1}, -EINVAL},
      {{.op = MRC_COMMAND_PORT_UP, .value = 2, .key = 1}, -EINVAL},
      {{.op = MRC_COMMAND_PORT_UP, .value = 1, .key = 0}, 0},
      {{.op = MRC_COMMAND_QP_SET_MPR, .qpn = 77, .value = 256}, 0},
      {{.op = MRC_COMMAND_QP_SET_RETRIES, .qpn = 77, .value = 16, .key = 7, .access = 6}, 0},
      {{.op = MRC_COMMAND_QP_SET_YIELDING, .qpn = 77, .value = 6}, 0},
      {{.op = MRC_COMMAND_RECORD_START, .pointer = &recording}, 0},
      {{.op = MRC_COMMAND_RECORD_START, .pointer = &recording}, -EBUSY},
      {{.op = MRC_COMMAND_RECORD_STOP}, 0},
      {{.op = MRC_COMMAND_RECORD_STOP}, -ENOENT},
      {{.op = MRC_COMMAND_RECORD_START}, -EINVAL},
      {{.op = MRC_COMMAND_PORT_CLOSE + 1}, -EINVAL},
      {{.op = UINT32_MAX}, -EINVAL},
  };
  EACH_ROW(i, rows)
    CHECK_EQ(run_one(ctx, rows[i].command), rows[i].result);
  mrc_ctx_destroy(ctx);
  CHECK_EQ(qp_info.qpn, 77);
  CHECK_EQ(ev_info.ev, 1234);
  CHECK_EQ(drops, 31);
  CHECK(recording.end_ns >= recording.start_ns && recording.start_ns > 0);
  CHECK_EQ(fake.port_down, 1);
  CHECK(fake.destroyed);
}

TEST(test_commands__counters_are_the_engines_then_the_drivers) {
  mrc_ctx *ctx = create(0);
  enum { ALL = MRC_COUNTERS + MRC_IO_COUNTERS };
  uint64_t values[ALL + 1] = {[ALL] = 99};
  struct mrc_command command = {.op = MRC_COMMAND_COUNTERS, .pointer = values, .value = ALL + 1};
  CHECK_EQ(run_one(ctx, command), ALL);
  CHECK_EQ(values[MRC_COUNTERS - 1], MRC_COUNTERS - 1);
  CHECK_EQ(values[MRC_COUNTERS + MRC_IO_TX_BURSTS], 0);
  CHECK_EQ(values[ALL], 99);
  command.value = 2;
  CHECK_EQ(run_one(ctx, command), ALL);
  mrc_ctx_destroy(ctx);

  CHECK_STR_EQ(mrc_counter_name(0), "RX_PACKETS");
  CHECK_PTR_EQ(mrc_counter_name(-1), NULL);
  CHECK_STR_EQ(mrc_counter_name(MRC_COUNTERS), "RX_SYSCALLS");
  CHECK_STR_EQ(mrc_counter_name(ALL - 1), "MEMORY_FAULTS");
  CHECK_PTR_EQ(mrc_counter_name(ALL), NULL);
  CHECK_STR_EQ(mrc_counter_meaning(0), "packets handed to the engine");
  CHECK_PTR_EQ(mrc_counter_meaning(-1), NULL);
  CHECK_STR_EQ(mrc_counter_meaning(ALL - 1), "registered memory regions that lost their backing");
  CHECK_PTR_EQ(mrc_counter_meaning(ALL), NULL);
}

/* ---- Rings ---- */

TEST(test_publish__a_full_ring_loses_nothing) {
  enum { ENTRIES = 64, POSTS = 3000 };
  CTX ctx = create(ENTRIES);
  uint64_t posted = 0;
  uint64_t completed = 0;
  bool short_submit = false;
  do {
    struct mrc_event events[40];
    for (int taken = 1; taken > 0 && posted < POSTS; posted += (uint64_t)taken) {
      struct mrc_command command = post(4, posted);
      taken = mrc_ctx_submit(ctx, &command, 1);
      short_submit |= taken == 0;
    }
    int n = mrc_ctx_poll(ctx, events, 40);
    for (int i = 0; i < n; i++, completed++) {
      CHECK_EQ(events[i].type, MRC_EVENT_WC);
      CHECK_EQ(events[i].wc.wr_id, completed);
    }
  } while (completed < POSTS && wait_readable(ctx));
  CHECK_EQ(completed, POSTS);
  CHECK(short_submit);
}

/* Fills the event ring and then the command ring, and waits until the thread sleeps. A poll must
   wake the thread, and after an incomplete submit the descriptor must signal that there is room. */
TEST(test_poll__wakes_a_thread_that_waits_for_room) {
  enum { ENTRIES = 64, POSTS = 3 * ENTRIES };
  CTX ctx = create(ENTRIES);
  uint64_t posted = 0;
  for (int taken = 1; taken > 0 && posted < POSTS; posted += (uint64_t)taken) {
    struct mrc_command command = post(4, posted);
    taken = mrc_ctx_submit(ctx, &command, 1);
  }
  CHECK(wait_readable(ctx));
  CHECK(posted >= ENTRIES);
  for (uint64_t i = 0; i < posted; i++) {
    struct mrc_event event = next_event(ctx);
    CHECK_EQ(event.type, MRC_EVENT_WC);
    CHECK_EQ(event.wc.wr_id, i);
  }
}

TEST(test_poll__clears_the_descriptor_only_when_all_is_taken) {
  CTX ctx = create(0);
  struct mrc_event events[8];
  CHECK(!is_readable(ctx));
  CHECK_EQ(mrc_ctx_poll(ctx, events, 8), 0);
  struct mrc_command commands[3] = {post(4, 0), post(4, 1), {.op = MRC_COMMAND_QP_DESTROY}};
  CHECK_EQ(mrc_ctx_submit(ctx, commands, 3), 3);
  int n = 0;
  while (n < 2 && wait_readable(ctx))
    n += mrc_ctx_poll(ctx, events + n, 1);
  CHECK(wait_readable(ctx));
  CHECK_EQ(mrc_ctx_poll(ctx, events + n, 8 - n), 1);
  CHECK(!is_readable(ctx));
}

/* ---- Time and sockets ---- */

TEST(test_run__expires_at_the_deadline) {
  CTX ctx = create(0);
  struct mrc_command probe = {.op = MRC_COMMAND_QP_PROBE_EV,
                              .qpn = 77,
                              .value = 2,
                              .bytes = 1000,
                              .timeout_ns = 2000000,
                              .cookie = 55};
  CHECK_EQ(mrc_ctx_submit(ctx, &probe, 1), 1);
  struct mrc_event reply = next_event(ctx);
  CHECK_EQ(reply.type, MRC_EVENT_REPLY);
  struct mrc_event end = next_event(ctx);
  CHECK_EQ(end.type, MRC_EVENT_PROBE);
  CHECK_EQ(end.cookie, 55);
  CHECK_EQ(end.ev_index, 2);
  CHECK_EQ(end.result, -ETIMEDOUT);
}

/* Without a thread, the descriptor becomes readable when there is work. A time that is over before
   the context could be armed was too short for this machine. */
TEST(test_run__the_descriptor_wakes_at_the_deadline) {
  struct mrc_ctx_config config = config_of(0);
  config.polled = 1;
  CTX ctx = create_with(&config);
  struct mrc_command probe = {.op = MRC_COMMAND_QP_PROBE_EV,
                              .qpn = 77,
                              .value = 2,
                              .bytes = 1000,
                              .timeout_ns = 20000000,
                              .cookie = 55};
  struct mrc_event event;
  bool armed;
  do {
    CHECK_EQ(mrc_ctx_submit(ctx, &probe, 1), 1);
    mrc_ctx_run(ctx, 0);
    CHECK_EQ(mrc_ctx_poll(ctx, &event, 1), 1);
    CHECK_EQ(event.type, MRC_EVENT_REPLY);
    armed = mrc_ctx_arm(ctx);
    if (armed) CHECK(wait_readable(ctx));
    mrc_ctx_run(ctx, 0);
    CHECK_EQ(mrc_ctx_poll(ctx, &event, 1), 1);
    CHECK_EQ(event.type, MRC_EVENT_PROBE);
    probe.timeout_ns *= 2;
  } while (!armed && probe.timeout_ns < PATIENCE_MS * UINT64_C(1000000));
  CHECK(armed);
}

/* An idle thread sleeps, as soon as the work of the command has ended. */
TEST(test_run__sleeps_while_there_is_nothing_to_do) {
  enum { MOMENT_MS = 20 };
  CTX ctx = create(0);
  CHECK_EQ(run_one(ctx, (struct mrc_command){.op = UINT32_MAX}), -EINVAL);
  struct pollfd never = {.fd = mrc_ctx_fd(ctx), .events = POLLIN};
  int before, left = PATIENCE_MS / MOMENT_MS;
  do {
    before = atomic_load(&n_looks);
    CHECK_EQ(poll(&never, 1, MOMENT_MS), 0);
  } while (atomic_load(&n_looks) != before && --left > 0);
  CHECK(left > 0);
}

/* Sends n bursts to the context itself while the first sends fail; all must arrive. */
static void check_bursts_arrive(int n, int failing, int with) {
  mrc_ctx *ctx = create(0);
  fake_packet = (struct mrc_packet){.header_bytes = 30, .header = {1, 2, 3}};
  fake_address[15] = 1;
  fake_dport = mrc_ctx_udp_port(ctx);
  failures_left = failing;
  failure = with;
  /* A completion and bursts in one turn. */
  const struct mrc_command posts[] = {post(77, 1), post(BURST_QPN, (uint64_t)n)};
  CHECK_EQ(mrc_ctx_submit(ctx, posts, 2), 2);
  CHECK_EQ(next_event(ctx).type, MRC_EVENT_WC);
  struct mrc_command command;
  uint64_t values[MRC_COUNTERS + MRC_IO_COUNTERS] = {0};
  uint64_t *received = &values[MRC_COUNTERS + MRC_IO_RX_DATAGRAMS];
  command = (struct mrc_command){
      .op = MRC_COMMAND_COUNTERS, .pointer = values, .value = MRC_COUNTERS + MRC_IO_COUNTERS};
  for (int i = 0; i < 10000 && *received < (uint64_t)n; i++)
    run_one(ctx, command);
  mrc_ctx_destroy(ctx);
  CHECK_EQ(fake.n_received, n);
  CHECK_EQ(values[MRC_COUNTERS + MRC_IO_TX_BURSTS], n);
  CHECK(!fake.sent_before_told);
}

TEST(test_run__transmits_and_receives) {
  check_bursts_arrive(50, 0, 0);
  CHECK_EQ(fake.n_blocks, 0);
}

TEST(test_run__a_full_socket_is_tried_again_when_writable) {
  check_bursts_arrive(3, 1, EAGAIN);
  CHECK_EQ(fake.n_fates, 6);
  for (int i = 0; i < 6; i++)
    CHECK_EQ(fake.fates[i], i < 3 ? 0 : 1);
  CHECK_EQ(fake.n_blocks, 2);
  CHECK_EQ(fake.blocks[0], 1);
  CHECK_EQ(fake.blocks[1], -1);
}

TEST(test_run__a_full_queue_is_tried_again_after_a_while) {
  check_bursts_arrive(2, 2, ENOBUFS);
  CHECK_EQ(fake.n_fates, 6);
  for (int i = 0; i < 6; i++)
    CHECK_EQ(fake.fates[i], i < 4 ? 0 : 1);
  CHECK_EQ(fake.n_blocks, 4);
  CHECK_EQ(fake.blocks[2], 1);
  CHECK_EQ(fake.blocks[3], -1);
}

TEST(test_run__warns_of_memory_that_lost_its_backing) {
  enum { BYTES = 1 << 16, KEY = 0x1234 };
  mrc_ctx *ctx = create(0);
  int fd = memfd_create("test_datapath", MFD_CLOEXEC);
  CHECK_EQ(ftruncate(fd, BYTES), 0);
  uint8_t *memory = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  struct mrc_command command = {.op = MRC_COMMAND_MR_REGISTER,
                                .address = (uintptr_t)memory,
                                .bytes = BYTES,
                                .key = KEY,
                                .access = MRC_ACCESS_LOCAL_READ};
  CHECK_EQ(run_one(ctx, command), 0);
  CHECK_EQ(ftruncate(fd, 0), 0);
  CHECK_EQ(((volatile uint8_t *)memory)[BYTES / 2], 0);
  struct mrc_event warning = next_event(ctx);
  CHECK_EQ(warning.type, MRC_EVENT_WARNING);
  CHECK_EQ(warning.status, MRC_WARNING_MEMORY_FAULT);
  CHECK_EQ(warning.cookie, KEY);
  CHECK_EQ(run_one(ctx, (struct mrc_command){.op = MRC_COMMAND_MR_DEREGISTER, .key = KEY}), 0);
  mrc_ctx_destroy(ctx);
  munmap(memory, BYTES);
  close(fd);
}

/* The context warns once: the handler belongs to the process. */
TEST(test_run__warns_when_another_handler_took_the_guards_place) {
  static uint8_t memory[64];
  CTX ctx = create(0);
  struct mrc_command command = {.op = MRC_COMMAND_MR_REGISTER,
                                .address = (uintptr_t)memory,
                                .bytes = 8,
                                .key = 1,
                                .access = MRC_ACCESS_LOCAL_READ};
  CHECK_EQ(run_one(ctx, command), 0);
  struct sigaction ours;
  CHECK_EQ(sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_IGN}, &ours), 0);
  command.key = 2;
  CHECK_EQ(run_one(ctx, command), 0);
  struct mrc_event warning = next_event(ctx);
  CHECK_EQ(warning.type, MRC_EVENT_WARNING);
  CHECK_EQ(warning.status, MRC_WARNING_GUARD_REPLACED);
  command.key = 3;
  CHECK_EQ(run_one(ctx, command), 0); /* and no second warning */
  CHECK_EQ(sigaction(SIGBUS, &ours, NULL), 0);
  for (command.key = 1; command.key <= 3; command.key++)
    CHECK_EQ(
        run_one(ctx, (struct mrc_command){.op = MRC_COMMAND_MR_DEREGISTER, .key = command.key}), 0);
}

/* ---- Opening ---- */

static bool has_thread(const char *name) {
  bool found = false;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *task = readdir(tasks); task; task = readdir(tasks)) {
    char path[300];
    char comm[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE *file = fopen(path, "r");
    if (!file) continue;
    if (fgets(comm, sizeof comm, file)) comm[strcspn(comm, "\n")] = 0;
    fclose(file);
    found |= strcmp(comm, name) == 0;
  }
  closedir(tasks);
  return found;
}

TEST(test_create__starts_one_named_thread) {
  CTX ctx = create(0);
  CHECK(has_thread("mrc-datapath"));
  CHECK(mrc_ctx_udp_port(ctx) != 0);
  uint16_t sports[2] = {mrc_ctx_source_port(ctx, 1, 0), mrc_ctx_source_port(ctx, 1, 1)};
  CHECK(sports[0] != 0 && sports[1] != 0 && sports[0] != sports[1]);
  static const int absent[][2] = {{0, 0}, {2, 0}, {1, -1}, {1, 2}};
  for (int i = 0; i < 4; i++)
    CHECK_EQ(mrc_ctx_source_port(ctx, absent[i][0], absent[i][1]), 0);
}

/* The number of descriptors of the process. Each descriptor above `above` must have
   close-on-exec. */
static int count_descriptors(int above) {
  int n = 0;
  DIR *descriptors = opendir("/proc/self/fd");
  for (struct dirent *each = readdir(descriptors); each; each = readdir(descriptors)) {
    const int fd = atoi(each->d_name);
    if (each->d_name[0] == '.' || fd == dirfd(descriptors)) continue;
    n++;
    if (fd > above && fcntl(fd, F_GETFD) != FD_CLOEXEC) CHECK_FAIL("descriptor %d stays open", fd);
  }
  closedir(descriptors);
  return n;
}

TEST(test_create__descriptors_do_not_stay) {
  const int highest = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(highest);
  const int before = count_descriptors(highest - 1);
  mrc_ctx *ctx = create(0);
  CHECK(count_descriptors(highest - 1) >=
        before + 7); /* three sockets, two eventfds, timer, epoll */
  mrc_ctx_destroy(ctx);
  CHECK_EQ(count_descriptors(highest - 1), before);
  struct mrc_ctx_config config = config_of(1000); /* no power of two; fails after opening sockets */
  int error;
  char message[128];
  CHECK_PTR_EQ(mrc_ctx_create(&config, &error, message, sizeof message), NULL);
  CHECK_EQ(count_descriptors(highest - 1), before);
}

TEST(test_create__warns_of_small_buffers) {
  struct mrc_ctx_config config = config_of(0);
  config.rcvbuf_bytes = UINT32_MAX; /* more than any kernel allows */
  CTX ctx = create_with(&config);
  struct mrc_event warning = next_event(ctx);
  CHECK_EQ(warning.type, MRC_EVENT_WARNING);
  CHECK_EQ(warning.status, MRC_WARNING_RCVBUF_SMALL);
  CHECK_EQ(warning.port, 1);
  CHECK(warning.result > 0);
}

TEST(test_create__refusals_name_their_cause) {
  static const uint32_t entries[] = {32, 1000, 1u << 31};
  for (int i = 0; i < 3; i++) {
    struct mrc_ctx_config config = config_of(entries[i]);
    int error = 0;
    char message[128] = "";
    char expected[128];
    CHECK_ROW(i);
    CHECK_PTR_EQ(mrc_ctx_create(&config, &error, message, sizeof message), NULL);
    snprintf(expected, sizeof expected,
             "ring_entries must be a power of two from 64 to 1048576, not %u", entries[i]);
    CHECK_EQ(error, -EINVAL);
    CHECK_STR_EQ(message, expected);
  }
}

TEST(test_create__refuses_bursts_beyond_a_udp_message) {
  struct mrc_ctx_config config = config_of(0);
  config.engine.max_burst_bytes = 65488;
  int error = 0;
  char message[128] = "";
  CHECK_PTR_EQ(mrc_ctx_create(&config, &error, message, sizeof message), NULL);
  CHECK_EQ(error, -EINVAL);
  CHECK_STR_EQ(message, "max_burst_bytes must be at most 65487, not 65488");
}

/* ---- Children of fork ---- */

/* Contexts and fork: a child's calls on an inherited context do not affect the parent's context.
   The engine is the fake one. */
/* Runs a function in a child, which then exits without exit handlers. */
static void in_child(void (*run)(mrc_ctx *), mrc_ctx *ctx) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    run(ctx);
    fflush(NULL);
    _exit(atomic_load(&check_failures) != 0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

static const struct mrc_command denial = {
    .op = MRC_COMMAND_QP_SET_EV_STATE, .qpn = 77, .key = MRC_EV_DENIED, .cookie = 5};

static void check_answers(mrc_ctx *ctx) {
  struct mrc_event event = {0};
  CHECK(wait_readable(ctx));
  CHECK_EQ(mrc_ctx_poll(ctx, &event, 1), 1);
  CHECK_EQ(event.cookie, 5);
}

static void destroy(mrc_ctx *ctx) { mrc_ctx_destroy(ctx); }

TEST(test_destroy__in_a_child_leaves_the_parents_thread) {
  CTX ctx = create(0);
  in_child(destroy, ctx);
  CHECK_EQ(mrc_ctx_submit(ctx, &denial, 1), 1);
  check_answers(ctx);
}

static void call_everything(mrc_ctx *ctx) {
  struct mrc_event event;
  CHECK_EQ(mrc_ctx_submit(ctx, &denial, 1), -ECHILD);
  CHECK_EQ(mrc_ctx_poll(ctx, &event, 1), -ECHILD);
  CHECK_EQ(mrc_ctx_run(ctx, 0), -ECHILD);
  CHECK(!mrc_ctx_arm(ctx));
}

/* The child must take neither the parent's event nor its wake-up signal. */
TEST(test_calls__in_a_child_fail_and_take_nothing) {
  CTX ctx = create(0);
  CHECK_EQ(mrc_ctx_submit(ctx, &denial, 1), 1);
  CHECK(wait_readable(ctx));
  in_child(call_everything, ctx);
  check_answers(ctx);
}

TEST(test_calls__of_a_polled_context) {
  struct mrc_ctx_config config = config_of(0);
  config.polled = 1;
  CTX ctx = create_with(&config);
  CHECK_EQ(mrc_ctx_submit(ctx, &denial, 1), 1);
  in_child(call_everything, ctx);
  in_child(destroy, ctx);
  CHECK_EQ(mrc_ctx_run(ctx, 0), 1);
}

static void own_another(mrc_ctx *ctx) {
  const uint64_t own = mrc_lineage_own();
  CHECK(own != 0 && mrc_lineage_is_own(own));
  CHECK_EQ(mrc_lineage_own(), own);
  call_everything(ctx);
}

/* A child that opens its own context still does not own its parent's. */
TEST(test_own__differs_from_the_parents) {
  CTX ctx = create(0);
  in_child(own_another, ctx);
  CHECK(mrc_lineage_is_own(mrc_lineage_own()));
}

/* ---- Recordings ---- */

/* Bins of delivered payload, and the longest time without any (csrc/io/datapath.c), at times that
   the test gives; the engine is the fake one. */
enum { RECORDED_PORTS = 2, BINS = 4, START_NS = 5000, WIDTH_NS = 100, PACKET = 1000 };

static const uint32_t recorded_qpns[] = {77, 78};

/* One recording and the recorder that fills it. */
struct book {
  struct mrc_recorder recorder;
  struct mrc_recording recording;
  mrc_engine *engine;
  uint64_t bytes[BINS * RECORDED_PORTS];
};

static struct book *open_book(void) {
  static struct book book;
  book = (struct book){.engine = mrc_engine_create(&(struct mrc_engine_config){.ports = 1})};
  book.recording = (struct mrc_recording){.qpns = recorded_qpns,
                                          .n_qps = 2,
                                          .bytes = book.bytes,
                                          .n_ports = RECORDED_PORTS,
                                          .n_bins = BINS,
                                          .width_ns = WIDTH_NS};
  return &book;
}

static int start_book(struct book *book) {
  return mrc_recorder_start(&book->recorder, &book->recording, book->engine, RECORDED_PORTS,
                            START_NS);
}

/* Delivers packets on a port at a time after the start. */
static void deliver_at(struct book *book, int packets, int port, uint64_t after_ns) {
  fake.n_received += packets;
  mrc_recorder_look(&book->recorder, book->engine, port, START_NS + after_ns);
}

TEST(test_look__fills_bins_by_time_and_port) {
  struct book *book = open_book();
  fake.n_received = 5; /* arrived before the start */
  CHECK_EQ(start_book(book), 0);
  CHECK_EQ(fake.recorded, 3);
  deliver_at(book, 1, 1, 0);
  deliver_at(book, 2, 2, 99);
  deliver_at(book, 3, 1, 100);
  deliver_at(book, 4, 1, 199);
  deliver_at(book, 0, 2, 250);
  deliver_at(book, 5, 2, 399);
  static const uint64_t expected[BINS * RECORDED_PORTS] = {1, 2, 7, 0, 0, 0, 0, 5};
  EACH_OF(int, i, 0, BINS * RECORDED_PORTS)
    CHECK_EQ(book->bytes[i], expected[i] * PACKET);
  CHECK_EQ(mrc_recorder_stop(&book->recorder, book->engine, START_NS + 450), 0);
  CHECK_EQ(book->recording.start_ns, START_NS);
  CHECK_EQ(book->recording.end_ns, START_NS + 450);
  CHECK_EQ(book->recording.width_ns, WIDTH_NS);
  CHECK(!fake.recorded);
}

TEST(test_look__of_all_qps_without_a_list) {
  struct book *book = open_book();
  book->recording.n_qps = 0;
  fake.n_received = 5; /* arrived before the start */
  CHECK_EQ(start_book(book), 0);
  CHECK(!fake.recorded);
  deliver_at(book, 2, 2, 99);
  CHECK_EQ(book->bytes[1], 2 * PACKET);
  CHECK_EQ(mrc_recorder_stop(&book->recorder, book->engine, START_NS + 450), 0);
}

TEST(test_look__widens_bins_rather_than_needing_more) {
  struct book *book = open_book();
  CHECK_EQ(start_book(book), 0);
  for (int i = 0; i < BINS; i++)
    deliver_at(book, i + 1, 1, (uint64_t)i * WIDTH_NS);
  deliver_at(book, 7, 2, 1700); /* requires three foldings */
  CHECK_EQ(book->recording.width_ns, 8 * WIDTH_NS);
  static const uint64_t expected[BINS * RECORDED_PORTS] = {10, 0, 0, 0, 0, 7, 0, 0};
  EACH_OF(int, i, 0, BINS * RECORDED_PORTS)
    CHECK_EQ(book->bytes[i], expected[i] * PACKET);
}

TEST(test_look__finds_the_longest_gap_between_deliveries) {
  struct book *book = open_book();
  CHECK_EQ(start_book(book), 0);
  CHECK_EQ(book->recording.first_ns, 0);
  deliver_at(book, 1, 1, 90); /* not a gap: no earlier delivery */
  CHECK_EQ(book->recording.longest_gap_ns, 0);
  deliver_at(book, 1, 2, 110);
  deliver_at(book, 0, 1, 130); /* no payload ends no gap */
  deliver_at(book, 1, 1, 147);
  deliver_at(book, 1, 2, 167);
  deliver_at(book, 1, 2, 204); /* equal to the longest: the first one counts */
  CHECK_EQ(book->recording.first_ns, START_NS + 90);
  CHECK_EQ(book->recording.last_ns, START_NS + 204);
  CHECK_EQ(book->recording.longest_gap_ns, 37);
  CHECK_EQ(book->recording.longest_gap_at_ns, START_NS + 110);
}

TEST(test_start__refuses_what_it_cannot_fill) {
  static const uint32_t unknown[] = {77, 79};
  struct book *book = open_book();
  struct mrc_recording wrong[] = {book->recording, book->recording, book->recording,
                                  book->recording, book->recording};
  wrong[0].n_ports = RECORDED_PORTS + 1;
  wrong[1].width_ns = 0;
  wrong[2].n_bins = 0;
  wrong[3].n_bins = 3;
  wrong[4].qpns = unknown;
  EACH_OF(int, i, 0, 5) {
    CHECK_EQ(mrc_recorder_start(&book->recorder, &wrong[i], book->engine, RECORDED_PORTS, START_NS),
             i < 4 ? -EINVAL : -ENOENT);
    CHECK(!fake.recorded);
    CHECK_EQ(mrc_recorder_stop(&book->recorder, book->engine, START_NS), -ENOENT);
  }
  CHECK_EQ(start_book(book), 0);
  CHECK_EQ(start_book(book), -EBUSY);
}
