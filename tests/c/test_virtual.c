/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/audit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "core/base.h"
#include "core/wire.h"
#include "virtual/link.h"
#include "virtual/sealer.h"

/* ---- the auditor ---- */

/* The auditor of the simulator detects violations: each row breaks one invariant in a process of
   its own, and the auditor must stop that process. */

enum { MTU = 256, MEMORY = 1024, MPR = 128 };

/* A requester and its responder, two messages of two packets posted. */
struct ends {
  struct mrc_audit requester;
  struct mrc_audit responder;
};

static void post(struct mrc_audit *requester, struct mrc_wr wr) {
  mrc_audit_posted(requester, &wr);
}

static struct ends *make_ends(void) {
  struct ends *ends = calloc(1, sizeof *ends);
  mrc_audit_init(&ends->requester, MEMORY, 1);
  mrc_audit_init(&ends->responder, MEMORY, 2);
  ends->requester.path_mtu = MTU;
  ends->requester.mpr = MPR;
  ends->requester.max_wimm = 1;
  post(&ends->requester, (struct mrc_wr){.bytes = 2 * MTU});
  post(&ends->requester, (struct mrc_wr){.bytes = 2 * MTU, .imm = 77, .opcode = MRC_WR_WRITE_IMM});
  return ends;
}

static struct mrc_wire data(struct ends *ends, uint32_t psn) {
  return (struct mrc_wire){.opcode = MRC_OP_WRITE_MIDDLE,
                           .psn = psn,
                           .va = (uintptr_t)ends->requester.target + (uint64_t)psn * MTU,
                           .payload = ends->requester.source + (uint64_t)psn * MTU,
                           .payload_bytes = MTU};
}

static void send_data(struct ends *ends, uint32_t psn, bool rtx) {
  struct mrc_wire wire = data(ends, psn);
  wire.rtx = rtx;
  mrc_audit_sent(&ends->requester, &ends->responder, &wire, 1, 1, ~0u);
}

static void place(struct ends *ends, uint32_t psn) {
  const struct mrc_wire wire = data(ends, psn);
  memcpy(ends->requester.target + (uint64_t)psn * MTU, wire.payload, MTU);
  mrc_audit_received(&ends->responder, &ends->requester, &wire);
}

static struct mrc_wire sack(uint32_t cum_psn, uint64_t bitmap) {
  return (struct mrc_wire){
      .opcode = MRC_OP_SACK,
      .psn = cum_psn & 0xFFFFFF,
      .sack = {.cum_psn = cum_psn & 0xFFFFFF, .sack_offset = 1, .bitmap = bitmap}};
}

static void complete(struct ends *ends, uint64_t wr_id, uint8_t status) {
  mrc_audit_completed(&ends->requester,
                      &(struct mrc_wc){.wr_id = wr_id,
                                       .bytes = 2 * MTU,
                                       .status = status,
                                       .opcode = wr_id ? MRC_WC_WRITE_IMM : MRC_WC_WRITE});
}

static void deliver(struct ends *ends, uint64_t wr_id, uint32_t imm) {
  mrc_audit_completed(
      &ends->requester,
      &(struct mrc_wc){.wr_id = wr_id, .imm = imm, .bytes = 2 * MTU, .opcode = MRC_WC_RECV_IMM});
}

static void place_all(struct ends *ends) {
  for (uint32_t psn = 0; psn < 4; psn++) {
    send_data(ends, psn, false);
    place(ends, psn);
  }
}

/* ---- valid runs ---- */

static void all_is_well(struct ends *ends) {
  place_all(ends);
  const struct mrc_wire wire = sack(3, 0);
  mrc_audit_sent(&ends->responder, &ends->requester, &wire, 1, 1, ~0u);
  mrc_audit_received(&ends->requester, &ends->responder, &wire);
  deliver(ends, 0, 77);
  complete(ends, 0, MRC_WC_SUCCESS);
  complete(ends, 1, MRC_WC_SUCCESS);
  mrc_audit_memory(&ends->requester);
}

