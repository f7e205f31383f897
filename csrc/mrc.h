/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public C interface of mrc: the sans-IO engine and the threaded context that drives it over
 * UDP sockets. cffi also parses the part between the two cdef markers: all of Python's constants
 * and structs come from there. Functions return 0 or a negative errno value unless noted otherwise.
 * Time is `now_ns`, nanoseconds of any monotonic clock, and is always the last argument. Addresses
 * have 16 bytes; IPv4 uses the mapped form ::ffff:a.b.c.d. Ports and planes count from 1. A plane
 * of a QP is a pair of ports, one of each host; port n lies in plane n unless an EV says otherwise.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef begin */

#define MRC_MAX_PORTS 32           /* ports (planes) of one engine; port numbers are 1..32 */
#define MRC_MAX_EVS 1024           /* entropy values of one QP, active and backup together */
#define MRC_MAX_REDUNDANT 65536    /* bytes of a redundant write */
#define MRC_MAX_PEER_SOURCES 256   /* source (address, UDP port) pairs of one QP's peer */
#define MRC_MAX_BURST_PACKETS 64   /* UDP_MAX_SEGMENTS of Linux before 6.9 */
#define MRC_MAX_HEADER 64          /* bytes of the largest header stack built by the engine */
#define MRC_MIN_MTU 256            /* bytes of payload, smallest path MTU */
#define MRC_MAX_MTU 16384          /* bytes of payload, largest path MTU */
#define MRC_UDP_PORT 4791          /* default UDP destination port, as RoCEv2 */
#define MRC_SEAL_OVERHEAD_BYTES 24 /* of a sealed packet, beyond the ICRC that it has not */
#define MRC_MPR_UNIT 128           /* PSNs in one unit of the maximum PSN range */

/* ---- traffic classes, readings ---- */

#define MRC_DSCP_TRIMMED 7       /* default code point of trimmed packets */
#define MRC_DSCP_TRIMMED_LAST 11 /* default code point of those trimmed at the last hop */

/* Code points (DSCP, 0..63) of what an engine sends, and those by which switches mark what they
   have trimmed. The latter two differ from each other and from the others. */
struct mrc_dscps {
  uint8_t control;        /* SACKs, NACKs, ACKs, probes, port states and answers to them [0] */
  uint8_t data;           /* data that leaves for the first time [0] */
  uint8_t retransmission; /* [0] */
  uint8_t trimmed;        /* [MRC_DSCP_TRIMMED] */
  uint8_t trimmed_last;   /* trimmed at the last hop [MRC_DSCP_TRIMMED_LAST] */
  uint8_t reserved[3];    /* 0 */
};

/* Readings of the specification that an engine follows in place of its own, see
   csrc/core/specification.md. tools/readings writes them. */
/* tools/readings */
enum mrc_reading {
  MRC_READING_C3_B = 1,    /* puts the source port into the low half of EVs in answers */
  MRC_READING_C4_A = 2,    /* drops a PSN beyond the window silently */
  MRC_READING_S5_B = 4,    /* sends no transport ACK while an earlier packet is missing */
  MRC_READING_S8_B = 8,    /* sends no mark in answers to EV probes */
  MRC_READING_C6_B = 16,   /* puts the operation of endpoint responses into bits 5:4, and no mark */
  MRC_READING_G2_A = 32,   /* sends a SACK after 16 KiB */
  MRC_READING_G2_B = 64,   /* sends a SACK after 4 KiB */
  MRC_READING_G5_A = 128,  /* lets a marked EV sit out one turn; a packet ends one skip */
  MRC_READING_G10_B = 256, /* sends no NACK for a packet trimmed within its RETH */
  MRC_READING_G15_B = 512, /* reflects timestamps as they came */
  MRC_READING_S1_A = 1024, /* grants 128 PSNs unless Queues.mpr is set */
  MRC_READING_S4_B = 2048  /* calls EVs bad whose packets all come marked */
};
enum { MRC_ALL_READINGS = 4095 };
/* end */

/* ---- what a caller can read of an engine: EVs, planes, QPs, recordings, the trace ---- */

/* State of one EV. */
struct mrc_ev_info {
  uint32_t ev;
  uint8_t port;   /* of this host, 1-based */
  uint8_t plane;  /* 1-based */
  uint8_t state;  /* enum mrc_ev_state */
  uint8_t active; /* 1: in the rotation, 0: backup */
  uint64_t sent_packets;
  uint64_t sent_bytes; /* payload */
  uint64_t lost_packets;
  uint64_t sent_probes; /* EV probes */
  int64_t rtt_ns;       /* smoothed; -1 before the first sample */
};

/* State of one plane of a QP. */
struct mrc_plane_info {
  uint64_t sent_packets; /* data packets, retransmissions included */
  uint64_t sent_bytes;   /* their payload */
  uint64_t lost_packets;
  uint64_t received_packets; /* data packets placed */
  uint64_t received_bytes;   /* their payload, each byte once */
  int64_t rtt_ns;            /* smoothed; -1 before the first sample */
  int64_t base_rtt_ns;       /* smallest seen; -1 before the first sample */
  uint64_t inflight_bytes;
  uint64_t cwnd_bytes;    /* window of the plane; with NSCC and equal shares that of the QP */
  uint8_t suspended;      /* 1: carries probes only, as long as another plane carries data */
  uint8_t slow;           /* 1: carries much less than the others, see MRC_EVENT_PLANE_SHARE */
  uint8_t weight;         /* see mrc_qp_set_weight */
  uint8_t reserved;       /* 0 */
  uint32_t share_percent; /* bytes carried by all QPs to the peer in the last period, in per cent of
                             the mean of the other planes; 100 before, and with equal shares */
};

