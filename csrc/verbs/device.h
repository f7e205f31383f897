/* SPDX-License-Identifier: Apache-2.0 */
/* The device of this host, its contexts, and what they answer. Without the lock. */
#pragma once

#include "verbs/objects.h"

/* The device; NULL: no agent runs. */
struct ibv_device *vb_device(void);
static inline bool vb_is_ours(const struct ibv_device *device);
/* NULL and errno. */
struct ibv_context *vb_device_open(void);
int vb_device_close(struct ibv_context *context);
int vb_device_query(struct ibv_context *context, struct ibv_device_attr *attr);
/* Port 1 is the device; ports 2 and on are none of verbs' business. */
int vb_device_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                         size_t bytes);
/* What its ports carry together, but loopback. */
uint64_t vb_device_bits_per_second(void);
int vb_device_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
__be64 vb_device_guid(void);

/* Whether an object's context is of our device. */
static inline bool vb_owns(const struct ibv_context *context) {
  return vb_is_ours(context->device);
}

extern struct ibv_device *const vb_own_device;

static inline bool vb_is_ours(const struct ibv_device *device) { return device == vb_own_device; }
