/* SPDX-License-Identifier: Apache-2.0 */
#include "pair/connect.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"

#define PROBE_TIMEOUT_NS UINT64_C(2000000000)

static uint32_t or_default(uint32_t value, uint32_t otherwise) { return value ? value : otherwise; }

static struct mrc_qp_attr make_attr(const struct mrc_pair_qp_config *config) {
  const uint32_t mpr = or_default(config->mpr, 1024);
  const uint32_t max_wimm = or_default(config->max_wimm, 32);
  return (struct mrc_qp_attr){.create = {.sq_depth = or_default(config->sq_depth, 128),
                                         .mpr = mpr,
                                         .max_wimm = max_wimm,
                                         .domain = config->domain},
                              .rtr = {.integrity = config->integrity,
                                      .dynamic_mpr = config->dynamic_mpr,
                                      .sack_times = config->sack_times,
                                      .service_times = config->service_times},
                              .rts = {.path_mtu = or_default(config->path_mtu, 1024),
                                      .peer_mpr = mpr,
                                      .peer_max_wimm = max_wimm,
                                      .spray = config->spray,
                                      .ev_active_per_plane = config->ev_active_per_plane,
                                      .timeout = (uint8_t)or_default(config->timeout, 10),
                                      .retry_linear = config->retry_linear,
                                      .retry_exp = config->retry_exp,
                                      .cc = config->cc,
                                      .plane_shares = config->plane_shares,
                                      .cc_profile = config->cc_profile}};
}

static int add_end(struct mrc_pair *pair, int host, uint64_t memory_bytes) {
  mrc_assert(pair->n_ends < MRC_PAIR_MAX_ENDS);
  struct mrc_pair_end *end = calloc(1, sizeof(*end));
  mrc_assert(end);
  end->host = host;
  end->qpn = 3 + mrc_prng_below(&pair->prng, 0xFFFFF0);
  end->lkey = (uint32_t)mrc_prng_next(&pair->prng);
  end->rkey = (uint32_t)mrc_prng_next(&pair->prng);
  end->audit.engine = pair->hosts[host].engine;
  end->audit.qpn = end->qpn;
  mrc_audit_init(&end->audit, memory_bytes, mrc_prng_next(&pair->prng));
  pair->ends[pair->n_ends] = end;
  return pair->n_ends++;
}

static void register_memory(struct mrc_pair *pair, const struct mrc_pair_end *end) {
  const struct mrc_audit *audit = &end->audit;
  mrc_engine *to = pair->hosts[pair->ends[end->peer]->host].engine;
  if (audit->memory_bytes == 0) return;
  mrc_assert(mrc_mr_register(pair->hosts[end->host].engine, (uintptr_t)audit->source,
                             audit->memory_bytes, end->lkey, MRC_ACCESS_LOCAL_READ, 0) == 0);
  mrc_assert(mrc_mr_register(to, (uintptr_t)audit->target, audit->memory_bytes, end->rkey,
                             MRC_ACCESS_REMOTE_WRITE, 0) == 0);
}

/* The EVs of planes `first` to `last` of an end. Returns their number. */
static int make_evs(const struct mrc_pair *pair, const struct mrc_pair_end *end, int first,
                    int last, struct mrc_ev_attr *evs) {
  const int to = pair->ends[end->peer]->host, family = pair->config.family;
  int n = 0;
  for (int plane = first; plane <= last; plane++) {
    const int port = mrc_pair_port(&pair->config, end->host, plane);
    const int peer_port = mrc_pair_port(&pair->config, to, plane);
    for (int path = 0; path < pair->config.paths; path++) {
      struct mrc_ev_attr *ev = &evs[n++];
      const int tx_index = mrc_address_tx_index(family, path);
      *ev = (struct mrc_ev_attr){
          .ev = (uint32_t)mrc_address_sport(port, tx_index) << 16 |
                mrc_address_label(family, plane, path),
          .dport = mrc_address_udp_port(to),
          .port = (uint8_t)port,
          .plane = (uint8_t)plane,
          .peer_port = (uint8_t)peer_port,
          .tx_index = (uint8_t)tx_index,
          .family = (uint8_t)family,
      };
      mrc_address_make(ev->src, family, end->host, port, 0);
      mrc_address_make(ev->dst, family, to, peer_port, path);
    }
  }
  return n;
}