/* State of one QP. */
struct mrc_qp_info {
  uint32_t qpn;
  uint32_t state;        /* enum mrc_qp_state */
  uint32_t status;       /* enum mrc_wc_status that ended the QP */
  uint32_t outstanding;  /* work requests posted and not completed */
  uint64_t sent_packets; /* data packets, retransmissions included */
  uint64_t retransmitted_packets;
  uint64_t spurious_packets;   /* declared lost, but had arrived */
  uint64_t first_sent_bytes;   /* payload of first transmissions */
  uint64_t acknowledged_bytes; /* payload acknowledged, each byte once */
  uint64_t received_bytes;     /* payload placed, each byte once */
  uint64_t cwnd_bytes;         /* sum over the planes */
  uint64_t inflight_bytes;
  int64_t rtt_ns; /* smoothed over all planes; -1 before the first sample */
  uint32_t path_mtu;
  uint32_t timeouts;                /* local timeouts and refusals (NACK) since the last progress */
  uint32_t peer_mpr;                /* PSNs that the peer grants now */
  uint32_t held_by;                 /* enum mrc_held_by; of a QP in RTS */
  struct mrc_plane_info planes[32]; /* planes[n - 1] is plane n; 0 where there is no port */
};

/* Payload delivered to QPs over time, from MRC_COMMAND_RECORD_START on, on CLOCK_MONOTONIC. The
   caller must not touch it until the reply to RECORD_STOP or the end of the context. */
struct mrc_recording {
  const uint32_t *qpns; /* n_qps QP numbers */
  uint64_t *bytes;      /* n_bins rows with one number for each port; all 0 at the start */
  uint32_t n_qps;       /* 0: every QP, also QPs that are created later */
  uint32_t n_ports;     /* ports 1..n_ports are recorded; at most n_ports of the context */
  uint32_t n_bins;      /* even */
  uint32_t reserved;    /* 0 */
  uint64_t width_ns;    /* of a bin; when all bins are in use, pairs are merged and it doubles */
  /* The caller sets these to 0, the datapath fills them in. */
  uint64_t start_ns;          /* start of the first bin */
  uint64_t end_ns;            /* time of RECORD_STOP */
  uint64_t first_ns;          /* first delivery; 0 before */
  uint64_t last_ns;           /* last delivery */
  uint64_t longest_gap_ns;    /* longest time between two deliveries in a row */
  uint64_t longest_gap_at_ns; /* start of that time */
};

struct mrc_trace_entry {
  uint64_t now_ns;
  uint32_t point; /* index into trace.def */
  uint32_t qpn;
  uint64_t a;
  uint64_t b;
};

/* The library that seals packets, or 0 when this host has none. The first call loads it. */
const char *mrc_aead_name(void);

/* Limits of a congestion control profile. */
#define MRC_CC_UNIT 1000000           /* fractions are in units of 1 / MRC_CC_UNIT */
#define MRC_CC_LINK_BPS 10000000000   /* default rate of a link */
#define MRC_CC_BASE_RTT_NS 100000     /* default base RTT */
#define MRC_CC_MIN_BASE_RTT_NS 1000   /* smallest base RTT */
#define MRC_CC_MAX_NS 1000000000      /* largest value of a time */
#define MRC_CC_MAX_BPS 10000000000000 /* largest rate of a link */
#define MRC_CC_MAX_BYTES 1073741824   /* largest value of a size in bytes */
#define MRC_CC_MAX_QA_GATE 16
#define MRC_CC_MAX_FI_SCALE 1000000000 /* the fraction 1000 */

enum mrc_qp_state {
  MRC_QP_RESET,
  MRC_QP_INIT, /* EVs and peer can be set; packets are dropped */
  MRC_QP_RTR,  /* ready to receive: peer known, probes may be sent */
  MRC_QP_RTS,  /* ready to send */
  MRC_QP_ERROR /* terminal: everything outstanding was flushed */
};

/* What keeps a QP from sending more. */
enum mrc_held_by {
  MRC_HELD_BY_NOTHING, /* it may send: the processor decides */
  MRC_HELD_BY_PROGRAM, /* everything posted was sent */
  MRC_HELD_BY_PEER,    /* its window of PSNs or WRITE_IMMs is full */
  MRC_HELD_BY_NETWORK, /* the congestion windows are full, or no plane carries data */
  MRC_HELD_BY_SOCKET   /* the sockets with room in their windows are full */
};

enum mrc_ev_state {
  MRC_EV_GOOD,
  MRC_EV_SKIP,        /* congested: sits out one or more turns of the rotation */
  MRC_EV_ASSUMED_BAD, /* lost a packet or could not send; probed until it is trusted again */
  MRC_EV_DENIED,      /* denied by the controller */
  MRC_EV_UNPROVEN     /* carries no data: only what the controller probes, and answers */
};

enum mrc_wr_opcode { MRC_WR_WRITE, MRC_WR_WRITE_IMM };

enum mrc_access {
  MRC_ACCESS_LOCAL_READ = 1,
  MRC_ACCESS_REMOTE_WRITE = 2,
  MRC_ACCESS_REMOTE_READ = 4 /* by a READ of msg/messages.h, with LOCAL_READ: MRC itself has none */
};

enum mrc_wc_status {
  MRC_WC_SUCCESS,
  MRC_WC_LOC_PROT_ERR,    /* the local memory is not registered or does not cover the range */
  MRC_WC_WR_FLUSH_ERR,    /* the QP went to ERROR or was destroyed before this work request ended */
  MRC_WC_REM_ACCESS_ERR,  /* the responder refused the rkey or the range */
  MRC_WC_REM_INV_REQ_ERR, /* the responder refused the request, e.g. too many immediates */
  MRC_WC_REM_OP_ERR,      /* the responder failed (NACK UNEXP_EVENT) */
  MRC_WC_RETRY_EXC_ERR    /* retries exhausted: the peer answers on no path */
};

enum mrc_integrity { MRC_INTEGRITY_ICRC, MRC_INTEGRITY_UDP };

