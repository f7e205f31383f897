/* SPDX-License-Identifier: Apache-2.0 */
/* What all of the core, and the folders around it, are made of: assertions and arithmetic, names of
   counters, PSNs, random numbers, secrets, bitmaps, lists, maps and timers. It owns no state. */
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

/* Overwrites a secret, which no compiler may leave out. */
static inline void mrc_wipe(void *memory, size_t n) { explicit_bzero(memory, n); }

/* In constant time. */
static inline bool mrc_same(const uint8_t *one, const uint8_t *other, size_t n) {
  uint8_t differs = 0;
  for (size_t i = 0; i < n; i++)
    differs |= one[i] ^ other[i];
  return differs == 0;
}

#define MRC_NEVER UINT64_MAX /* no deadline */

/* Scales a minimum timeout to hosts of this noise. Minimum timeouts are stated for MRC_NOISE_NS. */
#define MRC_NOISE_NS 500000u
static inline uint64_t mrc_floor_ns(uint64_t ns, uint32_t noise_ns) {
  return ns * noise_ns / MRC_NOISE_NS;
}

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

static inline bool mrc_psn_before(uint32_t a, uint32_t b) { return mrc_psn_diff(a, b) < 0; }

/* Whether psn lies in the half-open range [first, first + n), n < 2^23. */
static inline bool mrc_psn_in(uint32_t psn, uint32_t first, uint32_t n) {
  return mrc_psn_sub(psn, first) < n;
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

/* A generator that has given n numbers since it had this state. */
static inline struct mrc_prng mrc_prng_skipped(uint64_t state, uint64_t n) {
  return (struct mrc_prng){.state = state + n * MRC_PRNG_STEP};
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

static inline uint64_t mrc_secret_rotate(uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}

static inline void mrc_secret_rounds(uint64_t v[4], int rounds) {
  for (; rounds > 0; rounds--) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = mrc_secret_rotate(v[1], 13) ^ v[0];
    v[3] = mrc_secret_rotate(v[3], 16) ^ v[2];
    v[0] = mrc_secret_rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = mrc_secret_rotate(v[3], 21) ^ v[0];
    v[1] = mrc_secret_rotate(v[1], 17) ^ v[2];
    v[2] = mrc_secret_rotate(v[2], 32);
  }
}

/* SipHash-2-4 of the eight bytes of `message`. */
static inline uint64_t mrc_secret_hash(const uint64_t key[2], uint64_t message) {
  uint64_t v[4] = {key[0] ^ 0x736F6D6570736575ull, key[1] ^ 0x646F72616E646F6Dull,
                   key[0] ^ 0x6C7967656E657261ull, key[1] ^ 0x7465646279746573ull};
  const uint64_t words[] = {message, 8ull << 56}; /* the second holds the length */
  for (int i = 0; i < 2; i++) {
    v[3] ^= words[i];
    mrc_secret_rounds(v, 2);
    v[0] ^= words[i];
  }
  v[2] ^= 0xFF;
  mrc_secret_rounds(v, 4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static inline uint64_t mrc_secret_next(struct mrc_secret *secret) {
  return mrc_secret_hash(secret->key, secret->n++);
}

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

/* Inserts a node that is in no list after `before`, which is a member or the head. */
static inline void mrc_node_insert(struct mrc_node *before, struct mrc_node *node) {
  node->prev = before;
  node->next = before->next;
  before->next->prev = node;
  before->next = node;
}

/* Insert a node at the end, or at the front, unless it is in a list already. */
static inline void mrc_list_append(struct mrc_node *list, struct mrc_node *node) {
  if (!mrc_node_joined(node)) mrc_node_insert(list->prev, node);
}
static inline void mrc_list_prepend(struct mrc_node *list, struct mrc_node *node) {
  if (!mrc_node_joined(node)) mrc_node_insert(list, node);
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

/* ---- timers ---- */

/* Deadlines of many objects in one indexed binary heap: each id has at most one deadline. The
   meaning of the ids is the caller's. Setting, clearing and taking the earliest cost O(log n). */

struct mrc_timer_cell {
  uint64_t deadline_ns; /* of the id that is this cell's index */
  uint32_t place;       /* of that id: its index in the heap, or UINT32_MAX */
  uint32_t heap;        /* the id at this index of the heap, earliest first */
};

struct mrc_timers {
  struct mrc_timer_cell *cells;
  uint32_t count;
  uint32_t capacity;
  uint32_t known; /* ids below it had deadlines; memory for the others was never touched */
};

/* Ids are 0 .. capacity - 1. The cells are the caller's; they need not be set. */
void mrc_timers_init(struct mrc_timers *timers, struct mrc_timer_cell *cells, uint32_t capacity);
/* MRC_NEVER clears. */
void mrc_timers_set(struct mrc_timers *timers, uint32_t id, uint64_t deadline_ns);
/* When `id` is due, or MRC_NEVER. */
static inline uint64_t mrc_timers_at(const struct mrc_timers *timers, uint32_t id) {
  const bool is_set = id < timers->known && timers->cells[id].place != UINT32_MAX;
  return is_set ? timers->cells[id].deadline_ns : MRC_NEVER;
}
/* The earliest deadline, or MRC_NEVER. */
uint64_t mrc_timers_next(const struct mrc_timers *timers);
/* Takes the earliest id whose deadline has come, or returns UINT32_MAX. */
uint32_t mrc_timers_pop(struct mrc_timers *timers, uint64_t now_ns);