/* The EVs but for those of late planes, and the sources of all planes. */
static void set_paths(struct mrc_pair *pair, const struct mrc_pair_end *end, uint16_t nat_sport) {
  static struct mrc_ev_attr evs[MRC_PAIR_MAX_PLANES * MRC_PAIR_MAX_PATHS];
  static struct mrc_peer_source sources[MRC_PAIR_MAX_PLANES * MRC_PAIR_MAX_PATHS];
  const int to = pair->ends[end->peer]->host, family = pair->config.family;
  const int sockets = family == 4 ? pair->config.paths : 1;
  int n_sources = 0;
  for (int plane = 1; plane <= pair->config.planes; plane++) {
    const int peer_port = mrc_pair_port(&pair->config, to, plane);
    for (int i = 0; i < sockets; i++) {
      sources[n_sources] = (struct mrc_peer_source){.sport = mrc_address_sport(peer_port, i)};
      mrc_address_make(sources[n_sources++].address, family, to, peer_port, 0);
    }
  }
  if (nat_sport != 0) {
    sources[n_sources] = sources[0];
    sources[n_sources].sport = nat_sport;
    sources[n_sources].is_nat = 1;
    sources[n_sources++].address[MRC_ADDRESS_NAT] = 1;
  }
  mrc_engine *engine = pair->hosts[end->host].engine;
  const int n = make_evs(pair, end, 1, pair->config.planes - pair->config.late, evs);
  mrc_assert(mrc_qp_set_evs(engine, end->qpn, evs, n) == 0);
  mrc_assert(mrc_qp_set_peer(engine, end->qpn, sources, n_sources) == 0);
  MRC_EACH_BIT(plane, pair->config.backups)
    mrc_assert(mrc_qp_set_weight(engine, end->qpn, plane + 1, 0, pair->now_ns) == 0);
}

/* Each QP has secrets of its own, which its two ends use the other way round. */
static void set_seal(struct mrc_pair *pair, const int ends[2], uint32_t mode) {
  struct mrc_seal_attr attr = {.mode = mode};
  for (size_t i = 0; i < sizeof attr.send; i++) {
    attr.send[i] = (uint8_t)mrc_prng_next(&pair->prng);
    attr.receive[i] = (uint8_t)mrc_prng_next(&pair->prng);
  }
  for (int i = 0; i < 2; i++) {
    const struct mrc_pair_end *end = pair->ends[ends[i]];
    struct mrc_seal_attr own = attr;
    own.peer_qpn = end->attr.rtr.dest_qpn;
    if (i == 1) {
      memcpy(own.send, attr.receive, sizeof own.send);
      memcpy(own.receive, attr.send, sizeof own.receive);
    }
    mrc_assert(mrc_qp_set_seal(pair->hosts[end->host].engine, end->qpn, &own) == 0);
  }
}

int mrc_pair_create_qp(struct mrc_pair *pair, const struct mrc_pair_qp_config *config) {
  const int from = config->from, to = config->to || from ? config->to : 1;
  const int ends[2] = {add_end(pair, from, config->memory_bytes),
                       add_end(pair, to, config->memory_bytes)};
  for (int i = 0; i < 2; i++) {
    struct mrc_pair_end *end = pair->ends[ends[i]];
    end->peer = ends[1 - i];
    end->attr = make_attr(config);
    end->attr.create.qpn = end->qpn;
    end->attr.rtr.dest_qpn = pair->ends[end->peer]->qpn;
    end->attr.rts.sq_psn = i ? ~config->sq_psn & MRC_PSN_MASK : config->sq_psn;
    end->attr.rtr.rq_psn = ~end->attr.rts.sq_psn & MRC_PSN_MASK;
    end->audit.sq_psn = end->attr.rts.sq_psn;
    end->audit.rq_psn = end->attr.rtr.rq_psn;
    end->audit.path_mtu = end->attr.rts.path_mtu;
    if (end->attr.rts.spray == 0) end->audit.burst_bytes = mrc_pair_burst_bytes(pair);
    end->audit.mpr = end->attr.create.mpr;
    end->audit.max_wimm = end->attr.rts.peer_max_wimm;
    mrc_engine *engine = pair->hosts[end->host].engine;
    mrc_assert(mrc_qp_create(engine, &end->attr.create) == 0);
    mrc_assert(mrc_qp_modify(engine, end->qpn, MRC_QP_INIT, NULL, NULL, pair->now_ns) == 0);
  }
  if (config->seal != MRC_SEAL_NONE) set_seal(pair, ends, config->seal);
  for (int i = 0; i < 2; i++) {
    set_paths(pair, pair->ends[ends[i]], i == 1 ? config->nat_sport : 0);
    register_memory(pair, pair->ends[ends[i]]);
  }
  return ends[0];
}

