/* SPDX-License-Identifier: Apache-2.0 */
/* The pause of the datapath thread between looks at its sockets. */
#define _GNU_SOURCE 1
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/datapath.h" /* the thread that pauses */
#include "io/datapath.h"
#include "sides.h"

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
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
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
