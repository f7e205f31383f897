/* SPDX-License-Identifier: Apache-2.0 */
/* Receives with FI_MULTI_RECV: memory for one message after the other. Under the lock. */
#ifndef MRC_OFI_MULTI_H
#define MRC_OFI_MULTI_H

#include "ofi/operation.h"

/* A message has arrived for such a receive. Another operation goes on with the rest of its memory,
   unless that is too short: then the completion says so. */
void of_multi_go_on(struct of_operation *operation);

#endif
