/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration and the counters of messages. */
#pragma once

#include "mrc.h"
#include "msg/types.h"

/* A peer waits for at most one answer about each of its operations: so many have a place. */
enum { MRC_MSG_MAX_OPERATIONS = 1 << 14 };

/* A peer that has said nothing for so long is asked, so that its loss is noticed. */
#define MRC_MSG_SILENCE_NS 10000000000ull

/* 0 in a field takes the default in brackets. */
struct mrc_msg_config {
  mrc_engine *engine;
  uint64_t seed[2];        /* of keys of memory regions: secret */
  uint32_t max_peers;      /* [256] */
  uint32_t max_operations; /* posted and not done [MRC_MSG_MAX_OPERATIONS, the most] */
  uint32_t heap_bytes;     /* of each peer's messages and requests that nothing matches [1 MiB] */
  uint32_t eager_bytes;    /* [4096]; the same at all hosts, or some exact receives get -EMSGSIZE */
  /* called for each operation that ended; may not call this module */
  void (*done)(void *user, const struct mrc_msg_done *done);
  void *user;
};

struct mrc_msg_counters {
  uint64_t frames_sent, frames_read;
  uint64_t credits_sent; /* immediates that carried nothing else */
  uint64_t stalls;       /* frames that had to wait because the heap was full */
  uint64_t violations;   /* peers that failed because of what they sent */
};
