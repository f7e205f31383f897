/* SPDX-License-Identifier: Apache-2.0 */
/* A packet in flight between the hosts of a pair: built from a burst as a socket would build it;
   links mark, trim and damage it. It holds its source and destination, but no times. */
#pragma once

#include "mrc.h"
#include "virtual/link.h"

struct mrc_datagram {
  struct mrc_datagram *next; /* in a host's inbox */
  struct mrc_meta meta;      /* for the receiving driver; meta.port is the plane */
  int from;                  /* host */
  int to;
  int path;
  int hop;        /* links passed */
  uint8_t tclass; /* as the sender gave it */
  int flipped;    /* the bit that a fault flipped; -1: none */
  uint32_t n;     /* bytes of UDP payload */
  uint8_t bytes[];
};

/* Allocates; the caller frees. */
struct mrc_datagram *mrc_datagram_make(int from, const struct mrc_burst *burst,
                                       const struct mrc_packet *piece);
struct mrc_datagram *mrc_datagram_copy(const struct mrc_datagram *packet);
/* Applies a link's marking, trimming and damage to the packet. */
void mrc_datagram_suffer(struct mrc_datagram *packet, const struct mrc_link_fate *fate);
