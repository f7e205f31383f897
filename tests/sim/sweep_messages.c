/* SPDX-License-Identifier: Apache-2.0 */
/* Random messages between hosts, each scenario drawn from its seed: fabric, limits, sends,
   receives, cancels and faults. Every message must arrive once, whole, in the order of its peer,
   space and tag, at a receive that takes it; no byte outside of a receive may change; and at the
   end nothing may be left. Each seed must give the same trace twice.

     sweep_messages FIRST COUNT      runs seeds FIRST .. FIRST + COUNT - 1
     sweep_messages SEED 1 -v        runs one seed and prints what was drawn
     sweep_messages FIRST COUNT -t   prints the trace of each seed

   A failure prints its seed. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "msg/msg.h"
#include "msg/operations.h"
#include "pair/connect.h"
#include "sweep.h"

enum {
  HOSTS = 3,
  SPACES = 2, /* in the second one, the size follows from the tag, so receives are exact */
  TAGS = 3,
  MOST_DRAWN = 200,
  MOST = 3 * MOST_DRAWN, /* with the receives of what is left */
  MOST_BYTES = 3 << 20,
  ARENA = 64 << 20,
  GUARD = 8, /* bytes around the memory of each operation */
  FILL = 0xEE
};

struct operation {
  struct mrc_msg_post post;
  int host, other; /* `other` -1: any */
  bool ended;
  int result, partner; /* the operation that it was matched with; -1: none is known */
};

static struct {
  struct mrc_pair *pair;
  struct mrc_prng prng;
  struct mrc_msg *msgs[HOSTS];
  int ends[HOSTS][HOSTS];         /* of the pair; -1: not joined */
  uint32_t numbers[HOSTS][HOSTS]; /* the peer's number at a host */
  struct operation ops[MOST];
  int n_ops, hosts;
  uint64_t used;
  bool dies;
} run;

static uint8_t *arena; /* at a fixed address: a CTS holds one, and traces are the same everywhere */

static void map_arena(void) {
  void *const at = (void *)0x200000000000; /* free in any program, also under ASan */
  arena = mmap(at, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
               -1, 0);
  mrc_assert(arena == at);
}

/* ---- the judge ---- */

static uint8_t byte_of(int op, uint64_t at) {
  return (uint8_t)((uint64_t)op * 37 + at * 11 + at / 251);
}

static uint8_t *memory_of(int op) { return (uint8_t *)(uintptr_t)run.ops[op].post.address; }

static bool fits(const struct operation *receive, const struct operation *send) {
  return receive->post.kind == MRC_MSG_RECV && send->post.kind == MRC_MSG_SEND &&
         send->other == receive->host && (receive->other < 0 || receive->other == send->host) &&
         receive->post.space == send->post.space &&
         ((receive->post.tag ^ send->post.tag) & ~receive->post.ignore) == 0;
}

/* The message that a receive of `bytes` has got: its content tells which, unless it is empty. */
static int find_send(const struct operation *receive, const struct mrc_msg_done *done) {
  const uint8_t *content = (const uint8_t *)(uintptr_t)receive->post.address;
  for (int i = 0; i < run.n_ops; i++) {
    const struct operation *send = &run.ops[i];
    if (!fits(receive, send) || send->partner >= 0 || send->post.bytes != done->bytes) continue;
    if (run.numbers[receive->host][send->host] != done->peer || send->post.tag != done->tag)
      continue;
    if (send->ended && send->result == -ECANCELED) continue;
    uint64_t at = 0;
    while (at < done->bytes && content[at] == byte_of(i, at))
      at++;
    if (at == done->bytes) return i;
  }
  return -1;
}

/* A peer that sends longer messages eagerly than this host, where it was asked to write. */
static bool eager_for_exact(const struct operation *op, uint64_t bytes) {
  return op->post.exact && bytes > run.msgs[op->host]->config.eager_bytes;
}

