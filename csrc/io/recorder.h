/* SPDX-License-Identifier: Apache-2.0 */
/* Fills in a struct mrc_recording: when the payload of some or all QPs was delivered, and by which
   port. It owns nothing; the memory belongs to the caller that started the recording. */
#pragma once

#include "mrc.h"

struct mrc_recorder {
  struct mrc_recording *recording; /* 0: none */
  uint64_t seen_bytes;             /* the engine's counter at the last call */
};

/* -EBUSY, -EINVAL, or -ENOENT when there is no such QP; then nothing is recorded. */
int mrc_recorder_start(struct mrc_recorder *recorder, struct mrc_recording *recording,
                       mrc_engine *engine, int n_ports, uint64_t now_ns);
/* -ENOENT when nothing is recorded. */
int mrc_recorder_stop(struct mrc_recorder *recorder, mrc_engine *engine, uint64_t now_ns);

/* Call it only during a recording: packets of one port were delivered at `now_ns`. */
void mrc_recorder_look(struct mrc_recorder *recorder, const mrc_engine *engine, int port,
                       uint64_t now_ns);
