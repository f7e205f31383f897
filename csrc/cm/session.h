/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to the agent: calls of ids, and a thread that takes the agent's events. */
#pragma once

#include "cm/process.h"

/* Attaches the process, unless it is; a positive errno. Without the lock. */
int cm_session_start(void);
/* Asks the agent, and waits for its answer, also for the next agent. `said` gets the answer. A
   positive errno. Without the lock. */
int cm_session_call(enum mrc_agent_cm_call call, struct mrc_agent_cm *said);
/* The same for an id, without an answer. Under the lock. */
void cm_session_tell(enum mrc_agent_cm_call call, uint32_t number);
/* A new id of the program, which has no channel yet. NULL: no memory. Without the lock. */
struct cm_id *cm_session_new_id(void);