enum mrc_seal_mode {
  MRC_SEAL_NONE,
  MRC_SEAL_AUTH, /* packets are authenticated (AES-256-GMAC) */
  MRC_SEAL_AEAD  /* and their payload is encrypted (AES-256-GCM) */
};

enum mrc_wc_opcode { MRC_WC_WRITE, MRC_WC_WRITE_IMM, MRC_WC_RECV_IMM };

/* One completion. */
struct mrc_wc {
  uint64_t wr_id;    /* as posted; for RECV_IMM the index of the immediate on its QP, from 0 */
  uint32_t qpn;      /* local QP number */
  uint32_t imm;      /* RECV_IMM: the immediate, host order */
  uint32_t bytes;    /* length of the message; for RECV_IMM the bytes that arrived */
  uint8_t status;    /* enum mrc_wc_status */
  uint8_t opcode;    /* enum mrc_wc_opcode */
  uint16_t reserved; /* 0 */
};

enum mrc_event_type {
  MRC_EVENT_REPLY,    /* context only: the answer to a command, `result` is 0 or -errno */
  MRC_EVENT_WC,       /* context only: `wc` is a completion */
  MRC_EVENT_QP_ERROR, /* the QP went to ERROR; `status` is an enum mrc_wc_status */
  MRC_EVENT_EV_STATE, /* an EV changed state; `status` is an enum mrc_ev_state */
  MRC_EVENT_PLANE,    /* a plane of a QP was suspended (`status` 0) or resumed (`status` 1) */
  MRC_EVENT_PROBE,    /* an EV probe of the caller ended. `result`: 0, -ETIMEDOUT, or the error of
                         the send (-EMSGSIZE, -ENETUNREACH), which changes no EV and no plane.
                         `status` 1: it was answered, and a switch had marked it (CE) */
  MRC_EVENT_WARNING,  /* context only: `status` is an enum mrc_warning */
  MRC_EVENT_PORT,     /* a port that a QP uses went down (`status` 0) or came up (`status` 1);
                         `reason`: a port of this host or of the peer */
  MRC_EVENT_PLANE_SHARE, /* a plane to a peer became slow (`status` 0) or recovered (`status` 1): in
                            two periods in a row it carried less than 50%, or more than 75%, of the
                            mean of the other planes (`result`). A period is 200 ms, or 8 base RTTs
                            if longer. The engine sums over QPs that use the same planes, except
                            those with equal shares; each QP on the plane gets the event. If all
                            QPs suspend a slow plane, it resumes as not slow */
  MRC_EVENT_LOST         /* `cookie` events, of any QP, were dropped here: the ring was full */
};

/* Why an EV, a plane or a port changed. */
enum mrc_event_reason {
  MRC_REASON_NONE,
  MRC_REASON_CONTROLLER, /* mrc_qp_set_ev_state */
  MRC_REASON_LOSS,       /* the EV lost a packet */
  MRC_REASON_PEER,       /* the peer reported the EV as bad: SACK with ALWAYS_SKIP */
  MRC_REASON_SPURIOUS,   /* the packet that the EV had lost arrived after all */
  MRC_REASON_PLANE,      /* the whole plane was suspended, so its EVs are trusted again */
  MRC_REASON_FLOOR,      /* an EV is used again unproven: the rotation is at its minimum */
  MRC_REASON_PROBES,     /* several probes in a row were answered */
  MRC_REASON_SILENCE,    /* the plane delivered nothing, other planes delivered later packets */
  MRC_REASON_TIMEOUT,    /* no plane delivers, so every plane is tried again */
  MRC_REASON_SEND,       /* a send failed */
  MRC_REASON_OWN_PORT,   /* the port of this host went down or came up */
  MRC_REASON_PEER_PORT,  /* the peer reported its port, or probes proved that the port is up */
  MRC_REASON_DELIVERY    /* the bytes that the peer acknowledged, compared with other planes */
};

enum mrc_warning {
  MRC_WARNING_RCVBUF_SMALL, /* `result` is the size that the kernel granted, in bytes */
  MRC_WARNING_SNDBUF_SMALL,
  MRC_WARNING_MEMORY_FAULT,  /* a registered file shrank; the MR `cookie` now reads as zeros */
  MRC_WARNING_GUARD_REPLACED /* the program replaced our SIGBUS handler: if a registered file
                                shrinks, SIGBUS may end the process */
};

/* One asynchronous event. Fields that an event does not name are 0. */
struct mrc_event {
  uint64_t cookie;   /* REPLY, PROBE: that of the command; LOST: a count; MEMORY_FAULT: the key */
  uint64_t at_ns;    /* context only, not for WC, REPLY, WARNING: CLOCK_MONOTONIC when published */
  int64_t rtt_ns;    /* PROBE: round trip */
  struct mrc_wc wc;  /* WC */
  uint32_t qpn;      /* local QP number */
  uint32_t ev_index; /* index in the QP's EV array, for EV_STATE and PROBE */
  int32_t result;    /* 0 or -errno; PLANE_SHARE: per cent */
  uint8_t type;      /* enum mrc_event_type */
  uint8_t port;      /* plane, for EV_STATE, PLANE, PLANE_SHARE, PORT, PROBE; WARNING: port */
  uint8_t status;    /* see the type */
  uint8_t reason;    /* enum mrc_event_reason, for EV_STATE, PLANE, PLANE_SHARE, PORT */
};

/* Where a packet came from, as the driver saw it. */
struct mrc_meta {
  uint64_t arrived_ns; /* when the packet reached this host, on the clock of now_ns; 0: now_ns */
  uint8_t src[16];     /* inner source address */
  uint8_t dst[16];     /* inner destination address */
  uint32_t flow_label; /* IPv6 flow label, 20 bits; 0 on IPv4 */
  uint16_t sport;      /* UDP source port */
  uint16_t dport;      /* UDP destination port */
  uint8_t family;      /* 4 or 6 */
  uint8_t port;        /* port of this host that received it, 1-based */
  uint8_t ecn;         /* the two ECN bits: 3 is CE */
  uint8_t trimmed;     /* enum mrc_trimmed */
  bool overflowed;     /* the host was late: packets before this one found no room at its port */
};

