/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric's manual pages promise of offers and objects.

     contract [CASE...]       prints the name of each case that has passed */
#include "endpoint.h"

#include <rdma/fi_eq.h>

static char in[SHORT];

static void getinfo_is(struct fi_info *hints, const char *node, const char *service, uint64_t flags,
                       int expected) {
  struct fi_info *found;
  IS(fi_getinfo(FI_VERSION(1, 9), node, service, flags, hints, &found), expected);
  if (expected == 0) fi_freeinfo(found);
}

static void offer(void) {
  const uint64_t both = FI_SEND | FI_RECV, reach = FI_LOCAL_COMM | FI_REMOTE_COMM;
  struct fi_info *found = offer_for(FI_MSG);
  CHECK(strcmp(found->fabric_attr->prov_name, "mrc") == 0);
  IS(found->caps, FI_MSG | both | reach);
  IS(found->tx_attr->caps, FI_MSG | FI_SEND);
  IS(found->rx_attr->caps, FI_MSG | FI_RECV);
  IS(found->src_addrlen, ADDRESS_BYTES);
  IS(found->mode | found->tx_attr->mode | found->rx_attr->mode, 0);
  getinfo_is(found, NULL, NULL, 0, 0); /* an offer is a request that fits */
  fi_freeinfo(found);
  found = offer_for(FI_TAGGED | FI_SEND | FI_REMOTE_COMM);
  IS(found->caps, FI_TAGGED | FI_SEND | FI_REMOTE_COMM);
  IS(found->rx_attr->caps, 0);
  fi_freeinfo(found);
  found = offer_for(0);
  CHECK(found->caps & FI_DIRECTED_RECV && found->rx_attr->caps & FI_DIRECTED_RECV);
  fi_freeinfo(found);
  found = offer_for(FI_DIRECTED_RECV);
  IS(found->rx_attr->caps, FI_DIRECTED_RECV);
  fi_freeinfo(found);
  found = offer_for(FI_MSG | FI_DIRECTED_RECV);
  IS(found->rx_attr->caps, FI_MSG | FI_RECV | FI_DIRECTED_RECV);
  fi_freeinfo(found);
}

static void requests(void) {
  struct fi_info *hints = hints_for(FI_MSG), *found;
  getinfo_is(hints, "localhost", NULL, 0, -FI_ENODATA);
  getinfo_is(hints, NULL, "4791", 0, -FI_ENODATA);
  getinfo_is(hints, "localhost", "4791", FI_SOURCE, -FI_ENODATA);
  getinfo_is(hints, NULL, "4791", FI_SOURCE, 0); /* its own service */
#define REFUSED(field, value)                      \
  do {                                             \
    getinfo_is(hints, NULL, NULL, 0, 0);           \
    field = value;                                 \
    getinfo_is(hints, NULL, NULL, 0, -FI_ENODATA); \
    field = 0;                                     \
  } while (0)
  REFUSED(hints->ep_attr->protocol, FI_PROTO_RXM);
  REFUSED(hints->ep_attr->max_msg_size, SIZE_MAX);
  REFUSED(hints->domain_attr->ep_cnt, 2);
  REFUSED(hints->tx_attr->caps, FI_TAGGED);
  REFUSED(hints->tx_attr->rma_iov_limit, 2);
  REFUSED(hints->rx_attr->caps, FI_DIRECTED_RECV);
  REFUSED(hints->rx_attr->comp_order, FI_ORDER_SAS);
  REFUSED(hints->caps, FI_ATOMIC);
  REFUSED(hints->caps, FI_RMA); /* the program must know the mode of its regions */
#undef REFUSED
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
  hints->caps = FI_RMA;
  getinfo_is(hints, NULL, NULL, 0, 0);
  hints->caps = FI_MSG;
  hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->src_addr = calloc(1, ADDRESS_BYTES);
  hints->src_addrlen = ADDRESS_BYTES;
  hints->dest_addr = calloc(1, ADDRESS_BYTES);
  hints->dest_addrlen = ADDRESS_BYTES - 1;
  getinfo_is(hints, NULL, NULL, 0, -FI_ENODATA);
  hints->dest_addrlen = ADDRESS_BYTES;
  memset(hints->dest_addr, 5, ADDRESS_BYTES);
  IS(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &found), 0);
  IS(found->dest_addrlen, ADDRESS_BYTES);
  CHECK(memcmp(found->dest_addr, hints->dest_addr, ADDRESS_BYTES) == 0);
  IS(found->domain_attr->data_progress, FI_PROGRESS_MANUAL);
  IS(found->domain_attr->control_progress, FI_PROGRESS_MANUAL);
  IS(found->domain_attr->threading, FI_THREAD_DOMAIN);
  memset(hints->src_addr, 5, 1); /* the agent chooses it */
  getinfo_is(hints, NULL, NULL, 0, -FI_ENODATA);
  fi_freeinfo(found);
  fi_freeinfo(hints);
}

