/* SPDX-License-Identifier: Apache-2.0 */
#include "program/enter.h"

#include <unistd.h>

#include "program/attach.h"
#include "program/drive.h"

static void in_child(void) {
  pr_process.forked = true;
  pthread_mutex_init(&pr_process.lock, NULL);
  if (pr_process.link.fd >= 0) close(pr_process.link.fd);
  pr_process.link.fd = -1;
}

int pr_enter(void) {
  int error = pr_attach();
  if (error != 0 || pr_process.wake_fd >= 0) return error;
  error = pr_drive_start();
  if (error == 0) pthread_atfork(NULL, NULL, in_child);
  return error;
}

__attribute__((destructor)) static void leave(void) {
  if (pr_process.forked || pthread_mutex_trylock(&pr_process.lock) != 0) return;
  if (pr_process.ctx) pr_attach_leave();
  pr_unlock();
}
