/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint of type FI_EP_RDM and what belongs to it, for programs of one source file. */
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRESS_BYTES = 36, SHORT = 100 };

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)
#define IS(call, expected)                                                                  \
  do {                                                                                      \
    const long result = (long)(call);                                                       \
    if (result == (long)(expected)) break;                                                  \
    fprintf(stderr, "%s:%d: %s: %ld (%s)\n", __FILE__, __LINE__, #call, result, #expected); \
    exit(1);                                                                                \
  } while (0)

/* ---- What is open ---- */

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;

static struct fi_info *hints_for(uint64_t caps) {
  struct fi_info *hints = fi_allocinfo();
  hints->caps = caps;
  hints->ep_attr->type = FI_EP_RDM;
  if (caps & (FI_RMA | FI_ATOMIC)) hints->domain_attr->mr_mode = 1; /* FI_MR_BASIC, deprecated */
  hints->fabric_attr->prov_name = strdup("mrc");
  return hints;
}

static struct fi_info *offer_for(uint64_t caps) {
  struct fi_info *hints = hints_for(caps), *found;
  IS(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &found), 0);
  fi_freeinfo(hints);
  return found;
}

static void open_domain(uint64_t caps) {
  info = offer_for(caps);
  IS(fi_fabric(info->fabric_attr, &fabric, NULL), 0);
  IS(fi_domain(fabric, info, &domain, NULL), 0);
  IS(fi_endpoint(domain, info, &ep, NULL), 0);
}

static struct fid_av *new_av(void) {
  struct fi_av_attr attr = {.type = FI_AV_TABLE};
  struct fid_av *made;
  IS(fi_av_open(domain, &attr, &made, NULL), 0);
  return made;
}

static struct fid_cq *new_cq(void) {
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
  struct fid_cq *made;
  IS(fi_cq_open(domain, &attr, &made, NULL), 0);
  return made;
}

static void own_name(unsigned char name[ADDRESS_BYTES]) {
  size_t bytes = ADDRESS_BYTES;
  IS(fi_getname(&ep->fid, name, &bytes), 0);
  IS(bytes, ADDRESS_BYTES);
}

static inline void close_domain(void) {
  IS(fi_close(&domain->fid), 0);
  IS(fi_close(&fabric->fid), 0);
  fi_freeinfo(info);
}

static inline void close_all(void) {
  IS(fi_close(&ep->fid), 0);
  IS(fi_close(&cq->fid), 0);
  IS(fi_close(&av->fid), 0);
  close_domain();
}

/* ---- An endpoint that talks to itself, and its completions ---- */

enum { LONG = 1 << 16, WAIT_MS = 60000 };

__attribute__((unused)) static char out[LONG], in[LONG];
static fi_addr_t self;

/* An endpoint that can talk to itself. `selective`: or 0. */
static inline void open_all(uint64_t caps, uint64_t selective) {
  open_domain(caps);
  IS(fi_ep_bind(ep, &(av = new_av())->fid, 0), 0);
  IS(fi_ep_bind(ep, &(cq = new_cq())->fid, FI_TRANSMIT | FI_RECV | selective), 0);
  IS(fi_enable(ep), 0);
  unsigned char name[ADDRESS_BYTES];
  own_name(name);
  IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
}

static struct fi_cq_tagged_entry entry;
__attribute__((unused)) static fi_addr_t source;

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

/* ---- Cases ---- */

struct trial {
  const char *name;
  void (*run)(void);
};

/* Runs those that the command line names, or all; prints the name of each that has passed. */
static inline void run(const struct trial *trials, size_t n, int argc, char **argv) {
  for (size_t i = 0; i < n; i++) {
    bool chosen = argc == 1;
    for (int j = 1; j < argc; j++)
      chosen |= strcmp(argv[j], trials[i].name) == 0;
    if (!chosen) continue;
    trials[i].run();
    printf("%s\n", trials[i].name);
    fflush(stdout);
  }
}
