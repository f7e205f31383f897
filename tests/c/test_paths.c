/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paths.h"

#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "core/qp.h"

/* ---- EVs ---- */

enum { PLANES = 2, PER_PLANE = 4, N = PLANES * PER_PLANE };

/* A set that ends with the block that declares it. */
#define EVSET FREED_BY(mrc_evset_free) struct mrc_evset

static struct mrc_prng prng;
static uint16_t back; /* the EV that came back at the floor */

/* EV i lies in plane i / PER_PLANE; `active` of each plane rotate. */
static struct mrc_evset make_set(uint32_t active) {
  struct mrc_ev_attr attrs[N];
  struct mrc_evset set;
  prng = (struct mrc_prng){.state = 4};
  for (uint32_t i = 0; i < N; i++)
    attrs[i] =
        (struct mrc_ev_attr){.ev = 100 + i, .port = (uint8_t)(1 + i / PER_PLANE), .family = 6};
  CHECK_EQ(mrc_evset_init(&set, attrs, N, PLANES, MRC_NOISE_NS), 0);
  mrc_evset_start(&set, active, &prng);
  return set;
}

/* The number of turns of each EV of the plane among `turns`. */
static void count_turns(struct mrc_evset *set, uint32_t plane, int turns, int counts[N]) {
  memset(counts, 0, N * sizeof(int));
  for (int i = 0; i < turns; i++) {
    const uint16_t ev = mrc_evset_next(set, plane);
    CHECK(ev < N);
    if (ev < N) counts[ev]++;
  }
}

/* Each path has its turn at equal distances; each QP has its own order. */
TEST(test_next__keeps_its_order) {
  EVSET set = make_set(0);
  uint16_t first[PER_PLANE];
  bool differs = false;
  for (int i = 0; i < PER_PLANE; i++)
    first[i] = mrc_evset_next(&set, 0);
  for (int i = 0; i < 8 * PER_PLANE; i++)
    CHECK_EQ(mrc_evset_next(&set, 0), first[i % PER_PLANE]);
  for (int i = 0; i < PER_PLANE; i++)
    differs |= mrc_evset_next(&set, 1) != PER_PLANE + first[i];
  CHECK(differs);
}

