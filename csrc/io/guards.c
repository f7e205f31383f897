/* SPDX-License-Identifier: Apache-2.0 */
#include "io/guards.h"

#include <errno.h>
#include <stdlib.h>

#include "io/sigbus.h"

int mrc_guards_open(struct mrc_guards *guards, uint32_t capacity) {
  *guards = (struct mrc_guards){.entries = calloc(capacity, sizeof *guards->entries),
                                .capacity = capacity,
                                .faults_seen = mrc_sigbus_faults()};
  return guards->entries ? 0 : -ENOMEM;
}

void mrc_guards_close(struct mrc_guards *guards) {
  for (uint32_t i = 0; i < guards->n; i++)
    mrc_sigbus_remove(guards->entries[i].handle);
  free(guards->entries);
  *guards = (struct mrc_guards){0};
}

int mrc_guards_add(struct mrc_guards *guards, uint32_t key, uint64_t address, uint64_t bytes,
                   int wake_fd) {
  if (guards->n == guards->capacity) return -ENOSPC;
  int handle = mrc_sigbus_add((void *)(uintptr_t)address, bytes, wake_fd);
  if (handle < 0) return handle;
  guards->replaced |= !mrc_sigbus_in_force();
  guards->entries[guards->n++] = (struct mrc_guard){.key = key, .handle = handle};
  return 0;
}

void mrc_guards_remove(struct mrc_guards *guards, uint32_t key) {
  for (uint32_t i = 0; i < guards->n; i++) {
    if (guards->entries[i].key != key) continue;
    mrc_sigbus_remove(guards->entries[i].handle);
    guards->entries[i] = guards->entries[--guards->n];
    return;
  }
}

int mrc_guards_take_faults(struct mrc_guards *guards, uint32_t *keys, int capacity) {
  uint32_t faults = mrc_sigbus_faults(); /* before the check: later faults cause another one */
  if (faults == guards->faults_seen) return 0;
  int n = 0;
  for (uint32_t i = 0; i < guards->n; i++) {
    if (n == capacity) return n; /* incomplete: keep faults_seen */
    if (mrc_sigbus_take(guards->entries[i].handle)) keys[n++] = guards->entries[i].key;
  }
  guards->faults_seen = faults;
  return n;
}
