/* SPDX-License-Identifier: Apache-2.0 */
/* Forged packets that host 0 could have sent but its engine did not send: well formed, from the
   right address and with a right ICRC. */
#pragma once

#include "core/base.h"
#include "core/crc.h"
#include "core/engine.h"
#include "pair/pair.h"
#include "scenario.h"

__attribute__((unused)) static const uint8_t four[4] = {0x11, 0x22, 0x33, 0x44}; /* the payload */

struct forge {
  struct mrc_wire wire;
  struct mrc_meta meta;
};

/* A data packet as host 0 would send it next, with a payload of four bytes. */
__attribute__((unused)) static struct forge make_forge(struct mrc_pair *p, int end) {
  struct mrc_pair_end *e = p->ends[end];
  e->audit.unwatched = p->ends[e->peer]->audit.unwatched = true;
  struct forge forge = {.wire = {.opcode = MRC_OP_WRITE_ONLY,
                                 .dest_qpn = p->ends[e->peer]->qpn,
                                 .psn = 0,
                                 .va = (uintptr_t)e->audit.target,
                                 .rkey = e->rkey,
                                 .dma_bytes = 4,
                                 .payload = four,
                                 .payload_bytes = 4},
                        .meta = {.flow_label = mrc_address_label(6, 1, 0),
                                 .sport = mrc_address_sport(1, 0),
                                 .dport = mrc_address_udp_port(1),
                                 .family = 6,
                                 .port = 1}};
  mrc_address_make(forge.meta.src, 6, 0, 1, 0);
  mrc_address_make(forge.meta.dst, 6, 1, 1, 0);
  return forge;
}

/* Another packet in its place, to the same QP unless it names one. */
#define set_wire(forge, ...) \
  ((forge).wire = (struct mrc_wire){.dest_qpn = (forge).wire.dest_qpn, __VA_ARGS__})

#define FORGE_BYTES (MRC_MAX_HEADER + 16)

/* Writes the packet with a right ICRC; returns its size. */
__attribute__((unused)) static size_t encode_forge(const struct forge *forge, uint8_t *bytes) {
  size_t n = mrc_wire_encode(&forge->wire, bytes);
  if (mrc_opcode_is_data(forge->wire.opcode)) {
    memcpy(bytes + n, forge->wire.payload, forge->wire.payload_bytes);
    n += forge->wire.payload_bytes;
    memset(bytes + n, 0, forge->wire.pad);
    n += forge->wire.pad;
  }
  const struct mrc_icrc_flow flow = {.src = forge->meta.src,
                                     .dst = forge->meta.dst,
                                     .sport = forge->meta.sport,
                                     .dport = forge->meta.dport,
                                     .family = forge->meta.family};
  mrc_put32(bytes + n, mrc_icrc_packet(mrc_icrc_begin(&flow, n + MRC_ICRC_BYTES), bytes, n));
  return n + MRC_ICRC_BYTES;
}

/* Sends the packet; returns the drop reason from the engine of host 1. */
__attribute__((unused)) static int send_forge(struct mrc_pair *p, const struct forge *forge) {
  uint8_t bytes[FORGE_BYTES];
  const size_t n = encode_forge(forge, bytes);
  return mrc_pair_forge(p, 1, bytes, n, &forge->meta);
}