/* One packet of a burst: header bytes, a part of an MR, trailer bytes (pad, ICRC or seal). */
struct mrc_packet {
  uint8_t header[64];
  const uint8_t *payload; /* into the MR, or 0 */
  uint32_t payload_bytes;
  uint16_t header_bytes;
  uint16_t trailer_bytes;
  uint8_t trailer[32];
  uint32_t _slot; /* engine private: identifies the packet at the commit */
  uint32_t _kind; /* engine private */
};

/* n packets of one EV, all of `packet_bytes` except a last one that may be shorter. */
struct mrc_burst {
  uint8_t src[16];
  uint8_t dst[16];
  uint32_t flow_label;
  uint16_t sport;
  uint16_t dport;
  uint8_t family;   /* 4 or 6 */
  uint8_t port;     /* 1-based */
  uint8_t tclass;   /* traffic class or TOS byte, ECN bits included */
  uint8_t tx_index; /* which transmit socket of the port, as given with the EV */
  uint16_t n_packets;
  uint16_t reserved;     /* 0 */
  uint32_t packet_bytes; /* UDP payload bytes of each packet but the last */
  const struct mrc_packet *packets;
  const uint8_t *staged; /* the bytes of all packets, side by side; 0: send those of `packets` */
  uint32_t _qp;          /* engine private */
  uint32_t _ev;          /* engine private */
  uint32_t _icrc; /* engine private: CRC of the IP and UDP headers, for packets of packet_bytes */
};

struct mrc_aead;    /* csrc/core/hkdf.h */
struct mrc_scratch; /* csrc/core/services.h */

/* An engine's fixed sizes and policies. 0 in a field selects the default in brackets. */
struct mrc_engine_config {
  uint64_t seed;          /* of the engine's generators; keep it secret if peers are not trusted */
  uint32_t max_qps;       /* [1024] */
  uint32_t max_mrs;       /* [1024] */
  uint32_t ports;         /* number of ports, 1..32 [1] */
  uint32_t cq_depth;      /* completions held before polling [65536] */
  uint32_t trace_entries; /* length of the trace ring, a power of two [4096] */
  uint32_t max_burst_bytes;      /* UDP payload bytes of one burst [65215] */
  uint32_t sack_threshold_bytes; /* received bytes that trigger a SACK [262144] */
  uint32_t sack_delay_ns;        /* longest delay of a SACK below the threshold [500000] */
  uint32_t staged_packet_bytes;  /* bursts of packets up to this size are staged [0: none] */
  uint32_t seal_epoch_bits;      /* 2^n sealed packets have one key, 6..21 [21] */
  uint32_t noise_ns; /* how late this host and its peers may run, without a cause in the network:
                        1 us to 1 s. All minimum timeouts scale with it [500000] */
  uint32_t readings; /* a set of enum mrc_reading [0] */
  struct mrc_dscps dscps;
  const struct mrc_aead *aead; /* seals packets; 0: no QP can be sealed. A context has its own */
  struct mrc_scratch *scratch; /* shared with other engines; 0: it has its own */
};

/* An entropy value: the name of a path, and the addresses and socket that lead there. */
struct mrc_ev_attr {
  uint8_t src[16];   /* inner source address, as the peer will see it */
  uint8_t dst[16];   /* inner destination address; the kernel routes by it */
  uint32_t ev;       /* sport << 16 | low 16 bits of the flow label */
  uint16_t dport;    /* UDP port of the peer */
  uint8_t port;      /* local port, 1-based */
  uint8_t tx_index;  /* transmit socket of that port that owns the source port; their number: the
                        receive socket, to which a NAT lets answers back */
  uint8_t family;    /* 4 or 6 */
  uint8_t plane;     /* pair of ports, 1-based: all EVs of a plane have the same [port] */
  uint8_t peer_port; /* number that the peer gives to its port, 1-based [plane] */
  uint8_t reserved;  /* 0 */
};

/* A source address and source port from which the peer sends. */
struct mrc_peer_source {
  uint8_t address[16];
  uint16_t sport;
  uint16_t is_nat; /* 1: address and first guess of the port of a NAT, see mrc_qp_set_peer */
};

/* How the packets of a QP are sealed. The secrets are of this QP alone, and the peer has the same
   two the other way round: see mrc_seal_agree. */
struct mrc_seal_attr {
  uint32_t mode;     /* enum mrc_seal_mode, not NONE */
  uint32_t peer_qpn; /* the later dest_qpn */
  uint8_t send[32];
  uint8_t receive[32];
};

/* Parameters of MRC_CC_NSCC, under OCP's names. 0 in a field selects the default in brackets, by
   UET's formulas with a = BDP / 150000 bytes. BDP is that of one window: of one plane, or with
   equal shares of all planes of the QP. Fractions are in units of 1 / MRC_CC_UNIT. */
struct mrc_cc_profile {
  uint64_t link_bps;        /* rate of one plane's link, bits per second [10^10] */
  uint64_t base_rtt_ns;     /* round trip of the longest plane without queues [100000] */
  uint64_t target_delay_ns; /* target of the queueing delay [3/4 base_rtt_ns] */
  uint64_t max_cwnd;        /* largest window of the QP, split among planes, bytes [1.5 BDP each] */
  uint64_t fi;              /* fair increase, bytes per window [5 a path_mtu] */
  uint64_t eta;             /* unconditional increase, bytes per period [0.15 a path_mtu] */
  uint64_t adjust_period_threshold_ns; /* increases are applied once in this time [base_rtt_ns] */
  uint64_t adjust_bytes_threshold;     /* or once in this number of bytes [8 path_mtu] */
  uint64_t qa_threshold_ns;            /* delay that triggers quick adapt [4 target_delay_ns] */
  uint64_t md_threshold_ns; /* delay that cuts the window without a mark [1.1 target_delay_ns] */
  uint32_t qa_gate;         /* quick adapt fires if less than max_cwnd >> qa_gate arrived [3] */
  uint32_t fi_scale;        /* fast increase, fraction of the bytes acknowledged [0.25 a] */
  uint32_t gamma;           /* strength of the multiplicative decrease [0.8] */
  uint32_t max_md_jump;     /* one decrease leaves at least this fraction of the window [0.5] */
  uint32_t disable_qa;      /* 1: no quick adapt */
  uint32_t reserved;        /* 0 */
};

