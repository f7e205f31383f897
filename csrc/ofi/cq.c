/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/ofi.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOREVER_MS (1ull << 40) /* 35 years: as good as for ever */

/* How a program may wait. */
static bool is_served(enum fi_wait_obj wait) {
  return wait == FI_WAIT_NONE || wait == FI_WAIT_UNSPEC || wait == FI_WAIT_YIELD;
}

struct of_counter {
  struct of_object object;
  uint64_t value;
  uint64_t errors;
};

/* A program may read a counter again and again, and do nothing else. */
static uint64_t look(const uint64_t *number) {
  pr_lock();
  if (pr_process.ctx) pr_engine_poll(true);
  const uint64_t found = *number;
  pr_unlock();
  return found;
}

static uint64_t read_value(struct fid_cntr *fid) {
  return look(&((struct of_counter *)fid)->value);
}

static uint64_t read_errors(struct fid_cntr *fid) {
  return look(&((struct of_counter *)fid)->errors);
}

static int change(uint64_t *number, bool adds, uint64_t value) {
  pr_lock();
  *number = adds ? *number + value : value;
  pthread_cond_broadcast(&pr_process.changed);
  pr_unlock();
  return 0;
}

static int add(struct fid_cntr *fid, uint64_t more) {
  return change(&((struct of_counter *)fid)->value, true, more);
}

static int set(struct fid_cntr *fid, uint64_t value) {
  return change(&((struct of_counter *)fid)->value, false, value);
}

static int add_errors(struct fid_cntr *fid, uint64_t more) {
  return change(&((struct of_counter *)fid)->errors, true, more);
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
  if (attr &&
      (!is_served(attr->wait_obj) || attr->events != FI_CNTR_EVENTS_COMP || attr->flags != 0))
    return -FI_ENOSYS;
  struct of_counter *made = of_object_new(sizeof *made, &domain->fid);
  if (!made) return -FI_ENOMEM;
  made->object.counter =
      (struct fid_cntr){.fid = {.fclass = FI_CLASS_CNTR, .context = context, .ops = &of_plain_ops},
                        .ops = &counter_ops};
  *counter = &made->object.counter;
  return 0;
}

/* ==== Completion queues ==== */

struct of_cq {
  struct of_object object;
  const struct fid *av; /* of the endpoint whose receives end here; or NULL */
  enum fi_cq_format format;
  bool signaled; /* one waiting thread returns */
  struct of_operation *first;
  struct of_operation *last;
};

struct of_cq *of_cq_of(struct fid *fid) { return (struct of_cq *)fid; }

void of_cq_name_by(struct of_cq *cq, const struct fid *av) { cq->av = av; }

/* ---- In ---- */

/* The RECV that takes away what the PEEK has found, and tells the same of it. */
static bool goes_on(struct of_operation *operation) {
  const struct mrc_msg_done *done = &operation->done;
  if (!operation->discards || done->kind != MRC_MSG_PEEK || done->result != 0) return false;
  of_operation_renew(operation);
  const struct mrc_msg_post post = {.cookie = operation->cookie,
                                    .tag = done->cookie,
                                    .space = done->space,
                                    .peer = done->peer,
                                    .kind = MRC_MSG_RECV,
                                    .claim = true};
  operation->done.result = mrc_ctx_msg_post(pr_process.ctx, &post, 1);
  if (operation->done.result == 0) pr_engine_owed();
  return operation->done.result == 0;
}

/* One message of a receive with FI_MULTI_RECV. The last one gives its memory back. */
static struct of_operation *of_message(struct of_operation *operation) {
  const struct mrc_msg_done *done = &operation->done;
  if (!done->goes_on) operation->flags |= FI_MULTI_RECV;
  if (done->result == 0) operation->buffer = (void *)(uintptr_t)done->address;
  return done->goes_on ? of_operation_note(operation) : operation;
}

/* The number that an atomic has found. */
static void take_number(const struct of_operation *operation) {
  const struct mrc_msg_done *done = &operation->done;
  if (done->result != 0 || !operation->buffer) return;
  const uint32_t narrow = (uint32_t)done->tag;
  if (done->bytes == sizeof narrow)
    memcpy(operation->buffer, &narrow, sizeof narrow);
  else
    memcpy(operation->buffer, &done->tag, sizeof done->tag);
}

static void end(struct of_operation *operation) {
  struct of_cq *cq = operation->cq;
  if (goes_on(operation)) return;
  /* In MPI only the receiver gets an error if its memory is too small. */
  if (operation->done.result == -EMSGSIZE &&
      (operation->done.kind == MRC_MSG_SEND || operation->discards))
    operation->done.result = 0;
  if (operation->done.kind == MRC_MSG_ATOMIC) take_number(operation);
  if (operation->multi) operation = of_message(operation);
  const bool good = operation->done.result == 0;
  if (operation->counter) {
    ++*(good ? &operation->counter->value : &operation->counter->errors);
    pthread_cond_broadcast(&pr_process.changed);
  }
  if (!cq || (operation->silent && good)) {
    of_operation_free(operation);
    return;
  }
  operation->ended = true;
  operation->next = NULL;
  if (cq->last)
    cq->last->next = operation;
  else
    cq->first = operation;
  cq->last = operation;
  pthread_cond_broadcast(&pr_process.changed);
}

