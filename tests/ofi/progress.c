/* SPDX-License-Identifier: Apache-2.0 */
/* Who runs the engine: the program while it polls, else the helper thread of the library.

     progress [CASE...]       prints the name of each case that has passed */
#include <dirent.h>
#include <time.h>

#include "self.h"

enum { MESSAGES = 5000 };

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* A number behind a word in a file of a thread; or -1. */
static long number_in(const char *thread, const char *file, const char *word) {
  char path[320], line[128];
  long found = -1;
  snprintf(path, sizeof path, "/proc/self/task/%s/%s", thread, file);
  FILE *lines = fopen(path, "r");
  CHECK(lines);
  while (found < 0 && fgets(line, sizeof line, lines))
    if (strncmp(line, word, strlen(word)) == 0) found = atol(line + strlen(word));
  fclose(lines);
  return found;
}

/* How often the helper has slept. */
static long sleeps(void) {
  long found = -1;
  DIR *threads = opendir("/proc/self/task");
  CHECK(threads);
  for (struct dirent *each; (each = readdir(threads));)
    if (each->d_name[0] != '.' && number_in(each->d_name, "status", "Name:\tlibmrc-fi") == 0)
      found = number_in(each->d_name, "status", "voluntary_ctxt_switches:");
  closedir(threads);
  CHECK(found >= 0);
  return found;
}

/* Sends to itself and polls until the message has come, so many times. */
static void talk(int messages) {
  for (int i = 0; i < messages; i++) {
    IS(fi_recv(ep, in, SHORT, NULL, self, in), 0);
    IS(fi_inject(ep, out, SHORT, self), 0);
    const double until = now_ms() + WAIT_MS;
    long n;
    while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
      CHECK(now_ms() < until);
    IS(n, 1);
  }
}

/* Each wake of the helper takes the program's core from it for a while: it looks after the program
   now and then, and not at each message. */
static void polls(void) {
  open_all(FI_MSG, 0);
  talk(1);
  const long before = sleeps();
  talk(MESSAGES);
  const long slept = sleeps() - before;
  CHECK(slept <= MESSAGES / 2);
  close_all();
}

/* The message needs answers of both sides, and the program only waits for its last byte. */
static void computes(void) {
  open_all(FI_MSG, 0);
  memset(out, 1, sizeof out);
  memset(in, 0, sizeof in);
  talk(1);
  IS(fi_recv(ep, in, LONG, NULL, self, in), 0);
  IS(fi_send(ep, out, LONG, NULL, self, out), 0);
  const double until = now_ms() + WAIT_MS;
  for (size_t i = 0; i < LONG; i++)
    while (!((volatile char *)in)[i])
      CHECK(now_ms() < until);
  close_all();
}

static const struct trial trials[] = {{"polls", polls}, {"computes", computes}};

int main(int argc, char **argv) { run(trials, sizeof trials / sizeof *trials, argc, argv); }
