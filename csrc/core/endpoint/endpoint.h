/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoint operations, connectionless and addressed to QP 2. Sends EV probes and port status, takes
   their answers and owns the peers. ev_probe.c and port_status.c handle the results; answer.h
   answers the requests of peers. */
#pragma once

#include "answer.h"
#include "core/qp.h"
#include "port_status.h"

struct mrc_endpoint {
  struct mrc_peers peers;
  struct mrc_answers answers;
  struct mrc_port_statuses statuses;
};

/* 0 or -ENOMEM. Call mrc_endpoint_free in both cases. */
int mrc_endpoint_init(struct mrc_endpoint *endpoint,
                      const struct mrc_engine_config *config) MRC_MUST_CHECK;
void mrc_endpoint_free(struct mrc_endpoint *endpoint);

/* Adds the QP to its peer, and copies the known state of the peer's ports to it. 0, -EADDRINUSE or
   -ENOSPC. */
int mrc_endpoint_add_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                        struct mrc_qp *qp, const struct mrc_peer_source *sources,
                        int n) MRC_MUST_CHECK;
/* Removes the QP from its peer. */
void mrc_endpoint_drop_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                          struct mrc_qp *qp);
/* Removes every probe of the QP. */
void mrc_endpoint_drop_probes(struct mrc_services *services, struct mrc_endpoint *endpoint,
                              struct mrc_qp *qp);
/* A port of this host went up or down: sends a port status to every peer. */
void mrc_endpoint_on_port_change(struct mrc_services *services, struct mrc_endpoint *endpoint);

/* Takes an endpoint request or response that `sealer` has opened; if that is NULL, a plain one with
   a good ICRC. 0 or a drop reason. */
int mrc_endpoint_receive(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         const struct mrc_wire *wire, const struct mrc_meta *meta,
                         struct mrc_qp *sealer, uint64_t now_ns);
/* Adds waiting probes to the transmit. False if the transmit is full. */
bool mrc_endpoint_transmit_probes(struct mrc_services *services, struct mrc_endpoint *endpoint,
                                  uint64_t now_ns);
/* The result of sending a probe. `taken`: the kernel took it (1), had no room (0), or failed
   (negative errno). */
void mrc_endpoint_on_commit(struct mrc_services *services, struct mrc_endpoint *endpoint,
                            uint32_t slot, int taken, uint64_t now_ns);
/* The next time at which mrc_endpoint_expire has work; 0: there is something to send. */
uint64_t mrc_endpoint_deadline(const struct mrc_services *services,
                               const struct mrc_endpoint *endpoint);
void mrc_endpoint_expire(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         uint64_t now_ns);
