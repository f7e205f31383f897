/* SPDX-License-Identifier: Apache-2.0 */
#include "pair/pair_fabric.h"

#include <stdlib.h>

#include "core/base.h"

enum {
  HOPS = 3,          /* port link, path link, port link */
  UDP_IP_BYTES = 48, /* IPv6 and UDP headers, for rates and MTUs */
};

struct mrc_link *mrc_pair_path(struct mrc_pair *pair, int from, int to, int plane, int path) {
  const struct mrc_pair_config *config = &pair->config;
  mrc_assert(from < config->hosts && to < config->hosts && path < config->paths);
  mrc_assert(plane >= 1 && plane <= config->planes);
  return &pair->paths[((from * config->hosts + to) * config->planes + plane - 1) * config->paths +
                      path];
}

/* ---- packets in flight ---- */

static void schedule(struct mrc_pair *pair, uint64_t at_ns, enum mrc_pair_event kind,
                     uint32_t index, void *pointer) {
  mrc_assert(at_ns >= pair->now_ns);
  mrc_heap_push(&pair->heap, (struct mrc_heap_entry){
                                 .at_ns = at_ns, .kind = kind, .index = index, .pointer = pointer});
}

void mrc_pair_run_at(struct mrc_pair *pair, int index, uint64_t at_ns) {
  struct mrc_pair_host *host = &pair->hosts[index];
  at_ns = mrc_max_u64(at_ns, host->busy_until_ns);
  if (at_ns >= host->run_at_ns) return;
  host->run_at_ns = at_ns;
  schedule(pair, at_ns, MRC_PAIR_ON_RUN, (uint32_t)index, NULL);
}

void mrc_pair_unblock_at(struct mrc_pair *pair, int host, int port, uint64_t at_ns) {
  uint32_t index = (uint32_t)(host * MRC_PAIR_MAX_PLANES + port - 1);
  schedule(pair, at_ns, MRC_PAIR_ON_UNBLOCK, index, NULL);
}

static struct mrc_link *link_of(struct mrc_pair *pair, const struct mrc_datagram *packet) {
  const int plane = packet->meta.port;
  if (packet->hop == 0) return &pair->port_out[packet->from][plane - 1];
  if (packet->hop == 1) return mrc_pair_path(pair, packet->from, packet->to, plane, packet->path);
  return &pair->port_in[packet->to][plane - 1];
}

static void arrive(struct mrc_pair *pair, struct mrc_datagram *packet) {
  struct mrc_pair_host *host = &pair->hosts[packet->to];
  packet->next = NULL;
  packet->meta.arrived_ns = host->driver.unstamped ? 0 : pair->now_ns;
  *host->inbox_end = packet;
  host->inbox_end = &packet->next;
  mrc_pair_run_at(pair, packet->to, pair->now_ns + host->driver.wake_ns);
}

void mrc_pair_forward(struct mrc_pair *pair, struct mrc_datagram *packet) {
  while (packet->hop < HOPS) {
    struct mrc_link *link = link_of(pair, packet);
    struct mrc_link_fate fate = mrc_link_pass(link, packet->n + UDP_IP_BYTES, pair->now_ns);
    if (fate.copies == 0) {
      free(packet);
      return;
    }
    mrc_datagram_suffer(packet, &fate);
    if (packet->flipped >= 0 && pair->config.udp_checksum) {
      free(packet);
      return;
    }
    packet->hop++;
    if (fate.copies == 2)
      schedule(pair, fate.at_ns[1], MRC_PAIR_ON_PACKET, 0, mrc_datagram_copy(packet));
    if (fate.at_ns[0] > pair->now_ns) {
      schedule(pair, fate.at_ns[0], MRC_PAIR_ON_PACKET, 0, packet);
      return;
    }
  }
  arrive(pair, packet);
}

static bool rule_matches(const struct mrc_pair_rule *rule, const struct mrc_datagram *packet,
                         const struct mrc_wire *wire) {
  if (rule->times == 0 || rule->host != packet->from) return false;
  if (rule->plane != MRC_PAIR_ANY && rule->plane != packet->meta.port) return false;
  bool data = mrc_opcode_is_data(wire->opcode);
  if (rule->opcode == MRC_PAIR_DATA && !data) return false;
  if (rule->opcode != MRC_PAIR_DATA && rule->opcode != MRC_PAIR_ANY && rule->opcode != wire->opcode)
    return false;
  return rule->n_psns == 0 || mrc_psn_in(wire->psn, rule->psn, rule->n_psns);
}

static bool lost_by_rule(struct mrc_pair *pair, const struct mrc_datagram *packet,
                         const struct mrc_wire *wire) {
  for (int i = 0; i < pair->n_rules; i++) {
    if (!rule_matches(&pair->rules[i], packet, wire)) continue;
    pair->rules[i].times--;
    return true;
  }
  return false;
}

void mrc_pair_send(struct mrc_pair *pair, struct mrc_datagram *packet,
                   const struct mrc_wire *wire) {
  if (lost_by_rule(pair, packet, wire))
    free(packet);
  else
    mrc_pair_forward(pair, packet);
}