/* Attributes with which a QP is created. */
struct mrc_qp_create_attr {
  uint32_t qpn;      /* 24 bits, unpredictable, not 0..2 */
  uint32_t sq_depth; /* limit of work requests posted and not yet polled, 1..65536 */
  uint32_t mpr;      /* window in PSNs granted to the peer: a multiple of 128, 128..4096 */
  uint32_t max_wimm; /* limit of immediates outstanding, in each direction, 1..1024 */
  uint32_t domain;   /* of the MRs that it may use besides those of no domain */
};

/* Attributes of the move to RTR. */
struct mrc_qp_rtr_attr {
  uint32_t dest_qpn;      /* 24 bits */
  uint32_t rq_psn;        /* first PSN of the peer, 24 bits */
  uint32_t integrity;     /* enum mrc_integrity, as agreed with the peer */
  uint32_t sack_times;    /* 1: SACKs carry their send time, as the peer requests at connect */
  uint32_t dynamic_mpr;   /* 1: both sides agreed that grants may change, see mrc_qp_set_mpr */
  uint32_t service_times; /* 1: both sides agreed that answers to EV probes add the wait at the host
                             that answers to the timestamp, as SACKs do */
};

/* Attributes of the move to RTS. */
struct mrc_qp_rts_attr {
  uint32_t sq_psn;   /* our first PSN, 24 bits */
  uint32_t path_mtu; /* payload bytes of a full packet, a multiple of 4, agreed and tested */
  uint32_t peer_mpr; /* our window in PSNs, at most the peer's mpr; our own mpr limits it too */
  uint32_t peer_max_wimm; /* immediates in flight that the peer accepts */
  uint32_t spray;         /* limit of packets in a burst; 0: the engine chooses, 1: as in MRC */
  uint32_t ev_active_per_plane;     /* EVs in rotation per plane, the rest are backups; 0: all */
  uint8_t timeout;                  /* local timeout is 1.024 us << timeout, 1..24 */
  uint8_t retry_linear;             /* timeouts of that length, 0..7 */
  uint8_t retry_exp;                /* then timeouts that double, 0..24; 25 never gives up */
  uint8_t cc;                       /* enum mrc_cc_kind */
  uint32_t plane_shares;            /* enum mrc_plane_shares */
  struct mrc_cc_profile cc_profile; /* used by MRC_CC_NSCC only */
};

enum mrc_plane_shares {
  MRC_SHARES_MEASURED, /* each plane has its own window and carries as much as it delivers */
  MRC_SHARES_EQUAL     /* all planes carry the same: MRC's own rule, for equal planes */
};

enum mrc_cc_kind {
  MRC_CC_DELAY, /* our default: holds the standing queue of each plane near 3 ms */
  MRC_CC_NULL,  /* none: the PSN window is the only limit */
  MRC_CC_NSCC   /* MRC's own: requires switches that mark ECN; works best if they trim */
};

/* One work request. */
struct mrc_wr {
  uint64_t wr_id;
  uint64_t local; /* address inside a local MR; ignored when bytes is 0 */
  uint64_t va;    /* address at the peer */
  uint32_t lkey;  /* key of the local MR; ignored when bytes is 0 */
  uint32_t rkey;
  uint32_t bytes;      /* 0 .. 4 GiB - 1; 0 only with an immediate */
  uint32_t imm;        /* host order, for WRITE_IMM */
  uint8_t opcode;      /* enum mrc_wr_opcode */
  uint8_t unsignaled;  /* 1: the next signaled one completes for it too, with its error if any */
  uint8_t redundant;   /* 1: each packet leaves twice at once, on two planes if the windows of both
                          have room, or on two EVs of one; at most MRC_MAX_REDUNDANT bytes */
  uint8_t reserved[5]; /* 0 */
};

/* One EV probe. */
struct mrc_probe_attr {
  uint64_t cookie; /* copied to its MRC_EVENT_PROBE */
  uint64_t timeout_ns;
  uint32_t qpn;
  uint32_t ev_index;
  uint32_t bytes;      /* the probe is padded to this UDP payload; 0: no padding */
  uint8_t dscp;        /* of the probe, 0..63 [that of data]; the peer chooses the answer's */
  uint8_t reserved[3]; /* 0 */
};

/* ---- The engine: same inputs, same outputs, byte for byte. One thread at a time. ---- */

typedef struct mrc_engine mrc_engine;

/* 0 if a field is out of range or memory is short. Later only QPs in set-up allocate memory. */
mrc_engine *mrc_engine_create(const struct mrc_engine_config *config);
void mrc_engine_destroy(mrc_engine *engine);

/* Processes UDP payloads that arrived together, of packet_bytes but for a shorter last one. Returns
   0 or the drop reason (drops.def, positive) of the last. Sealed payloads are decrypted in place.
 */
int mrc_engine_receive(mrc_engine *engine, uint8_t *packets, size_t bytes, size_t packet_bytes,
                       const struct mrc_meta *meta, uint64_t now_ns);

/* Fills up to `capacity` bursts and returns their number. If it is above 0, the next call must be
   mrc_engine_commit. The bursts stay valid until then. */
int mrc_engine_transmit(mrc_engine *engine, struct mrc_burst *bursts, int capacity,
                        uint64_t now_ns);

