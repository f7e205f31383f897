/* SPDX-License-Identifier: Apache-2.0 */
/* Where libfabric finds the provider. */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#include "agent/library.h"
#include "ofi/domain.h"
#include "ofi/info.h"

enum { MAJOR = 1, MINOR = 0 };

static void clean_up(void) {}

static struct fi_provider provider = {.version = FI_VERSION(MAJOR, MINOR),
                                      .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
                                      .name = OF_PROVIDER,
                                      .getinfo = of_info,
                                      .fabric = of_fabric_open,
                                      .cleanup = clean_up};

/* The version of the library that calls us, which may have no name that we know. It passes over
   providers of an earlier one, but what they use has not changed since. */
static uint32_t version_of(void *caller) {
  Dl_info found;
  if (dladdr(caller, &found) == 0) return provider.fi_version;
  void *library = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return provider.fi_version;
  uint32_t (*version)(void);
  *(void **)&version = dlsym(library, "fi_version");
  const uint32_t result = version ? version() : provider.fi_version;
  dlclose(library);
  return result;
}

EXPORT struct fi_provider *fi_prov_ini(void) {
  provider.fi_version = version_of(__builtin_return_address(0));
  return &provider;
}
