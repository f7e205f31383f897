/* SPDX-License-Identifier: Apache-2.0 */
/* What the two ends of an emulated RC connection write to each other. All numbers are
   little-endian.

   A frame is written into the next slot of the other side's inbox, by WRITE_IMM. It begins with
   three counts since the connection began, then records follow. A record begins with kind, flags,
   status, a zero byte and the bytes that follow its fields; it is padded to 8 bytes.

   Immediates (mrc_imm), whose upper two bits tell them apart. Each carries the lower 30 bits of a
   count:

     00  n   frame n is in its slot
     01  n   frames that the sender of this has read
     10  n   receives that it has granted
     11  n   receives that it wants */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
struct mrc_rc_header mrc_rc_get_header(const uint8_t *in);

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

/* Bytes of a record's fields. */
size_t mrc_rc_fields(uint8_t kind);
/* Writes the fields; returns their bytes. */
size_t mrc_rc_encode(const struct mrc_rc_record *record, uint8_t *out);
/* Reads a record from the n bytes that are left of a frame. Returns its bytes with those that
   follow, or 0 if it is none. */
size_t mrc_rc_decode(const uint8_t *in, size_t n, struct mrc_rc_record *record);