static void on_done(void *user, const struct mrc_msg_done *done) {
  (void)user;
  mrc_assert(done->cookie < (uint64_t)run.n_ops);
  struct operation *op = &run.ops[done->cookie];
  mrc_assert(!op->ended);
  op->ended = true;
  op->result = done->result;
  mrc_assert(op->result == 0 || op->result == -ECANCELED || op->result == -EMSGSIZE ||
             (run.pair->config.engine.max_mrs != 0 && op->result == -ENOSPC) ||
             (run.dies && (op->result == -ETIMEDOUT || op->result == -ECONNRESET)));
  if (op->result != 0 && op->result != -EMSGSIZE) mrc_assert(done->bytes == 0);
  if (op->post.kind == MRC_MSG_SEND && op->result == -EMSGSIZE)
    mrc_assert(done->bytes == op->post.bytes);
  if (op->post.kind == MRC_MSG_RECV && op->result == -EMSGSIZE)
    mrc_assert(done->bytes > op->post.bytes || eager_for_exact(op, done->bytes));
  if (op->post.kind == MRC_MSG_SEND || op->result != 0) return;
  mrc_assert(done->bytes <= op->post.bytes);
  op->partner = find_send(op, done);
  mrc_assert(op->partner >= 0);
  run.ops[op->partner].partner = (int)done->cookie;
  memset(memory_of((int)done->cookie), FILL, done->bytes); /* nothing may come after it */
}

static void check_memory(void) {
  for (int i = 0; i < run.n_ops; i++) {
    const struct operation *op = &run.ops[i];
    const uint8_t *memory = memory_of(i);
    for (int k = 0; k < GUARD; k++)
      mrc_assert(memory[-1 - k] == FILL && memory[op->post.bytes + (uint64_t)k] == FILL);
    if (op->post.kind == MRC_MSG_SEND || !op->ended || run.dies) continue;
    for (uint64_t at = 0; at < op->post.bytes; at++)
      mrc_assert(memory[at] == FILL);
  }
}

/* Receives of truncated messages are not known here, so a send without a partner may be theirs. */
static void check_order(void) {
  for (int r = 0; r < run.n_ops; r++) {
    const struct operation *receive = &run.ops[r];
    if (receive->post.kind != MRC_MSG_RECV || receive->partner < 0) continue;
    const int took = receive->partner;
    for (int i = 0; i < run.n_ops; i++) {
      const struct operation *op = &run.ops[i];
      const bool same = op->post.kind == MRC_MSG_SEND && op->host == run.ops[took].host;
      if (i < took && same && fits(receive, op) && op->partner >= 0) mrc_assert(op->partner < r);
      if (i < r && fits(op, &run.ops[took]) && op->partner >= 0 &&
          run.ops[op->partner].host == run.ops[took].host)
        mrc_assert(op->partner < took);
    }
  }
}

static void check_bounds(int host) {
  const struct mrc_msg *msg = run.msgs[host];
  for (int other = 0; other < run.hosts; other++) {
    if (other == host) continue;
    const struct mrc_msg_peer *peer = msg->peers[run.numbers[host][other]];
    mrc_assert(peer->heap <= msg->config.heap_bytes);
    mrc_assert(peer->slots.arrived - peer->slots.freed <= MRC_MSG_SLOTS);
    mrc_assert(peer->slots.sent - peer->slots.credit <= MRC_MSG_SLOTS);
    mrc_assert(peer->wrs <= peer->limits.sq_depth && peer->imms <= peer->theirs.max_wimm);
  }
  mrc_assert(msg->counters.violations == 0);
}

/* ---- draws ---- */

static struct mrc_pair_config draw_pair(struct mrc_prng *prng) {
  struct mrc_link_config path = {.delay_ns =
                                     1 * US + below(prng, one_in(prng, 4) ? 5 * MS : MS / 5)};
  if (one_in(prng, 3)) path.loss_ppm = (uint32_t)PICK(prng, 100, 1000, 10000, 100000);
  if (one_in(prng, 4)) path.duplicate_ppm = (uint32_t)PICK(prng, 1000, 100000);
  if (one_in(prng, 3)) path.reorder_ppm = (uint32_t)PICK(prng, 1000, 50000, 500000);
  path.reorder_ns = 1 * US + below(prng, 300 * US);
  if (one_in(prng, 5)) path.corrupt_ppm = (uint32_t)PICK(prng, 100, 10000);
  if (one_in(prng, 4)) path.rate_bps = PICK(prng, 500000000, 10000000000);
  struct mrc_pair_config config = {.seed = mrc_prng_next(prng),
                                   .hosts = 2 + (int)one_in(prng, 2),
                                   .planes = 1 + (int)below(prng, 4),
                                   .paths = 1 + (int)below(prng, 3),
                                   .path = path,
                                   .driver = {.capacity = 1 + (int)below(prng, 32)}};
  if (one_in(prng, 3)) config.driver.refuse_one_in = 2 + (int)below(prng, 20);
  if (one_in(prng, 3)) config.driver.wake_ns = below(prng, 200 * US);
  if (one_in(prng, 6)) config.engine.cq_depth = 32 + below(prng, 64);
  if (one_in(prng, 6)) config.engine.max_mrs = 8 + below(prng, 32);
  return config;
}

