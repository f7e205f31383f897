/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets and layouts are those of sections 6 and 7 of OCP's MRC 1.0, as its readers report them.
   Reserved bits are sent as zeros and ignored on receipt; fields with a fixed value are checked.
   The PSN of SACK and NACK travels twice, in the BTH and in the next header: both are decoded, and
   they are not compared. */
#include "core/wire.h"

#include <string.h>

#include "core/base.h"

/* Names of offsets: bytes from the start of the header in the name. */
enum {
  BTH_OPCODE = 0,
  BTH_BITS = 1,
  BTH_PKEY = 2,
  BTH_DEST_QPN = 5,
  BTH_FLAGS = 8,
  BTH_PSN = 9,

  METH_RQMSN = 0,
  METH_MSN = 2,

  TSETH_TX_TIMESTAMP = 0,
  TSETH_FORMAT = 2,

  RETH_VA = 0,
  RETH_RKEY = 8,
  RETH_DMA_BYTES = 12,

  TYPE_NH = 0, /* the first byte of SETH, NETH, PETH, ERTH and EETH */

  SETH_BITS = 1,
  SETH_ACK_PSN_OFFSET = 2,
  SETH_EV = 4,
  SETH_SPDCID = 8,
  SETH_DPDCID = 10,
  SETH_CUM_PSN = 12, /* after a reserved byte */
  SETH_CC = 16,
  SETH_MPR = 17,
  SETH_SACK_OFFSET = 18,
  SETH_BITMAP = 20,
  CC_STATE_TX_TIMESTAMP = 28,
  CC_STATE_OOO_COUNT = 30,
  CC_STATE_PENALTY = 32, /* the bytes received are behind it */

  NETH_REASON = 2,
  NETH_VENDOR_INFO = 3,
  NETH_EV = 4,
  NETH_SPDCID = 8,
  NETH_DPDCID = 10,
  NETH_PSN = 12, /* after a reserved byte */
  NETH_CC = 16,
  NETH_TX_TIMESTAMP = 18,

  PETH_PROBE_ID = 4,
  PETH_SPDCID = 8,
  PETH_DPDCID = 10,
  PETH_TSETH = 12, /* laid out like a TSETH */

  ERTH_BITS = 1,
  ERTH_PORT_STATUS_MASK = 4,
  ERTH_TSETH = 12,

  EETH_BITS = 1,
  EETH_TX_TIMESTAMP = 28,

  AETH_SYNDROME = 0 /* the MSN is behind it */
};

#define BTH_SE 0x80u
#define BTH_M 0x40u
#define BTH_TVER 0x0Fu
#define TVER_SEALED 1u /* our extension: others drop the packet, as of an unknown version */
#define BTH_ACK_REQ 0x80u
#define BTH_RTX 0x20u
#define BTH_TS 0x10u
#define TSETH_TSR 0x8000u
#define TSETH_FTYPE 0x000Fu
#define TSETH_FTYPE_TIMESTAMP 1u
#define SETH_NH0 0x80u
#define SETH_PR 0x02u
#define OOO_COUNT_MASK 0x7FFFu
#define PENALTY_MASK 0x7Fu
#define U24_MAX 0xFFFFFFu
#define PRIVATE_ID_MASK 0xFFFFu

/* Fields are big-endian. The compiler makes a swap and one access of these. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SWAP(bits, value) __builtin_bswap##bits(value)
#else
#define SWAP(bits, value) (value)
#endif

static uint16_t get_u16(const uint8_t *p) {
  uint16_t value;
  memcpy(&value, p, sizeof value);
  return SWAP(16, value);
}
static uint32_t get_u32(const uint8_t *p) {
  uint32_t value;
  memcpy(&value, p, sizeof value);
  return SWAP(32, value);
}
static uint64_t get_u64(const uint8_t *p) {
  uint64_t value;
  memcpy(&value, p, sizeof value);
  return SWAP(64, value);
}

static void put_u16(uint8_t *p, uint16_t value) {
  value = SWAP(16, value);
  memcpy(p, &value, sizeof value);
}
static void put_u32(uint8_t *p, uint32_t value) {
  value = SWAP(32, value);
  memcpy(p, &value, sizeof value);
}
static void put_u64(uint8_t *p, uint64_t value) {
  value = SWAP(64, value);
  memcpy(p, &value, sizeof value);
}

/* ---- TSETH, and the timestamp of PETH and ERTH ---- */

