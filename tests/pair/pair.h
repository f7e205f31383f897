/* SPDX-License-Identifier: Apache-2.0 */
/* Two or more engines joined in virtual time: every two hosts have `paths` paths in each of
   `planes` planes, and each host drives its engine with the same loop as a real driver. One seed
   decides everything. An auditor (audit.h) checks every packet and completion, and aborts the
   process at the first broken invariant. Planes and ports count from 1 as in mrc.h, hosts and paths
   from 0. */
#pragma once

#include "pair/pair_fabric.h"

struct mrc_pair *mrc_pair_create(const struct mrc_pair_config *config);
/* Checks all memory a last time. */
void mrc_pair_destroy(struct mrc_pair *pair);

void mrc_pair_run(struct mrc_pair *pair, uint64_t until_ns);
/* Runs all events of the next time that has one; false if there is none until `until_ns`. */
bool mrc_pair_step(struct mrc_pair *pair, uint64_t until_ns);
/* Runs the driver of a host. Call it after a call to its engine from outside. */
void mrc_pair_kick(struct mrc_pair *pair, int host);

/* Silences a plane of all hosts in both directions, or heals it. */
void mrc_pair_silence(struct mrc_pair *pair, int plane, bool silent);
/* A link of a host goes down or up; the engine is informed. */
void mrc_pair_port_up(struct mrc_pair *pair, int host, int plane, bool up);
void mrc_pair_lose(struct mrc_pair *pair, struct mrc_pair_rule rule);
/* A UDP payload arrives at a host without a sender. Returns the result of mrc_engine_receive. */
int mrc_pair_forge(struct mrc_pair *pair, int host, const uint8_t *bytes, size_t n,
                   const struct mrc_meta *meta);
