/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant: for any packets in any order and any refusals of the kernel, the engine writes only
 * into memory registered for remote writes, allocates nothing after create, stays within its queue
 * depth, runs out of packets to send, and leaves no past deadline pending.
 *
 * The input is a byte of configuration and a stream of operations, each a byte (the operation in
 * its low 3 bits, variants in the rest) and the operation's bytes; missing bytes are 0. One
 * operation answers like a valid peer over a lossy network: without it the engine would never
 * measure a path, mark an EV good again or complete an acknowledgement.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "core/base.h"
#include "core/crc.h"
#include "core/turn.h"
#include "core/wire.h"
#include "fuzz.h"
#include "mrc.h"

enum {
  QPN = 0x100, /* QPN + 1: a second QP with the same peer, if the input selects it */
  QPS = 2,
  PEER_QPN = 0x200,
  PORTS = 2,
  EVS = 4,
  MTU = 256,
  PART = 16, /* usual size of a packet that is not the last of its message */
  DEPTH = 8,
  MEMORY = 4096,
  GUARD = 256,
  FILL = 0xEE,
  LKEY = 1,
  RKEY = 2,
  RQ_PSN = 0xFFFFF0, /* both near the wrap */
  SQ_PSN = 0xFFFFF8,
  SENT = 8,             /* packets that the peer may answer */
  MAX_PSNS = 4096,      /* tracked by the honest peer, of one QP in one run */
  MAX_TRANSMITS = 2048, /* at one instant: one for each probe, answer and packet that may wait */
  MAX_TURNS = 64        /* turns of the driver loop at one instant */
};

static struct fuzz_input input;
static mrc_engine *engine;
static uint8_t configuration;
static uint64_t now_ns;
static uint32_t qp; /* index of the QP that operations use */
static uint64_t n_posted, n_completed;

/* State of the honest peer. */
static struct {
  struct {
    struct mrc_wire wire;
    uint32_t ev;
    uint8_t port;
  } sent[SENT]; /* the newest packets that the kernel took; ring */
  uint32_t n_sent;
  bool got[QPS][MAX_PSNS]; /* PSN - SQ_PSN */
} peer;

static uint8_t source[MEMORY];
static uint8_t target[GUARD + MEMORY + GUARD];
static bool allocation_is_wrong;
static unsigned allocations;

/* Called by the sanitizer's allocator. It only counts: a failed assertion allocates too, and must
   be able to finish. */
void __sanitizer_malloc_hook(const volatile void *pointer, size_t size);
void __sanitizer_malloc_hook(const volatile void *pointer, size_t size) {
  (void)pointer;
  (void)size;
  allocations += allocation_is_wrong;
}

static uint64_t take(size_t n) { return fuzz_take(&input, n); }

/* ---- packets from the peer ---- */

static struct mrc_meta make_meta(uint8_t variant) {
  const uint8_t port = variant & 1 ? 2 : 1;
  return (struct mrc_meta){.src = {0xFD, [15] = port},
                           .dst = {0xFD, [14] = 1, [15] = port},
                           .sport = (uint16_t)(50000 + port),
                           .dport = MRC_UDP_PORT,
                           .family = 6,
                           .port = port,
                           .ecn = variant & 2 ? 3 : 2,
                           .trimmed = (variant & 4) != 0};
}

static void set_icrc(uint8_t *packet, size_t n, const struct mrc_meta *meta) {
  const struct mrc_icrc_flow flow = {.src = meta->src,
                                     .dst = meta->dst,
                                     .sport = meta->sport,
                                     .dport = meta->dport,
                                     .family = meta->family};
  const size_t covered = n - MRC_ICRC_BYTES;
  mrc_put32(packet + covered, mrc_icrc_packet(mrc_icrc_begin(&flow, n), packet, covered));
}

/* Receives up to four packets together: the given one, and copies of it with other PSNs. */
static void receive(const uint8_t *packet, size_t n, bool right_icrc, const struct mrc_meta *meta) {
  static uint8_t together[4 * 2048];
  const size_t copies = n == 0 || n > 2048 ? 1 : 1 + (n & 3);
  for (size_t i = 0; i < copies && n <= 2048; i++) {
    uint8_t *copy = together + i * n;
    memcpy(copy, packet, n);
    if (n >= MRC_BTH_BYTES) copy[MRC_BTH_BYTES - 1] ^= (uint8_t)i;
    if (right_icrc && n >= MRC_BTH_BYTES + MRC_ICRC_BYTES) set_icrc(copy, n, meta);
  }
  const int drop = mrc_engine_receive(engine, together, copies * n, n, meta, now_ns);
  mrc_assert(drop >= 0 && mrc_drop_name(drop) != NULL);
}