static void put_timestamp(uint8_t *p, uint16_t tx_timestamp, bool tsr) {
  put_u16(p + TSETH_TX_TIMESTAMP, tx_timestamp);
  put_u16(p + TSETH_FORMAT, (uint16_t)((tsr ? TSETH_TSR : 0) | TSETH_FTYPE_TIMESTAMP));
}

static bool get_timestamp(const uint8_t *p, uint16_t *tx_timestamp, bool *tsr) {
  uint16_t format = get_u16(p + TSETH_FORMAT);
  *tx_timestamp = get_u16(p + TSETH_TX_TIMESTAMP);
  *tsr = (format & TSETH_TSR) != 0;
  return (format & TSETH_FTYPE) == TSETH_FTYPE_TIMESTAMP;
}

/* ---- Data: METH [TSETH] RETH [ImmDt] ---- */

bool mrc_opcode_is_data(uint8_t opcode) {
  return opcode >= MRC_OP_WRITE_FIRST && opcode <= MRC_OP_WRITE_ONLY_IMM;
}

bool mrc_opcode_has_imm(uint8_t opcode) {
  return opcode == MRC_OP_WRITE_LAST_IMM || opcode == MRC_OP_WRITE_ONLY_IMM;
}

static void encode_data(const struct mrc_wire *wire, uint8_t *p) {
  put_u16(p + METH_RQMSN, wire->rqmsn);
  put_u16(p + METH_MSN, wire->msn);
  p += MRC_METH_BYTES;
  if (wire->ts) {
    put_timestamp(p, wire->tx_timestamp, wire->tsr);
    p += MRC_TSETH_BYTES;
  }
  put_u64(p + RETH_VA, wire->va);
  put_u32(p + RETH_RKEY, wire->rkey);
  put_u32(p + RETH_DMA_BYTES, wire->dma_bytes);
  if (mrc_opcode_has_imm(wire->opcode)) put_u32(p + MRC_RETH_BYTES, wire->imm);
}

/* All fields of data; the union below them is of other packets. */
static int decode_data(const uint8_t *p, struct mrc_wire *wire) {
  wire->rqmsn = get_u16(p + METH_RQMSN);
  wire->msn = get_u16(p + METH_MSN);
  wire->tx_timestamp = 0;
  wire->tsr = false;
  p += MRC_METH_BYTES;
  if (wire->ts) {
    if (!get_timestamp(p, &wire->tx_timestamp, &wire->tsr)) return MRC_DROP_FIELD;
    p += MRC_TSETH_BYTES;
  }
  wire->va = get_u64(p + RETH_VA);
  wire->rkey = get_u32(p + RETH_RKEY);
  wire->dma_bytes = get_u32(p + RETH_DMA_BYTES);
  wire->imm = mrc_opcode_has_imm(wire->opcode) ? get_u32(p + MRC_RETH_BYTES) : 0;
  wire->payload_bytes = 0;
  return 0;
}

/* Data that a switch has cut within its headers. A NACK requires METH and TSETH. With SRv6 a switch
   that keeps 128 bytes of the frame cuts the RETH. */
static int decode_cut(const uint8_t *bytes, size_t n, struct mrc_wire *wire) {
  const size_t kept = MRC_METH_BYTES + (wire->ts ? MRC_TSETH_BYTES : 0u);
  uint8_t header[MRC_DATA_HEADER_BYTES - MRC_BTH_BYTES] = {0}; /* and all that was cut off is 0 */
  if (n < MRC_BTH_BYTES + kept) return MRC_DROP_SHORT;
  memcpy(header, bytes + MRC_BTH_BYTES, kept);
  wire->payload = NULL;
  return decode_data(header, wire);
}

