/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of a QP: of the requester the send queue and the send window, of the responder the
   receive window, the immediates that wait for their turn and the answers that are due. They hold
   state and decide nothing: send.c, receive.c and loss.c do. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/base.h"
#include "core/paths.h"
#include "core/services.h"
#include "core/wire.h"
#include "mrc.h"

/* ---- bitmaps ---- */

/* A ring of bits addressed by PSN: bit (psn mod size). The caller's window defines which PSNs are
   valid. Sizes are powers of two, at least 64. */

struct mrc_bitmap {
  uint64_t *words;
  uint32_t mask; /* number of bits - 1 */
};

static inline bool mrc_bitmap_test(const struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  return (map->words[bit >> 6] >> (bit & 63)) & 1;
}

static inline void mrc_bitmap_set(struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  map->words[bit >> 6] |= 1ull << (bit & 63);
}

static inline void mrc_bitmap_clear(struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  map->words[bit >> 6] &= ~(1ull << (bit & 63));
}

/* The 64 bits from `psn` on, that of `psn` in the LSB; wraps around the ring. */
static inline uint64_t mrc_bitmap_extract(const struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  const uint32_t word = bit >> 6, shift = bit & 63, words = (map->mask >> 6) + 1;
  uint64_t low = map->words[word] >> shift;
  if (shift != 0) low |= map->words[(word + 1) & (words - 1)] << (64 - shift);
  return low;
}

/* First set bit in [psn, psn + n), n at most the size; returns its distance from psn, or n. */
static inline uint32_t mrc_bitmap_find(const struct mrc_bitmap *map, uint32_t psn, uint32_t n) {
  mrc_assert(n <= map->mask + 1);
  for (uint32_t i = 0; i < n; i += 64) {
    const uint64_t bits = mrc_bitmap_extract(map, psn + i);
    if (bits != 0) return mrc_min_u32(n, i + (uint32_t)__builtin_ctzll(bits));
  }
  return n;
}

/* ---- the send window ---- */

/* The send window of a requester: the state, EV and send time of each PSN not yet acknowledged in
   order. It also keeps the bytes in flight (in total and per plane), the PSNs to send again and the
   send order per plane. It makes no decisions. */

#define MRC_TX_NONE UINT16_MAX   /* no slot, no EV */
#define MRC_TXWIN_MAX_PSNS 32768 /* so that no slot of the ring is MRC_TX_NONE */
#define MRC_TX_MAX_TRIES 7       /* tries are counted up to this; no caller needs more than 4 */

enum mrc_tx_state {
  MRC_TX_FREE,
  MRC_TX_UNSENT, /* has a PSN and was never sent: the kernel refused it */
  MRC_TX_INFLIGHT,
  MRC_TX_LOST, /* to be sent again */
  MRC_TX_ACKED /* received, but an earlier PSN was not */
};

struct mrc_txslot {
  uint64_t sent_ns; /* of the newest transmission */
  uint16_t order;   /* among transmissions with equal sent_ns; see mrc_txslot_after */
  uint16_t wqe;     /* free-running index of its work request, modulo 2^16 */
  uint16_t bytes;   /* payload */
  uint16_t ev;      /* index of the EV that it left on */
  uint16_t ev_lost; /* EV index that lost it last, or MRC_TX_NONE */
  uint16_t older;   /* neighbours in its plane's list of packets in flight, or MRC_TX_NONE */
  uint16_t newer;
  uint8_t state : 3;       /* enum mrc_tx_state */
  uint8_t tries : 3;       /* transmissions that the kernel took, saturating */
  uint8_t redundant : 1;   /* a copy left at the same time on another EV */
  uint8_t reinjected : 1;  /* sent again on another plane without evidence of loss */
  uint8_t plane : 5;       /* index of the plane that it left on */
  uint8_t of_original : 1; /* acknowledged, perhaps because an earlier transmission arrived */
  uint8_t by_timeout : 1;  /* declared lost by the local timeout, without other evidence */
  uint8_t by_time : 1;     /* declared lost because a later packet of its plane arrived */
};

_Static_assert(sizeof(struct mrc_txslot) == 24, "most of the memory of a QP");
_Static_assert(MRC_MAX_PORTS <= 32 && MRC_MAX_MTU <= UINT16_MAX, "of a slot");

/* Packets in flight on one plane, in send order. */
struct mrc_txlist {
  uint64_t bytes;
  uint16_t oldest; /* slot, or MRC_TX_NONE */
  uint16_t newest;
};

