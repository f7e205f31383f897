/* SPDX-License-Identifier: Apache-2.0 */
/* What all of the core, and the folders around it, are made of: assertions and arithmetic, names of
   counters, PSNs, random numbers, secrets, lists, maps, and slots with their credits. It owns no
   state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Reports a broken invariant of the engine and aborts. Never called because of bad input. */
void mrc_assert_failed(const char *expression, const char *file, int line)
    __attribute__((noreturn, cold));

#define mrc_assert(expression)                   \
  (__builtin_expect(!!(expression), 1) ? (void)0 \
                                       : mrc_assert_failed(#expression, __FILE__, __LINE__))

#define MRC_MUST_CHECK __attribute__((warn_unused_result))

/* Few packets take this way: it stays out of the way of the others. */
#define MRC_RARE __attribute__((cold, noinline))

/* Loops over the bits that are set in `mask`, lowest first; `bit` is the number of the bit. */
#define MRC_EACH_BIT(bit, mask)                                              \
  for (uint32_t bit##_rest = (mask), bit;                                    \
       bit##_rest != 0 && (bit = (uint32_t)__builtin_ctz(bit##_rest), true); \
       bit##_rest &= bit##_rest - 1)

#define MRC_NEVER UINT64_MAX /* no deadline */

static inline uint64_t mrc_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t mrc_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t mrc_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t mrc_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* a * b / divisor; the intermediate product may exceed 64 bits. */
static inline uint64_t mrc_mul_div(uint64_t a, uint64_t b, uint64_t divisor) {
  return (uint64_t)((unsigned __int128)a * b / divisor);
}

/* The smallest power of two that is at least n; n is 1 .. 2^31. */
static inline uint32_t mrc_ceil_pow2(uint32_t n) {
  uint32_t size = 1;
  while (size < n)
    size *= 2;
  return size;
}

/* ---- counters, drops, trace points ---- */

/* Numbers of the engine's counters (counters.def), trace points (trace.def) and drop reasons of
   received packets (drops.def; MRC_DROP_NONE: the packet was accepted). */

enum mrc_counter {
#define X(name, meaning) MRC_COUNTER_##name,
#include "counters.def"
#undef X
  MRC_COUNTERS
};

enum mrc_drop {
  MRC_DROP_NONE,
#define X(name, meaning) MRC_DROP_##name,
#include "drops.def"
#undef X
  MRC_DROP_COUNT
};

enum mrc_trace_point {
#define X(name, a, b) MRC_TRACE_##name,
#include "trace.def"
#undef X
  MRC_TRACE_POINTS
};

/* ---- PSNs ---- */

/* Serial arithmetic on 24-bit packet sequence numbers. PSNs are compared only through this file;
   a PSN is "before" another when it is less than half the space behind it. */

#define MRC_PSN_BITS 24
#define MRC_PSN_MASK 0xFFFFFFu

static inline uint32_t mrc_psn_add(uint32_t psn, uint32_t n) { return (psn + n) & MRC_PSN_MASK; }

static inline uint32_t mrc_psn_sub(uint32_t psn, uint32_t n) { return (psn - n) & MRC_PSN_MASK; }

/* Signed distance from b to a: positive when a is after b; -2^23 .. 2^23 - 1. */
static inline int32_t mrc_psn_diff(uint32_t a, uint32_t b) {
  return (int32_t)((a - b) << (32 - MRC_PSN_BITS)) >> (32 - MRC_PSN_BITS);
}

/* ---- random numbers ---- */

/* A small seeded generator (splitmix64) for EV order and simulation. Never a source of secrets. */

#define MRC_PRNG_STEP 0x9E3779B97F4A7C15ull

struct mrc_prng {
  uint64_t state;
};

static inline uint64_t mrc_prng_next(struct mrc_prng *prng) {
  uint64_t z = (prng->state += MRC_PRNG_STEP);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/* Uniform enough in [0, n) for n far below 2^32. */
static inline uint32_t mrc_prng_below(struct mrc_prng *prng, uint32_t n) {
  return (uint32_t)(((mrc_prng_next(prng) >> 32) * n) >> 32);
}

/* ---- secret numbers ---- */

/* Numbers that a peer cannot guess from earlier ones: SipHash-2-4 of a counter. They are as secret
   as the seed, and the same seed gives the same numbers. */

struct mrc_secret {
  uint64_t key[2];
  uint64_t n; /* numbers generated */
};

/* SipHash-2-4 of the eight bytes of `message`: two rounds for each of two words, then four. */
static inline uint64_t mrc_secret_hash(const uint64_t key[2], uint64_t message) {
#define ROTATE(value, bits) ((value) << (bits) | (value) >> (64 - (bits)))
  uint64_t v[4] = {key[0] ^ 0x736F6D6570736575ull, key[1] ^ 0x646F72616E646F6Dull,
                   key[0] ^ 0x6C7967656E657261ull, key[1] ^ 0x7465646279746573ull};
  const uint64_t words[] = {message, 8ull << 56}; /* the second holds the length */
  for (int round = 0; round < 8; round++) {
    const bool of_word = round < 4;
    if (of_word && round % 2 == 0) v[3] ^= words[round / 2];
    if (round == 4) v[2] ^= 0xFF;
    v[0] += v[1];
    v[2] += v[3];
    v[1] = ROTATE(v[1], 13) ^ v[0];
    v[3] = ROTATE(v[3], 16) ^ v[2];
    v[0] = ROTATE(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = ROTATE(v[3], 21) ^ v[0];
    v[1] = ROTATE(v[1], 17) ^ v[2];
    v[2] = ROTATE(v[2], 32);
    if (of_word && round % 2 == 1) v[0] ^= words[round / 2];
  }
  return v[0] ^ v[1] ^ v[2] ^ v[3];
#undef ROTATE
}

static inline uint64_t mrc_secret_next(struct mrc_secret *secret) {
  return mrc_secret_hash(secret->key, secret->n++);
}

/* ---- lists ---- */

/* Intrusive lists: the members hold the nodes. Every operation takes constant time. */

/* The node of a member is all 0 while it is in no list. In the head of a list `next` is the first
   node and `prev` the last; both point to the head itself if the list is empty. */
struct mrc_node {
  struct mrc_node *next;
  struct mrc_node *prev;
};

/* The struct that holds the node. */
#define MRC_NODE_OWNER(node, type, member) ((type *)((char *)(node) - offsetof(type, member)))

static inline void mrc_list_init(struct mrc_node *list) { list->next = list->prev = list; }

static inline bool mrc_list_is_empty(const struct mrc_node *list) { return list->next == list; }

static inline bool mrc_node_joined(const struct mrc_node *node) { return node->next != NULL; }

/* Inserts a node at the end, unless it is in a list already; at the front if `list` is the first
   node of the list instead of its head. */
static inline void mrc_list_append(struct mrc_node *list, struct mrc_node *node) {
  if (mrc_node_joined(node)) return;
  node->prev = list->prev;
  node->next = list;
  list->prev->next = node;
  list->prev = node;
}

/* Removes the node from its list, if it is in one. */
static inline void mrc_node_leave(struct mrc_node *node) {
  if (!mrc_node_joined(node)) return;
  node->prev->next = node->next;
  node->next->prev = node->prev;
  *node = (struct mrc_node){0};
}

/* ---- maps ---- */

/* A hash map of fixed capacity from 32-bit keys to 32-bit values: QPNs and memory keys. At least
   half of its cells stay empty, so a look-up reads one or two cache lines. */

#define MRC_KEYMAP_NONE UINT32_MAX /* no value */

struct mrc_keymap_cell {
  uint32_t key;
  uint32_t value; /* MRC_KEYMAP_NONE: empty */
};

struct mrc_keymap {
  struct mrc_keymap_cell *cells;
  uint32_t mask;     /* number of cells - 1 */
  uint32_t count;    /* entries held */
  uint32_t capacity; /* limit of entries */
};

/* 0 or -ENOMEM. */
int mrc_keymap_init(struct mrc_keymap *map, uint32_t capacity) MRC_MUST_CHECK;
void mrc_keymap_free(struct mrc_keymap *map);
/* The value, or MRC_KEYMAP_NONE. */
uint32_t mrc_keymap_get(const struct mrc_keymap *map, uint32_t key);
/* 0, -EEXIST or -ENOSPC. */
int mrc_keymap_put(struct mrc_keymap *map, uint32_t key, uint32_t value) MRC_MUST_CHECK;
/* Removes the key; it must be present. */
void mrc_keymap_remove(struct mrc_keymap *map, uint32_t key);

/* ---- slots ---- */

/* The slots of the inboxes of two peers, and the credits for them: of messages, of emulated RC and,
   by cffi, of mailboxes (mrc/mailbox.py). Each has its own format of frames and immediates.

   Frame k of a direction goes to slot k modulo `count`. The sender reuses a slot after a
   credit: how many frames the receiver has freed. Numbers of frames wrap, and immediates carry only
   the bits of `mask`.

   The user decides when a frame of the peer is freed: as soon as it is read (emulated RC), when its
   records are matched or kept (messages), or when the program has received what it brought
   (mailboxes). And how a credit goes: in frames and alone, or always alone (mailboxes). */

/* cdef begin */

struct mrc_slots {
  uint32_t count;   /* of an inbox, a power of two */
  uint32_t bytes;   /* of a slot */
  uint32_t least;   /* bytes of a frame */
  uint32_t sent;    /* our frames */
  uint32_t done;    /* of these, acknowledged */
  uint32_t credit;  /* of these, freed by the peer */
  uint32_t arrived; /* frames of the peer */
  uint32_t freed;   /* of these, freed */
  uint32_t told;    /* `freed` as the peer knows it */
};

/* What mrc_slots_arrive returns in place of a place. */
enum { MRC_SLOTS_OUT_OF_ORDER = -1, MRC_SLOTS_NO_CREDIT = -2 };

/* Where frame number `frame` begins in its inbox. */
uint32_t mrc_slots_place(const struct mrc_slots *slots, uint32_t frame);
/* Whether the slot of our next frame is free: at the peer, and here for its bytes. */
bool mrc_slots_may_send(const struct mrc_slots *slots);
/* Takes a credit of the peer; false: for frames that were never sent. */
bool mrc_slots_credit(struct mrc_slots *slots, uint32_t freed, uint32_t mask);
/* Counts a frame of the peer and returns its place, or why the peer may not send it: it is not the
   next one, or not of such a length, or the peer had no credit for it. */
int mrc_slots_arrive(struct mrc_slots *slots, uint32_t frame, uint32_t mask, uint32_t bytes);
/* Frees the peer's frames before number `frame`, unless they are free. */
void mrc_slots_free(struct mrc_slots *slots, uint32_t frame);
/* Whether a credit is due: half an inbox has been freed since the last one. */
bool mrc_slots_owe(const struct mrc_slots *slots);

/* cdef end */

/* ---- immediates ---- */

/* Two bits that say what it is, and a number. */

#define MRC_IMM_NUMBER 0x3FFFFFFFu

static inline uint32_t mrc_imm(uint32_t what, uint32_t number) {
  return what << 30 | (number & MRC_IMM_NUMBER);
}

/* ---- numbers in frames ---- */

/* Little-endian, at any alignment. */

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