static void create_msg(int host) {
  struct mrc_prng *prng = &run.prng;
  const struct mrc_msg_config config = {
      .engine = run.pair->hosts[host].engine,
      .seed = {mrc_prng_next(prng), mrc_prng_next(prng)},
      .max_operations = MOST,
      .heap_bytes = (uint32_t)PICK(prng, 2 * MRC_MSG_SLOT_BYTES, 1 << 16, 1 << 20),
      .eager_bytes = (uint32_t)PICK(prng, 1, 300, 4096, MRC_MSG_MOST_EAGER),
      .done = on_done,
  };
  run.msgs[host] = mrc_msg_new(&config);
  mrc_assert(run.msgs[host] != NULL);
}

static void join(int one, int other) {
  struct mrc_prng *prng = &run.prng;
  const struct mrc_pair_qp_config config = {
      .from = one,
      .to = other,
      .path_mtu = (uint32_t)PICK(prng, 1024, 4096, 8844),
      .mpr = (uint32_t)PICK(prng, 256, 1024),
      .sq_depth = 16 + below(prng, 64),
      .max_wimm = 1 + below(prng, 40),
      .timeout = (uint8_t)(10 + below(prng, 5)),
      .retry_linear = 7,
      .retry_exp = run.dies ? 3 : 25, /* 25 never gives up */
      .cc = MRC_CC_DELAY,
  };
  const int end = mrc_pair_connect(run.pair, &config);
  const int ends[2] = {end, run.pair->ends[end]->peer}, hosts[2] = {one, other};
  struct mrc_msg_inbox inboxes[2];
  for (int i = 0; i < 2; i++) {
    struct mrc_pair_end *own = run.pair->ends[ends[i]];
    const struct mrc_msg_limits limits = {.sq_depth = own->attr.create.sq_depth,
                                          .max_wimm = own->attr.create.max_wimm};
    own->audit.unwatched = true; /* it knows no writes but its own */
    const int number = mrc_msg_open(run.msgs[hosts[i]], own->qpn, &limits, &inboxes[i]);
    mrc_assert(number >= 0);
    run.numbers[hosts[i]][hosts[1 - i]] = (uint32_t)number;
    run.ends[hosts[i]][hosts[1 - i]] = ends[i];
  }
  for (int i = 0; i < 2; i++)
    mrc_assert(mrc_msg_connect(run.msgs[hosts[i]], run.numbers[hosts[i]][hosts[1 - i]],
                               &inboxes[1 - i]) == 0);
}

static uint32_t agreed(uint64_t tag) { return (uint32_t[TAGS]){50, 10000, 200000}[tag]; }

static uint32_t draw_bytes(struct mrc_prng *prng) {
  switch (below(prng, 8)) {
    case 0:
      return 0;
    case 1:
      return below(prng, 400000);
    case 2:
      return one_in(prng, 8) ? below(prng, MOST_BYTES) : 4090 + below(prng, 12);
    default:
      return 4 + below(prng, one_in(prng, 2) ? 300 : 20000);
  }
}

/* ---- run ---- */

static void kick(int host) {
  mrc_msg_pump(run.msgs[host], run.pair->now_ns);
  mrc_pair_kick(run.pair, host);
}

static void post(int host, int other, struct mrc_msg_post post) {
  if (run.n_ops == MOST || run.used + post.bytes + 2 * GUARD > ARENA) return;
  const int index = run.n_ops++;
  uint8_t *memory = arena + run.used + GUARD;
  run.used += post.bytes + 2 * GUARD;
  memset(memory - GUARD, FILL, post.bytes + 2 * GUARD);
  for (uint64_t at = 0; post.kind == MRC_MSG_SEND && at < post.bytes; at++)
    memory[at] = byte_of(index, at);
  post.cookie = (uint64_t)index;
  post.address = (uintptr_t)memory;
  post.peer = other < 0 ? MRC_MSG_ANY : run.numbers[host][other];
  run.ops[index] = (struct operation){.post = post, .host = host, .other = other, .partner = -1};
  mrc_assert(mrc_msg_post(run.msgs[host], &post, 1, run.pair->now_ns) == 1);
  kick(host);
}

