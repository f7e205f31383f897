/* SPDX-License-Identifier: Apache-2.0 */
/* Who runs the engine: the program's threads while they poll, else the helper thread. */
#pragma once

#include "program/process.h"

/* Under the lock. One turn of the engine: sends, receives, and hands out its events. */
void pr_drive_turn(void);
/* Under the lock. The same, for a thread of the program: the helper then leaves it the engine. */
void pr_drive_poll(void);
/* Under the lock. The program has polled, and had a completion without a turn. */
void pr_drive_polled(void);
/* Under the lock. After a post; `idle`: the QP had nothing outstanding. */
void pr_drive_posted(bool idle);
/* Under the lock. The owner has work for its `turned`, which may wait for the next turn. */
void pr_drive_owed(void);
/* Under the lock. Runs a command and returns its result. */
int pr_drive_call(struct mrc_command *command);
/* Under the lock. Returns once the engine has run all commands before: it reads no memory of QPs
   that were to fail. */
void pr_drive_settle(void);
/* Under the lock. Starts the helper thread; a positive errno. */
int pr_drive_start(void);
/* Under the lock. The helper looks at once: there is work that no poller will do. */
void pr_drive_wake(void);
/* Under the lock. The calling thread will sleep: the helper runs the engine from now on. */
void pr_drive_leave(void);
