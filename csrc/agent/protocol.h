/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program and the agent of its host say to each other over a Unix socket (SOCK_SEQPACKET).
 * Each packet is a struct mrc_agent_frame and a body. Both ends are from one installation: the
 * structs of mrc.h travel as they are, and ATTACH refuses another layout.
 *
 * The program owns the engine, its sockets and its memory. The agent steers it: it sends the
 * commands of mrc.h that set up QPs, and gets their replies and the engine's events. Only the
 * program registers memory and posts.
 */
#pragma once

#include "agent/api_values.h"
#include "mrc.h"

/* cdef begin */

#define MRC_AGENT_VERSION 7
#define MRC_AGENT_MAX_FRAME 196608  /* bytes of a packet */
#define MRC_AGENT_MAX_RESUME 131072 /* bytes of a resume state */
#define MRC_AGENT_MAX_NUMBERS 64    /* QPNs in one block */
#define MRC_AGENT_MAX_GIDS 2
#define MRC_AGENT_TEXT 240 /* bytes of a line of text, its end included */

enum mrc_agent_kind {
  /* of the program */
  MRC_AGENT_ATTACH = 1, /* body: struct mrc_agent_attach, the first packet. If a former agent has
                           gone, OPENED and a CONNECT for each QP follow at once */
  MRC_AGENT_OPENED,     /* body: struct mrc_agent_opened, the answer to OPEN */
  MRC_AGENT_NUMBERS,    /* half of the QPNs are used */
  MRC_AGENT_CONNECT,    /* body: struct mrc_agent_connect; a QP moved to RTR. If `ready`, its
                           resume state follows */
  MRC_AGENT_RELEASE,    /* value = qpn. cookie 1: the program destroyed the QP and gives its number
                           back; 0: it moved the QP to RESET */
  MRC_AGENT_EVENT,      /* body: struct mrc_event; for a REPLY followed by the memory of its
                           command */
  MRC_AGENT_REQUEST,    /* value = enum mrc_agent_function; body: its arguments */
  MRC_AGENT_QP_REQUEST, /* body: struct mrc_agent_qp_request: asks an endpoint. ADMITTED or FAILED
                           answers */
  MRC_AGENT_ADMIT,      /* answers PEER_REQUEST: value = the QP for it, or -errno; its cookie */
  MRC_AGENT_KEEP,       /* value = the number of an endpoint that a former agent knew */
  MRC_AGENT_CM_ATTACH,  /* value = MRC_AGENT_VERSION. The first packet of libmrc-cm, in place of
                           ATTACH */
  MRC_AGENT_CM_CALL,    /* value = enum mrc_agent_cm_call; body: struct mrc_agent_cm. ANSWER has
                           the same body */
  /* of the agent */
  MRC_AGENT_REFUSED = 64, /* body: a line of text, why; the agent closes the connection */
  MRC_AGENT_OPEN,         /* body: struct mrc_agent_open */
  MRC_AGENT_GRANTED,      /* body: uint32_t qpns[], up to MRC_AGENT_MAX_NUMBERS */
  MRC_AGENT_COMMAND,      /* body: struct mrc_command, then the memory that it points to */
  MRC_AGENT_READY,        /* body: struct mrc_agent_ready; both ends of a QP are in RTS. The
                             resume state follows: the program keeps it for the next agent */
  MRC_AGENT_FAILED,       /* value = qpn: it cannot be connected. body: a line of text, why */
  MRC_AGENT_GONE,         /* value = qpn: the peer has destroyed it, or has ended. body: a line of
                             text, why, if the peer has said so */
  MRC_AGENT_PORTS,        /* body: struct mrc_agent_port[], when one has changed */
  MRC_AGENT_ANSWER,       /* value = 0 or -errno, cookie of the REQUEST; body: its results, or a
                             line of text, why it failed */
  MRC_AGENT_EV_EVENT,     /* body: struct mrc_agent_ev_event, for programs that have asked */
  MRC_AGENT_PEER_REQUEST, /* body: struct mrc_agent_qp_request, of an endpoint to one of this
                             program */
  MRC_AGENT_ADMITTED,     /* value = qpn, which the program asked with; body: uint32_t, the other
                             endpoint's QP for it */
  MRC_AGENT_CM_EVENT      /* body: struct mrc_agent_cm */
};

