/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/cause.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int mrc_cause_errno(struct mrc_cause *cause, int error, const char *format, ...) {
  char text[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return mrc_cause_line(cause, error, "%s: %s", text, strerrordesc_np(error));
}

int mrc_cause_line(struct mrc_cause *cause, int error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(cause->message, sizeof cause->message, format, arguments);
  va_end(arguments);
  cause->error = -error;
  return -error;
}