void of_cq_take(void) {
  struct mrc_msg_done done[64];
  int n;
  do {
    n = mrc_ctx_msg_poll(pr_process.ctx, done, 64);
    for (int i = 0; i < n; i++) {
      struct of_operation *operation = of_operation_at(done[i].cookie);
      if (!operation) continue;
      operation->done = done[i];
      end(operation);
    }
  } while (n == 64);
}

/* ---- Out ---- */

static struct of_operation *pop(struct of_cq *cq) {
  struct of_operation *found = cq->first;
  cq->first = found->next;
  if (!cq->first) cq->last = NULL;
  return found;
}

static size_t entry_bytes(enum fi_cq_format format) {
  switch (format) {
    case FI_CQ_FORMAT_CONTEXT:
      return sizeof(struct fi_cq_entry);
    case FI_CQ_FORMAT_MSG:
      return sizeof(struct fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
      return sizeof(struct fi_cq_data_entry);
    default:
      return sizeof(struct fi_cq_tagged_entry);
  }
}

static fi_addr_t source_of(const struct of_cq *cq, const struct of_operation *operation) {
  if (!cq->av || !(operation->flags & FI_RECV)) return FI_ADDR_NOTAVAIL;
  const struct of_peer *peer = of_peer_numbered(operation->done.peer);
  return peer ? of_av_address(cq->av, peer) : FI_ADDR_NOTAVAIL;
}

/* The shorter formats are the beginning of the longest one. */
static void write_entry(const struct of_operation *operation, void *to, size_t bytes) {
  const bool receive = operation->flags & FI_RECV;
  const struct fi_cq_tagged_entry entry = {
      .op_context = operation->context,
      .flags = operation->flags | (receive ? FI_REMOTE_CQ_DATA : 0),
      .len = receive ? operation->done.bytes : 0,
      .buf = receive ? operation->buffer : NULL,
      .data = receive ? operation->done.data : 0,
      .tag = receive ? operation->done.tag : 0};
  memcpy(to, &entry, bytes);
}

static ssize_t take(struct of_cq *cq, void *buffer, size_t count, fi_addr_t *sources) {
  const size_t bytes = entry_bytes(cq->format);
  size_t n = 0;
  for (; n < count && cq->first && cq->first->done.result == 0; n++) {
    struct of_operation *operation = pop(cq);
    write_entry(operation, (char *)buffer + n * bytes, bytes);
    if (sources) sources[n] = source_of(cq, operation);
    /* The receive that claims the message finds it by the cookie. */
    struct fi_context *context = operation->context;
    if (operation->claims) context->internal[1] = (void *)(uintptr_t)operation->cookie;
    of_operation_free(operation);
  }
  if (n > 0) return (ssize_t)n;
  return cq->first && count > 0 ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t read_from(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *sources) {
  struct of_cq *cq = (struct of_cq *)fid;
  if (pr_process.forked) return -FI_EIO;
  pr_lock();
  if (cq->first)
    pr_engine_poll(false);
  else if (pr_process.ctx)
    pr_engine_poll(true);
  const ssize_t n = take(cq, buffer, count, sources);
  pr_unlock();
  return n;
}

static ssize_t read_plain(struct fid_cq *fid, void *buffer, size_t count) {
  return read_from(fid, buffer, count, NULL);
}

static ssize_t wait_from(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *sources,
                         const void *condition, int timeout_ms) {
  struct of_cq *cq = (struct of_cq *)fid;
  if (pr_process.forked) return -FI_EIO;
  const uint64_t ms = timeout_ms < 0 ? FOREVER_MS : (uint64_t)timeout_ms;
  const uint64_t until_ns = pr_now_ns() + ms * 1000000u;
  pr_lock();
  if (pr_process.ctx) { /* else no endpoint was ever enabled */
    if (!cq->first) pr_engine_turn();
    pr_engine_leave();
  }
  while (!cq->first && !cq->signaled && pr_wait(until_ns))
    continue;
  cq->signaled = false;
  const ssize_t n = take(cq, buffer, count, sources);
  pr_unlock();
  return n;
}

static ssize_t wait_plain(struct fid_cq *fid, void *buffer, size_t count, const void *condition,
                          int timeout_ms) {
  return wait_from(fid, buffer, count, NULL, condition, timeout_ms);
}

/* ---- Errors ---- */

/* Fills the fields that every version of the struct has. */
static ssize_t read_error(struct fid_cq *fid, struct fi_cq_err_entry *entry, uint64_t flags) {
  struct of_cq *cq = (struct of_cq *)fid;
  pr_lock();
  if (!cq->first || cq->first->done.result == 0) {
    pr_unlock();
    return -FI_EAGAIN;
  }
  struct of_operation *operation = pop(cq);
  const struct mrc_msg_done *done = &operation->done;
  struct of_peer *peer = of_peer_numbered(done->peer);
  entry->op_context = operation->context;
  entry->flags = operation->flags;
  entry->len = 0;
  entry->buf = operation->buffer;
  entry->data = 0;
  entry->tag = done->tag;
  entry->olen = done->result == -EMSGSIZE ? done->bytes : 0;
  entry->err = done->result == -EMSGSIZE ? FI_ETRUNC : -done->result;
  entry->prov_errno = peer && peer->error != 0 ? (int)peer->index + 1 : 0;
  if (entry->err_data_size == 0) entry->err_data = NULL;
  entry->err_data_size = 0;
  if (entry->prov_errno != 0) {
    /* MPI does not ask for the text of an error. */
    if (!peer->said) pr_say("%s", peer->cause);
    peer->said = true;
  }
  of_operation_free(operation);
  pr_unlock();
  return 1;
}

/* `prov_errno` is 1 plus the index of the peer that has failed. */
static const char *error_text(struct fid_cq *cq, int prov_errno, const void *err_data, char *buffer,
                              size_t bytes) {
  pr_lock(); /* the table of peers may grow */
  const struct of_peer *peer = prov_errno > 0 ? of_peer_at((uint64_t)prov_errno - 1) : NULL;
  pr_unlock();
  const char *text = peer ? peer->cause : "no peer has failed";
  if (buffer && bytes > 0) snprintf(buffer, bytes, "%s", text);
  return buffer && bytes > 0 ? buffer : text;
}

/* ---- The object ---- */

static int signal_reader(struct fid_cq *fid) {
  pr_lock();
  ((struct of_cq *)fid)->signaled = true;
  pthread_cond_broadcast(&pr_process.changed);
  pr_unlock();
  return 0;
}

static int close_cq(struct fid *fid) {
  struct of_cq *cq = of_cq_of(fid);
  pr_lock();
  const int error = of_object_leave(&cq->object);
  while (error == 0 && cq->first)
    of_operation_free(pop(cq));
  pr_unlock();
  if (error == 0) free(cq);
  return error;
}

static struct fi_ops_cq cq_ops = {.size = sizeof cq_ops,
                                  .read = read_plain,
                                  .readfrom = read_from,
                                  .readerr = read_error,
                                  .sread = wait_plain,
                                  .sreadfrom = wait_from,
                                  .signal = signal_reader,
                                  .strerror = error_text};

static struct fi_ops cq_fid_ops = {.size = sizeof cq_fid_ops,
                                   .close = close_cq,
                                   .bind = of_no_bind,
                                   .control = of_no_control,
                                   .ops_open = of_no_ops_open};

int of_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
               void *context) {
  if (!is_served(attr->wait_obj)) return -FI_ENOSYS;
  struct of_cq *made = of_object_new(sizeof *made, &domain->fid);
  if (!made) return -FI_ENOMEM;
  made->object.cq = (struct fid_cq){
      .fid = {.fclass = FI_CLASS_CQ, .context = context, .ops = &cq_fid_ops}, .ops = &cq_ops};
  made->format = attr->format != FI_CQ_FORMAT_UNSPEC ? attr->format : FI_CQ_FORMAT_TAGGED;
  *cq = &made->object.cq;
  return 0;
}

/* ==== Event queues ==== */

static ssize_t read_event(struct fid_eq *eq, uint32_t *event, void *buffer, size_t bytes,
                          uint64_t flags) {
  return -FI_EAGAIN;
}

static ssize_t eq_read_error(struct fid_eq *eq, struct fi_eq_err_entry *entry, uint64_t flags) {
  return -FI_EAGAIN;
}

OF_REFUSES(ssize_t, write_event, struct fid_eq *eq, uint32_t event, const void *buffer,
           size_t bytes, uint64_t flags)

/* A signal ends the wait too. */
static ssize_t wait_event(struct fid_eq *eq, uint32_t *event, void *buffer, size_t bytes,
                          int timeout_ms, uint64_t flags) {
  poll(NULL, 0, timeout_ms);
  return read_event(eq, event, buffer, bytes, flags);
}

static const char *eq_error_text(struct fid_eq *eq, int prov_errno, const void *err_data,
                                 char *buffer, size_t bytes) {
  static const char text[] = "nothing has failed";
  if (!buffer || bytes == 0) return text;
  snprintf(buffer, bytes, "%s", text);
  return buffer;
}

static struct fi_ops_eq eq_ops = {.size = sizeof eq_ops,
                                  .read = read_event,
                                  .readerr = eq_read_error,
                                  .write = write_event,
                                  .sread = wait_event,
                                  .strerror = eq_error_text};

int of_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
               void *context) {
  if (!is_served(attr->wait_obj) || attr->flags & FI_WRITE) return -FI_ENOSYS;
  struct of_object *made = of_object_new(sizeof *made, &fabric->fid);
  if (!made) return -FI_ENOMEM;
  made->eq = (struct fid_eq){
      .fid = {.fclass = FI_CLASS_EQ, .context = context, .ops = &of_plain_ops}, .ops = &eq_ops};
  *eq = &made->eq;
  return 0;
}
