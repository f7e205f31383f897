/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the simulated hosts: what a QP must know to be connected. Planes count from 0. */
#ifndef MRC_SIM_HOST_ADDRESS_H
#define MRC_SIM_HOST_ADDRESS_H

#include <stdint.h>

void mrc_sim_host_address(uint8_t out[16], uint32_t host, uint32_t plane);
void mrc_sim_path_address(uint8_t out[16], uint32_t host, uint32_t plane, uint32_t path);
/* The host, and the path, that such an address names. */
uint16_t mrc_sim_host_of(const uint8_t address[16]);
uint16_t mrc_sim_path_of(const uint8_t address[16]);
uint16_t mrc_sim_source_port(uint32_t plane);

#endif
