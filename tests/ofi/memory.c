/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric's manual pages promise of RMA, counters, receives of several messages, and atomic
   operations.

     memory [CASE...]       prints the name of each case that has passed

   The process talks to itself. */
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>
#include <sys/mman.h>

#include "endpoint.h"

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

/* ---- Atomic operations ---- */

static uint64_t number, key, found;

static void start(void) {
  open_all(FI_ATOMIC, 0);
  show(&number, sizeof number, FI_REMOTE_READ | FI_REMOTE_WRITE);
  key = fi_mr_key(mr);
  found = 0;
}

static void stop(void) {
  IS(fi_close(&mr->fid), 0);
  close_all();
}

#define AT self, (uintptr_t)&number, key

static void offer(void) {
  struct fi_info *all;
  struct fi_info *hints = hints_for(FI_ATOMIC);
  IS(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, NULL, &all), 0);
  for (struct fi_info *each = all; each; each = each->next) /* only for those who ask for it */
    CHECK(strcmp(each->fabric_attr->prov_name, "mrc") != 0 || !(each->caps & FI_ATOMIC));
  fi_freeinfo(all);
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  IS(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &all), 0);
  CHECK(all->caps & FI_ATOMIC && all->caps & FI_READ && all->caps & FI_REMOTE_WRITE);
  CHECK(all->tx_attr->caps & FI_ATOMIC && all->rx_attr->caps & FI_ATOMIC);
  fi_freeinfo(all);
  fi_freeinfo(hints);
}

static void valid(void) {
  start();
  size_t count = 0;
  struct fi_atomic_attr attr;
  IS(fi_atomicvalid(ep, FI_UINT64, FI_SUM, &count), 0);
  IS(count, 1);
  IS(fi_atomicvalid(ep, FI_UINT64, FI_ATOMIC_READ, &count), -FI_EOPNOTSUPP);
  IS(fi_atomicvalid(ep, FI_UINT64, FI_CSWAP, &count), -FI_EOPNOTSUPP);
  IS(fi_atomicvalid(ep, FI_DOUBLE, FI_SUM, &count), -FI_EOPNOTSUPP);
  IS(fi_atomicvalid(ep, FI_UINT64, FI_PROD, &count), -FI_EOPNOTSUPP);
  IS(fi_fetch_atomicvalid(ep, FI_INT32, FI_ATOMIC_READ, &count), 0);
  IS(fi_fetch_atomicvalid(ep, FI_INT8, FI_SUM, &count), -FI_EOPNOTSUPP);
  IS(fi_compare_atomicvalid(ep, FI_INT64, FI_CSWAP, &count), 0);
  IS(fi_compare_atomicvalid(ep, FI_INT64, FI_MSWAP, &count), -FI_EOPNOTSUPP);
  IS(fi_query_atomic(domain, FI_UINT32, FI_BOR, &attr, 0), 0);
  IS(attr.count, 1);
  IS(attr.size, 4);
  IS(fi_query_atomic(domain, FI_UINT32, FI_CSWAP, &attr, FI_COMPARE_ATOMIC), 0);
  IS(fi_query_atomic(domain, FI_UINT32, FI_CSWAP, &attr, FI_FETCH_ATOMIC), -FI_EOPNOTSUPP);
  IS(fi_query_atomic(domain, FI_UINT32, FI_SUM, &attr, FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC),
     -FI_EBADFLAGS);
  stop();
}

static void changes(void) {
  static const struct {
    enum fi_datatype type;
    enum fi_op op;
    uint64_t before, operand, after;
  } rows[] = {{FI_UINT64, FI_SUM, 5, 7, 12},
              {FI_INT64, FI_SUM, 5, (uint64_t)-7, (uint64_t)-2},
              {FI_UINT32, FI_SUM, 0xFFFFFFFFull, 1, 0},
              {FI_INT32, FI_SUM, 1ull << 32, 1, (1ull << 32) + 1},
              {FI_UINT64, FI_BAND, 12, 10, 8},
              {FI_UINT32, FI_BOR, 12, 10, 14},
              {FI_UINT64, FI_BXOR, 12, 10, 6},
              {FI_UINT64, FI_ATOMIC_WRITE, 12, 10, 10},
              {FI_UINT64, FI_MIN, 5, (uint64_t)-1, 5},
              {FI_INT64, FI_MIN, 5, (uint64_t)-1, (uint64_t)-1},
              {FI_UINT32, FI_MAX, 5, UINT32_MAX, UINT32_MAX},
              {FI_INT32, FI_MAX, 5, UINT32_MAX, 5},
              {FI_UINT64, FI_LAND, 5, 2, 1},
              {FI_UINT64, FI_LOR, 0, 2, 1},
              {FI_UINT64, FI_LXOR, 5, 2, 0}};
  start();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    uint64_t operand = rows[i].operand;
    number = rows[i].before;
    IS(fi_atomic(ep, &operand, 1, NULL, AT, rows[i].type, rows[i].op, in), 0);
    operand = 99; /* it was taken */
    await(in);
    CHECK(entry.flags & FI_ATOMIC && entry.flags & FI_WRITE);
    CHECK(number == rows[i].after);
  }
  const uint64_t seven = 7;
  number = 5;
  IS(fi_inject_atomic(ep, &seven, 1, AT, FI_UINT64, FI_SUM), 0);
  struct fi_ioc operands = {.addr = (void *)(uintptr_t)&seven, .count = 1};
  IS(fi_atomicv(ep, &operands, NULL, 1, AT, FI_UINT64, FI_SUM, out), 0);
  await(out); /* the injected one has no completion, and came first */
  CHECK(number == 19);
  stop();
}