/* ---- SACK: SETH and CC_STATE ---- */

static void encode_sack(const struct mrc_wire *wire, uint8_t *p) {
  const struct mrc_sack *sack = &wire->sack;
  const bool has_send_time = sack->cc_type == MRC_CC_TYPE_TIMES;
  mrc_assert(sack->m <= MRC_M_ALWAYS_SKIP);
  mrc_assert(has_send_time || sack->cc_type == MRC_CC_TYPE_NSCC);
  mrc_assert(sack->cc_fl <= 0x0F);
  mrc_assert(sack->ooo_count <= OOO_COUNT_MASK && sack->rcv_cwnd_pen <= PENALTY_MASK);
  mrc_assert(sack->cum_psn <= U24_MAX && sack->rcvd_bytes <= U24_MAX);
  p[SETH_BITS] = (uint8_t)(sack->m << 5 | (sack->pr ? SETH_PR : 0));
  put_u16(p + SETH_ACK_PSN_OFFSET, (uint16_t)sack->ack_psn_offset);
  put_u32(p + SETH_EV, sack->ev);
  put_u16(p + SETH_SPDCID, sack->spdcid);
  put_u16(p + SETH_DPDCID, sack->dpdcid);
  put_u32(p + SETH_CUM_PSN, sack->cum_psn);
  p[SETH_CC] = (uint8_t)(sack->cc_type << 4 | sack->cc_fl);
  p[SETH_MPR] = sack->mpr;
  put_u16(p + SETH_SACK_OFFSET, (uint16_t)sack->sack_offset);
  put_u64(p + SETH_BITMAP, sack->bitmap);
  put_u16(p + CC_STATE_TX_TIMESTAMP, sack->tx_timestamp);
  put_u16(p + CC_STATE_OOO_COUNT, has_send_time ? sack->sent_timestamp : sack->ooo_count);
  put_u32(p + CC_STATE_PENALTY,
          (uint32_t)(sack->restore_cwnd << 7 | sack->rcv_cwnd_pen) << 24 | sack->rcvd_bytes);
}

static int decode_sack(const uint8_t *p, struct mrc_wire *wire) {
  wire->sack = (struct mrc_sack){
      .ack_psn_offset = (int16_t)get_u16(p + SETH_ACK_PSN_OFFSET),
      .m = p[SETH_BITS] >> 5 & 3,
      .pr = (p[SETH_BITS] & SETH_PR) != 0,
      .ev = get_u32(p + SETH_EV),
      .spdcid = get_u16(p + SETH_SPDCID),
      .dpdcid = get_u16(p + SETH_DPDCID),
      .cum_psn = get_u32(p + SETH_CUM_PSN) & U24_MAX,
      .cc_type = p[SETH_CC] >> 4,
      .cc_fl = p[SETH_CC] & 0x0F,
      .mpr = p[SETH_MPR],
      .sack_offset = (int16_t)get_u16(p + SETH_SACK_OFFSET),
      .bitmap = get_u64(p + SETH_BITMAP),
      .tx_timestamp = get_u16(p + CC_STATE_TX_TIMESTAMP),
      .restore_cwnd = p[CC_STATE_PENALTY] >> 7,
      .rcv_cwnd_pen = p[CC_STATE_PENALTY] & PENALTY_MASK,
      .rcvd_bytes = get_u32(p + CC_STATE_PENALTY) & U24_MAX,
  };
  const uint16_t count_or_time = get_u16(p + CC_STATE_OOO_COUNT);
  const bool has_send_time = wire->sack.cc_type == MRC_CC_TYPE_TIMES;
  if (has_send_time)
    wire->sack.sent_timestamp = count_or_time;
  else
    wire->sack.ooo_count = count_or_time & OOO_COUNT_MASK;
  bool plain = p[TYPE_NH] == 0 && (p[SETH_BITS] & SETH_NH0) == 0;
  bool known = wire->sack.m <= MRC_M_ALWAYS_SKIP &&
               (has_send_time || wire->sack.cc_type == MRC_CC_TYPE_NSCC);
  return plain && known ? 0 : MRC_DROP_FIELD;
}

