/* SPDX-License-Identifier: Apache-2.0 */
/* The queue pair: everything that belongs to one QP, its states and their legal moves. What is done
   with it lives in requester, loss, responder and probe. */
#ifndef MRC_CORE_QP_H
#define MRC_CORE_QP_H

#include "../mrc.h"
#include "ev.h"
#include "list.h"
#include "mr.h"
#include "plane.h"
#include "rxwin.h"
#include "share.h"
#include "txwin.h"

struct mrc_engine;
struct mrc_peer;

/* A work request in the send queue. Its MSN is its index, modulo 2^16. */
struct mrc_wqe {
  uint64_t wr_id;
  uint64_t local;
  uint64_t va;
  uint32_t rkey;
  uint32_t bytes;
  uint32_t imm;
  uint32_t first_psn; /* once its first packet was given a PSN */
  uint32_t mr;        /* index of what it reads from, or MRC_MR_NONE when empty */
  uint16_t rqmsn;     /* counts messages with immediate, from 0 */
  uint8_t opcode;     /* enum mrc_wr_opcode */
};

_Static_assert(sizeof(struct mrc_wqe) == 48, "much of the memory of a QP");

/* Packets of a work request; an empty one has one too. */
static inline uint32_t mrc_wqe_packets(const struct mrc_wqe *wqe, uint32_t mtu) {
  return wqe->bytes == 0 ? 1 : (wqe->bytes - 1) / mtu + 1;
}

/* By which EVs the answers of a QP that only receives get through; see reverse.h. */
struct mrc_reverse {
  struct mrc_rtt rtt;  /* of its probes */
  uint64_t next_ns;    /* no probe before */
  uint64_t seen_ns;    /* arrival of the newest packet at the last probe */
  uint64_t seen_bytes; /* received by then */
  uint32_t probing;    /* planes with a probe on its way, as a mask */
  uint8_t plane;       /* probed last */
  uint8_t backoff;     /* probes that failed since one was answered, at most 6 */
};

struct mrc_reliability_probe {
  uint64_t sent_ns;
  uint16_t id;
  uint16_t ev;
  uint8_t plane;
  bool outstanding;
  bool wanted; /* to be sent at the next transmit */
};

struct mrc_requester {
  struct mrc_txwin win;
  struct mrc_wqe *sq; /* ring; index & sq_mask */
  uint32_t sq_mask;
  uint32_t sq_head;      /* oldest that has not completed; free-running */
  uint32_t sq_send;      /* first with packets that have no PSN yet; free-running */
  uint32_t opened;       /* packets of that one that have */
  uint32_t sq_tail;      /* next to post; free-running */
  uint32_t sq_used;      /* posted and not yet polled, at most attr.sq_depth */
  uint64_t unsent_bytes; /* posted and not yet given a PSN */
  uint32_t sharing;      /* planes that took equal shares at the last choice, as a mask */
  uint32_t acked_planes; /* planes with newly_acked_bytes, as a mask */
  struct mrc_quick quick;
  struct mrc_share_sum share; /* in the period in progress of the peer */
  uint64_t most_share_bytes;  /* share of the plane that was given most */
  uint32_t wimm_inflight;     /* immediates opened and not completed */
  uint32_t peer_next_psn;     /* the peer's cumulative PSN + 1, as last heard */
  uint32_t peer_mpr;          /* PSNs from there on that it grants now, at most attr.peer_mpr */
  uint16_t next_rqmsn;
  uint32_t acked_msn; /* messages completed, modulo 2^24 */
  struct mrc_rtt rtt; /* over all planes */
  struct mrc_reliability_probe probe;
  uint64_t progress_ns;   /* last sign of life of the peer, or when work began */
  uint64_t probed_ns;     /* when the last reliability probe was asked for */
  uint64_t probe_wait_ns; /* current patience before that probe; doubles */
  uint32_t timeouts;      /* expiries in a row, and refusals */
  uint32_t refused_psn;   /* first PSN that the peer refused since it last made progress */
  bool refused;           /* there is one */
  bool one_window;        /* all planes share the window of the first; else each has its own */
  uint64_t packets_sent;
  uint64_t packets_retransmitted;
  uint64_t packets_spurious;
  uint64_t bytes_sent;
  uint64_t bytes_acked;
};

