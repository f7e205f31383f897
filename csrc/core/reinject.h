/* SPDX-License-Identifier: Apache-2.0 */
/* A packet that all others wait for, on a slow plane: it is sent again elsewhere, although nothing
   says that it is lost, and its plane gets less from then on. */
#ifndef MRC_CORE_REINJECT_H
#define MRC_CORE_REINJECT_H

#include "qp.h"

/* When that packet is sent again elsewhere. With more to send that is when the quickest plane would
   have brought it. When only the end waits for it, a plane that is long but has no queue does not
   count as late. It is done at doubling distances, a few times at most. */
uint64_t mrc_reinject_deadline(const struct mrc_services *services, const struct mrc_qp *qp);
void mrc_reinject_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);

#endif