static void all_out_of_order(struct ends *ends) {
  for (uint32_t psn = 0; psn < 4; psn++)
    send_data(ends, psn, false);
  place(ends, 3);
  place(ends, 1);
  struct mrc_wire wire = sack(0xFFFFFF, 1 << 3 | 1 << 1);
  wire.sack.sack_offset = 1;
  mrc_audit_sent(&ends->responder, &ends->requester, &wire, 1, 1, ~0u);
  mrc_audit_received(&ends->requester, &ends->responder, &wire);
  place(ends, 0);
  place(ends, 2);
  complete(ends, 0, MRC_WC_SUCCESS);
}

static void an_error_flushes(struct ends *ends) {
  complete(ends, 0, MRC_WC_RETRY_EXC_ERR);
  complete(ends, 1, MRC_WC_WR_FLUSH_ERR);
}

/* ---- violations ---- */

static void placed_twice(struct ends *ends) {
  place_all(ends);
  memcpy(ends->requester.target, ends->requester.source, MTU); /* again, unseen */
  complete(ends, 0, MRC_WC_SUCCESS);
}
static void taken_twice(struct ends *ends) {
  place_all(ends);
  place(ends, 1);
}
static void placed_not_at_all(struct ends *ends) {
  const struct mrc_wire wire = data(ends, 0);
  mrc_audit_received(&ends->responder, &ends->requester, &wire);
}
static void placed_in_part(struct ends *ends) {
  const struct mrc_wire wire = data(ends, 0);
  memcpy(ends->requester.target, wire.payload, MTU - 1);
  mrc_audit_received(&ends->responder, &ends->requester, &wire);
  place(ends, 1);
  complete(ends, 0, MRC_WC_SUCCESS);
}
static void placed_astray(struct ends *ends) {
  place_all(ends);
  ends->requester.target[700] = 0x11;
  mrc_audit_memory(&ends->requester);
}
static void guard_touched(struct ends *ends) {
  ends->requester.target[MEMORY] = 0xEF;
  mrc_audit_memory(&ends->requester);
}
static void completed_too_early(struct ends *ends) {
  place(ends, 0);
  complete(ends, 0, MRC_WC_SUCCESS);
}
static void completed_out_of_order(struct ends *ends) {
  place_all(ends);
  complete(ends, 1, MRC_WC_SUCCESS);
}
static void success_after_an_error(struct ends *ends) {
  place_all(ends);
  complete(ends, 0, MRC_WC_WR_FLUSH_ERR);
  complete(ends, 1, MRC_WC_SUCCESS);
}
static void immediate_before_its_bytes(struct ends *ends) {
  for (uint32_t psn = 1; psn < 4; psn++)
    place(ends, psn);
  deliver(ends, 0, 77);
}
static void wrong_immediate(struct ends *ends) {
  place_all(ends);
  deliver(ends, 0, 78);
}
static void immediate_twice(struct ends *ends) {
  place_all(ends);
  deliver(ends, 0, 77);
  deliver(ends, 1, 77);
}
static void sack_of_what_never_came(struct ends *ends) {
  place(ends, 0);
  const struct mrc_wire wire = sack(1, 0);
  mrc_audit_sent(&ends->responder, &ends->requester, &wire, 1, 1, ~0u);
}
static void bitmap_of_what_never_came(struct ends *ends) {
  place(ends, 0);
  const struct mrc_wire wire = sack(0, 1 << 1);
  mrc_audit_sent(&ends->responder, &ends->requester, &wire, 1, 1, ~0u);
}
static void cumulative_psn_goes_back(struct ends *ends) {
  place(ends, 0);
  place(ends, 1);
  const struct mrc_wire first = sack(1, 0), second = sack(0, 0);
  mrc_audit_sent(&ends->responder, &ends->requester, &first, 1, 1, ~0u);
  mrc_audit_sent(&ends->responder, &ends->requester, &second, 1, 1, ~0u);
}
static void sack_of_unsent_is_taken(struct ends *ends) {
  send_data(ends, 0, false);
  const struct mrc_wire wire = sack(1, 0);
  mrc_audit_received(&ends->requester, &ends->responder, &wire);
}
static void ack_of_half_a_message(struct ends *ends) {
  place(ends, 0);
  const struct mrc_wire wire = {.opcode = MRC_OP_ACK, .aeth.msn = 1};
  mrc_audit_sent(&ends->responder, &ends->requester, &wire, 1, 1, ~0u);
}
static void retransmission_without_its_bit(struct ends *ends) {
  send_data(ends, 0, false);
  send_data(ends, 0, false);
}
static void bit_on_a_first_transmission(struct ends *ends) { send_data(ends, 0, true); }
static void sent_beyond_the_window(struct ends *ends) { send_data(ends, MPR, false); }
static void sent_after_completion(struct ends *ends) {
  place_all(ends);
  complete(ends, 0, MRC_WC_SUCCESS);
  send_data(ends, 1, true);
}
static void too_many_immediates(struct ends *ends) {
  post(&ends->requester, (struct mrc_wr){.imm = 1, .opcode = MRC_WR_WRITE_IMM});
  for (uint32_t psn = 0; psn < 5; psn++)
    send_data(ends, psn, false);
}

