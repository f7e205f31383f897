/* SPDX-License-Identifier: Apache-2.0 */
/* Opens RDMA's library at run time by its name. Prints the device, and the file of its functions.
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void) {
  void *library = dlopen("libibverbs.so", RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  struct ibv_device **(*list)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
  const char *(*name)(struct ibv_device *) = dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1");
  void *newest = dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8");
  if (!list || !name || !newest) return fprintf(stderr, "no function of this version\n"), 1;
  int n = 0;
  struct ibv_device **devices = list(&n);
  if (!devices || n < 1) return fprintf(stderr, "no device\n"), 1;
  Dl_info found;
  if (!dladdr(newest, &found) || newest != dlsym(RTLD_DEFAULT, "ibv_reg_mr_iova2")) return 1;
  printf("%s\n%s\n", name(devices[n - 1]), found.dli_fname);
  return 0;
}
