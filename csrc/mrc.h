/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public C interface of mrc: the sans-IO engine and the threaded context that drives it over
 * UDP sockets. The part between the two cdef markers is also what cffi parses: it is the single
 * source of every constant and struct that Python sees, so it holds plain declarations only.
 *
 * Conventions: functions return 0 or a negative errno value unless they say otherwise; time is
 * `now_ns`, nanoseconds of any monotonic clock, and is always the last argument; addresses are 16
 * bytes, IPv4 in the mapped form ::ffff:a.b.c.d; ports of the machine count from 1 and port n
 * lives in plane n.
 */
#ifndef MRC_H
#define MRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef begin */

#define MRC_MAX_PORTS 32         /* ports (planes) of one engine; port numbers are 1..32 */
#define MRC_MAX_EVS 1024         /* entropy values of one QP, active and backup together */
#define MRC_MAX_PEER_SOURCES 256 /* source (address, UDP port) pairs of one QP's peer */
#define MRC_MAX_BURST_PACKETS 64 /* UDP_MAX_SEGMENTS of Linux before 6.9 */
#define MRC_MAX_HEADER 64        /* bytes of the largest header stack built by the engine */
#define MRC_MIN_MTU 256          /* bytes of payload, smallest path MTU */
#define MRC_MAX_MTU 16384        /* bytes of payload, largest path MTU */
#define MRC_UDP_PORT 4791        /* default UDP destination port, as RoCEv2 */
#define MRC_MPR_UNIT 128         /* PSNs in one unit of the maximum PSN range */

/* Limits of a congestion control profile. */
#define MRC_CC_UNIT 1000000           /* 1 in its fractions */
#define MRC_CC_LINK_BPS 10000000000   /* default rate of a link */
#define MRC_CC_BASE_RTT_NS 100000     /* default base RTT */
#define MRC_CC_MIN_BASE_RTT_NS 1000   /* smallest */
#define MRC_CC_MAX_NS 1000000000      /* longest time */
#define MRC_CC_MAX_BPS 10000000000000 /* fastest link */
#define MRC_CC_MAX_BYTES 1073741824   /* largest number of bytes */
#define MRC_CC_MAX_QA_GATE 16
#define MRC_CC_MAX_FI_SCALE 1000000000 /* a thousand */

enum mrc_qp_state {
  MRC_QP_RESET,
  MRC_QP_INIT, /* numbers known, no packet is taken */
  MRC_QP_RTR,  /* ready to receive: peer known, probes may be sent */
  MRC_QP_RTS,  /* ready to send */
  MRC_QP_ERROR /* terminal: everything outstanding was flushed */
};

enum mrc_ev_state {
  MRC_EV_GOOD,
  MRC_EV_SKIP,        /* sits out one rotation */
  MRC_EV_ASSUMED_BAD, /* lost a packet or fell silent; probed until it is trusted again */
  MRC_EV_DENIED       /* denied by the controller */
};

enum mrc_wr_opcode { MRC_WR_WRITE, MRC_WR_WRITE_IMM };

enum mrc_access { MRC_ACCESS_LOCAL_READ = 1, MRC_ACCESS_REMOTE_WRITE = 2 };

enum mrc_wc_status {
  MRC_WC_SUCCESS,
  MRC_WC_LOC_PROT_ERR,    /* the local memory is not registered or does not cover the range */
  MRC_WC_WR_FLUSH_ERR,    /* the QP went to ERROR or was destroyed before this work request ended */
  MRC_WC_REM_ACCESS_ERR,  /* rkey or range refused by the responder */
  MRC_WC_REM_INV_REQ_ERR, /* the responder refused the request, e.g. too many immediates */
  MRC_WC_REM_OP_ERR,      /* the responder failed (NACK UNEXP_EVENT) */
  MRC_WC_RETRY_EXC_ERR    /* retries exhausted: no path to the peer answers */
};

enum mrc_integrity { MRC_INTEGRITY_ICRC, MRC_INTEGRITY_UDP };

enum mrc_wc_opcode { MRC_WC_WRITE, MRC_WC_WRITE_IMM, MRC_WC_RECV_IMM };

