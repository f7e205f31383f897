/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric's manual pages promise of offers, objects and messages, and who runs the engine:
   the program while it polls, else the helper thread of the library.

     messages [CASE...]       prints the name of each case that has passed

   The process talks to itself, and to a child that it has forked first. */
#include <dirent.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_tagged.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "endpoint.h"

/* ---- Offers and objects ---- */

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

enum { TAG = 7 };

/* ---- Messages ---- */

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
  IS(fi_sendmsg(ep, &msg, FI_FENCE), -FI_EBADFLAGS);
  IS(search(FI_MULTI_RECV, in, SHORT, in), -FI_EBADFLAGS);
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

/* Searches until there is a message. It polls: else a thread of the library would do the rest. */
static void find(uint64_t flags, struct fi_context *context) {
  for (;;) {
    IS(search(flags, NULL, 0, context), 0);
    ssize_t got;
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
      continue;
    if (got == 1) return;
    struct fi_cq_err_entry failed = {0};
    IS(fi_cq_readerr(cq, &failed, 0), 1);
    IS(failed.err, FI_ENOMSG);
  }
}

/* A message that is here needs no poll: the first one finds an older completion, and this one. */
static void claims(void) {
  open_all(FI_TAGGED, 0);
  struct fi_context context, other;
  struct fi_cq_tagged_entry both[2];
  for (int i = 0; i < 2; i++)
    IS(fi_tinject(ep, out, SHORT, self, TAG), 0);
  find(FI_PEEK | FI_CLAIM, &context);
  find(FI_PEEK, &other); /* the second one */
  IS(search(FI_PEEK, NULL, 0, &other), 0);
  IS(search(FI_CLAIM, in, SHORT, &context), 0);
  IS(fi_cq_read(cq, both, 2), 2);
  CHECK(both[0].op_context == &other && both[1].op_context == &context);
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
  open_domain(FI_MSG); /* of no use, but no harm */
  cq = new_cq();
  IS(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
  IS(fi_cq_sread(cq, &entry, 1, NULL, 1), -FI_EAGAIN);
  IS(fi_close(&ep->fid), 0);
  IS(fi_close(&cq->fid), 0);
  close_domain();
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

/* The sockets are the parent's: a child must not take its packets. */
static void forked(void) {
  open_all(FI_MSG, 0);
  const pid_t child = fork();
  if (child == 0) {
    IS(fi_send(ep, out, SHORT, NULL, self, out), -FI_EIO);
    IS(fi_cq_read(cq, &entry, 1), -FI_EIO);
    IS(fi_cq_sread(cq, &entry, 1, NULL, -1), -FI_EIO);
    _exit(0);
  }
  int status;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
  IS(fi_recv(ep, in, SHORT, NULL, FI_ADDR_UNSPEC, in), 0);
  IS(fi_inject(ep, out, SHORT, self), 0);
  await(in);
  close_all();
}

/* ---- Progress ---- */

enum { MESSAGES = 5000 };

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* A number behind a word in a file of a thread; or -1. */
static long number_in(const char *thread, const char *file, const char *word) {
  char path[320], line[128];
  long found = -1;
  snprintf(path, sizeof path, "/proc/self/task/%s/%s", thread, file);
  FILE *lines = fopen(path, "r");
  CHECK(lines);
  while (found < 0 && fgets(line, sizeof line, lines))
    if (strncmp(line, word, strlen(word)) == 0) found = atol(line + strlen(word));
  fclose(lines);
  return found;
}

/* How often the helper has slept. */
static long sleeps(void) {
  long found = -1;
  DIR *threads = opendir("/proc/self/task");
  CHECK(threads);
  for (struct dirent *each; (each = readdir(threads));)
    if (each->d_name[0] != '.' && number_in(each->d_name, "status", "Name:\tlibmrc-fi") == 0)
      found = number_in(each->d_name, "status", "voluntary_ctxt_switches:");
  closedir(threads);
  CHECK(found >= 0);
  return found;
}

/* Sends to itself and polls until the message has come, so many times. */
static void talk(int messages) {
  for (int i = 0; i < messages; i++) {
    IS(fi_recv(ep, in, SHORT, NULL, self, in), 0);
    IS(fi_inject(ep, out, SHORT, self), 0);
    const double until = now_ms() + WAIT_MS;
    long n;
    while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
      CHECK(now_ms() < until);
    IS(n, 1);
  }
}

/* Each wake of the helper takes the program's core from it for a while: it looks after the program
   now and then, and not at each message. */
static void polls(void) {
  open_all(FI_MSG, 0);
  talk(1);
  const long before = sleeps();
  talk(MESSAGES);
  const long slept = sleeps() - before;
  CHECK(slept <= MESSAGES / 2);
  close_all();
}

/* The message needs answers of both sides, and the program only waits for its last byte. */
static void computes(void) {
  open_all(FI_MSG, 0);
  memset(out, 1, sizeof out);
  memset(in, 0, sizeof in);
  talk(1);
  IS(fi_recv(ep, in, LONG, NULL, self, in), 0);
  IS(fi_send(ep, out, LONG, NULL, self, out), 0);
  const double until = now_ms() + WAIT_MS;
  for (size_t i = 0; i < LONG; i++)
    while (!((volatile char *)in)[i])
      CHECK(now_ms() < until);
  close_all();
}

static const struct trial trials[] = {
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
    {"claims", claims},
    {"cancels", cancels},
    {"waits", waits},
    {"unfinished", unfinished},
    {"forked", forked},
    {"polls", polls},
    {"computes", computes},
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
  run(trials, sizeof trials / sizeof *trials, argc, argv);
  close(to_stranger);
  int status;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
}