struct mrc_txwin {
  struct mrc_txslot *slots; /* slot of psn: psn & mask */
  struct mrc_bitmap tosend; /* UNSENT and LOST */
  struct mrc_txlist *lists; /* by plane */
  uint64_t inflight_bytes;  /* equals the sum over the lists */
  uint32_t una_psn;         /* oldest PSN not acknowledged */
  uint32_t next_psn;        /* next PSN to assign */
  uint32_t n_tosend;
  uint32_t psns; /* outstanding at most */
  uint32_t mask;
  uint32_t fresh; /* slots never used: their contents are undefined */
  uint32_t planes;
  uint16_t next_order;
};

/* psns: most PSNs outstanding, 1 to MRC_TXWIN_MAX_PSNS. 0 or -ENOMEM. */
int mrc_txwin_init(struct mrc_txwin *win, uint32_t psns, uint32_t planes) MRC_MUST_CHECK;
void mrc_txwin_free(struct mrc_txwin *win);
void mrc_txwin_start(struct mrc_txwin *win, uint32_t first_psn);

static inline uint32_t mrc_txwin_outstanding(const struct mrc_txwin *win) {
  return mrc_psn_sub(win->next_psn, win->una_psn);
}
static inline bool mrc_txwin_holds(const struct mrc_txwin *win, uint32_t psn) {
  return mrc_psn_sub(psn, win->una_psn) < mrc_txwin_outstanding(win);
}
static inline struct mrc_txslot *mrc_txwin_slot(const struct mrc_txwin *win, uint32_t psn) {
  return &win->slots[psn & win->mask];
}
/* Whether `a` left after `b`. Fewer than 2^15 packets leave at the same time. */
static inline bool mrc_txslot_after(const struct mrc_txslot *a, const struct mrc_txslot *b) {
  return a->sent_ns != b->sent_ns ? a->sent_ns > b->sent_ns : (int16_t)(a->order - b->order) > 0;
}
/* The PSN of a slot inside the window. */
uint32_t mrc_txwin_psn_of(const struct mrc_txwin *win, uint16_t slot);

/* Adds a packet that leaves now to the packets in flight on its plane. */
static inline void mrc_txwin_link(struct mrc_txwin *win, struct mrc_txslot *slot) {
  struct mrc_txlist *list = &win->lists[slot->plane];
  const uint16_t index = (uint16_t)(slot - win->slots);
  slot->older = list->newest;
  slot->newer = MRC_TX_NONE;
  if (list->newest != MRC_TX_NONE)
    win->slots[list->newest].newer = index;
  else
    list->oldest = index;
  list->newest = index;
  list->bytes += slot->bytes;
  win->inflight_bytes += slot->bytes;
}
/* Assigns the next PSN to a packet that leaves now. Inline: runs for every packet. */
static inline uint32_t mrc_txwin_append(struct mrc_txwin *win, uint32_t wqe, uint32_t bytes,
                                        uint16_t ev, uint8_t plane, uint64_t now_ns) {
  mrc_assert(bytes <= UINT16_MAX && plane < win->planes);
  const uint32_t psn = win->next_psn;
  struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  mrc_assert(mrc_txwin_outstanding(win) <= win->mask);
  if (win->fresh > 0)
    win->fresh--;
  else
    mrc_assert(slot->state == MRC_TX_FREE);
  *slot = (struct mrc_txslot){.sent_ns = now_ns,
                              .order = win->next_order++,
                              .wqe = (uint16_t)wqe,
                              .bytes = (uint16_t)bytes,
                              .ev = ev,
                              .ev_lost = MRC_TX_NONE,
                              .state = MRC_TX_INFLIGHT,
                              .tries = 1,
                              .plane = plane & 31};
  win->next_psn = mrc_psn_add(psn, 1);
  mrc_txwin_link(win, slot);
  return psn;
}
/* The oldest PSN to send (again); there must be one. */
uint32_t mrc_txwin_first_tosend(const struct mrc_txwin *win);

/* The four events of a packet. */
/* It leaves again, or after it was refused. */
void mrc_txwin_on_send(struct mrc_txwin *win, uint32_t psn, uint16_t ev, uint8_t plane,
                       uint64_t now_ns);
/* Takes back the last mrc_txwin_on_send of this PSN: the kernel refused it. */
void mrc_txwin_on_refused(struct mrc_txwin *win, uint32_t psn);
void mrc_txwin_on_lost(struct mrc_txwin *win, uint32_t psn);
/* Returns the state before; ACKED and FREE change nothing. */
enum mrc_tx_state mrc_txwin_on_acked(struct mrc_txwin *win, uint32_t psn);

