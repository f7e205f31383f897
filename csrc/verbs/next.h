/* SPDX-License-Identifier: Apache-2.0 */
/* The system's own libibverbs, for devices that are not ours. */
#pragma once

/* The function of this name and version, or NULL when the system has no libibverbs with it. */
void *vb_next(const char *name, const char *version);
