/* SPDX-License-Identifier: Apache-2.0 */
/* A context as the functions of an extension see it, from any thread. */
#pragma once

#include "mrc.h"

/* The state of the extension; NULL in a child of fork, where the parent's thread may have left it
   in any state. */
void *mrc_ctx_extension(mrc_ctx *ctx);
/* Lets the datapath see what was posted. */
void mrc_ctx_wake(mrc_ctx *ctx);
