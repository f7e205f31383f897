/* SPDX-License-Identifier: Apache-2.0 */
/* Faults: the hops that a fault affects, and its effect on them. */
#pragma once

#include "sim/fabric.h"

/* Adds a fault to a hop; faults of other kinds stay. */
void mrc_fault_add(struct mrc_hop_own *hop, const struct mrc_sim_fault *fault);
/* A fault begins or ends. */
void mrc_fault_switch(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, bool begins);
/* Sets the property that the target's links have without faults to the fault's value. */
void mrc_fault_rebase(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault);
/* Removes the target's links, before the first packet. */
void mrc_fault_remove(struct mrc_fabric *fabric, const struct mrc_sim_fault *target);