TEST(test_init__refuses) {
  static const struct {
    struct mrc_ev_attr evs[2];
    int n;
    uint32_t ports;
    int error;
  } rows[] = {
      {{{.ev = 1, .port = 1, .family = 6}}, 0, 2, -EINVAL}, /* no EVs */
      {{{.ev = 1, .port = 1, .family = 6}}, MRC_MAX_EVS + 1, 2, -EINVAL},
      {{{.ev = 1, .port = 0, .family = 6}}, 1, 2, -EINVAL},
      {{{.ev = 1, .port = 3, .family = 6}}, 1, 2, -EINVAL}, /* no such port */
      {{{.ev = 1, .port = 1, .family = 5}}, 1, 2, -EINVAL},
      {{{.ev = 1, .port = 1, .family = 6}, {.ev = 1, .port = 2, .family = 6}}, 2, 2, -EINVAL},
      {{{.ev = 1, .port = 1, .family = 6}, {.ev = 2, .port = 2, .family = 4}}, 2, 2, 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct mrc_evset set;
    CHECK_ROW(i);
    CHECK_EQ(mrc_evset_init(&set, rows[i].evs, rows[i].n, rows[i].ports, MRC_NOISE_NS),
             rows[i].error);
    if (rows[i].error == 0) mrc_evset_free(&set);
  }
}

/* In place of the C library's: fails the call after `until_failure` others; -1: never. It ends in a
   jump, so that the leak sanitizer sees its caller: that of the dynamic linker is no leak. */
#ifdef __SANITIZE_ADDRESS__
#define LIBRARY_CALLOC __interceptor_calloc
#else
#define LIBRARY_CALLOC __libc_calloc
#endif
extern void *LIBRARY_CALLOC(size_t n, size_t bytes);
static int until_failure = -1;
__attribute__((optimize("O2"))) void *calloc(size_t n, size_t bytes) {
  if (until_failure < 0 || until_failure-- > 0) return LIBRARY_CALLOC(n, bytes);
  return NULL;
}

/* EVs join a set in use: those that are there keep their states, indices and places. Without memory
   the set stays as it was. */
TEST(test_add__keeps_what_is_there) {
  EVSET set = make_set(2);
  const struct mrc_ev_attr more[] = {{.ev = 7, .port = 2, .family = 4},
                                     {.ev = 8, .port = 1, .family = 6}};
  mrc_evset_on_loss(&set, 1, &back, 5);
  mrc_evset_on_bar(&set, 2, MRC_EV_DENIED);
  mrc_evset_on_skip(&set, mrc_evset_next(&set, 0), 1, 6);
  const struct mrc_evset before = set;
  EACH_OF(int, calls, 0, 5) {
    until_failure = calls;
    const int error = mrc_evset_add(&set, more, 2, 2);
    until_failure = -1;
    CHECK_EQ(error, -ENOMEM);
    CHECK_MEM_EQ(&set, &before, sizeof set);
  }
  struct mrc_ev evs[N];
  uint16_t orders[N];
  memcpy(evs, set.evs, sizeof evs);
  memcpy(orders, set.orders, sizeof orders);
  CHECK_EQ(mrc_evset_add(&set, more, 2, 2), 0);
  CHECK_EQ(set.n, N + 2);
  CHECK_MEM_EQ(set.evs, evs, sizeof evs);
  EACH_OF(uint16_t, plane, 0, PLANES) {
    CHECK_MEM_EQ(set.planes[plane].order, &orders[plane * PER_PLANE], PER_PLANE * sizeof *orders);
    CHECK_EQ(set.planes[plane].order[PER_PLANE], N + 1 - plane); /* behind the others */
    CHECK_EQ(set.planes[plane].n_active, 2);
    CHECK_EQ(set.planes[plane].n_unproven, 1);
  }
  CHECK_EQ(*mrc_evset_find(&set, 7), N);
  CHECK_EQ(*mrc_evset_find(&set, 100), 0);
  CHECK_EQ(set.unproven, 0);
  /* The new one is a backup once it is trusted, and never takes the place of another before. */
  mrc_evset_on_loss(&set, PER_PLANE, &back, 7);
  CHECK(mrc_evset_on_trust(&set, N));
  CHECK(set.evs[N].place >= set.planes[1].n_active);
}

/* EVs share the common parts of their addresses and keep the parts that differ. */
TEST(test_addresses__are_those_given) {
  enum { EVS = 6 };
  struct mrc_ev_attr attrs[EVS];
  struct mrc_evset set;
  for (uint32_t i = 0; i < EVS; i++) {
    attrs[i] = (struct mrc_ev_attr){.ev = 0x10000 * i, .port = 1, .family = 6, .dport = 4791};
    memset(attrs[i].src, 1, 16);
    memset(attrs[i].dst, 2, 16);
    attrs[i].dst[15] = (uint8_t)i; /* one per path */
  }
  attrs[3].src[0] = attrs[4].dst[11] = 9;
  attrs[5].dport = 4792;
  CHECK_EQ(mrc_evset_init(&set, attrs, EVS, 1, MRC_NOISE_NS), 0);
  CHECK_EQ(set.n_ends, 4);
  for (uint16_t i = 0; i < EVS; i++) {
    uint8_t src[16], dst[16];
    CHECK_ROW(i);
    mrc_evset_addresses(&set, i, src, dst);
    CHECK_MEM_EQ(src, attrs[i].src, 16);
    CHECK_MEM_EQ(dst, attrs[i].dst, 16);
    CHECK_EQ(set.ends[set.evs[i].ends].dport, attrs[i].dport);
    CHECK_EQ(*mrc_evset_find(&set, attrs[i].ev), i);
    CHECK_EQ(*mrc_evset_find(&set, attrs[i].ev + 1), MRC_EV_NONE);
  }
  mrc_evset_free(&set);
}

/* Counts marks in answers to packets whose send time is unknown. */
static void mark(struct mrc_evset *set, uint16_t ev, int times) {
  for (int i = 0; i < times; i++)
    mrc_evset_on_skip(set, ev, 0, 10);
}

/* An EV with a late packet pauses until the packet arrives; then it takes fewer turns. */
TEST(test_on_late__waits_and_then_takes_fewer_turns) {
  EVSET set = make_set(0);
  int counts[N];
  for (uint16_t ev = 0; ev < PER_PLANE; ev++)
    mrc_evset_on_delivered(&set, ev, 5, 5);
  CHECK(mrc_evset_can_avoid(&set, 1, 10, 1));
  CHECK(mrc_evset_on_late(&set, 1, 20));
  CHECK_EQ(set.evs[1].skip_level, 1);
  CHECK(!mrc_evset_can_avoid(&set, 1, 20, 1)); /* the packet left before the level changed */
  CHECK(mrc_evset_can_avoid(&set, 1, 21, 1));
  count_turns(&set, 0, 8 * PER_PLANE, counts);
  CHECK_EQ(counts[1], 0);
  mrc_evset_on_delivered(&set, 1, 10, 15);
  count_turns(&set, 0, 8 * (2 * PER_PLANE - 1), counts);
  CHECK_EQ(counts[1], 8);
  CHECK(counts[0] >= 15); /* it may have had its first turn before */
  mrc_evset_on_clear(&set, 1, 21, 0, 30);
  CHECK_EQ(set.evs[1].skip_level, 0);
}

/* When half of the paths are avoided, no further path is avoided. */
TEST(test_on_late__half_of_a_plane_at_most) {
  EVSET set = make_set(0);
  for (uint16_t ev = 0; ev < PER_PLANE / 2; ev++) {
    CHECK(mrc_evset_can_avoid(&set, ev, 10, 1));
    mrc_evset_on_late(&set, ev, 20);
  }
  CHECK(!mrc_evset_can_avoid(&set, PER_PLANE / 2, 10, 1));
  CHECK(mrc_evset_can_avoid(&set, 0, 30, 1));
}

/* All paths are equally full: avoiding one would overfill the others. A silent path is avoided when
   its packet is late by 7/8 of the others' round trip. */
TEST(test_on_late__not_while_others_take_as_long) {
  EVSET set = make_set(0);
  set.evs[0].rtt_ns = 80;
  CHECK(!mrc_evset_can_avoid(&set, 1, 10, 70));
  CHECK(mrc_evset_can_avoid(&set, 1, 10, 71));
  mrc_evset_on_late(&set, 0, 5); /* EV 0 is avoided, so its round trip no longer counts */
  CHECK(mrc_evset_can_avoid(&set, 1, 10, 70));
  set.evs[2].rtt_ns = 60;
  mrc_evset_on_late(&set, 1, 15);
  CHECK(mrc_evset_can_avoid(&set, 1, 20, 1)); /* it was slower than the others, and is still late */
  mrc_evset_free(&set);
}

#define RTT_NS 1000
static const uint64_t usual_ns = RTT_NS + MRC_NOISE_NS / 2;

static struct mrc_evset make_set_by_delay(void) {
  struct mrc_evset set = make_set(0);
  set.by_delay = true;
  for (uint16_t ev = 0; ev < PER_PLANE; ev++)
    set.evs[ev].rtt_ns = RTT_NS;
  return set;
}

/* Where no switch marks, an EV takes turns in inverse proportion to its round trip: one step for
   each packet that left after the last one. */
TEST(test_on_clear__turns_follow_the_round_trip) {
  EVSET set = make_set_by_delay();
  static const struct {
    uint64_t rtt_times, sent_ns;
    int level;
  } rows[] = {{1, 10, 0}, {8, 20, 1}, {8, 20, 1}, {8, 31, 2}, {8, 51, 3},
              {8, 61, 3}, {5, 71, 2}, {1, 81, 1}, {1, 81, 1}, {1, 91, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    mrc_evset_on_clear(&set, 1, rows[i].sent_ns, rows[i].rtt_times * usual_ns, 10 * i + 20);
    CHECK_EQ(set.evs[1].skip_level, rows[i].level);
    CHECK_EQ(mrc_evset_is_slow(&set, 1, 4 * usual_ns), rows[i].level >= 2);
    CHECK(!mrc_evset_is_slow(&set, 1, 4 * usual_ns - 4));
    mrc_evset_on_clear(&set, 1, 1000, 0, 1000); /* without a round trip nothing changes */
    CHECK_EQ(set.evs[1].skip_level, rows[i].level);
  }
}

/* A late packet is a round trip that has not ended yet. Half of a plane are avoided at most. */
TEST(test_on_clear__and_late_packets_agree) {
  EVSET set = make_set_by_delay();
  CHECK(!mrc_evset_can_avoid(&set, 1, 10, usual_ns - 2));
  CHECK(mrc_evset_can_avoid(&set, 1, 10, usual_ns));
  mrc_evset_on_late(&set, 1, 10);
  CHECK(!mrc_evset_can_avoid(&set, 1, 20, 3 * usual_ns - 4));
  CHECK(mrc_evset_can_avoid(&set, 1, 20, 3 * usual_ns));
  mrc_evset_on_clear(&set, 0, 30, 2 * usual_ns, 30);
  mrc_evset_on_clear(&set, 2, 30, 2 * usual_ns, 30);
  CHECK_EQ(set.evs[0].skip_level, 1);
  CHECK_EQ(set.evs[2].skip_level, 0);
  CHECK(!mrc_evset_can_avoid(&set, 2, 40, usual_ns));
}

TEST(test_on_skip__sits_out_one_turn) {
  EVSET set = make_set(0);
  int counts[N];
  CHECK(mrc_evset_on_skip(&set, 1, 0, 10));
  CHECK_EQ(set.evs[1].state, MRC_EV_SKIP);
  CHECK(!mrc_evset_on_skip(&set, 1, 0, 10)); /* a second mark in the same rotation adds no pause */
  count_turns(&set, 0, PER_PLANE - 1, counts);
  CHECK_EQ(counts[1], 0);
  count_turns(&set, 0, PER_PLANE, counts);
  CHECK_EQ(counts[1], 1);
  CHECK_EQ(set.evs[1].state, MRC_EV_GOOD);
}

/* The pause doubles with each mark of a packet that left after the last change took effect, and
   halves with each such packet without a mark. */
TEST(test_on_skip__lasts_longer_when_marks_repeat) {
  static const struct {
    bool mark;
    uint64_t sent_ns, now_ns;
    uint8_t level;
  } rows[] = {
      {true, 5, 10, 1},     {true, 10, 15, 1}, /* left before the first mark came back */
      {true, 11, 20, 2},    {false, 20, 25, 2},   {true, 0, 30, 2}, /* unknown send time */
      {true, 21, 30, 3},    {true, 31, 40, 4},    {true, 41, 50, 5},
      {true, 51, 60, 6},    {true, 61, 70, 6}, /* the longest pause */
      {false, 61, 80, 5},   {false, 81, 90, 4},   {false, 91, 100, 3},
      {false, 101, 110, 2}, {false, 111, 120, 1},
  };
  EVSET set = make_set(0);
  int counts[N];
  mark(&set, 1, 40);
  EACH_ROW(i, rows) {
    if (rows[i].mark)
      mrc_evset_on_skip(&set, 1, rows[i].sent_ns, rows[i].now_ns);
    else
      mrc_evset_on_clear(&set, 1, rows[i].sent_ns, 0, rows[i].now_ns);
    CHECK_EQ(set.evs[1].skip_level, rows[i].level);
    count_turns(&set, 0, 8 * PER_PLANE << rows[i].level, counts); /* ends any earlier pause */
    count_turns(&set, 0, 64 * PER_PLANE, counts);
    const int turns = 64 * PER_PLANE / ((PER_PLANE - 1) * (1 << rows[i].level) + 1);
    CHECK(counts[1] >= turns - 1 && counts[1] <= turns + 1); /* in proportion to the other three */
  }
  mrc_evset_on_clear(&set, 1, 121, 0, 130);
  CHECK_EQ(set.evs[1].state, MRC_EV_GOOD);
  CHECK_EQ(set.evs[1].skip_level, 0);
}

/* Reading G5-A: marks never lengthen a skip, and one turn ends one skip. */
TEST(test_on_skip__once) {
  EVSET set = make_set(0);
  set.skips_once = true;
  mark(&set, 1, 40);
  CHECK(!mrc_evset_on_skip(&set, 1, 5, 10));
  CHECK_EQ(set.evs[1].skip_level, 0);
  CHECK_EQ(set.evs[1].skip_turns, 1);
  for (uint16_t ev = 0; ev < PER_PLANE; ev++)
    mrc_evset_on_skip(&set, ev, 0, 10);
  const uint16_t first = mrc_evset_next(&set, 0); /* skipped in the first rotation */
  CHECK_EQ(set.evs[first].state, MRC_EV_GOOD);
  for (uint16_t ev = 0; ev < PER_PLANE; ev++)
    CHECK_EQ(set.evs[ev].state == MRC_EV_SKIP, ev != first);
  CHECK(mrc_evset_next(&set, 0) == first); /* it has ended the skip of one more */
  int skipped = 0;
  for (uint16_t ev = 0; ev < PER_PLANE; ev++)
    skipped += set.evs[ev].state == MRC_EV_SKIP;
  CHECK_EQ(skipped, PER_PLANE - 2);
}

/* A path is not avoided for occasional marks, nor when every packet of every path is marked. */
TEST(test_on_skip__lasts_one_turn_where_others_are_as_full) {
  EVSET set = make_set(0);
  for (uint64_t now_ns = 10; now_ns < 1000; now_ns += 10) {
    mrc_evset_on_skip(&set, 0, now_ns - 5, now_ns);
    for (int i = 0; i < 3; i++)
      mrc_evset_on_clear(&set, 0, now_ns - 5, 0, now_ns);
    CHECK_EQ(set.evs[0].skip_level, 0);
  }
  for (uint16_t i = 0; i < PER_PLANE; i++)
    mark(&set, i, 40);
  for (uint16_t i = 0; i < PER_PLANE; i++) {
    mrc_evset_on_skip(&set, i, 2000, 2010);
    CHECK_EQ(set.evs[i].skip_level, 0);
  }
  for (int i = 0; i < 100; i++)
    mrc_evset_on_clear(&set, 1, 2000, 0, 2010);
  CHECK_EQ(set.evs[1].marked, 0);
  CHECK_EQ(set.planes[0].marked, 3 * MRC_EV_ALWAYS_MARKED);
}

/* When half of a plane is marked, the other EVs pause for one turn at most. When the unmarked EVs
   are gone, no EV is avoided. */
TEST(test_on_skip__avoids_no_more_than_half_of_a_plane) {
  EVSET set = make_set(0);
  for (uint16_t i = 0; i < PER_PLANE; i++) {
    mark(&set, i, 40);
    mrc_evset_on_skip(&set, i, 5, 10);
    CHECK(!mrc_evset_on_skip(&set, i, 15, 20));
    CHECK_EQ(set.evs[i].skip_level, i < PER_PLANE / 2 ? 2 : 0);
  }
  for (uint16_t i = PER_PLANE / 2; i < PER_PLANE; i++)
    CHECK(mrc_evset_on_loss(&set, i, &back, 20));
  CHECK(mrc_evset_next(&set, 0) < PER_PLANE / 2);
  CHECK_EQ(set.planes[0].n_skip, 0);
  CHECK_EQ(set.planes[0].marked, PER_PLANE / 2 * MRC_EV_ALWAYS_MARKED);
}

TEST(test_other__is_skipped_only_when_all_are) {
  EVSET set = make_set(2);
  const uint16_t a = mrc_evset_next(&set, 0), b = mrc_evset_other(&set, 0, a);
  CHECK(b < PER_PLANE && b != a);
  CHECK_EQ(mrc_evset_other(&set, 0, b), a);
  CHECK(mrc_evset_on_skip(&set, b, 5, 10));
  CHECK_EQ(mrc_evset_other(&set, 0, a), b);
  CHECK(mrc_evset_on_loss(&set, b, &back, 20)); /* a backup takes its place */
  CHECK(mrc_evset_other(&set, 0, a) != b);
  mrc_evset_free(&set);

  set = make_set(1);
  CHECK_EQ(mrc_evset_other(&set, 0, mrc_evset_next(&set, 0)), MRC_EV_NONE);
}

/* When all others are avoided equally, the next one in turn is used. */
TEST(test_other__of_equals_the_next_in_turn) {
  EVSET set = make_set(0);
  uint16_t order[PER_PLANE];
  for (int i = 0; i < PER_PLANE; i++)
    order[i] = mrc_evset_next(&set, 0);
  for (int i = 0; i < PER_PLANE; i++) {
    set.evs[order[i]].state = MRC_EV_SKIP;
    set.evs[order[i]].skip_turns = 1;
  }
  CHECK_EQ(mrc_evset_other(&set, 0, order[0]), order[1]);
  CHECK_EQ(mrc_evset_other(&set, 0, order[2]), order[0]);
}

/* Packets that arrive out of order do not make the newest send time older. */
TEST(test_on_delivered__remembers_the_newest) {
  EVSET set = make_set(0);
  mrc_evset_on_delivered(&set, 1, 20, 21);
  mrc_evset_on_delivered(&set, 1, 10, 22);
  CHECK_EQ(set.racks[1].newest_ns, 20);
  CHECK_EQ(set.racks[1].heard_ns, 22);
  mrc_evset_on_delivered(&set, 1, 30, 23);
  CHECK_EQ(set.racks[1].newest_ns, 30);
}

TEST(test_any__answers_from_a_plane_whose_evs_are_all_bad) {
  EVSET set = make_set(0);
  for (uint16_t i = 0; i < PER_PLANE; i++)
    mrc_evset_on_loss(&set, i, &back, 10u * i);
  mrc_evset_on_bar(&set, 0, MRC_EV_DENIED);
  for (int i = 0; i < 2 * PER_PLANE; i++) {
    const uint16_t ev = mrc_evset_any(&set, 0);
    CHECK(ev >= 1 && ev < PER_PLANE);
  }
  for (uint16_t i = 1; i < PER_PLANE; i++)
    mrc_evset_on_bar(&set, i, MRC_EV_DENIED);
  CHECK_EQ(mrc_evset_any(&set, 0), MRC_EV_NONE);
}

/* The next EV of plane 0, with a burst on it. */
static uint16_t send_burst(struct mrc_evset *set) {
  const uint16_t ev = mrc_evset_next(set, 0);
  if (ev != MRC_EV_NONE && !set->evs[ev].proven) mrc_evset_on_burst(set, ev);
  return ev;
}

/* An EV that never delivered carries one burst as a trial; the outcome decides when it has turns
   again. */
TEST(test_trial__one_burst_until_the_answer_is_here) {
  EVSET set = make_set(0);
  uint32_t used = 0;
  for (int i = 0; i < PER_PLANE; i++)
    used |= 1u << send_burst(&set);
  CHECK_EQ(used, (1u << PER_PLANE) - 1);
  CHECK(!mrc_evset_has_next(&set, 0));
  CHECK(mrc_evset_has_next(&set, 1)); /* the other plane's trials are separate */
  CHECK_EQ(mrc_evset_next(&set, 0), MRC_EV_NONE);
  CHECK_EQ(mrc_evset_other(&set, 0, 0), MRC_EV_NONE);
  mrc_evset_on_delivered(&set, 2, 0, 0);
  for (int i = 0; i < 2 * PER_PLANE; i++)
    CHECK_EQ(send_burst(&set), 2); /* proven: it takes all turns */
  CHECK_EQ(mrc_evset_other(&set, 0, 2), MRC_EV_NONE);
  CHECK_EQ(mrc_evset_other(&set, 0, 1), 2);
  mrc_evset_on_missed(&set, 1); /* the outcome is unknown: another trial */
  CHECK_EQ(mrc_evset_other(&set, 0, 2), 1);
  int counts[N] = {0};
  for (int i = 0; i < 4 * PER_PLANE; i++)
    counts[send_burst(&set)]++;
  CHECK_EQ(counts[1], 1);
  CHECK_EQ(counts[2], 4 * PER_PLANE - 1);
}

TEST(test_trial__ends_with_the_place_in_the_rotation) {
  EVSET set = make_set(2);
  const uint16_t a = send_burst(&set), b = send_burst(&set);
  CHECK(!mrc_evset_has_next(&set, 0));
  CHECK(mrc_evset_on_loss(&set, a, &back, 10)); /* its backup has its own trial */
  CHECK_EQ(set.planes[0].n_on_trial, 1);
  const uint16_t c = send_burst(&set);
  CHECK(c != a && c != b && c != MRC_EV_NONE);
  mrc_evset_on_burst(&set, a); /* EVs outside the rotation are not on trial */
  mrc_evset_on_missed(&set, a);
  CHECK_EQ(set.planes[0].n_on_trial, 2);
  mrc_evset_on_delivered(&set, b, 0, 0);
  mrc_evset_on_delivered(&set, c, 0, 0);
  CHECK_EQ(set.planes[0].n_on_trial, 0);
}

/* A probe answered before the first data proves the EV. */
TEST(test_trial__none_for_what_answered_before) {
  EVSET set = make_set(0);
  int counts[N] = {0};
  for (uint16_t i = 0; i < PER_PLANE; i++)
    mrc_evset_on_delivered(&set, i, 0, 0);
  for (int i = 0; i < 3 * PER_PLANE; i++)
    counts[send_burst(&set)]++;
  for (int i = 0; i < PER_PLANE; i++)
    CHECK_EQ(counts[i], 3);
}

/* ---- planes ---- */

/* Planes 0 and 1 have one active EV each; plane 2 has none. */
TEST(test_eligible__suspended_planes_only_when_no_other_is_left) {
  static struct mrc_services services = {.ports.up = 7};
  struct mrc_ev_plane evs[3] = {{.n_active = 1}, {.n_active = 1}, {.n_active = 0}};
  struct mrc_qp *qp = calloc(1, sizeof *qp + 3 * sizeof qp->planes[0]);
  qp->evset = (struct mrc_evset){.planes = evs, .plane_mask = 7};
  for (int i = 0; i < 3; i++)
    mrc_plane_init(&qp->planes[i]);
  CHECK_EQ(mrc_qp_eligible_planes(&services, qp), 3);
  qp->planes[0].suspended = true;
  CHECK_EQ(mrc_qp_eligible_planes(&services, qp), 2);
  qp->planes[1].suspended = qp->planes[2].suspended = true;
  CHECK_EQ(mrc_qp_eligible_planes(&services, qp), 3); /* one EV is enough, none is not */
  qp->planes[1].peer_down = true;
  CHECK_EQ(mrc_qp_eligible_planes(&services, qp), 1);
  services.ports.up = 6;
  CHECK_EQ(mrc_qp_eligible_planes(&services, qp), 0);
  free(qp);
}

/* ---- round trips ---- */

/* RFC 6298: alpha 1/8, beta 1/4; the variation is updated before the smoothed value. */
TEST(test_sample__follows_rfc_6298) {
  static const struct {
    uint64_t sample, smooth, var, base;
  } rows[] = {
      {800, 800, 400, 800}, {800, 800, 300, 800}, {1600, 900, 425, 800},
      {100, 800, 518, 100}, {0, 700, 588, 1}, /* 0 ns counts as 1 ns, to be a valid sample */
  };
  struct mrc_rtt rtt = {0};
  CHECK(rtt.smooth_ns == 0);
  EACH_ROW(i, rows) {
    mrc_rtt_sample(&rtt, rows[i].sample);
    CHECK_EQ(rtt.smooth_ns, rows[i].smooth);
    CHECK_EQ(rtt.var_ns, rows[i].var);
    CHECK_EQ(rtt.base_ns, rows[i].base);
  }
}

TEST(test_overdue__variation_or_the_floor) {
  const struct mrc_rtt rtt = {.smooth_ns = 1000, .var_ns = 100};
  CHECK_EQ(mrc_rtt_overdue_ns(&rtt, 0), 1400);
  CHECK_EQ(mrc_rtt_overdue_ns(&rtt, 400), 1400);
  CHECK_EQ(mrc_rtt_overdue_ns(&rtt, 500), 1500);
}

/* ---- queues on the way back ---- */

enum { UNIT = 1024 };

#define US 1000ull
#define MS 1000000ull
#define SECOND 1000000000ull

/* A SACK that takes `way_ns` and arrives at `now_ns`, from a host whose clock is `ahead_ns` ahead.
 */
static uint64_t sack(struct mrc_reverse_queue *queue, uint64_t now_ns, uint64_t way_ns,
                     uint64_t ahead_ns) {
  return mrc_reverse_queue_ns(queue, mrc_timestamp(now_ns - way_ns + ahead_ns), now_ns);
}

static bool is_near(uint64_t ns, uint64_t expected_ns) {
  return ns <= expected_ns + UNIT && expected_ns <= ns + UNIT;
}

/* Whatever the clock of the peer shows: the difference to the shortest way is the wait. */
TEST(test_sack__waits_are_above_the_shortest_way) {
  static const uint64_t aheads_ns[] = {0, 33 * MS, 67 * MS, 50 * SECOND, -20 * SECOND};
  EACH_ROW(i, aheads_ns) {
    struct mrc_reverse_queue queue = {0};
    uint64_t now_ns = 100 * SECOND;
    CHECK_EQ(sack(&queue, now_ns, 3 * MS, aheads_ns[i]), 0);
    CHECK(is_near(sack(&queue, now_ns += MS, 8 * MS, aheads_ns[i]), 5 * MS));
    CHECK_EQ(sack(&queue, now_ns += MS, 1 * MS, aheads_ns[i]), 0); /* shorter than all before */
    CHECK(is_near(sack(&queue, now_ns += MS, 8 * MS, aheads_ns[i]), 7 * MS));
    CHECK(is_near(sack(&queue, now_ns += MS, 31 * MS, aheads_ns[i]), 30 * MS));
  }
}

/* The clocks drift apart by 100 us a second for a minute: the error stays below 1 ms. */
TEST(test_sack__clocks_drift_apart) {
  for (int direction = -1; direction <= 1; direction += 2) {
    CHECK_ROW(direction);
    struct mrc_reverse_queue queue = {0};
    for (uint64_t ms = 1; ms < 60000; ms += 10) {
      const uint64_t drift_ns = ms * 100;
      const uint64_t ahead_ns = direction > 0 ? drift_ns : -drift_ns;
      CHECK(sack(&queue, 100 * SECOND + ms * MS, 100 * US, ahead_ns) < MS);
    }
  }
}

/* A way that has become longer is the shortest one after two periods, and after a pause at once. */
TEST(test_sack__a_longer_way_is_found) {
  struct mrc_reverse_queue queue = {0};
  uint64_t now_ns = 100 * SECOND;
  CHECK_EQ(sack(&queue, now_ns, MS, 0), 0);
  CHECK(is_near(sack(&queue, now_ns + 1 * SECOND, 3 * MS, 0), 2 * MS));
  CHECK(is_near(sack(&queue, now_ns + 5 * SECOND, 3 * MS, 0), 2 * MS));
  CHECK_EQ(sack(&queue, now_ns + 10 * SECOND, 3 * MS, 0), 0);
  CHECK_EQ(sack(&queue, now_ns + 11 * SECOND, 3 * MS, 0), 0);
  CHECK_EQ(sack(&queue, now_ns + 60 * SECOND, 9 * MS, 0), 0);
}

/* A packet that seems to arrive earlier than the one before it does no harm. */
TEST(test_sack__time_may_go_back) {
  struct mrc_reverse_queue queue = {0};
  CHECK_EQ(sack(&queue, 100 * SECOND, MS, 0), 0);
  CHECK(is_near(sack(&queue, 100 * SECOND - MS, 2 * MS, 0), MS));
}

/* ---- probation ---- */

TEST(test_on_success__trust_needs_a_row) {
  struct mrc_probation p;
  mrc_probation_init(&p);
  CHECK_EQ(p.next_ns, MRC_NEVER);
  mrc_probation_on_failure(&p, MRC_NOISE_NS, 100 * MS);
  CHECK_EQ(p.next_ns, 102 * MS);
  mrc_probation_on_probe(&p);
  CHECK_EQ(p.next_ns, MRC_NEVER); /* one probe out at a time */
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 103 * MS));
  CHECK_EQ(p.next_ns, 105 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 106 * MS));
  mrc_probation_on_timeout(&p, MRC_NOISE_NS,
                           110 * MS); /* a failure breaks the row and doubles the spacing */
  CHECK_EQ(p.next_ns, 114 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 115 * MS));
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 117 * MS));
  CHECK(mrc_probation_on_success(&p, MRC_NOISE_NS, 119 * MS));
  CHECK_EQ(p.next_ns, MRC_NEVER);
}

