/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fault.h"

#include "sim/topology.h"

enum { MILLION = 1000000 };

static void change(struct mrc_hop_config *config, const struct mrc_sim_fault *fault) {
  config->class = (uint8_t)fault->class;
  switch (fault->kind) {
    case MRC_SIM_SILENT:
    case MRC_SIM_DOWN:
      config->link.silent = true;
      break;
    case MRC_SIM_LOSS:
      config->link.loss_ppm = (uint32_t)fault->a;
      break;
    case MRC_SIM_LOSE:
      config->link.lose_n = (uint32_t)fault->a;
      config->link.lose_of = (uint32_t)fault->b;
      break;
    case MRC_SIM_MASK:
      config->link.loss_mask = fault->a;
      break;
    case MRC_SIM_BURST:
      config->burst_ppm = (uint32_t)fault->a;
      config->burst_packets = (uint32_t)fault->b;
      break;
    case MRC_SIM_CORRUPT:
      config->link.corrupt_ppm = (uint32_t)fault->a;
      break;
    case MRC_SIM_DUPLICATE:
      config->link.duplicate_ppm = (uint32_t)fault->a;
      config->link.reorder_ns = fault->b;
      break;
    case MRC_SIM_REORDER:
      config->link.reorder_ppm = (uint32_t)fault->a;
      config->link.reorder_ns = fault->b;
      break;
    case MRC_SIM_DELAY:
      config->link.delay_ns = fault->a;
      break;
    case MRC_SIM_JITTER:
      config->jitter_ns = fault->a;
      break;
    case MRC_SIM_MTU:
      config->link.mtu_bytes = fault->a ? (uint32_t)fault->a + MRC_FRAME_LINK_BYTES : 0;
      break;
    default:
      config->rate_bps = fault->a;
  }
}

/* Resets the property that the fault changes to the topology's value; the hop's other faults
   stay. */
static void restore(struct mrc_hop_config *config, const struct mrc_hop_config *base,
                    const struct mrc_sim_fault *fault) {
  struct mrc_sim_fault none = *fault;
  none.class = base->class;
  none.a = none.b = 0;
  if (fault->kind == MRC_SIM_LOSS) none.a = base->link.loss_ppm;
  if (fault->kind == MRC_SIM_DELAY) none.a = base->link.delay_ns;
  if (fault->kind == MRC_SIM_JITTER) none.a = base->jitter_ns;
  if (fault->kind == MRC_SIM_RATE) none.a = base->rate_bps;
  change(config, &none);
  if (fault->kind == MRC_SIM_MTU) config->link.mtu_bytes = base->link.mtu_bytes;
  if (fault->kind == MRC_SIM_SILENT || fault->kind == MRC_SIM_DOWN) config->link.silent = false;
}

void mrc_fault_add(struct mrc_hop_own *hop, const struct mrc_sim_fault *fault) {
  struct mrc_hop_config config = hop->kind.config;
  struct mrc_sim_fault own = *fault;
  if (own.kind == MRC_SIM_RATE && own.a == 0)
    own.a = mrc_max_u64(1, (uint64_t)((__uint128_t)hop->base.rate_bps * own.b / MILLION));
  change(&config, &own);
  mrc_hop_configure(hop, &config);
}

/* ---- effects on a hop ---- */

typedef void (*action)(struct mrc_fabric *fabric, uint32_t index,
                       const struct mrc_sim_fault *fault);

static void tell_host(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault,
                      bool up) {
  const struct mrc_hop *hop = &fabric->hops[index];
  if (fault->kind == MRC_SIM_DOWN && hop->from_host)
    fabric->calls->port_up(fabric->edge, mrc_fabric_feeder(fabric, index), hop->plane + 1, up);
}

static void begin(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault) {
  mrc_fault_add(mrc_fabric_own(fabric, index), fault);
  tell_host(fabric, index, fault, false);
}

static void end(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault) {
  struct mrc_hop_own *hop = mrc_fabric_own(fabric, index);
  struct mrc_hop_config config = hop->kind.config;
  restore(&config, &hop->base, fault);
  mrc_hop_configure(hop, &config);
  tell_host(fabric, index, fault, true);
}

static void rebase(struct mrc_fabric *fabric, uint32_t index, const struct mrc_sim_fault *fault) {
  struct mrc_hop_own *hop = mrc_fabric_own(fabric, index);
  change(&hop->base, fault);
  mrc_hop_configure(hop, &hop->base);
}

static void leave_out(struct mrc_fabric *fabric, uint32_t index,
                      const struct mrc_sim_fault *target) {
  (void)target;
  mrc_fabric_remove(fabric, index);
}

/* ---- which hops ---- */

struct range {
  uint32_t from, to; /* without `to` */
};

/* All numbers below `n`, one of them, or none. */
static struct range every(uint32_t n) { return (struct range){0, n}; }
static struct range only(uint32_t i) { return (struct range){i, i + 1}; }
static struct range none(void) { return (struct range){0, 0}; }

