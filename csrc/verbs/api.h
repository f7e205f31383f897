/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MRC's C interface of OCP 1.0, versions 1.0.0 and 1.0.1: the types that cross its functions, in
 * our words and names. Only sizes, order and values are given by it; the assertions pin them. A
 * program that has OCP's own headers uses those; functions are in mrc_api.h.
 */
#pragma once

#include <infiniband/verbs.h>

#include "agent/api_values.h"

#define MRC_API_VERSION(major, minor, small) ((uint32_t)(major) << 24 | (minor) << 16 | (small))

struct mrc_api_context;
struct mrc_api_cq;
struct mrc_api_qp;
struct mrc_api_channel;
struct mrc_api_qp_hint;

struct mrc_api_qp_hint_init {
  struct mrc_api_qp_hint_attr attr;
};

struct mrc_api_qp_init {
  void *qp_context;
  struct mrc_api_cq *send_cq;
  struct mrc_api_cq *recv_cq;
  struct ibv_qp_cap cap;
  int signal_all;
  struct ibv_pd *pd;
  uint64_t send_ops;
  int protocol; /* 0: any */
};

struct mrc_api_qp_attr {
  uint8_t mpr; /* x 128 PSNs */
  uint8_t mpr_dest;
  uint16_t max_wimm;
  uint16_t max_wimm_dest;
  uint8_t timeout; /* 1.024 us << timeout */
  uint64_t ev_profile;
  uint64_t cc_profile;
  uint8_t retry_linear;
  uint8_t retry_exponential;
  struct mrc_api_qp_hint *hint;
  uint32_t cap;
  uint8_t vendor[128];
};

struct mrc_api_async_event {
  union {
    struct mrc_api_cq *cq;
    struct mrc_api_qp *qp;
    int port;
  } element;
  enum ibv_event_type type;
};

struct mrc_api_ctl_device_attr {
  uint32_t protocols;
  uint32_t max_formats;
  uint32_t max_ev_profiles;
  uint32_t max_evs;
  uint32_t free_evs;
  uint32_t max_evs_of_profile;
  uint32_t ev_count_multiple;
  uint32_t max_ev_bits;
  uint32_t format_modes; /* MRC_API_FORMAT_* */
  uint32_t evs_modes;    /* MRC_API_EVS_* */
  uint32_t max_entries;  /* of one operation */
  struct {
    uint32_t max_profiles;
    const char **algorithms; /* ends with NULL */
  } cc;
  uint32_t port_mask;
  uint32_t options;
};

struct mrc_api_port_attr {
  int enabled;
};

struct mrc_api_format_field {
  uint8_t bits;
};

struct mrc_api_format_attr {
  int state; /* enum mrc_api_profile_state */
  int current_state;
  int mode;
  struct {
    int op; /* enum mrc_api_fields_op */
    struct mrc_api_format_field *fields;
    int n_fields;
  } op;
  uint8_t vendor[128];
};

struct mrc_api_evs_attr {
  int state;
  int current_state;
  int mode;
  uint64_t format;
  uint32_t n_evs;
  uint32_t min_active;
  int events; /* states whose changes are reported */
  struct {
    int op; /* enum mrc_api_evs_op */
    struct mrc_api_ev_entry *entries;
    int n_entries;
  } op;
  struct {
    int op; /* enum mrc_api_fields_op */
    struct mrc_api_ev_field *fields;
    int n_fields;
  } fields_op;
  uint8_t vendor[128];
};

struct mrc_api_cc_attr {
  int state;
  int current_state;
  const char *algorithm;
  const void *config; /* struct mrc_api_nscc */
  uint8_t vendor[128];
};

struct mrc_api_ev_event {
  uint64_t profile;
  struct mrc_api_ev ev;
  uint32_t dropped; /* events before this one */
  uint32_t state;   /* from version 1.0.1 on */
};

struct mrc_api_request {
  uint16_t id;
  union ibv_gid sgid;
  union ibv_gid dgid;
  int format; /* MRC_API_FORMAT_* */
  struct mrc_api_ev ev;
  uint32_t port_status;
};

#define MRC_API_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
MRC_API_SIZE(struct mrc_api_device_attr, 20);
MRC_API_SIZE(struct mrc_api_context_attr, 8);
MRC_API_SIZE(struct mrc_api_qp_hint_attr, 140);
MRC_API_SIZE(struct mrc_api_qp_init, 72);
MRC_API_SIZE(struct mrc_api_qp_attr, 176);
MRC_API_SIZE(struct mrc_api_async_event, 16);
MRC_API_SIZE(struct mrc_api_ctl_device_attr, 72);
MRC_API_SIZE(struct mrc_api_format_attr, 168);
MRC_API_SIZE(struct mrc_api_ev, 33);
MRC_API_SIZE(struct mrc_api_ev_field, 20);
MRC_API_SIZE(struct mrc_api_ev_entry, 76);
MRC_API_SIZE(struct mrc_api_evs_attr, 216);
MRC_API_SIZE(struct mrc_api_cc_attr, 152);
MRC_API_SIZE(struct mrc_api_nscc, 52);
MRC_API_SIZE(struct mrc_api_ev_event, 56);
MRC_API_SIZE(struct mrc_api_request, 88);
MRC_API_SIZE(struct mrc_api_answer, 12);
