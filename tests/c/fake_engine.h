/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake engine, to test its driver: a post completes at once or requests bursts, a probe sets a
 * deadline, and each command is accepted if it has the arguments of the test. Only the datapath
 * thread touches the fake engine; the test reads it after the thread has ended. One program
 * includes it once.
 */
#pragma once

#include <errno.h>

#include "check.h"
#include "core/base.h"
#include "core/calls.h"
#include "mrc.h"

/* Most functions need few of their parameters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { MAX_POSTS = 4096, MAX_LOG = 64, REFUSED_QPN = 9, BURST_QPN = 5 };

static struct {
  struct mrc_wc wcs[MAX_POSTS];
  int wc_head;
  int wc_tail;
  struct mrc_event probe;
  bool probe_ended;
  uint64_t deadline_ns;
  int bursts_wanted;
  int n_received;
  uint32_t recorded; /* bit n: QPN 77 + n */
  int fates[MAX_LOG];
  int n_fates;
  int blocks[MAX_LOG]; /* +port when blocked, -port when not */
  int n_blocks;
  int port_down;
  uint32_t keys[4];
  int n_keys;
  bool destroyed;
  bool sent_before_told; /* gave bursts before completions were polled */
} fake;

static struct mrc_packet fake_packet;
static uint8_t fake_address[16];
static uint16_t fake_dport;

mrc_engine *mrc_engine_create(const struct mrc_engine_config *config) {
  memset(&fake, 0, sizeof fake);
  fake.deadline_ns = MRC_NEVER;
  CHECK_EQ(config->ports, 1);
  return (mrc_engine *)&fake;
}

void mrc_engine_destroy(mrc_engine *engine) {
  CHECK_PTR_EQ(engine, &fake);
  fake.destroyed = true;
}

int mrc_engine_receive(mrc_engine *engine, uint8_t *packet, size_t bytes, size_t packet_bytes,
                       const struct mrc_meta *meta, uint64_t now_ns) {
  CHECK(packet_bytes >= bytes);
  CHECK_EQ(meta->port, 1);
  CHECK_EQ(bytes, fake_packet.header_bytes);
  if (bytes == fake_packet.header_bytes) CHECK_MEM_EQ(packet, fake_packet.header, bytes);
  fake.n_received++;
  return 0;
}

int mrc_engine_transmit(mrc_engine *engine, struct mrc_burst *bursts, int capacity,
                        uint64_t now_ns) {
  bool blocked = fake.n_blocks > 0 && fake.blocks[fake.n_blocks - 1] > 0;
  int n = blocked ? 0 : (int)mrc_min_u32((uint32_t)fake.bursts_wanted, (uint32_t)capacity);
  if (n > 0 && fake.wc_head < fake.wc_tail) fake.sent_before_told = true;
  for (int i = 0; i < n; i++) {
    bursts[i] = (struct mrc_burst){.family = 6,
                                   .port = 1,
                                   .dport = fake_dport,
                                   .n_packets = 1,
                                   .packet_bytes = fake_packet.header_bytes,
                                   .packets = &fake_packet};
    memcpy(bursts[i].dst, fake_address, 16);
  }
  return n;
}

void mrc_engine_commit(mrc_engine *engine, const struct mrc_burst *bursts, const int *taken, int n,
                       uint64_t now_ns) {
  for (int i = 0; i < n && fake.n_fates < MAX_LOG; i++)
    fake.fates[fake.n_fates++] = taken[i];
  for (int i = 0; i < n; i++)
    fake.bursts_wanted -= taken[i] != 0;
}

void mrc_engine_port_blocked(mrc_engine *engine, int port, bool blocked, uint64_t now_ns) {
  if (fake.n_blocks < MAX_LOG) fake.blocks[fake.n_blocks++] = blocked ? port : -port;
}

void mrc_engine_port_up(mrc_engine *engine, int port, bool up, uint64_t now_ns) {
  fake.port_down = up ? 0 : port;
}

