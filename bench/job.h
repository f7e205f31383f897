/* SPDX-License-Identifier: Apache-2.0 */
/* What every end of a benchmark shares: a job is a line of words on standard input, its result one
   line of JSON on standard output. It owns the line, and no policy. */
#ifndef BENCH_JOB_H
#define BENCH_JOB_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define JOB_WORDS 80

struct job {
  char *words[JOB_WORDS];
  int n;
  char line[8192];
};

/* Waits for the next job. False when there is none any more: the program ends. */
bool job_read(struct job *job);
/* Whether the next job waits. Never blocks. */
bool job_waits(void);
bool job_is(const struct job *job, const char *verb);
/* Word i as a number; ends the program when it is none. */
uint64_t job_number(const struct job *job, int i);

/* Ends the program with one line: what failed and, unless `error` is 0, why. */
_Noreturn void fail(int error, const char *what);
uint64_t clock_ns(void);
struct sockaddr_in6 parse_address(const char *text, uint16_t port);

#endif
