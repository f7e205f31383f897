/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC: what is sent arrives, in order and once; what may not go waits or is refused. */
#include "verbs/rc.h"

#include <stdlib.h>

#include "check.h"
#include "core/base.h"

/* ---- Two ends without an engine ---- */

/* Two ends of emulated RC without an engine. What an end posts waits until a test delivers it, and
   its completion until the test hands it over. The ends check all that they get: messages whole and
   in order, answers of the right memory, nothing without a receive. */
enum {
  PAIR_REQUESTS = 64,
  PAIR_QUEUE = PAIR_REQUESTS + MRC_RC_WRS,
  PAIR_MEMORY = 1 << 18,
  PAIR_LOG = 1 << 14,
  PAIR_KEY = 7 /* of an end's memory */
};

struct pair_log {
  uint32_t bytes;
  uint32_t imm;
  bool with_imm, solicited, written;
};

struct pair_end {
  struct mrc_rc rc;
  struct pair_end *other;
  uint8_t *boxes, *memory, *source;
  uint64_t counter; /* that ATOMICs of the other end change */
  uint64_t added;   /* by this end's */
  struct mrc_rc_request requests[PAIR_REQUESTS];
  struct mrc_wr queue[PAIR_QUEUE]; /* posted and not delivered */
  uint64_t acks[PAIR_QUEUE];       /* delivered; the completion is not handed over */
  uint32_t n_queue, n_acks;
  struct pair_log log[PAIR_LOG]; /* messages that this end has posted, in order */
  uint32_t n_log, n_received;    /* by the other end */
  uint32_t posted, done;
  uint32_t total, got; /* of the message that arrives */
  bool shared, receiving;
  uint32_t pool; /* shared receives */
  uint32_t wanted;
  uint32_t granted; /* ever */
  uint8_t failed;   /* enum mrc_wc_status; 0: it has not */
  /* What the owner refuses, as long as it is set. */
  bool no_memory, no_room, no_reading;
};

static struct mrc_rc_request *request_at(const struct mrc_rc *rc, uint32_t place) {
  return &rc->requests[place & (rc->size - 1)];
}

static uint8_t pair_pattern(uint32_t at, uint32_t salt) {
  return (uint8_t)(at * 7 + (at >> 8) * 13 + salt * 31);
}

static void pair_post(void *user, const struct mrc_wr *wr) {
  struct pair_end *end = user;
  mrc_assert(end->n_queue + end->n_acks < PAIR_QUEUE);
  end->queue[end->n_queue++] = *wr;
}

static bool pair_gather(void *user, uint32_t place, uint32_t at, uint8_t *to, uint32_t n) {
  struct pair_end *end = user;
  const struct mrc_rc_request *request = request_at(&end->rc, place);
  if (end->no_memory) return false;
  CHECK(at + n <= request->bytes);
  for (uint32_t i = 0; i < n; i++)
    to[i] = pair_pattern(at + i, request->bytes);
  return true;
}

static bool pair_scatter(void *user, uint32_t place, uint32_t at, const uint8_t *from, uint32_t n) {
  struct pair_end *end = user;
  const struct mrc_rc_request *request = request_at(&end->rc, place);
  mrc_assert(at + n <= request->bytes);
  if (end->no_memory) return false;
  if (request->kind == MRC_RC_DO_READ) {
    CHECK_MEM_EQ(from, end->other->source + request->va + at, n);
  } else {
    uint64_t value;
    CHECK_EQ(n, sizeof value);
    memcpy(&value, from, sizeof value);
    CHECK_EQ(value, end->added); /* nobody else adds */
    end->added += request->value;
  }
  return true;
}

static void pair_done(void *user) { ((struct pair_end *)user)->done++; }

static void pair_failed(void *user, enum mrc_wc_status status) {
  struct pair_end *end = user;
  CHECK_EQ(end->failed, 0);
  end->failed = (uint8_t)status;
}

static void pair_use(struct pair_end *end) {
  mrc_assert(end->granted > 0); /* as the module has to see to */
  end->granted--;
}

static enum mrc_wc_status pair_begin(void *user, uint32_t total) {
  struct pair_end *end = user;
  CHECK(!end->receiving);
  pair_use(end);
  end->receiving = true;
  end->total = total;
  end->got = 0;
  return end->no_room ? MRC_WC_REM_INV_REQ_ERR : MRC_WC_SUCCESS;
}

