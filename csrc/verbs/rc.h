/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC: SEND, READ and ATOMIC over the WRITEs of one QP. Sans-IO, as the engine. The caller
   gives requests and grants receives, hands over the completions and immediates of the QP, then
   calls mrc_rc_send. */
#pragma once

#include "core/base.h"
#include "mrc.h"

/* ---- What the two ends write to each other ---- */

/* All numbers are little-endian.

   A frame is written into the next slot of the other side's inbox, by WRITE_IMM. It begins with
   three counts since the connection began, then records follow. A record begins with kind, flags,
   status, a zero byte and the bytes that follow its fields; it is padded to 8 bytes.

   Immediates (mrc_imm), whose upper two bits tell them apart. Each carries the lower 30 bits of a
   count:

     00  n   frame n is in its slot
     01  n   frames that the sender of this has read
     10  n   receives that it has granted
     11  n   receives that it wants */

enum {
  MRC_RC_SLOTS = 32,                /* of an inbox, a power of two */
  MRC_RC_SLOT_BYTES = 65536 + 4096, /* a message of 64 KiB fits */
  MRC_RC_INBOX_BYTES = MRC_RC_SLOTS * MRC_RC_SLOT_BYTES,
  MRC_RC_FRAME_HEADER = 16,
  MRC_RC_RECORD_BYTES = 40 /* the longest, without bytes that follow */
};

enum mrc_rc_imm { MRC_RC_IMM_FRAME, MRC_RC_IMM_READ, MRC_RC_IMM_GRANTED, MRC_RC_IMM_WANTED };

struct mrc_rc_header {
  uint32_t read;    /* frames of the other side */
  uint32_t granted; /* receives: so many messages may come */
  uint32_t wanted;  /* messages that were posted and need one */
};

void mrc_rc_put_header(const struct mrc_rc_header *header, uint8_t *out);

enum mrc_rc_kind {
  MRC_RC_SEND = 1, /* the beginning of a message of `total` bytes; bytes follow */
  MRC_RC_MORE,     /* bytes of the message that has begun */
  MRC_RC_WROTE,    /* a WRITE_IMM of `total` bytes, which are in place */
  MRC_RC_READ,     /* asks for `total` bytes */
  MRC_RC_ATOMIC,   /* asks for an atomic operation */
  MRC_RC_DATA,     /* bytes of the oldest READ that has no answer */
  MRC_RC_VALUE,    /* answers the oldest ATOMIC: the value before it */
  MRC_RC_REFUSED,  /* answers the oldest READ or ATOMIC: `status` */
  MRC_RC_FAILED,   /* a message could not be received: `status` */
  MRC_RC_LAST_KIND = MRC_RC_FAILED
};

enum { MRC_RC_WITH_IMM = 1, MRC_RC_SOLICITED = 2 };

enum mrc_rc_atomic { MRC_RC_COMPARE_SWAP, MRC_RC_FETCH_ADD };

struct mrc_rc_record {
  uint8_t kind;       /* enum mrc_rc_kind */
  uint8_t flags;      /* SEND, WROTE: of MRC_RC_WITH_IMM, MRC_RC_SOLICITED */
  uint8_t status;     /* REFUSED, FAILED: enum mrc_wc_status */
  uint32_t bytes;     /* SEND, MORE, DATA: that follow */
  uint32_t total;     /* SEND, WROTE, READ */
  uint32_t imm;       /* SEND, WROTE */
  uint32_t rkey;      /* READ, ATOMIC */
  uint32_t operation; /* ATOMIC: enum mrc_rc_atomic */
  uint64_t va;        /* READ, ATOMIC */
  uint64_t value;     /* ATOMIC: what to compare with, or to add. VALUE */
  uint64_t swap;      /* ATOMIC */
};

/* Writes the fields; returns their bytes. */
size_t mrc_rc_encode(const struct mrc_rc_record *record, uint8_t *out);

/* ---- One end ---- */