/* One completion. */
struct mrc_wc {
  uint64_t wr_id;    /* as posted; for RECV_IMM the index of the immediate on its QP, from 0 */
  uint32_t qpn;      /* local QP number */
  uint32_t imm;      /* RECV_IMM: the immediate, host order */
  uint32_t bytes;    /* length of the message; for RECV_IMM what arrived of it */
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
  MRC_EVENT_PROBE,    /* a commanded EV probe ended; `result` 0, -ETIMEDOUT, or what the kernel said
                         of it (-EMSGSIZE, -ENETUNREACH), which blames no EV and no plane;
                         `status` 1: it was answered, and met congestion on its way (CE) */
  MRC_EVENT_WARNING,  /* context only: `status` is an enum mrc_warning */
  MRC_EVENT_PORT,     /* a port that a QP uses went down (`status` 0) or came up (`status` 1): ours
                         or the peer's, as `reason` says */
  MRC_EVENT_PLANE_SHARE, /* a plane to a peer became slow (`status` 0): it carried less than half of
                            the mean of the others, or it carries over three quarters again
                            (`status` 1). `result` is what it carried, in per cent of that mean. All
                            QPs to the peer are summed up, and each is told. Two periods in a row,
                            of 200 ms or 8 round trips each, must say so. A plane that all
                            have suspended starts afresh: it is not slow when it resumes, without an
                            event. QPs with equal shares neither count nor are told */
  MRC_EVENT_LOST         /* `cookie` events, of any QP, found no room: they would stand here */
};

/* Why an EV, a plane or a port changed. */
enum mrc_event_reason {
  MRC_REASON_NONE,
  MRC_REASON_CONTROLLER, /* told by mrc_qp_set_ev_state */
  MRC_REASON_LOSS,       /* it lost a packet */
  MRC_REASON_PEER,       /* the peer calls it bad: SACK with ALWAYS_SKIP */
  MRC_REASON_SPURIOUS,   /* what it lost had arrived after all */
  MRC_REASON_PLANE,      /* not the EV, but its whole plane is silent */
  MRC_REASON_FLOOR,      /* back unproved: the rotation may not get any smaller */
  MRC_REASON_PROBES,     /* probes were answered in a row */
  MRC_REASON_SILENCE,    /* other planes delivered what was sent later */
  MRC_REASON_TIMEOUT,    /* no plane is heard: every one is tried */
  MRC_REASON_SEND,       /* the system could not send there */
  MRC_REASON_OWN_PORT,   /* the port of this host */
  MRC_REASON_PEER_PORT,  /* the port of the peer, as it reported, or as probes found it */
  MRC_REASON_DELIVERY    /* what the peer acknowledged on the plane, beside the other planes */
};

enum mrc_warning {
  MRC_WARNING_RCVBUF_SMALL, /* `result` is the size granted, in bytes */
  MRC_WARNING_SNDBUF_SMALL,
  MRC_WARNING_MEMORY_FAULT,  /* a registered file shrank under a read; its MR now reads as zeros */
  MRC_WARNING_GUARD_REPLACED /* the program installed a SIGBUS handler after ours, so that a
                                registered file that shrinks may end the process */
};

/* One asynchronous event. Fields that an event does not name are 0. */
struct mrc_event {
  uint64_t cookie;   /* of the command that asked, for REPLY and PROBE; for LOST a count */
  uint64_t at_ns;    /* context only: when it was published, of CLOCK_MONOTONIC; for all that the
                        engine told, but not for WC */
  int64_t rtt_ns;    /* PROBE: round trip */
  struct mrc_wc wc;  /* WC */
  uint32_t qpn;      /* local QP number */
  uint32_t ev_index; /* index in the QP's EV array, for EV_STATE and PROBE */
  int32_t result;    /* 0 or -errno; PLANE_SHARE: per cent */
  uint8_t type;      /* enum mrc_event_type */
  uint8_t port;      /* plane, for EV_STATE, PLANE, PLANE_SHARE, PORT, PROBE, WARNING */
  uint8_t status;    /* see the type */
  uint8_t reason;    /* enum mrc_event_reason, for EV_STATE, PLANE, PLANE_SHARE, PORT */
};

