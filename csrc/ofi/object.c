/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/ofi.h"

#include <stdlib.h>

void *of_object_new(size_t bytes, struct fid *parent) {
  struct of_object *made = calloc(1, bytes);
  if (!made || !parent) return made;
  pr_lock();
  made->parent = (struct of_object *)parent;
  made->parent->users++;
  pr_unlock();
  return made;
}

int of_object_leave(struct of_object *object) {
  if (object->users > 0) return -FI_EBUSY;
  if (object->parent) object->parent->users--;
  return 0;
}

int of_no_bind(struct fid *fid, struct fid *other, uint64_t flags) { return -FI_ENOSYS; }

int of_no_control(struct fid *fid, int command, void *argument) { return -FI_ENOSYS; }

int of_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
  return -FI_ENOSYS;
}

static int close_plain(struct fid *fid) {
  pr_lock();
  const int error = of_object_leave((struct of_object *)fid);
  pr_unlock();
  if (error == 0) free(fid);
  return error;
}

struct fi_ops of_plain_ops = {.size = sizeof of_plain_ops,
                              .close = close_plain,
                              .bind = of_no_bind,
                              .control = of_no_control,
                              .ops_open = of_no_ops_open};

/* ==== Operations ==== */

enum { PLACE_BITS = 14 };

_Static_assert(OF_OPERATIONS == 1 << PLACE_BITS, "low bits of a cookie");

static struct of_operation operations[OF_OPERATIONS];
static struct of_operation *free_ones;
static uint32_t ever; /* places that were used */
static uint32_t running, sending;
static uint64_t turn; /* counts the operations */

struct of_operation *of_operation_new(bool sends) {
  struct of_operation *found = free_ones;
  if (!found && ever < OF_OPERATIONS) found = &operations[ever++];
  if (!found) return NULL;
  if (found == free_ones) free_ones = found->next;
  *found = (struct of_operation){.sends = sends};
  of_operation_renew(found);
  running++;
  sending += sends;
  return found;
}

void of_operation_renew(struct of_operation *operation) {
  operation->cookie = ++turn << PLACE_BITS | (uint64_t)(operation - operations);
}

struct of_operation *of_operation_note(const struct of_operation *operation) {
  struct of_operation *note = malloc(sizeof *note);
  if (!note) abort(); /* without its completion the program would wait for ever */
  *note = *operation;
  note->cookie = 0;
  return note;
}

void of_operation_free(struct of_operation *operation) {
  if (operation->cookie == 0) { /* a note */
    free(operation);
    return;
  }
  free(operation->copy);
  sending -= operation->sends;
  *operation = (struct of_operation){.next = free_ones};
  free_ones = operation;
  running--;
}

struct of_operation *of_operation_at(uint64_t cookie) {
  struct of_operation *found = &operations[cookie & (OF_OPERATIONS - 1)];
  return cookie != 0 && found->cookie == cookie ? found : NULL;
}

struct of_operation *of_operation_with(const void *context) {
  for (uint32_t i = 0; i < ever; i++) {
    struct of_operation *each = &operations[i];
    if (each->cookie != 0 && each->context == context && !each->ended) return each;
  }
  return NULL;
}

void of_operation_each(void (*call)(struct of_operation *operation)) {
  for (uint32_t i = 0; i < ever; i++)
    if (operations[i].cookie != 0) call(&operations[i]);
}

uint32_t of_operations_running(void) { return running; }

uint32_t of_operations_sending(void) { return sending; }
