/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of memory of other endpoints. */
#pragma once

#include <rdma/fi_rma.h>

extern struct fi_ops_rma of_rma_ops;
