/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's frames, and the engine's events for it. Under the lock. */
#pragma once

#include "program/link.h"

/* A frame of the agent. -EPROTO: the agent is to be left. */
int pr_steer_frame(const struct pr_frame *frame);
/* An event of the engine: a reply to a command of the agent, or a change of state. */
void pr_steer_event(const struct mrc_event *event);
/* The agent has gone: forgets its commands. Those that run end unheard. */
void pr_steer_forget(void);

/* Asks the agent by a function of mrc_api.h, and waits for its answer, without the lock. Returns 0
   or -errno; `bytes` is the room for the results, then their size. */
int pr_steer_request(int function, const void *body, size_t body_bytes, void *result,
                     size_t *bytes);