/* From what the noise of hosts allows to a limit that the network sets. */
TEST(test_on_timeout__spacing_doubles_to_a_limit) {
  static const struct {
    uint32_t noise_ns; /* 1000 is the least that an engine accepts */
    uint64_t first_ns;
  } rows[] = {{MRC_NOISE_NS, 2 * MS}, {1000, 4000}};
  EACH_ROW(i, rows) {
    struct mrc_probation p;
    mrc_probation_init(&p);
    mrc_probation_on_failure(&p, rows[i].noise_ns, 0);
    CHECK_EQ(p.next_ns, rows[i].first_ns);
    for (int timeouts = 1; timeouts <= 20; timeouts++) {
      mrc_probation_on_timeout(&p, rows[i].noise_ns, 0);
      CHECK_EQ(p.next_ns, mrc_min_u64(rows[i].first_ns << timeouts, 64 * MS));
    }
  }
}

/* It fails repeatedly soon after it came back: each time it stays away twice as long. */
TEST(test_on_failure__relapses_double_the_wait) {
  struct mrc_probation p;
  uint64_t now_ns = 1000ull * MS;
  mrc_probation_init(&p);
  EACH_OF(unsigned, relapse, 0, 12) {
    const unsigned doublings = relapse < 9 ? relapse : 9;
    mrc_probation_on_failure(&p, MRC_NOISE_NS, now_ns);
    CHECK_EQ(p.next_ns - now_ns, (2ull * MS) << doublings);
    for (int i = 0; i < MRC_PROBATION_SUCCESSES; i++) {
      CHECK_EQ(mrc_probation_interval_ns(&p, MRC_NOISE_NS), (2ull * MS) << doublings);
      CHECK_EQ(mrc_probation_on_success(&p, MRC_NOISE_NS, now_ns),
               i == MRC_PROBATION_SUCCESSES - 1);
    }
    now_ns += MS;
  }
  now_ns += MRC_PROBATION_CALM_NS; /* long after the return, a failure is no relapse */
  mrc_probation_on_failure(&p, MRC_NOISE_NS, now_ns);
  CHECK_EQ(p.next_ns - now_ns, 2 * MS);
}

