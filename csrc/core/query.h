/* SPDX-License-Identifier: Apache-2.0 */
/* What drivers ask of an engine beyond csrc/mrc.h. */
#ifndef MRC_CORE_QUERY_H
#define MRC_CORE_QUERY_H

#include "../mrc.h"

/* 0 past the end. */
const char *mrc_engine_counter_name(int index);
/* The ports that EVs of any QP name, bit n - 1 for port n. */
uint32_t mrc_engine_ports_used(const mrc_engine *engine);
/* Whether what is placed for a QP counts as RX_RECORDED too; -ENOENT. */
int mrc_qp_record(mrc_engine *engine, uint32_t qpn, bool recorded);

#endif
