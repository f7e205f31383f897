/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches the process to the agent of its host, and leaves it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Under the lock. Opens the engine as the agent says, if it is not open yet; a positive errno,
   after a line for the user. */
int pr_attach(void);
/* Under the lock. Looks for another agent, if it is time, and gives it the process's QPs. */
void pr_attach_again(uint64_t now_ns);
/* Under the lock. Waits until the agent has ended the QPs that the program has destroyed, for half
   a second at most, so that the last acknowledgements reach their peers. */
void pr_attach_linger(void);
/* Under the lock. The same at the end of the process, for all its QPs. */
void pr_attach_leave(void);