/* What a program asks its agent: the control functions of MRC's C interface. */
enum mrc_agent_function {
  MRC_AGENT_MODIFY_FORMAT = 1, /* struct mrc_agent_format; nothing */
  MRC_AGENT_QUERY_FORMAT,      /* struct mrc_agent_format; the same */
  MRC_AGENT_MODIFY_EVS,        /* struct mrc_agent_evs, entries, fields; nothing */
  MRC_AGENT_QUERY_EVS,         /* struct mrc_agent_evs, entries; the same, entries, fields */
  MRC_AGENT_MODIFY_CC,         /* struct mrc_agent_cc; nothing */
  MRC_AGENT_QUERY_CC,          /* struct mrc_agent_cc; the same */
  MRC_AGENT_WATCH_EVS,         /* nothing: from now on EV_EVENTs come */
  MRC_AGENT_PROBE,             /* struct mrc_agent_probe, then struct mrc_agent_probed[];
                                  struct mrc_api_answer[] */
  MRC_AGENT_PROFILES           /* nothing; JSON. A process may ask this instead of ATTACH */
};

/* A profile of formats of EVs. `mask` of all three: MRC_API_PROFILE_* and what its kind adds. */
struct mrc_agent_format {
  uint64_t id;
  uint32_t mask;
  uint32_t state; /* enum mrc_api_profile_state */
  uint32_t current_state;
  uint32_t mode; /* MRC_API_FORMAT_* */
  uint32_t op;   /* enum mrc_api_fields_op */
  uint32_t n_fields;
  uint8_t bits[256]; /* of each field */
  uint8_t vendor[128];
};

/* A profile of EVs; then struct mrc_api_ev_entry[n_entries], struct mrc_api_ev_field[n_fields]. */
struct mrc_agent_evs {
  uint64_t id;
  uint64_t format;
  uint32_t mask;
  uint32_t state;
  uint32_t current_state;
  uint32_t mode; /* MRC_API_EVS_* */
  uint32_t n_evs;
  uint32_t min_active;
  uint32_t events;
  uint32_t op; /* enum mrc_api_evs_op */
  uint32_t n_entries;
  uint32_t fields_op; /* enum mrc_api_fields_op */
  uint32_t n_fields;
  uint32_t reserved;
  uint8_t vendor[128];
};

struct mrc_agent_cc {
  uint64_t id;
  uint32_t mask;
  uint32_t state;
  uint32_t current_state;
  char algorithm[32];
  struct mrc_api_nscc config;
  uint8_t vendor[128];
};

struct mrc_agent_ev_event {
  uint64_t profile;
  struct mrc_api_ev ev;
  uint32_t state;
};

struct mrc_agent_probe {
  uint64_t timeout_ns;
  uint32_t n_probes;
  uint32_t reserved;
};

/* One EV to be probed. */
struct mrc_agent_probed {
  uint16_t id;
  uint8_t dgid[16];
  uint32_t format; /* MRC_API_FORMAT_* */
  struct mrc_api_ev ev;
};

struct mrc_agent_frame {
  uint32_t kind; /* enum mrc_agent_kind */
  int32_t value;
  uint64_t cookie; /* of a REQUEST and its ANSWER */
};

struct mrc_agent_attach {
  uint32_t version;       /* MRC_AGENT_VERSION */
  uint32_t command_bytes; /* sizeof(struct mrc_command) */
  uint32_t event_bytes;   /* sizeof(struct mrc_event) */
  uint32_t config_bytes;  /* sizeof(struct mrc_ctx_config) */
  uint32_t resumed;       /* 1: the program ran under a former agent */
  uint32_t n_qps;         /* CONNECTs that follow, if resumed */
  char program[64];       /* its name, for users */
};

/* A plane as a verbs program may ask for it. */
struct mrc_agent_port {
  char ifname[16];
  uint64_t bits_per_second; /* of the link; 0: unknown */
  uint32_t number;          /* the plane */
  uint32_t mtu;             /* of the interface, bytes */
  uint32_t up;
  uint32_t loopback;
};

/* The device, and how the program opens its context. */
struct mrc_agent_open {
  char device[64];
  uint8_t gids[2][16]; /* MRC_AGENT_MAX_GIDS; IPv4 in mapped form */
  uint32_t n_gids;
  uint32_t n_ports;
  uint32_t n_numbers;
  uint32_t reserved;
  struct mrc_agent_port ports[32]; /* MRC_MAX_PORTS */
  uint32_t numbers[64];            /* QPNs, MRC_AGENT_MAX_NUMBERS */
  struct mrc_ctx_config config;
};

struct mrc_agent_opened {
  int32_t error; /* 0 or -errno */
  uint16_t udp_port;
  uint16_t reserved;
  uint16_t sports[32][64]; /* source port of each transmit socket, by port - 1 */
  char cause[240];         /* MRC_AGENT_TEXT */
};

