/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric's manual pages promise to programs with an endpoint of type FI_EP_RDM.

     contract [CASE...]       prints the name of each case that has passed

   The process talks to itself, and with a child that has an endpoint of its own. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ADDRESS_BYTES = 40, SHORT = 100, LONG = 1 << 16, WAIT_MS = 60000, TAG = 7 };

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

static char out[LONG], in[LONG];

/* ---- What is open ---- */

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t self;

static struct fi_info *hints_for(uint64_t caps) {
  struct fi_info *hints = fi_allocinfo();
  hints->caps = caps;
  hints->ep_attr->type = FI_EP_RDM;
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

static void close_domain(void) {
  IS(fi_close(&domain->fid), 0);
  IS(fi_close(&fabric->fid), 0);
  fi_freeinfo(info);
}

static void close_all(void) {
  IS(fi_close(&ep->fid), 0);
  IS(fi_close(&cq->fid), 0);
  IS(fi_close(&av->fid), 0);
  close_domain();
}

/* ---- Messages ---- */

static struct fi_cq_tagged_entry entry;
static fi_addr_t source;

/* The next completion, which is none of an error. */
static void await(void *context) {
  IS(fi_cq_sreadfrom(cq, &entry, 1, &source, NULL, WAIT_MS), 1);
  CHECK(entry.op_context == context);
}

/* The next completion, which is one of an error. */
static void await_error(int error, const void *context) {
  struct fi_cq_err_entry failed = {0};
  IS(fi_cq_sread(cq, &entry, 1, NULL, WAIT_MS), -FI_EAVAIL);
  IS(fi_cq_readerr(cq, &failed, 0), 1);
  IS(failed.err, error);
  CHECK(failed.op_context == context);
}

static ssize_t search(uint64_t flags, void *buffer, size_t bytes, void *context) {
  const struct iovec piece = {.iov_base = buffer, .iov_len = bytes};
  const struct fi_msg_tagged msg = {.msg_iov = &piece,
                                    .iov_count = buffer ? 1 : 0,
                                    .addr = FI_ADDR_UNSPEC,
                                    .tag = TAG,
                                    .context = context};
  return fi_trecvmsg(ep, &msg, flags);
}

/* ---- Cases ---- */

static void getinfo_is(struct fi_info *hints, const char *node, const char *service, int expected) {
  struct fi_info *found;
  IS(fi_getinfo(FI_VERSION(1, 9), node, service, 0, hints, &found), expected);
  if (expected == 0) fi_freeinfo(found);
}

static void offer(void) {
  const uint64_t both = FI_SEND | FI_RECV, reach = FI_LOCAL_COMM | FI_REMOTE_COMM;
  struct fi_info *found = offer_for(FI_MSG);
  CHECK(strcmp(found->fabric_attr->prov_name, "mrc") == 0);
  IS(found->caps, FI_MSG | both | reach);
  IS(found->tx_attr->caps, FI_MSG | FI_SEND);
  IS(found->rx_attr->caps, FI_MSG | FI_RECV);
  IS(found->mode | found->tx_attr->mode | found->rx_attr->mode, 0);
  getinfo_is(found, NULL, NULL, 0); /* an offer is a request that fits */
  fi_freeinfo(found);
  found = offer_for(FI_TAGGED | FI_SEND | FI_REMOTE_COMM);
  IS(found->caps, FI_TAGGED | FI_SEND | FI_REMOTE_COMM);
  IS(found->rx_attr->caps, 0);
  fi_freeinfo(found);
  found = offer_for(0);
  CHECK(found->caps & FI_DIRECTED_RECV && found->rx_attr->caps & FI_DIRECTED_RECV);
  fi_freeinfo(found);
  found = offer_for(FI_MSG | FI_DIRECTED_RECV);
  IS(found->rx_attr->caps, FI_MSG | FI_RECV | FI_DIRECTED_RECV);
  fi_freeinfo(found);
}

static void requests(void) {
  struct fi_info *hints = hints_for(FI_MSG), *found;
  getinfo_is(hints, "localhost", NULL, -FI_ENODATA);
  getinfo_is(hints, NULL, "4791", -FI_ENODATA);
#define REFUSED(field, value)                   \
  do {                                          \
    getinfo_is(hints, NULL, NULL, 0);           \
    field = value;                              \
    getinfo_is(hints, NULL, NULL, -FI_ENODATA); \
    field = 0;                                  \
  } while (0)
  REFUSED(hints->ep_attr->protocol, FI_PROTO_RXM);
  REFUSED(hints->ep_attr->max_msg_size, SIZE_MAX);
  REFUSED(hints->domain_attr->ep_cnt, 2);
  REFUSED(hints->tx_attr->caps, FI_TAGGED);
  REFUSED(hints->tx_attr->rma_iov_limit, 1);
  REFUSED(hints->rx_attr->caps, FI_DIRECTED_RECV);
  REFUSED(hints->rx_attr->comp_order, FI_ORDER_STRICT);
#undef REFUSED
  hints->dest_addr = calloc(1, ADDRESS_BYTES);
  hints->dest_addrlen = ADDRESS_BYTES - 1;
  getinfo_is(hints, NULL, NULL, -FI_ENODATA);
  hints->dest_addrlen = ADDRESS_BYTES;
  memset(hints->dest_addr, 5, ADDRESS_BYTES);
  IS(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &found), 0);
  IS(found->dest_addrlen, ADDRESS_BYTES);
  CHECK(memcmp(found->dest_addr, hints->dest_addr, ADDRESS_BYTES) == 0);
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

/* `src_addr` counts only with FI_DIRECTED_RECV. */
static void any_source(void) {
  static const uint64_t caps[] = {FI_MSG, FI_MSG | FI_DIRECTED_RECV};
  for (int i = 0; i < 2; i++) {
    open_all(caps[i], 0);
    IS(fi_recv(ep, in, SHORT, NULL, 77, in), i == 0 ? 0 : -FI_EINVAL);
    if (i > 0) IS(fi_recv(ep, in, SHORT, NULL, self, in), 0);
    IS(fi_inject(ep, out, SHORT, self), 0);
    await(in);
    IS(source, self);
    close_all();
  }
}

static int to_stranger, from_stranger;

/* The other end of the pipes: sends a message to each address that it gets. */
static void be_stranger(int from, int to) {
  unsigned char name[ADDRESS_BYTES];
  bool opened = false;
  while (read(from, name, sizeof name) == sizeof name) {
    fi_addr_t peer;
    if (!opened) open_all(FI_MSG, 0);
    opened = true;
    IS(fi_av_insert(av, name, 1, &peer, 0, NULL), 1);
    IS(fi_send(ep, out, SHORT, NULL, peer, out), 0);
    await(out);
    own_name(name);
    IS(write(to, name, sizeof name), sizeof name);
  }
  exit(0);
}

static void unknown_source(void) {
  open_all(FI_MSG | FI_SOURCE, 0);
  unsigned char name[ADDRESS_BYTES];
  own_name(name);
  fi_addr_t peer;
  for (int known = 0; known < 2; known++) {
    IS(fi_recv(ep, in, SHORT, NULL, FI_ADDR_UNSPEC, in), 0);
    IS(write(to_stranger, name, sizeof name), sizeof name);
    await(in);
    if (known) IS(source, peer);
    unsigned char other[ADDRESS_BYTES];
    IS(read(from_stranger, other, sizeof other), sizeof other);
    if (known) break;
    CHECK(source == FI_ADDR_NOTAVAIL);
    IS(fi_av_insert(av, other, 1, &peer, 0, NULL), 1);
    IS(peer, self + 1);
  }
  close_all();
}

/* Without a completion the context is nobody's business, unless the operation fails. */
static void selective(void) {
  void *const nonsense = (void *)8;
  open_all(FI_TAGGED, FI_SELECTIVE_COMPLETION);
  IS(fi_trecv(ep, in, SHORT, NULL, FI_ADDR_UNSPEC, TAG, 0, nonsense), 0);
  IS(fi_tsend(ep, out, SHORT, NULL, self, TAG, nonsense), 0);
  IS(search(FI_COMPLETION, in, SHORT, in), 0);
  IS(fi_tinject(ep, out, SHORT, self, TAG), 0);
  await(in); /* the second message: the first has come without */
  IS(fi_trecv(ep, in, SHORT - 1, NULL, FI_ADDR_UNSPEC, TAG, 0, nonsense), 0);
  IS(fi_tsend(ep, out, SHORT, NULL, self, TAG, nonsense), 0);
  await_error(FI_ETRUNC, NULL);
  close_all();
}

static void flags(void) {
  open_all(FI_MSG | FI_TAGGED, 0);
  const struct iovec piece = {.iov_base = out, .iov_len = SHORT};
  const struct fi_msg msg = {.msg_iov = &piece, .iov_count = 1, .addr = self, .context = out};
  IS(fi_sendmsg(ep, &msg, FI_DELIVERY_COMPLETE), -FI_EBADFLAGS);
  IS(fi_sendmsg(ep, &msg, FI_FENCE), -FI_EBADFLAGS);
  IS(fi_recvmsg(ep, &msg, FI_MULTI_RECV), -FI_EBADFLAGS);
  IS(fi_recvmsg(ep, &msg, FI_PEEK), -FI_EBADFLAGS);
  IS(search(FI_DISCARD, in, SHORT, in), -FI_EBADFLAGS);
  IS(search(FI_CLAIM, in, SHORT, NULL), -FI_EINVAL);
  IS(fi_sendmsg(ep, &msg, FI_TRANSMIT_COMPLETE | FI_MORE), 0);
  await(out);
  close_all();
}

static void searches(void) {
  open_all(FI_TAGGED, 0);
  struct fi_context context, sent;
  IS(search(FI_PEEK, in, SHORT, &context), 0);
  await_error(FI_ENOMSG, &context);
  for (size_t bytes = SHORT; bytes <= LONG; bytes += LONG - SHORT) {
    const uint64_t ways[][2] = {{FI_PEEK | FI_DISCARD},
                                {FI_PEEK | FI_CLAIM, FI_CLAIM | FI_DISCARD}};
    for (int i = 0; i < 2; i++) {
      IS(fi_tsend(ep, out, bytes, NULL, self, TAG, &sent), 0);
      int n = 0; /* ends: of the send, of a search that has found the message, of its discard */
      bool found = false;
      for (const int all = i == 0 ? 2 : 3; n < all; n++) {
        if (!found) IS(search(ways[i][0], in, SHORT, &context), 0);
        const ssize_t got = fi_cq_sread(cq, &entry, 1, NULL, WAIT_MS);
        if (got == -FI_EAVAIL) { /* too early */
          struct fi_cq_err_entry failed = {0};
          IS(fi_cq_readerr(cq, &failed, 0), 1);
          IS(failed.err, FI_ENOMSG);
          n--;
          continue;
        }
        IS(got, 1);
        if (entry.op_context == &sent) continue;
        IS(entry.len, bytes);
        CHECK(!entry.buf || n > 1);
        if (!found && i > 0) IS(search(ways[i][1], NULL, 0, &context), 0);
        found = true;
      }
      IS(search(FI_PEEK, in, SHORT, &context), 0);
      await_error(FI_ENOMSG, &context);
    }
  }
  close_all();
}

static void cancels(void) {
  open_all(FI_MSG, 0);
  int context[2];
  IS(fi_recv(ep, in, SHORT, NULL, 0, &context[0]), 0);
  IS(fi_recv(ep, in, SHORT, NULL, 0, &context[1]), 0);
  IS(fi_cancel(&ep->fid, &context[1]), 0);
  await_error(FI_ECANCELED, &context[1]);
  IS(fi_cancel(&ep->fid, &context[1]), -FI_ENOENT);
  IS(fi_inject(ep, out, SHORT, self), 0);
  await(&context[0]);
  close_all();
}

static void waits(void) {
  open_all(FI_MSG, 0);
  IS(fi_cq_sread(cq, &entry, 1, NULL, 1), -FI_EAGAIN);
  IS(fi_cq_signal(cq), 0);
  IS(fi_cq_sread(cq, &entry, 1, NULL, -1), -FI_EAGAIN);
  close_all();
}

static void unfinished(void) {
  open_all(FI_MSG, 0);
  IS(fi_recv(ep, in, SHORT, NULL, FI_ADDR_UNSPEC, in), 0);
  IS(fi_close(&ep->fid), 0);
  IS(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
  IS(fi_close(&cq->fid), 0);
  IS(fi_close(&av->fid), 0);
  close_domain();
}

static const struct {
  const char *name;
  void (*run)(void);
} cases[] = {
    {"offer", offer},
    {"requests", requests},
    {"event-queue", event_queue},
    {"set-up", set_up},
    {"one-way", one_way},
    {"addresses", addresses},
    {"any-source", any_source},
    {"unknown-source", unknown_source},
    {"selective", selective},
    {"flags", flags},
    {"searches", searches},
    {"cancels", cancels},
    {"waits", waits},
    {"unfinished", unfinished},
};

int main(int argc, char **argv) {
  int there[2], back[2];
  CHECK(pipe(there) == 0 && pipe(back) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(there[1]);
    be_stranger(there[0], back[1]);
  }
  to_stranger = there[1], from_stranger = back[0];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bool chosen = argc == 1;
    for (int j = 1; j < argc; j++)
      chosen |= strcmp(argv[j], cases[i].name) == 0;
    if (!chosen) continue;
    cases[i].run();
    printf("%s\n", cases[i].name);
    fflush(stdout);
  }
  close(to_stranger);
  int status;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
}
