/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/library.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINES = 16, LINE_BYTES = 400 };

void pr_say(const char *format, ...) {
  static atomic_int lines;
  const char *quiet = getenv("MRC_QUIET");
  if (quiet && strcmp(quiet, "1") == 0) return;
  if (atomic_fetch_add(&lines, 1) >= MOST_LINES) return;
  char line[LINE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s: %s\n", pr_owner.name, line);
}
