/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between hosts as plain functions, for the model in Python. The writes of each QP are
 * delivered and completed one at a time. cffi reads the text between the two markers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* cdef begin */
struct shim_operation {
  uint64_t cookie, address, bytes, tag, ignore;
  uint32_t space;
  int peer; /* a host; RECV: -1 for any */
  bool receives, exact;
  bool reads; /* at `tag` of what the peer shows: bytes that are their number modulo 251 */
};
struct shim_ended {
  uint64_t cookie, bytes, tag;
  int result, peer;
};
struct shim_left {
  uint32_t operations;
  int regions; /* beside the inboxes, the outboxes and what is shown */
  uint64_t heap_bytes;
};
/* Every two hosts are joined. */
void shim_msg_start(int hosts, uint32_t eager_bytes, uint32_t heap_bytes, uint32_t depth);
void shim_msg_stop(void);
int shim_msg_post(int host, const struct shim_operation *operation);
int shim_msg_cancel(int host, uint32_t space, uint64_t cookie);
bool shim_msg_deliver(int from, int to);
bool shim_msg_complete(int from, int to);
void shim_msg_turn(int host);
void shim_msg_run(void);
void shim_msg_refuse(int host, int posts); /* the engine has no room for so many posts */
void shim_msg_fail(int one, int other);
int shim_msg_ended(int host, struct shim_ended *ended, int capacity);
bool shim_msg_is_stalled(int host);
struct shim_left shim_msg_left(int host);
/* cdef end */
