/* SPDX-License-Identifier: Apache-2.0 */
/* Faults: which hops one befalls, and what it does to them. */
#ifndef MRC_SIM_FAULT_H
#define MRC_SIM_FAULT_H

#include "sim/fabric.h"

/* Adds a fault to a hop; those of other kinds stay. */
void mrc_fault_add(struct mrc_hop *hop, const struct mrc_sim_fault *fault);
/* A fault begins or ends. */
void mrc_fault_switch(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, bool begins);
/* Rate or delay of the links of a target, when no fault befalls them, are the fault's. */
void mrc_fault_rebase(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault);

#endif
