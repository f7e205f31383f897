/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated host: the driver of one engine, and its ports. It turns bursts into packets and
   packets into calls; it knows no switch. */
#ifndef MRC_SIM_HOST_H
#define MRC_SIM_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "mrc.h"
#include "sim/frame.h"

struct mrc_sim;
struct mrc_hop;

struct mrc_sim_host {
  mrc_engine *engine;
  struct mrc_frame *inbox; /* arrived, not yet taken by the driver; the oldest first */
  struct mrc_frame *inbox_last;
  uint64_t run_at_ns;     /* the earliest run that is due */
  uint64_t late_until_ns; /* a busy host does not run before */
  uint64_t timer_at_ns;   /* an event for a deadline comes then; no later than the deadline */
  uint32_t gbn_first[2];  /* number + 1 of the first go-back-N flow that begins, and that ends, here
                           */
  uint32_t tcp_first;     /* number + 1 of the first TCP flow that begins here */
  uint32_t tcp_blocked;   /* bit p: the port of plane p takes no segments of TCP */
  uint32_t blocked;       /* bit p: the port of plane p holds more than the send buffer does */
  uint32_t down;          /* bit p: the port of plane p has no carrier */
};

/* Addresses of the hosts: what a QP must know to be connected. Planes count from 0 here. */
void mrc_sim_host_address(uint8_t out[16], uint32_t host, uint32_t plane);
void mrc_sim_path_address(uint8_t out[16], uint32_t host, uint32_t plane, uint32_t path);
/* The path that such an address names. */
uint16_t mrc_sim_path_of(const uint8_t address[16]);
uint16_t mrc_sim_source_port(uint32_t plane);

void mrc_sim_host_create(struct mrc_sim *sim, uint32_t host);
void mrc_sim_host_destroy(struct mrc_sim *sim, uint32_t host);

/* A packet has reached the host. */
void mrc_sim_host_arrive(struct mrc_sim *sim, uint32_t host, struct mrc_frame *packet);
/* The driver has its turn. */
void mrc_sim_host_run(struct mrc_sim *sim, uint32_t host);
/* Lets the driver look at its engine, after a call to the engine from outside. */
void mrc_sim_host_kick(struct mrc_sim *sim, uint32_t host);
/* The host's end of a hop has sent a packet. */
void mrc_sim_host_drained(struct mrc_sim *sim, uint32_t host, const struct mrc_hop *hop);
/* The host sees a port go down or come up; ports count from 1. */
void mrc_sim_host_port_up(struct mrc_sim *sim, uint32_t host, uint32_t port, bool up);

#endif
