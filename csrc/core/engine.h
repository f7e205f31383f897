/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's own state and the services that its parts share: counters, trace, events, bursts.
   The protocol itself is in requester, loss, responder and probe; engine.c only delegates. */
#ifndef MRC_CORE_ENGINE_H
#define MRC_CORE_ENGINE_H

#include "../mrc.h"
#include "counters.h"
#include "cq.h"
#include "drops.h"
#include "icrc.h"
#include "mr.h"
#include "peer.h"
#include "prng.h"
#include "qp.h"
#include "secret.h"
#include "timer.h"
#include "wire.h"

#define MRC_MAX_BURSTS 64      /* bursts of one transmit */
#define MRC_QUANTUM_BURSTS 4   /* of one QP before the next QP has its turn; 1 where spray is set */
#define MRC_ARENA_PACKETS 2048 /* packets of one transmit */
#define MRC_MAX_EV_PROBES 1024 /* EV probes outstanding */
#define MRC_MAX_ANSWERS 256    /* endpoint responses waiting to be sent */
#define MRC_EVENT_RING 8192    /* events held before polling */

/* A socket that stays full for longer does not hold the other planes back any more: a choice of
   ours between equal shares and a port that is stuck. */
#define MRC_BLOCKED_PATIENCE_NS 20000000ull

/* What a packet of a burst was, for the commit. */
enum mrc_packet_kind {
  MRC_KIND_DATA,
  MRC_KIND_SACK,
  MRC_KIND_NACK,
  MRC_KIND_ACK,
  MRC_KIND_PROBE,
  MRC_KIND_EV_PROBE,
  MRC_KIND_ANSWER
};

enum mrc_ev_probe_purpose {
  MRC_EV_PROBE_FREE,
  MRC_EV_PROBE_COMMAND,
  MRC_EV_PROBE_EV,
  MRC_EV_PROBE_PLANE,
  MRC_EV_PROBE_REVERSE,
  MRC_EV_PROBE_PORT_STATUS /* no probe, but a message that is answered in the same way */
};

/* An endpoint request of ours. */
struct mrc_ev_probe {
  uint64_t cookie;
  uint64_t sent_ns;
  uint64_t timeout_ns;
  uint32_t qp;       /* index; of a port status the one that carries it, once it leaves */
  uint32_t peer;     /* index, of a port status */
  uint32_t bytes;    /* UDP payload wanted, 0: not padded */
  uint32_t ports_up; /* what a port status told */
  uint16_t ev;
  uint16_t id;           /* private id on the wire */
  uint16_t tx_timestamp; /* that it left with, and its answer has to bring back */
  uint8_t purpose;       /* enum mrc_ev_probe_purpose */
  uint8_t dscp;
  bool sent; /* taken by the kernel */
};

/* An endpoint request that waits for its response. */
struct mrc_answer {
  uint8_t asker[16]; /* address that the request came from */
  uint32_t peer;     /* index of the one who asked */
  uint16_t id;
  uint16_t tx_timestamp;
  uint8_t op;
  uint8_t port;
  uint8_t m; /* enum mrc_sack_m */
};

/* The newest packet on an EV that a SACK shows as received. */
struct mrc_sacked {
  uint32_t serial; /* of that SACK */
  uint16_t slot;   /* in the send window */
};

