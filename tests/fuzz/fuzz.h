/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target is one file fuzz_<what>.c: its first comment states the invariant, its one function
 * is the entry that libFuzzer calls and asserts the invariant. Seeds lie in corpus/<what>/.
 *
 * `tools/test tests/fuzz` replays every target under gcc's sanitizers; to run one for longer:
 *
 *   build/tests/asan/bin/fuzz_wire 100000 tests/fuzz/corpus/wire/sack
 *
 * With clang, `tools/fuzz wire` runs libFuzzer, which finds more than blind mutation. Add each
 * finding as a test in tests/c and as a seed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The remaining input. */
struct fuzz_input {
  const uint8_t *bytes;
  size_t n;
};

/* The next n bytes as one number, most significant first; missing bytes are 0. */
static inline uint64_t fuzz_take(struct fuzz_input *input, size_t n) {
  uint64_t value = 0;
  for (size_t i = 0; i < n; i++) {
    value = value << 8 | (input->n > 0 ? *input->bytes : 0);
    input->bytes += input->n > 0;
    input->n -= input->n > 0;
  }
  return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
