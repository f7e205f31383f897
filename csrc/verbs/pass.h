/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MRC_VERBS_PASS_H
#define MRC_VERBS_PASS_H

#include <errno.h>

#include "verbs/next.h"

/* Returns what the system's library answers, for an object that is not ours; without that library
   `failed`, and errno. */
#define PASS(type, failed, name, version, parameters, arguments) \
  do {                                                           \
    type(*next) parameters = vb_next(name, version);             \
    if (next) return next arguments;                             \
    errno = ENOSYS;                                              \
    return failed;                                               \
  } while (0)

#endif
