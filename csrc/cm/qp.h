/* SPDX-License-Identifier: Apache-2.0 */
/* The QP of an id, and its states. */
#pragma once

#include "cm/process.h"

/* Moves the QP of an id, if it has one, to RTS, with the peer that the id knows; a positive errno.
 */
int cm_qp_connect(struct cm_id *id);
/* Moves it to ERROR: what is posted there ends. */
void cm_qp_fail(struct cm_id *id);
