/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric's manual pages promise of messages and their completions.

     messages [CASE...]       prints the name of each case that has passed

   The process talks to itself, and with a child that has an endpoint of its own. */
#include <rdma/fi_tagged.h>
#include <sys/wait.h>
#include <unistd.h>

#include "self.h"

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

static const struct trial trials[] = {
    {"any-source", any_source}, {"unknown-source", unknown_source},
    {"selective", selective},   {"flags", flags},
    {"searches", searches},     {"claims", claims},
    {"cancels", cancels},       {"waits", waits},
    {"unfinished", unfinished}, {"forked", forked},
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