/* What calls for a SACK: the newest packet of one plane since the last SACK for it, or of one EV
   where there is something to say of that EV. */
struct mrc_sack_trigger {
  uint64_t words;    /* words of the receive bitmap with news of this plane or EV */
  uint64_t first_ns; /* since when the news waits */
  uint64_t
      arrived_ns; /* when that packet arrived; the wait since then is taken off the round trip */
  uint32_t psn;
  uint32_t ev;
  uint16_t tx_timestamp;
  uint16_t probe_id;
  uint8_t port;
  uint8_t m; /* enum mrc_sack_m */
  bool pr;   /* answers a reliability probe */
  bool now;  /* waits for no more to report */
};

struct mrc_nack_out {
  uint32_t psn;
  uint32_t ev;
  uint16_t tx_timestamp;
  uint8_t reason;
  uint8_t port;
};

/* An immediate that waits until everything before it has arrived. */
struct mrc_wimm {
  uint32_t imm;
  uint32_t bytes; /* payload of its own packet, the last of the message */
  uint32_t psn : 24;
  uint32_t present : 1;
};

#define MRC_MAX_TRIGGERS 32 /* SACKs waiting; beyond that the newest absorbs */
#define MRC_MAX_NACKS 64    /* NACKs waiting; beyond that they are not sent */

struct mrc_responder {
  struct mrc_rxwin win;
  uint32_t mpr;           /* PSNs granted to the peer now; all of the window are taken */
  struct mrc_wimm *wimms; /* ring of max_wimm; index rqmsn modulo its power-of-two size */
  uint32_t wimm_mask;
  uint32_t next_rqmsn;    /* next immediate to deliver; free-running */
  uint32_t wimm_unpolled; /* delivered and not yet polled */
  uint32_t done_msn;      /* messages completed in order, modulo 2^24 */
  uint32_t message_psn;   /* of the first packet of the message that next_psn belongs to */
  uint32_t
      part_bytes; /* payload of every packet that is not the last of its message; 0: none yet */
  struct mrc_sack_trigger triggers[MRC_MAX_TRIGGERS]; /* whose news waits longest first */
  struct mrc_nack_out nacks[MRC_MAX_NACKS];
  uint8_t n_triggers;
  uint8_t n_nacks;
  uint8_t last_port;            /* port of the newest packet; 0: none yet */
  uint8_t nak_syndrome;         /* what ended the QP, answered to whatever still comes; 0: none */
  bool ack_wanted;              /* a transport ACK (or the NAK) is due */
  bool sack_now;                /* all that there is to report is due */
  bool recorded;                /* what is placed counts as RX_RECORDED too */
  struct mrc_sack_trigger told; /* the last trigger used, for SACKs that nothing triggered */
  uint64_t arrived_ns;          /* of the newest packet */
  uint32_t unsacked_bytes;      /* received and not yet paid for by a SACK */
  uint64_t sack_deadline_ns;
  uint64_t nack_ns; /* when the last rate-limited NACK or NAK was queued */
  uint64_t bytes_received;
};

