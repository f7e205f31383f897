/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of the inboxes of two peers, and the credits for them: of messages and, by cffi, of
   mailboxes (mrc/mailbox.py), which have fewer and smaller slots.

   Frame k of a direction goes to slot k modulo `count`. The sender reuses a slot after a
   credit: how many frames the receiver has freed. Numbers of frames wrap, and immediates carry only
   the bits of `mask`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* cdef begin */

struct mrc_slots {
  uint32_t count;   /* of an inbox, a power of two */
  uint32_t bytes;   /* of a slot */
  uint32_t sent;    /* our frames */
  uint32_t credit;  /* of these, freed by the peer */
  uint32_t arrived; /* frames of the peer */
  uint32_t freed;   /* of these, freed */
  uint32_t told;    /* `freed` as the peer knows it */
};

/* Where frame number `frame` begins in its inbox. */
uint32_t mrc_slots_place(const struct mrc_slots *slots, uint32_t frame);
/* Whether the slot of our next frame is free. */
bool mrc_slots_may_send(const struct mrc_slots *slots);
/* Takes a credit of the peer; false: for frames that were never sent. */
bool mrc_slots_credit(struct mrc_slots *slots, uint32_t freed, uint32_t mask);
/* Whether a frame of the peer is the next one. */
bool mrc_slots_is_next(const struct mrc_slots *slots, uint32_t frame, uint32_t mask);
/* Whether the peer had credit for its next frame. */
bool mrc_slots_granted(const struct mrc_slots *slots);
/* Frees the peer's frames before number `frame`, unless they are free. */
void mrc_slots_free(struct mrc_slots *slots, uint32_t frame);
/* Whether a credit is due: half an inbox has been freed since the last one. */
bool mrc_slots_owe(const struct mrc_slots *slots);

/* cdef end */

/* ---- Numbers in frames: little-endian, at any alignment ---- */

static inline void mrc_put32(uint8_t *out, uint32_t value) {
  for (int i = 0; i < 4; i++)
    out[i] = (uint8_t)(value >> 8 * i);
}

static inline void mrc_put64(uint8_t *out, uint64_t value) {
  mrc_put32(out, (uint32_t)value);
  mrc_put32(out + 4, (uint32_t)(value >> 32));
}

static inline uint32_t mrc_get32(const uint8_t *in) {
  uint32_t value = 0;
  for (int i = 0; i < 4; i++)
    value |= (uint32_t)in[i] << 8 * i;
  return value;
}

static inline uint64_t mrc_get64(const uint8_t *in) {
  return mrc_get32(in) | (uint64_t)mrc_get32(in + 4) << 32;
}