static enum mrc_wc_status pair_receive(void *user, uint32_t at, const uint8_t *from, uint32_t n) {
  struct pair_end *end = user;
  mrc_assert(end->receiving && n > 0 && at == end->got && n <= end->total - at);
  for (uint32_t i = 0; end->other != NULL && i < n; i++)
    if (from[i] != pair_pattern(at + i, end->total)) {
      CHECK_FAIL("byte %u of %u is wrong", at + i, end->total);
      break;
    }
  end->got += n;
  return MRC_WC_SUCCESS;
}

static void pair_received(void *user, const struct mrc_rc_message *message) {
  struct pair_end *end = user;
  if (message->written)
    pair_use(end);
  else
    mrc_assert(end->receiving && end->got == message->bytes);
  if (!message->written) end->receiving = false;
  if (end->other == NULL) return; /* the peer is hostile */
  const struct pair_log *log = &end->other->log[end->other->n_received++];
  CHECK_EQ(message->bytes, log->bytes);
  CHECK_EQ(message->written, log->written);
  CHECK_EQ(message->with_imm, log->with_imm);
  CHECK_EQ(message->solicited, log->solicited);
  if (log->with_imm) CHECK_EQ(message->imm, log->imm);
  for (uint32_t i = 0; message->written && i < message->bytes; i++)
    if (end->memory[i] != pair_pattern(i, message->imm)) {
      CHECK_FAIL("byte %u of a WRITE_IMM of %u is not in place", i, message->bytes);
      break;
    }
}

static void pair_grant(struct pair_end *end, uint32_t n) {
  end->granted += n;
  mrc_rc_grant(&end->rc, n);
}

static void pair_serve(struct pair_end *end) {
  const uint32_t n = end->wanted < end->pool ? end->wanted : end->pool;
  if (!end->shared || n == 0) return;
  end->pool -= n;
  end->wanted -= n;
  pair_grant(end, n);
}

static void pair_wants(void *user, uint32_t n) {
  struct pair_end *end = user;
  end->wanted = n;
  pair_serve(end);
}

static bool pair_read(void *user, uint32_t rkey, uint64_t va, uint8_t *to, uint32_t n) {
  const struct pair_end *end = user;
  if (end->no_reading || rkey != PAIR_KEY || va > PAIR_MEMORY || n > PAIR_MEMORY - va) return false;
  memcpy(to, end->source + va, n);
  return true;
}

static enum mrc_wc_status pair_atomic(void *user, const struct mrc_rc_asked *asked,
                                      uint64_t *value) {
  struct pair_end *end = user;
  if (asked->rkey != PAIR_KEY || end->no_reading) return MRC_WC_REM_ACCESS_ERR;
  *value = end->counter;
  end->counter += asked->value;
  return MRC_WC_SUCCESS;
}

static const struct mrc_rc_owner pair_owner = {.post = pair_post,
                                               .gather = pair_gather,
                                               .scatter = pair_scatter,
                                               .done = pair_done,
                                               .failed = pair_failed,
                                               .begin = pair_begin,
                                               .receive = pair_receive,
                                               .received = pair_received,
                                               .wants = pair_wants,
                                               .read = pair_read,
                                               .atomic = pair_atomic};

/* ---- Life ---- */

static void pair_start_end(struct pair_end *end) {
  memset(end, 0, sizeof *end);
  end->boxes = calloc(2, MRC_RC_INBOX_BYTES);
  end->memory = calloc(1, PAIR_MEMORY);
  end->source = malloc(PAIR_MEMORY);
  mrc_assert(end->boxes != NULL && end->memory != NULL && end->source != NULL);
  for (uint32_t i = 0; i < PAIR_MEMORY; i++)
    end->source[i] = pair_pattern(i, 3);
  const struct mrc_rc_config config = {.owner = &pair_owner,
                                       .user = end,
                                       .inbox = end->boxes,
                                       .outbox = end->boxes + MRC_RC_INBOX_BYTES,
                                       .requests = end->requests,
                                       .size = PAIR_REQUESTS};
  mrc_rc_init(&end->rc, &config);
}

