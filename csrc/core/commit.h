/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the result of each packet that the driver has passed to the kernel. */
#pragma once

#include "core/endpoint/endpoint.h"

/* Commits a burst. `taken`: the kernel took it (1), had no room (0), or failed (negative errno). */
void mrc_commit_burst(struct mrc_services *services, struct mrc_endpoint *endpoint,
                      struct mrc_qp *qp, const struct mrc_burst *burst, int taken, uint64_t now_ns);
/* A send failed, for example because there is no route. Under SRv6 each EV has its own route, so
   the EV becomes ASSUMED_BAD. The plane is suspended instead if its rotation is at the minimum or
   the error concerns the interface. The error of an EV probe is only the result of that probe. */
void mrc_commit_blame(struct mrc_services *services, struct mrc_qp *qp,
                      const struct mrc_burst *burst, int error, uint64_t now_ns);
