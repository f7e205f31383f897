/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/av.h"

#include <arpa/inet.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ofi/object.h"
#include "ofi/peer.h"
#include "program/process.h"

static int insert(struct fid_av *av, const void *addresses, size_t count, fi_addr_t *found,
                  uint64_t flags, void *context) {
  (void)av;
  (void)flags;
  (void)context;
  size_t n = 0;
  pr_lock();
  for (size_t i = 0; i < count; i++) {
    struct mrc_agent_point point;
    memcpy(&point, (const char *)addresses + i * sizeof point, sizeof point);
    const struct of_peer *peer = of_peer_of(&point);
    if (found) found[i] = peer ? peer->index : FI_ADDR_NOTAVAIL;
    n += peer != NULL;
  }
  pr_unlock();
  return (int)n;
}

static int insert_service(struct fid_av *av, const char *node, const char *service,
                          fi_addr_t *found, uint64_t flags, void *context) {
  (void)av;
  (void)node;
  (void)service;
  (void)found;
  (void)flags;
  (void)context;
  return -FI_ENOSYS;
}

static int insert_symmetric(struct fid_av *av, const char *node, size_t n_nodes,
                            const char *service, size_t n_services, fi_addr_t *found,
                            uint64_t flags, void *context) {
  (void)n_nodes;
  (void)n_services;
  return insert_service(av, node, service, found, flags, context);
}

/* An endpoint may still ask for a QP, so its place stays. */
static int remove_addresses(struct fid_av *av, fi_addr_t *addresses, size_t count, uint64_t flags) {
  (void)av;
  (void)addresses;
  (void)count;
  (void)flags;
  return 0;
}

static int look_up(struct fid_av *av, fi_addr_t address, void *to, size_t *bytes) {
  (void)av;
  pr_lock();
  const struct of_peer *peer = of_peer_at(address);
  pr_unlock();
  if (!peer) return -FI_EINVAL;
  memcpy(to, &peer->point, *bytes < sizeof peer->point ? *bytes : sizeof peer->point);
  *bytes = sizeof peer->point;
  return 0;
}

static const char *text_of(struct fid_av *av, const void *address, char *buffer, size_t *bytes) {
  (void)av;
  char host[INET6_ADDRSTRLEN];
  char text[INET6_ADDRSTRLEN + 16];
  struct mrc_agent_point point;
  memcpy(&point, address, sizeof point);
  inet_ntop(AF_INET6, point.gid, host, sizeof host);
  const int n = snprintf(text, sizeof text, "[%s]/%06x", host, point.number);
  snprintf(buffer, *bytes, "%s", text);
  *bytes = (size_t)n + 1;
  return buffer;
}

static struct fi_ops_av av_ops = {.size = sizeof av_ops,
                                  .insert = insert,
                                  .insertsvc = insert_service,
                                  .insertsym = insert_symmetric,
                                  .remove = remove_addresses,
                                  .lookup = look_up,
                                  .straddr = text_of};

int of_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
               void *context) {
  (void)domain;
  if (attr->name || attr->flags != 0 || attr->rx_ctx_bits != 0) return -FI_ENOSYS;
  struct fid_av *made = calloc(1, sizeof *made);
  if (!made) return -FI_ENOMEM;
  *made = (struct fid_av){.fid = {.fclass = FI_CLASS_AV, .context = context, .ops = &of_plain_ops},
                          .ops = &av_ops};
  if (attr->type == FI_AV_UNSPEC) attr->type = FI_AV_TABLE;
  *av = made;
  return 0;
}
