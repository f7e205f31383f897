/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/engines.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "sim/traffic.h"
#include "sim_config.h"

static mrc_sim *open_run(void) {
  mrc_sim *sim = open_sim(.audit = 1, .planes = 2, .first_psn = 0xFFFFF0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_LOSS, .a = 20000), 0);
  CHECK_EQ(add_flow(sim, .bytes = 100001, .writes = 5, .immediate = 1), 0);
  CHECK_EQ(add_flow(sim, .from = 2, .to = 1, .bytes = 5000, .writes = 5), 1);
  return sim;
}

TEST(test_watch__sees_bytes_in_their_place) {
  mrc_sim *sim = open_run();
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  const struct mrc_audit *audit = &sim->watch.of[0]->ends[0];
  CHECK_EQ(audit->verified, 5);
  CHECK_EQ(audit->n_immediates, 5);
  CHECK(audit->retransmitted > 0);
  CHECK_EQ(sim->watch.of[1]->ends[0].verified, 5);
  CHECK_EQ(sim->watch.n_touched, 0);
  mrc_sim_destroy(sim);
}

TEST(test_watch__refuses_what_it_cannot_see) {
  mrc_sim *sim = open_sim(.audit = 1);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 257), -EINVAL); /* 256 MiB at most */
  mrc_sim_destroy(sim);
  CHECK_PTR_EQ(open_sim(.audit = 1, .routing = MRC_SIM_ECMP, .transport = MRC_SIM_GO_BACK_N), NULL);
}

/* ---- The watch stops at errors ---- */

static void do_nothing(mrc_sim *sim) { (void)sim; }

static void place_twice(mrc_sim *sim) { sim->watch.of[0]->ends[0].target[7] ^= 0xFF; }

static void write_astray(mrc_sim *sim) { sim->watch.of[0]->ends[0].target[-1] = 0; }

static void lose_a_frame(mrc_sim *sim) { mrc_frame_pool_get(&sim->whole.fabric.pool); }

static void lose_the_carrier(mrc_sim *sim) { sim->whole.hosts.at[0].down = 3; }

static void narrow_the_window(mrc_sim *sim) { sim->watch.of[0]->ends[0].mpr = 1; }

TEST(test_watch__stops_at_what_is_wrong) {
  static const struct {
    void (*harm)(mrc_sim *);
    uint64_t at_ns;
    bool right;
  } rows[] = {{do_nothing, 20 * US, true},    {place_twice, 200 * MS, false},
              {write_astray, 20 * US, false}, {lose_a_frame, 20 * US, false},
              {lose_the_carrier, 0, false},   {narrow_the_window, 0, false}};
  for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
    CHECK_ROW(i);
    const pid_t child = fork();
    if (child == 0) {
      freopen("/dev/null", "w", stderr);
      mrc_sim *sim = open_run();
      mrc_sim_run(sim, rows[i].at_ns);
      rows[i].harm(sim);
      mrc_sim_run(sim, 500 * MS);
      mrc_sim_destroy(sim);
      _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, !rows[i].right);
    if (rows[i].right) CHECK_EQ(status, 0);
  }
}