static void pair_connect(struct pair_end *end, uint32_t most_asking) {
  const struct mrc_rc_peer peer = {.inbox = (uintptr_t)end->other->boxes,
                                   .most_asking = most_asking,
                                   .shared = end->other->shared};
  mrc_rc_connect(&end->rc, &peer);
}

static void pair_start(struct pair_end ends[2]) {
  for (int i = 0; i < 2; i++)
    pair_start_end(&ends[i]);
  for (int i = 0; i < 2; i++)
    ends[i].other = &ends[1 - i];
}

static void pair_stop(struct pair_end *end) {
  free(end->boxes);
  free(end->memory);
  free(end->source);
}

/* ---- What a program does ---- */

/* Posts a request. Its bytes follow from its size; a WRITE is of `imm`, which its bytes show. */
static void pair_request(struct pair_end *end, struct mrc_rc_request request) {
  const bool writes = request.kind == MRC_RC_DO_WRITE;
  if (writes) {
    request.va = (uintptr_t)end->other->memory;
    request.local = request.imm; /* what the wire writes */
  } else if (request.rkey == 0) {
    request.rkey = PAIR_KEY;
  }
  if (request.kind == MRC_RC_DO_SEND || (request.kind == MRC_RC_DO_WRITE && request.with_imm)) {
    mrc_assert(end->n_log < PAIR_LOG);
    end->log[end->n_log++] = (struct pair_log){.bytes = request.bytes,
                                               .imm = request.imm,
                                               .with_imm = request.with_imm,
                                               .solicited = request.solicited,
                                               .written = writes};
  }
  end->posted++;
  mrc_rc_post(&end->rc, &request);
}

/* ---- The wire ---- */

/* Delivers the oldest of what an end has posted. False: there is nothing. */
static bool pair_deliver(struct pair_end *end) {
  if (end->n_queue == 0) return false;
  const struct mrc_wr wr = end->queue[0];
  memmove(end->queue, end->queue + 1, --end->n_queue * sizeof wr);
  end->acks[end->n_acks++] = wr.wr_id;
  uint8_t *to = (uint8_t *)(uintptr_t)wr.va;
  if (wr.opcode == MRC_WR_WRITE) {
    for (uint32_t i = 0; i < wr.bytes; i++)
      to[i] = pair_pattern(i, (uint32_t)wr.local);
    return true;
  }
  if (wr.bytes > 0) memcpy(to, (const void *)(uintptr_t)wr.local, wr.bytes);
  CHECK(mrc_rc_take(&end->other->rc, wr.imm, wr.bytes));
  return true;
}

/* Hands over the oldest completion. False: there is none. */
static bool pair_complete(struct pair_end *end) {
  if (end->n_acks == 0) return false;
  const uint64_t id = end->acks[0];
  memmove(end->acks, end->acks + 1, --end->n_acks * sizeof id);
  mrc_rc_sent(&end->rc, id);
  return true;
}

/* Everything that can happen without the programs. */
static void pair_run(struct pair_end ends[2]) {
  bool more = true;
  while (more) {
    more = false;
    for (int i = 0; i < 2; i++) {
      mrc_rc_send(&ends[i].rc);
      while (pair_deliver(&ends[i]) || pair_complete(&ends[i]))
        more = true;
    }
  }
}

static struct pair_end ends[2];

static void start(void) {
  pair_start(ends);
  for (int i = 0; i < 2; i++)
    pair_connect(&ends[i], MRC_RC_ANSWERS);
}

static void stop(void) {
  for (int i = 0; i < 2; i++)
    pair_stop(&ends[i]);
}

static struct mrc_rc_request send_of(uint32_t bytes) {
  return (struct mrc_rc_request){.kind = MRC_RC_DO_SEND, .bytes = bytes};
}

static struct mrc_rc_request read_of(uint64_t va, uint32_t bytes) {
  return (struct mrc_rc_request){.kind = MRC_RC_DO_READ, .va = va, .bytes = bytes};
}

static const struct mrc_rc_request add = {
    .kind = MRC_RC_DO_FETCH_ADD, .bytes = sizeof(uint64_t), .value = 5};

/* ---- Sends ---- */