/* Empties the window (the QP failed). */
void mrc_txwin_clear(struct mrc_txwin *win);

/* ---- the requester ---- */

/* The requester's state of a QP: send queue, send window, and the time of the last sign of life.
   send.c sends; loss.c decides which packets are lost. */

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
  uint16_t opcode : 1;      /* enum mrc_wr_opcode */
  uint16_t redundant : 1;   /* each packet leaves twice */
  uint16_t unsignaled : 1;  /* the next signaled one completes for it too */
};

_Static_assert(sizeof(struct mrc_wqe) == 48, "much of the memory of a QP");

_Static_assert(MRC_MAX_MTU / 4 < 1 << 13, "part_words holds any path MTU");

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
  uint32_t fruitless;     /* timeouts since bytes were last acknowledged */
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
/* Opens a send window of `psns` PSNs. 0 or -ENOMEM. */
int mrc_requester_start(struct mrc_requester *req, const struct mrc_qp_rts_attr *attr,
                        uint32_t psns, uint64_t now_ns) MRC_MUST_CHECK;

/* Whether a work request is outstanding. A transport ACK completes it, after its last SACK. */
static inline bool mrc_requester_is_busy(const struct mrc_requester *req) {
  return req->sq_head != req->sq_tail;
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
  if (req->sq_send == req->sq_tail) return false;
  if (mrc_psn_sub(req->win.next_psn, req->peer_next_psn) >= req->peer_mpr) return false;
  if (mrc_txwin_outstanding(&req->win) >= req->win.psns) return false;
  const struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
  if (wqe->opcode == MRC_WR_WRITE_IMM && req->opened == 0 &&
      req->wimm_inflight >= attr->peer_max_wimm)
    return false;
  const uint32_t part_bytes = wqe->part_words * 4u;
  const uint64_t offset = (uint64_t)req->opened * part_bytes;
  *bytes = (uint32_t)mrc_min_u64(wqe->bytes - offset, part_bytes);
  return true;
}
/* The oldest packet in flight, if nothing can be sent before its answer: the PSN window is closed,
   or everything posted has left. Otherwise 0. */
const struct mrc_txslot *mrc_requester_awaited(const struct mrc_requester *req,
                                               const struct mrc_qp_rts_attr *attr);

/* Completes the oldest work request. Returns whether that gave a completion. */
bool mrc_requester_complete(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                            uint8_t status);
/* Completes all work requests: the first completion has `status`, the rest are flushed. */
void mrc_requester_flush(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                         uint8_t status);
/* The peer gave a sign of life. */
void mrc_requester_on_progress(struct mrc_requester *req, uint64_t now_ns);

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

/* ---- the receive window ---- */

/* The receive window of a responder: which PSNs arrived, which of them end a message, and what the
   next SACK reports. It holds only bitmaps: it places no data and sends nothing. */

#define MRC_RXWIN_MAX_PSNS 4096 /* so that a 64-bit mask has a bit for each word */

struct mrc_rxwin {
  struct mrc_bitmap received;
  struct mrc_bitmap last;  /* PSNs that end a message, within the window */
  struct mrc_bitmap other; /* PSNs of packets that have the other one of two sizes */
  uint32_t next_psn;       /* the cumulative PSN + 1: first PSN not received (or held back) */
  uint32_t end_psn;        /* one after the highest PSN received */
  uint32_t psns;           /* width of the window: it accepts [next_psn, next_psn + psns) */
  uint64_t unreported;     /* bit w: word w of `received` has news not yet in any SACK */
  uint64_t reported_once;  /* bit w: its news was in only one SACK, which may be lost */
  bool start_is_due;       /* of a word with the window's start and end, the end was reported */
};

enum mrc_rx_verdict { MRC_RX_NEW, MRC_RX_DUPLICATE, MRC_RX_BEYOND };

/* psns is a multiple of 64, at most MRC_RXWIN_MAX_PSNS. 0 or -ENOMEM. */
int mrc_rxwin_init(struct mrc_rxwin *win, uint32_t psns) MRC_MUST_CHECK;
void mrc_rxwin_free(struct mrc_rxwin *win);
void mrc_rxwin_start(struct mrc_rxwin *win, uint32_t first_psn);

enum mrc_rx_verdict mrc_rxwin_judge(const struct mrc_rxwin *win, uint32_t psn);
/* Marks a PSN that was judged NEW. */
void mrc_rxwin_add(struct mrc_rxwin *win, uint32_t psn, bool last, bool other);
/* The packets from next_psn on, within one word of the bitmap, that arrived and do not end a
   message. Returns their number, and how many of them have the other size. */