/* ---- NACK: NETH ---- */

static bool nack_reason_known(uint8_t reason) {
  switch (reason) {
    case MRC_NACK_TRIMMED:
    case MRC_NACK_TRIMMED_LASTHOP:
    case MRC_NACK_NO_BITMAP:
    case MRC_NACK_NO_PKT_BUFFER:
    case MRC_NACK_NO_RESOURCE:
    case MRC_NACK_PSN_OOR_WINDOW:
    case MRC_NACK_UNEXP_EVENT:
      return true;
    default:
      return false;
  }
}

static void encode_nack(const struct mrc_wire *wire, uint8_t *p) {
  const struct mrc_nack *nack = &wire->nack;
  mrc_assert(nack_reason_known(nack->reason));
  mrc_assert(nack->cc_type == MRC_CC_TYPE_NACK && nack->cc_fl <= 0x0F);
  mrc_assert(nack->nack_psn <= U24_MAX);
  p[NETH_REASON] = nack->reason;
  p[NETH_VENDOR_INFO] = nack->vendor_info;
  put_u32(p + NETH_EV, nack->ev);
  put_u16(p + NETH_SPDCID, nack->spdcid);
  put_u16(p + NETH_DPDCID, nack->dpdcid);
  put_u32(p + NETH_PSN, nack->nack_psn);
  p[NETH_CC] = (uint8_t)(nack->cc_type << 4 | nack->cc_fl);
  put_u16(p + NETH_TX_TIMESTAMP, nack->tx_timestamp);
}

static int decode_nack(const uint8_t *p, struct mrc_wire *wire) {
  wire->nack = (struct mrc_nack){
      .reason = p[NETH_REASON],
      .vendor_info = p[NETH_VENDOR_INFO],
      .ev = get_u32(p + NETH_EV),
      .spdcid = get_u16(p + NETH_SPDCID),
      .dpdcid = get_u16(p + NETH_DPDCID),
      .nack_psn = get_u32(p + NETH_PSN) & U24_MAX,
      .cc_type = p[NETH_CC] >> 4,
      .cc_fl = p[NETH_CC] & 0x0F,
      .tx_timestamp = get_u16(p + NETH_TX_TIMESTAMP),
  };
  bool known = nack_reason_known(wire->nack.reason) && wire->nack.cc_type == MRC_CC_TYPE_NACK;
  return known ? 0 : MRC_DROP_FIELD;
}

/* ---- Reliability probe: PETH ---- */

static void encode_probe(const struct mrc_wire *wire, uint8_t *p) {
  const struct mrc_probe *probe = &wire->probe;
  put_u16(p + PETH_PROBE_ID, probe->probe_id);
  put_u16(p + PETH_SPDCID, probe->spdcid);
  put_u16(p + PETH_DPDCID, probe->dpdcid);
  put_timestamp(p + PETH_TSETH, probe->tx_timestamp, probe->tsr);
}

static int decode_probe(const uint8_t *p, struct mrc_wire *wire) {
  struct mrc_probe *probe = &wire->probe;
  probe->probe_id = get_u16(p + PETH_PROBE_ID);
  probe->spdcid = get_u16(p + PETH_SPDCID);
  probe->dpdcid = get_u16(p + PETH_DPDCID);
  bool known = get_timestamp(p + PETH_TSETH, &probe->tx_timestamp, &probe->tsr);
  return known ? 0 : MRC_DROP_FIELD;
}

/* ---- Endpoint request and response: ERTH and EETH ---- */

/* The op of a response is in bits 3:2, according to two of three readers of the specification. They
   report its other fields as reserved. The layout is that of a SACK, m included. */