/* Receives the bytes of the input unchanged. */
static void receive_raw(uint8_t variant) {
  uint8_t packet[256];
  const struct mrc_meta meta = make_meta(variant);
  const size_t n = take(1);
  for (size_t i = 0; i < n; i++)
    packet[i] = (uint8_t)take(1);
  receive(packet, n, variant & 8, &meta);
}

static void fill_data(struct mrc_wire *wire, uint8_t *payload) {
  static const uint8_t opcodes[] = {MRC_OP_WRITE_FIRST, MRC_OP_WRITE_MIDDLE,
                                    MRC_OP_WRITE_LAST,  MRC_OP_WRITE_LAST_IMM,
                                    MRC_OP_WRITE_ONLY,  MRC_OP_WRITE_ONLY_IMM};
  const uint8_t choice = (uint8_t)take(1);
  wire->opcode = opcodes[choice % sizeof opcodes];
  wire->rtx = choice & 0x40;
  wire->ack_req = choice & 0x80;
  wire->ts = wire->tsr = choice & 0x20;
  wire->psn = mrc_psn_add(RQ_PSN, (uint32_t)take(1));
  wire->rqmsn = (uint16_t)take(1);
  wire->msn = (uint16_t)take(1);
  wire->rkey = take(1) & 0x80 ? LKEY : RKEY;
  wire->va = (uintptr_t)target + GUARD + (uint64_t)(int64_t)(int16_t)take(2);
  wire->payload = payload;
  wire->payload_bytes = (uint32_t)take(1);
  if (wire->opcode < MRC_OP_WRITE_LAST && wire->payload_bytes & 1) wire->payload_bytes = PART;
  wire->pad = -wire->payload_bytes & 3u;
  wire->dma_bytes = choice & 0x10 ? (uint32_t)take(4) : wire->payload_bytes;
  wire->imm = (uint32_t)take(1);
}

/* An EV of the QP, or an unknown one. */
static uint32_t take_ev(void) {
  const uint32_t port = (uint32_t)take(1) % 3;
  return (50001 + port) << 16 | (uint32_t)take(1) % 5;
}

static void fill_sack(struct mrc_wire *wire) {
  wire->opcode = MRC_OP_SACK;
  wire->psn = mrc_psn_add(SQ_PSN - 1, (uint32_t)take(1));
  wire->sack.cum_psn = wire->psn;
  wire->sack.ack_psn_offset = (int16_t)take(2);
  const uint8_t m_and_mpr = (uint8_t)take(1), state = (uint8_t)take(1);
  wire->sack.m = m_and_mpr % 3;
  wire->sack.mpr = m_and_mpr / 3;
  wire->sack.pr = state & 1;
  wire->sack.tx_timestamp = (uint16_t)((now_ns >> 10) - (state >> 1 & 7) * 1000u);
  wire->sack.cc_type = state & 0x20 ? MRC_CC_TYPE_TIMES : MRC_CC_TYPE_NSCC;
  wire->sack.sent_timestamp = (uint16_t)(wire->sack.tx_timestamp - state * 1000u);
  wire->sack.restore_cwnd = state & 0x10;
  wire->sack.rcv_cwnd_pen = state >> 5 << 4;
  wire->sack.ev = take_ev();
  wire->sack.sack_offset = (int16_t)take(2);
  wire->sack.bitmap = take(8);
}

static void fill_answer(struct mrc_wire *wire, uint8_t variant) {
  static const uint8_t reasons[] = {MRC_NACK_TRIMMED,       MRC_NACK_TRIMMED_LASTHOP,
                                    MRC_NACK_NO_BITMAP,     MRC_NACK_PSN_OOR_WINDOW,
                                    MRC_NACK_NO_PKT_BUFFER, MRC_NACK_UNEXP_EVENT};
  static const uint8_t syndromes[] = {MRC_SYNDROME_ACK,
                                      MRC_SYNDROME_ACK,
                                      MRC_SYNDROME_ACK,
                                      MRC_SYNDROME_NAK_INV_REQ,
                                      MRC_SYNDROME_NAK_REM_ACCESS,
                                      MRC_SYNDROME_NAK_REM_OP};
  wire->psn = mrc_psn_add(SQ_PSN, (uint32_t)take(1));
  if (variant & 0x20) {
    wire->opcode = MRC_OP_NACK;
    wire->nack.reason = reasons[take(1) % sizeof reasons];
    wire->nack.nack_psn = wire->psn;
    wire->nack.ev = take_ev();
    wire->nack.cc_type = 2;
  } else {
    wire->opcode = MRC_OP_ACK;
    wire->aeth.syndrome = syndromes[take(1) % sizeof syndromes];
    wire->aeth.msn = (uint32_t)take(1);
  }
}

