/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller can read of an engine: the state of EVs, planes and QPs, recordings, and the trace.
   A part of csrc/mrc.h. */
#pragma once

#include <stdint.h>

/* cdef begin */

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
  uint8_t suspended;      /* 1: carries probes only, as long as another plane carries data */
  uint8_t slow;           /* 1: carries much less than the others, see MRC_EVENT_PLANE_SHARE */
  uint8_t reserved[2];    /* 0 */
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
  uint32_t timeouts; /* local timeouts and refusals (NACK) since the last progress */
  uint32_t peer_mpr; /* PSNs that the peer grants now */
  uint32_t reserved;
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

/* cdef end */