static void event_queue(void) {
  open_domain(FI_MSG);
  struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC}, writes = {.flags = FI_WRITE};
  struct fi_eq_entry event;
  struct fi_eq_err_entry error;
  struct fid_eq *eq;
  uint32_t kind;
  IS(fi_eq_open(fabric, &writes, &eq, NULL), -FI_ENOSYS);
  IS(fi_eq_open(fabric, &attr, &eq, NULL), 0);
  IS(fi_eq_read(eq, &kind, &event, sizeof event, 0), -FI_EAGAIN);
  IS(fi_eq_sread(eq, &kind, &event, sizeof event, 1, 0), -FI_EAGAIN);
  IS(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN);
  IS(fi_ep_bind(ep, &eq->fid, 0), 0);
  IS(fi_close(&eq->fid), -FI_EBUSY);
  IS(fi_close(&ep->fid), 0);
  IS(fi_close(&fabric->fid), -FI_EBUSY);
  IS(fi_close(&eq->fid), 0);
  close_domain();
}

static void set_up(void) {
  open_domain(FI_MSG);
  cq = new_cq(), av = new_av();
  struct fid_av *other = new_av();
  IS(fi_ep_bind(ep, &cq->fid, 0), -FI_EBADFLAGS);
  IS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT), 0);
  IS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT), -FI_EINVAL);
  IS(fi_enable(ep), -FI_ENOCQ);
  IS(fi_ep_bind(ep, &cq->fid, FI_RECV), 0);
  IS(fi_enable(ep), -FI_ENOAV);
  IS(fi_ep_bind(ep, &av->fid, 0), 0);
  IS(fi_ep_bind(ep, &other->fid, 0), -FI_EINVAL);
  IS(fi_recv(ep, in, SHORT, NULL, 0, NULL), -FI_EOPBADSTATE);
  IS(fi_enable(ep), 0);
  IS(fi_ep_bind(ep, &other->fid, 0), -FI_EOPBADSTATE);
  IS(fi_close(&other->fid), 0);
  unsigned char name[ADDRESS_BYTES], cut[ADDRESS_BYTES] = {0};
  size_t bytes = 5;
  own_name(name);
  IS(fi_getname(&ep->fid, cut, &bytes), -FI_ETOOSMALL);
  CHECK(bytes == ADDRESS_BYTES && memcmp(cut, name, 5) == 0 && cut[5] == 0);
  uint64_t flags = FI_TRANSMIT | FI_COMPLETION;
  IS(fi_control(&ep->fid, FI_SETOPSFLAG, &flags), 0);
  flags = FI_TRANSMIT;
  IS(fi_control(&ep->fid, FI_GETOPSFLAG, &flags), 0);
  IS(flags, FI_COMPLETION);
  IS(fi_shutdown(ep, 0), -FI_ENOSYS);
  IS(fi_close(&cq->fid), -FI_EBUSY);
  IS(fi_close(&av->fid), -FI_EBUSY);
  IS(fi_close(&domain->fid), -FI_EBUSY);
  IS(fi_close(&fabric->fid), -FI_EBUSY);
  close_all();
}

static void one_way(void) {
  open_domain(FI_MSG | FI_SEND);
  IS(fi_ep_bind(ep, &(av = new_av())->fid, 0), 0);
  IS(fi_ep_bind(ep, &(cq = new_cq())->fid, FI_TRANSMIT), 0);
  IS(fi_enable(ep), 0);
  IS(fi_recv(ep, in, SHORT, NULL, FI_ADDR_UNSPEC, NULL), -FI_EOPNOTSUPP);
  close_all();
}

static void addresses(void) {
  open_domain(FI_MSG);
  struct fid_av *vectors[] = {new_av(), new_av()};
  unsigned char names[3][ADDRESS_BYTES], found[ADDRESS_BYTES];
  for (int i = 0; i < 3; i++)
    memset(names[i], 'a' + i, ADDRESS_BYTES);
  fi_addr_t places[3] = {9, 9, 9}, second = 1, none = 5;
  int errors[3] = {9, 9, 9};
  IS(fi_av_insert(vectors[0], names, 2, NULL, 0, NULL), 2);
  IS(fi_av_insert(vectors[1], names, 3, places, FI_SYNC_ERR, errors), 3);
  CHECK(places[0] == 0 && places[1] == 1 && places[2] == 2);
  CHECK(errors[0] == 0 && errors[1] == 0 && errors[2] == 0);
  IS(fi_av_insert(vectors[0], names[2], 1, places, 0, NULL), 1);
  IS(places[0], 2);
  size_t bytes = sizeof found;
  IS(fi_av_lookup(vectors[0], 1, found, &bytes), 0);
  CHECK(bytes == ADDRESS_BYTES && memcmp(found, names[1], bytes) == 0);
  IS(fi_av_remove(vectors[0], &none, 1, 0), -FI_EINVAL);
  IS(fi_av_remove(vectors[0], &second, 1, 0), 0);
  IS(fi_av_lookup(vectors[0], 1, found, &bytes), -FI_EINVAL);
  IS(fi_av_lookup(vectors[1], 1, found, &bytes), 0);
  IS(fi_av_insert(vectors[0], names[1], 1, places, 0, NULL), 1);
  IS(places[0], 1);
  IS(fi_av_insert(vectors[0], names[1], 1, places, FI_AV_USER_ID, NULL), -FI_EBADFLAGS);
  for (int i = 0; i < 2; i++)
    IS(fi_close(&vectors[i]->fid), 0);
  IS(fi_close(&ep->fid), 0);
  close_domain();
}

static const struct trial trials[] = {
    {"offer", offer},   {"requests", requests}, {"event-queue", event_queue},
    {"set-up", set_up}, {"one-way", one_way},   {"addresses", addresses},
};

int main(int argc, char **argv) { run(trials, sizeof trials / sizeof *trials, argc, argv); }
