/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric's manual pages promise of atomic operations.

     atomics [CASE...]      prints the name of each case that has passed

   The process talks to itself. */
#include <rdma/fi_atomic.h>

#include "self.h"

static struct fid_mr *mr;
static uint64_t number, key, found;

static void show(uint64_t access) {
  IS(fi_mr_reg(domain, &number, sizeof number, access, 0, 0, 0, &mr, NULL), 0);
  key = fi_mr_key(mr);
}

static void start(void) {
  open_all(FI_ATOMIC, 0);
  show(FI_REMOTE_READ | FI_REMOTE_WRITE);
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
static void rights(void) {
  open_all(FI_ATOMIC | FI_MSG, 0);
  static const uint64_t access[] = {FI_REMOTE_READ | FI_REMOTE_WRITE, FI_REMOTE_WRITE,
                                    FI_REMOTE_READ};
  const uint64_t seven = 7;
  for (int i = 0; i < 3; i++) {
    number = 5;
    show(access[i]);
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

static const struct trial trials[] = {{"offer", offer},       {"valid", valid},
                                      {"changes", changes},   {"fetches", fetches},
                                      {"compares", compares}, {"rights", rights}};

int main(int argc, char **argv) { run(trials, sizeof trials / sizeof *trials, argc, argv); }
