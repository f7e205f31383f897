/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of libmrc for the user of a program, on stderr. MRC_QUIET=1 silences them. */
#ifndef MRC_VERBS_SAY_H
#define MRC_VERBS_SAY_H

/* Prints "libmrc: " and a line; a process prints at most a few. */
void vb_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
