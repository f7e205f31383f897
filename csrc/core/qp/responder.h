/* SPDX-License-Identifier: Apache-2.0 */
/* The responder's state of a QP: receive window, immediates that wait for their turn, and answers
   that are due. responder_rx.c handles packets; responder_tx.c and sack_send.c
   build the answers. */
#pragma once

#include "core/base.h"
#include "core/services.h"
#include "core/wire.h"
#include "marked.h"
#include "rxwin.h"

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
void mrc_responder_free(struct mrc_responder *resp);
void mrc_responder_start(struct mrc_responder *resp, uint32_t first_psn);
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
/* The port whose SACK is due, or 0. Once `threshold_bytes` have arrived, the planes take turns. */
static inline uint8_t mrc_responder_due_port(const struct mrc_responder *resp,
                                             uint32_t threshold_bytes) {
  for (uint8_t i = 0; i < resp->n_triggers; i++)
    if (resp->triggers[i].now) return resp->triggers[i].port;
  const bool enough = resp->unsacked_bytes >= threshold_bytes;
  return resp->n_triggers > 0 && enough ? resp->triggers[0].port : 0;
}
void mrc_responder_queue_nack(struct mrc_responder *resp, const struct mrc_wire *wire,
                              const struct mrc_meta *meta, uint8_t reason);
/* Whether a packet that does not end a message has one of the two sizes of such packets on its QP.
   `other` is set if it has the second one. So one bit for each PSN tells how much arrived. */
static inline bool mrc_responder_is_part(struct mrc_responder *resp, const struct mrc_wire *wire,
                                         bool *other) {
  for (int i = 0; i < 2; i++) {
    if (resp->part_bytes[i] == 0) resp->part_bytes[i] = wire->payload_bytes;
    *other = i == 1;
    if (wire->payload_bytes == resp->part_bytes[i]) return true;
  }
  return false;
}
/* Checks the immediate's number and keeps it until its turn. */
bool mrc_responder_stash(struct mrc_responder *resp, uint32_t max_wimm,
                         const struct mrc_wire *wire);
/* The next immediate to deliver, or 0 if it has not come. */
static inline const struct mrc_wimm *mrc_responder_next_wimm(const struct mrc_responder *resp) {
  const bool waits = mrc_bitmap_test(&resp->waiting, resp->next_rqmsn);
  return waits ? &resp->wimms[resp->next_rqmsn & resp->wimm_mask] : NULL;
}
/* Hands it to the CQ; false if the CQ is full or max_wimm of them are not yet polled. */
bool mrc_responder_deliver(struct mrc_services *services, struct mrc_responder *resp, uint32_t qpn,
                           uint32_t max_wimm);