struct mrc_engine {
  struct mrc_engine_config config;
  struct mrc_prng prng;
  struct mrc_keymap by_qpn; /* QPN -> index */
  struct mrc_qp **qps;      /* by index; 0: free */
  struct mrc_peers peers;
  struct mrc_mr_table mrs;
  struct mrc_cq cq;
  struct mrc_timers timers;        /* one per QP */
  struct mrc_node ready;           /* QPs that may have something to send: round robin */
  struct mrc_node answering;       /* of these, the ones that owe an answer */
  struct mrc_node waiting;         /* QPs that a port is blocked or down for */
  struct mrc_node held;            /* QPs whose cumulative PSN waits for the CQ */
  struct mrc_timers peer_timers;   /* port status, one per peer */
  struct mrc_peer *status_waiting; /* list of peers whose message waits for a slot */
  struct mrc_node slot_waiting;    /* QPs whose EV probes wait for a slot, in turn */
  uint32_t ports_up;               /* bit n - 1: port n */
  uint32_t ports_blocked;
  bool port_was_down;                 /* one of them, ever */
  uint64_t blocked_ns[MRC_MAX_PORTS]; /* since when, by plane index */
  struct mrc_ev_probe *ev_probes;     /* slot of a probe: id modulo MRC_MAX_EV_PROBES */
  struct mrc_timers ev_probe_timers;
  uint32_t n_ev_probes; /* slots taken */
  uint32_t n_commanded; /* of these, so many by command */
  struct mrc_secret ev_probe_ids;
  uint32_t n_unsent_ev_probes; /* queued and not yet sent */
  uint32_t n_ev_probes_stuck;  /* of these, so many waited for a port's socket at the last look */
  uint16_t ev_probe_queue[MRC_MAX_EV_PROBES]; /* ring of slots to send */
  uint32_t ev_probe_head;
  struct mrc_answer answers[MRC_MAX_ANSWERS]; /* ring */
  uint32_t answer_head;
  uint32_t n_answers;
  uint32_t n_answers_stuck; /* of these, so many waited for a port's socket at the last transmit */
  /* the transmit in progress */
  struct mrc_packet *arena;
  uint32_t arena_used;
  struct mrc_burst *bursts;
  int burst_capacity;
  int n_bursts;
  bool committing;             /* a transmit waits for its commit */
  struct mrc_icrc_begun begun; /* of the last packet received */
  /* the SACK at hand */
  uint32_t sack_serial;
  struct mrc_sacked sacked[MRC_MAX_EVS]; /* by index of the EV */
  /* observation */
  uint64_t counters[MRC_COUNTERS];
  uint64_t drops[MRC_DROP_COUNT];
  struct mrc_trace_entry *trace;
  uint64_t n_traced;
  struct mrc_event *events; /* ring of MRC_EVENT_RING */
  uint32_t event_head;
  uint32_t event_tail;
  uint64_t events_lost; /* dropped since the last MRC_EVENT_LOST */
  uint64_t now_ns;      /* the time of the call in progress, for trace entries */
};

static inline void mrc_count(struct mrc_engine *engine, enum mrc_counter counter, uint64_t n) {
  engine->counters[counter] += n;
}
void mrc_trace(struct mrc_engine *engine, enum mrc_trace_point point, uint32_t qpn, uint64_t a,
               uint64_t b);
/* Counts and traces a drop; returns the reason. */
int mrc_drop(struct mrc_engine *engine, enum mrc_drop reason, uint32_t qpn, size_t bytes);
void mrc_event_push(struct mrc_engine *engine, const struct mrc_event *event);
struct mrc_qp *mrc_engine_qp(const struct mrc_engine *engine, uint32_t qpn);
/* Takes the QP out of every list of the engine (it is about to be freed). */
void mrc_engine_forget(struct mrc_engine *engine, struct mrc_qp *qp);

/* Bits of the ports 1..n. */
static inline uint32_t mrc_all_ports(uint32_t n) { return UINT32_MAX >> (MRC_MAX_PORTS - n); }

/* Whether the port can be sent on now. */
static inline bool mrc_port_usable(const struct mrc_engine *engine, uint32_t plane) {
  return (engine->ports_up & ~engine->ports_blocked) >> plane & 1;
}

/* The 16-bit timestamp of TSETH with tsr = 1: units of 1.024 us. */
static inline uint16_t mrc_timestamp(uint64_t now_ns) { return (uint16_t)(now_ns >> 10); }

#endif