TEST(test_send__waits_for_a_receive_and_so_do_all_later_requests) {
  start();
  pair_request(&ends[0], send_of(10));
  pair_request(&ends[0], add);
  pair_run(ends);
  bool for_receive;
  CHECK(mrc_rc_waits(&ends[0].rc, &for_receive) && for_receive);
  CHECK_EQ(ends[0].done, 0);
  CHECK_EQ(ends[1].counter, 0);
  pair_grant(&ends[1], 1);
  pair_run(ends);
  mrc_rc_waits(&ends[0].rc, &for_receive);
  CHECK(!for_receive);
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[1].counter, 5);
  stop();
}

TEST(test_send__to_shared_receives_asks_for_as_many_as_it_needs) {
  pair_start(ends);
  ends[1].shared = true;
  for (int i = 0; i < 2; i++)
    pair_connect(&ends[i], 1);
  for (int i = 0; i < 3; i++)
    pair_request(&ends[0], send_of(100));
  pair_run(ends);
  CHECK_EQ(ends[1].wanted, 3);
  ends[1].pool = 2;
  pair_serve(&ends[1]);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[1].granted, 0);
  ends[1].pool = 9;
  pair_serve(&ends[1]);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 3);
  CHECK_EQ(ends[1].pool, 8);
  stop();
}

TEST(test_send__completes_when_the_peer_has_it) {
  start();
  pair_grant(&ends[1], 1);
  mrc_rc_send(&ends[1].rc);
  while (pair_deliver(&ends[1]))
    continue;
  pair_request(&ends[0], send_of(10));
  mrc_rc_send(&ends[0].rc);
  CHECK(pair_deliver(&ends[0]));
  CHECK_EQ(ends[0].n_received, 1);
  CHECK_EQ(ends[0].done, 0);
  CHECK(pair_complete(&ends[0]));
  CHECK_EQ(ends[0].done, 1);
  stop();
}

TEST(test_send__without_registered_memory_fails_when_it_is_the_oldest) {
  start();
  pair_grant(&ends[1], 3);
  pair_request(&ends[0], read_of(0, 100));
  pair_run(ends);
  pair_request(&ends[0], read_of(0, 100));
  mrc_rc_send(&ends[0].rc);
  ends[0].no_memory = true;
  pair_request(&ends[0], send_of(10));
  mrc_rc_send(&ends[0].rc);
  CHECK_EQ(ends[0].failed, 0);
  ends[0].no_memory = false;
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[0].failed, MRC_WC_LOC_PROT_ERR);
  CHECK_EQ(ends[0].n_received, 0);
  stop();
}

TEST(test_send__that_does_not_fit_fails_the_sender_too) {
  start();
  ends[1].no_room = true;
  pair_grant(&ends[1], 2);
  pair_request(&ends[0], send_of(10));
  pair_request(&ends[0], send_of(10));
  pair_run(ends);
  CHECK_EQ(ends[0].failed, MRC_WC_REM_INV_REQ_ERR);
  CHECK_EQ(ends[0].n_received, 0);
  CHECK(ends[1].rc.ended);
  stop();
}

TEST(test_frame__stays_until_the_engine_is_done_with_it) {
  start();
  pair_grant(&ends[1], 100);
  mrc_rc_send(&ends[1].rc);
  for (int i = 0; i < 50; i++) {
    pair_request(&ends[0], send_of(10));
    mrc_rc_send(&ends[0].rc);
    while (pair_deliver(&ends[0]))
      continue;
    mrc_rc_send(&ends[1].rc);
    while (pair_deliver(&ends[1]) || pair_complete(&ends[1]))
      continue;
  }
  CHECK_EQ(ends[0].n_acks, MRC_RC_SLOTS);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 50);
  stop();
}

TEST(test_prod__changes_nothing_at_the_peer) {
  start();
  pair_request(&ends[0], send_of(10));
  pair_run(ends);
  bool for_receive;
  CHECK(mrc_rc_waits(&ends[0].rc, &for_receive));
  mrc_rc_prod(&ends[0].rc);
  mrc_rc_prod(&ends[0].rc); /* one is on its way */
  CHECK_EQ(ends[0].n_queue, 1);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 0);
  pair_grant(&ends[1], 1);
  pair_run(ends);
  CHECK(!mrc_rc_waits(&ends[0].rc, &for_receive));
  CHECK_EQ(ends[0].done, 1);
  stop();
}

/* ---- WRITEs ---- */

