/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <errno.h>
#include <string.h>

#include "core/send/burst.h"
#include "ev_probe.h"

#define MAX_SOURCES 65536 /* limit of the table of peers' sources */

int mrc_endpoint_init(struct mrc_endpoint *endpoint, const struct mrc_engine_config *config) {
  const uint32_t sources = mrc_min_u32(MAX_SOURCES, config->max_qps * MRC_MAX_PEER_SOURCES);
  const int error = mrc_peers_init(&endpoint->peers, config->max_qps, sources, config->seed);
  if (error != 0) return error;
  return mrc_port_statuses_init(&endpoint->statuses, endpoint->peers.max_peers);
}

void mrc_endpoint_free(struct mrc_endpoint *endpoint) {
  mrc_peers_free(&endpoint->peers);
  mrc_port_statuses_free(&endpoint->statuses);
}

/* A slot is free: gives it to a waiting port status message, otherwise to the next QP in turn. */
static void wake(struct mrc_services *services, struct mrc_endpoint *endpoint) {
  struct mrc_node *waiting = &services->ready.slot_waiting;
  if (mrc_port_status_on_room(services, &endpoint->statuses) || mrc_list_is_empty(waiting)) return;
  struct mrc_qp *qp = MRC_NODE_OWNER(waiting->next, struct mrc_qp, nodes.slot_waiting);
  mrc_node_leave(&qp->nodes.slot_waiting);
  qp->ev_probe_ns = 0;
  mrc_qp_touch(services, qp);
}

/* Removes every request of the user. Frees all slots before it gives any of them away. */
static void drop_requests(struct mrc_services *services, struct mrc_endpoint *endpoint,
                          const struct mrc_probe_user *user) {
  for (uint32_t n = mrc_probes_drop(&services->probes, user); n > 0; n--)
    wake(services, endpoint);
}

void mrc_endpoint_drop_probes(struct mrc_services *services, struct mrc_endpoint *endpoint,
                              struct mrc_qp *qp) {
  mrc_node_leave(&qp->nodes.slot_waiting);
  drop_requests(services, endpoint, &qp->probes);
}

int mrc_endpoint_add_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                        struct mrc_qp *qp, const struct mrc_peer_source *sources, int n) {
  const int error = mrc_peer_join(&endpoint->peers, qp, sources, n, qp->evset.ends[0].dport);
  if (error != 0) return error;
  struct mrc_peer *peer = qp->peer;
  if (peer->qps == qp) mrc_port_status_init(services, &endpoint->statuses, peer);
  mrc_port_status_on_joined(services, qp);
  return 0;
}

void mrc_endpoint_drop_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                          struct mrc_qp *qp) {
  struct mrc_peer *peer = qp->peer;
  if (peer == NULL) return;
  const bool last = peer->qps == qp && qp->peer_next == NULL;
  if (last) {
    mrc_port_status_drop(&endpoint->statuses, peer);
    drop_requests(services, endpoint, &mrc_port_status_of(&endpoint->statuses, peer)->messages);
  }
  mrc_answer_drop(&endpoint->answers, qp, last);
  mrc_peer_leave(&endpoint->peers, qp);
}

void mrc_endpoint_on_port_change(struct mrc_services *services, struct mrc_endpoint *endpoint) {
  services->probes.n_stuck = 0; /* waiting probes may fail now, and messages may leave on it */
  for (uint32_t i = 0; i < endpoint->peers.n_peers; i++)
    if (endpoint->peers.peers[i].qps != NULL)
      mrc_port_status_on_change(services, &endpoint->statuses, &endpoint->peers.peers[i]);
}

/* ---- the end of a probe ---- */

/* Frees the slot, gives it to the next user that waits, and returns the probe that ended. */
static struct mrc_ev_probe end(struct mrc_services *services, struct mrc_endpoint *endpoint,
                               struct mrc_ev_probe *probe) {
  const struct mrc_ev_probe ended = *probe;
  mrc_probes_end(&services->probes, probe);
  wake(services, endpoint);
  return ended;
}

static void fail(struct mrc_services *services, struct mrc_endpoint *endpoint,
                 struct mrc_ev_probe *probe, int error, uint64_t now_ns) {
  const struct mrc_ev_probe ended = end(services, endpoint, probe);
  if (ended.purpose == MRC_EV_PROBE_PORT_STATUS)
    mrc_port_status_on_failure(&endpoint->statuses, &ended, error, now_ns);
  else
    mrc_ev_probe_on_failure(services, &ended, error, now_ns);
}

