/* SPDX-License-Identifier: Apache-2.0 */
/* What peers write to each other. All numbers are little-endian.

   A frame is written into the next slot of the other side's inbox, by WRITE_IMM. It begins with the
   number of frames that its sender has read, a credit; records follow. A record begins with kind,
   space, tag and length; an eager message follows it, padded to 8 bytes. Eager records and RTS have
   32 bits of data beside their tag.

   Immediates (mrc_imm), whose upper two bits tell them apart:

     00  i   the data of receive or READ i are in place
     01  n   frame n is in its slot
     10  n   credit: frames read */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  MRC_MSG_SLOTS = 64, /* of an inbox, a power of two */
  MRC_MSG_SLOT_BYTES = 8192,
  MRC_MSG_INBOX_BYTES = MRC_MSG_SLOTS * MRC_MSG_SLOT_BYTES,
  MRC_MSG_FRAME_HEADER = 8,
  MRC_MSG_READS = 64,        /* of a peer, unanswered */
  MRC_MSG_RECORD_BYTES = 48, /* the longest, without a message */
  MRC_MSG_MOST_EAGER = 8064, /* of a record in a frame of its own */
  MRC_MSG_HOW_BITS = 8       /* of CHANGE: the lower bits of its `rkey` */
};

enum mrc_msg_imm { MRC_MSG_IMM_DATA, MRC_MSG_IMM_FRAME, MRC_MSG_IMM_CREDIT };

enum mrc_msg_record_kind {
  MRC_MSG_EAGER = 1,
  MRC_MSG_RTS,    /* `id` of a send: its message waits */
  MRC_MSG_CTS,    /* `id` of a receive: write here. `other`: the send it is for, or 0: the next one
                     of this space and tag */
  MRC_MSG_CANCEL, /* `id` of a receive: forget its CTS, unless a send has taken it */
  MRC_MSG_CANCELLED, /* answers CANCEL if it did */
  MRC_MSG_WITHDRAW,  /* `id` of a send: forget its RTS, unless a receive has taken it */
  MRC_MSG_WITHDRAWN, /* answers WITHDRAW if it did */
  MRC_MSG_REFUSE, /* `id` of a receive: no message comes. `bytes` of the message: if they fit, the
                     sender has no memory region left for now; 0: they do not fit */
  MRC_MSG_TRUNCATED, /* `id` of a send: no CTS comes. `bytes` of room: if the message fits, the
                        receiver has no memory region left for now */
  MRC_MSG_FETCH, /* `id` of a READ: write here what is at `tag`, in the region `other`, and send the
                    immediate of a receive. At most MRC_MSG_READS are not answered */
  MRC_MSG_UNREADABLE, /* `id` of a READ or ATOMIC: it may not do that there */
  MRC_MSG_CHANGE,  /* `id` of an ATOMIC: change the number at `tag`, in the region `other`, by the
                      operand in `address`. `rkey`: enum mrc_msg_atomic, and above MRC_MSG_HOW_BITS
                      the bytes of the number. `bytes`: what COMPARE_SWAP compares with */
  MRC_MSG_CHANGED, /* answers CHANGE. `bytes`: the number before */
  MRC_MSG_LAST_KIND = MRC_MSG_CHANGED
};

struct mrc_msg_record {
  uint8_t kind;
  uint32_t space;
  uint64_t tag;
  uint64_t bytes; /* of the message, of a READ; CTS, TRUNCATED: room; CHANGE, CHANGED: a number */
  uint32_t id, other;
  uint32_t data;    /* EAGER, RTS: beside the message */
  uint64_t address; /* CTS, FETCH; CHANGE: the operand */
  uint32_t rkey;    /* CTS, FETCH; CHANGE: what to do */
};

/* Bytes of a record in a frame, with its eager message. */
size_t mrc_msg_record_bytes(const struct mrc_msg_record *record);
/* Writes a record without its message; returns its bytes. */
size_t mrc_msg_encode(const struct mrc_msg_record *record, uint8_t *out);
/* Reads a record from the n bytes that are left of a frame. Returns its bytes with its message, or
   0 if it is none. */
size_t mrc_msg_decode(const uint8_t *in, size_t n, struct mrc_msg_record *record);