uint64_t mrc_engine_deadline(const mrc_engine *engine) { return fake.deadline_ns; }

void mrc_engine_expire(mrc_engine *engine, uint64_t now_ns) {
  CHECK(fake.deadline_ns <= now_ns);
  fake.deadline_ns = MRC_NEVER;
  fake.probe.result = -ETIMEDOUT;
  fake.probe_ended = true;
}

int mrc_cq_poll(mrc_engine *engine, struct mrc_wc *wcs, int capacity) {
  int n = 0;
  while (n < capacity && fake.wc_head < fake.wc_tail)
    wcs[n++] = fake.wcs[fake.wc_head++];
  return n;
}

int mrc_engine_events(mrc_engine *engine, struct mrc_event *events, int capacity) {
  if (!fake.probe_ended || capacity == 0) return 0;
  fake.probe_ended = false;
  events[0] = fake.probe;
  return 1;
}

int mrc_engine_trace(const mrc_engine *engine, struct mrc_trace_entry *entries, int capacity) {
  return capacity;
}

int mrc_mr_register(mrc_engine *engine, uint64_t address, uint64_t bytes, uint32_t key,
                    uint32_t access, uint32_t domain) {
  if (address == 0 || bytes == 0 || access == 0) return -EINVAL;
  fake.keys[fake.n_keys++ % 4] = key;
  return 0;
}

bool mrc_qp_may_reach(mrc_engine *engine, uint32_t qpn, uint32_t key, uint64_t address,
                      uint64_t bytes, uint32_t access) {
  return false;
}

int mrc_mr_deregister(mrc_engine *engine, uint32_t key) {
  for (int i = 0; i < 4; i++) {
    if (fake.keys[i] != key) continue;
    fake.keys[i] = 0;
    return 0;
  }
  return -ENOENT;
}

int mrc_qp_create(mrc_engine *engine, const struct mrc_qp_create_attr *attr) {
  return attr->qpn == 77 ? 0 : -EEXIST;
}

int mrc_qp_modify(mrc_engine *engine, uint32_t qpn, uint32_t state,
                  const struct mrc_qp_rtr_attr *rtr, const struct mrc_qp_rts_attr *rts,
                  uint64_t now_ns) {
  if (qpn != 77) return -EINVAL;
  if (state == MRC_QP_RTR) return rtr != NULL && rts == NULL && rtr->dest_qpn == 6 ? 0 : -EINVAL;
  if (state == MRC_QP_RTS) return rtr == NULL && rts != NULL && rts->sq_psn == 5 ? 0 : -EINVAL;
  return state == MRC_QP_INIT && rtr == NULL && rts == NULL ? 0 : -EINVAL;
}

int mrc_qp_set_evs(mrc_engine *engine, uint32_t qpn, const struct mrc_ev_attr *evs, int n) {
  return qpn == 77 && n == 1 && (evs[0].ev & 0xffff) == 9 ? 0 : -ENOENT;
}

int mrc_qp_set_peer(mrc_engine *engine, uint32_t qpn, const struct mrc_peer_source *sources,
                    int n) {
  return qpn == 77 && n == 1 && sources[0].sport == 8 ? 0 : -ENOENT;
}

void mrc_engine_set_aead(mrc_engine *engine, const struct mrc_aead *aead) {}

int mrc_qp_set_seal(mrc_engine *engine, uint32_t qpn, const struct mrc_seal_attr *attr) {
  return qpn == 77 && attr->mode == MRC_SEAL_AUTH ? 0 : -ENOENT;
}

int mrc_qp_destroy(mrc_engine *engine, uint32_t qpn) { return qpn == 77 ? 0 : -ENOENT; }

