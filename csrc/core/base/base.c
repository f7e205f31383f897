/* SPDX-License-Identifier: Apache-2.0 */
#include "base.h"

#include <stdio.h>
#include <stdlib.h>

void mrc_assert_failed(const char *expression, const char *file, int line) {
  fprintf(stderr, "mrc: assertion failed: %s (%s:%d)\n", expression, file, line);
  abort();
}
