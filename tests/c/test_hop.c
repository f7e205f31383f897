/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/hop.h"

#include "check.h"
#include "core/base.h"
#include "core/wire.h"
#include "sim/agenda.h"

/* ---- queues ---- */

enum { HEADER = 36, TRAILER = 4, ECT = 2, CE = 3 };

static struct mrc_frame write_of(uint32_t wire_bytes) {
  return (struct mrc_frame){
      .header = {MRC_OP_WRITE_MIDDLE},
      .header_bytes = HEADER,
      .trailer_bytes = TRAILER,
      .payload_bytes = (uint16_t)(wire_bytes - HEADER - TRAILER - MRC_FRAME_OVERHEAD_BYTES),
      .ecn = ECT};
}

static struct mrc_frame control_of(void) {
  return (struct mrc_frame){
      .header = {MRC_OP_SACK}, .header_bytes = 48, .trailer_bytes = TRAILER, .control = true};
}

/* The fate of a write of 1000 bytes on the wire, by the bytes that are waiting. */
TEST(test_push__room_and_trimming) {
  static const struct {
    uint64_t buffer_bytes, waiting_bytes;
    bool trims;
    bool taken, trimmed;
  } rows[] = {
      {0, 1000000, false, true, false},  /* no limit */
      {3000, 0, false, true, false},     /* empty */
      {3000, 2000, false, true, false},  /* fills the buffer to its last byte */
      {3000, 2001, false, false, false}, /* one byte too many */
      {3000, 2001, true, true, true},    /* cut to its header instead */
      {3000, 2000, true, true, false},
      {100, 0, true, false, false}, /* not even the header fits */
  };
  for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
    CHECK_ROW(i);
    const struct mrc_queue_config config = {.buffer_bytes = rows[i].buffer_bytes,
                                            .trims = rows[i].trims};
    struct mrc_queue queue = {0};
    struct mrc_frame packet = write_of(1000);
    queue.data.bytes = rows[i].waiting_bytes;
    CHECK_EQ(mrc_queue_push(&queue, &config, &packet), rows[i].taken);
    CHECK_EQ(packet.trimmed, rows[i].trimmed || (rows[i].trims && !rows[i].taken));
    CHECK_EQ(queue.dropped, !rows[i].taken);
    if (!rows[i].trimmed) continue;
    CHECK_EQ(mrc_frame_udp_bytes(&packet), HEADER);
    CHECK_EQ(queue.control.bytes, HEADER + MRC_FRAME_OVERHEAD_BYTES);
  }
}

TEST(test_push__trimmed_at_the_last_hop) {
  for (int last_hop = 0; last_hop <= 1; last_hop++) {
    const struct mrc_queue_config config = {
        .buffer_bytes = 3000, .trims = true, .last_hop = last_hop};
    struct mrc_queue queue = {0};
    struct mrc_frame packet = write_of(1000);
    queue.data.bytes = 3000;
    CHECK(mrc_queue_push(&queue, &config, &packet));
    CHECK_EQ(packet.trimmed, last_hop ? MRC_TRIMMED_LASTHOP : MRC_TRIMMED);
  }
}

TEST(test_push__only_writes_are_trimmed) {
  struct mrc_queue_config config = {.buffer_bytes = 3000, .trims = true};
  struct mrc_queue queue = {0};
  struct mrc_frame probe = write_of(1000);
  probe.header[0] = MRC_OP_ENDPOINT_REQUEST;
  queue.data.bytes = 3000;
  CHECK(!mrc_queue_push(&queue, &config, &probe));
  CHECK(!probe.trimmed);
}

TEST(test_push__control_has_room_of_its_own) {
  struct mrc_queue_config config = {.buffer_bytes = 300};
  struct mrc_queue queue = {0};
  struct mrc_frame first = control_of(), second = control_of();
  queue.data.bytes = 300;
  CHECK(mrc_queue_push(&queue, &config, &first));
  CHECK(!mrc_queue_push(&queue, &config, &second));
  CHECK_EQ(queue.dropped, 1);
}