static void fill_probe(struct mrc_wire *wire, uint8_t variant) {
  wire->psn = (uint32_t)take(1);
  if (variant & 0x20) {
    wire->opcode = MRC_OP_PROBE;
    wire->probe.probe_id = (uint16_t)take(2);
    return;
  }
  wire->dest_qpn = MRC_ENDPOINT_QPN;
  wire->opcode = take(1) & 1 ? MRC_OP_ENDPOINT_REQUEST : MRC_OP_ENDPOINT_RESPONSE;
  wire->endpoint.op = take(1) & 1;
  wire->endpoint.port_status_mask = (uint32_t)take(1);
  if (wire->opcode == MRC_OP_ENDPOINT_RESPONSE) { /* close to a request */
    const uint8_t choice = (uint8_t)take(1);
    const struct mrc_wire *asked = &peer.sent[choice % SENT].wire;
    wire->psn = (asked->psn ^ (choice >> 7)) & 0xFFFF;
    wire->endpoint.tx_timestamp = asked->endpoint.tx_timestamp ^ (choice >> 6 & 1);
  }
}

/* Receives a packet with a valid form and ICRC, with fields close to valid values. */
static void receive_formed(uint8_t operation, uint8_t variant) {
  uint8_t packet[MRC_MAX_HEADER + 260 + MRC_ICRC_BYTES], payload[260]; /* 255 and pad */
  struct mrc_wire wire = {.dest_qpn = QPN + qp};
  const struct mrc_meta meta = make_meta(variant);
  memset(payload, 0x55, sizeof payload);
  if (operation == 1) fill_data(&wire, payload);
  if (operation == 2) fill_sack(&wire);
  if (operation == 3) {
    if (variant & 0x10)
      fill_answer(&wire, variant);
    else
      fill_probe(&wire, variant);
  }
  size_t n = mrc_wire_encode(&wire, packet);
  if (operation == 1) {
    memcpy(packet + n, payload, wire.payload_bytes + 3u);
    n += (wire.payload_bytes + 3u) & ~3u;
  }
  receive(packet, n + MRC_ICRC_BYTES, true, &meta);
}

/* ---- the honest peer ---- */

/* The packets that leave are readable, and their payload is registered memory. */
static void note_sent(const struct mrc_burst *burst, const struct mrc_packet *packet) {
  const uint32_t place = peer.n_sent++ % SENT;
  struct mrc_wire *wire = &peer.sent[place].wire;
  mrc_assert(mrc_wire_decode(packet->header, packet->header_bytes, true, wire) == MRC_DROP_NONE);
  if (mrc_opcode_is_data(wire->opcode) && packet->payload_bytes > 0) {
    mrc_assert(packet->payload >= source && packet->payload_bytes <= MTU);
    mrc_assert(packet->payload + packet->payload_bytes <= source + MEMORY);
  }
  peer.sent[place].ev = (uint32_t)burst->sport << 16 | burst->flow_label;
  peer.sent[place].port = burst->port;
}

static void send_answer(const struct mrc_wire *wire, uint8_t port) {
  uint8_t packet[MRC_MAX_HEADER + MRC_ICRC_BYTES];
  const struct mrc_meta meta = make_meta(port == 2);
  receive(packet, mrc_wire_encode(wire, packet) + MRC_ICRC_BYTES, true, &meta);
}