/* Where a packet came from, as the driver saw it. */
struct mrc_meta {
  uint64_t
      arrived_ns;  /* when it reached this host, on the clock of now_ns; 0: as it is handed over */
  uint8_t src[16]; /* inner source address */
  uint8_t dst[16]; /* inner destination address */
  uint32_t flow_label; /* IPv6 flow label, 20 bits; 0 on IPv4 */
  uint16_t sport;      /* UDP source port */
  uint16_t dport;      /* UDP destination port */
  uint8_t family;      /* 4 or 6 */
  uint8_t port;        /* port of this machine that received it, 1-based */
  uint8_t ecn;         /* the two ECN bits: 3 is CE */
  uint8_t trimmed;     /* enum mrc_trimmed */
};

/* One packet of a burst: header bytes, a piece of a memory region, trailer bytes (pad and ICRC). */
struct mrc_packet {
  uint8_t header[64];
  const uint8_t *payload; /* into the MR, or 0 */
  uint32_t payload_bytes;
  uint16_t header_bytes;
  uint16_t trailer_bytes;
  uint8_t trailer[8];
  uint32_t _slot; /* engine private: what was sent, for the commit */
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
  uint32_t _qp;   /* engine private */
  uint32_t _ev;   /* engine private */
  uint32_t _icrc; /* engine private: over what all packets of packet_bytes begin with */
};

/* An engine's fixed sizes and policies. 0 in a field takes the default in brackets. */
struct mrc_engine_config {
  uint64_t seed;            /* of the engine's generators; a secret, where peers are strangers */
  uint32_t max_qps;         /* [1024] */
  uint32_t max_mrs;         /* [1024] */
  uint32_t ports;           /* number of ports, 1..32 [1] */
  uint32_t cq_depth;        /* completions held before polling [65536] */
  uint32_t trace_entries;   /* length of the trace ring, a power of two [4096] */
  uint32_t max_burst_bytes; /* UDP payload bytes of one burst [63488] */
  uint32_t sack_threshold_bytes; /* received bytes that trigger a SACK [262144] */
  uint32_t sack_delay_ns;        /* longest wait of a SACK below the threshold [500000] */
  uint32_t noise_ns; /* how late this host and its peers may run without a cause on the network,
                        1 us to 1 s; the floors of all patience follow from it [500000] */
};

/* An entropy value: the name of a path, and how the driver reaches it. */
struct mrc_ev_attr {
  uint8_t src[16];     /* inner source address, as the peer will see it */
  uint8_t dst[16];     /* inner destination address; it selects the route */
  uint32_t ev;         /* sport << 16 | low 16 bits of the flow label */
  uint16_t dport;      /* UDP port of the peer */
  uint8_t port;        /* local port (plane), 1-based */
  uint8_t tx_index;    /* transmit socket of that port that owns the source port */
  uint8_t family;      /* 4 or 6 */
  uint8_t reserved[3]; /* 0 */
};

/* A (source address, source port) from which the peer's packets come. */
struct mrc_peer_source {
  uint8_t address[16];
  uint16_t sport;
  uint16_t reserved; /* 0 */
};

/* Parameters of MRC_CC_NSCC, by OCP's names. 0 in a field takes the default in brackets; those are
   UET's formulas, with a = BDP / 150000 bytes and BDP that of all planes of the QP together.
   Fractions are in units of 1 / MRC_CC_UNIT. */
