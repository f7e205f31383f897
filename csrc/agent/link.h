/* SPDX-License-Identifier: Apache-2.0 */
/* The socket to the agent: frames out, which wait in a bounded queue while it is full, and in.
   Lines of the library for users, and its exported names. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/protocol.h"
#include "core/base.h"

struct pr_link {
  int fd;                  /* -1: no agent */
  struct mrc_node waiting; /* frames that wait for room; without pr_link_open all 0 */
  uint32_t n_waiting;
  uint64_t lost; /* events that had no room */
};

/* A frame that has arrived. `body` is valid until the next one. */
struct pr_frame {
  struct mrc_agent_frame head;
  uint8_t *body;
  size_t bytes; /* of the body */
};

/* Connects to the agent of this host; -errno: -ECONNREFUSED or -ENOENT without an agent, -EPERM if
   it is another user's. */
int pr_link_open(struct pr_link *link);
void pr_link_close(struct pr_link *link);
/* Whether an agent of root or this user listens. */
bool pr_link_is_there(void);

/* Sends a frame whose body has two parts, or keeps it until there is room; never blocks. Without an
   agent it is dropped. `may_lose`: rather this frame than another one, if the queue is full. */
void pr_link_send(struct pr_link *link, const struct mrc_agent_frame *head, const void *body,
                  size_t bytes, const void *more, size_t more_bytes, bool may_lose);
/* Sends what waits, and passes on all frames that have come. 0; or an error, and the link is
   closed: -ECONNRESET, because the agent has gone, or what `take` has returned. */
int pr_link_take(struct pr_link *link, int (*take)(const struct pr_frame *frame));

/* ---- The library ---- */

/* A function that programs call; libmrc.map gives it its version. */
#define EXPORT __attribute__((visibility("default")))

/* The library that contains this folder, for lines on stderr. Each defines its own. */
extern const char *const pr_name;

/* Prints its name and a line for the user of a program on stderr, where a process
   prints at most a few. MRC_QUIET=1 silences them. */
void pr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, once in a process: programs may try again. */
#define PR_SAY_ONCE(...)                                       \
  do {                                                         \
    static atomic_flag said = ATOMIC_FLAG_INIT;                \
    if (!atomic_flag_test_and_set(&said)) pr_say(__VA_ARGS__); \
  } while (0)