enum {
  MRC_RC_ANSWERS = 16,           /* READs and ATOMICs without an answer, in each direction */
  MRC_RC_CREDITS = 8,            /* immediates without a frame in flight */
  MRC_RC_MOST_GRANTED = 1 << 20, /* receives that a peer may grant at a time */
  MRC_RC_WRS = MRC_RC_SLOTS + MRC_RC_CREDITS /* work requests besides the owner's WRITEs */
};

enum mrc_rc_request_kind {
  MRC_RC_DO_WRITE,
  MRC_RC_DO_SEND,
  MRC_RC_DO_READ,
  MRC_RC_DO_COMPARE_SWAP,
  MRC_RC_DO_FETCH_ADD
};

/* A request of the owner. */
struct mrc_rc_request {
  uint8_t kind; /* enum mrc_rc_request_kind */
  bool with_imm;
  bool solicited;
  bool fenced;    /* waits until no READ or ATOMIC is without an answer */
  bool acked;     /* WRITE: the peer has it */
  bool answered;  /* READ, ATOMIC */
  uint8_t status; /* enum mrc_wc_status of the answer */
  uint32_t bytes;
  uint32_t imm;
  uint32_t rkey;
  uint32_t lkey; /* WRITE: of the memory at `local` */
  uint64_t va;
  uint64_t local;
  uint64_t value; /* FETCH_ADD: what is added. COMPARE_SWAP: what is compared */
  uint64_t swap;
};

/* A READ or ATOMIC of the peer. */
struct mrc_rc_asked {
  uint8_t kind; /* enum mrc_rc_kind */
  uint32_t rkey;
  uint32_t bytes;
  uint32_t operation;
  uint64_t va, value, swap;
};

/* A message of the peer that has arrived. */
struct mrc_rc_message {
  uint32_t bytes;
  uint32_t imm;
  bool with_imm;
  bool solicited;
  bool written; /* a WRITE_IMM: the receive's memory is untouched */
};

/* What the owner of connections provides. `place` is the number of a request. */
struct mrc_rc_owner {
  /* Gives the engine a work request. Its completions come back in order. */
  void (*post)(void *user, const struct mrc_wr *wr);

  /* ---- Requests of this side ---- */

  /* Copies n bytes of a SEND, from `at` on. False: its memory is not registered. */
  bool (*gather)(void *user, uint32_t place, uint32_t at, uint8_t *to, uint32_t n);
  /* Copies n bytes of an answer to the memory of a READ or ATOMIC. False as above. */
  bool (*scatter)(void *user, uint32_t place, uint32_t at, const uint8_t *from, uint32_t n);
  /* The oldest request is done. */
  void (*done)(void *user);
  /* The oldest request that is not done has failed, and the connection with it. */
  void (*failed)(void *user, enum mrc_wc_status status);

  /* ---- Of the peer, for which a receive was granted ---- */

  /* A message of `total` bytes begins: takes a receive for it. MRC_WC_SUCCESS, or the error that
     the peer gets, after which nothing more arrives. */
  enum mrc_wc_status (*begin)(void *user, uint32_t total);
  /* Bytes of it, as above. */
  enum mrc_wc_status (*receive)(void *user, uint32_t at, const uint8_t *from, uint32_t n);
  /* It is whole. `begin` was not called for one that was `written`. */
  void (*received)(void *user, const struct mrc_rc_message *message);
  /* The peer has messages for n more receives than were granted. */
  void (*wants)(void *user, uint32_t n);

  /* ---- Of the peer, without a receive ---- */

  /* Copies n bytes of registered memory. False: the peer may not read there. */
  bool (*read)(void *user, uint32_t rkey, uint64_t va, uint8_t *to, uint32_t n);
  /* MRC_WC_SUCCESS and the `value` before, or the error that the peer gets. */
  enum mrc_wc_status (*atomic)(void *user, const struct mrc_rc_asked *asked, uint64_t *value);
};