/* Its data may be in place while the frame that tells of it is still on its way. */
TEST(test_write_imm__is_done_with_its_frame) {
  start();
  pair_grant(&ends[1], 1);
  pair_run(ends);
  pair_request(&ends[0],
               (struct mrc_rc_request){.kind = MRC_RC_DO_WRITE, .bytes = 8, .with_imm = true});
  mrc_rc_send(&ends[0].rc);
  CHECK(pair_deliver(&ends[0]));
  CHECK(pair_complete(&ends[0]));
  CHECK_EQ(ends[0].done, 0);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 1);
  stop();
}

TEST(test_write__that_the_engine_refuses_fails_after_those_before_it) {
  start();
  pair_request(&ends[0], add);
  mrc_rc_send(&ends[0].rc);
  pair_request(&ends[0], (struct mrc_rc_request){.kind = MRC_RC_DO_WRITE, .bytes = 8});
  mrc_rc_send(&ends[0].rc);
  ends[0].n_queue--;
  mrc_rc_fail(&ends[0].rc, 1, MRC_WC_LOC_PROT_ERR);
  pair_request(&ends[0], add);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 1);
  CHECK_EQ(ends[0].failed, MRC_WC_LOC_PROT_ERR);
  CHECK_EQ(ends[1].counter, 5); /* the later one did not go */
  stop();
}

/* ---- READs and ATOMICs ---- */

TEST(test_read__at_most_so_many_at_a_time) {
  start();
  for (int i = 0; i < 40; i++)
    pair_request(&ends[0], i % 2 == 0 ? read_of(0, 100) : add);
  mrc_rc_send(&ends[0].rc);
  CHECK_EQ(ends[0].rc.asking_tail - ends[0].rc.asking_head, MRC_RC_ANSWERS);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 40);
  CHECK_EQ(ends[1].counter, 20 * 5);
  stop();
}

TEST(test_read__does_not_need_that_its_reader_posts_receives) {
  start();
  pair_request(&ends[1], send_of(10)); /* no receive: it waits for ever */
  pair_request(&ends[0], read_of(0, PAIR_MEMORY));
  pair_request(&ends[0], add);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[1].done, 0);
  stop();
}

TEST(test_read__is_refused_where_the_peer_may_not) {
  const struct {
    struct mrc_rc_request request;
    uint8_t status;
  } rows[] = {
      {read_of(PAIR_MEMORY - 10, 11), MRC_WC_REM_ACCESS_ERR},
      {read_of(UINT64_MAX, 2), MRC_WC_REM_ACCESS_ERR},
      {{.kind = MRC_RC_DO_READ, .bytes = 1, .rkey = 8}, MRC_WC_REM_ACCESS_ERR},
      {{.kind = MRC_RC_DO_FETCH_ADD, .bytes = 8, .rkey = 8}, MRC_WC_REM_ACCESS_ERR},
  };
  EACH_ROW(i, rows) {
    start();
    pair_request(&ends[0], read_of(0, 10));
    pair_request(&ends[0], rows[i].request);
    pair_request(&ends[0], read_of(0, 10));
    pair_run(ends);
    CHECK_EQ(ends[0].done, 1);
    CHECK_EQ(ends[0].failed, rows[i].status);
    CHECK_EQ(ends[1].failed, 0);
    stop();
  }
}

TEST(test_read__of_memory_that_goes_away_meanwhile_is_refused) {
  start();
  for (uint32_t i = 0; i < MRC_RC_ANSWERS; i++) /* more than all slots hold */
    pair_request(&ends[0], read_of(0, PAIR_MEMORY));
  mrc_rc_send(&ends[0].rc);
  while (pair_deliver(&ends[0]))
    continue;
  mrc_rc_send(&ends[1].rc);
  ends[1].no_reading = true;
  pair_run(ends);
  CHECK(ends[0].done > 0 && ends[0].done < MRC_RC_ANSWERS);
  CHECK_EQ(ends[0].failed, MRC_WC_REM_ACCESS_ERR);
  stop();
}

TEST(test_read__into_memory_that_is_not_registered_fails) {
  start();
  pair_request(&ends[0], read_of(0, 100000));
  mrc_rc_send(&ends[0].rc);
  ends[0].no_memory = true;
  pair_run(ends);
  CHECK_EQ(ends[0].failed, MRC_WC_LOC_PROT_ERR);
  stop();
}

