/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <errno.h>

#include "verbs/api.h"

struct mrc_api_context {
  struct ibv_context *verbs;
  uint32_t version; /* that the program was compiled for; 0: the newest */
};

static inline int fail(int error) {
  errno = error;
  return -1;
}
