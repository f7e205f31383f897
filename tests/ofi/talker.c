/* SPDX-License-Identifier: Apache-2.0 */
/* One of two programs that talk over libfabric until the operations of one end with an error.

     talker listen            prints its address; receives from any peer, then from that one, whose
                              address is in the first message
     talker send              prints its address; reads the address of the other one; sends

   Both print "talks" after the first message, then the error and its reason; with a further
   argument they close the endpoint after that message. Exit code 0: it has ended with an error of
   an operation, or closed; 3: there is no provider. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRESS_BYTES = 36, BYTES = 1 << 16, NO_PROVIDER = 3, WAIT_MS = 60000 };

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *cq;
static char memory[BYTES];

static void open_all(void) {
  struct fi_info *hints = fi_allocinfo(), *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  hints->caps = FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = strdup("mrc");
  if (fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info) != 0) exit(NO_PROVIDER);
  struct fi_av_attr table = {.type = FI_AV_TABLE};
  struct fi_cq_attr tagged = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
  CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
  CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
  CHECK(fi_av_open(domain, &table, &av, NULL) == 0);
  CHECK(fi_cq_open(domain, &tagged, &cq, NULL) == 0);
  CHECK(fi_endpoint(domain, info, &ep, NULL) == 0);
  CHECK(fi_ep_bind(ep, &av->fid, 0) == 0);
  CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0);
  CHECK(fi_enable(ep) == 0);
}

/* Prints the own address, and leaves it in the memory. */
static void print_address(void) {
  unsigned char *address = (unsigned char *)memory;
  size_t bytes = sizeof memory;
  CHECK(fi_getname(&ep->fid, address, &bytes) == 0 && bytes == ADDRESS_BYTES);
  for (size_t i = 0; i < bytes; i++)
    printf("%02x", address[i]);
  printf("\n");
  fflush(stdout);
}

static fi_addr_t inserted(const void *address) {
  fi_addr_t peer;
  CHECK(fi_av_insert(av, address, 1, &peer, 0, NULL) == 1);
  return peer;
}

static fi_addr_t read_address(void) {
  unsigned char address[ADDRESS_BYTES];
  for (size_t i = 0; i < sizeof address; i++) {
    unsigned byte;
    CHECK(scanf("%2x", &byte) == 1);
    address[i] = (unsigned char)byte;
  }
  return inserted(address);
}

/* Prints the error of an operation, and ends. */
static void end(void) {
  struct fi_cq_err_entry entry = {0};
  char reason[300];
  CHECK(fi_cq_readerr(cq, &entry, 0) == 1);
  fi_cq_strerror(cq, entry.prov_errno, entry.err_data, reason, sizeof reason);
  printf("%d %s\n", entry.err, reason);
  exit(0);
}

/* Waits for the only operation. */
static void await(void) {
  struct fi_cq_tagged_entry entry;
  const ssize_t n = fi_cq_sread(cq, &entry, 1, NULL, WAIT_MS);
  if (n == -FI_EAVAIL) end();
  CHECK(n == 1);
}

int main(int argc, char **argv) {
  CHECK(argc == 2 || argc == 3);
  const int sends = strcmp(argv[1], "send") == 0;
  open_all();
  print_address();
  fi_addr_t peer = sends ? read_address() : FI_ADDR_UNSPEC;
  struct fi_context context;
  for (int talks = 0;; talks = 1) {
    const ssize_t error = sends ? fi_tsend(ep, memory, BYTES, NULL, peer, 7, &context)
                                : fi_trecv(ep, memory, BYTES, NULL, peer, 7, 0, &context);
    CHECK(error == 0);
    await();
    if (talks) continue;
    if (!sends) peer = inserted(memory);
    printf("talks\n");
    fflush(stdout);
    if (argc < 3) continue;
    CHECK(fi_close(&ep->fid) == 0);
    return 0;
  }
}