TEST(test_audit__stops_at_what_is_wrong) {
  static const struct {
    void (*script)(struct ends *ends);
    bool right;
  } rows[] = {
      {all_is_well, true},
      {all_out_of_order, true},
      {an_error_flushes, true},
      {placed_twice, false},
      {taken_twice, false},
      {placed_not_at_all, false},
      {placed_in_part, false},
      {placed_astray, false},
      {guard_touched, false},
      {completed_too_early, false},
      {completed_out_of_order, false},
      {success_after_an_error, false},
      {immediate_before_its_bytes, false},
      {wrong_immediate, false},
      {immediate_twice, false},
      {sack_of_what_never_came, false},
      {bitmap_of_what_never_came, false},
      {cumulative_psn_goes_back, false},
      {sack_of_unsent_is_taken, false},
      {ack_of_half_a_message, false},
      {retransmission_without_its_bit, false},
      {bit_on_a_first_transmission, false},
      {sent_beyond_the_window, false},
      {sent_after_completion, false},
      {too_many_immediates, false},
  };
  EACH_ROW(i, rows) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      freopen("/dev/null", "w", stderr);
      rows[i].script(make_ends());
      _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, !rows[i].right);
    if (rows[i].right) CHECK_EQ(status, 0);
  }
}

/* ---- links ---- */

static struct mrc_link make_link(struct mrc_link_config config) {
  return (struct mrc_link){.config = config, .prng.state = 7};
}

TEST(test_pass__a_perfect_link_only_delays) {
  struct mrc_link link = make_link((struct mrc_link_config){.delay_ns = 50});
  for (uint64_t now_ns = 1000; now_ns < 1003; now_ns++) {
    const struct mrc_link_fate fate = mrc_link_pass(&link, 1500, now_ns);
    CHECK_EQ(fate.copies, 1);
    CHECK_EQ(fate.at_ns[0], now_ns + 50);
    CHECK(!fate.ce && !fate.corrupt && !fate.trimmed);
  }
  CHECK_EQ(mrc_link_backlog(&link, 1003), 0);
}

/* 8 Gbit/s: a byte a nanosecond. A packet of 1000 bytes comes every 600 ns; the queue holds 2000
   bytes and marks above 1000. Inputs left, fate right. */