static void send_sack(uint32_t to, const struct mrc_wire *about, uint32_t ev, uint8_t port) {
  const bool *got = peer.got[to];
  uint32_t cum = 0;
  while (cum < MAX_PSNS && got[cum])
    cum++;
  uint64_t bitmap = 0;
  for (uint32_t i = 0; i < 64 && cum + i < MAX_PSNS; i++)
    bitmap |= (uint64_t)got[cum + i] << i;
  const bool pr = about->opcode == MRC_OP_PROBE;
  const uint32_t cum_psn = mrc_psn_add(SQ_PSN - 1, cum);
  const struct mrc_wire wire = {
      .opcode = MRC_OP_SACK,
      .dest_qpn = QPN + to,
      .psn = cum_psn,
      .sack = {.cum_psn = cum_psn,
               .ack_psn_offset = (int16_t)(pr ? about->probe.probe_id
                                              : (uint32_t)mrc_psn_diff(about->psn, cum_psn)),
               .pr = pr,
               .ev = ev,
               .sack_offset = 1,
               .mpr = 2,
               .bitmap = bitmap,
               .tx_timestamp = pr ? about->probe.tx_timestamp : about->tx_timestamp}};
  send_answer(&wire, port);
}

/* Answers the newest packets selected by the mask; the others are lost. */
static void answer(uint8_t mask) {
  const uint32_t n = peer.n_sent < SENT ? peer.n_sent : SENT, first = peer.n_sent - n;
  for (uint32_t i = 0; i < n; i++) {
    const struct mrc_wire wire = peer.sent[(first + i) % SENT].wire;
    const uint32_t ev = peer.sent[(first + i) % SENT].ev, to = wire.dest_qpn - PEER_QPN;
    const uint8_t port = peer.sent[(first + i) % SENT].port;
    if (!(mask >> i & 1)) continue;
    if (wire.opcode == MRC_OP_ENDPOINT_REQUEST) {
      const struct mrc_wire response = {.opcode = MRC_OP_ENDPOINT_RESPONSE,
                                        .dest_qpn = MRC_ENDPOINT_QPN,
                                        .psn = wire.psn,
                                        .endpoint = wire.endpoint};
      send_answer(&response, port);
    }
    const uint32_t ahead = mrc_psn_sub(wire.psn, SQ_PSN);
    if (mrc_opcode_is_data(wire.opcode) && ahead < MAX_PSNS) peer.got[to][ahead] = true;
    if (mrc_opcode_is_data(wire.opcode) || wire.opcode == MRC_OP_PROBE)
      send_sack(to, &wire, ev, port);
  }
  peer.n_sent = 0;
}

/* ---- actions of the driver and the application ---- */

static struct mrc_qp_attr make_attr(void) {
  return (struct mrc_qp_attr){
      .create = {.qpn = QPN + qp, .sq_depth = DEPTH, .mpr = 256, .max_wimm = 4},
      .rtr = {.dynamic_mpr = !(configuration & 0x80),
              .sack_times = !(configuration & 0x40),
              .dest_qpn = PEER_QPN + qp,
              .rq_psn = RQ_PSN,
              .integrity = configuration & 8 ? MRC_INTEGRITY_UDP : 0},
      .rts = {.sq_psn = SQ_PSN,
              .path_mtu = MTU,
              .peer_mpr = 256,
              .peer_max_wimm = 4,
              .timeout = 10,
              .retry_linear = 2,
              .retry_exp = configuration & 0x40 ? 25 : 4,
              .spray = configuration & 4 ? 1 : 0,
              .ev_active_per_plane = configuration & 0x10 ? 1 : 0,
              .cc = (configuration & 3) % 3}};
}

/* Creates the QP if it does not exist, and moves it that many states towards RTS. */
static void raise_qp(uint32_t moves) {
  const struct mrc_qp_attr attr = make_attr();
  struct mrc_ev_attr evs[EVS];
  struct mrc_peer_source sources[PORTS];
  struct mrc_qp_info info;
  for (int i = 0; i < EVS; i++)
    evs[i] = (struct mrc_ev_attr){.src = {0xFD, [14] = 1, [15] = (uint8_t)(1 + i % PORTS)},
                                  .dst = {0xFD, [13] = 1, [15] = (uint8_t)i},
                                  .ev = (uint32_t)(50001 + i % PORTS) << 16 | (uint32_t)i,
                                  .dport = MRC_UDP_PORT,
                                  .port = (uint8_t)(1 + i % PORTS),
                                  .family = 6};
  for (int i = 0; i < PORTS; i++)
    sources[i] = (struct mrc_peer_source){.address = {0xFD, [15] = (uint8_t)(1 + i)},
                                          .sport = (uint16_t)(50001 + i)};
  allocation_is_wrong = false;
  if (mrc_qp_create(engine, &attr.create) == 0) memset(peer.got[qp], 0, sizeof peer.got[qp]);
  for (uint32_t i = 0; i < moves; i++) {
    mrc_assert(mrc_qp_query(engine, QPN + qp, &info) == 0);
    if (info.state >= MRC_QP_RTS) break;
    if (info.state == MRC_QP_INIT) {
      mrc_assert(mrc_qp_set_evs(engine, QPN + qp, evs, EVS) == 0);
      const int error = mrc_qp_set_peer(engine, QPN + qp, sources, PORTS);
      mrc_assert(error == 0 || error == -EINVAL); /* already set */
    }
    mrc_assert(mrc_qp_modify(engine, QPN + qp, info.state + 1, &attr.rtr, &attr.rts, now_ns) == 0);
  }
  allocation_is_wrong = true;
}

