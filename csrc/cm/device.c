/* SPDX-License-Identifier: Apache-2.0 */
#include "cm/device.h"

#include <stdlib.h>
#include <string.h>

#include "cm/session.h"
#include "program/export.h"
#include "program/say.h"

#define DEVICE "mrc0"

enum { PORT = 1 };

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int open_verbs(void) {
  int n = 0;
  struct ibv_device **devices = ibv_get_device_list(&n);
  if (!devices) return ENODEV;
  for (int i = 0; i < n && !cm_process.verbs; i++)
    if (strcmp(ibv_get_device_name(devices[i]), DEVICE) == 0)
      cm_process.verbs = ibv_open_device(devices[i]);
  ibv_free_device_list(devices);
  if (!cm_process.verbs) return ENODEV;
  struct ibv_device_attr attr = {0};
  if (ibv_query_device(cm_process.verbs, &attr) == 0)
    cm_process.most_resources = (uint8_t)attr.max_qp_rd_atom;
  cm_process.pd = ibv_alloc_pd(cm_process.verbs);
  if (cm_process.pd) return 0;
  ibv_close_device(cm_process.verbs);
  cm_process.verbs = NULL;
  return ENOMEM;
}

int cm_device_open(void) {
  pthread_mutex_lock(&opening);
  int error = cm_process.verbs ? 0 : open_verbs();
  pthread_mutex_unlock(&opening);
  if (error == 0) error = cm_session_start();
  if (error != 0) PR_SAY_ONCE("rdma_cm has no device: %s", strerror(error));
  return error;
}

static bool is_v4(const union ibv_gid *gid) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

int cm_device_take(struct cm_id *id, int family) {
  struct ibv_port_attr port;
  union ibv_gid gid;
  if (ibv_query_port(cm_process.verbs, PORT, &port) != 0 || port.gid_tbl_len == 0) return ENODEV;
  id->gid_index = 0;
  for (int i = 0; i < port.gid_tbl_len; i++)
    if (ibv_query_gid(cm_process.verbs, PORT, i, &gid) == 0 && is_v4(&gid) == (family == AF_INET))
      id->gid_index = (uint8_t)i;
  id->id.verbs = cm_process.verbs;
  id->id.port_num = PORT;
  if (!id->id.pd) id->id.pd = cm_process.pd;
  return 0;
}

int cm_device_gid(const struct cm_id *id, uint8_t gid[16]) {
  union ibv_gid found;
  if (ibv_query_gid(cm_process.verbs, PORT, id->gid_index, &found) != 0) return ENODEV;
  memcpy(gid, found.raw, sizeof found.raw);
  return 0;
}

EXPORT struct ibv_context **rdma_get_devices(int *n) {
  if (n) *n = 0;
  const int error = cm_device_open();
  struct ibv_context **list = error == 0 ? calloc(2, sizeof *list) : NULL;
  if (!list) {
    errno = error ? error : ENOMEM;
    return NULL;
  }
  list[0] = cm_process.verbs;
  if (n) *n = 1;
  return list;
}

EXPORT void rdma_free_devices(struct ibv_context **list) { free(list); }
