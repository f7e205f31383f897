/* SPDX-License-Identifier: Apache-2.0 */
/* The send window of a requester: the state, EV and send time of each PSN not yet acknowledged in
   order. It also keeps the bytes in flight (in total and per plane), the PSNs to send again and the
   send order per plane. It makes no decisions. */
#pragma once

#include "core/base.h"
#include "mrc.h"

#define MRC_TX_NONE UINT16_MAX   /* no slot, no EV */
#define MRC_TXWIN_MAX_PSNS 32768 /* so that no slot of the ring is MRC_TX_NONE */
#define MRC_TX_MAX_TRIES 15      /* tries are counted up to this; no caller needs more than 4 */

enum mrc_tx_state {
  MRC_TX_FREE,
  MRC_TX_UNSENT, /* has a PSN and was never sent: new, or refused by the kernel */
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
  uint8_t tries : 4;       /* transmissions that the kernel took, saturating */
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
  return mrc_psn_in(psn, win->una_psn, mrc_txwin_outstanding(win));
}
static inline struct mrc_txslot *mrc_txwin_slot(const struct mrc_txwin *win, uint32_t psn) {
  return &win->slots[psn & win->mask];
}
/* Whether `a` left after `b`. Fewer than 2^15 packets leave at the same time. */
static inline bool mrc_txslot_after(const struct mrc_txslot *a, const struct mrc_txslot *b) {
  return a->sent_ns != b->sent_ns ? a->sent_ns > b->sent_ns : (int16_t)(a->order - b->order) > 0;
}
/* Whether the slot of this PSN, if it was assigned, still has its state. */
static inline bool mrc_txwin_remembers(const struct mrc_txwin *win, uint32_t psn) {
  const uint32_t ago = mrc_psn_sub(win->next_psn, psn);
  return ago > 0 && ago <= win->mask + 1 - win->fresh;
}
/* The PSN of a slot inside the window. */
uint32_t mrc_txwin_psn_of(const struct mrc_txwin *win, uint16_t slot);

/* Assigns the next PSN; its slot is UNSENT until mrc_txwin_on_send. */
uint32_t mrc_txwin_open(struct mrc_txwin *win, uint32_t wqe, uint32_t bytes);
/* Assigns the next PSN to a packet that leaves now: mrc_txwin_open and mrc_txwin_on_send in one. */
uint32_t mrc_txwin_append(struct mrc_txwin *win, uint32_t wqe, uint32_t bytes, uint16_t ev,
                          uint8_t plane, uint64_t now_ns);
/* The oldest PSN to send (again); there must be one. */
uint32_t mrc_txwin_first_tosend(const struct mrc_txwin *win);

/* The four events of a packet. */
void mrc_txwin_on_send(struct mrc_txwin *win, uint32_t psn, uint16_t ev, uint8_t plane,
                       uint64_t now_ns);
/* Takes back the last mrc_txwin_on_send of this PSN: the kernel refused it. */
void mrc_txwin_on_refused(struct mrc_txwin *win, uint32_t psn);
void mrc_txwin_on_lost(struct mrc_txwin *win, uint32_t psn);
/* Returns the state before; ACKED and FREE change nothing. */
enum mrc_tx_state mrc_txwin_on_acked(struct mrc_txwin *win, uint32_t psn);

/* Empties the window (the QP failed). */
void mrc_txwin_clear(struct mrc_txwin *win);