/* The number of marked packets among 1000, by the bytes that each leaves waiting. */
TEST(test_pop__ecn_ramp) {
  static const struct {
    uint64_t low, high, waiting;
    int ecn, least, most;
  } rows[] = {
      {1000, 2000, 999, ECT, 0, 0},        /* below the ramp */
      {1000, 2000, 1000, ECT, 0, 0},       /* at its foot */
      {1000, 2000, 1250, ECT, 200, 300},   /* a quarter of the way */
      {1000, 2000, 1750, ECT, 700, 800},   /* three quarters */
      {1000, 2000, 2000, ECT, 1000, 1000}, /* above */
      {1000, 2000, 5000, 0, 0, 0},         /* not ECN-capable */
      {0, 0, 5000, ECT, 0, 0},             /* marking is off */
  };
  for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
    CHECK_ROW(i);
    const struct mrc_queue_config config = {.ecn_low_bytes = rows[i].low,
                                            .ecn_high_bytes = rows[i].high};
    struct mrc_queue queue = {.prng = {1}};
    int marked = 0;
    for (int k = 0; k < 1000; k++) {
      struct mrc_frame packet = write_of(1000);
      packet.ecn = rows[i].ecn & 3;
      queue.data = (struct mrc_queue_class){0};
      CHECK(mrc_queue_push(&queue, &config, &packet));
      queue.data.bytes += rows[i].waiting;
      CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packet);
      marked += packet.ecn == CE;
    }
    CHECK(marked >= rows[i].least && marked <= rows[i].most);
    CHECK_EQ(queue.marked, marked);
  }
}

TEST(test_pop__control_is_never_marked) {
  struct mrc_queue_config config = {.ecn_low_bytes = 1, .ecn_high_bytes = 2};
  struct mrc_queue queue = {0};
  struct mrc_frame packet = control_of();
  packet.ecn = ECT;
  queue.data.bytes = 1000;
  CHECK(mrc_queue_push(&queue, &config, &packet));
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packet);
  CHECK_EQ(packet.ecn, ECT);
}

/* A packet is marked by the queue behind it when it leaves, not by the queue when it arrived. */
TEST(test_pop__marks_by_the_queue_left_behind) {
  struct mrc_queue_config config = {.ecn_low_bytes = 500, .ecn_high_bytes = 1500};
  struct mrc_queue queue = {0};
  struct mrc_frame packets[3];
  for (int i = 0; i < 3; i++) {
    packets[i] = write_of(1000);
    CHECK(mrc_queue_push(&queue, &config, &packets[i]));
  }
  for (int i = 0; i < 3; i++)
    CHECK_EQ(packets[i].ecn, ECT);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packets[0]); /* leaves 2000 bytes */
  CHECK_EQ(packets[0].ecn, CE);
  config.ecn_low_bytes = 1001;
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packets[1]); /* leaves 1000 */
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &packets[2]); /* leaves none */
  CHECK_EQ(packets[1].ecn, ECT);
  CHECK_EQ(packets[2].ecn, ECT);
  CHECK_EQ(queue.marked, 1);
}

TEST(test_pop__control_and_trimmed_first) {
  struct mrc_queue_config config = {.buffer_bytes = 2000, .trims = true};
  struct mrc_queue queue = {0};
  struct mrc_frame first = write_of(1000), second = write_of(1000), third = write_of(1000);
  struct mrc_frame control = control_of();
  CHECK(mrc_queue_push(&queue, &config, &first));
  CHECK(mrc_queue_push(&queue, &config, &second));
  CHECK(mrc_queue_push(&queue, &config, &third)); /* trimmed */
  CHECK(mrc_queue_push(&queue, &config, &control));
  CHECK_EQ(queue.peak_bytes, mrc_queue_bytes(&queue));
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &third);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &control);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &first);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), &second);
  CHECK_PTR_EQ(mrc_queue_pop(&queue, &config), NULL);
  CHECK_EQ(mrc_queue_bytes(&queue), 0);
}

/* ---- the agenda ---- */

static struct mrc_agenda agenda;