/* A QP that the program has moved to RTR. 0 in a field of the last group: the agent's default. */
struct mrc_agent_connect {
  uint32_t qpn;
  uint32_t dest_qpn;
  uint8_t sgid[16];
  uint8_t dgid[16];
  uint32_t sq_depth;
  uint32_t max_wimm;
  uint32_t mpr;
  uint32_t path_mtu;   /* largest payload, bytes */
  uint64_t ev_profile; /* ids of mrc_api.h */
  uint64_t cc_profile;
  uint32_t timeout; /* 1.024 us << timeout */
  uint32_t retry_exp;
  uint32_t ready;    /* resumed: READY has come */
  uint32_t messages; /* 1: the QP carries messages (msg/messages.h), and these are set */
  uint32_t peer;     /* its number */
  uint32_t rkey;     /* of the inbox for the other side */
  uint64_t address;
  uint32_t emulated; /* 1: the QP has an inbox of verbs/rc.h at `address`, and `shared` is set */
  uint32_t shared;   /* 1: its receives are those of an SRQ */
};

/* The address of an endpoint for messages with any number of others, each by a QP of its own. */
struct mrc_agent_endpoint {
  uint8_t gid[16];
  uint8_t token[16]; /* random: only who was given it may connect */
  uint32_t number;   /* a QPN, which no QP has */
};

/* An endpoint asks another one for the QP that the two will connect. */
struct mrc_agent_qp_request {
  struct mrc_agent_endpoint to;
  struct mrc_agent_endpoint from;
  uint32_t qpn; /* at `from` */
  uint32_t reserved;
};

struct mrc_agent_ready {
  uint32_t qpn;
  uint32_t path_mtu;
  uint32_t mpr;      /* PSNs that this end may have in flight */
  uint32_t max_wimm; /* immediates that it may */
  uint64_t address; /* of the other side's inbox, if the QP is `emulated`, and what belongs to it */
  uint32_t rkey;
  uint32_t shared;
};

/* What an id of rdma_cm asks (csrc/cm). */
enum mrc_agent_cm_call {
  MRC_AGENT_CM_BIND = 1,  /* `own`; port 0: any. The answer has the port. `option` 1: REUSEADDR */
  MRC_AGENT_CM_LISTEN,    /* `option`: the backlog */
  MRC_AGENT_CM_CONNECT,   /* `own.qpn`, `peer` without its QP, what both ends tell each other */
  MRC_AGENT_CM_ACCEPT,    /* of an id that an event has made: `own.qpn`, and the same */
  MRC_AGENT_CM_REJECT,    /* `status`: the reason; private data */
  MRC_AGENT_CM_ESTABLISH, /* the QP that connects is in RTS */
  MRC_AGENT_CM_DISCONNECT,
  MRC_AGENT_CM_DESTROY,
  MRC_AGENT_CM_RESUME /* of a connected id that a former agent knew: `own`, `peer`, tokens */
};

/* How the agents tell ids of rdma_cm what has happened: values of enum rdma_cm_event_type. */
enum mrc_agent_cm_event {
  MRC_AGENT_CM_CONNECT_REQUEST = 4, /* `child`: a new id */
  MRC_AGENT_CM_CONNECT_RESPONSE = 5,
  MRC_AGENT_CM_UNREACHABLE = 7,
  MRC_AGENT_CM_REJECTED = 8,
  MRC_AGENT_CM_ESTABLISHED = 9,
  MRC_AGENT_CM_DISCONNECTED = 10,
  MRC_AGENT_CM_TIMEWAIT_EXIT = 15
};

struct mrc_agent_cm_end {
  uint8_t gid[16]; /* 0: any */
  uint32_t qpn;
  uint16_t port;
  uint16_t reserved;
  uint8_t token[16]; /* random: only the peer knows it, and may end the connection */
};

/* A call or event of an id of rdma_cm. */
struct mrc_agent_cm {
  uint32_t id;    /* the program numbers its ids from 1, the agent those that peers make from
                     MRC_AGENT_CM_CHILD */
  uint32_t event; /* enum mrc_agent_cm_event */
  int32_t status; /* of the event */
  uint32_t child;
  uint32_t option;
  struct mrc_agent_cm_end own;
  struct mrc_agent_cm_end peer;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t flow_control;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t srq;
  uint8_t reserved;
  uint8_t private_bytes;
  uint8_t private_data[196]; /* MRC_AGENT_CM_PRIVATE */
};

#define MRC_AGENT_CM_PRIVATE 196
#define MRC_AGENT_CM_CHILD 0x80000000

/* cdef end */
