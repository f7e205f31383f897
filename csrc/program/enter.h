/* SPDX-License-Identifier: Apache-2.0 */
/* The first and the last thing that a process does here. */
#pragma once

/* Under the lock. Attaches to the agent and starts the helper, unless that was done; a positive
   errno. The process leaves the agent when it ends. */
int pr_enter(void);
