/* SPDX-License-Identifier: Apache-2.0 */
/* The pause of the datapath thread between looks at its sockets. */
#define _GNU_SOURCE 1
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/datapath.h" /* whose pause it is */
#include "sides.h"

/* ---- A pause that is counted ---- */

static atomic_int n_pauses;
static atomic_long longest_pause_ns;

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
  CHECK_EQ(n, 1);
  atomic_fetch_add(&n_pauses, 1);
  if (timeout->tv_nsec > atomic_load(&longest_pause_ns))
    atomic_store(&longest_pause_ns, timeout->tv_nsec);
  return (int)syscall(SYS_ppoll, fds, n, timeout, mask, sizeof *mask);
}

/* Only who is told to pauses, and only while bursts come in. */
static void test_write__takes_bursts_in_one_go(void) {
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
    CHECK_EQ(query(&sides[1]).bytes_received, rows[i].bytes);
    CHECK_MEM_EQ(sides[1].memory, sides[0].memory, rows[i].bytes);
    CHECK_EQ(atomic_load(&n_pauses) > 0, rows[i].pauses);
    if (rows[i].pauses) CHECK(atomic_load(&longest_pause_ns) <= rows[i].coalesce_us * 1000l);
    close_sides(sides);
  }
}

CHECK_MAIN(RUN(test_write__takes_bursts_in_one_go))
