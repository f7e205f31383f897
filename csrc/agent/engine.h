/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of the process: who runs it, the agent's commands for it, and memory regions. The
   threads of the program run it while they poll, else the helper thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/process.h"

/* Under the lock. Attaches to the agent and starts the helper, unless that was done; a positive
   errno. The process leaves the agent when it ends. */
int pr_enter(void);

/* Under the lock. One turn of the engine: sends, receives, and hands out its events. */
void pr_engine_turn(void);
/* Under the lock. The same, for a thread of the program: the helper then leaves it the engine. */
void pr_engine_poll(void);
/* Under the lock. The program has polled, and had a completion without a turn. */
void pr_engine_polled(void);
/* Under the lock. After a post; `idle`: the QP had nothing outstanding. */
void pr_engine_posted(bool idle);
/* Under the lock. The owner has work for its `turned`, which may wait for the next turn. */
void pr_engine_owed(void);
/* Under the lock. Runs a command and returns its result. */
int pr_engine_call(struct mrc_command *command);
/* Under the lock. Returns once the engine has run all commands before: it reads no memory of QPs
   that were to fail. */
void pr_engine_settle(void);
/* Under the lock. The helper looks at once: there is work that no poller will do. */
void pr_engine_wake(void);
/* Under the lock. The calling thread will sleep: the helper runs the engine from now on. */
void pr_engine_leave(void);

/* Asks the agent by a function of mrc_api.h, and waits for its answer, without the lock. Returns 0
   or -errno; `bytes` is the room for the results, then their size. */
int pr_request(int function, const void *body, size_t body_bytes, void *result, size_t *bytes);

/* ---- Memory regions that the program registers, under random keys. Under the lock ---- */

/* Whether this process has the memory and can read it, and write it if it is `written`. It cannot
   read memory of a GPU, for example. Permissions are those of the first and the last page. */
bool pr_memory_is_usable(const void *address, size_t bytes, bool written);

/* `access` is a set of enum mrc_access, `domain` that of its QPs or 0. Sets `key`, never to 0. 0;
   -EAGAIN: no random numbers; or an error of mrc_mr_register. */
int pr_memory_register(const void *address, size_t bytes, uint32_t access, uint32_t domain,
                       uint32_t *key);
