/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <errno.h>

#include "program/export.h"
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

/* A function that our device refuses, and whose result is 0 or an errno. */
#define REFUSE(name, version, context, parameters, types, arguments)            \
  EXPORT int name parameters {                                                  \
    if (!vb_owns(context)) PASS(int, ENOSYS, #name, version, types, arguments); \
    return EOPNOTSUPP;                                                          \
  }

/* The same that makes an object, or fails with -1. */
#define REFUSE_WITH(type, failed, name, version, context, parameters, types, arguments) \
  EXPORT type name parameters {                                                         \
    if (!vb_owns(context)) PASS(type, failed, #name, version, types, arguments);        \
    errno = EOPNOTSUPP;                                                                 \
    return failed;                                                                      \
  }

/* A function that belongs to no device, or whose objects are never ours. */
#define COMMON(type, failed, name, version, parameters, types, arguments) \
  EXPORT type name parameters { PASS(type, failed, #name, version, types, arguments); }

/* The same without a result. */
#define DROP(name, version, parameters, types, arguments) \
  EXPORT void name parameters {                           \
    void(*next) types = vb_next(#name, version);          \
    if (next) next arguments;                             \
  }
