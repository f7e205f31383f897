/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/hop.h"

#include "check.h"
#include "core/wire.h"

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