struct mrc_cc_profile {
  uint64_t link_bps;        /* rate of one plane's link, bits per second [10^10] */
  uint64_t base_rtt_ns;     /* round trip of the empty network, by its longest plane [100000] */
  uint64_t target_delay_ns; /* queueing delay to hold [3/4 base_rtt_ns] */
  uint64_t max_cwnd;        /* largest window, bytes [1.5 BDP] */
  uint64_t fi;              /* fair increase, bytes a window [5 a path_mtu] */
  uint64_t eta;             /* increase in any case, bytes a period [0.15 a path_mtu] */
  uint64_t adjust_period_threshold_ns; /* increases are applied once in this time [base_rtt_ns] */
  uint64_t adjust_bytes_threshold;     /* or once in so many bytes [8 path_mtu] */
  uint64_t qa_threshold_ns;            /* delay that calls for quick adapt [4 target_delay_ns] */
  uint64_t md_threshold_ns; /* delay that decreases without a mark [1.1 target_delay_ns] */
  uint32_t qa_gate;         /* quick adapt needs less than max_cwnd >> qa_gate to arrive [3] */
  uint32_t fi_scale;        /* fast increase, fraction of the bytes acknowledged [0.25 a] */
  uint32_t gamma;           /* strength of the multiplicative decrease [0.8] */
  uint32_t max_md_jump;     /* least fraction of the window that one decrease leaves [0.5] */
  uint32_t disable_qa;      /* 1: no quick adapt */
  uint32_t reserved;        /* 0 */
};

/* Attributes of a QP. mrc_qp_create reads the first group, each transition reads its own. */
struct mrc_qp_attr {
  /* create */
  uint32_t qpn;      /* 24 bits, unpredictable, not 0..2 */
  uint32_t sq_depth; /* work requests posted and not yet polled, 1..65536 */
  uint32_t mpr;      /* window in PSNs granted to the peer: a multiple of 128, 128..4096 */
  uint32_t max_wimm; /* immediates outstanding, both directions, 1..1024 */
  /* to INIT: nothing more */
  /* to RTR */
  uint32_t dest_qpn;    /* 24 bits */
  uint32_t rq_psn;      /* first PSN of the peer, 24 bits */
  uint32_t integrity;   /* enum mrc_integrity, agreed */
  uint32_t dynamic_mpr; /* 1: agreed that either side may narrow its window, see mrc_qp_set_mpr */
  /* to RTS */
  uint32_t sq_psn;        /* our first PSN, 24 bits */
  uint32_t path_mtu;      /* payload bytes of a full packet, a multiple of 4, agreed and proved */
  uint32_t peer_mpr;      /* our window in PSNs: the peer's mpr (the widest, when it is dynamic) or
                             less. More than our own mpr is not used. */
  uint32_t peer_max_wimm; /* immediates that the peer accepts in flight */
  uint32_t spray; /* packets of a burst at most; 0 leaves it to the grain policy, 1 is MRC's own */
  uint32_t ev_active_per_plane;     /* EVs in rotation per plane, the rest are backups; 0: all */
  uint8_t timeout;                  /* local timeout is 1.024 us << timeout, 1..24 */
  uint8_t retry_linear;             /* tries at that interval, 0..7 */
  uint8_t retry_exp;                /* tries at doubling intervals, 0..24; 25 never gives up */
  uint8_t cc;                       /* enum mrc_cc_kind */
  uint32_t plane_shares;            /* enum mrc_plane_shares */
  struct mrc_cc_profile cc_profile; /* of MRC_CC_NSCC; others do not look at it */
};

enum mrc_plane_shares {
  MRC_SHARES_MEASURED, /* each plane carries what it delivers, by a window of its own */
  MRC_SHARES_EQUAL     /* all carry the same: MRC's own rule, for planes that are equal */
};

enum mrc_cc_kind {
  MRC_CC_DELAY, /* a choice of ours: holds the standing queue of each plane near 3 ms */
  MRC_CC_NULL,  /* none: the PSN window is the only limit */
  MRC_CC_NSCC   /* MRC's own, for fabrics that mark ECN and, best, trim */
};

/* One work request. `va` is the address at the peer, `local` an address inside a local MR. */
struct mrc_wr {
  uint64_t wr_id;
  uint64_t local; /* address, may be 0 when bytes is 0 */
  uint64_t va;
  uint32_t lkey; /* key of the local MR; ignored when bytes is 0 */
  uint32_t rkey;
  uint32_t bytes;      /* 0 .. 4 GiB - 1; 0 only with an immediate */
  uint32_t imm;        /* host order, for WRITE_IMM */
  uint8_t opcode;      /* enum mrc_wr_opcode */
  uint8_t reserved[7]; /* 0 */
};

