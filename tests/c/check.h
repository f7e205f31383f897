/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C test harness. A file tests/c/test_<noun>.c tests that noun of csrc and looks like this:
 *
 *   #include "check.h"
 *   #include "core/base.h"
 *
 *   TEST(test_add__wraps) { CHECK_EQ(mrc_psn_add(0xFFFFFF, 1), 0); }
 *
 * tests/c/test_c.py finds the file, compiles it with gcc's address and undefined behaviour
 * sanitizers, links it with all of csrc/core (and with csrc/io or csrc/sim, when the file includes
 * a header from there), and shows each function as one pytest result. A program that
 * includes from csrc/io runs under the thread sanitizer too:
 *
 *   tools/test tests/c                     all of them
 *   tools/test tests/c -k base             one program
 *   build/tests/asan/bin/test_base         one program by hand; --list, or names of functions
 *
 * A check that fails prints its place and values, on any thread. The function then goes on, so
 * guard statements that would crash:
 *
 *   CHECK(condition)
 *   REQUIRE(condition)                     ends the program: for what a test cannot do without
 *   CHECK_EQ(actual, expected)             integers of any kind, enums, bools
 *   CHECK_PTR_EQ(actual, expected)
 *   CHECK_STR_EQ(actual, expected)
 *   CHECK_MEM_EQ(actual, expected, bytes)  prints the first byte that differs
 *   CHECK_FAIL("row %d: ...", ...)         for a table: say which row
 *   CHECK_ROW(i)                           adds the row to the messages of the checks that follow
 *   EACH_ROW(i, rows) {                    a loop over the rows of a table, with CHECK_ROW
 *   EACH_OF(int, i, 0, 5) {                a loop over numbers, from 0 to 4, with CHECK_ROW
 *   FREED_BY(mrc_txwin_free) struct ...    a variable that this function frees behind its block
 *
 * A test that pytest marks `more` or `slow` is a MORE(test_name) or a SLOW(test_name) instead of a
 * TEST.
 *
 * A test that cannot run here prints a line "skipped: REASON" and returns.
 *
 * Prefer a row of a table to a new function: inputs on the left, expected state on the right.
 */
#pragma once

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check_test {
  const char *name;
  void (*run)(void);
};

static atomic_int check_failures; /* of the running test function */
static _Thread_local int check_row = -1;

#define CHECK_SHOWN 20 /* printed failures of one function */

enum { PATIENCE_MS = 150000 }; /* how long a test waits for an event: only a hang takes longer */

__attribute__((unused, format(printf, 3, 4))) static void check_failed(const char *file, int line,
                                                                       const char *format, ...) {
  int before = atomic_fetch_add(&check_failures, 1);
  if (before >= CHECK_SHOWN) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  char row[32] = "";
  if (check_row >= 0) snprintf(row, sizeof row, "row %d: ", check_row);
  printf("  %s:%d: %s%s\n", file, line, row, text);
}

__attribute__((unused)) static void check_eq(const char *file, int line, const char *text,
                                             int64_t actual, int64_t expected) {
  if (actual == expected) return;
  check_failed(file, line,
               "%s is %" PRId64 " (0x%" PRIx64 "), expected %" PRId64 " (0x%" PRIx64 ")", text,
               actual, (uint64_t)actual, expected, (uint64_t)expected);
}

__attribute__((unused)) static void check_mem_eq(const char *file, int line, const char *text,
                                                 const void *actual, const void *expected,
                                                 size_t bytes) {
  const uint8_t *a = actual;
  const uint8_t *b = expected;
  if (memcmp(a, b, bytes) == 0) return; /* far sooner than byte by byte, as tests are compiled */
  for (size_t i = 0; i < bytes; i++) {
    if (a[i] == b[i]) continue;
    check_failed(file, line, "%s: byte %zu is %02x, expected %02x", text, i, a[i], b[i]);
    return;
  }
}

__attribute__((unused)) static void check_str_eq(const char *file, int line, const char *text,
                                                 const char *actual, const char *expected) {
  if (actual != NULL && expected != NULL && strcmp(actual, expected) == 0) return;
  if (actual == expected) return;
  check_failed(file, line, "%s is \"%s\", expected \"%s\"", text, actual ? actual : "(null)",
               expected ? expected : "(null)");
}

#define CHECK(condition) \
  ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, "not true: %s", #condition))
#define REQUIRE(condition) ((condition) ? (void)0 : (CHECK_FAIL("needs: %s", #condition), exit(1)))
#define CHECK_EQ(actual, expected) \
  check_eq(__FILE__, __LINE__, #actual, (int64_t)(actual), (int64_t)(expected))
#define CHECK_PTR_EQ(actual, expected) \
  check_eq(__FILE__, __LINE__, #actual, (int64_t)(intptr_t)(actual), (int64_t)(intptr_t)(expected))
#define CHECK_STR_EQ(actual, expected) check_str_eq(__FILE__, __LINE__, #actual, actual, expected)
#define CHECK_MEM_EQ(actual, expected, bytes) \
  check_mem_eq(__FILE__, __LINE__, #actual, actual, expected, bytes)
#define CHECK_FAIL(...) check_failed(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK_ROW(i) ((void)(check_row = (int)(i)))
#define EACH_ROW(i, rows) \
  for (size_t i = 0; i < sizeof rows / sizeof rows[0] && (check_row = (int)i, true); i++)

#define EACH_OF(type, i, first, end) \
  for (type i = (first); i < (end) && (check_row = (int)i, true); i++)
#define FREED_BY(release) __attribute__((cleanup(release)))

static struct check_test check_tests[64];
static size_t check_n;

/* Defines a test function, which `main` finds. */
#define TEST(name)                                             \
  static void name(void);                                      \
  __attribute__((constructor)) static void name##_(void) {     \
    check_tests[check_n++] = (struct check_test){#name, name}; \
  }                                                            \
  static void name(void)
#define MORE(name) TEST(name)
#define SLOW(name) TEST(name)

/* The exit status: 0 when all tests passed, 1 when one failed, 2 for an unknown name. */
int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0); /* keeps the lines printed before a crash */
  bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
  int passed = 0;
  int failed = 0;
  for (size_t i = 0; i < check_n; i++) {
    bool wanted = argc <= 1;
    for (int k = 1; k < argc; k++)
      wanted |= strcmp(argv[k], check_tests[i].name) == 0;
    if (list) puts(check_tests[i].name);
    if (list || !wanted) continue;
    atomic_store(&check_failures, 0);
    check_row = -1;
    check_tests[i].run();
    bool bad = atomic_load(&check_failures) != 0;
    printf("%s %s\n", bad ? "FAILED" : "ok", check_tests[i].name);
    *(bad ? &failed : &passed) += 1;
  }
  if (list) return 0;
  printf("%d passed, %d failed\n", passed, failed);
  if (passed + failed == 0) return 2;
  return failed != 0;
}
