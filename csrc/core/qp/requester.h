/* SPDX-License-Identifier: Apache-2.0 */
/* The requester's state of a QP: send queue, send window, and the time of the last sign of life.
   requester_tx.h sends; detect.h decides which packets are lost. */
#pragma once

#include "core/paths.h"
#include "core/services.h"
#include "txwin.h"

/* A work request in the send queue. Its MSN is its index, modulo 2^16. */
struct mrc_wqe {
  uint64_t wr_id;
  uint64_t local;
  uint64_t va;
  uint32_t rkey;
  uint32_t bytes;
  uint32_t imm;
  uint32_t first_psn;       /* valid once its first packet has a PSN */
  uint32_t mr;              /* index of the MR that it reads from, or MRC_MR_NONE when empty */
  uint16_t rqmsn;           /* counts messages with immediate, from 0 */
  uint16_t part_words : 13; /* payload of each packet but a shorter last one, in units of 4 bytes */
  uint16_t opcode : 2;      /* enum mrc_wr_opcode */
  uint16_t unsignaled : 1;  /* the next signaled one completes for it too */
};

_Static_assert(sizeof(struct mrc_wqe) == 48, "much of the memory of a QP");

_Static_assert(MRC_MAX_MTU / 4 < 1 << 13, "part_words holds any path MTU");

static inline uint32_t mrc_wqe_part_bytes(const struct mrc_wqe *wqe) {
  return (uint32_t)wqe->part_words * 4;
}

struct mrc_reliability_probe {
  uint64_t sent_ns;
  uint16_t id;
  uint16_t ev;
  uint8_t plane;
  bool outstanding;
  bool wanted; /* to be sent at the next transmit */
};

/* Bytes acknowledged in a period, of one QP or of several together. */
struct mrc_share_sum {
  uint64_t bytes;
  uint64_t backed_bytes; /* of these, while more data waited to be sent */
};

struct mrc_requester {
  struct mrc_txwin win;
  struct mrc_wqe *sq; /* ring; index & sq_mask */
  uint32_t sq_mask;
  uint32_t sq_head;      /* oldest one that has not completed; free-running */
  uint32_t sq_send;      /* first with packets that have no PSN yet; free-running */
  uint32_t opened;       /* packets of the work request at sq_send that have a PSN */
  uint32_t sq_tail;      /* next to post; free-running */
  uint32_t sq_used;      /* posted and not yet polled, at most sq_depth */
  uint64_t unsent_bytes; /* posted and not yet given a PSN */
  uint32_t parted_bytes; /* length of the message posted last, and the payload of its packets */
  uint32_t part_bytes;
  uint32_t acked_planes;      /* planes with newly_acked_bytes, as a mask */
  struct mrc_share_sum share; /* in the peer's current period */
  uint32_t wimm_inflight;     /* immediates opened and not completed */
  uint32_t peer_next_psn;     /* the peer's cumulative PSN + 1, as last heard */
  uint32_t peer_mpr;          /* PSNs that it grants from there on, at most attr.rts.peer_mpr */
  uint16_t next_rqmsn;
  uint32_t acked_msn;          /* messages completed, modulo 2^24 */
  struct mrc_rtt rtt;          /* over all planes */
  struct mrc_guard host_waits; /* how long packets and SACKs wait in the sockets of both hosts */
  struct mrc_reliability_probe probe;
  uint64_t progress_ns;   /* last sign of life of the peer, or when work began */
  uint64_t probed_ns;     /* when the last reliability probe was requested */
  uint64_t probe_wait_ns; /* current wait before the next one; doubles */
  uint32_t timeouts;      /* in a row; refusals count too */
  uint32_t refused_psn;   /* first PSN that the peer refused since the last progress */
  bool refused;           /* refused_psn is valid */
  bool one_window;        /* all planes share the window of the first; else each has its own */
  uint64_t sent_packets;
  uint64_t retransmitted_packets;
  uint64_t spurious_packets;
  uint64_t first_sent_bytes;
  uint64_t acknowledged_bytes;
};

/* 0 or -ENOMEM. */
int mrc_requester_init(struct mrc_requester *req, uint32_t sq_depth,
                       uint32_t planes) MRC_MUST_CHECK;
