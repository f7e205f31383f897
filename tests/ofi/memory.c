/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric's manual pages promise of RMA, counters, and receives of several messages.

     memory [CASE...]       prints the name of each case that has passed

   The process talks to itself. */
#include <rdma/fi_rma.h>
#include <sys/mman.h>

#include "self.h"

static struct fid_mr *mr;

static void show(void *memory, size_t bytes, uint64_t access) {
  IS(fi_mr_reg(domain, memory, bytes, access, 0, 0, 0, &mr, NULL), 0);
}

static void hide(void) { IS(fi_close(&mr->fid), 0); }

static void fill(void) {
  memset(in, 0, sizeof in);
  for (size_t i = 0; i < sizeof out; i++)
    out[i] = (char)(i % 251);
}

static void writes(void) {
  open_all(FI_RMA, 0);
  fill();
  show(in, LONG - 1, FI_REMOTE_WRITE);
  const uint64_t to = (uintptr_t)in, key = fi_mr_key(mr);
  IS(fi_write(ep, out, LONG - 1, NULL, self, to, key, out), 0);
  await(out);
  CHECK(entry.flags & FI_RMA && entry.flags & FI_WRITE);
  CHECK(memcmp(in, out, LONG - 1) == 0);
  fill();
  IS(fi_inject_write(ep, out, SHORT, self, to, key), 0);
  const struct iovec piece = {.iov_base = out + SHORT, .iov_len = SHORT};
  const struct fi_rma_iov place = {.addr = to + SHORT, .len = SHORT, .key = key};
  struct fi_msg_rma msg = {.msg_iov = &piece,
                           .iov_count = 1,
                           .addr = self,
                           .rma_iov = &place,
                           .rma_iov_count = 1,
                           .context = in};
  IS(fi_writemsg(ep, &msg, FI_DELIVERY_COMPLETE | FI_INJECT), 0);
  await(in);
  CHECK(memcmp(in, out, 2 * SHORT) == 0);
  IS(fi_writemsg(ep, &msg, FI_FENCE), -FI_EBADFLAGS);
  IS(fi_writedata(ep, out, SHORT, NULL, 5, self, to, key, out), -FI_ENOSYS);
  IS(fi_write(ep, out, 0, NULL, self, to, key, out), 0);
  await(out);
  hide();
  close_all();
}

static void reads(void) {
  open_all(FI_RMA, 0);
  fill();
  show(out, LONG - 1, FI_REMOTE_READ);
  const uint64_t from = (uintptr_t)out, key = fi_mr_key(mr);
  IS(fi_read(ep, in, LONG - 1, NULL, self, from, key, in), 0);
  await(in);
  CHECK(entry.flags & FI_RMA && entry.flags & FI_READ);
  CHECK(memcmp(in, out, LONG - 1) == 0);
  IS(fi_read(ep, in, 0, NULL, self, from, key, in), 0);
  await(in);
  hide();
  close_all();
}

/* A read beyond its rights gets an error, and the endpoint goes on. */
static void rights(void) {
  open_all(FI_RMA | FI_MSG, 0);
  fill();
  static const uint64_t access[] = {FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND};
  for (int i = 0; i < 3; i++) {
    show(out, SHORT, access[i]);
    const uint64_t from = (uintptr_t)out, key = fi_mr_key(mr);
    IS(fi_read(ep, in, SHORT, NULL, self, from, key, in), 0);
    if (i == 0)
      await(in);
    else
      await_error(FI_EACCES, in);
    IS(fi_read(ep, in, SHORT, NULL, self, from + 1, key, in), 0);
    await_error(FI_EACCES, in);
    IS(fi_read(ep, in, 1, NULL, self, from, key + 1, in), 0);
    await_error(FI_EACCES, in);
    hide();
    IS(fi_read(ep, in, 1, NULL, self, from, key, in), 0);
    await_error(FI_EACCES, in);
  }
  IS(fi_recv(ep, in, SHORT, NULL, self, in), 0);
  IS(fi_inject(ep, out, SHORT, self), 0);
  await(in);
  close_all();
}

