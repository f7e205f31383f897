/* SPDX-License-Identifier: Apache-2.0 */
/* Why something could not be set up: a negative errno and one line for a person. */
#ifndef MRC_IO_CAUSE_H
#define MRC_IO_CAUSE_H

struct mrc_cause {
  int error; /* -errno; 0 while all is well */
  char message[240];
};

/* Writes the line, ": " and the text of the errno, and returns -error. `error` is positive. */
int mrc_cause_errno(struct mrc_cause *cause, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same without the text of the errno, where the line says it all. */
int mrc_cause_line(struct mrc_cause *cause, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
