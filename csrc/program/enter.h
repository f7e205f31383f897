/* SPDX-License-Identifier: Apache-2.0 */
/* The first and the last thing that a process does here. */
#ifndef MRC_PROGRAM_ENTER_H
#define MRC_PROGRAM_ENTER_H

/* Under the lock. Attaches to the agent and starts the helper, unless that was done; a positive
   errno. The process leaves the agent when it ends. */
int pr_enter(void);

#endif
