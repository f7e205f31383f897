/* SPDX-License-Identifier: Apache-2.0 */
/* What each command of the command ring does to the engine of a datapath. It owns nothing. */
#pragma once

#include "io/datapath_state.h"

/* Runs one command in the datapath's thread and returns its result: a count, 0 or -errno. */
int mrc_command_run(struct mrc_datapath *datapath, const struct mrc_command *command);
/* Whether a command with this result is to be answered. */
bool mrc_command_is_answered(const struct mrc_command *command, int result);