static void succeed(struct mrc_services *services, struct mrc_endpoint *endpoint,
                    struct mrc_ev_probe *probe, bool ce, uint64_t now_ns) {
  const struct mrc_ev_probe ended = end(services, endpoint, probe);
  if (ended.purpose == MRC_EV_PROBE_PORT_STATUS)
    mrc_port_status_on_answer(services, &endpoint->statuses, &ended, now_ns);
  else
    mrc_ev_probe_on_answer(services, &ended, ce, now_ns);
}

static uint8_t op_of(const struct mrc_ev_probe *probe) {
  return probe->purpose == MRC_EV_PROBE_PORT_STATUS ? MRC_ENDPOINT_PORT_STATUS
                                                    : MRC_ENDPOINT_EV_PROBE;
}

/* Whether the answer comes from the destination of the probe. Under SRv6 the peer does not send
   from the destination address of an EV; then any source of the peer is accepted. */
static bool is_from_destination(const struct mrc_peers *peers, const struct mrc_ev_probe *probe,
                                const struct mrc_peer *peer, const struct mrc_meta *meta) {
  uint8_t src[16], dst[16];
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) return true; /* its QP may be gone */
  mrc_evset_addresses(&probe->qp->evset, probe->ev, src, dst);
  return memcmp(dst, meta->src, 16) == 0 || !mrc_peer_sends_from(peers, peer, dst);
}

/* Whether an answer reflects the timestamp of the probe. The peer may have added how long the probe
   waited there, if both sides agreed to that; sets it. */
static bool takes_time(struct mrc_ev_probe *probe, uint16_t reflected, uint64_t now_ns) {
  const uint16_t waited_units = (uint16_t)(reflected - probe->tx_timestamp);
  if (waited_units == 0) return true;
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS || waited_units > INT16_MAX) return false;
  probe->waited_ns = (uint64_t)waited_units << 10;
  return probe->qp->attr.rtr.service_times != 0 && probe->waited_ns < now_ns - probe->sent_ns;
}

static int on_response(struct mrc_services *services, struct mrc_endpoint *endpoint,
                       const struct mrc_wire *wire, const struct mrc_meta *meta,
                       const struct mrc_qp *sealer, uint64_t now_ns) {
  struct mrc_peers *peers = &endpoint->peers;
  struct mrc_ev_probe *probe = mrc_probes_find(&services->probes, (uint16_t)wire->psn);
  if (probe == NULL || !probe->sent || wire->endpoint.op != op_of(probe) ||
      !takes_time(probe, wire->endpoint.tx_timestamp, now_ns))
    return mrc_drop(services, MRC_DROP_UNKNOWN_ID, MRC_ENDPOINT_QPN, 0);
  struct mrc_peer *peer =
      probe->purpose == MRC_EV_PROBE_PORT_STATUS ? probe->peer : probe->qp->peer;
  if (sealer != NULL ? sealer->peer != peer : peer->sealed)
    return mrc_drop(services, MRC_DROP_SEAL, MRC_ENDPOINT_QPN, 0);
  if (!mrc_peer_knows(peers, peer, meta->src, meta->sport) ||
      !is_from_destination(peers, probe, peer, meta))
    return mrc_drop(services, MRC_DROP_SOURCE, MRC_ENDPOINT_QPN, 0);
  mrc_peer_prove(peers, peer);
  succeed(services, endpoint, probe, wire->endpoint.m == MRC_M_SKIP_ONCE, now_ns);
  return MRC_DROP_NONE;
}

int mrc_endpoint_receive(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         const struct mrc_wire *wire, const struct mrc_meta *meta,
                         struct mrc_qp *sealer, uint64_t now_ns) {
  if (wire->opcode == MRC_OP_ENDPOINT_REQUEST)
    return mrc_answer_on_request(services, &endpoint->peers, &endpoint->answers, wire, meta, sealer,
                                 now_ns);
  return on_response(services, endpoint, wire, meta, sealer, now_ns);
}

/* ---- sending probes ---- */

static bool send_probe(struct mrc_services *services, struct mrc_ev_probe *probe, uint64_t now_ns) {
  struct mrc_qp *qp = probe->qp;
  uint8_t tclass = mrc_tclass_probe(services);
  if (probe->purpose == MRC_EV_PROBE_COMMAND) tclass = mrc_tclass_data(services, false);
  if (probe->dscp != 0) tclass = (uint8_t)(probe->dscp << 2 | MRC_ECN_CAPABLE);
  struct mrc_burst *burst = mrc_burst_open(services, qp, probe->ev, tclass);
  if (burst == NULL) return false;
  const bool port_status = probe->purpose == MRC_EV_PROBE_PORT_STATUS;
  probe->ports_up = services->ports.up;
  probe->tx_timestamp = mrc_timestamp(now_ns);
  struct mrc_wire wire = {.opcode = MRC_OP_ENDPOINT_REQUEST,
                          .dest_qpn = MRC_ENDPOINT_QPN,
                          .psn = probe->id,
                          .endpoint = {.op = op_of(probe),
                                       .port_status_mask = port_status ? probe->ports_up : 0,
                                       .tx_timestamp = probe->tx_timestamp,
                                       .tsr = true}};
  mrc_burst_add_padded(services, burst, &wire, mrc_probes_slot(&services->probes, probe),
                       probe->bytes);
  mrc_trace(services, port_status ? MRC_TRACE_PORT_STATUS_OUT : MRC_TRACE_EV_PROBE_OUT, qp->qpn,
            probe->id, port_status ? probe->ports_up : probe->ev);
  return true;
}

