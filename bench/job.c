/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Reads byte by byte, so that the next job stays in the descriptor, where job_waits polls it. */
bool job_read(struct job *job) {
  size_t n = 0;
  while (n < sizeof job->line - 1 && read(STDIN_FILENO, &job->line[n], 1) == 1 &&
         job->line[n] != '\n')
    n++;
  if (n == 0) return false;
  job->line[n] = '\0';
  job->n = 0;
  char *rest = NULL;
  for (char *word = strtok_r(job->line, " \n", &rest); word && job->n < JOB_WORDS;
       word = strtok_r(NULL, " \n", &rest))
    job->words[job->n++] = word;
  return job->n > 0;
}

bool job_waits(void) {
  struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
  return poll(&ready, 1, 0) == 1;
}

bool job_is(const struct job *job, const char *verb) { return strcmp(job->words[0], verb) == 0; }

uint64_t job_number(const struct job *job, int i) {
  if (i >= job->n) fail(0, "a job has too few words");
  char *end = NULL;
  uint64_t number = strtoull(job->words[i], &end, 10);
  if (*end != '\0') fail(0, "a word of a job is not a number");
  return number;
}

void fail(int error, const char *what) {
  fprintf(stderr, "bench: %s%s%s\n", what, error ? ": " : "", error ? strerror(error) : "");
  exit(1);
}

uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct sockaddr_in6 parse_address(const char *text, uint16_t port) {
  struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
  if (inet_pton(AF_INET6, text, &address.sin6_addr) != 1)
    fail(0, "an argument is not an IPv6 address");
  return address;
}