uint32_t mrc_rxwin_run(const struct mrc_rxwin *win, uint32_t *others);
/* Advances the cumulative PSN over n PSNs, which must have arrived and lie in one word. */
void mrc_rxwin_advance(struct mrc_rxwin *win, uint32_t n);

/* The word of the bitmap that holds the PSN, as a bit of a mask. */
static inline uint64_t mrc_rxwin_word(const struct mrc_rxwin *win, uint32_t psn) {
  return 1ull << ((psn & win->received.mask) >> 6);
}
/* The bitmap of one SACK: bit i is set if PSN *base + i arrived. Chooses the word in `wanted`
   nearest to the window's start, removes it from `wanted` and counts it as reported. The newest
   word is shown with as many PSNs before it as fit. If `wanted` has no word in the window, it
   chooses a word with unreported news, else a word reported once, else the 64 PSNs after the
   cumulative PSN. */
uint64_t mrc_rxwin_report(struct mrc_rxwin *win, uint64_t *wanted, uint32_t *base);
/* The kernel refused the report from `base`: its words count as unreported again. */
void mrc_rxwin_on_refused(struct mrc_rxwin *win, uint32_t base);
/* The bitmap from `base`; does not count it as reported. */
uint64_t mrc_rxwin_view(const struct mrc_rxwin *win, uint32_t base);
/* Whether another mrc_rxwin_report would include unreported news. */
bool mrc_rxwin_has_news(const struct mrc_rxwin *win);

/* ---- EVs that the network marks ---- */

/* When a receiver calls an EV bad (ALWAYS_SKIP, reading S4-B): its packets came marked
   MRC_MARKED_ROW times in a row, and meanwhile another EV delivered one without a mark. If all EVs
   are marked, none of them is worse than the others. The receiver does not know the peer's EVs, so
   it remembers a few that were marked lately. */

enum { MRC_MARKED_ROW = 16, MRC_MARKED_EVS = 8 };

/* An EV whose packets came marked, by its value. */
struct mrc_marked_ev {
  uint32_t ev;
  uint32_t row;    /* packets since the last one without a mark; 0: the place is free */
  uint32_t others; /* mrc_marked.clear at the first of them */
};

struct mrc_marked {
  struct mrc_marked_ev evs[MRC_MARKED_EVS]; /* by a hash of the EV; a newer one takes the place */
  uint32_t clear;                           /* packets without a mark; free-running */
};

/* Takes in packets of an EV that came together. Returns whether the EV is to be called bad. */
static inline bool mrc_marked_take(struct mrc_marked *marked, uint32_t ev, uint32_t packets,
                                   bool ce) {
  struct mrc_marked_ev *at = &marked->evs[(ev * 0x9E3779B1u) >> 29];
  if (!ce) {
    marked->clear += packets;
    if (at->ev == ev) at->row = 0;
    return false;
  }
  if (at->ev != ev || at->row == 0) *at = (struct mrc_marked_ev){.ev = ev, .others = marked->clear};
  at->row += packets;
  if (at->row < MRC_MARKED_ROW || at->others == marked->clear) return false;
  at->row = 0; /* begins anew, so that a SACK that is lost is not the only one */
  return true;
}

_Static_assert(MRC_MARKED_EVS == 1 << 3, "the hash has three bits");

/* ---- the responder ---- */

/* The responder's state of a QP: receive window, immediates that wait for their turn, and answers
   that are due. receive.c handles packets and builds the answers. */

/* Why a SACK is due: the newest packet of one plane since its last SACK, or of one EV if the SACK
   has to report on that EV. */
struct mrc_sack_trigger {
  uint64_t news_words; /* words of the receive bitmap with news of this plane or EV */
  uint64_t first_ns;   /* when the oldest unreported packet arrived */
  uint64_t arrived_ns; /* when that packet arrived; the wait is subtracted from the round trip */
  uint32_t psn;
  uint32_t ev;
  uint16_t tx_timestamp;
  uint16_t probe_id;
  uint8_t port;
  uint8_t m; /* enum mrc_sack_m */
  bool pr;   /* answers a reliability probe */
  bool now;  /* due at once */
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
  uint32_t psn;
};

#define MRC_MAX_TRIGGERS 32 /* SACKs waiting; beyond that the newest is overwritten */
#define MRC_MAX_NACKS 64    /* NACKs waiting; beyond that they are not sent */

