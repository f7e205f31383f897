/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of all ends of a benchmark in C. A job is a line of words on standard input. Its
   result is one line of JSON on standard output. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define JOB_WORDS 80

struct job {
  char *words[JOB_WORDS];
  int n;
  char line[8192];
};

/* Waits for the next job. False at the end of standard input: the program must end. */
bool job_read(struct job *job);
/* Whether the next job has arrived. Never blocks. */
bool job_waits(void);
bool job_is(const struct job *job, const char *verb);
/* Word i as a number. Ends the program if word i is missing or not a number. */
uint64_t job_number(const struct job *job, int i);

/* Ends the program and prints one line: `what` and, unless `error` is 0, the error's text. */
_Noreturn void fail(int error, const char *what);
uint64_t clock_ns(void);
struct sockaddr_in6 parse_address(const char *text, uint16_t port);
