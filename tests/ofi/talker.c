/* SPDX-License-Identifier: Apache-2.0 */
/* One of two programs that talk over libfabric until the operations of one end with an error.

     talker listen            prints its address; receives from any peer, then from that one, whose
                              address is in the first message
     talker send              prints its address; reads the address of the other one; sends

   Both print "talks" after the first message, then the error and its reason; with a further
   argument they close the endpoint after that message. Exit code 0: it has ended with an error of
   an operation, or closed; 3: there is no provider. */
#include <rdma/fi_tagged.h>

#include "endpoint.h"

enum { NO_PROVIDER = 3 };

static const uint64_t caps = FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE;

/* Prints the own address, and leaves it in the memory. */
static void print_address(void) {
  unsigned char address[ADDRESS_BYTES];
  own_name(address);
  memcpy(out, address, sizeof address);
  for (size_t i = 0; i < sizeof address; i++)
    printf("%02x", address[i]);
  printf("\n");
  fflush(stdout);
}

static fi_addr_t inserted(const void *address) {
  fi_addr_t peer;
  IS(fi_av_insert(av, address, 1, &peer, 0, NULL), 1);
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
  struct fi_cq_err_entry failed = {0};
  char reason[300];
  IS(fi_cq_readerr(cq, &failed, 0), 1);
  fi_cq_strerror(cq, failed.prov_errno, failed.err_data, reason, sizeof reason);
  printf("%d %s\n", failed.err, reason);
  exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2 || argc == 3);
  const int sends = strcmp(argv[1], "send") == 0;
  struct fi_info *hints = hints_for(caps), *found;
  if (fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &found) != 0) exit(NO_PROVIDER);
  open_all(caps, 0);
  print_address();
  fi_addr_t peer = sends ? read_address() : FI_ADDR_UNSPEC;
  struct fi_context context;
  for (int talks = 0;; talks = 1) {
    IS(sends ? fi_tsend(ep, out, LONG, NULL, peer, 7, &context)
             : fi_trecv(ep, out, LONG, NULL, peer, 7, 0, &context),
       0);
    const ssize_t n = fi_cq_sread(cq, &entry, 1, NULL, WAIT_MS); /* of the only operation */
    if (n == -FI_EAVAIL) end();
    IS(n, 1);
    if (talks) continue;
    if (!sends) peer = inserted(out);
    printf("talks\n");
    fflush(stdout);
    if (argc < 3) continue;
    IS(fi_close(&ep->fid), 0);
    return 0;
  }
}