/* Whether the probe can be sent now: 1, 0 if its port's socket is full, or a negative errno. A port
   status uses any port with room. */
static int may_leave(const struct mrc_services *services, const struct mrc_endpoint *endpoint,
                     struct mrc_ev_probe *probe) {
  const struct mrc_ports *ports = &services->ports;
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) {
    struct mrc_port_status *status = mrc_port_status_of(&endpoint->statuses, probe->peer);
    const bool now =
        mrc_port_status_choose(services, status, mrc_ports_usable(ports), &probe->qp, &probe->ev);
    if (!now && !mrc_port_status_choose(services, status, ports->up, &probe->qp, &probe->ev))
      return -ENETUNREACH;
    return now;
  }
  const struct mrc_ev *ev = &probe->qp->evset.evs[probe->ev];
  const uint32_t plane = mrc_plane_of(ev->port);
  if (ev->state == MRC_EV_DENIED || !mrc_port_is_up(ports, plane)) return -ENETUNREACH;
  return mrc_port_is_usable(ports, plane);
}

/* Checks every waiting probe once. A probe whose port is full stays in the queue. */
bool mrc_endpoint_transmit_probes(struct mrc_services *services, struct mrc_endpoint *endpoint,
                                  uint64_t now_ns) {
  struct mrc_probes *probes = &services->probes;
  probes->n_stuck = 0;
  if (probes->n_unsent == 0) return true;
  for (uint32_t n = probes->n_unsent; n > 0; n--) {
    struct mrc_ev_probe *probe = mrc_probes_dequeue(probes);
    const int may = may_leave(services, endpoint, probe);
    if (may < 0) {
      fail(services, endpoint, probe, may, now_ns);
    } else if (may == 0) {
      mrc_probes_enqueue(probes, probe);
      probes->n_stuck++;
    } else if (!send_probe(services, probe, now_ns)) {
      mrc_probes_enqueue(probes, probe);
      return false;
    }
  }
  return true;
}

/* The kernel took the probe: starts its timeout. */
static void on_sent(struct mrc_services *services, struct mrc_ev_probe *probe, uint64_t now_ns) {
  probe->sent = true;
  probe->sent_ns = now_ns;
  mrc_timers_set(&services->probes.timers, mrc_probes_slot(&services->probes, probe),
                 now_ns + probe->timeout_ns);
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) {
    mrc_count(services, MRC_COUNTER_TX_PORT_STATUS, 1);
    return;
  }
  struct mrc_qp *qp = probe->qp;
  qp->evset.evs[probe->ev].probes++;
  qp->planes[mrc_evset_plane_of(&qp->evset, probe->ev)].unsendable = false;
  mrc_count(services, MRC_COUNTER_TX_EV_PROBES, 1);
}

void mrc_endpoint_on_commit(struct mrc_services *services, struct mrc_endpoint *endpoint,
                            uint32_t slot, int taken, uint64_t now_ns) {
  struct mrc_ev_probe *probe = &services->probes.slots[slot];
  if (probe->purpose == MRC_EV_PROBE_FREE) return;
  if (taken == 0) {
    mrc_probes_enqueue(&services->probes, probe);
  } else if (taken < 0) {
    probe->sent_ns = now_ns;
    fail(services, endpoint, probe, taken, now_ns);
  } else {
    on_sent(services, probe, now_ns);
  }
}

/* ---- time ---- */

uint64_t mrc_endpoint_deadline(const struct mrc_services *services,
                               const struct mrc_endpoint *endpoint) {
  const struct mrc_probes *probes = &services->probes;
  if (endpoint->answers.n > endpoint->answers.n_stuck || probes->n_unsent > probes->n_stuck)
    return 0;
  return mrc_min_u64(mrc_timers_next(&probes->timers), mrc_timers_next(&endpoint->statuses.timers));
}

void mrc_endpoint_expire(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         uint64_t now_ns) {
  struct mrc_ev_probe *probe;
  while ((probe = mrc_probes_expired(&services->probes, now_ns)) != NULL)
    fail(services, endpoint, probe, -ETIMEDOUT, now_ns);
  mrc_port_status_expire(services, &endpoint->statuses, now_ns);
}