static void encode_endpoint(const struct mrc_wire *wire, uint8_t *p) {
  const struct mrc_endpoint_fields *endpoint = &wire->endpoint;
  mrc_assert(wire->dest_qpn == MRC_ENDPOINT_QPN && wire->psn <= PRIVATE_ID_MASK);
  mrc_assert(endpoint->op <= MRC_ENDPOINT_EV_PROBE);
  if (wire->opcode == MRC_OP_ENDPOINT_REQUEST) {
    p[ERTH_BITS] = endpoint->op;
    put_u32(p + ERTH_PORT_STATUS_MASK, endpoint->port_status_mask);
    put_timestamp(p + ERTH_TSETH, endpoint->tx_timestamp, endpoint->tsr);
  } else {
    mrc_assert(endpoint->m <= (endpoint->lifted ? MRC_M_NONE : MRC_M_ALWAYS_SKIP));
    p[EETH_BITS] = (uint8_t)(endpoint->m << 5 | endpoint->op << (endpoint->lifted ? 4 : 2));
    put_u16(p + EETH_TX_TIMESTAMP, endpoint->tx_timestamp);
  }
}

static int decode_endpoint(const uint8_t *p, struct mrc_wire *wire) {
  struct mrc_endpoint_fields *endpoint = &wire->endpoint;
  bool known = wire->dest_qpn == MRC_ENDPOINT_QPN;
  if (wire->opcode == MRC_OP_ENDPOINT_REQUEST) {
    endpoint->op = p[ERTH_BITS] & 3;
    endpoint->port_status_mask = get_u32(p + ERTH_PORT_STATUS_MASK);
    known &= get_timestamp(p + ERTH_TSETH, &endpoint->tx_timestamp, &endpoint->tsr);
  } else {
    endpoint->op = p[EETH_BITS] >> 2 & 3;
    endpoint->m = p[EETH_BITS] >> 5 & 3;
    endpoint->lifted_op = p[EETH_BITS] >> 4 & 3;
    endpoint->tx_timestamp = get_u16(p + EETH_TX_TIMESTAMP);
    known &= endpoint->m <= MRC_M_ALWAYS_SKIP;
  }
  wire->psn &= PRIVATE_ID_MASK; /* the upper 8 bits are reserved */
  return known && endpoint->op <= MRC_ENDPOINT_EV_PROBE ? 0 : MRC_DROP_FIELD;
}

/* ---- Transport ACK and NAK: AETH ---- */

static void encode_ack(const struct mrc_wire *wire, uint8_t *p) {
  mrc_assert(wire->aeth.msn <= U24_MAX);
  put_u32(p + AETH_SYNDROME, (uint32_t)wire->aeth.syndrome << 24 | wire->aeth.msn);
}

static int decode_ack(const uint8_t *p, struct mrc_wire *wire) {
  uint8_t syndrome = p[AETH_SYNDROME];
  wire->aeth.syndrome = syndrome;
  wire->aeth.msn = get_u32(p + AETH_SYNDROME) & U24_MAX;
  bool nak = syndrome >= MRC_SYNDROME_NAK_INV_REQ && syndrome <= MRC_SYNDROME_NAK_REM_OP;
  return syndrome == MRC_SYNDROME_ACK || nak ? 0 : MRC_DROP_FIELD;
}

/* ---- The packet kinds ---- */

struct kind {
  uint8_t header_bytes; /* behind the BTH, without a TSETH; 0: no such opcode */
  int (*decode)(const uint8_t *p, struct mrc_wire *wire);
  void (*encode)(const struct mrc_wire *wire, uint8_t *p);
};

enum {
  DATA_BYTES = MRC_METH_BYTES + MRC_RETH_BYTES,
  DATA_IMM_BYTES = DATA_BYTES + MRC_IMM_BYTES,
  SACK_BYTES = MRC_SETH_BYTES + MRC_CC_STATE_BYTES
};

_Static_assert(MRC_BTH_BYTES + DATA_IMM_BYTES + MRC_TSETH_BYTES == MRC_DATA_HEADER_BYTES,
               "the largest data header");
_Static_assert(MRC_DATA_HEADER_BYTES + MRC_ICRC_BYTES == MRC_DATA_OVERHEAD_BYTES,
               "a full packet needs no pad");

