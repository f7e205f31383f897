/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/ofi.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_PEERS = 64 };

static struct of_peer **peers;
static uint32_t n_peers, room;

struct of_peer *of_peer_at(uint64_t index) { return index < n_peers ? peers[index] : NULL; }

struct of_peer *of_peer_find(const struct mrc_agent_endpoint *point) {
  for (uint32_t i = 0; i < n_peers; i++) {
    const struct mrc_agent_endpoint *each = &peers[i]->point;
    if (each->number == point->number && memcmp(each->gid, point->gid, sizeof each->gid) == 0 &&
        memcmp(each->token, point->token, sizeof each->token) == 0)
      return peers[i];
  }
  return NULL;
}

struct of_peer *of_peer_of(const struct mrc_agent_endpoint *point) {
  struct of_peer *peer = of_peer_find(point);
  if (peer) return peer;
  if (n_peers == room) {
    const uint32_t larger = room ? 2 * room : FIRST_PEERS;
    struct of_peer **moved = realloc(peers, larger * sizeof(struct of_peer *));
    if (!moved) return NULL;
    peers = moved;
    room = larger;
  }
  peer = calloc(1, sizeof *peer);
  if (!peer) return NULL;
  peer->point = *point;
  peer->index = n_peers;
  peers[n_peers++] = peer;
  return peer;
}

struct of_peer *of_peer_numbered(uint32_t number) {
  for (uint32_t i = 0; i < n_peers; i++)
    for (int j = 0; j < 2; j++)
      if (peers[i]->qps[j].qpn != 0 && peers[i]->qps[j].number == number) return peers[i];
  return NULL;
}

struct of_qp *of_peer_qp(uint32_t qpn, struct of_peer **peer) {
  for (uint32_t i = 0; i < n_peers; i++)
    for (int j = 0; j < 2; j++)
      if (qpn != 0 && peers[i]->qps[j].qpn == qpn) {
        *peer = peers[i];
        return &peers[i]->qps[j];
      }
  return NULL;
}

void of_peer_each_qp(void (*call)(struct of_peer *peer, struct of_qp *qp)) {
  for (uint32_t i = 0; i < n_peers; i++)
    for (int j = 0; j < 2; j++)
      if (peers[i]->qps[j].qpn != 0) call(peers[i], &peers[i]->qps[j]);
}

/* ==== Address vectors ==== */

enum { FIRST_PLACES = 64 };

struct of_av {
  struct of_object object;
  struct of_peer **peers; /* by address; NULL: the place is free */
  size_t n;               /* places that were ever used */
  size_t room;
  size_t first_free; /* no place before it is free */
};

struct of_peer *of_av_peer(const struct fid *fid, fi_addr_t address) {
  const struct of_av *av = (const struct of_av *)fid;
  return address < av->n ? av->peers[address] : NULL;
}

fi_addr_t of_av_address(const struct fid *fid, const struct of_peer *peer) {
  const struct of_av *av = (const struct of_av *)fid;
  for (size_t i = 0; i < av->n; i++)
    if (av->peers[i] == peer) return i;
  return FI_ADDR_NOTAVAIL;
}

static fi_addr_t place(struct of_av *av, struct of_peer *peer) {
  while (av->first_free < av->n && av->peers[av->first_free])
    av->first_free++;
  if (av->first_free == av->room) {
    const size_t larger = av->room ? 2 * av->room : FIRST_PLACES;
    struct of_peer **moved = realloc(av->peers, larger * sizeof(struct of_peer *));
    if (!moved) return FI_ADDR_NOTAVAIL;
    av->peers = moved;
    av->room = larger;
  }
  av->peers[av->first_free] = peer;
  if (av->first_free == av->n) av->n++;
  return av->first_free++;
}

