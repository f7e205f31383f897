/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of one host of a pair: the same loop as a real driver's, with a kernel that may refuse
   bursts and block ports. */
#pragma once

#include "pair/pair_fabric.h"

/* Receives, runs due timers, sends until the engine has no more, takes results, schedules its next
   run. */
void mrc_driver_run(struct mrc_pair *pair, int host);
/* The socket of a port has room again. */
void mrc_driver_unblock(struct mrc_pair *pair, int host, int port);