/* Reports what became of the bursts. taken[i] is 1: the kernel took burst i; 0: the kernel had no
   room, so burst i was not sent and keeps its place; or a negative errno. */
void mrc_engine_commit(mrc_engine *engine, const struct mrc_burst *bursts, const int *taken, int n,
                       uint64_t now_ns);

/* Reports that a port's socket is full, or has room again. A blocked port gets no bursts. */
void mrc_engine_port_blocked(mrc_engine *engine, int port, bool blocked, uint64_t now_ns);
/* Reports that a port's link is up or down. A port that is down gets no bursts. */
void mrc_engine_port_up(mrc_engine *engine, int port, bool up, uint64_t now_ns);

/* The next time at which the engine has work; 0: it has something to send, UINT64_MAX: never. */
uint64_t mrc_engine_deadline(const mrc_engine *engine);
void mrc_engine_expire(mrc_engine *engine, uint64_t now_ns);

int mrc_cq_poll(mrc_engine *engine, struct mrc_wc *wcs, int capacity);
int mrc_engine_events(mrc_engine *engine, struct mrc_event *events, int capacity);

/* Registers `bytes` at `address`. `key` is lkey and rkey; the caller must draw it at random.
   `access` is a set of enum mrc_access. Only QPs of `domain` may use it, if that is not 0. -EINVAL,
   -EEXIST (key in use), -ENOSPC. */
int mrc_mr_register(mrc_engine *engine, uint64_t address, uint64_t bytes, uint32_t key,
                    uint32_t access, uint32_t domain);
/* -ENOENT, or -EBUSY while an unfinished work request reads from it; peers may use it no longer. */
int mrc_mr_deregister(mrc_engine *engine, uint32_t key);

/* -EINVAL, -EEXIST (qpn in use), -ENOSPC, -ENOMEM. The QP starts in RESET. */
int mrc_qp_create(mrc_engine *engine, const struct mrc_qp_create_attr *attr);
/* Moves the QP to `state`. A move to RTR reads `rtr`, a move to RTS reads `rts`; other moves read
   neither. -EINVAL for an illegal move or attribute, -ENOENT. */
int mrc_qp_modify(mrc_engine *engine, uint32_t qpn, uint32_t state,
                  const struct mrc_qp_rtr_attr *rtr, const struct mrc_qp_rts_attr *rts,
                  uint64_t now_ns);
/* Sets the EV array (in INIT), or adds to it (in RTR or RTS), UNPROVEN then. Every port must exist,
   and planes are limited by the number of ports. -EINVAL, -ENOENT, -ENOMEM; -ENOSPC: too many. */
int mrc_qp_set_evs(mrc_engine *engine, uint32_t qpn, const struct mrc_ev_attr *evs, int n);
/* Sets the sources of the peer (in INIT, after the EVs), or adds to them (in RTR or RTS, for all
   QPs of the peer). Packets from other sources are dropped. In INIT the last one may be the outer
   side of a NAT for the first one; only packets of sealed QPs pass it. Packets from the one count
   as from the other, and packets to the first one's address go to the NAT. The newest sealed packet
   from the NAT's address teaches its port. -EINVAL, -ENOENT; -EADDRINUSE: a source belongs to a
   peer that receives at another UDP port, has a QP here and has answered a probe from this source;
   -ENOSPC: no memory, or the table is full (256 sources for each of max_qps, at most 65536; QPs
   with the same sources share entries). */
int mrc_qp_set_peer(mrc_engine *engine, uint32_t qpn, const struct mrc_peer_source *sources, int n);
int mrc_qp_destroy(mrc_engine *engine, uint32_t qpn);
/* Posts all n or none. -ENOENT, -EINVAL, -EPERM (not RTS), -ENOBUFS (full), -EACCES (memory). */
int mrc_qp_post(mrc_engine *engine, uint32_t qpn, const struct mrc_wr *wrs, uint32_t n,
                uint64_t now_ns);
/* Queues EV probes of any QPs in RTR or RTS. Queues the first probes of the array for which there
   is room and returns their number; retry the others when some probes have ended. If any probe is
   invalid, queues none and returns -ENOENT (no such QP) or -EINVAL. Each queued probe gives one
   MRC_EVENT_PROBE when it is answered, fails or times out, unless its QP is destroyed first. The
   timeout starts when the kernel takes the probe. */
int mrc_engine_probe_evs(mrc_engine *engine, const struct mrc_probe_attr *probes, int n,
                         uint64_t now_ns);
/* For the controller: GOOD (also ends ASSUMED_BAD and UNPROVEN), ASSUMED_BAD, DENIED, UNPROVEN. */
int mrc_qp_set_ev_state(mrc_engine *engine, uint32_t qpn, uint32_t ev_index, uint32_t state,
                        uint64_t now_ns);
/* What the plane (1-based) of the QP may carry, in per cent of the plane that carries most: 1 to
   100 [100]; 0: a backup, which carries data only while no other plane can. -ENOENT, -EINVAL. */
int mrc_qp_set_weight(mrc_engine *engine, uint32_t qpn, uint32_t plane, uint32_t weight,
                      uint64_t now_ns);
/* The planes of the QP, as a mask, that yield to its other planes: they share the links of both
   ends with others, and carry only what those leave. -ENOENT. */
int mrc_qp_set_yielding(mrc_engine *engine, uint32_t qpn, uint32_t planes, uint64_t now_ns);
/* Narrows or widens the window granted to the peer: a multiple of 128, up to the attribute mpr.
   Packets sent under a wider grant are still accepted. -ENOENT, -EINVAL (also if dynamic MPR was
   not agreed, or the QP is not in RTR or RTS). */
int mrc_qp_set_mpr(mrc_engine *engine, uint32_t qpn, uint32_t mpr, uint64_t now_ns);
/* How long a QP in RTS tries, as the attributes of these names say. -ENOENT, -EINVAL. */
int mrc_qp_set_retries(mrc_engine *engine, uint32_t qpn, uint32_t timeout, uint32_t retry_linear,
                       uint32_t retry_exp, uint64_t now_ns);
