/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the simulated hosts, with which QPs are connected. Planes count from 0. */
#pragma once

#include <stdint.h>
#include <string.h>

/* Bytes of an address that name host, plane and path + 1; path 0 is the host's own address. */
enum { MRC_SIM_HOST_AT = 3, MRC_SIM_PLANE_AT = 11, MRC_SIM_PATH_AT = 14 };

static inline void mrc_sim_path_address(uint8_t out[16], uint32_t host, uint32_t plane,
                                        uint32_t path) {
  memset(out, 0, 16);
  out[0] = 0xFD;
  out[MRC_SIM_HOST_AT] = (uint8_t)(host >> 16);
  out[MRC_SIM_HOST_AT + 1] = (uint8_t)(host >> 8);
  out[MRC_SIM_HOST_AT + 2] = (uint8_t)host;
  out[MRC_SIM_PLANE_AT] = (uint8_t)plane;
  out[MRC_SIM_PATH_AT] = (uint8_t)((path + 1) >> 8);
  out[MRC_SIM_PATH_AT + 1] = (uint8_t)(path + 1);
}
static inline void mrc_sim_host_address(uint8_t out[16], uint32_t host, uint32_t plane) {
  mrc_sim_path_address(out, host, plane, UINT32_MAX);
}
/* The host and the path in an address. */
static inline uint32_t mrc_sim_host_of(const uint8_t address[16]) {
  return (uint32_t)(address[MRC_SIM_HOST_AT] << 16 | address[MRC_SIM_HOST_AT + 1] << 8 |
                    address[MRC_SIM_HOST_AT + 2]);
}
static inline uint16_t mrc_sim_path_of(const uint8_t address[16]) {
  return (uint16_t)((address[MRC_SIM_PATH_AT] << 8 | address[MRC_SIM_PATH_AT + 1]) - 1);
}
static inline uint16_t mrc_sim_source_port(uint32_t plane) { return (uint16_t)(49152 + plane); }
