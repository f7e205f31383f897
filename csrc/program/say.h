/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of libmrc for the user of a program, on stderr. MRC_QUIET=1 silences them. */
#pragma once

#include <stdatomic.h>

/* Prints "libmrc: " and a line; a process prints at most a few. */
void pr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, once in a process: programs may try again. */
#define PR_SAY_ONCE(...)                                       \
  do {                                                         \
    static atomic_flag said = ATOMIC_FLAG_INIT;                \
    if (!atomic_flag_test_and_set(&said)) pr_say(__VA_ARGS__); \
  } while (0)
