/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A main for fuzz targets without libFuzzer: runs every file as it is and then a number of
 * mutations of it, the same in every run.
 *
 *   fuzz_<what> MUTATIONS FILE...
 *
 * When the target fails, it prints the failing input in hex.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { ROOM = 4096, LONGER = 64, STEPS = 8 };

static uint8_t input[ROOM];
static size_t input_bytes;
static const char *input_file;
static uint64_t state = 0x9E3779B97F4A7C15u;

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void print_input(void) {
  fprintf(stderr, "failed on an input made from %s:\n", input_file);
  for (size_t i = 0; i < input_bytes; i++)
    fprintf(stderr, "%02x", input[i]);
  fputc('\n', stderr);
}

static void on_abort(int signal_number) {
  (void)signal_number;
  print_input();
}

/* xorshift64: a number in [0, limit). */
static size_t below(size_t limit) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (size_t)(state % limit);
}

/* A copy of exactly the input's size, so that the address sanitizer sees any access beyond it. */
static void run(void) {
  uint8_t *copy = malloc(input_bytes + 1);
  memcpy(copy + 1, input, input_bytes);
  LLVMFuzzerTestOneInput(copy + 1, input_bytes);
  free(copy);
}

static void mutate_once(void) {
  static const uint8_t edges[] = {0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF};
  size_t kind = below(5);
  size_t at = input_bytes > 0 ? below(input_bytes) : 0;
  if (kind == 0 && input_bytes > 0) input[at] ^= (uint8_t)(1u << below(8));
  if (kind == 1 && input_bytes > 0) input[at] = (uint8_t)below(256);
  if (kind == 2 && input_bytes > 0) input[at] = edges[below(sizeof edges)];
  if (kind == 3) input_bytes = at;
  if (kind == 4) {
    size_t room = ROOM - input_bytes;
    size_t more = below(room < LONGER ? room + 1 : LONGER);
    for (size_t i = 0; i < more; i++)
      input[input_bytes++] = (uint8_t)below(256);
  }
}

static bool replay(const char *name, long mutations) {
  static uint8_t seed[ROOM];
  FILE *file = fopen(name, "rb");
  if (file == NULL) {
    perror(name);
    return false;
  }
  size_t seed_bytes = fread(seed, 1, ROOM, file);
  fclose(file);
  input_file = name;
  for (long i = 0; i <= mutations; i++) {
    memcpy(input, seed, seed_bytes);
    input_bytes = seed_bytes;
    size_t steps = i == 0 ? 0 : 1 + below(STEPS);
    for (size_t k = 0; k < steps; k++)
      mutate_once();
    run();
  }
  return true;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s MUTATIONS FILE...\n", argv[0]);
    return 2;
  }
  signal(SIGABRT, on_abort);
  if (__sanitizer_set_death_callback != NULL) __sanitizer_set_death_callback(print_input);
  long mutations = strtol(argv[1], NULL, 10);
  for (int i = 2; i < argc; i++) {
    if (!replay(argv[i], mutations)) return 2;
  }
  printf("replayed %d files, %ld inputs\n", argc - 2, (argc - 2) * (mutations + 1));
  return 0;
}