TEST(test_fence__waits_for_answers) {
  start();
  struct mrc_rc_request fenced = {.kind = MRC_RC_DO_WRITE, .bytes = 8, .fenced = true};
  pair_request(&ends[0], read_of(0, 10));
  pair_request(&ends[0], fenced);
  mrc_rc_send(&ends[0].rc);
  CHECK_EQ(ends[0].n_queue, 1);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  stop();
}

/* ---- Random programs ---- */

/* Random programs at both ends of emulated RC, and a network that delivers when it likes: whatever
   they do, all requests are done once there are receives for all messages. */
static struct mrc_prng prng;

static uint32_t below(uint32_t n) { return mrc_prng_below(&prng, n); }

static uint32_t some_bytes(uint32_t most) {
  const uint32_t kinds[] = {0, below(64), below(5000), 65535 + below(3), below(most + 1)};
  return kinds[below(5)];
}

static struct mrc_rc_request some_request(void) {
  struct mrc_rc_request request = {.kind = (uint8_t)below(5),
                                   .imm = (uint32_t)mrc_prng_next(&prng),
                                   .fenced = below(8) == 0,
                                   .solicited = below(2)};
  request.with_imm = request.kind <= MRC_RC_DO_SEND && below(2);
  if (request.kind == MRC_RC_DO_COMPARE_SWAP) request.kind = MRC_RC_DO_FETCH_ADD;
  request.value = below(100);
  request.bytes = request.kind == MRC_RC_DO_FETCH_ADD ? 8 : some_bytes(PAIR_MEMORY);
  /* Only one WRITE at a time: the next would change what the wire has yet to show. */
  if (request.kind == MRC_RC_DO_WRITE && !request.with_imm) request.bytes = 0;
  if (request.kind == MRC_RC_DO_READ) request.va = PAIR_MEMORY - request.bytes;
  return request;
}

static bool has_place(const struct pair_end *end) {
  return end->posted - end->done < PAIR_REQUESTS && end->failed == 0;
}

static bool writes(const struct pair_end *end) {
  for (uint32_t place = end->rc.head; place != end->rc.tail; place++)
    if (request_at(&end->rc, place)->kind == MRC_RC_DO_WRITE) return true;
  return false;
}

static struct pair_end *silent; /* posts no request; or NULL */

static void act(struct pair_end *end) {
  switch (below(6)) {
    case 0: {
      const struct mrc_rc_request request = some_request();
      const bool crowded = request.kind == MRC_RC_DO_WRITE && writes(end);
      if (has_place(end) && !crowded && end != silent) pair_request(end, request);
      break;
    }
    case 1:
      if (end->shared)
        end->pool += below(3);
      else
        pair_grant(end, below(3));
      pair_serve(end);
      break;
    case 2:
      mrc_rc_send(&end->rc);
      break;
    case 3:
    case 4:
      for (uint32_t n = 1 + below(4); n > 0; n--)
        pair_deliver(end);
      break;
    default:
      for (uint32_t n = 1 + below(4); n > 0; n--)
        pair_complete(end);
  }
}

static void run_seed(uint64_t seed, uint32_t steps) {
  prng = (struct mrc_prng){.state = seed};
  pair_start(ends);
  silent = below(2) ? &ends[below(2)] : NULL;
  for (int i = 0; i < 2; i++)
    ends[i].shared = below(2);
  for (int i = 0; i < 2; i++)
    pair_connect(&ends[i], 1 + below(MRC_RC_ANSWERS));
  for (uint32_t i = 0; i < steps; i++)
    act(&ends[below(2)]);
  for (int i = 0; i < 2; i++) {
    if (ends[i].shared)
      ends[i].pool += PAIR_LOG;
    else
      pair_grant(&ends[i], PAIR_LOG);
    pair_serve(&ends[i]);
  }
  pair_run(ends);
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(ends[i].failed, 0);
    CHECK_EQ(ends[i].done, ends[i].posted);
    CHECK_EQ(ends[i].n_received, ends[i].n_log);
    CHECK_EQ(ends[i].counter, ends[1 - i].added);
    CHECK_EQ(ends[i].rc.credits, 0);
    pair_stop(&ends[i]);
  }
}