/* `refusals` selects by bit the bursts that the kernel refuses; if all bits are set, no burst has a
   route. */
static void decide(const struct mrc_burst *bursts, int *taken, int n, uint8_t refusals) {
  for (int i = 0; i < n; i++) {
    mrc_assert(bursts[i].n_packets >= 1 && bursts[i].n_packets <= MRC_MAX_BURST_PACKETS);
    taken[i] = !(refusals >> i & 1);
    if (refusals == 0xFF) taken[i] = -ENETUNREACH;
    for (uint16_t k = 0; k < bursts[i].n_packets && taken[i] == 1; k++)
      note_sent(&bursts[i], &bursts[i].packets[k]);
  }
}

/* Transmits until dry, with refusals in the first round. */
static void transmit(uint8_t refusals) {
  struct mrc_burst bursts[8];
  int taken[8];
  const int capacity = 1 + refusals % 8;
  for (int turn = 0; turn < MAX_TRANSMITS; turn++, refusals = 0) {
    const int n = mrc_engine_transmit(engine, bursts, capacity, now_ns);
    if (n == 0) return;
    decide(bursts, taken, n, refusals);
    mrc_engine_commit(engine, bursts, taken, n, now_ns);
  }
  mrc_assert(!"the engine never runs dry");
}

static uint64_t turn_now(void *driver) {
  (void)driver;
  return now_ns;
}

/* Takes no results: an operation of the input does. */
static bool turn_publish(void *driver) {
  (void)driver;
  return false;
}

static uint32_t turn_send(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                          uint64_t at_ns) {
  (void)driver;
  (void)at_ns;
  decide(bursts, taken, n, 0);
  return 0;
}

static void run_driver(void) {
  static const struct mrc_turn_calls calls = {
      .now = turn_now, .publish = turn_publish, .send = turn_send};
  struct mrc_turn turn = {.calls = &calls, .engine = engine, .capacity = 1};
  for (int i = 0; i < MAX_TURNS; i++)
    if (mrc_turn_run_dry(&turn, now_ns) > now_ns) return;
  mrc_assert(!"a deadline stays behind");
}

static void change_qp(uint8_t variant, uint8_t value) {
  if (variant % 8 == 0) qp = value % QPS;
  if (variant % 8 == 1) raise_qp(value % 4);
  if (variant % 8 == 2) mrc_qp_modify(engine, QPN + qp, value % 6, NULL, NULL, now_ns);
}

static void command(uint8_t variant) {
  const uint8_t value = (uint8_t)take(1);
  if (variant & 16) return change_qp(variant, value);
  switch (variant % 8) {
    case 0:
      mrc_engine_port_blocked(engine, 1 + value % PORTS, value & 4, now_ns);
      break;
    case 1:
      mrc_engine_port_up(engine, 1 + value % PORTS, value & 4, now_ns);
      break;
    case 2:
      mrc_engine_probe_evs(engine,
                           &(struct mrc_probe_attr){.cookie = value,
                                                    .timeout_ns = 1000000,
                                                    .qpn = QPN + qp,
                                                    .ev_index = value % 5,
                                                    .bytes = (uint32_t)take(2)},
                           1, now_ns);
      break;
    case 3:
      mrc_qp_set_ev_state(engine, QPN + qp, value % 5, (uint32_t)take(1) % 5, now_ns);
      break;
    case 4:
      mrc_mr_deregister(engine, value & 1 ? LKEY : RKEY);
      break;
    case 5:
      mrc_qp_modify(engine, QPN + qp, MRC_QP_ERROR, NULL, NULL, now_ns);
      break;
    case 6:
      mrc_qp_destroy(engine, QPN + qp);
      break;
    default:
      if (value & 128)
        mrc_qp_set_retries(engine, QPN + qp, value % 32, value % 9, value % 27, now_ns);
      mrc_qp_set_mpr(engine, QPN + qp, value * 64u, now_ns);
  }
}

