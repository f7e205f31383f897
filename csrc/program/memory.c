/* SPDX-License-Identifier: Apache-2.0 */
#include "program/memory.h"

#include <errno.h>
#include <sys/random.h>

#include "program/drive.h"

enum { KEY_TRIES = 8 };

int pr_memory_register(const void *address, size_t bytes, uint32_t access, uint32_t domain,
                       uint32_t *key) {
  for (int i = 0; i < KEY_TRIES; i++) {
    do {
      if (getrandom(key, sizeof *key, 0) != sizeof *key) return -EAGAIN;
    } while (*key == 0);
    struct mrc_command command = {.op = MRC_COMMAND_MR_REGISTER,
                                  .address = (uint64_t)(uintptr_t)address,
                                  .bytes = bytes,
                                  .value = domain,
                                  .key = *key,
                                  .access = access};
    const int error = pr_drive_call(&command);
    if (error != -EEXIST) return error;
  }
  return -EAGAIN;
}
