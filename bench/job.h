/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of all ends of a benchmark in C. A job is a line of words on standard input. Its
   result is one line of JSON on standard output. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define JOB_WORDS 80

struct job {
  char *words[JOB_WORDS];
  int n;
  char line[8192];
};

/* Ends the program and prints one line: `what` and, unless `error` is 0, the error's text. */
_Noreturn static inline void fail(int error, const char *what) {
  fprintf(stderr, "bench: %s%s%s\n", what, error ? ": " : "", error ? strerror(error) : "");
  exit(1);
}

/* Waits for the next job. False at the end of standard input: the program must end. Reads byte by
   byte, so that the next job stays in the descriptor, where job_waits polls it. */
static inline bool job_read(struct job *job) {
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

/* Whether the next job has arrived. Never blocks. */
static inline bool job_waits(void) {
  struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
  return poll(&ready, 1, 0) == 1;
}

static inline bool job_is(const struct job *job, const char *verb) {
  return strcmp(job->words[0], verb) == 0;
}

/* Word i as a number. Ends the program if word i is missing or not a number. */
static inline uint64_t job_number(const struct job *job, int i) {
  if (i >= job->n) fail(0, "a job has too few words");
  char *end = NULL;
  uint64_t number = strtoull(job->words[i], &end, 10);
  if (*end != '\0') fail(0, "a word of a job is not a number");
  return number;
}

static inline uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline struct sockaddr_in6 parse_address(const char *text, uint16_t port) {
  struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
  if (inet_pton(AF_INET6, text, &address.sin6_addr) != 1)
    fail(0, "an argument is not an IPv6 address");
  return address;
}

static inline void set_option(int fd, int level, int name, int value) {
  if (setsockopt(fd, level, name, &value, sizeof value) != 0) fail(errno, "socket option");
}

/* ---- durations ----------------------------------------------------------------------------- */

/* Durations of one job, as a histogram, and their percentiles. Its size is fixed and adding is
   cheap, so that it affects neither the measured time nor the cache. */
#define LATENCY_BITS 8u /* relative resolution: 1 in 2^8 */
#define LATENCY_STEPS (1u << LATENCY_BITS)
#define LATENCY_DOUBLINGS 40u /* beyond the steps of 1 ns: up to three days */
#define LATENCY_BUCKETS ((LATENCY_DOUBLINGS + 1) * LATENCY_STEPS)

struct latency {
  uint64_t n;
  uint32_t counts[LATENCY_BUCKETS];
};

/* [0, 512) has a bucket for each ns, [512, 1024) one for every 2 ns, and so on. */
static inline uint32_t latency_bucket_of(uint64_t ns) {
  if (ns < LATENCY_STEPS) return (uint32_t)ns;
  uint32_t shift = 63u - (uint32_t)__builtin_clzll(ns) - LATENCY_BITS;
  if (shift >= LATENCY_DOUBLINGS) return LATENCY_BUCKETS - 1;
  return (shift + 1) * LATENCY_STEPS + (uint32_t)(ns >> shift) % LATENCY_STEPS;
}

/* The middle of a bucket. */
static inline uint64_t latency_ns_of(uint32_t bucket) {
  if (bucket < LATENCY_STEPS) return bucket;
  uint32_t shift = bucket / LATENCY_STEPS - 1;
  uint64_t first = (uint64_t)(LATENCY_STEPS + bucket % LATENCY_STEPS) << shift;
  return first + (1ull << shift) / 2;
}

static inline void latency_add(struct latency *latency, uint64_t ns) {
  latency->n++;
  latency->counts[latency_bucket_of(ns)]++;
}

/* The sample of a rank; 0 if there are no samples. */
static inline uint64_t latency_at(const struct latency *latency, uint64_t permille) {
  if (latency->n == 0) return 0;
  uint64_t rank = (latency->n - 1) * permille / 1000;
  uint32_t bucket = 0;
  for (uint64_t seen = latency->counts[0]; seen <= rank; seen += latency->counts[bucket])
    bucket++;
  return latency_ns_of(bucket);
}

/* Prints the result of a job, with percentiles, and clears the samples. */
static inline void result_print(struct latency *latency, uint64_t messages, uint64_t bytes,
                                uint64_t ns) {
  printf("{\"messages\": %lu, \"bytes\": %lu, \"ns\": %lu, ", messages, bytes, ns);
  printf("\"p50_ns\": %lu, \"p99_ns\": %lu, \"p999_ns\": %lu}\n", latency_at(latency, 500),
         latency_at(latency, 990), latency_at(latency, 999));
  memset(latency, 0, sizeof *latency);
}
