/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/domain.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "ofi/atomic.h"
#include "ofi/av.h"
#include "ofi/counter.h"
#include "ofi/cq.h"
#include "ofi/ep.h"
#include "ofi/eq.h"
#include "ofi/mr.h"
#include "ofi/object.h"

/* ---- What a domain refuses ---- */

static int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
                          void *context) {
  (void)domain, (void)info, (void)ep, (void)context;
  return -FI_ENOSYS;
}

static int no_poll(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **set) {
  (void)domain, (void)attr, (void)set;
  return -FI_ENOSYS;
}

static int no_shared_tx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx,
                        void *context) {
  (void)domain, (void)attr, (void)stx, (void)context;
  return -FI_ENOSYS;
}

static int no_shared_rx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep,
                        void *context) {
  (void)domain, (void)attr, (void)ep, (void)context;
  return -FI_ENOSYS;
}

static struct fi_ops_domain domain_ops = {.size = sizeof domain_ops,
                                          .av_open = of_av_open,
                                          .cq_open = of_cq_open,
                                          .endpoint = of_ep_open,
                                          .scalable_ep = no_scalable_ep,
                                          .cntr_open = of_counter_open,
                                          .poll_open = no_poll,
                                          .stx_ctx = no_shared_tx,
                                          .srx_ctx = no_shared_rx,
                                          .query_atomic = of_atomic_query};

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
                       void *context) {
  (void)info;
  struct of_object *made = of_object_new(sizeof *made, &fabric->fid);
  if (!made) return -FI_ENOMEM;
  made->domain = (struct fid_domain){
      .fid = {.fclass = FI_CLASS_DOMAIN, .context = context, .ops = &of_plain_ops},
      .ops = &domain_ops,
      .mr = &of_mr_ops};
  *domain = &made->domain;
  return 0;
}

/* ---- Fabrics ---- */

static int no_passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **ep,
                         void *context) {
  (void)fabric, (void)info, (void)ep, (void)context;
  return -FI_ENOSYS;
}

static int no_wait(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **set) {
  (void)fabric, (void)attr, (void)set;
  return -FI_ENOSYS;
}

static int no_try(struct fid_fabric *fabric, struct fid **fids, int count) {
  (void)fabric, (void)fids, (void)count;
  return -FI_ENOSYS;
}

static struct fi_ops_fabric fabric_ops = {.size = sizeof fabric_ops,
                                          .domain = open_domain,
                                          .passive_ep = no_passive_ep,
                                          .eq_open = of_eq_open,
                                          .wait_open = no_wait,
                                          .trywait = no_try};

int of_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
  struct of_object *made = of_object_new(sizeof *made, NULL);
  if (!made) return -FI_ENOMEM;
  made->fabric = (struct fid_fabric){
      .fid = {.fclass = FI_CLASS_FABRIC, .context = context, .ops = &of_plain_ops},
      .ops = &fabric_ops,
      .api_version = attr->api_version};
  *fabric = &made->fabric;
  return 0;
}
