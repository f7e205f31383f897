/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/info.h"

#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "ofi/operation.h"
#include "ofi/transfer.h"
#include "program/agent.h"
#include "program/process.h"

#define FABRIC "mrc"
#define DOMAIN "mrc0"
#define TX_CAPS (FI_MSG | FI_TAGGED | FI_SEND)
#define RX_CAPS (FI_MSG | FI_TAGGED | FI_RECV | FI_SOURCE | FI_DIRECTED_RECV)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define CAPS (TX_CAPS | RX_CAPS | DOMAIN_CAPS | FI_REMOTE_CQ_DATA)
#define OP_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE)

/* Marks a value that only one provider defines. libfabric 2 has no name for this bit. */
#define OF_SPECIFIC (1u << 31)
#define ADDRESS_FORMAT (OF_SPECIFIC | 0x4d5243)
#define PROTOCOL (OF_SPECIFIC | 0x4d5243)

enum { PROTOCOL_VERSION = 1, VERSION = 1, CQ_DATA_BYTES = 4 };

/* A later libfabric has longer structs and frees them as its own: zeros follow ours. */
enum { LATER_BYTES = 256 };

/* ---- Hints ---- */

static bool fits_domain(const struct fi_domain_attr *hints) {
  if (!hints) return true;
  if (hints->name && strcmp(hints->name, DOMAIN) != 0) return false;
  return (hints->caps & ~DOMAIN_CAPS) == 0 && hints->cq_data_size <= CQ_DATA_BYTES;
}

static bool fits_endpoint(const struct fi_ep_attr *hints) {
  if (!hints) return true;
  if (hints->type != FI_EP_UNSPEC && hints->type != FI_EP_RDM) return false;
  return hints->tx_ctx_cnt <= 1 && hints->rx_ctx_cnt <= 1 && hints->auth_key_size == 0;
}

static bool fits_transfer(const struct fi_info *hints) {
  const struct fi_tx_attr *tx = hints->tx_attr;
  const struct fi_rx_attr *rx = hints->rx_attr;
  if (tx && (tx->op_flags & ~OP_FLAGS || tx->inject_size > OF_INJECT_BYTES || tx->iov_limit > 1 ||
             tx->size > OF_OPERATIONS || tx->msg_order & ~FI_ORDER_SAS || tx->comp_order != 0))
    return false;
  return !rx ||
         (!(rx->op_flags & ~FI_COMPLETION) && rx->iov_limit <= 1 && rx->size <= OF_OPERATIONS &&
          !(rx->msg_order & ~FI_ORDER_SAS) && rx->comp_order == 0);
}

static bool fits(const struct fi_info *hints) {
  if (!hints) return true;
  if (hints->caps & ~CAPS || !(hints->mode & FI_CONTEXT)) return false;
  if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != ADDRESS_FORMAT) return false;
  if (hints->dest_addr || hints->src_addr) return false;
  const struct fi_fabric_attr *fabric = hints->fabric_attr;
  if (fabric && fabric->name && strcmp(fabric->name, FABRIC) != 0) return false;
  return fits_domain(hints->domain_attr) && fits_endpoint(hints->ep_attr) && fits_transfer(hints);
}

/* ---- The offer ---- */

static void *copy_of(const void *from, size_t bytes) {
  void *made = calloc(1, bytes + LATER_BYTES);
  if (made) memcpy(made, from, bytes);
  return made;
}

static const struct fi_tx_attr tx = {.caps = TX_CAPS,
                                     .mode = FI_CONTEXT,
                                     .msg_order = FI_ORDER_SAS,
                                     .inject_size = OF_INJECT_BYTES,
                                     .size = OF_OPERATIONS,
                                     .iov_limit = 1};
static const struct fi_rx_attr rx = {.caps = RX_CAPS,
                                     .mode = FI_CONTEXT,
                                     .msg_order = FI_ORDER_SAS,
                                     .size = OF_OPERATIONS,
                                     .iov_limit = 1};
