/* SPDX-License-Identifier: Apache-2.0 */
/* Types and numbers of MRC's C interface that have no pointers: they travel to the agent as they
   are. See api.h. */
#pragma once

#include <stdint.h>

/* cdef begin */

/* A protocol, as a bit. */
#define MRC_API_PROTOCOL_1 1

/* Optional features of a device. */
#define MRC_API_CAP_TRIM_NACK 1
#define MRC_API_CAP_DYNAMIC_MPR 2
#define MRC_API_CAP_SERVICE_TIME 4

/* ---- Data: devices, contexts, QPs ---- */

struct mrc_api_device_attr {
  uint32_t protocols; /* bits */
  uint16_t max_wimm;  /* WRITE_IMMs in flight that a requester may have */
  uint16_t max_wimm_dest;
  uint8_t max_mpr; /* x 128 PSNs */
  uint8_t mpr_resolution;
  uint32_t max_qp_hint;
  uint32_t cap; /* MRC_API_CAP_* */
};

struct mrc_api_context_attr {
  uint32_t version; /* 0: unknown */
  uint32_t vendor_version;
};

struct mrc_api_qp_hint_attr {
  int32_t qps_per_peer;
  int32_t send_peers;
  int32_t remote_recv_peers;
  uint8_t vendor[128];
};

/* What a mask of a QP hint's attributes names. */
#define MRC_API_HINT_QPS_PER_PEER 1
#define MRC_API_HINT_SEND_PEERS 2
#define MRC_API_HINT_REMOTE_RECV_PEERS 4
#define MRC_API_HINT_VENDOR 0x80000000

/* What a mask of a QP's attributes names. */
#define MRC_API_QP_MAX_WIMM 1
#define MRC_API_QP_MAX_WIMM_DEST 2
#define MRC_API_QP_MPR 4
#define MRC_API_QP_MPR_DEST 8
#define MRC_API_QP_TIMEOUT 16
#define MRC_API_QP_EV_PROFILE 32
#define MRC_API_QP_CC_PROFILE 64
#define MRC_API_QP_HINT 128
#define MRC_API_QP_RETRY 256
#define MRC_API_QP_CAP 512
#define MRC_API_QP_VENDOR 0x80000000

/* ---- Control: profiles, EVs, ports ---- */

enum mrc_api_profile_state { MRC_API_INIT, MRC_API_OFFLINE, MRC_API_ONLINE };

/* How a format makes an EV; bits. */
#define MRC_API_FORMAT_STEV 1
#define MRC_API_FORMAT_SRV6 2
#define MRC_API_FORMAT_UDP 4

/* How a profile gets its EVs; bits. */
#define MRC_API_EVS_AUTO 1
#define MRC_API_EVS_EXPLICIT 2
#define MRC_API_EVS_GENERATED 4

/* State of an EV. */
#define MRC_API_EV_GOOD 1
#define MRC_API_EV_ASSUMED_BAD 2
#define MRC_API_EV_DENIED 4
#define MRC_API_EV_UNKNOWN 0x80000000

#define MRC_API_EV_BYTES 32

struct mrc_api_ev {
  uint8_t value[32]; /* MRC_API_EV_BYTES */
  uint8_t port;      /* the plane */
};

enum mrc_api_fields_op { MRC_API_FIELDS_MODIFY, MRC_API_FIELDS_QUERY };

/* What a mask of a profile's attributes names, for formats, EVs and congestion control. */
#define MRC_API_PROFILE_STATE 1
#define MRC_API_PROFILE_CURRENT_STATE 2
#define MRC_API_PROFILE_VENDOR 0x80000000
#define MRC_API_FORMAT_MODE 4
#define MRC_API_FORMAT_OP 8
#define MRC_API_EVS_MODE 4
#define MRC_API_EVS_FORMAT 8
#define MRC_API_EVS_COUNT 16
#define MRC_API_EVS_MIN_ACTIVE 32
#define MRC_API_EVS_EVENTS 64
#define MRC_API_EVS_OP 128
#define MRC_API_EVS_FIELDS_OP 256
#define MRC_API_CC_ALGORITHM 4
#define MRC_API_CC_CONFIG 8

enum mrc_api_evs_op {
  MRC_API_EVS_REPLACE,
  MRC_API_EVS_MODIFY_STATE,
  MRC_API_EVS_QUERY_STATE,
  MRC_API_EVS_QUERY
};

struct mrc_api_ev_entry {
  struct mrc_api_ev ev;
  struct mrc_api_ev new_ev;
  uint32_t state; /* MRC_API_EV_* */
  uint32_t flags;
};

/* A field of generated EVs. */
struct mrc_api_ev_field {
  uint32_t bits;
  uint32_t initial;
  uint32_t least; /* value of the bits that are generated */
  uint32_t most;
  uint32_t mask; /* the bits that are generated, over those of the initial value */
};

struct mrc_api_nscc {
  uint8_t disable_quick_adapt;
  uint32_t adjust_bytes;
  uint32_t adjust_period_ns;
  uint32_t base_rtt_ns;
  float eta;
  float fi;
  float fi_scale;
  float gamma;
  float max_md_jump;
  uint32_t max_cwnd;
  uint8_t quick_adapt_gate;
  uint32_t quick_adapt_threshold;
  uint32_t target_delay_ns;
};

/* ---- Probes of a host ---- */

enum mrc_api_host_op { MRC_API_PROBE, MRC_API_PORT_STATUS };

struct mrc_api_answer {
  uint16_t id; /* of its request */
  uint8_t port;
  uint32_t rtt_ns;
  uint8_t service_time;
};

/* cdef end */
