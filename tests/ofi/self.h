/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint that talks to itself, and its completions. */
#pragma once

#include "endpoint.h"

enum { LONG = 1 << 16, WAIT_MS = 60000 };

static char out[LONG], in[LONG];
static fi_addr_t self;

/* An endpoint that can talk to itself. `selective`: or 0. */
static void open_all(uint64_t caps, uint64_t selective) {
  open_domain(caps);
  IS(fi_ep_bind(ep, &(av = new_av())->fid, 0), 0);
  IS(fi_ep_bind(ep, &(cq = new_cq())->fid, FI_TRANSMIT | FI_RECV | selective), 0);
  IS(fi_enable(ep), 0);
  unsigned char name[ADDRESS_BYTES];
  own_name(name);
  IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
}

static struct fi_cq_tagged_entry entry;
static fi_addr_t source;

/* The next completion, which is none of an error. */
static inline void await(void *context) {
  IS(fi_cq_sreadfrom(cq, &entry, 1, &source, NULL, WAIT_MS), 1);
  CHECK(entry.op_context == context);
}

/* The next completion, which is one of an error. */
static inline void await_error(int error, const void *context) {
  struct fi_cq_err_entry failed = {.err_data = out};
  IS(fi_cq_sread(cq, &entry, 1, NULL, WAIT_MS), -FI_EAVAIL);
  IS(fi_cq_readerr(cq, &failed, 0), 1);
  IS(failed.err, error);
  CHECK(!failed.err_data); /* it was no buffer: err_data_size is 0 */
  CHECK(failed.op_context == context);
}
