/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format: every header, length, code point and limit of MRC 1.0, and its total decoder. It
   has no state and does no I/O; for the ICRC see crc.h. All fields are big-endian. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mrc.h"

/* BTH opcodes. When adding one, touch also: wire.c (kinds table), receive.c (dispatch),
   mrc/dissect (packet.py, mrc.lua), tests/wire/golden.py. */
enum mrc_opcode {
  MRC_OP_WRITE_FIRST = 0xC6,
  MRC_OP_WRITE_MIDDLE = 0xC7,
  MRC_OP_WRITE_LAST = 0xC8, /* this one and the next three end a message */
  MRC_OP_WRITE_LAST_IMM = 0xC9,
  MRC_OP_WRITE_ONLY = 0xCA,
  MRC_OP_WRITE_ONLY_IMM = 0xCB,
  MRC_OP_ACK = 0xD1,
  MRC_OP_ENDPOINT_REQUEST = 0xD8,
  MRC_OP_ENDPOINT_RESPONSE = 0xD9,
  MRC_OP_SACK = 0xDC,
  MRC_OP_NACK = 0xDD,
  MRC_OP_PROBE = 0xDE
};

enum {
  MRC_BTH_BYTES = 12,
  MRC_METH_BYTES = 4,
  MRC_TSETH_BYTES = 4,
  MRC_RETH_BYTES = 16,
  MRC_IMM_BYTES = 4,
  MRC_SETH_BYTES = 28,
  MRC_CC_STATE_BYTES = 8,
  MRC_NETH_BYTES = 20,
  MRC_PETH_BYTES = 16,
  MRC_ERTH_BYTES = 16,
  MRC_EETH_BYTES = 36,
  MRC_AETH_BYTES = 4,
  MRC_ICRC_BYTES = 4,
  /* in place of the ICRC in a sealed packet, see seal.h */
  MRC_SEAL_BYTES = 12,
  MRC_TAG_BYTES = 16,
  MRC_SEALED_BYTES = MRC_SEAL_BYTES + MRC_TAG_BYTES,
  /* the largest stack in front of a payload: BTH METH TSETH RETH ImmDt */
  MRC_DATA_HEADER_BYTES = 40,
  /* UDP payload of a full packet beyond the path MTU: headers and ICRC (a full packet needs no pad)
   */
  MRC_DATA_OVERHEAD_BYTES = 44
};

#define MRC_PKEY 0xFFFFu
#define MRC_ENDPOINT_QPN 2u /* destination QPN of connectionless endpoint operations */

enum mrc_sack_m { MRC_M_NONE, MRC_M_SKIP_ONCE, MRC_M_ALWAYS_SKIP };

enum mrc_nack_reason {
  MRC_NACK_TRIMMED = 0x01,
  MRC_NACK_TRIMMED_LASTHOP = 0x02,
  MRC_NACK_NO_BITMAP = 0x06,
  MRC_NACK_NO_PKT_BUFFER = 0x07,
  MRC_NACK_NO_RESOURCE = 0x0A,
  MRC_NACK_PSN_OOR_WINDOW = 0x0B,
  MRC_NACK_UNEXP_EVENT = 0x19
};

enum mrc_endpoint_op { MRC_ENDPOINT_PORT_STATUS = 0, MRC_ENDPOINT_EV_PROBE = 1 };

/* The layout of the CC_STATE. MRC_CC_TYPE_TIMES is our extension: the send time of the SACK
   replaces ooo_count. A SACK has it only if the peer has requested it at connect. */
enum mrc_cc_type { MRC_CC_TYPE_NSCC = 0, MRC_CC_TYPE_NACK = 2, MRC_CC_TYPE_TIMES = 15 };

/* AETH syndromes: InfiniBand's codes; MRC's credit field is always 0x1F. */
enum mrc_syndrome {
  MRC_SYNDROME_ACK = 0x1F,
  MRC_SYNDROME_NAK_INV_REQ = 0x61,
  MRC_SYNDROME_NAK_REM_ACCESS = 0x62,
  MRC_SYNDROME_NAK_REM_OP = 0x63
};

struct mrc_sack {
  int16_t ack_psn_offset; /* trigger = cum_psn + offset; probe_id when pr */
  uint8_t m;              /* enum mrc_sack_m */
  bool pr;                /* answers a reliability probe */
  uint32_t ev;            /* of the triggering packet */
  uint16_t spdcid;        /* low 16 bits of the sender's QPN */
  uint16_t dpdcid;        /* low 16 bits of the destination's QPN */
  uint32_t cum_psn;       /* every PSN up to and including this one was received */
  uint8_t cc_type;        /* MRC_CC_TYPE_NSCC or _TIMES */
  uint8_t cc_fl;
  uint8_t mpr;             /* in units of 128 PSNs; 0: no dynamic MPR */
  int16_t sack_offset;     /* bitmap base = cum_psn + offset */
  uint64_t bitmap;         /* bit i, LSB first: PSN base + i was received */
  uint16_t tx_timestamp;   /* reflected */
  uint16_t ooo_count;      /* 15 bits; MRC_CC_TYPE_NSCC only */
  uint16_t sent_timestamp; /* of the SACK, as in TSETH; MRC_CC_TYPE_TIMES only */
  bool restore_cwnd;
  uint8_t rcv_cwnd_pen; /* 7 bits */
  uint32_t rcvd_bytes;  /* 256-byte units, rounded up, modulo 2^24 */
};