#define OPCODE_CLASS 0xC0u /* the top three bits of MRC's opcodes are 110 */
#define OPCODE_LOW 0x1Fu

static const struct kind kinds[OPCODE_LOW + 1] = {
    [MRC_OP_WRITE_FIRST & OPCODE_LOW] = {DATA_BYTES, decode_data, encode_data},
    [MRC_OP_WRITE_MIDDLE & OPCODE_LOW] = {DATA_BYTES, decode_data, encode_data},
    [MRC_OP_WRITE_LAST & OPCODE_LOW] = {DATA_BYTES, decode_data, encode_data},
    [MRC_OP_WRITE_LAST_IMM & OPCODE_LOW] = {DATA_IMM_BYTES, decode_data, encode_data},
    [MRC_OP_WRITE_ONLY & OPCODE_LOW] = {DATA_BYTES, decode_data, encode_data},
    [MRC_OP_WRITE_ONLY_IMM & OPCODE_LOW] = {DATA_IMM_BYTES, decode_data, encode_data},
    [MRC_OP_ACK & OPCODE_LOW] = {MRC_AETH_BYTES, decode_ack, encode_ack},
    [MRC_OP_ENDPOINT_REQUEST & OPCODE_LOW] = {MRC_ERTH_BYTES, decode_endpoint, encode_endpoint},
    [MRC_OP_ENDPOINT_RESPONSE & OPCODE_LOW] = {MRC_EETH_BYTES, decode_endpoint, encode_endpoint},
    [MRC_OP_SACK & OPCODE_LOW] = {SACK_BYTES, decode_sack, encode_sack},
    [MRC_OP_NACK & OPCODE_LOW] = {MRC_NETH_BYTES, decode_nack, encode_nack},
    [MRC_OP_PROBE & OPCODE_LOW] = {MRC_PETH_BYTES, decode_probe, encode_probe},
};

/* ---- BTH and the whole packet ---- */

size_t mrc_wire_encode(const struct mrc_wire *wire, uint8_t *out) {
  const struct kind *kind = &kinds[wire->opcode & OPCODE_LOW];
  mrc_assert((wire->opcode & ~OPCODE_LOW & 0xFF) == OPCODE_CLASS && kind->header_bytes != 0);
  bool data = mrc_opcode_is_data(wire->opcode);
  mrc_assert(data || (!wire->ts && wire->pad == 0));
  mrc_assert(wire->pad <= 3);
  mrc_assert(wire->dest_qpn <= U24_MAX && wire->psn <= U24_MAX);
  const size_t n = MRC_BTH_BYTES + kind->header_bytes + (wire->ts ? MRC_TSETH_BYTES : 0u);
  const uint32_t bits = (wire->se ? BTH_SE : 0u) | (wire->m ? BTH_M : 0u) |
                        (uint32_t)wire->pad << 4 | (wire->sealed ? TVER_SEALED : 0u);
  const uint32_t flags =
      (wire->ack_req ? BTH_ACK_REQ : 0u) | (wire->rtx ? BTH_RTX : 0u) | (wire->ts ? BTH_TS : 0u);
  put_u32(out + BTH_OPCODE, (uint32_t)wire->opcode << 24 | bits << 16 | MRC_PKEY);
  put_u32(out + BTH_DEST_QPN - 1, wire->dest_qpn);
  put_u32(out + BTH_FLAGS, flags << 24 | wire->psn);
  if (!data) memset(out + MRC_BTH_BYTES, 0, n - MRC_BTH_BYTES); /* reserved bits; data has none */
  kind->encode(wire, out + MRC_BTH_BYTES);
  return n;
}

void mrc_wire_encode_next(const uint8_t *before, uint8_t *out, uint32_t psn, bool ack_req,
                          uint32_t payload_bytes) {
  memcpy(out, before, MRC_DATA_HEADER_BYTES);
  const uint8_t kept = before[BTH_FLAGS] & BTH_TS;
  uint8_t *va = out + MRC_BTH_BYTES + MRC_METH_BYTES + (kept ? MRC_TSETH_BYTES : 0) + RETH_VA;
  out[BTH_OPCODE] = MRC_OP_WRITE_MIDDLE;
  put_u32(out + BTH_FLAGS, (uint32_t)(kept | (ack_req ? BTH_ACK_REQ : 0)) << 24 | psn);
  put_u64(va, get_u64(va) + payload_bytes);
}