static const struct fi_ep_attr ep = {
    .type = FI_EP_RDM,
    .protocol = PROTOCOL,
    .protocol_version = PROTOCOL_VERSION,
    .max_msg_size = 1ull << 40,
    .mem_tag_format = 0xaaaaaaaaaaaaaaaa, /* all bits are one field */
    .tx_ctx_cnt = 1,
    .rx_ctx_cnt = 1};
static const struct fi_domain_attr domain = {.threading = FI_THREAD_SAFE,
                                             .control_progress = FI_PROGRESS_AUTO,
                                             .data_progress = FI_PROGRESS_AUTO,
                                             .resource_mgmt = FI_RM_ENABLED,
                                             .av_type = FI_AV_UNSPEC,
                                             .cq_data_size = CQ_DATA_BYTES,
                                             .cq_cnt = 1024,
                                             .ep_cnt = 1,
                                             .tx_ctx_cnt = 1,
                                             .rx_ctx_cnt = 1,
                                             .max_ep_tx_ctx = 1,
                                             .max_ep_rx_ctx = 1,
                                             .caps = DOMAIN_CAPS};

static bool is_complete(const struct fi_info *info) {
  return info->tx_attr && info->rx_attr && info->ep_attr && info->domain_attr &&
         info->domain_attr->name && info->fabric_attr && info->fabric_attr->name &&
         info->fabric_attr->prov_name;
}

static void free_offer(struct fi_info *info) {
  if (info->domain_attr) free(info->domain_attr->name);
  if (info->fabric_attr) free(info->fabric_attr->name);
  if (info->fabric_attr) free(info->fabric_attr->prov_name);
  free(info->tx_attr);
  free(info->rx_attr);
  free(info->ep_attr);
  free(info->domain_attr);
  free(info->fabric_attr);
  free(info);
}

/* An unset field of the hints takes all there is. */
static void narrow(struct fi_info *info, const struct fi_info *hints) {
  if (!hints) return;
  if (hints->caps)
    info->caps = hints->caps | (hints->caps & (FI_MSG | FI_TAGGED) ? FI_SEND | FI_RECV : 0);
  if (hints->tx_attr) info->tx_attr->op_flags = hints->tx_attr->op_flags;
  if (hints->rx_attr) info->rx_attr->op_flags = hints->rx_attr->op_flags;
  if (hints->domain_attr) info->domain_attr->av_type = hints->domain_attr->av_type;
}

static struct fi_info *offer(uint32_t version, const struct fi_info *hints) {
  const struct fi_info plain = {
      .caps = CAPS, .mode = FI_CONTEXT, .addr_format = ADDRESS_FORMAT, .src_addrlen = 0};
  const struct fi_fabric_attr fabric = {.prov_version = VERSION, .api_version = version};
  struct fi_info *info = copy_of(&plain, sizeof plain);
  if (!info) return NULL;
  info->tx_attr = copy_of(&tx, sizeof tx);
  info->rx_attr = copy_of(&rx, sizeof rx);
  info->ep_attr = copy_of(&ep, sizeof ep);
  info->domain_attr = copy_of(&domain, sizeof domain);
  info->fabric_attr = copy_of(&fabric, sizeof fabric);
  if (info->domain_attr) info->domain_attr->name = strdup(DOMAIN);
  if (info->fabric_attr) info->fabric_attr->name = strdup(FABRIC);
  if (info->fabric_attr) info->fabric_attr->prov_name = strdup(OF_PROVIDER);
  if (is_complete(info)) {
    narrow(info, hints);
    return info;
  }
  free_offer(info);
  return NULL;
}

int of_info(uint32_t version, const char *node, const char *service, uint64_t flags,
            const struct fi_info *hints, struct fi_info **info) {
  (void)flags;
  if (node || service || !fits(hints)) return -FI_ENODATA;
  if (!pr_process.ctx && !pr_link_is_there()) return -FI_ENODATA;
  *info = offer(version, hints);
  return *info ? 0 : -FI_ENOMEM;
}