/* Peers cannot be allowed what the process itself may not do. */
static void unwritable(void) {
  open_domain(FI_RMA | FI_MSG);
  void *page = mmap(NULL, SHORT, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  IS(fi_mr_reg(domain, page, SHORT, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL), -FI_EFAULT);
  show(page, SHORT, FI_REMOTE_READ);
  hide();
  CHECK(munmap(page, SHORT) == 0);
  IS(fi_mr_reg(domain, page, SHORT, FI_REMOTE_READ, 0, 0, 0, &mr, NULL), -FI_EFAULT);
  IS(fi_close(&ep->fid), 0);
  close_domain();
}

static void counts(void) {
  open_domain(FI_RMA | FI_MSG);
  struct fid_cntr *counter;
  IS(fi_cntr_open(domain, NULL, &counter, NULL), 0);
  IS(fi_ep_bind(ep, &(av = new_av())->fid, 0), 0);
  IS(fi_ep_bind(ep, &(cq = new_cq())->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION), 0);
  IS(fi_ep_bind(ep, &counter->fid, 0), -FI_EBADFLAGS);
  IS(fi_ep_bind(ep, &counter->fid, FI_REMOTE_WRITE), -FI_ENOSYS);
  IS(fi_ep_bind(ep, &counter->fid, FI_READ | FI_WRITE), 0);
  IS(fi_ep_bind(ep, &counter->fid, FI_READ), -FI_EINVAL);
  IS(fi_enable(ep), 0);
  unsigned char name[ADDRESS_BYTES];
  own_name(name);
  IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
  show(in, SHORT, FI_REMOTE_READ | FI_REMOTE_WRITE);
  const uint64_t to = (uintptr_t)in, key = fi_mr_key(mr);
  IS(fi_inject_write(ep, out, SHORT, self, to, key), 0);
  IS(fi_write(ep, out, SHORT, NULL, self, to, key, NULL), 0);
  IS(fi_read(ep, out, SHORT, NULL, self, to, key, NULL), 0);
  IS(fi_cntr_wait(counter, 3, WAIT_MS), 0);
  IS(fi_cntr_read(counter), 3);
  IS(fi_read(ep, out, SHORT, NULL, self, to, key + 1, in), 0);
  while (fi_cntr_readerr(counter) == 0) /* a wait only sees an error that comes during it */
    continue;
  IS(fi_cntr_readerr(counter), 1);
  await_error(FI_EACCES, NULL);
  IS(fi_cntr_wait(counter, 4, 1), -FI_ETIMEDOUT);
  IS(fi_cntr_add(counter, 1), 0);
  IS(fi_cntr_wait(counter, 4, -1), 0);
  IS(fi_cntr_set(counter, 0), 0);
  IS(fi_cntr_read(counter), 0);
  IS(fi_close(&counter->fid), -FI_EBUSY);
  hide();
  IS(fi_close(&ep->fid), 0);
  IS(fi_close(&counter->fid), 0);
  IS(fi_close(&cq->fid), 0);
  IS(fi_close(&av->fid), 0);
  close_domain();
}

/* One buffer for messages until less than the agreed room is left. */
static void several(void) {
  enum { ROOM = 1000, LEAST = 300 };
  open_all(FI_MSG | FI_MULTI_RECV, 0);
  fill();
  const size_t least = LEAST;
  IS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
  const struct iovec piece = {.iov_base = in, .iov_len = ROOM};
  const struct fi_msg msg = {
      .msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = in};
  IS(fi_recvmsg(ep, &msg, FI_MULTI_RECV), 0);
  static const size_t sizes[] = {100, 0, 1, 299, 300}; /* then 272 are left */
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    IS(fi_inject(ep, out + i, sizes[i], self), 0);
  char *at = in;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    await(in);
    IS(entry.len, sizes[i]);
    CHECK(entry.buf == at && memcmp(at, out + i, sizes[i]) == 0);
    CHECK(!(entry.flags & FI_MULTI_RECV) == (i < sizeof sizes / sizeof sizes[0] - 1));
    at += sizes[i] == 0 ? 8 : (sizes[i] + 7) / 8 * 8;
  }
  IS(fi_recvmsg(ep, &msg, FI_MULTI_RECV), 0);
  IS(fi_cancel(&ep->fid, in), 0);
  await_error(FI_ECANCELED, in);
  close_all();
}

/* Messages go to the oldest of several buffers, and the last one of a buffer gives it back, also
   while longer ones are still on their way. */
static void several_buffers(void) {
  enum { ROOM = 20000, SECOND = 32768 };
  static const struct {
    size_t bytes, at;
  } rows[] = {{100, 0},      {9000, 104},          {200, 9104},          {10688, 9304},
              {300, SECOND}, {5000, SECOND + 304}, {400, SECOND + 5304}, {14280, SECOND + 5704}};
  enum { N = sizeof rows / sizeof *rows };
  for (int late = 0; late < 2; late++) { /* the receives: so messages wait for them */
    open_all(FI_MSG | FI_MULTI_RECV, 0);
    fill();
    char sent;
    for (size_t i = 0; i < N && late; i++)
      IS(fi_send(ep, out + i, rows[i].bytes, NULL, self, &sent), 0);
    for (int k = 0; k < 2; k++) {
      const struct iovec piece = {.iov_base = in + k * SECOND, .iov_len = ROOM};
      const struct fi_msg msg = {
          .msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = piece.iov_base};
      IS(fi_recvmsg(ep, &msg, FI_MULTI_RECV), 0);
    }
    for (size_t i = 0; i < N && !late; i++)
      IS(fi_send(ep, out + i, rows[i].bytes, NULL, self, &sent), 0);
    size_t ends = 0, of_sends = 0, of_buffer[2] = {0};
    for (; ends < 2 * N; ends++) {
      IS(fi_cq_sread(cq, &entry, 1, NULL, WAIT_MS), 1);
      of_sends += entry.op_context == &sent;
      if (entry.op_context == &sent) continue;
      const int k = entry.op_context != in;
      CHECK(!(entry.flags & FI_MULTI_RECV) == (++of_buffer[k] < N / 2));
      size_t i = 0;
      while (i < N && (entry.buf != in + rows[i].at || entry.len != rows[i].bytes))
        i++;
      CHECK(i < N && memcmp(entry.buf, out + i, entry.len) == 0);
    }
    IS(of_sends, N);
    close_all();
  }
}

static void delivered(void) {
  open_all(FI_MSG, 0);
  const struct iovec piece = {.iov_base = out, .iov_len = SHORT};
  const struct fi_msg msg = {.msg_iov = &piece, .iov_count = 1, .addr = self, .context = out};
  IS(fi_sendmsg(ep, &msg, FI_DELIVERY_COMPLETE), 0);
  await(out);
  IS(fi_recv(ep, in, SHORT, NULL, self, in), 0);
  await(in);
  close_all();
}

static const struct trial trials[] = {{"writes", writes},
                                      {"reads", reads},
                                      {"rights", rights},
                                      {"unwritable", unwritable},
                                      {"counts", counts},
                                      {"several", several},
                                      {"several-buffers", several_buffers},
                                      {"delivered", delivered}};

int main(int argc, char **argv) { run(trials, sizeof trials / sizeof *trials, argc, argv); }