void mrc_requester_free(struct mrc_requester *req);
/* Opens a send window of `psns` PSNs. 0 or -ENOMEM. */
int mrc_requester_start(struct mrc_requester *req, const struct mrc_qp_rts_attr *attr,
                        uint32_t psns, uint64_t now_ns) MRC_MUST_CHECK;

/* Whether a work request is outstanding. A transport ACK completes it, after its last SACK. */
static inline bool mrc_requester_is_busy(const struct mrc_requester *req) {
  return req->sq_head != req->sq_tail;
}
/* Whether every posted packet has a PSN. */
static inline bool mrc_requester_has_opened_all(const struct mrc_requester *req) {
  return req->sq_send == req->sq_tail;
}
/* PSNs that may still be assigned before the peer answers. */
uint32_t mrc_requester_window_left(const struct mrc_requester *req);
/* Bytes that wait to be sent, again or for the first time; packets are counted as full ones. */
static inline uint64_t mrc_requester_left_bytes(const struct mrc_requester *req,
                                                uint32_t path_mtu) {
  return req->unsent_bytes + (uint64_t)req->win.n_tosend * path_mtu;
}
/* Sets `bytes` to the payload of the next packet without a PSN; false if none may be opened now. */
static inline bool mrc_requester_next_new(const struct mrc_requester *req,
                                          const struct mrc_qp_rts_attr *attr, uint32_t *bytes) {
  if (mrc_requester_has_opened_all(req)) return false;
  if (mrc_psn_sub(req->win.next_psn, req->peer_next_psn) >= req->peer_mpr) return false;
  if (mrc_txwin_outstanding(&req->win) >= req->win.psns) return false;
  const struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
  if (wqe->opcode == MRC_WR_WRITE_IMM && req->opened == 0 &&
      req->wimm_inflight >= attr->peer_max_wimm)
    return false;
  const uint32_t part_bytes = mrc_wqe_part_bytes(wqe);
  const uint64_t offset = (uint64_t)req->opened * part_bytes;
  *bytes = (uint32_t)mrc_min_u64(wqe->bytes - offset, part_bytes);
  return true;
}
/* Assigns a PSN to that packet and returns it. */
uint32_t mrc_requester_open_new(struct mrc_requester *req, uint32_t bytes);
/* The oldest packet in flight, if nothing can be sent before its answer: the PSN window is closed,
   or everything posted has left. Otherwise 0. */
const struct mrc_txslot *mrc_requester_awaited(const struct mrc_requester *req,
                                               const struct mrc_qp_rts_attr *attr);

/* Writes a work request to the send queue, `ahead` of its tail, where it takes no effect yet. The
   caller has checked that there is a place. `mr`: the MR that it reads from, or NULL. `part_bytes`:
   payload of its packets, see mrc_part_bytes. */
void mrc_requester_prepare(const struct mrc_services *services, struct mrc_requester *req,
                           uint32_t ahead, const struct mrc_wr *wr, const struct mrc_mr *mr,
                           uint32_t part_bytes);
/* Moves the tail over n prepared work requests. The caller has reserved their completions. */
void mrc_requester_push(struct mrc_services *services, struct mrc_requester *req, uint32_t n);
/* Completes the oldest work request. Returns whether that gave a completion. */
bool mrc_requester_complete(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                            uint8_t status);
/* Completes all work requests: the first completion has `status`, the rest are flushed. */
void mrc_requester_flush(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                         uint8_t status);
/* The peer gave a sign of life. */
void mrc_requester_on_progress(struct mrc_requester *req, uint64_t now_ns);
/* The peer has received everything before this PSN. */
void mrc_requester_on_cumulative(struct mrc_requester *req, uint32_t next_psn);

/* How a message is cut into packets. All packets of a burst have one size, except a shorter last
   one, so a short last packet of a message also ends its burst. A burst costs the kernel as much as
   dozens of packets. Many messages have a power of two as their size. Small ones are therefore cut
   into packets of a power of two, so that bursts run on from one message to the next. Payload of
   every packet of a message of `bytes`, except a shorter last one: path_mtu, or the largest power
   of two below it. */
uint32_t mrc_part_bytes(uint32_t bytes, uint32_t path_mtu, uint32_t max_burst_bytes);

/* Packets of a message; a message without bytes has one. */
static inline uint32_t mrc_parts(uint32_t bytes, uint32_t part_bytes) {
  return bytes == 0 ? 1 : (bytes - 1) / part_bytes + 1;
}