int mrc_wire_decode(const uint8_t *bytes, size_t n, bool trimmed, struct mrc_wire *wire) {
  if (n < MRC_BTH_BYTES) return MRC_DROP_SHORT;
  const struct kind *kind = &kinds[bytes[BTH_OPCODE] & OPCODE_LOW];
  if ((bytes[BTH_OPCODE] & ~OPCODE_LOW & 0xFF) != OPCODE_CLASS || kind->header_bytes == 0)
    return MRC_DROP_OPCODE;
  /* The BTH, field by field: to zero the whole struct first would cost as much as all the rest. */
  if ((bytes[BTH_BITS] & BTH_TVER) > TVER_SEALED) return MRC_DROP_VERSION;
  if (get_u16(bytes + BTH_PKEY) != MRC_PKEY) return MRC_DROP_PKEY;
  const uint32_t bits = bytes[BTH_BITS], flags_psn = get_u32(bytes + BTH_FLAGS);
  const uint32_t flags = flags_psn >> 24;
  const bool data = mrc_opcode_is_data(bytes[BTH_OPCODE]);
  if (!data) *wire = (struct mrc_wire){0};
  wire->opcode = bytes[BTH_OPCODE];
  wire->pad = bits >> 4 & 3;
  wire->se = (bits & BTH_SE) != 0;
  wire->m = (bits & BTH_M) != 0;
  wire->sealed = (bits & BTH_TVER) == TVER_SEALED;
  wire->ack_req = (flags & BTH_ACK_REQ) != 0;
  wire->rtx = (flags & BTH_RTX) != 0;
  wire->ts = (flags & BTH_TS) != 0;
  wire->dest_qpn = get_u32(bytes + BTH_DEST_QPN - 1) & U24_MAX;
  wire->psn = flags_psn & U24_MAX;
  if (!data && (wire->pad != 0 || wire->ts)) return MRC_DROP_FIELD;
  const size_t header = MRC_BTH_BYTES + kind->header_bytes + (wire->ts ? MRC_TSETH_BYTES : 0u);
  const size_t end = wire->sealed ? MRC_SEALED_BYTES : MRC_ICRC_BYTES;
  if (trimmed && n < header && data) return decode_cut(bytes, n, wire);
  if (n < header + (trimmed ? 0 : end)) return MRC_DROP_SHORT;
  const int drop = kind->decode(bytes + MRC_BTH_BYTES, wire);
  if (drop != 0) return drop;
  wire->payload = bytes + header;
  if (trimmed) return 0;
  const size_t rest = n - header - end;
  if (!data) {
    /* A local extension: an EV probe request may be padded with zeros to the size of a full packet,
       so that its answer also proves the path MTU. Other control packets have no payload. */
    const bool ev_probe =
        wire->opcode == MRC_OP_ENDPOINT_REQUEST && wire->endpoint.op == MRC_ENDPOINT_EV_PROBE;
    wire->payload_bytes = (uint32_t)rest;
    return rest == 0 || ev_probe ? 0 : MRC_DROP_LENGTH;
  }
  /* A message that fits into one packet is an Only, which may be empty. Packets of a longer message
     are not empty, so each is shorter than the message. */
  if (rest % 4 != 0 || wire->pad > rest) return MRC_DROP_LENGTH;
  wire->payload_bytes = (uint32_t)(rest - wire->pad);
  const bool whole = wire->payload_bytes == wire->dma_bytes;
  const bool part = wire->payload_bytes > 0 && wire->payload_bytes < wire->dma_bytes;
  return (wire->opcode >= MRC_OP_WRITE_ONLY ? whole : part) ? 0 : MRC_DROP_LENGTH;
}