/* The cause of the failure has ended: probes begin at once, and three successes are needed at the
   spacing that the relapses set. */
TEST(test_on_mend__probes_begin_at_once) {
  struct mrc_probation p;
  mrc_probation_init(&p);
  mrc_probation_on_failure(&p, MRC_NOISE_NS, 0);
  for (int i = 0; i < 5; i++)
    mrc_probation_on_timeout(&p, MRC_NOISE_NS, 0);
  mrc_probation_on_probe(&p);
  mrc_probation_on_mend(&p, 7 * MS);
  CHECK_EQ(p.next_ns, 7 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 8 * MS));
  CHECK_EQ(p.next_ns, 10 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 10 * MS));
  CHECK(mrc_probation_on_success(&p, MRC_NOISE_NS, 12 * MS));
}

/* A path that answers some probes and loses others, as when its MTU shrank: an answer brings the
   next probe soon, but the long spacing goes on after each loss. */
TEST(test_spacing__of_a_path_that_answers_now_and_then) {
  struct mrc_probation p;
  mrc_probation_init(&p);
  mrc_probation_on_failure(&p, MRC_NOISE_NS, 0);
  for (uint64_t spacing_ms = 4; spacing_ms < 200; spacing_ms *= 2) {
    CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 0));
    CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 0));
    CHECK_EQ(p.next_ns, 2 * MS);
    CHECK(!mrc_probation_is_in_doubt(&p));
    mrc_probation_on_timeout(&p, MRC_NOISE_NS, 0);
    CHECK(mrc_probation_is_in_doubt(&p));
    CHECK_EQ(p.next_ns, mrc_min_u64(spacing_ms, 64) * MS);
  }
}