/* One EV probe. */
struct mrc_probe_attr {
  uint64_t cookie; /* comes back in its MRC_EVENT_PROBE */
  uint64_t timeout_ns;
  uint32_t qpn;
  uint32_t ev_index;
  uint32_t bytes;      /* UDP payload to be padded to; 0: not padded */
  uint8_t dscp;        /* of the probe, 0..63; the answer has its own */
  uint8_t reserved[3]; /* 0 */
};

/* State of one EV. */
struct mrc_ev_info {
  uint32_t ev;
  uint8_t port;
  uint8_t state;  /* enum mrc_ev_state */
  uint8_t active; /* 1: in the rotation, 0: backup */
  uint8_t reserved;
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
  uint8_t suspended;      /* 1: silent, probed */
  uint8_t slow;           /* 1: carries much less than the others, see MRC_EVENT_PLANE_SHARE */
  uint8_t reserved[2];    /* 0 */
  uint32_t share_percent; /* what it carried, of the mean of the others, in the last period that
                             compared them, over all QPs to the peer; 100 before, and with equal
                             shares */
};

/* State of one QP. */
struct mrc_qp_info {
  uint32_t qpn;
  uint32_t state;        /* enum mrc_qp_state */
  uint32_t status;       /* enum mrc_wc_status that ended it */
  uint32_t outstanding;  /* work requests posted and not completed */
  uint64_t sent_packets; /* data packets, retransmissions included */
  uint64_t retransmitted_packets;
  uint64_t spurious_packets;   /* taken for lost, and had arrived after all */
  uint64_t first_sent_bytes;   /* payload of first transmissions */
  uint64_t acknowledged_bytes; /* payload acknowledged, each byte once */
  uint64_t received_bytes;     /* payload placed, each byte once */
  uint64_t cwnd_bytes;         /* sum over the planes */
  uint64_t inflight_bytes;
  int64_t rtt_ns; /* smoothed over all planes; -1 before the first sample */
  uint32_t path_mtu;
  uint32_t timeouts; /* expiries of the local timeout and refusals in a row */
  uint32_t peer_mpr; /* PSNs that the peer grants now */
  uint32_t reserved;
  struct mrc_plane_info planes[32]; /* planes[n - 1] is plane n; 0 where there is no port */
};

/* Payload that came for QPs over time: what MRC_COMMAND_RECORD_START begins to fill in. It is
   the caller's memory, and the datapath's until the reply to RECORD_STOP or the end of the context.
   Times are of CLOCK_MONOTONIC. */
struct mrc_recording {
  const uint32_t *qpns; /* n_qps of them; none: every QP, also those to come */
  uint64_t *bytes;      /* n_bins rows of a number for each port; starts as zeros */
  uint32_t n_qps;
  uint32_t n_ports;  /* the highest port recorded; at most as many as the context has */
  uint32_t n_bins;   /* even */
  uint32_t reserved; /* 0 */
  uint64_t width_ns; /* of a bin: when time runs past the last, pairs become one, twice as wide */
  /* Filled in, and 0 before. */
  uint64_t start_ns;          /* of the first bin */
  uint64_t end_ns;            /* by RECORD_STOP */
  uint64_t first_ns;          /* first delivery; 0 before */
  uint64_t last_ns;           /* last one */
  uint64_t longest_gap_ns;    /* longest time between one delivery and the next */
  uint64_t longest_gap_at_ns; /* its beginning */
};

struct mrc_trace_entry {
  uint64_t now_ns;
  uint32_t point; /* index into trace.def */
  uint32_t qpn;
  uint64_t a;
  uint64_t b;
};

/* ---- The engine: same inputs, same outputs, byte for byte. One thread at a time. ---- */

typedef struct mrc_engine mrc_engine;

/* Memory is allocated here and in mrc_qp_create, nowhere else. Returns 0 when out of memory. */
mrc_engine *mrc_engine_create(const struct mrc_engine_config *config);
void mrc_engine_destroy(mrc_engine *engine);

/* Takes one UDP payload. Returns 0 or a drop reason (drops.def, positive). */
int mrc_engine_receive(mrc_engine *engine, const uint8_t *packet, size_t bytes,
                       const struct mrc_meta *meta, uint64_t now_ns);

