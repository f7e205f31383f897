/* SPDX-License-Identifier: Apache-2.0 */
/* Which changes of a QP's state verbs allow, and with which attributes. Pure. */
#pragma once

#include <infiniband/verbs.h>
#include <stdbool.h>

bool vb_transition_is_legal(enum ibv_qp_state from, enum ibv_qp_state to);

/* 0 or EINVAL, as the kernel's drivers: the mask of a legal change must have all attributes that
   the change requires, and no others than those that it allows. */
int vb_transition_check(enum ibv_qp_state from, enum ibv_qp_state to, int mask);
