/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs at both ends of emulated RC, and a network that delivers when it likes: whatever
   they do, all requests are done once there are receives for all messages. */
#include "core/base.h"
#include "rc/rc.h"
#include "rc_pair.h"

static struct pair_end ends[2];
static struct mrc_prng prng;

static uint32_t below(uint32_t n) { return mrc_prng_below(&prng, n); }

static uint32_t some_bytes(uint32_t most) {
  const uint32_t kinds[] = {0, below(64), below(5000), below(most + 1)};
  return kinds[below(4)];
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
    if (mrc_rc_request_at(&end->rc, place)->kind == MRC_RC_DO_WRITE) return true;
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
  for (uint64_t seed = 1; seed <= 40; seed++) {
    CHECK_ROW(seed);
    run_seed(seed, 2000);
  }
}

SLOW(test_sweep__many_seeds) {
  for (uint64_t seed = 1000; seed < 2000; seed++) {
    CHECK_ROW(seed);
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
    return mrc_rc_take(rc, mrc_rc_imm(MRC_RC_IMM_FRAME, rc->slots.arrived), bytes);
  }
  if (what < 15) return mrc_rc_take(rc, (uint32_t)mrc_prng_next(&prng), below(100));
  return mrc_rc_take(rc, mrc_rc_imm(MRC_RC_IMM_GRANTED, rc->granted + below(2)), 0);
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
  for (uint64_t seed = first; seed <= last; seed++) {
    CHECK_ROW(seed);
    run_hostile(seed);
  }
}

TEST(test_hostile_peer__harms_nothing) { hostile_seeds(1, 250); }

SLOW(test_hostile_peer__many_seeds) { hostile_seeds(251, 2000); }
