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
/* A port status message on this EV; 0 when there are too many of all kinds. */
const struct mrc_ev_probe *mrc_port_status_message(struct mrc_engine *engine, struct mrc_qp *qp,
                                                   uint16_t ev, uint64_t timeout_ns);
/* Forgets every probe of the QP. */
void mrc_ev_probe_drop_qp(struct mrc_engine *engine, const struct mrc_qp *qp);

int mrc_endpoint_on_request(struct mrc_engine *engine, const struct mrc_wire *packet,
                            const struct mrc_meta *meta, uint64_t now_ns);
int mrc_endpoint_on_response(struct mrc_engine *engine, const struct mrc_wire *packet,
                             const struct mrc_meta *meta, uint64_t now_ns);
/* Adds answers that wait, to half of the transmit; false when that is full. */
bool mrc_endpoint_transmit_answers(struct mrc_engine *engine);
/* The kernel refused the answer that came from this place of the ring: it waits again. */
void mrc_endpoint_on_refused(struct mrc_engine *engine, uint32_t place);
/* Adds the probes that wait; false when the transmit is full. */
bool mrc_ev_probe_transmit(struct mrc_engine *engine, uint64_t now_ns);
/* The fate of a probe's packet: taken 1, refused 0, or a negative errno. */
void mrc_ev_probe_on_commit(struct mrc_engine *engine, uint32_t slot, int taken, uint64_t now_ns);

/* The QP whose peer sends from this address and port, or 0. */
struct mrc_qp *mrc_endpoint_find_qp(const struct mrc_engine *engine, const uint8_t address[16],
                                    uint16_t sport);
/* The QP that speaks for the peer of this one, among all that share the peer. */
struct mrc_qp *mrc_endpoint_speaker(const struct mrc_engine *engine, struct mrc_qp *qp);
void mrc_endpoint_add_sources(struct mrc_engine *engine, struct mrc_qp *qp);
void mrc_endpoint_drop_sources(struct mrc_engine *engine, struct mrc_qp *qp);
/* Takes over what other QPs with the same peer know of its ports. */
void mrc_endpoint_take_peer_ports(const struct mrc_engine *engine, struct mrc_qp *qp);
/* The QP has failed: if it spoke for its peer, another that lives does so from now on. */
void mrc_endpoint_yield(struct mrc_engine *engine, struct mrc_qp *qp);

#endif