/* Fills up to `capacity` bursts and returns how many; 0 means dry. They stay valid until
   mrc_engine_commit, which must follow before any other call. */
int mrc_engine_transmit(mrc_engine *engine, struct mrc_burst *bursts, int capacity,
                        uint64_t now_ns);

/* Tells the fate of every burst of the last transmit: taken[i] is 1 when the kernel took burst i,
   0 when it refused it (it was never sent and keeps its place), or a negative errno. */
void mrc_engine_commit(mrc_engine *engine, const struct mrc_burst *bursts, const int *taken, int n,
                       uint64_t now_ns);

/* A blocked port (its socket is full) is not chosen until it is writable again. */
void mrc_engine_port_blocked(mrc_engine *engine, int port, bool blocked, uint64_t now_ns);
/* A port whose link is down carries nothing until it is up again. */
void mrc_engine_port_up(mrc_engine *engine, int port, bool up, uint64_t now_ns);

/* The next time at which mrc_engine_expire has work; UINT64_MAX when none. */
uint64_t mrc_engine_deadline(const mrc_engine *engine);
void mrc_engine_expire(mrc_engine *engine, uint64_t now_ns);

int mrc_cq_poll(mrc_engine *engine, struct mrc_wc *wcs, int capacity);
int mrc_engine_events(mrc_engine *engine, struct mrc_event *events, int capacity);
int mrc_engine_trace(const mrc_engine *engine, struct mrc_trace_entry *entries, int capacity);

/* Registers `bytes` at `address` under the caller's unpredictable `key`, which is lkey and rkey.
   `access` is a set of enum mrc_access. -EINVAL, -EEXIST (key in use), -ENOSPC. */
int mrc_mr_register(mrc_engine *engine, uint64_t address, uint64_t bytes, uint32_t key,
                    uint32_t access);
/* -ENOENT, or -EBUSY while an unfinished work request reads from it. */
int mrc_mr_deregister(mrc_engine *engine, uint32_t key);

/* -EINVAL, -EEXIST (qpn in use), -ENOSPC, -ENOMEM. The QP starts in RESET. */
int mrc_qp_create(mrc_engine *engine, const struct mrc_qp_attr *attr);
/* Moves the QP to `state`; -EINVAL for an illegal move or attribute, -ENOENT. */
int mrc_qp_modify(mrc_engine *engine, uint32_t qpn, uint32_t state, const struct mrc_qp_attr *attr,
                  uint64_t now_ns);
/* Sets the EV array (in INIT); every port named must exist. -EINVAL, -ENOENT. */
int mrc_qp_set_evs(mrc_engine *engine, uint32_t qpn, const struct mrc_ev_attr *evs, int n);
/* Sets where the peer's packets come from (in INIT, after the EVs); all others are dropped.
   -EINVAL, -ENOENT, -EADDRINUSE (a peer that receives at another UDP port has answered probes from
   one of these sources, and has a QP here), -ENOSPC (an engine knows so many sources at once: 256
   for each QP, and 65536 at most; QPs with the same sources share them). */
int mrc_qp_set_peer(mrc_engine *engine, uint32_t qpn, const struct mrc_peer_source *sources, int n);
int mrc_qp_destroy(mrc_engine *engine, uint32_t qpn);
/* -ENOENT, -EINVAL, -EPERM (not RTS), -ENOBUFS (queue full), -EACCES (local memory). */
int mrc_qp_post(mrc_engine *engine, uint32_t qpn, const struct mrc_wr *wr, uint64_t now_ns);
/* Probes EVs, of QPs in RTR or RTS and in any order. Takes the first so many as there is room for
   and returns how many; the rest may be tried again when some have ended. -ENOENT (no such QP) or
   -EINVAL when one of them is wrong: then none was taken. Each one taken ends in one
   MRC_EVENT_PROBE, as it is answered or its time is over, in this order and not in that of the
   array; but none comes when its QP is destroyed first. The time begins when the kernel has taken
   the probe. */
int mrc_engine_probe_evs(mrc_engine *engine, const struct mrc_probe_attr *probes, int n,
                         uint64_t now_ns);