TEST(test_sweep__some_seeds) {
  EACH_OF(uint64_t, seed, 1, 41) {
    run_seed(seed, 2000);
  }
}

SLOW(test_sweep__many_seeds) {
  EACH_OF(uint64_t, seed, 1000, 2000) {
    run_seed(seed, 3000);
  }
}

/* ---- A hostile peer: it may write anything to the inbox, and send any immediate ---- */

static uint32_t hostile_frame(uint8_t *frame, const struct mrc_rc *rc) {
  const struct mrc_rc_header header = {.read = rc->slots.credit + (below(8) == 0 ? below(3) : 0),
                                       .granted = rc->granted + below(3),
                                       .wanted = rc->their_wanted + below(3)};
  uint32_t n = MRC_RC_FRAME_HEADER;
  mrc_rc_put_header(&header, frame);
  for (uint32_t records = below(6); records > 0; records--) {
    struct mrc_rc_record record = {.kind = (uint8_t)(1 + below(MRC_RC_LAST_KIND)),
                                   .flags = (uint8_t)below(256),
                                   .status = (uint8_t)below(256),
                                   .total = below(3) == 0 ? UINT32_MAX : below(3000),
                                   .rkey = PAIR_KEY - (below(8) == 0),
                                   .va = below(4) == 0 ? mrc_prng_next(&prng) : below(300000),
                                   .operation = below(2)};
    if (record.kind == MRC_RC_SEND || record.kind == MRC_RC_MORE || record.kind == MRC_RC_DATA)
      record.bytes = below(3000);
    n += (uint32_t)mrc_rc_encode(&record, frame + n);
    n += (record.bytes + 7) & ~7u;
  }
  if (below(16) == 0) frame[below(n)] = (uint8_t)below(256);
  return below(16) == 0 ? below(MRC_RC_SLOT_BYTES + 100) : n;
}

/* The peer of `end` has done something that ends the connection. False: it has. */
static bool attack(struct pair_end *end) {
  struct mrc_rc *rc = &end->rc;
  const uint32_t what = below(20);
  if (what < 14) {
    uint8_t *frame = rc->inbox + mrc_slots_place(&rc->slots, rc->slots.arrived);
    const uint32_t bytes = hostile_frame(frame, rc);
    return mrc_rc_take(rc, mrc_imm(MRC_RC_IMM_FRAME, rc->slots.arrived), bytes);
  }
  if (what < 15) return mrc_rc_take(rc, (uint32_t)mrc_prng_next(&prng), below(100));
  return mrc_rc_take(rc, mrc_imm(MRC_RC_IMM_GRANTED, rc->granted + below(2)), 0);
}

static void run_hostile(uint64_t seed) {
  struct pair_end *end = &ends[0];
  prng = (struct mrc_prng){.state = seed};
  pair_start_end(end);
  const struct mrc_rc_peer peer = {.inbox = 4096, .most_asking = 4, .shared = below(2)};
  end->no_memory = true; /* of answers, which no honest memory can be compared with */
  mrc_rc_connect(&end->rc, &peer);
  for (int i = 0; i < 300; i++) {
    if (below(4) == 0) pair_grant(end, below(3));
    struct mrc_rc_request request = {.kind = MRC_RC_DO_READ, .bytes = below(5000)};
    if (below(3) == 0 && has_place(end)) {
      end->posted++;
      mrc_rc_post(&end->rc, &request);
    }
    mrc_rc_send(&end->rc);
    end->n_acks += end->n_queue;
    for (uint32_t k = 0; k < end->n_queue; k++)
      end->acks[end->n_acks - end->n_queue + k] = end->queue[k].wr_id;
    end->n_queue = 0;
    while (pair_complete(end))
      continue;
    if (!attack(end)) break;
    CHECK(end->rc.asked_tail - end->rc.asked_head <= MRC_RC_ANSWERS);
  }
  pair_stop(end);
}

static void hostile_seeds(uint64_t first, uint64_t last) {
  EACH_OF(uint64_t, seed, first, last + 1) {
    run_hostile(seed);
  }
}

TEST(test_hostile_peer__harms_nothing) { hostile_seeds(1, 250); }

SLOW(test_hostile_peer__many_seeds) { hostile_seeds(251, 2000); }
