/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of both sweeps: draws from a seed, runs it twice, compares the traces, and prints how
   to repeat a failure. */
#pragma once

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static uint64_t seed;
static bool verbose;
static const char *sweep_name;

static uint32_t below(struct mrc_prng *prng, uint32_t n) { return mrc_prng_below(prng, n); }
static bool one_in(struct mrc_prng *prng, uint32_t n) { return below(prng, n) == 0; }
#define PICK(prng, ...) \
  (((const uint64_t[]){ \
      __VA_ARGS__})[below(prng, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))])

static void on_abort(int number) {
  (void)number;
  fprintf(stderr, "seed %" PRIu64 " failed; repeat it with: %s %" PRIu64 " 1 -v\n", seed,
          sweep_name, seed);
}

/* The program: NAME FIRST COUNT [-v|-t]; -t prints each seed's trace. `run_once` runs `seed` and
   returns the trace. */
static int run_seeds(const char *name, int argc, char **argv, uint64_t (*run_once)(void)) {
  sweep_name = name;
  if (argc < 3) {
    fprintf(stderr, "usage: %s FIRST COUNT [-v|-t]\n", name);
    return 2;
  }
  const uint64_t first = strtoull(argv[1], NULL, 0), count = strtoull(argv[2], NULL, 0);
  const bool traces = argc > 3 && strcmp(argv[3], "-t") == 0;
  verbose = argc > 3 && !traces;
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGABRT, on_abort);
  for (seed = first; seed < first + count; seed++) {
    const uint64_t trace = run_once();
    mrc_assert(run_once() == trace);
    if (traces) printf("%" PRIu64 " %016" PRIx64 "\n", seed, trace);
  }
  printf("%" PRIu64 " seeds passed\n", count);
  return 0;
}