/* Completes the write at once; on BURST_QPN, requests wr_id bursts instead. */
int mrc_qp_post(mrc_engine *engine, uint32_t qpn, const struct mrc_wr *wr, uint32_t n,
                uint64_t now_ns) {
  if (qpn == REFUSED_QPN || fake.wc_tail == MAX_POSTS) return -ENOBUFS;
  if (qpn == BURST_QPN)
    fake.bursts_wanted += (int)wr->wr_id;
  else
    fake.wcs[fake.wc_tail++] = (struct mrc_wc){.wr_id = wr->wr_id, .qpn = qpn};
  return 0;
}

/* A single probe sets the deadline. Of two probes, the engine takes one. */
int mrc_engine_probe_evs(mrc_engine *engine, const struct mrc_probe_attr *probes, int n,
                         uint64_t now_ns) {
  if (n == 2) return probes[0].cookie == 6 && probes[1].cookie == 7 ? 1 : -EINVAL;
  CHECK_EQ(n, 1);
  CHECK_EQ(probes->bytes, 1000);
  fake.deadline_ns = now_ns + probes->timeout_ns;
  fake.probe = (struct mrc_event){.type = MRC_EVENT_PROBE,
                                  .cookie = probes->cookie,
                                  .qpn = probes->qpn,
                                  .ev_index = probes->ev_index};
  return 1;
}

int mrc_qp_set_ev_state(mrc_engine *engine, uint32_t qpn, uint32_t ev_index, uint32_t state,
                        uint64_t now_ns) {
  return qpn == 77 && ev_index == 3 && state == MRC_EV_DENIED ? 0 : -EINVAL;
}

int mrc_qp_set_mpr(mrc_engine *engine, uint32_t qpn, uint32_t mpr, uint64_t now_ns) {
  return qpn == 77 && mpr == 256 ? 0 : -EINVAL;
}

int mrc_qp_set_retries(mrc_engine *engine, uint32_t qpn, uint32_t timeout, uint32_t retry_linear,
                       uint32_t retry_exp, uint64_t now_ns) {
  return qpn == 77 && timeout == 16 && retry_linear == 7 && retry_exp == 6 ? 0 : -EINVAL;
}

int mrc_qp_set_weight(mrc_engine *engine, uint32_t qpn, uint32_t plane, uint32_t weight,
                      uint64_t now_ns) {
  return qpn == 77 && plane == 2 && weight == 50 ? 0 : -EINVAL;
}

int mrc_qp_set_yielding(mrc_engine *engine, uint32_t qpn, uint32_t planes, uint64_t now_ns) {
  return qpn == 77 && planes == 6 ? 0 : -EINVAL;
}

int mrc_qp_query(const mrc_engine *engine, uint32_t qpn, struct mrc_qp_info *info) {
  info->qpn = qpn;
  return 0;
}

int mrc_qp_query_evs(const mrc_engine *engine, uint32_t qpn, struct mrc_ev_info *infos,
                     int capacity) {
  infos[0].ev = 1234;
  return capacity + 6;
}

int mrc_qp_record(mrc_engine *engine, uint32_t qpn, bool recorded) {
  if (qpn != 77 && qpn != 78) return -ENOENT;
  const uint32_t bit = 1u << (qpn - 77);
  fake.recorded = recorded ? fake.recorded | bit : fake.recorded & ~bit;
  return 0;
}

uint32_t mrc_engine_ports_used(const mrc_engine *engine) { return 0; }

/* Counts 1000 bytes for each received packet, also as recorded bytes while a QP is recorded. */
int mrc_engine_counters(const mrc_engine *engine, uint64_t *values, int capacity) {
  for (int i = 0; i < MRC_COUNTERS && i < capacity; i++)
    values[i] = (uint64_t)i;
  if (capacity > MRC_COUNTER_RX_BYTES)
    values[MRC_COUNTER_RX_BYTES] = 1000u * (uint64_t)fake.n_received;
  if (fake.recorded) values[MRC_COUNTER_RX_RECORDED] = 1000u * (uint64_t)fake.n_received;
  return MRC_COUNTERS;
}

int mrc_engine_drops(const mrc_engine *engine, uint64_t *values, int capacity) {
  values[0] = 31;
  return 21;
}