struct mrc_nack {
  uint8_t reason; /* enum mrc_nack_reason */
  uint8_t vendor_info;
  uint32_t ev;
  uint16_t spdcid;
  uint16_t dpdcid;
  uint32_t nack_psn;
  uint8_t cc_type; /* MRC_CC_TYPE_NACK */
  uint8_t cc_fl;
  uint16_t tx_timestamp; /* reflected */
};

struct mrc_probe {
  uint16_t probe_id;
  uint16_t spdcid;
  uint16_t dpdcid;
  uint16_t tx_timestamp;
  bool tsr;
};

/* Endpoint request and response. The private id travels in the low 16 bits of the BTH PSN. */
struct mrc_endpoint_fields {
  uint8_t op;                /* enum mrc_endpoint_op */
  uint32_t port_status_mask; /* request only: bit n - 1 is port n, 1 = reachable */
  uint8_t m;                 /* response: enum mrc_sack_m, of the request */
  bool lifted;               /* response to encode: op stands in bits 5:4, and m is 0 (C6-B) */
  uint8_t lifted_op;         /* decoded response: the op by that reading */
  uint16_t tx_timestamp;     /* response: reflected */
  bool tsr;
};

/* One packet, decoded. Only the members that belong to the opcode are valid. */
struct mrc_wire {
  /* BTH */
  uint8_t opcode; /* enum mrc_opcode */
  uint8_t pad;    /* bytes of padding after the payload, 0..3 */
  bool se;
  bool m;
  bool ack_req;
  bool rtx;
  bool ts;     /* TSETH present */
  bool sealed; /* the packet ends in a seal and a tag, not in an ICRC */
  uint32_t dest_qpn;
  uint32_t psn; /* data: PSN; SACK: cumulative PSN; NACK: refused PSN; endpoint: private id */
  /* data packets */
  uint16_t rqmsn;
  uint16_t msn;
  uint16_t tx_timestamp; /* when ts */
  bool tsr;              /* 1: units of 1.024 us, 0: 128 ns */
  uint32_t rkey;
  uint64_t va;
  uint32_t dma_bytes; /* length of the whole message */
  uint32_t imm;
  const uint8_t *payload; /* NULL: a switch has cut the headers */
  uint32_t payload_bytes; /* without pad */
  /* one of these, by opcode */
  union {
    struct mrc_sack sack;
    struct mrc_nack nack;
    struct mrc_probe probe;
    struct mrc_endpoint_fields endpoint;
    struct {
      uint8_t syndrome; /* enum mrc_syndrome */
      uint32_t msn;     /* 24 bits */
    } aeth;
  };
};

bool mrc_opcode_is_data(uint8_t opcode);
/* For data opcodes only. */
bool mrc_opcode_has_imm(uint8_t opcode);

/* Writes all headers of `wire` (not the payload, pad, ICRC or seal) to out[MRC_MAX_HEADER]; returns
   their length. The caller has filled every field that the opcode needs. */
size_t mrc_wire_encode(const struct mrc_wire *wire, uint8_t *out);
/* Encodes the packet after `before` of the same message: all but the opcode, the PSN, the flags and
   the VA is the same. Neither is the last of the message. Both have room for MRC_DATA_HEADER_BYTES;
   `payload_bytes` is the payload of each. */
void mrc_wire_encode_next(const uint8_t *before, uint8_t *out, uint32_t psn, bool ack_req,
                          uint32_t payload_bytes);

/* Decodes a whole UDP payload that ends in an ICRC or a seal (not checked here). Any bytes give a
   packet (0) or a drop reason (enum mrc_drop, positive). `payload` points into `bytes`. With
   `trimmed` the payload, pad and what follows may be missing and payload_bytes is 0. Trimmed data
   may also lack what follows METH and TSETH; then va, rkey, dma_bytes, imm and payload are 0. */
int mrc_wire_decode(const uint8_t *bytes, size_t n, bool trimmed, struct mrc_wire *wire);

/* ---- traffic classes ---- */

/* Code points of traffic classes. For packets that a switch has trimmed, we chose two of the 16
   code points that RFC 2474 reserves for experiments and local use. */

enum { MRC_ECN_NONE = 0, MRC_ECN_CAPABLE = 2 /* ECT(0) */ };

/* Fills in the defaults. Returns whether the code points are in range, and trimmed packets can be
   told from others. */
static inline bool mrc_dscps_fill(struct mrc_dscps *dscps) {
  if (dscps->trimmed == 0) dscps->trimmed = MRC_DSCP_TRIMMED;
  if (dscps->trimmed_last == 0) dscps->trimmed_last = MRC_DSCP_TRIMMED_LAST;
  const uint8_t sent[] = {dscps->control, dscps->data, dscps->retransmission};
  for (int i = 0; i < 3; i++)
    if (sent[i] > 63 || sent[i] == dscps->trimmed || sent[i] == dscps->trimmed_last) return false;
  return dscps->trimmed <= 63 && dscps->trimmed_last <= 63 && dscps->trimmed != dscps->trimmed_last;
}