static void post_any(void) {
  struct mrc_prng *prng = &run.prng;
  const int host = (int)below(prng, (uint32_t)run.hosts);
  int other = (host + 1 + (int)below(prng, (uint32_t)run.hosts - 1)) % run.hosts;
  struct mrc_msg_post each = {.kind = one_in(prng, 2) ? MRC_MSG_SEND : MRC_MSG_RECV,
                              .space = below(prng, SPACES),
                              .tag = below(prng, TAGS)};
  each.bytes = each.space == 1 ? agreed(each.tag) : draw_bytes(prng);
  if (each.kind == MRC_MSG_RECV) {
    each.exact = each.space == 1 && one_in(prng, 2);
    if (!each.exact && one_in(prng, 3)) other = -1;
    if (!each.exact && one_in(prng, 4)) each.ignore = PICK(prng, 1, 3);
    if (!each.exact && (each.space == 1 || !one_in(prng, 4))) each.bytes = 400000;
  }
  post(host, other, each);
}

static void cancel(int index) {
  const struct operation *op = &run.ops[index];
  if (op->ended) return;
  mrc_assert(mrc_msg_cancel(run.msgs[op->host], op->post.space, op->post.cookie) == 0);
  kick(op->host);
}

static void fault(void) {
  struct mrc_prng *prng = &run.prng;
  const int plane = 1 + (int)below(prng, (uint32_t)run.pair->config.planes);
  const int host = (int)below(prng, (uint32_t)run.hosts);
  const bool on = one_in(prng, 2);
  if (one_in(prng, 2))
    mrc_pair_silence(run.pair, plane, on);
  else
    mrc_pair_port_up(run.pair, host, plane, on);
}

static void heal(bool silent) {
  for (int plane = 1; plane <= run.pair->config.planes; plane++) {
    for (int host = 0; host < run.hosts; host++)
      if (run.pair->hosts[host].down >> (plane - 1) & 1)
        mrc_pair_port_up(run.pair, host, plane, true);
    mrc_pair_silence(run.pair, plane, silent);
  }
}

static bool take(struct mrc_pair *pair, int host, const struct mrc_wc *wc) {
  if (!mrc_msg_owns(run.msgs[host], wc->qpn)) return false;
  mrc_msg_take(run.msgs[host], wc, pair->now_ns);
  return true;
}

static void after_completions(struct mrc_pair *pair, int host) {
  mrc_msg_pump(run.msgs[host], pair->now_ns);
  check_bounds(host);
}

static bool is_pending(uint8_t kind) {
  for (int i = 0; i < run.n_ops; i++)
    if (run.ops[i].post.kind == kind && !run.ops[i].ended) return true;
  return false;
}

static bool sends_pending(void) { return is_pending(MRC_MSG_SEND); }

/* Messages that nobody has received, less the receives that some of them were too long for. */
static int count_lost(void) {
  int n = 0;
  for (int i = 0; i < run.n_ops; i++) {
    const struct operation *op = &run.ops[i];
    const bool receives = op->post.kind == MRC_MSG_RECV;
    n += !receives && op->result == 0 && op->partner < 0;
    n -= receives && op->result == -EMSGSIZE;
  }
  return n;
}

static void run_until(bool (*waits)(void), uint64_t budget_ns) {
  const uint64_t until_ns = run.pair->now_ns + budget_ns;
  while (waits() && mrc_pair_step(run.pair, until_ns)) {
  }
}

static bool any_pending(void) { return sends_pending() || is_pending(MRC_MSG_RECV); }

/* Receives all that has not been received, then cancels the receives that are left. A receive for
   every send is enough, also if older ones with too little room take some. */
