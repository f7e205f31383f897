/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/host_address.h"

#include <string.h>

enum { FIRST_SPORT = 49152 };

/* Bytes of an address that name host, plane and path + 1; path 0 is the host's own address. */
enum { HOST_AT = 4, PLANE_AT = 11, PATH_AT = 14 };

static uint16_t get_u16(const uint8_t *bytes) { return (uint16_t)(bytes[0] << 8 | bytes[1]); }

void mrc_sim_path_address(uint8_t out[16], uint32_t host, uint32_t plane, uint32_t path) {
  memset(out, 0, 16);
  out[0] = 0xFD;
  out[HOST_AT] = (uint8_t)(host >> 8);
  out[HOST_AT + 1] = (uint8_t)host;
  out[PLANE_AT] = (uint8_t)plane;
  out[PATH_AT] = (uint8_t)((path + 1) >> 8);
  out[PATH_AT + 1] = (uint8_t)(path + 1);
}

void mrc_sim_host_address(uint8_t out[16], uint32_t host, uint32_t plane) {
  mrc_sim_path_address(out, host, plane, UINT32_MAX);
}

uint16_t mrc_sim_host_of(const uint8_t address[16]) { return get_u16(&address[HOST_AT]); }

uint16_t mrc_sim_path_of(const uint8_t address[16]) {
  return (uint16_t)(get_u16(&address[PATH_AT]) - 1);
}

uint16_t mrc_sim_source_port(uint32_t plane) { return (uint16_t)(FIRST_SPORT + plane); }
