/* SPDX-License-Identifier: Apache-2.0 */
/* What runs in virtual time: arrays that grow, the heap of events, links. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base.h"

/* Returns the array, which may have moved, with room for one item after the first n. */
void *mrc_grow(void *items, uint32_t n, uint32_t *capacity, size_t item_bytes);

/* ---- The heap ---- */

/* The event heap of the simulator, ordered by (time, order of insertion): the order of equal times
   does not depend on the heap's shape. It owns the entries, not the objects that they point to. */

struct mrc_heap_entry {
  uint64_t at_ns;
  uint64_t sequence; /* set by push: first in, first out among equal times */
  void *pointer;     /* the caller's */
  uint32_t kind;     /* the caller's */
  uint32_t index;    /* the caller's */
};

struct mrc_heap {
  struct mrc_heap_entry *entries; /* the next event first */
  size_t n;
  uint32_t capacity;
  uint64_t pushed; /* entries pushed ever */
};

void mrc_heap_push(struct mrc_heap *heap, struct mrc_heap_entry entry);
/* Takes the next event; false when there is none. */
bool mrc_heap_pop(struct mrc_heap *heap, struct mrc_heap_entry *entry);
/* Time of the next event; UINT64_MAX when there is none. */
uint64_t mrc_heap_next_ns(const struct mrc_heap *heap);
void mrc_heap_free(struct mrc_heap *heap);

/* ---- Links ---- */

/* One hop in one direction: a rate with its queue, a delay, and faults. It decides the fate of each
   packet that enters; the caller holds the packet and the clock. */

#define MRC_LINK_TRIM_BYTES 64 /* UDP payload that trimming keeps: every header up to RETH */
#define MRC_LINK_COPIES 2      /* a packet is duplicated once at most */

/* Zeros make a perfect link. Packets of a link are counted from 0 in the order of entry. */
struct mrc_link_config {
  uint64_t delay_ns;      /* propagation */
  uint64_t rate_bps;      /* 0: infinite, and no queue */
  uint64_t queue_bytes;   /* packets that would exceed it are dropped; 0: no limit */
  uint64_t ecn_bytes;     /* packets behind a longer backlog are marked CE; 0: never */
  bool trim;              /* packets that overflow are trimmed instead, and skip the queue */
  bool silent;            /* loses every packet */
  uint32_t mtu_bytes;     /* loses larger packets; 0: no limit */
  uint64_t loss_mask;     /* loses packet i of every 64 whose bit i is set */
  uint32_t lose_n;        /* loses the first n of every `lose_of` packets */
  uint32_t lose_of;       /* 0: none */
  uint32_t loss_ppm;      /* probability in parts per million, as below */
  uint32_t duplicate_ppm; /* arrives once more, `reorder_ns` later */
  uint32_t corrupt_ppm;   /* one bit flips */
  uint32_t reorder_ppm;   /* arrives later by up to `reorder_ns` */
  uint64_t reorder_ns;
};

struct mrc_link {
  struct mrc_link_config config; /* may change at any time */
  struct mrc_prng prng;
  uint64_t free_at_ns; /* when the last packet queued has left */
  uint64_t entered;    /* packets */
  uint64_t lost;       /* by fault */
  uint64_t overflowed; /* dropped or trimmed by the full queue */
  uint64_t marked;
};

/* The fate of one packet. */
struct mrc_link_fate {
  int copies;   /* 0: lost */
  bool ce;      /* congestion experienced */
  bool trimmed; /* cut to MRC_LINK_TRIM_BYTES, when it is longer */
  bool corrupt;
  uint64_t corrupt_bit; /* a random number: modulo the packet's bits, the one that flips */
  uint64_t at_ns[MRC_LINK_COPIES]; /* when each copy leaves the link */
};

struct mrc_link_fate mrc_link_pass(struct mrc_link *link, uint32_t bytes, uint64_t now_ns);
/* Bytes that wait to be sent. */
uint64_t mrc_link_backlog(const struct mrc_link *link, uint64_t now_ns);