/* Times as pushed; kinds alternate, and the index counts down. */
TEST(test_pop__by_kind_and_index_among_equal_times) {
  static const uint64_t times[] = {5, 3, 90000, 3, 5, 90000, 0, 32767, 32768, 3, 3};
  static const uint32_t order[] = {6, 10, 9, 3, 1, 4, 0, 7, 8, 2, 5}; /* indices of times */
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  CHECK_EQ(mrc_agenda_next_ns(&agenda), UINT64_MAX);
  CHECK(!mrc_agenda_pop(&agenda, &entry));
  for (uint32_t i = 0; i < 11; i++)
    mrc_agenda_push(&agenda,
                    (struct mrc_heap_entry){.at_ns = times[i], .index = 100 - i, .kind = i % 2});
  CHECK_EQ(mrc_agenda_count(&agenda, 0), 6);
  for (int i = 0; i < 11; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_agenda_next_ns(&agenda), times[order[i]]);
    CHECK(mrc_agenda_pop(&agenda, &entry));
    CHECK_EQ(entry.index, 100 - order[i]);
  }
  mrc_agenda_free(&agenda);
}

static void push_at(uint64_t at_ns, uint32_t index, void *pointer) {
  mrc_agenda_push(&agenda,
                  (struct mrc_heap_entry){.at_ns = at_ns, .index = index, .pointer = pointer});
}

/* Of two entries with the same time, kind and index, the one pushed first comes first, also when it
   was far in the future then and the other is near. */
TEST(test_pop__keeps_the_order_of_far_and_near) {
  struct mrc_heap_entry entry;
  int first, second, other;
  mrc_agenda_init(&agenda);
  push_at(40000, 1, &first);
  push_at(20000, 0, NULL);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.index == 0);
  push_at(40000, 1, &second);
  push_at(40000, 0, &other);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.pointer == &other);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.pointer == &first);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.pointer == &second);
  mrc_agenda_free(&agenda);
}

/* What is pushed for the time that is being taken follows, whatever its index. */
TEST(test_pop__without_delay_comes_last) {
  static const uint32_t order[] = {5, 6, 3, 1, 2};
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  push_at(7, 6, NULL);
  push_at(7, 5, NULL);
  for (int i = 0; i < 5; i++) {
    CHECK_ROW(i);
    CHECK(mrc_agenda_pop(&agenda, &entry));
    CHECK_EQ(entry.index, order[i]);
    if (i == 0) push_at(7, 3, NULL);
    if (i == 2) push_at(7, 1, NULL); /* the slot is empty by now */
    if (i == 2) push_at(7, 2, NULL);
  }
  CHECK(!mrc_agenda_pop(&agenda, &entry));
  mrc_agenda_free(&agenda);
}

static uint64_t delay(struct mrc_prng *prng) {
  static const uint32_t ends[] = {1, 3, 100, 32767, 32769, 200000};
  return mrc_prng_below(prng, ends[mrc_prng_below(prng, 6)]);
}

/* One index for all: the order of insertion decides, as in a heap. */
TEST(test_pop__as_a_heap_does) {
  struct mrc_heap heap = {0};
  struct mrc_prng prng = {.state = 6};
  struct mrc_heap_entry entry, expected = {0};
  mrc_agenda_init(&agenda);
  for (uint32_t i = 0; i < 200000; i++) {
    CHECK_ROW((int)i);
    /* Many entries wait, then few: the wheel is full, then nearly empty. */
    if (mrc_prng_below(&prng, 100) < (i / 20000 % 2 ? 35 : 65)) {
      const struct mrc_heap_entry new = {.at_ns = expected.at_ns + delay(&prng),
                                         .pointer = (void *)(uintptr_t)i};
      mrc_heap_push(&heap, new);
      mrc_agenda_push(&agenda, new);
    } else {
      const bool any = mrc_heap_pop(&heap, &expected);
      CHECK_EQ(mrc_agenda_pop(&agenda, &entry), any);
      CHECK(!any || (entry.at_ns == expected.at_ns && entry.pointer == expected.pointer));
    }
    CHECK_EQ(mrc_agenda_next_ns(&agenda), mrc_heap_next_ns(&heap));
  }
  mrc_heap_free(&heap);
  mrc_agenda_free(&agenda);
}
