/* SPDX-License-Identifier: Apache-2.0 */
/* Why a set-up failed: a negative errno and one line of text. */
#pragma once

struct mrc_cause {
  int error; /* -errno; 0: no error */
  char message[240];
};

/* Writes the line, ": " and the text of the errno, and returns -error. `error` is positive. */
int mrc_cause_errno(struct mrc_cause *cause, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same without the text of the errno, if the line explains enough. */
int mrc_cause_line(struct mrc_cause *cause, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