static void fetches(void) {
  start();
  uint64_t operand = 7;
  uint32_t half[2] = {1, 1};
  number = (3ull << 32) + 5;
  IS(fi_fetch_atomic(ep, &operand, 1, NULL, &found, NULL, AT, FI_UINT64, FI_SUM, in), 0);
  await(in);
  CHECK(entry.flags & FI_ATOMIC && entry.flags & FI_READ);
  CHECK(found == (3ull << 32) + 5 && number == (3ull << 32) + 12);
  IS(fi_fetch_atomic(ep, &operand, 1, NULL, half, NULL, AT, FI_UINT32, FI_ATOMIC_WRITE, in), 0);
  await(in);
  CHECK(half[0] == 12 && half[1] == 1 && number == (3ull << 32) + 7);
  IS(fi_fetch_atomic(ep, NULL, 1, NULL, &found, NULL, AT, FI_UINT64, FI_ATOMIC_READ, in), 0);
  await(in);
  CHECK(found == number);
  struct fi_ioc operands = {.addr = &operand, .count = 1}, results = {.addr = &found, .count = 1};
  const struct fi_rma_ioc place = {.addr = (uintptr_t)&number, .count = 1, .key = key};
  struct fi_msg_atomic msg = {.msg_iov = &operands,
                              .iov_count = 1,
                              .addr = self,
                              .rma_iov = &place,
                              .rma_iov_count = 1,
                              .datatype = FI_UINT64,
                              .op = FI_BOR,
                              .context = out};
  IS(fi_fetch_atomicmsg(ep, &msg, &results, NULL, 1, FI_COMPLETION), 0);
  await(out);
  CHECK(found == (3ull << 32) + 7);
  IS(fi_atomicmsg(ep, &msg, FI_FENCE), -FI_EBADFLAGS);
  operands.count = 2;
  IS(fi_fetch_atomicmsg(ep, &msg, &results, NULL, 1, 0), -FI_EINVAL);
  stop();
}

static void compares(void) {
  start();
  uint64_t operand = 9, expected = 5;
  number = 5;
  for (int round = 0; round < 2; round++) { /* it is 5, then it is not */
    IS(fi_compare_atomic(ep, &operand, 1, NULL, &expected, NULL, &found, NULL, AT, FI_UINT64,
                         FI_CSWAP, in),
       0);
    await(in);
    CHECK(found == (round == 0 ? 5 : 9) && number == 9);
    operand = 11;
  }
  stop();
}

/* What may not be changed, and what is no number. */
static void atomic_rights(void) {
  open_all(FI_ATOMIC | FI_MSG, 0);
  static const uint64_t access[] = {FI_REMOTE_READ | FI_REMOTE_WRITE, FI_REMOTE_WRITE,
                                    FI_REMOTE_READ};
  const uint64_t seven = 7;
  for (int i = 0; i < 3; i++) {
    number = 5;
    show(&number, sizeof number, access[i]);
    key = fi_mr_key(mr);
    IS(fi_atomic(ep, &seven, 1, NULL, AT, FI_UINT64, FI_SUM, in), 0);
    if (i == 0)
      await(in);
    else
      await_error(FI_EACCES, in);
    CHECK(number == (i == 0 ? 12 : 5));
    IS(fi_atomic(ep, &seven, 1, NULL, self, (uintptr_t)&number + 4, key, FI_UINT64, FI_SUM, in),
       -FI_EINVAL);
    IS(fi_close(&mr->fid), 0);
    IS(fi_atomic(ep, &seven, 1, NULL, AT, FI_UINT64, FI_SUM, in), 0);
    await_error(FI_EACCES, in);
  }
  IS(fi_recv(ep, in, SHORT, NULL, self, in), 0);
  IS(fi_inject(ep, out, SHORT, self), 0);
  await(in);
  close_all();
}

static const struct trial trials[] = {
    {"writes", writes},
    {"reads", reads},
    {"rights", rights},
    {"unwritable", unwritable},
    {"counts", counts},
    {"several", several},
    {"several-buffers", several_buffers},
    {"delivered", delivered},
    {"offer", offer},
    {"valid", valid},
    {"changes", changes},
    {"fetches", fetches},
    {"compares", compares},
    {"atomic-rights", atomic_rights},
};

int main(int argc, char **argv) { run(trials, sizeof trials / sizeof *trials, argc, argv); }
