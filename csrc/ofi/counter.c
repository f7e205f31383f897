/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/counter.h"

#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>

#include "agent/engine.h"
#include "ofi/object.h"

#define FOREVER_MS (1ull << 40)

struct of_counter {
  struct of_object object;
  uint64_t value;
  uint64_t errors;
};

void of_counter_add(struct of_counter *counter, bool good) {
  ++*(good ? &counter->value : &counter->errors);
  pthread_cond_broadcast(&pr_process.changed);
}

/* A program may read a counter again and again, and do nothing else. */
static uint64_t look(const uint64_t *number) {
  pr_lock();
  if (pr_process.ctx) pr_engine_poll();
  const uint64_t found = *number;
  pr_unlock();
  return found;
}

static uint64_t read_value(struct fid_cntr *fid) {
  const struct of_counter *counter = (struct of_counter *)fid;
  return look(&counter->value);
}

static uint64_t read_errors(struct fid_cntr *fid) {
  const struct of_counter *counter = (struct of_counter *)fid;
  return look(&counter->errors);
}

static int change(uint64_t *number, bool adds, uint64_t value) {
  pr_lock();
  *number = adds ? *number + value : value;
  pthread_cond_broadcast(&pr_process.changed);
  pr_unlock();
  return 0;
}

static int add(struct fid_cntr *fid, uint64_t more) {
  struct of_counter *counter = (struct of_counter *)fid;
  return change(&counter->value, true, more);
}

static int set(struct fid_cntr *fid, uint64_t value) {
  return change(&((struct of_counter *)fid)->value, false, value);
}

static int add_errors(struct fid_cntr *fid, uint64_t more) {
  struct of_counter *counter = (struct of_counter *)fid;
  return change(&counter->errors, true, more);
}

static int set_errors(struct fid_cntr *fid, uint64_t value) {
  return change(&((struct of_counter *)fid)->errors, false, value);
}

static int wait_for(struct fid_cntr *fid, uint64_t threshold, int timeout_ms) {
  const struct of_counter *counter = (struct of_counter *)fid;
  if (pr_process.forked) return -FI_EIO;
  const uint64_t ms = timeout_ms < 0 ? FOREVER_MS : (uint64_t)timeout_ms;
  const uint64_t until_ns = pr_now_ns() + ms * 1000000u;
  pr_lock();
  const uint64_t errors = counter->errors;
  if (pr_process.ctx) {
    pr_engine_turn();
    pr_engine_leave();
  }
  while (counter->value < threshold && counter->errors == errors && pr_wait(until_ns))
    continue;
  const bool failed = counter->errors != errors;
  const bool reached = counter->value >= threshold;
  pr_unlock();
  if (failed) return -FI_EAVAIL;
  return reached ? 0 : -FI_ETIMEDOUT;
}

static int close_counter(struct fid *fid) {
  pr_lock();
  const int error = of_object_leave((struct of_object *)fid);
  pr_unlock();
  if (error == 0) free(fid);
  return error;
}

static struct fi_ops fid_ops = {.size = sizeof fid_ops,
                                .close = close_counter,
                                .bind = of_no_bind,
                                .control = of_no_control,
                                .ops_open = of_no_ops_open};

static struct fi_ops_cntr counter_ops = {.size = sizeof counter_ops,
                                         .read = read_value,
                                         .readerr = read_errors,
                                         .add = add,
                                         .set = set,
                                         .wait = wait_for,
                                         .adderr = add_errors,
                                         .seterr = set_errors};

int of_counter_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **counter,
                    void *context) {
  const enum fi_wait_obj wait = attr ? attr->wait_obj : FI_WAIT_UNSPEC;
  if (wait != FI_WAIT_NONE && wait != FI_WAIT_UNSPEC && wait != FI_WAIT_YIELD) return -FI_ENOSYS;
  if (attr && (attr->events != FI_CNTR_EVENTS_COMP || attr->flags != 0)) return -FI_ENOSYS;
  struct of_counter *made = of_object_new(sizeof *made, &domain->fid);
  if (!made) return -FI_ENOMEM;
  made->object.counter = (struct fid_cntr){
      .fid = {.fclass = FI_CLASS_CNTR, .context = context, .ops = &fid_ops}, .ops = &counter_ops};
  *counter = &made->object.counter;
  return 0;
}