/* The hosts whose links the fault affects. */
static struct range hosts_hit(const struct mrc_sim_config *config,
                              const struct mrc_sim_fault *fault) {
  const uint32_t each = mrc_topology_hosts_per_t0(config);
  switch (fault->target) {
    case MRC_SIM_ALL:
    case MRC_SIM_PLANE:
      return every(config->hosts);
    case MRC_SIM_T0:
      return (struct range){fault->index * each, (fault->index + 1) * each};
    case MRC_SIM_PORT:
      return only(fault->index);
    default:
      return none();
  }
}

/* The T0s whose uplinks the fault affects, and the places of the T1s in the pods of these T0s. */
static struct range t0s_hit(const struct mrc_sim_config *config,
                            const struct mrc_sim_fault *fault) {
  const uint32_t each = mrc_topology_t0s_of_pod(config);
  switch (fault->target) {
    case MRC_SIM_ALL:
    case MRC_SIM_PLANE:
      return every(config->t0);
    case MRC_SIM_T0:
    case MRC_SIM_UPLINK:
      return only(fault->index);
    case MRC_SIM_T1: {
      const uint32_t pod = mrc_topology_pod_of_t1(config, fault->index);
      return (struct range){pod * each, (pod + 1) * each};
    }
    default:
      return none();
  }
}
static struct range places_hit(const struct mrc_sim_config *config,
                               const struct mrc_sim_fault *fault) {
  const uint32_t each = mrc_topology_t1s_of_pod(config);
  if (fault->target == MRC_SIM_T1) return only(fault->index % each);
  return fault->target == MRC_SIM_UPLINK ? only(fault->t1 % each) : every(each);
}

/* The pods, and the T2s, whose links between them the fault affects. */
static struct range pods_hit(const struct mrc_sim_config *config,
                             const struct mrc_sim_fault *fault) {
  switch (fault->target) {
    case MRC_SIM_ALL:
    case MRC_SIM_PLANE:
    case MRC_SIM_T2:
      return every(mrc_topology_pods(config));
    case MRC_SIM_T1:
    case MRC_SIM_CORE:
      return only(mrc_topology_pod_of_t1(config, fault->index));
    default:
      return none();
  }
}
static bool hits_t2(const struct mrc_sim_config *config, const struct mrc_sim_fault *fault,
                    uint32_t t2) {
  if (fault->target == MRC_SIM_T1) return mrc_topology_are_joined(config, fault->index, t2);
  if (fault->target == MRC_SIM_T2) return fault->index == t2;
  return fault->target != MRC_SIM_CORE || fault->t2 == t2;
}

static void both(struct mrc_fabric *fabric, uint32_t up, uint32_t down,
                 const struct mrc_sim_fault *fault, action act) {
  if (fault->direction != MRC_SIM_DOWNWARD) act(fabric, up, fault);
  if (fault->direction != MRC_SIM_UPWARD) act(fabric, down, fault);
}

static void each_inner_hop(struct mrc_fabric *fabric, uint32_t plane,
                           const struct mrc_sim_fault *fault, action act) {
  const struct mrc_sim_config *config = &fabric->world->config;
  const struct range t0s = t0s_hit(config, fault), places = places_hit(config, fault);
  const struct range pods = pods_hit(config, fault);
  for (uint32_t t0 = t0s.from; t0 < t0s.to; t0++) {
    for (uint32_t place = places.from; place < places.to; place++) {
      both(fabric, mrc_topology_t0_up(config, plane, t0, place),
           mrc_topology_t1_down(config, plane, t0, place), fault, act);
    }
  }
  for (uint32_t pod = pods.from; pod < pods.to; pod++) {
    for (uint32_t t2 = 0; t2 < config->t2; t2++) {
      if (!hits_t2(config, fault, t2)) continue;
      both(fabric, mrc_topology_t1_up(config, plane, pod, t2),
           mrc_topology_t2_down(config, plane, pod, t2), fault, act);
    }
  }
}

/* Calls `act` for each direction of every link that the fault affects. */
static void each_hop(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, action act) {
  const struct mrc_sim_config *config = &fabric->world->config;
  const bool all = fault->target == MRC_SIM_ALL;
  const struct range planes = all ? every(config->planes) : only(fault->plane - 1);
  const struct range hosts = hosts_hit(config, fault);
  for (uint32_t plane = planes.from; plane < planes.to; plane++) {
    for (uint32_t host = hosts.from; host < hosts.to; host++) {
      both(fabric, mrc_topology_host_up(config, plane, host),
           mrc_topology_host_down(config, plane, host), fault, act);
    }
    each_inner_hop(fabric, plane, fault, act);
  }
}

void mrc_fault_switch(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, bool begins) {
  each_hop(fabric, fault, begins ? begin : end);
}

void mrc_fault_rebase(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault) {
  each_hop(fabric, fault, rebase);
}

void mrc_fault_remove(struct mrc_fabric *fabric, const struct mrc_sim_fault *target) {
  each_hop(fabric, target, leave_out);
}