/* The controller's word: MRC_EV_DENIED, or MRC_EV_GOOD to lift it, or MRC_EV_ASSUMED_BAD. */
int mrc_qp_set_ev_state(mrc_engine *engine, uint32_t qpn, uint32_t ev_index, uint32_t state,
                        uint64_t now_ns);
/* Narrows or widens the window that the peer is granted: a multiple of 128 up to the attribute mpr.
   What it sent before is taken in any case. -ENOENT, -EINVAL (also: no dynamic MPR was agreed). */
int mrc_qp_set_mpr(mrc_engine *engine, uint32_t qpn, uint32_t mpr, uint64_t now_ns);
int mrc_qp_query(const mrc_engine *engine, uint32_t qpn, struct mrc_qp_info *info);
/* Returns the number of EVs of the QP, and fills up to `capacity`; -ENOENT. */
int mrc_qp_query_evs(const mrc_engine *engine, uint32_t qpn, struct mrc_ev_info *infos,
                     int capacity);

/* Returns the number of counters and fills up to `capacity`. */
int mrc_engine_counters(const mrc_engine *engine, uint64_t *values, int capacity);
/* Names from the .def lists; 0 past the end. */
const char *mrc_counter_name(int index);
const char *mrc_drop_name(int reason);
const char *mrc_trace_name(int point);
/* Drops per reason, indexed by reason. */
int mrc_engine_drops(const mrc_engine *engine, uint64_t *values, int capacity);

/* ---- The context: one engine, one UDP socket set per port, and a thread that drives them. A
   polled context has no thread: one thread of the caller at a time makes all calls. ---- */

typedef struct mrc_ctx mrc_ctx;

struct mrc_port_config {
  char ifname[16];     /* the interface that the sockets are tied to; empty: none (loopback) */
  uint8_t address[16]; /* local address; IPv4 in mapped form */
  uint8_t family;      /* 4 or 6 */
  uint8_t any;         /* 1: receive on every local address of the interface (SRv6) */
  uint16_t tx_sockets; /* transmit sockets, each with a source port of its own; 1..64 */
};

struct mrc_ctx_config {
  struct mrc_engine_config engine;
  struct mrc_port_config ports[32]; /* family 0: closed until MRC_COMMAND_PORT_OPEN */
  uint32_t n_ports;                 /* ports that there may be */
  uint16_t udp_port;                /* wanted; 0: 4791 when free, another otherwise */
  uint16_t spin_us;                 /* busy poll so long before sleeping; 0: sleep at once */
  uint16_t coalesce_us;  /* while bursts come in, take them in one go so often; 0: each */
  uint32_t rcvbuf_bytes; /* wanted per port [8 MiB]; a warning event tells when less was granted */
  uint32_t sndbuf_bytes; /* wanted per transmit socket [4 MiB] */
  uint32_t ring_entries; /* of command and completion ring, a power of two [8192] */
  uint32_t polled;       /* 1: no thread, the caller runs the datapath by mrc_ctx_run */
};

/* A port that opens while the context runs. The caller's memory until the reply. */
struct mrc_port_opening {
  struct mrc_port_config config;
  uint16_t sports[64]; /* filled in: source port of each transmit socket, */
  uint16_t udp_port;   /* of all receive sockets, */
  char cause[240];     /* and one line when it is refused */
};