void mrc_pair_modify(struct mrc_pair *pair, int index, uint32_t state) {
  const struct mrc_pair_end *end = pair->ends[index];
  mrc_assert(mrc_qp_modify(pair->hosts[end->host].engine, end->qpn, state, &end->attr.rtr,
                           &end->attr.rts, pair->now_ns) == 0);
  mrc_pair_kick(pair, end->host);
}

/* Probes every EV of an end at full size; takes as long as the slowest answer. */
static void probe_evs(struct mrc_pair *pair, int index) {
  const struct mrc_pair_end *end = pair->ends[index];
  const int n = (pair->config.planes - pair->config.late) * pair->config.paths;
  for (int ev = 0; ev < n; ev++) {
    const struct mrc_probe_attr probe = {
        .qpn = end->qpn,
        .ev_index = (uint32_t)ev,
        .bytes = end->attr.rts.path_mtu + MRC_DATA_OVERHEAD_BYTES + MRC_SEAL_OVERHEAD_BYTES,
        .timeout_ns = PROBE_TIMEOUT_NS};
    mrc_assert(mrc_engine_probe_evs(pair->hosts[end->host].engine, &probe, 1, pair->now_ns) == 1);
  }
  mrc_pair_kick(pair, end->host);
}

int mrc_pair_connect(struct mrc_pair *pair, const struct mrc_pair_qp_config *config) {
  const int end = mrc_pair_create_qp(pair, config);
  const int peer = pair->ends[end]->peer;
  mrc_pair_modify(pair, end, MRC_QP_RTR);
  mrc_pair_modify(pair, peer, MRC_QP_RTR);
  if (config->probe) {
    probe_evs(pair, end);
    probe_evs(pair, peer);
    mrc_pair_run(pair, pair->now_ns + PROBE_TIMEOUT_NS);
  }
  mrc_pair_modify(pair, end, MRC_QP_RTS);
  mrc_pair_modify(pair, peer, MRC_QP_RTS);
  return end;
}

void mrc_pair_join(struct mrc_pair *pair, int index) {
  static struct mrc_ev_attr evs[MRC_PAIR_MAX_PLANES * MRC_PAIR_MAX_PATHS];
  struct mrc_pair_end *end = pair->ends[index];
  const int first = pair->config.planes - pair->config.late + 1;
  const int n = make_evs(pair, end, first, pair->config.planes, evs);
  mrc_assert(mrc_qp_set_evs(pair->hosts[end->host].engine, end->qpn, evs, n) == 0);
  memset(end->unproven[first - 1], true, (size_t)pair->config.late * sizeof end->unproven[0]);
  mrc_pair_kick(pair, end->host);
}

/* The work request for `bytes` of the end's memory that start `ahead` of its unused part. */
static struct mrc_wr make_wr(struct mrc_pair *pair, const struct mrc_pair_end *end, uint64_t ahead,
                             uint32_t bytes, uint8_t opcode) {
  const struct mrc_audit *audit = &end->audit;
  mrc_assert(ahead + bytes <= audit->memory_bytes - audit->used_bytes);
  return (struct mrc_wr){
      .wr_id = audit->n_wrs,
      .local = (uintptr_t)audit->source + audit->used_bytes + ahead,
      .va = (uintptr_t)audit->target + audit->used_bytes + ahead,
      .lkey = end->lkey,
      .rkey = end->rkey,
      .bytes = bytes,
      .imm = opcode == MRC_WR_WRITE_IMM ? (uint32_t)mrc_prng_next(&pair->prng) : 0,
      .opcode = opcode,
  };
}

