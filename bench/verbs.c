/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mrc through its C interface: one of two ends, each a context with QPs to the other. There is no
 * OOB exchange here. The program that starts both ends passes their numbers from one to the other.
 *
 *   verbs SOURCE PEER IFNAME=ADDRESS,... ... [-- NAME=NUMBER ...]     see `settings` for names
 *
 * It prints its UDP port, its source ports and the address of its memory. Jobs:
 *
 *   peer UDP_PORT ADDRESS SPORT...   makes the QPs; once, before all other jobs
 *   write BYTES DEPTH MS             WRITEs, DEPTH of them outstanding over all QPs
 *   ping BYTES MS                    half round trips of WRITE_IMM
 *   echo BYTES                       answers pings until the next job comes
 *   serve                            drives a polled context until the next job comes
 *   counters                         counters of the context, by name
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "job.h"
#include "mrc.h"

enum {
  MAX_PLANES = 32,
  MAX_PATHS = 256,
  MAX_QPS = 256,
  MAX_DEPTH = 4096,
  FIRST_QPN = 0x100,
  KEY = 7, /* rkey and lkey of both arenas: this fabric has no attackers */
  BATCH = 256,
  SQ_DEPTH = 1024,
  WIMM = 128,
  PLACE_BYTES = 1 << 20, /* smallest place that WRITEs of a QP share, as in perftest */
  PATIENCE_NS = 1000000, /* longest turn between checks for the next job */
};

/* The settings, with the defaults of mrc.ContextConfig; 0: the default of mrc.h. */
#define SETTINGS(X)                \
  X(polled, 0)                     \
  X(qps, 1)                        \
  X(integrity, MRC_INTEGRITY_ICRC) \
  X(seal, MRC_SEAL_NONE)           \
  X(spray, 0)                      \
  X(path_mtu, 4096)                \
  X(mpr, 1024)                     \
  X(spin_us, 0)                    \
  X(list, 1)                       \
  X(coalesce_us, 250)              \
  X(arena_mib, 16)                 \
  X(sack_threshold_bytes, 0)       \
  X(rcvbuf_bytes, 0)               \
  X(sndbuf_bytes, 0)

struct settings {
#define X(name, standard) uint32_t name;
  SETTINGS(X)
#undef X
};

struct end {
  mrc_ctx *ctx;
  struct settings settings;
  struct mrc_ctx_config config;
  struct mrc_ev_attr evs[MAX_PATHS];
  struct mrc_peer_source sources[MAX_PLANES];
  uint8_t peer[16];
  uint8_t *arena;
  uint64_t arena_bytes;
  uint64_t peer_arena;
  uint64_t cookie; /* of the last command that requests a reply */
  int n_evs;
  bool replied;
  int32_t result;
};

static struct latency latency;

/* ---- Events ---- */

/* A job's handler of completions. */
typedef void on_wc(void *job, const struct mrc_wc *wc);

static void take_event(struct end *end, const struct mrc_event *event, on_wc *on, void *job) {
  if (event->type == MRC_EVENT_REPLY && event->cookie == end->cookie) {
    end->replied = true;
    end->result = event->result;
  } else if (event->type == MRC_EVENT_REPLY && event->result != 0) {
    fail(-event->result, "the engine refused a post");
  } else if (event->type == MRC_EVENT_QP_ERROR) {
    fail(0, "a QP failed");
  } else if (event->type == MRC_EVENT_WC && on) {
    on(job, &event->wc);
  }
}

/* Waits for events for at most PATIENCE_NS and handles them. Runs a polled context meanwhile. */
static void turn(struct end *end, on_wc *on, void *job) {
  struct mrc_event events[BATCH];
  if (end->config.polled) {
    mrc_ctx_run(end->ctx, PATIENCE_NS);
  } else {
    struct pollfd ready = {.fd = mrc_ctx_fd(end->ctx), .events = POLLIN};
    poll(&ready, 1, PATIENCE_NS / 1000000);
  }
  int n = mrc_ctx_poll(end->ctx, events, BATCH);
  for (int i = 0; i < n; i++)
    take_event(end, &events[i], on, job);
}

