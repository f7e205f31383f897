/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines with the same readings, and what a capture at each of them has: a line for each
   packet that a host sends or receives.

     engines READINGS      a set of enum mrc_reading

   Host 0 writes to host 1. On the way there the network marks, trims and loses packets of a few
   paths, because most readings show only then. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/wire.h"
#include "pair/address.h"
#include "pair/connect.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define MTU 1024u

enum {
  PATHS = 8,
  PROBED = 1,   /* path: its EV probes come marked */
  MARKED = 2,   /* its data comes marked, ROW packets in a row */
  BAD = 3,      /* its data comes marked for a while, BAD_ROW packets in a row */
  TRIMMING = 4, /* cuts some packets within their RETH */
  ROW = 11,     /* fewer than make an EV bad (S4-B) */
  BAD_ROW = 40,
  TRIMMED_PACKETS = 64, /* of the first packets on that path */
  CUT = 26,             /* bytes of a trimmed packet */
  CE = 3,
};

static uint32_t carried[PATHS]; /* data packets that arrived */

static void suffer(struct mrc_datagram *packet) {
  struct mrc_wire wire;
  if (mrc_wire_decode(packet->bytes, packet->n, false, &wire) != 0) abort();
  const int path = packet->path;
  if (wire.opcode == MRC_OP_ENDPOINT_REQUEST && path == PROBED) packet->meta.ecn = CE;
  if (!mrc_opcode_is_data(wire.opcode)) return;
  const uint32_t n = carried[path]++;
  if (path == MARKED && n % (ROW + 1) != 0) packet->meta.ecn = CE;
  if (path == BAD && n >= 8 && n < 8 + BAD_ROW) packet->meta.ecn = CE;
  if (path == TRIMMING && n % 16 == 15 && n < TRIMMED_PACKETS && !wire.rtx) {
    packet->meta.trimmed = MRC_TRIMMED;
    packet->n = CUT;
  }
}

static void print_address(const uint8_t address[16]) {
  for (int i = 0; i < 16; i++)
    printf("%02x", address[i]);
}

static void on_packet(struct mrc_pair *pair, int host, struct mrc_datagram *packet, bool sent) {
  if (!sent && host == 1) suffer(packet);
  const struct mrc_meta *meta = &packet->meta;
  printf("%" PRIu64 " %d ", sent ? pair->now_ns : meta->arrived_ns, host);
  print_address(meta->src);
  printf(" ");
  print_address(meta->dst);
  printf(" %u %u %u %u %d ", meta->sport, meta->dport, meta->flow_label, meta->ecn == CE,
         meta->trimmed != 0);
  for (uint32_t i = 0; i < packet->n; i++)
    printf("%02x", packet->bytes[i]);
  printf("\n");
}

static void write_all(struct mrc_pair *pair, int end, int n, uint32_t bytes) {
  for (int i = 0; i < n; i++)
    if (mrc_pair_write(pair, end, bytes) != 0) abort();
  if (!mrc_pair_finish(pair, 10000 * MS)) abort();
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  const uint32_t readings = (uint32_t)strtoul(argv[1], NULL, 0);
  struct mrc_pair *pair = mrc_pair_create(&(struct mrc_pair_config){
      .seed = 1,
      .paths = PATHS,
      .engine.readings = readings,
      .path.delay_ns = 100 * US,
      .driver = {.wake_ns = 20 * US, .stall_ppm = 200000, .stall_ns = 200 * US},
  });
  pair->pass = on_packet;
  const int end = mrc_pair_connect(pair, &(struct mrc_pair_qp_config){
                                             .memory_bytes = 8u << 20,
                                             .path_mtu = MTU,
                                             .mpr = readings & MRC_READING_S1_A ? 128 : 1024,
                                             .spray = 1,
                                             .timeout = 14,
                                             .retry_linear = 3,
                                             .retry_exp = 4,
                                             .probe = true,
                                         });
  mrc_pair_lose(pair,
                (struct mrc_pair_rule){.plane = MRC_PAIR_ANY, .psn = 20, .n_psns = 1, .times = 1});
  for (int i = 0; i < 8; i++) /* messages of one packet each, with a hole now and then */
    write_all(pair, end, 64, MTU);
  write_all(pair, end, 64, 64 * MTU);
  mrc_pair_destroy(pair);
  return 0;
}