int mrc_qp_query(const mrc_engine *engine, uint32_t qpn, struct mrc_qp_info *info);
/* Fills up to `capacity` entries and returns the number of EVs of the QP; or -ENOENT. */
int mrc_qp_query_evs(const mrc_engine *engine, uint32_t qpn, struct mrc_ev_info *infos,
                     int capacity);

/* Names from the .def lists, and what a counter counts; 0 after the last one. */
const char *mrc_counter_name(int index);
const char *mrc_counter_meaning(int index);
const char *mrc_drop_name(int reason);
const char *mrc_trace_name(int point);

/* ---- The context: one engine, the UDP sockets of each port, and a thread that drives them. A
   polled context has no thread: one thread of the caller at a time makes all calls. ---- */

typedef struct mrc_ctx mrc_ctx;

struct mrc_port_config {
  char ifname[16];     /* the sockets are bound to this interface; empty: to none (loopback) */
  uint8_t address[16]; /* local address; IPv4 in mapped form */
  uint8_t family;      /* 4 or 6 */
  uint8_t any;         /* 1: receive on every local address of the interface (SRv6) */
  uint8_t loose;       /* 1: packets for the address may come in at any interface */
  uint8_t tx_sockets;  /* number of transmit sockets, each with its own source port; 1..64 */
};

struct mrc_ctx_config {
  struct mrc_engine_config engine;
  struct mrc_port_config ports[32]; /* family 0: closed until MRC_COMMAND_PORT_OPEN */
  uint32_t n_ports;                 /* number of ports, open or closed */
  uint16_t udp_port;                /* UDP port to receive at; 0: 4791 if free, else another */
  uint16_t spin_us;                 /* busy-poll for this time before sleeping; 0: sleep at once */
  uint16_t coalesce_us;  /* while bursts arrive, the thread waits up to this time between reads of
                            its sockets; 0: it reads each burst at once. Unused if polled */
  uint32_t rcvbuf_bytes; /* requested per port [8 MiB]; a warning reports a smaller grant */
  uint32_t sndbuf_bytes; /* requested per transmit socket [4 MiB] */
  uint32_t ring_entries; /* of the command ring and of the event ring, a power of two [8192] */
  uint32_t polled;       /* 1: no thread; the caller runs the datapath with mrc_ctx_run */
  uint32_t unguarded;    /* 1: a registered file that shrinks ends the process by SIGBUS; then the
                            context leaves the process's handlers of signals alone */
  int32_t namespace_fd;  /* 0: sockets are those of this process's network namespace; else a Unix
                            socket to a process that opens them in its own: mrc/linux/namespace.py
                            has the messages. The context copies the descriptor */
};

/* A port that is opened while the context runs. The memory must live until the reply. */
struct mrc_port_opening {
  struct mrc_port_config config;
  /* The datapath fills in the rest. */
  uint16_t sports[64]; /* source port of each transmit socket */
  uint16_t udp_port;   /* UDP port of all receive sockets */
  char cause[240];     /* after an error: one line with its cause */
};

enum mrc_command_op {
  MRC_COMMAND_MR_REGISTER,   /* address, bytes, key, access, value = domain */
  MRC_COMMAND_MR_DEREGISTER, /* key */
  MRC_COMMAND_QP_CREATE,     /* pointer = struct mrc_qp_create_attr */
  MRC_COMMAND_QP_MODIFY,     /* qpn, value = state; pointer = struct mrc_qp_rtr_attr for RTR,
                                struct mrc_qp_rts_attr for RTS */
  MRC_COMMAND_QP_SET_EVS,    /* qpn, pointer = struct mrc_ev_attr[value]; -ENETDOWN: a port is
                                closed, or its address or source ports have changed */
  MRC_COMMAND_QP_SET_PEER,   /* qpn, pointer = struct mrc_peer_source[value] */
  MRC_COMMAND_QP_SET_SEAL,   /* qpn, pointer = struct mrc_seal_attr */
  MRC_COMMAND_QP_DESTROY,    /* qpn */
  MRC_COMMAND_QP_POST,       /* qpn, wr; a reply comes only if the post failed */
  MRC_COMMAND_QP_POST_MANY,  /* the same, for pointer = struct mrc_wr[value] */
  MRC_COMMAND_QP_PROBE_EV,   /* qpn, value = ev index, bytes, timeout_ns; reply, then PROBE event */
  MRC_COMMAND_QP_SET_EV_STATE, /* qpn, value = ev index, key = state */
  MRC_COMMAND_QP_QUERY,        /* qpn, pointer = struct mrc_qp_info */
  MRC_COMMAND_QP_QUERY_EVS,    /* qpn, pointer = struct mrc_ev_info[value]; result = count */
  MRC_COMMAND_COUNTERS,        /* pointer = uint64_t[value]; result = count */
  MRC_COMMAND_DROPS,           /* pointer = uint64_t[value]; result = count */
  MRC_COMMAND_TRACE,           /* pointer = struct mrc_trace_entry[value]; result = count */
  MRC_COMMAND_PORT_UP,         /* value = port, key = 1 up or 0 down; -ENOENT: the port is closed */
  MRC_COMMAND_QP_SET_MPR,      /* qpn, value = PSNs */
  MRC_COMMAND_RECORD_START,    /* pointer = struct mrc_recording; -EBUSY: another one is running */
  MRC_COMMAND_RECORD_STOP,     /* -ENOENT: no recording is running */
  MRC_COMMAND_PORT_OPEN,  /* value = port, pointer = struct mrc_port_opening; opens the sockets and
                             sets the port up. -EEXIST: it is open; -EBUSY: QPs use it, and its
                             address or a source port would change; or the errno of a socket */
  MRC_COMMAND_PORT_CLOSE, /* value = port; sets the port down and closes its sockets. QPs keep their
                             EVs on it until it opens again */
  MRC_COMMAND_MSG_OPEN,   /* qpn, pointer = struct mrc_msg_opening (msg/types.h); result = peer. The
                             completions of the QP belong to messages from now on */
  MRC_COMMAND_MSG_CONNECT, /* value = peer, pointer = struct mrc_msg_inbox; the QP is in RTS */
  MRC_COMMAND_MSG_IDLE,    /* value = peer; result = 1: all that was sent has arrived */
  MRC_COMMAND_MSG_FAIL,    /* value = peer, key = errno of its operations; its QP goes to ERROR */
  MRC_COMMAND_MSG_CLOSE,   /* value = peer, after its QP was destroyed */
  MRC_COMMAND_QP_SET_RETRIES, /* qpn, value = timeout, key = retry_linear, access = retry_exp */
  MRC_COMMAND_QP_SET_WEIGHT,  /* qpn, value = plane, key = weight */
  MRC_COMMAND_QP_SET_YIELDING /* qpn, value = planes, as a mask */
};

