/* SPDX-License-Identifier: Apache-2.0 */
/* Writes from one QP to another of this process while the agent is killed, and connects two more
   with the next agent. */
#include "pair.h"

#include <stdbool.h>
#include <sys/wait.h>

static struct ibv_context *context;

static void join_two(struct end *a, struct end *b, struct place *to) {
  *a = make_end(context, 64);
  *b = make_end(context, 64);
  *to = place_of(b);
  const struct place from = place_of(a);
  join(a, to);
  join(b, &from);
}

/* Whether an agent listens: a second process would find its device. */
static bool has_agent(void) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "survivor", "look", NULL);
    _exit(2);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "look") == 0) {
    setenv("MRC_QUIET", "1", 1);
    return ibv_get_device_list(NULL) == NULL;
  }
  struct end a, b, c, d;
  struct place to, there;
  context = open_first();
  join_two(&a, &b, &to);
  const struct place from = place_of(&a);
  write_text(&a, &to, "before");
  write_text(&b, &from, "before"); /* both ends are connected */
  puts("connected");
  fflush(stdout);
  while (has_agent())
    write_text(&a, &to, "meanwhile");
  write_text(&a, &to, "without");
  CHECK(strcmp((char *)b.memory, "without") == 0);
  puts("no agent");
  fflush(stdout);
  join_two(&c, &d, &there); /* waits for the next agent */
  CHECK(post(&c, &there, 8, c.mr->lkey, there.rkey, "after") == 0);
  const struct ibv_wc wc = poll_one(c.cq);
  CHECK(wc.status == IBV_WC_SUCCESS && strcmp((char *)d.memory, "after") == 0);
  write_text(&a, &to, "still");
  puts("connected again");
  return 0;
}