TEST(test_pass__rate_queue_and_mark) {
  static const struct {
    uint64_t now_ns, backlog_before;
    int copies;
    uint64_t at_ns;
    bool ce;
  } rows[] = {
      {0, 0, 1, 1100, false},       {600, 400, 1, 2100, false},
      {1200, 800, 1, 3100, false},  {1800, 1200, 0, 0, false}, /* 1200 + 1000 do not fit */
      {2000, 1000, 1, 4100, false}, {2001, 1999, 0, 0, false},
      {2600, 1400, 0, 0, false},    {3000, 1000, 1, 5100, false},
      {4500, 500, 1, 6100, false},  {7000, 0, 1, 8100, false}, /* the link was idle */
  };
  struct mrc_link link = make_link((struct mrc_link_config){
      .rate_bps = 8000000000, .queue_bytes = 2000, .ecn_bytes = 1000, .delay_ns = 100});
  EACH_ROW(i, rows) {
    CHECK_EQ(mrc_link_backlog(&link, rows[i].now_ns), rows[i].backlog_before);
    const struct mrc_link_fate fate = mrc_link_pass(&link, 1000, rows[i].now_ns);
    CHECK_EQ(fate.copies, rows[i].copies);
    if (fate.copies) CHECK_EQ(fate.at_ns[0], rows[i].at_ns);
    CHECK_EQ(fate.ce, rows[i].ce);
  }
  CHECK_EQ(link.overflowed, 3);
  link.config.queue_bytes = 0;
  CHECK(!mrc_link_pass(&link, 1000, 7001).ce); /* 999 bytes wait */
  CHECK(mrc_link_pass(&link, 1000, 7001).ce);
  CHECK_EQ(link.marked, 1);
}

/* With trimming, a full queue loses no packet: trimmed packets go ahead of the waiting ones. */
TEST(test_pass__trims_instead_of_dropping) {
  struct mrc_link link = make_link((struct mrc_link_config){
      .rate_bps = 8000000000, .queue_bytes = 1500, .trim = true, .delay_ns = 100});
  CHECK(!mrc_link_pass(&link, 1000, 0).trimmed);
  const struct mrc_link_fate fate = mrc_link_pass(&link, 1000, 0);
  CHECK(fate.trimmed);
  CHECK_EQ(fate.copies, 1);
  CHECK_EQ(fate.at_ns[0], 100);
  CHECK_EQ(mrc_link_backlog(&link, 0), 1000);
}

/* Which of ten packets of 100 bytes arrive, the first one leftmost. */
TEST(test_pass__exact_losses) {
  static const struct {
    struct mrc_link_config config;
    const char *arrives;
  } rows[] = {
      {{.loss_mask = 0}, "1111111111"},
      {{.loss_mask = 1ull << 2 | 3ull << 5}, "1101100111"},
      {{.lose_n = 2, .lose_of = 5}, "0011100111"},
      {{.lose_n = 5, .lose_of = 5}, "0000000000"},
      {{.silent = true}, "0000000000"},
      {{.mtu_bytes = 100}, "1111111111"},
      {{.mtu_bytes = 99}, "0000000000"},
      {{.loss_ppm = 1000000}, "0000000000"},
  };
  EACH_ROW(i, rows) {
    struct mrc_link link = make_link(rows[i].config);
    char arrives[11] = {0};
    for (int k = 0; k < 10; k++)
      arrives[k] = mrc_link_pass(&link, 100, 0).copies ? '1' : '0';
    CHECK_STR_EQ(arrives, rows[i].arrives);
  }
}

TEST(test_pass__the_mask_repeats_after_64) {
  struct mrc_link link = make_link((struct mrc_link_config){.loss_mask = 1ull << 63});
  for (int k = 1; k <= 256; k++)
    CHECK_EQ(mrc_link_pass(&link, 1, 0).copies, k % 64 != 0);
  CHECK_EQ(link.lost, 4);
}

TEST(test_pass__chance_is_about_what_it_says) {
  struct mrc_link link = make_link((struct mrc_link_config){.loss_ppm = 100000,
                                                            .duplicate_ppm = 200000,
                                                            .corrupt_ppm = 300000,
                                                            .reorder_ppm = 400000,
                                                            .reorder_ns = 1000});
  int lost = 0, doubled = 0, corrupt = 0, late = 0;
  for (int k = 0; k < 10000; k++) {
    const struct mrc_link_fate fate = mrc_link_pass(&link, 1, 0);
    lost += fate.copies == 0;
    doubled += fate.copies == 2;
    corrupt += fate.corrupt;
    late += fate.copies && fate.at_ns[0] > 0;
    CHECK(fate.at_ns[0] <= 1000);
    if (fate.copies == 2) CHECK_EQ(fate.at_ns[1], 1000);
  }
  CHECK(lost > 900 && lost < 1100);
  CHECK(doubled > 1650 && doubled < 1950);
  CHECK(corrupt > 2500 && corrupt < 2900);
  CHECK(late > 3400 && late < 3800);
}

