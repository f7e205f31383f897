/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/next.h"

#include <dlfcn.h>
#include <pthread.h>

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A program may have loaded us in place of libibverbs, which is then not in the process. The name
   with its number is that of the system's library: ours has none. */
static void open_library(void) { library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL); }

void *vb_next(const char *name, const char *version) {
  pthread_once(&once, open_library);
  return library ? dlvsym(library, name, version) : NULL;
}
