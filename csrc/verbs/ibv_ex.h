/* SPDX-License-Identifier: Apache-2.0 */
/* The extended interface of CQs and QPs: functions in the objects. */
#pragma once

#include "verbs/objects.h"

struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
struct ibv_qp *vb_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