enum mrc_command_op {
  MRC_COMMAND_MR_REGISTER,   /* address, bytes, key, access */
  MRC_COMMAND_MR_DEREGISTER, /* key */
  MRC_COMMAND_QP_CREATE,     /* pointer = struct mrc_qp_attr */
  MRC_COMMAND_QP_MODIFY,     /* qpn, value = state, pointer = struct mrc_qp_attr */
  MRC_COMMAND_QP_SET_EVS,    /* qpn, pointer = struct mrc_ev_attr[value]; -ENETDOWN: a port was
                                closed, or has other addresses or source ports by now */
  MRC_COMMAND_QP_SET_PEER,   /* qpn, pointer = struct mrc_peer_source[value] */
  MRC_COMMAND_QP_DESTROY,    /* qpn */
  MRC_COMMAND_QP_POST,       /* qpn, wr; answered only when refused */
  MRC_COMMAND_QP_PROBE_EV,   /* qpn, value = ev index, bytes, timeout_ns; reply, then PROBE event */
  MRC_COMMAND_QP_SET_EV_STATE, /* qpn, value = ev index, key = state */
  MRC_COMMAND_QP_QUERY,        /* qpn, pointer = struct mrc_qp_info */
  MRC_COMMAND_QP_QUERY_EVS,    /* qpn, pointer = struct mrc_ev_info[value]; result = count */
  MRC_COMMAND_COUNTERS,        /* pointer = uint64_t[value]; result = count */
  MRC_COMMAND_DROPS,           /* pointer = uint64_t[value]; result = count */
  MRC_COMMAND_TRACE,           /* pointer = struct mrc_trace_entry[value]; result = count */
  MRC_COMMAND_PORT_UP,         /* value = port, key = 1 up or 0 down; -ENOENT: it is closed */
  MRC_COMMAND_QP_SET_MPR,      /* qpn, value = PSNs */
  MRC_COMMAND_RECORD_START,    /* pointer = struct mrc_recording; one at a time, else -EBUSY */
  MRC_COMMAND_RECORD_STOP,     /* -ENOENT when there is none */
  MRC_COMMAND_PORT_OPEN, /* value = port, pointer = struct mrc_port_opening; the port is up then.
                            -EEXIST: it is open; -EBUSY: QPs still use it, and its address or a
                            source port would be another; or the errno of a socket */
  MRC_COMMAND_PORT_CLOSE /* value = port: it is down, without sockets; QPs keep their EVs there for
                            when it opens again */
};

/* One command for the datapath thread. Memory behind `pointer` must live until the reply. */
struct mrc_command {
  uint64_t cookie; /* comes back in the reply */
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

/* Opens the sockets and, unless it is polled, starts the datapath thread. On failure returns 0 and
 * writes -errno to error and one line of cause to message. */
mrc_ctx *mrc_ctx_create(const struct mrc_ctx_config *config, int *error, char *message,
                        int message_bytes);
/* Stops and joins the thread, closes the sockets. Registered memory is not touched afterwards. In a
   child of fork it only closes the child's descriptors; submit, poll and run return -ECHILD. */
void mrc_ctx_destroy(mrc_ctx *ctx);
uint16_t mrc_ctx_udp_port(const mrc_ctx *ctx);
/* UDP source port of one transmit socket; 0 when there is none. Before the first command that opens
   or closes a port: afterwards struct mrc_port_opening tells. So for mrc_ctx_udp_port. */
uint16_t mrc_ctx_source_port(const mrc_ctx *ctx, int port, int tx_index);
/* Readable when mrc_ctx_poll has something, or a submit that was cut short may go on; the poll
   clears it. Of a polled context: see mrc_ctx_arm. */
int mrc_ctx_fd(const mrc_ctx *ctx);
/* Queues up to n commands, returns how many were taken. One thread only. Never blocks. */
int mrc_ctx_submit(mrc_ctx *ctx, const struct mrc_command *commands, int n);
/* Takes up to n events. One thread only. Never blocks. */
int mrc_ctx_poll(mrc_ctx *ctx, struct mrc_event *events, int n);
/* A polled context: sends what is due, then takes what has arrived; without either it sleeps until
   input or the next deadline, for timeout_ns at most. Returns the number of events for
   mrc_ctx_poll. What arrived is answered by the next call, behind what is submitted until then. */
int mrc_ctx_run(mrc_ctx *ctx, uint64_t timeout_ns);
/* A polled context, before its caller sleeps on mrc_ctx_fd: makes it readable as soon as a call of
   mrc_ctx_run has something to do. False when that is now, or when something came or left within
   the last spin_us: call it instead of sleeping. */
bool mrc_ctx_arm(mrc_ctx *ctx);

/* cdef end */

/* Whether a switch cut the payload of a packet off, as its code point (or the fabric) says. */
enum mrc_trimmed {
  MRC_UNTRIMMED,
  MRC_TRIMMED,        /* inside the fabric: another path has room */
  MRC_TRIMMED_LASTHOP /* at the port towards this host: no other path would help */
};

#endif