struct mrc_qp {
  struct mrc_node ready;     /* in the engine's lists of these names */
  struct mrc_node answering; /* of those in `ready` */
  struct mrc_node waiting;
  struct mrc_node held;
  uint8_t state;  /* enum mrc_qp_state */
  uint8_t status; /* enum mrc_wc_status that ended it */
  uint32_t index; /* in the engine's array; timer id */
  uint32_t qpn;
  struct mrc_qp_attr attr;
  struct mrc_evset evset;
  struct mrc_peer *peer;
  struct mrc_qp *peer_next; /* among the QPs of that peer */
  struct mrc_qp *peer_prev;
  struct mrc_requester req;
  struct mrc_responder resp;
  uint64_t ev_probe_ns;         /* next time an EV or plane on probation wants a probe */
  uint32_t noise_ns;            /* of the hosts, as the engine's configuration has it */
  uint16_t next_ev_probe;       /* EV whose turn it is to be probed, when slots are short */
  uint32_t n_ev_probes;         /* slots taken by probes of its own */
  uint32_t n_commanded;         /* and by commanded ones */
  struct mrc_node slot_waiting; /* in the engine's list of those whose probes wait for a slot */
  struct mrc_reverse reverse;
  struct mrc_plane planes[]; /* of each port of the engine; index: port - 1 */
};

static inline uint32_t mrc_qp_first_plane(const struct mrc_qp *qp) {
  return (uint32_t)__builtin_ctz(qp->evset.plane_mask);
}
/* The plane whose window governs what leaves on `plane`. */
static inline uint32_t mrc_qp_window_of(const struct mrc_qp *qp, uint32_t plane) {
  return qp->req.one_window ? mrc_qp_first_plane(qp) : plane;
}
static inline struct mrc_cc *mrc_qp_cc(struct mrc_qp *qp, uint32_t plane) {
  return &qp->planes[mrc_qp_window_of(qp, plane)].cc;
}
static inline const struct mrc_cc *mrc_qp_const_cc(const struct mrc_qp *qp, uint32_t plane) {
  return &qp->planes[mrc_qp_window_of(qp, plane)].cc;
}
/* What counts against that window. */
static inline uint64_t mrc_qp_inflight_bytes(const struct mrc_qp *qp, uint32_t plane) {
  return qp->req.one_window ? qp->req.win.inflight_bytes : qp->req.win.lists[plane].bytes;
}

/* Whether it has room for a packet of `bytes` more; one packet always may leave. */
static inline bool mrc_qp_has_room(const struct mrc_qp *qp, uint32_t plane, uint32_t bytes) {
  const uint64_t inflight_bytes = mrc_qp_inflight_bytes(qp, plane);
  return inflight_bytes == 0 || inflight_bytes + bytes <= mrc_qp_const_cc(qp, plane)->cwnd_bytes;
}

/* Whether the QP may send probes and endpoint messages: its peer is known and it has not failed. */
static inline bool mrc_qp_is_live(const struct mrc_qp *qp) {
  return qp->state == MRC_QP_RTR || qp->state == MRC_QP_RTS;
}
/* Whether its packets carry an ICRC. */
static inline bool mrc_qp_has_icrc(const struct mrc_qp *qp) {
  return qp->attr.integrity == MRC_INTEGRITY_ICRC;
}

/* Whether the move is legal. */
bool mrc_qp_may_move(uint8_t from, uint8_t to);

/* Marks the QP as having something to send or to re-time; the next transmit visits it. */
void mrc_qp_touch(struct mrc_engine *engine, struct mrc_qp *qp);
/* The same at once, for one whose turn was in vain: the port did not take what it sent. */
void mrc_qp_touch_first(struct mrc_engine *engine, struct mrc_qp *qp);
/* The same for one that owes its peer an answer: that leaves before the data of any QP. */
void mrc_qp_touch_to_answer(struct mrc_engine *engine, struct mrc_qp *qp);
/* Ask the cache for what a turn of the QP or a packet for it will touch: with thousands of QPs all
   of it lies in memory, and to fetch one line after the other costs more than the turn. First the
   QP; when that is there, what it points to; and then the EVs whose turn it is. */
void mrc_qp_prefetch(const struct mrc_qp *qp);
void mrc_qp_prefetch_parts(const struct mrc_qp *qp);
void mrc_qp_prefetch_evs(const struct mrc_qp *qp);
/* Ends the QP for the reason `status`: everything outstanding completes, the oldest work request
   with `oldest_status`, the rest flushed. */
void mrc_qp_fail(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t status,
                 uint8_t oldest_status);

#endif
