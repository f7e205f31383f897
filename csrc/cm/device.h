/* SPDX-License-Identifier: Apache-2.0 */
/* The device mrc0 of libmrc, to which all ids belong. */
#pragma once

#include "cm/process.h"

/* Opens the device, and attaches the process to the agent; a positive errno. */
int cm_device_open(void);
/* Binds an id to the device, and to its GID of this family (AF_INET, AF_INET6); a positive errno.
 */
int cm_device_take(struct cm_id *id, int family);
/* The GID of an id at the device. */
int cm_device_gid(const struct cm_id *id, uint8_t gid[16]);