static int call(struct end *end, struct mrc_command command) {
  command.cookie = ++end->cookie;
  end->replied = false;
  if (mrc_ctx_submit(end->ctx, &command, 1) != 1) fail(0, "the command ring is full");
  while (!end->replied)
    turn(end, NULL, NULL);
  return end->result;
}

static void must(struct end *end, struct mrc_command command, const char *what) {
  int result = call(end, command);
  if (result < 0) fail(-result, what);
}

/* ---- Set-up ---- */

static void add_plane(struct end *end, char *argument, const uint8_t source[16]) {
  uint32_t plane = end->config.n_ports++;
  struct mrc_port_config *port = &end->config.ports[plane];
  *port = (struct mrc_port_config){.family = 6, .any = 1, .tx_sockets = 1};
  memcpy(port->address, source, 16);
  snprintf(port->ifname, sizeof port->ifname, "%s", strtok(argument, "="));
  for (char *text = strtok(NULL, ","); text && end->n_evs < MAX_PATHS; text = strtok(NULL, ",")) {
    struct mrc_ev_attr *ev = &end->evs[end->n_evs++];
    *ev = (struct mrc_ev_attr){.family = 6, .port = (uint8_t)(plane + 1)};
    memcpy(ev->src, source, 16);
    memcpy(ev->dst, parse_address(text, 0).sin6_addr.s6_addr, 16);
  }
}

static void set(struct settings *settings, const char *argument) {
  struct {
    const char *name;
    uint32_t *value;
  } known[] = {
#define X(name, standard) {#name, &settings->name},
      SETTINGS(X)
#undef X
  };
  size_t length = strcspn(argument, "=");
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (strlen(known[i].name) != length || memcmp(argument, known[i].name, length) != 0) continue;
    char *end = NULL;
    if (argument[length] != '=') break;
    *known[i].value = (uint32_t)strtoul(argument + length + 1, &end, 10);
    if (*end != '\0') break;
    return;
  }
  fail(0, argument);
}

static void configure(struct end *end, int argc, char **argv) {
  end->settings = (struct settings){
#define X(name, standard) .name = standard,
      SETTINGS(X)
#undef X
  };
  if (argc < 4) fail(0, "usage: verbs SOURCE PEER IFNAME=ADDRESS,... ... [-- NAME=NUMBER ...]");
  struct sockaddr_in6 source = parse_address(argv[1], 0);
  memcpy(end->peer, parse_address(argv[2], 0).sin6_addr.s6_addr, 16);
  int i = 3;
  for (; i < argc && strcmp(argv[i], "--") != 0; i++)
    add_plane(end, argv[i], source.sin6_addr.s6_addr);
  for (i++; i < argc; i++)
    set(&end->settings, argv[i]);
  if (end->settings.qps < 1 || end->settings.qps > MAX_QPS) fail(0, "qps is out of range");
}

