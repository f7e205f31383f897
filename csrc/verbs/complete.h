/* SPDX-License-Identifier: Apache-2.0 */
/* From completions of the engine to those of verbs. Under the lock. */
#pragma once

#include "verbs/objects.h"

/* A completion of the engine. */
void vb_complete(const struct mrc_wc *wc);
/* The engine has refused a work request. */
void vb_complete_refused(uint32_t qpn, uint32_t place, int error);
/* Completes work requests that the engine never sees, if it is their turn. */
void vb_complete_done(struct vb_qp *qp);
/* The oldest outstanding work request is done. */
void vb_complete_next(struct vb_qp *qp);
/* Moves the QP to ERROR in the engine, too. */
void vb_complete_fail_engine(struct vb_qp *qp);
/* The QP is in ERROR: the oldest outstanding work request completes with `status`, the others are
   flushed. */
void vb_complete_failed(struct vb_qp *qp, enum ibv_wc_status status);
/* A receive was posted. */
void vb_complete_held(struct vb_qp *qp);
/* The engine's event: a QP went to ERROR. */
void vb_complete_error(uint32_t qpn, uint32_t status);