static int post(struct mrc_pair *pair, int index, uint32_t bytes, uint8_t opcode, bool twice) {
  struct mrc_pair_end *end = pair->ends[index];
  struct mrc_wr wr = make_wr(pair, end, 0, bytes, opcode);
  wr.redundant = twice;
  const int error = mrc_qp_post(pair->hosts[end->host].engine, end->qpn, &wr, 1, pair->now_ns);
  if (error == 0) mrc_audit_posted(&end->audit, &wr);
  mrc_pair_kick(pair, end->host);
  return error;
}

int mrc_pair_write_list(struct mrc_pair *pair, int index, const uint32_t *bytes, uint32_t n) {
  struct mrc_pair_end *end = pair->ends[index];
  struct mrc_wr wrs[MRC_PAIR_MAX_LIST] = {{0}};
  mrc_assert(n <= MRC_PAIR_MAX_LIST);
  uint64_t ahead = 0;
  for (uint32_t i = 0; i < n; ahead += bytes[i++]) {
    wrs[i] = make_wr(pair, end, ahead, bytes[i], MRC_WR_WRITE);
    wrs[i].wr_id += i;
    wrs[i].unsignaled = i + 1 < n;
  }
  const int error = mrc_qp_post(pair->hosts[end->host].engine, end->qpn, wrs, n, pair->now_ns);
  for (uint32_t i = 0; error == 0 && i < n; i++)
    mrc_audit_posted(&end->audit, &wrs[i]);
  mrc_pair_kick(pair, end->host);
  return error;
}

int mrc_pair_write(struct mrc_pair *pair, int end, uint32_t bytes) {
  return post(pair, end, bytes, MRC_WR_WRITE, false);
}

int mrc_pair_write_imm(struct mrc_pair *pair, int end, uint32_t bytes) {
  return post(pair, end, bytes, MRC_WR_WRITE_IMM, false);
}

int mrc_pair_write_twice(struct mrc_pair *pair, int end, uint32_t bytes, bool imm) {
  return post(pair, end, bytes, imm ? MRC_WR_WRITE_IMM : MRC_WR_WRITE, true);
}

static bool all_done(const struct mrc_pair *pair) {
  for (int i = 0; i < pair->n_ends; i++)
    if (pair->ends[i]->audit.completed < pair->ends[i]->audit.n_wrs) return false;
  return true;
}

bool mrc_pair_finish(struct mrc_pair *pair, uint64_t budget_ns) {
  const uint64_t until_ns = pair->now_ns + budget_ns;
  while (!all_done(pair))
    if (!mrc_pair_step(pair, until_ns)) return false;
  return true;
}

void mrc_pair_destroy_qp(struct mrc_pair *pair, int index) {
  struct mrc_pair_end *end = pair->ends[index];
  mrc_assert(mrc_qp_destroy(pair->hosts[end->host].engine, end->qpn) == 0);
  end->done = true;
  mrc_pair_kick(pair, end->host);
}

void mrc_pair_deny(struct mrc_pair *pair, int index, int plane, int path, bool denied) {
  struct mrc_pair_end *end = pair->ends[index];
  const uint32_t ev = (uint32_t)((plane - 1) * pair->config.paths + path);
  end->denied[plane - 1][path] = denied;
  end->unproven[plane - 1][path] = false;
  mrc_assert(mrc_qp_set_ev_state(pair->hosts[end->host].engine, end->qpn, ev,
                                 denied ? MRC_EV_DENIED : MRC_EV_GOOD, pair->now_ns) == 0);
  mrc_pair_kick(pair, end->host);
}

struct mrc_qp_info mrc_pair_info(const struct mrc_pair *pair, int index) {
  const struct mrc_pair_end *end = pair->ends[index];
  struct mrc_qp_info info;
  mrc_assert(mrc_qp_query(pair->hosts[end->host].engine, end->qpn, &info) == 0);
  return info;
}

struct mrc_ev_info mrc_pair_ev(const struct mrc_pair *pair, int index, int plane, int path) {
  static struct mrc_ev_info infos[MRC_MAX_EVS];
  const struct mrc_pair_end *end = pair->ends[index];
  const int n = mrc_qp_query_evs(pair->hosts[end->host].engine, end->qpn, infos, MRC_MAX_EVS);
  const int ev = (plane - 1) * pair->config.paths + path;
  return ev < n ? infos[ev] : (struct mrc_ev_info){.state = MRC_EV_UNPROVEN};
}