static void open_end(struct end *end) {
  const struct settings *settings = &end->settings;
  end->config.polled = settings->polled;
  end->config.spin_us = (uint16_t)settings->spin_us;
  end->config.coalesce_us = (uint16_t)settings->coalesce_us;
  end->config.rcvbuf_bytes = settings->rcvbuf_bytes;
  end->config.sndbuf_bytes = settings->sndbuf_bytes;
  end->config.engine =
      (struct mrc_engine_config){.seed = 1,
                                 .ports = end->config.n_ports,
                                 .sack_threshold_bytes = settings->sack_threshold_bytes};
  int error = 0;
  char message[256] = "";
  end->ctx = mrc_ctx_create(&end->config, &error, message, sizeof message);
  if (!end->ctx) fail(-error, message);
  /* Real pages. The kernel's shared page of zeros would stay in the cache. */
  end->arena_bytes = (uint64_t)settings->arena_mib << 20;
  end->arena = mmap(NULL, end->arena_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (end->arena == MAP_FAILED) fail(errno, "memory");
}

static void print_hello(const struct end *end) {
  printf("{\"udp_port\": %u, \"arena\": %lu, \"sports\": [", mrc_ctx_udp_port(end->ctx),
         (uint64_t)(uintptr_t)end->arena);
  for (int port = 1; port <= (int)end->config.n_ports; port++)
    printf("%s%u", port > 1 ? ", " : "", mrc_ctx_source_port(end->ctx, port, 0));
  printf("]}\n");
  fflush(stdout);
}

static void make_qp(struct end *end, uint32_t qpn) {
  const struct settings *settings = &end->settings;
  struct mrc_qp_create_attr create = {
      .qpn = qpn, .sq_depth = SQ_DEPTH, .mpr = settings->mpr, .max_wimm = WIMM};
  struct mrc_qp_rtr_attr rtr = {.dest_qpn = qpn, .integrity = settings->integrity};
  struct mrc_qp_rts_attr rts = {.path_mtu = settings->path_mtu,
                                .peer_mpr = settings->mpr,
                                .peer_max_wimm = WIMM,
                                .spray = settings->spray,
                                .timeout = 16,
                                .retry_linear = 7,
                                .retry_exp = 6,
                                .cc = MRC_CC_DELAY};
  struct mrc_command modify = {.op = MRC_COMMAND_QP_MODIFY, .qpn = qpn};
  must(end, (struct mrc_command){.op = MRC_COMMAND_QP_CREATE, .pointer = &create}, "create QP");
  modify.value = MRC_QP_INIT;
  must(end, modify, "QP to INIT");
  if (settings->seal != MRC_SEAL_NONE) {
    /* The same secret both ways: nothing here is one. */
    struct mrc_seal_attr seal = {.mode = settings->seal, .peer_qpn = qpn};
    must(end, (struct mrc_command){.op = MRC_COMMAND_QP_SET_SEAL, .qpn = qpn, .pointer = &seal},
         "seal the QP");
  }
  must(end,
       (struct mrc_command){.op = MRC_COMMAND_QP_SET_EVS,
                            .qpn = qpn,
                            .pointer = end->evs,
                            .value = (uint32_t)end->n_evs},
       "set EVs");
  must(end,
       (struct mrc_command){.op = MRC_COMMAND_QP_SET_PEER,
                            .qpn = qpn,
                            .pointer = end->sources,
                            .value = end->config.n_ports},
       "set peer");
  modify.value = MRC_QP_RTR;
  modify.pointer = &rtr;
  must(end, modify, "QP to RTR");
  modify.value = MRC_QP_RTS;
  modify.pointer = &rts;
  must(end, modify, "QP to RTS");
}

static void meet(struct end *end, const struct job *job) {
  uint16_t udp_port = (uint16_t)job_number(job, 1);
  end->peer_arena = job_number(job, 2);
  for (uint32_t i = 0; i < end->config.n_ports; i++) {
    end->sources[i] = (struct mrc_peer_source){.sport = (uint16_t)job_number(job, (int)i + 3)};
    memcpy(end->sources[i].address, end->peer, 16);
  }
  for (int i = 0; i < end->n_evs; i++) {
    end->evs[i].dport = udp_port;
    end->evs[i].ev = (uint32_t)mrc_ctx_source_port(end->ctx, end->evs[i].port, 0) << 16;
    end->evs[i].ev |= (uint32_t)i + 1;
  }
  must(end,
       (struct mrc_command){.op = MRC_COMMAND_MR_REGISTER,
                            .address = (uint64_t)(uintptr_t)end->arena,
                            .bytes = end->arena_bytes,
                            .key = KEY,
                            .access = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE},
       "register the arena");
  for (uint32_t i = 0; i < end->settings.qps; i++)
    make_qp(end, FIRST_QPN + i);
  printf("{}\n");
}

/* ---- Jobs ---- */

/* With the setting `list`, a slot is that many WRITEs, which are posted together and have one
   completion; as `-l` and `-Q` of perftest. */
struct writes {
  struct end *end;
  uint32_t bytes;
  int depth; /* slots */
  uint32_t list;
  uint64_t end_ns;
  uint64_t done;
  int outstanding;
  int n; /* commands to submit */
  struct mrc_command commands[MAX_DEPTH];
  struct mrc_wr wrs[MAX_DEPTH];
  uint64_t posted_ns[MAX_DEPTH];
};

/* Outstanding WRITEs share a place in the arenas. Large WRITEs have a place for each QP. */
static struct mrc_wr write_request(const struct end *end, uint64_t number, uint32_t bytes) {
  uint64_t place = bytes > PLACE_BYTES ? bytes : PLACE_BYTES;
  uint64_t offset = number * bytes % (place * end->settings.qps);
  return (struct mrc_wr){.opcode = MRC_WR_WRITE,
                         .bytes = bytes,
                         .local = (uint64_t)(uintptr_t)end->arena + offset,
                         .lkey = KEY,
                         .va = end->peer_arena + offset,
                         .rkey = KEY};
}

static struct mrc_command write_command(struct writes *writes, uint64_t slot) {
  struct end *end = writes->end;
  struct mrc_command command = {.op = MRC_COMMAND_QP_POST,
                                .qpn = FIRST_QPN + (uint32_t)(slot % end->settings.qps)};
  if (writes->list == 1) {
    command.wr = write_request(end, slot, writes->bytes);
    command.wr.wr_id = slot;
    return command;
  }
  struct mrc_wr *wrs = &writes->wrs[slot * writes->list];
  for (uint32_t i = 0; i < writes->list; i++) {
    wrs[i] = write_request(end, slot * writes->list + i, writes->bytes);
    wrs[i].wr_id = slot;
    wrs[i].unsignaled = i + 1 < writes->list;
  }
  command.op = MRC_COMMAND_QP_POST_MANY;
  command.pointer = wrs;
  command.value = writes->list;
  return command;
}

static void post(struct writes *writes, uint64_t slot, uint64_t now_ns) {
  writes->commands[writes->n++] = write_command(writes, slot);
  writes->posted_ns[slot] = now_ns;
  writes->outstanding++;
}

static void on_written(void *job, const struct mrc_wc *wc) {
  struct writes *writes = job;
  if (wc->status != MRC_WC_SUCCESS) fail(0, "a WRITE failed");
  uint64_t now_ns = clock_ns();
  latency_add(&latency, now_ns - writes->posted_ns[wc->wr_id]);
  writes->outstanding--;
  writes->done += writes->list;
  if (now_ns < writes->end_ns) post(writes, wc->wr_id, now_ns);
}

static void write_for(struct end *end, const struct job *job) {
  static struct writes writes;
  writes = (struct writes){
      .end = end, .bytes = (uint32_t)job_number(job, 1), .list = end->settings.list};
  uint64_t depth = job_number(job, 2);
  if (writes.list < 1 || depth < writes.list || depth > MAX_DEPTH)
    fail(0, "DEPTH or the setting list is out of range");
  writes.depth = (int)(depth / writes.list);
  uint64_t place = writes.bytes > PLACE_BYTES ? writes.bytes : PLACE_BYTES;
  if (place * end->settings.qps > end->arena_bytes)
    fail(0, "the arena is too small: raise arena_mib");
  uint64_t start_ns = clock_ns();
  writes.end_ns = start_ns + job_number(job, 3) * 1000000u;
  for (int i = 0; i < writes.depth; i++)
    post(&writes, (uint64_t)i, start_ns);
  while (writes.outstanding > 0) {
    int taken = mrc_ctx_submit(end->ctx, writes.commands, writes.n);
    memmove(writes.commands, writes.commands + taken,
            (size_t)(writes.n - taken) * sizeof writes.commands[0]);
    writes.n -= taken;
    turn(end, on_written, &writes);
  }
  result_print(&latency, writes.done, writes.done * writes.bytes, clock_ns() - start_ns);
}

struct immediates {
  uint64_t taken;
  uint64_t completed;
};

static void on_immediate(void *job, const struct mrc_wc *wc) {
  struct immediates *immediates = job;
  if (wc->status != MRC_WC_SUCCESS) fail(0, "a WRITE_IMM failed");
  if (wc->opcode == MRC_WC_RECV_IMM)
    immediates->taken++;
  else
    immediates->completed++;
}

static void post_immediate(struct end *end, uint32_t bytes) {
  struct mrc_command command = {
      .op = MRC_COMMAND_QP_POST, .qpn = FIRST_QPN, .wr = write_request(end, 0, bytes)};
  command.wr.opcode = MRC_WR_WRITE_IMM;
  if (mrc_ctx_submit(end->ctx, &command, 1) != 1) fail(0, "the command ring is full");
}

static void ping(struct end *end, const struct job *job) {
  uint32_t bytes = (uint32_t)job_number(job, 1);
  uint64_t start_ns = clock_ns();
  uint64_t end_ns = start_ns + job_number(job, 2) * 1000000u;
  uint64_t now_ns = start_ns;
  struct immediates answers = {0};
  while (now_ns < end_ns) {
    uint64_t sent_ns = now_ns;
    uint64_t before = answers.taken;
    post_immediate(end, bytes);
    while (answers.taken == before)
      turn(end, on_immediate, &answers);
    now_ns = clock_ns();
    latency_add(&latency, (now_ns - sent_ns) / 2);
  }
  result_print(&latency, answers.taken, 0, now_ns - start_ns);
}

/* Whether the next job has arrived. The check costs a system call, so only some calls make it. */
static bool is_over(uint64_t *looked_ns) {
  uint64_t now_ns = clock_ns();
  if (now_ns - *looked_ns < PATIENCE_NS) return false;
  *looked_ns = now_ns;
  return job_waits();
}

/* After the last answer, the peer must still drive its context to acknowledge it. */
static void echo(struct end *end, const struct job *job) {
  uint32_t bytes = (uint32_t)job_number(job, 1);
  struct immediates asked = {0};
  uint64_t answered = 0;
  uint64_t looked_ns = clock_ns();
  while (!is_over(&looked_ns) || asked.completed < answered) {
    turn(end, on_immediate, &asked);
    for (; answered < asked.taken; answered++)
      post_immediate(end, bytes);
  }
  printf("{}\n");
}

static void serve(struct end *end) {
  struct pollfd job = {.fd = STDIN_FILENO, .events = POLLIN};
  if (!end->config.polled) poll(&job, 1, -1);
  for (uint64_t looked_ns = clock_ns(); !is_over(&looked_ns);)
    turn(end, NULL, NULL);
  printf("{}\n");
}

static void print_counters(struct end *end) {
  uint64_t values[256];
  int n =
      call(end, (struct mrc_command){.op = MRC_COMMAND_COUNTERS, .pointer = values, .value = 256});
  printf("{");
  for (int i = 0; i < n; i++)
    printf("%s\"%s\": %lu", i ? ", " : "", mrc_counter_name(i), values[i]);
  printf("}\n");
}

static void run(struct end *end, const struct job *job) {
  if (job_is(job, "peer"))
    meet(end, job);
  else if (job_is(job, "write"))
    write_for(end, job);
  else if (job_is(job, "ping"))
    ping(end, job);
  else if (job_is(job, "echo"))
    echo(end, job);
  else if (job_is(job, "serve"))
    serve(end);
  else if (job_is(job, "counters"))
    print_counters(end);
  else if (!job_is(job, "end")) /* "end" only ends the job before */
    fail(0, "unknown job");
  fflush(stdout);
}

int main(int argc, char **argv) {
  static struct end end;
  static struct job job;
  prctl(PR_SET_PDEATHSIG, 9);
  configure(&end, argc, argv);
  open_end(&end);
  print_hello(&end);
  while (job_read(&job))
    run(&end, &job);
  mrc_ctx_destroy(end.ctx);
  return 0;
}