static void receive_the_rest(void) {
  static bool unread[MOST];
  const int n = run.n_ops;
  for (int i = 0; i < n; i++) {
    const struct operation *op = &run.ops[i];
    unread[i] = op->post.kind == MRC_MSG_SEND && op->partner < 0 && op->result == 0;
  }
  for (int i = 0; i < n; i++) {
    const struct mrc_msg_post *sent = &run.ops[i].post;
    const struct mrc_msg_post rest = {
        .kind = MRC_MSG_RECV, .space = sent->space, .ignore = UINT64_MAX, .bytes = sent->bytes};
    if (unread[i]) post(run.ops[i].other, -1, rest);
  }
  run_until(sends_pending, 200 * SECOND);
  mrc_assert(!sends_pending());
  mrc_pair_run(run.pair, run.pair->now_ns + 10 * SECOND);
  mrc_assert(count_lost() <= 0);
  for (int i = 0; i < run.n_ops; i++)
    cancel(i);
  run_until(any_pending, 100 * SECOND);
}

/* The peers are gone: their operations end by time, or by the one who watches the connection. */
static void lose_all(void) {
  heal(true);
  run_until(any_pending, 60 * SECOND);
  for (int host = 0; host < run.hosts; host++)
    for (int other = 0; other < run.hosts; other++)
      if (other != host)
        mrc_msg_fail(run.msgs[host], run.numbers[host][other], -ECONNRESET, run.pair->now_ns);
  for (int host = 0; host < run.hosts; host++)
    kick(host);
  mrc_pair_run(run.pair, run.pair->now_ns + SECOND);
  for (int i = 0; i < run.n_ops; i++)
    cancel(i);
}

/* A message for which one end had no memory region ends both operations so, unless the receive has
   told of an earlier message. */
static void check_full(void) {
  int sends = 0, receives = 0, others = 0;
  for (int i = 0; i < run.n_ops && !run.dies; i++) {
    const struct operation *op = &run.ops[i];
    const bool sent = op->post.kind == MRC_MSG_SEND;
    if (op->result == -ENOSPC) *(sent ? &sends : &receives) += 1;
    if (op->result == -EMSGSIZE && op->post.exact) others++;
  }
  mrc_assert(receives <= sends && sends <= receives + others);
}

static void check_end(void) {
  mrc_assert(!any_pending());
  check_memory();
  check_order();
  check_full();
  for (int host = 0; host < run.hosts; host++) {
    mrc_assert(run.msgs[host]->n_ops == 0);
    for (int other = 0; other < run.hosts && !run.dies; other++)
      if (other != host) mrc_assert(run.msgs[host]->peers[run.numbers[host][other]]->heap == 0);
  }
}

static uint64_t run_once(void) {
  memset(&run, 0, sizeof run);
  run.prng.state = seed;
  struct mrc_prng *prng = &run.prng;
  run.dies = one_in(prng, 8);
  const struct mrc_pair_config config = draw_pair(prng);
  run.hosts = config.hosts;
  run.pair = mrc_pair_create(&config);
  run.pair->take = take;
  run.pair->post = after_completions;
  for (int host = 0; host < run.hosts; host++)
    create_msg(host);
  for (int host = 0; host < run.hosts; host++)
    for (int other = host + 1; other < run.hosts; other++)
      join(host, other);
  int faults = one_in(prng, 2) ? 0 : (int)below(prng, 8);
  for (int n = (int)below(prng, MOST_DRAWN); n > 0; n--) {
    post_any();
    if (one_in(prng, 8)) cancel((int)below(prng, (uint32_t)run.n_ops));
    if (faults > 0 && one_in(prng, 10)) {
      faults--;
      fault();
    }
    if (one_in(prng, 3))
      mrc_pair_run(run.pair, run.pair->now_ns + below(prng, one_in(prng, 10) ? 50 * MS : MS));
  }
  if (run.dies) {
    lose_all();
  } else {
    heal(false);
    receive_the_rest();
  }
  if (verbose)
    printf("%d hosts, %d planes, loss %u ppm, %d operations%s, %" PRIu64 " ms\n", config.hosts,
           config.planes, config.path.loss_ppm, run.n_ops, run.dies ? ", all lost" : "",
           (run.pair->now_ns - SECOND) / MS);
  check_end();
  const uint64_t trace = run.pair->trace;
  for (int host = 0; host < run.hosts; host++) {
    for (int other = 0; other < run.hosts; other++)
      if (other != host) mrc_pair_destroy_qp(run.pair, run.ends[host][other]);
    mrc_msg_free(run.msgs[host]);
  }
  mrc_pair_destroy(run.pair);
  return trace;
}

int main(int argc, char **argv) {
  map_arena();
  return run_seeds("sweep_messages", argc, argv, run_once);
}
