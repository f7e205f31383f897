/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "program/process.h"

#include <time.h>

#define NUMBER_NS 10000000000ull /* for the agent to grant numbers */

struct pr_process pr_process = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .changed = PTHREAD_COND_INITIALIZER,
                                .link.fd = -1,
                                .wake_fd = -1,
                                .next_cookie = 1};

uint64_t pr_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* By a clock that nobody sets. */
bool pr_wait(uint64_t until_ns) {
  const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                 .tv_nsec = (long)(until_ns % 1000000000u)};
  return pthread_cond_clockwait(&pr_process.changed, &pr_process.lock, CLOCK_MONOTONIC, &until) ==
         0;
}

void pr_submit(const struct mrc_command *command) {
  /* A turn takes commands from the ring as long as its replies have room: they are few. */
  while (mrc_ctx_submit(pr_process.ctx, command, 1) == 0)
    mrc_ctx_run(pr_process.ctx, 0);
}

void pr_tell(uint32_t kind, int32_t value, uint64_t cookie, const void *body, size_t bytes,
             const void *more, size_t more_bytes) {
  const struct mrc_agent_frame head = {.kind = kind, .value = value, .cookie = cookie};
  pr_link_send(&pr_process.link, &head, body, bytes, more, more_bytes, false);
}

uint32_t pr_number(void) {
  if (!pr_process.asked && pr_process.n_numbers <= MRC_AGENT_MAX_NUMBERS / 2) {
    pr_process.asked = true;
    pr_tell(MRC_AGENT_NUMBERS, 0, 0, NULL, 0, NULL, 0);
  }
  return pr_process.n_numbers > 0 ? pr_process.numbers[--pr_process.n_numbers] : 0;
}

uint32_t pr_await_number(void) {
  const uint64_t until_ns = pr_now_ns() + NUMBER_NS;
  for (;;) {
    const uint32_t number = pr_number();
    if (number != 0) return number;
    if (!pr_wait(until_ns)) return 0;
  }
}