/* ---- the heap of events ---- */

TEST(test_pop__never_goes_back) {
  struct mrc_heap heap = {0};
  struct mrc_prng prng = {.state = 6};
  struct mrc_heap_entry last = {0}, entry;
  for (int i = 0; i < 20000; i++) {
    /* Never earlier than the last time taken, as in a simulation. */
    const uint64_t at_ns = last.at_ns + mrc_prng_below(&prng, 40);
    mrc_heap_push(&heap, (struct mrc_heap_entry){.at_ns = at_ns});
    if (mrc_prng_below(&prng, 2) == 0) continue;
    CHECK(mrc_heap_pop(&heap, &entry));
    CHECK(entry.at_ns > last.at_ns ||
          (entry.at_ns == last.at_ns && entry.sequence >= last.sequence));
    last = entry;
  }
  while (mrc_heap_pop(&heap, &entry)) {
    CHECK(entry.at_ns >= last.at_ns);
    last = entry;
  }
  CHECK_EQ(heap.n, 0);
  mrc_heap_free(&heap);
}

/* ---- the simulated cipher ---- */

/* The simulated cipher stops a program in which a key seals two packets with one nonce. */

static const struct mrc_aead *const sealers[] = {&mrc_sealer, &mrc_sealer_of_headers};
static const uint8_t text[8] = "payload";
static const struct mrc_part part = {text, sizeof text};
static uint8_t tag[MRC_TAG_BYTES];

typedef void use_fn(const struct mrc_aead *aead, void *key, uint8_t counter);

static void seal(const struct mrc_aead *aead, void *key, uint8_t counter) {
  const uint8_t nonce[MRC_NONCE_BYTES] = {[MRC_NONCE_BYTES - 1] = counter};
  uint8_t out[sizeof text];
  aead->seal(key, nonce, part, part, out, tag);
}

static void mac(const struct mrc_aead *aead, void *key, uint8_t counter) {
  const uint8_t nonce[MRC_NONCE_BYTES] = {[MRC_NONCE_BYTES - 1] = counter};
  const struct mrc_part parts[3] = {part};
  aead->mac(key, nonce, parts, tag);
}

static void check(const struct mrc_aead *aead, void *key, uint8_t counter) {
  const uint8_t nonce[MRC_NONCE_BYTES] = {[MRC_NONCE_BYTES - 1] = counter};
  CHECK(!aead->check(key, nonce, part, tag) || counter == 1);
}

static void run(const struct mrc_aead *aead, use_fn *first, use_fn *second, uint8_t counter) {
  static const uint8_t secret[MRC_SECRET_BYTES] = {9};
  void *key = aead->reserve(aead->key_bytes);
  aead->set(key, secret);
  first(aead, key, 1);
  second(aead, key, counter);
  aead->release(key, aead->key_bytes);
}

TEST(test_nonce__is_used_once) {
  static const struct {
    use_fn *first, *second;
    uint8_t counter; /* of the second */
    bool right;
  } rows[] = {
      {seal, seal, 2, true}, {mac, mac, 2, true},     {mac, check, 1, true},
      {check, mac, 1, true}, {check, check, 1, true}, {seal, seal, 1, false},
      {mac, mac, 1, false},  {seal, mac, 1, false},   {mac, seal, 1, false},
  };
  EACH_OF(size_t, i, 0, 2 * sizeof rows / sizeof rows[0]) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      freopen("/dev/null", "w", stderr);
      run(sealers[i % 2], rows[i / 2].first, rows[i / 2].second, rows[i / 2].counter);
      _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, !rows[i / 2].right);
    if (rows[i / 2].right) CHECK_EQ(status, 0);
  }
}