/* One command for the datapath thread. Memory behind `pointer` must live until the reply. */
struct mrc_command {
  uint64_t cookie; /* copied to the reply */
  void *pointer;
  uint64_t address;
  uint64_t bytes;
  uint64_t timeout_ns;
  uint32_t qpn;
  uint32_t key;
  uint32_t access;
  uint32_t value;
  uint32_t op; /* enum mrc_command_op */
  uint32_t reserved;
  struct mrc_wr wr;
};

/* Opens the sockets and, unless the context is polled, starts the datapath thread. On failure
   returns 0, writes -errno to `error` and one line with the cause to `message`. */
mrc_ctx *mrc_ctx_create(const struct mrc_ctx_config *config, int *error, char *message,
                        int message_bytes);
/* Stops the thread and closes the sockets; registered memory is not touched afterwards. In a child
   of fork it only closes the child's descriptors; submit, poll and run return -ECHILD there. */
void mrc_ctx_destroy(mrc_ctx *ctx);
/* The UDP port of the receive sockets, and the source port of one transmit socket (0: no such
   socket). Both hold only until the first command that opens or closes a port; from then on read
   the ports from struct mrc_port_opening. */
uint16_t mrc_ctx_udp_port(const mrc_ctx *ctx);
uint16_t mrc_ctx_source_port(const mrc_ctx *ctx, int port, int tx_index);
/* Readable when mrc_ctx_poll has events, or when mrc_ctx_submit has room again after it queued
   fewer than n commands. mrc_ctx_poll clears it. For a polled context see mrc_ctx_arm. */
int mrc_ctx_fd(const mrc_ctx *ctx);
/* Queues up to n commands and returns how many were queued. One thread only. Never blocks. */
int mrc_ctx_submit(mrc_ctx *ctx, const struct mrc_command *commands, int n);
/* Copies up to n events and returns their number. One thread only. Never blocks. */
int mrc_ctx_poll(mrc_ctx *ctx, struct mrc_event *events, int n);
/* The same for writes that succeeded, as long as they come first: copies their wr_ids. The shortest
   way of a completion; mrc_ctx_poll takes what follows. */
int mrc_ctx_poll_writes(mrc_ctx *ctx, uint64_t *wr_ids, int n);
/* For a polled context. Runs commands and sends, then receives; if there are no events, it sleeps
   until input, the next deadline or timeout_ns. Returns the number of events for mrc_ctx_poll. The
   next call answers the packets received, after the commands submitted in between. */
int mrc_ctx_run(mrc_ctx *ctx, uint64_t timeout_ns);
/* For a polled context, before the caller sleeps on mrc_ctx_fd. Makes the descriptor readable as
   soon as mrc_ctx_run has work. Returns false if there is work now, or if packets arrived or left
   within the last spin_us: then call mrc_ctx_run instead of sleeping. */
bool mrc_ctx_arm(mrc_ctx *ctx);

/* Fills in `send` and `receive` of a QP with this number, and of the peer's in `attr`: HKDF of the
   32 random bytes that each side has drawn. `first`: this side connected. -ENOTSUP: this host has
   no library that seals packets. */
int mrc_seal_agree(struct mrc_seal_attr *attr, uint32_t qpn, const uint8_t *random,
                   const uint8_t *peer_random, bool first);

/* cdef end */

/* All attributes of a QP, by the call that sets them. */
struct mrc_qp_attr {
  struct mrc_qp_create_attr create;
  struct mrc_qp_rtr_attr rtr;
  struct mrc_qp_rts_attr rts;
};

/* Seals all packets of the QP (in INIT, before the peer is set). -EINVAL, -ENOENT, -ENOMEM;
   -ENOTSUP: the engine has no aead. */
int mrc_qp_set_seal(mrc_engine *engine, uint32_t qpn, const struct mrc_seal_attr *attr);

/* Whether the peer of a QP has all of this access to this memory. */
bool mrc_qp_may_reach(mrc_engine *engine, uint32_t qpn, uint32_t key, uint64_t address,
                      uint64_t bytes, uint32_t access);

/* Whether and where a switch trimmed a packet, by its code point or as the emulated fabric says. */
enum mrc_trimmed {
  MRC_UNTRIMMED,
  MRC_TRIMMED,        /* inside the fabric: another path may have room */
  MRC_TRIMMED_LASTHOP /* at the port towards this host: no other path avoids this queue */
};

/* The shortest way of a work request, for C programs that drive a polled context themselves. Posts
   it at once, before commands that wait. `idle`: nothing of the QP may be outstanding, so its
   timers begin now; else the time of the last turn does. 0, or -errno as in the reply to a refused
   MRC_COMMAND_QP_POST. */
int mrc_ctx_post(mrc_ctx *ctx, uint32_t qpn, const struct mrc_wr *wr, bool idle);