/* Data packets of one message of the driver that were placed, but not yet accounted for: that is
   done once for all of them. */
struct mrc_arrivals {
  uint64_t words;        /* of the window, as a mask */
  uint64_t bytes;        /* payload */
  uint32_t packets;      /* 0: none */
  uint32_t psn;          /* of the newest packet */
  uint32_t sack_bytes;   /* towards the SACK threshold */
  uint16_t tx_timestamp; /* of the newest packet */
  bool now;              /* a SACK is due now */
};

struct mrc_responder {
  struct mrc_rxwin win;
  struct mrc_arrivals arrivals;
  uint32_t mpr;              /* PSNs granted to the peer now; the whole window is still accepted */
  struct mrc_wimm *wimms;    /* ring of max_wimm; index rqmsn modulo its power-of-two size */
  struct mrc_bitmap waiting; /* those that have come; the others are undefined */
  uint32_t wimm_mask;
  uint32_t next_rqmsn;    /* next immediate to deliver; free-running */
  uint32_t wimm_unpolled; /* delivered and not yet polled */
  uint32_t done_msn;      /* messages completed in order, modulo 2^24 */
  uint64_t message_bytes; /* received before win.next_psn of the message that contains it */
  uint32_t part_bytes[2]; /* both sizes of packets that do not end a message; 0: not seen yet */
  struct mrc_sack_trigger triggers[MRC_MAX_TRIGGERS]; /* oldest news first */
  struct mrc_nack_out nacks[MRC_MAX_NACKS];
  uint8_t n_triggers;
  uint8_t n_nacks;
  uint8_t last_port;    /* port of the newest packet; 0: none yet */
  uint8_t nak_syndrome; /* why the QP failed, the answer to later packets; 0: none */
  bool ack_wanted;      /* a transport ACK (or the NAK) is due */
  bool ack_each;        /* with each SACK: a packet came twice, so its writer may fear losses */
  bool sack_now;        /* all unreported news is due */
  bool recorded;        /* placed bytes also count as RX_RECORDED */
  struct mrc_sack_trigger last_trigger; /* the last one used; for SACKs without a trigger */
  uint64_t arrived_ns;                  /* of the newest packet */
  uint32_t unsacked_bytes;              /* received minus sack_threshold_bytes for each SACK */
  uint64_t sack_deadline_ns;            /* when the oldest news is due */
  uint64_t nack_ns;                     /* when the last rate-limited NACK or NAK was queued */
  uint64_t received_bytes;
  struct mrc_marked marked; /* reading S4-B only */
};

/* 0 or -ENOMEM. */
int mrc_responder_init(struct mrc_responder *resp, uint32_t mpr, uint32_t max_wimm) MRC_MUST_CHECK;
/* The QP failed: only the NAK is still due. Or it is about to be freed. */
void mrc_responder_clear(struct mrc_services *services, struct mrc_responder *resp);
/* When the oldest news is due; MRC_NEVER: there is none. */
static inline void mrc_responder_set_deadline(struct mrc_services *services,
                                              struct mrc_responder *resp, uint64_t deadline_ns) {
  if (resp->sack_deadline_ns != MRC_NEVER) services->ready.n_reporting--;
  if (deadline_ns != MRC_NEVER) services->ready.n_reporting++;
  resp->sack_deadline_ns = deadline_ns;
}

/* The EV as it was seen on the wire. */
static inline uint32_t mrc_meta_ev(const struct mrc_meta *meta) {
  return (uint32_t)meta->sport << 16 | (meta->flow_label & 0xFFFF);
}
/* Records that this packet requires a SACK. Packets that share a SACK share a trigger, which keeps
   the newest packet. `pr`: the packet is a reliability probe. */
struct mrc_sack_trigger *mrc_responder_trigger(struct mrc_responder *resp, uint32_t psn,
                                               uint16_t tx_timestamp, const struct mrc_meta *meta,
                                               bool pr, uint64_t now_ns);
void mrc_responder_queue_nack(struct mrc_responder *resp, const struct mrc_wire *wire,
                              const struct mrc_meta *meta, uint8_t reason);
/* Checks the immediate's number and keeps it until its turn. */
bool mrc_responder_stash(struct mrc_responder *resp, uint32_t max_wimm,
                         const struct mrc_wire *wire);
/* Hands the next immediate, which has come, to the CQ; false if the CQ is full or max_wimm of them
   are not yet polled. */
bool mrc_responder_deliver(struct mrc_services *services, struct mrc_responder *resp, uint32_t qpn,
                           uint32_t max_wimm);
