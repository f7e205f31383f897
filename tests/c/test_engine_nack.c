/* SPDX-License-Identifier: Apache-2.0 */
/* NACKs that the kernel refuses at first, and an unlimited stream of NACKs. */
#include "core/engine.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

enum { CAPACITY = 16, NACKS = 3 };

static const uint8_t four[4] = {0x11, 0x22, 0x33, 0x44};

/* One transmit of a host: all bursts get the given fate, and none leaves. They stay readable. */
static int transmit(struct mrc_pair *p, int host, struct mrc_burst *bursts, int capacity,
                    int fate) {
  int taken[CAPACITY];
  mrc_engine *engine = p->hosts[host].engine;
  const int n = mrc_engine_transmit(engine, bursts, capacity, p->now_ns);
  for (int i = 0; i < n; i++)
    taken[i] = fate;
  if (n > 0) mrc_engine_commit(engine, bursts, taken, n, p->now_ns);
  return n;
}

/* The kernel refuses the NACKs of trims at first: the engine offers all again, unchanged. */
TEST(test_nack__refused_is_given_again) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  struct forge forge = make_forge(p, end, four);
  forge.meta.trimmed = MRC_TRIMMED;
  for (uint32_t i = 0; i < NACKS; i++) {
    forge.wire.psn = i + 1;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_TRIMMED);
  }
  struct mrc_burst bursts[CAPACITY];
  uint8_t headers[NACKS][MRC_MAX_HEADER];
  CHECK_EQ(transmit(p, 1, bursts, CAPACITY, 0), 1);
  CHECK_EQ(bursts[0].n_packets, NACKS);
  for (int i = 0; i < NACKS; i++) {
    CHECK_EQ(bursts[0].packets[i].header[0], MRC_OP_NACK);
    memcpy(headers[i], bursts[0].packets[i].header, bursts[0].packets[i].header_bytes);
  }
  CHECK_EQ(transmit(p, 1, bursts, CAPACITY, 1), 1);
  CHECK_EQ(bursts[0].n_packets, NACKS);
  for (int i = 0; i < NACKS; i++)
    CHECK_MEM_EQ(bursts[0].packets[i].header, headers[i], bursts[0].packets[i].header_bytes);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), NACKS);
  CHECK_EQ(transmit(p, 1, bursts, CAPACITY, 1), 0);
  mrc_pair_destroy(p);
}

/* Every packet of a peer needs a NACK, and none can leave: the engine drops the NACKs beyond its
   queue. */
TEST(test_nack__no_more_than_fit) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 256 * MTU);
  struct forge forge = make_forge(p, end, four);
  forge.meta.trimmed = MRC_TRIMMED;
  for (uint32_t i = 0; i < 2 * MRC_MAX_NACKS; i++) {
    forge.wire.psn = i + 1;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_TRIMMED);
  }
  CHECK_EQ(mrc_engine_qp(p->hosts[1].engine, p->ends[p->ends[end]->peer]->qpn)->resp.n_nacks,
           MRC_MAX_NACKS);
  struct mrc_burst bursts[CAPACITY];
  while (transmit(p, 1, bursts, CAPACITY, 1) > 0)
    CHECK_EQ(bursts[0].packets[0].header[0], MRC_OP_NACK);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), MRC_MAX_NACKS);
  mrc_pair_destroy(p);
}
