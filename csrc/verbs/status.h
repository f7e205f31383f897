/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's words in those of verbs. */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>

#include "mrc.h"

static inline enum ibv_wc_status vb_status_of(uint32_t status) {
  switch ((enum mrc_wc_status)status) {
    case MRC_WC_SUCCESS:
      return IBV_WC_SUCCESS;
    case MRC_WC_LOC_PROT_ERR:
      return IBV_WC_LOC_PROT_ERR;
    case MRC_WC_WR_FLUSH_ERR:
      return IBV_WC_WR_FLUSH_ERR;
    case MRC_WC_REM_ACCESS_ERR:
      return IBV_WC_REM_ACCESS_ERR;
    case MRC_WC_REM_INV_REQ_ERR:
      return IBV_WC_REM_INV_REQ_ERR;
    case MRC_WC_REM_OP_ERR:
      return IBV_WC_REM_OP_ERR;
    case MRC_WC_RETRY_EXC_ERR:
      return IBV_WC_RETRY_EXC_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

/* A positive errno of verbs for a negative one of the engine. */
static inline int vb_errno_of(int error) { return error == -ENOBUFS ? ENOMEM : -error; }