static void post(uint8_t variant) {
  struct mrc_wr wr = {.wr_id = n_posted,
                      .lkey = LKEY,
                      .rkey = RKEY,
                      .opcode = variant & 1 ? MRC_WR_WRITE_IMM : MRC_WR_WRITE};
  wr.local = (uintptr_t)source + take(1);
  wr.va = take(2);
  wr.bytes = (uint32_t)take(2);
  const uint32_t n = 1 + (variant >> 1 & 3);
  struct mrc_wr wrs[4] = {wr, wr, wr, wr};
  for (uint32_t i = 0; i < n; i++)
    wrs[i].unsignaled = i + 1 < n;
  const int error = mrc_qp_post(engine, QPN + qp, wrs, n, now_ns);
  mrc_assert(error == 0 || error == -ENOBUFS || error == -EACCES || error == -EPERM ||
             error == -ENOENT || (error == -EINVAL && wr.bytes == 0));
  n_posted += error == 0;
}

static void poll(void) {
  struct mrc_wc wcs[4];
  struct mrc_event events[4];
  const int n = mrc_cq_poll(engine, wcs, 4);
  for (int i = 0; i < n; i++) {
    mrc_assert(wcs[i].qpn - QPN < QPS && wcs[i].status <= MRC_WC_RETRY_EXC_ERR);
    if (wcs[i].opcode == MRC_WC_RECV_IMM) continue;
    mrc_assert(wcs[i].wr_id < n_posted && n_completed < n_posted);
    n_completed++;
  }
  mrc_engine_events(engine, events, 4);
}

static void operate(void) {
  const uint8_t byte = (uint8_t)take(1), operation = byte & 7, variant = byte >> 3;
  switch (operation) {
    case 0:
      if (variant & 16) {
        now_ns += (variant & 15ull) << 14;
        answer((uint8_t)take(1));
      } else {
        receive_raw(variant);
      }
      break;
    case 1:
    case 2:
      receive_formed(operation, variant);
      break;
    case 3:
      receive_formed(operation, (uint8_t)(variant | take(1) << 4));
      break;
    case 4:
      transmit((uint8_t)take(1));
      break;
    case 5:
      now_ns += take(1) << (variant & 24);
      run_driver();
      break;
    case 6:
      post(variant);
      break;
    default:
      variant & 8 ? poll() : command(variant);
  }
}

/* ---- the engine ---- */

static void check(void) {
  struct mrc_qp_info info;
  mrc_assert(allocations == 0);
  for (int i = 0; i < GUARD; i++) {
    mrc_assert(target[i] == FILL);
    mrc_assert(target[GUARD + MEMORY + i] == FILL);
  }
  for (uint32_t k = 0; k < QPS; k++) {
    if (mrc_qp_query(engine, QPN + k, &info) != 0) continue;
    uint64_t inflight = 0;
    for (int i = 0; i < PORTS; i++)
      inflight += info.planes[i].inflight_bytes;
    mrc_assert(info.inflight_bytes == inflight && info.outstanding <= DEPTH);
  }
}

static void create(void) {
  const struct mrc_engine_config config = {.seed = 1,
                                           .max_qps = QPS,
                                           .max_mrs = 4,
                                           .ports = PORTS,
                                           .cq_depth = configuration & 0x20 ? DEPTH + 1 : 2 * DEPTH,
                                           .trace_entries = 64};
  engine = mrc_engine_create(&config);
  mrc_assert(engine != NULL);
  mrc_assert(mrc_mr_register(engine, (uintptr_t)source, MEMORY, LKEY, MRC_ACCESS_LOCAL_READ, 0) ==
             0);
  mrc_assert(mrc_mr_register(engine, (uintptr_t)target + GUARD, MEMORY, RKEY,
                             MRC_ACCESS_REMOTE_WRITE, 0) == 0);
  raise_qp(3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input = (struct fuzz_input){data, size};
  now_ns = 1000000000;
  qp = 0;
  n_posted = n_completed = 0;
  allocations = 0;
  memset(&peer, 0, sizeof peer);
  memset(target, FILL, sizeof target);
  memset(source, FILL, sizeof source);
  configuration = (uint8_t)take(1);
  create();
  while (input.n > 0) {
    operate();
    check();
  }
  run_driver();
  check();
  for (int i = 0; i < MEMORY; i++)
    mrc_assert(source[i] == FILL);
  allocation_is_wrong = false;
  mrc_engine_destroy(engine);
  return 0;
}
