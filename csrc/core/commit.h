/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of packets after the driver has offered them to the kernel. */
#ifndef MRC_CORE_COMMIT_H
#define MRC_CORE_COMMIT_H

#include "endpoint.h"

/* Every packet of the burst was taken (1) or refused (0), or failed with a negative errno. */
void mrc_commit_burst(struct mrc_services *services, struct mrc_endpoint *endpoint,
                      struct mrc_qp *qp, const struct mrc_burst *burst, int taken, uint64_t now_ns);
/* A send failed outright, for example without a route. Under SRv6 each EV has its own route, so the
   EV is to blame, and the plane only when its rotation cannot get any smaller. An EV probe blames
   nobody: its error is its result. */
void mrc_commit_blame(struct mrc_services *services, struct mrc_qp *qp,
                      const struct mrc_burst *burst, int error, uint64_t now_ns);

#endif