struct mrc_rc {
  const struct mrc_rc_owner *owner;
  void *user;
  uint8_t *inbox, *outbox; /* MRC_RC_INBOX_BYTES each */
  uint32_t outbox_key;
  uint64_t their_inbox;
  uint32_t their_rkey;
  bool their_receives_shared; /* the peer grants receives only if they are wanted */
  bool connected;
  bool ended; /* nothing more is taken or sent, but `refusal` */

  struct mrc_slots slots;            /* a frame is freed when it has been read */
  uint32_t frame_next[MRC_RC_SLOTS]; /* of each frame sent: `next` at that time */
  uint32_t credits;                  /* immediates without a frame in flight */

  /* Requests: head <= next <= tail, free-running. Those before `next` were sent as a whole. */
  struct mrc_rc_request *requests;
  uint32_t size; /* a power of two */
  uint32_t head, next, tail;
  uint32_t acked;    /* the peer has all before this one */
  uint32_t sent;     /* bytes of `next` that are in frames */
  bool begun;        /* something of `next` was sent */
  uint8_t wrong;     /* enum mrc_wc_status with which `next` fails when it is the oldest */
  uint32_t messages; /* sent that took a receive */
  uint32_t granted;  /* receives, by the peer */
  uint32_t wanted;   /* messages posted that take a receive */
  uint32_t wanted_told;
  uint32_t asking[MRC_RC_ANSWERS]; /* places of requests without an answer, a ring */
  uint32_t asking_head, asking_tail;
  uint32_t most_asking;
  uint32_t answered; /* bytes of the oldest of these */

  /* The peer's. */
  uint32_t arrived; /* messages that took a receive */
  uint32_t grants;  /* receives that it was granted, or will be told of */
  uint32_t grants_told;
  uint32_t their_wanted;
  struct mrc_rc_asked asked[MRC_RC_ANSWERS]; /* a ring */
  uint32_t asked_head, asked_tail;
  uint32_t asked_sent;           /* bytes of the answer to the oldest */
  struct mrc_rc_message message; /* that arrives */
  bool receiving;
  uint32_t received;
  uint8_t refusal; /* enum mrc_wc_status, to be told; 0: none */
};

struct mrc_rc_config {
  const struct mrc_rc_owner *owner;
  void *user;
  uint8_t *inbox, *outbox; /* MRC_RC_INBOX_BYTES each */
  uint32_t outbox_key;     /* lkey */
  struct mrc_rc_request *requests;
  uint32_t size; /* of `requests`, a power of two */
};

void mrc_rc_init(struct mrc_rc *rc, const struct mrc_rc_config *config);

struct mrc_rc_peer {
  uint64_t inbox;
  uint32_t rkey;
  uint32_t most_asking; /* READs and ATOMICs without an answer, 1 .. MRC_RC_ANSWERS */
  bool shared;          /* its receives are shared by several QPs */
};

/* The QP is in RTS. Requests may be posted before. */
void mrc_rc_connect(struct mrc_rc *rc, const struct mrc_rc_peer *peer);
/* Posts a request, for which there must be a place; returns the place. */
uint32_t mrc_rc_post(struct mrc_rc *rc, const struct mrc_rc_request *request);
/* A request that was given to the engine has failed there: no later one is sent. */
void mrc_rc_fail(struct mrc_rc *rc, uint32_t place, enum mrc_wc_status status);
/* The peer may use n more receives. */
void mrc_rc_grant(struct mrc_rc *rc, uint32_t n);

/* Sends what can be sent. */
void mrc_rc_send(struct mrc_rc *rc);
/* Sends something in any case, so that the engine finds out whether the peer still acknowledges. */
void mrc_rc_prod(struct mrc_rc *rc);
/* Whether a request waits for something that only the peer can do, and whether the next one does
   `for_receive`. */
bool mrc_rc_waits(const struct mrc_rc *rc, bool *for_receive);
/* A work request has completed. */
void mrc_rc_sent(struct mrc_rc *rc, uint64_t wr_id);
/* Takes an immediate. False: the peer broke the protocol. */
bool mrc_rc_take(struct mrc_rc *rc, uint32_t imm, uint32_t bytes) MRC_MUST_CHECK;