static int insert(struct fid_av *fid, const void *addresses, size_t count, fi_addr_t *found,
                  uint64_t flags, void *context) {
  struct of_av *av = (struct of_av *)fid;
  int *errors = flags & FI_SYNC_ERR ? context : NULL;
  if (flags & ~(FI_MORE | FI_SYNC_ERR)) return -FI_EBADFLAGS;
  size_t n = 0;
  pr_lock();
  for (size_t i = 0; i < count; i++) {
    struct mrc_agent_endpoint point;
    memcpy(&point, (const char *)addresses + i * sizeof point, sizeof point);
    struct of_peer *peer = of_peer_of(&point);
    const fi_addr_t address = peer ? place(av, peer) : FI_ADDR_NOTAVAIL;
    if (found) found[i] = address;
    if (errors) errors[i] = address == FI_ADDR_NOTAVAIL ? FI_ENOMEM : 0;
    n += address != FI_ADDR_NOTAVAIL;
  }
  pr_unlock();
  return (int)n;
}

OF_REFUSES(int, insert_service, struct fid_av *av, const char *node, const char *service,
           fi_addr_t *found, uint64_t flags, void *context)
OF_REFUSES(int, insert_symmetric, struct fid_av *av, const char *node, size_t n_nodes,
           const char *service, size_t n_services, fi_addr_t *found, uint64_t flags, void *context)

/* Such an endpoint may still ask for a QP: it stays in the table of peers. */
static int remove_addresses(struct fid_av *fid, fi_addr_t *addresses, size_t count,
                            uint64_t flags) {
  struct of_av *av = (struct of_av *)fid;
  int error = flags != 0 ? -FI_EBADFLAGS : 0;
  pr_lock();
  for (size_t i = 0; error == 0 && i < count; i++) {
    if (!of_av_peer(&fid->fid, addresses[i])) {
      error = -FI_EINVAL;
      break;
    }
    av->peers[addresses[i]] = NULL;
    if (addresses[i] < av->first_free) av->first_free = addresses[i];
  }
  pr_unlock();
  return error;
}

static int look_up(struct fid_av *av, fi_addr_t address, void *to, size_t *bytes) {
  pr_lock();
  const struct of_peer *peer = of_av_peer(&av->fid, address);
  pr_unlock();
  if (!peer) return -FI_EINVAL;
  memcpy(to, &peer->point, *bytes < sizeof peer->point ? *bytes : sizeof peer->point);
  *bytes = sizeof peer->point;
  return 0;
}

static const char *text_of(struct fid_av *av, const void *address, char *buffer, size_t *bytes) {
  char host[INET6_ADDRSTRLEN];
  char text[INET6_ADDRSTRLEN + 16];
  struct mrc_agent_endpoint point;
  memcpy(&point, address, sizeof point);
  inet_ntop(AF_INET6, point.gid, host, sizeof host);
  const int n = snprintf(text, sizeof text, "[%s]/%06x", host, point.number);
  snprintf(buffer, *bytes, "%s", text);
  *bytes = (size_t)n + 1;
  return buffer;
}

static int close_av(struct fid *fid) {
  struct of_av *av = (struct of_av *)fid;
  pr_lock();
  const int error = of_object_leave(&av->object);
  pr_unlock();
  if (error != 0) return error;
  free(av->peers);
  free(av);
  return 0;
}

static struct fi_ops_av av_ops = {.size = sizeof av_ops,
                                  .insert = insert,
                                  .insertsvc = insert_service,
                                  .insertsym = insert_symmetric,
                                  .remove = remove_addresses,
                                  .lookup = look_up,
                                  .straddr = text_of};

static struct fi_ops fid_ops = {.size = sizeof fid_ops,
                                .close = close_av,
                                .bind = of_no_bind,
                                .control = of_no_control,
                                .ops_open = of_no_ops_open};

int of_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
               void *context) {
  if (attr->name || attr->flags & ~FI_SYMMETRIC || attr->rx_ctx_bits != 0) return -FI_ENOSYS;
  struct of_av *made = of_object_new(sizeof *made, &domain->fid);
  if (!made) return -FI_ENOMEM;
  made->object.av = (struct fid_av){
      .fid = {.fclass = FI_CLASS_AV, .context = context, .ops = &fid_ops}, .ops = &av_ops};
  if (attr->type == FI_AV_UNSPEC) attr->type = FI_AV_TABLE;
  *av = &made->object.av;
  return 0;
}
