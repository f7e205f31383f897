/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <errno.h>

#include "program/export.h"
#include "verbs/next.h"

/* Returns what the system's library answers, for an object that is not ours; without that library
   `failed`, and errno. */
#define PASS(failed, name, version, ...)              \
  do {                                                \
    __typeof__(name) *next = vb_next(#name, version); \
    if (next) return next(__VA_ARGS__);               \
    errno = ENOSYS;                                   \
    return failed;                                    \
  } while (0)

/* The same of a function without a result. */
#define PASS_VOID(name, version, ...)                 \
  do {                                                \
    __typeof__(name) *next = vb_next(#name, version); \
    if (next) next(__VA_ARGS__);                      \
  } while (0)

/* A function that our device refuses, and whose result is 0 or an errno. */
#define REFUSE(name, version, context, parameters, ...)              \
  EXPORT int name parameters {                                       \
    if (!vb_owns(context)) PASS(ENOSYS, name, version, __VA_ARGS__); \
    return EOPNOTSUPP;                                               \
  }

/* The same that makes an object, or fails with -1. */
#define REFUSE_WITH(type, failed, name, version, context, parameters, ...) \
  EXPORT type name parameters {                                            \
    if (!vb_owns(context)) PASS(failed, name, version, __VA_ARGS__);       \
    errno = EOPNOTSUPP;                                                    \
    return failed;                                                         \
  }

/* A function that belongs to no device, or whose objects are never ours. */
#define COMMON(type, failed, name, version, parameters, ...) \
  EXPORT type name parameters { PASS(failed, name, version, __VA_ARGS__); }

/* The same without a result. */
#define DROP(name, version, parameters, ...) \
  EXPORT void name parameters { PASS_VOID(name, version, __VA_ARGS__); }
