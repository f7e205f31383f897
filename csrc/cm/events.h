/* SPDX-License-Identifier: Apache-2.0 */
/* Events as programs get them. */
#pragma once

#include "cm/process.h"

/* Ids without a channel wait here for the event of their call; returns 0 or -1 with errno. */
int cm_events_await(struct cm_id *id);
/* Gives an id that a peer made a channel of its own; a positive errno. */
int cm_events_own_channel(struct cm_id *id);
