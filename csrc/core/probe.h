/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoint operations, connectionless and addressed to QP 2: EV probes that test one path, port
   status, and the answers to both. */
#ifndef MRC_CORE_PROBE_H
#define MRC_CORE_PROBE_H

#include "engine.h"

/* Queues the probes that EVs and planes on probation want now, and sets qp->ev_probe_ns. */
void mrc_ev_probe_on_deadline(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns);
/* Ends the probes whose time is over. */
void mrc_ev_probe_expire(struct mrc_engine *engine, uint64_t now_ns);
/* A port status message to this peer; 0 when there is no slot for it. */
const struct mrc_ev_probe *mrc_port_status_message(struct mrc_engine *engine,
                                                   const struct mrc_peer *peer,
                                                   uint64_t timeout_ns);
/* Whether the message with this id has not left yet. */
bool mrc_ev_probe_is_queued(const struct mrc_engine *engine, const struct mrc_peer *peer,
                            uint16_t id);
/* A probe of a reverse EV; false when there is no slot for it. */
bool mrc_ev_probe_reverse(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                          uint64_t timeout_ns);
/* Forgets every probe of the QP. */
void mrc_ev_probe_drop_qp(struct mrc_engine *engine, struct mrc_qp *qp);
/* Forgets every port status message to the peer. */
void mrc_ev_probe_drop_messages(struct mrc_engine *engine, const struct mrc_peer *peer);

int mrc_endpoint_on_request(struct mrc_engine *engine, const struct mrc_wire *packet,
                            const struct mrc_meta *meta, uint64_t now_ns);
int mrc_endpoint_on_response(struct mrc_engine *engine, const struct mrc_wire *packet,
                             const struct mrc_meta *meta, uint64_t now_ns);
/* Probes on a plane were answered: whatever the peer is said to have told, its port is up. */
void mrc_endpoint_on_port_proved(struct mrc_engine *engine, struct mrc_peer *peer, uint32_t plane,
                                 uint64_t now_ns);
/* Adds answers that wait, to half of the transmit; false when that is full. */
bool mrc_endpoint_transmit_answers(struct mrc_engine *engine);
/* The kernel refused the answer that came from this place of the ring: it waits again. */
void mrc_endpoint_on_refused(struct mrc_engine *engine, uint32_t place);
/* Adds the probes that wait; false when the transmit is full. */
bool mrc_ev_probe_transmit(struct mrc_engine *engine, uint64_t now_ns);
/* The fate of a probe's packet: taken 1, refused 0, or a negative errno. */
void mrc_ev_probe_on_commit(struct mrc_engine *engine, uint32_t slot, int taken, uint64_t now_ns);

/* The QP joins its peer, and takes over what is known of the peer's ports. 0, -EADDRINUSE or
   -ENOSPC. */
int mrc_endpoint_add_qp(struct mrc_engine *engine, struct mrc_qp *qp,
                        const struct mrc_peer_source *sources, int n) MRC_MUST_CHECK;
/* The QP leaves its peer. */
void mrc_endpoint_drop_qp(struct mrc_engine *engine, struct mrc_qp *qp);

#endif
