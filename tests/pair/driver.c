/* SPDX-License-Identifier: Apache-2.0 */
#include "pair/driver.h"

#include <stdlib.h>

#include "core/base.h"
#include "core/turn.h"
#include "pair/address.h"
#include "pair/watch.h"

enum {
  MAX_TURNS = 16 /* of the loop at one time */
};

static uint32_t bit_of(int port) { return 1u << (port - 1); }

static void send_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst) {
  mrc_watch_burst(pair, host, burst);
  pair->hosts[host].handled += burst->n_packets;
  for (int i = 0; i < burst->n_packets; i++) {
    struct mrc_datagram *packet = mrc_datagram_make(host, burst, &burst->packets[i]);
    struct mrc_wire wire = {0};
    mrc_watch_sent(pair, packet, &wire);
    if (pair->pass != NULL) pair->pass(pair, host, packet, true);
    if (pair->n_tapped < pair->tap_room) pair->tap[pair->n_tapped++] = mrc_datagram_copy(packet);
    mrc_pair_send(pair, packet, &wire);
  }
}

static void fail_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst) {
  for (int i = 0; i < burst->n_packets; i++) {
    struct mrc_datagram *packet = mrc_datagram_make(host, burst, &burst->packets[i]);
    mrc_watch_failed(pair, packet);
    free(packet);
  }
}

/* The kernel's answer to a burst: 1 taken, 0 refused, or an error. A port whose link holds too much
   is blocked from now on. */
static int offer(struct mrc_pair *pair, struct mrc_pair_host *host, const struct mrc_link *out,
                 const struct mrc_burst *burst) {
  host->bursts++;
  const int path = mrc_address_path(burst->family, burst->dst, burst->sport);
  if (host->errors[burst->port - 1]) return host->errors[burst->port - 1];
  if (host->path_errors[burst->port - 1][path]) return host->path_errors[burst->port - 1][path];
  uint64_t limit = host->driver.sndbuf_bytes;
  if (limit && mrc_link_backlog(out, pair->now_ns) > limit) host->blocked |= bit_of(burst->port);
  if (host->blocked & bit_of(burst->port)) return 0;
  const uint32_t one_in = (uint32_t)host->driver.refuse_one_in;
  return one_in == 0 || mrc_prng_below(&pair->prng, one_in) != 0;
}

/* Newly blocked ports stay blocked until half of the backlog is gone. */
static void unblock_later(struct mrc_pair *pair, int index, uint32_t ports) {
  for (; ports != 0; ports &= ports - 1) {
    const int port = __builtin_ctz(ports) + 1;
    const struct mrc_link *out = &pair->port_out[index][port - 1];
    uint64_t drained_ns = pair->now_ns + (out->free_at_ns - pair->now_ns) / 2 + 1;
    mrc_pair_unblock_at(pair, index, port, drained_ns);
  }
}

/* A host in its turn. */
struct driver {
  struct mrc_pair *pair;
  int index;
};

static uint32_t send_bursts(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                            uint64_t now_ns) {
  (void)now_ns;
  struct mrc_pair *pair = ((struct driver *)driver)->pair;
  const int index = ((struct driver *)driver)->index;
  struct mrc_pair_host *host = &pair->hosts[index];
  mrc_assert(n <= host->driver.capacity);
  const uint32_t before = host->blocked;
  for (int i = 0; i < n; i++) {
    mrc_assert(!(before & bit_of(bursts[i].port))); /* the engine does not choose a blocked port */
    taken[i] = offer(pair, host, &pair->port_out[index][bursts[i].port - 1], &bursts[i]);
    if (taken[i] == 1) send_burst(pair, index, &bursts[i]);
    if (taken[i] < 0) fail_burst(pair, index, &bursts[i]);
    host->refused += taken[i] == 0;
  }
  unblock_later(pair, index, host->blocked & ~before);
  return host->blocked & ~before;
}

static void receive(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  struct mrc_datagram *packet = host->inbox;
  host->inbox = NULL;
  host->inbox_end = &host->inbox;
  while (packet) {
    struct mrc_datagram *next = packet->next;
    if (host->unread & bit_of(packet->meta.port)) {
      packet->next = NULL;
      *host->inbox_end = packet;
      host->inbox_end = &packet->next;
      packet = next;
      continue;
    }
    if (pair->pass != NULL) pair->pass(pair, index, packet, false);
    int drop = mrc_engine_receive(host->engine, packet->bytes, packet->n, packet->n, &packet->meta,
                                  pair->now_ns);
    mrc_assert(drop >= 0 && drop < MRC_PAIR_MAX_DROPS);
    host->drops[drop]++;
    host->handled++;
    mrc_watch_received(pair, packet, drop);
    free(packet);
    packet = next;
  }
}

static uint64_t now(void *driver) { return ((struct driver *)driver)->pair->now_ns; }

static bool publish(void *driver) {
  struct mrc_pair *pair = ((struct driver *)driver)->pair;
  const int index = ((struct driver *)driver)->index;
  struct mrc_pair_host *host = &pair->hosts[index];
  if (host->stops_polling) return false;
  struct mrc_wc wcs[16];
  for (int n; (n = mrc_cq_poll(host->engine, wcs, 16)) > 0;)
    for (int i = 0; i < n; i++)
      if (pair->take == NULL || !pair->take(pair, index, &wcs[i]))
        mrc_watch_completion(pair, index, &wcs[i]);
  if (pair->post != NULL) pair->post(pair, index);
  struct mrc_event events[16];
  for (int n; (n = mrc_engine_events(host->engine, events, 16)) > 0;)
    for (int i = 0; i < n; i++)
      if (host->n_events < MRC_PAIR_MAX_EVENTS) host->events[host->n_events++] = events[i];
  return false;
}

static const struct mrc_turn_calls calls = {.now = now, .publish = publish, .send = send_bursts};

void mrc_driver_run(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  struct driver driver = {.pair = pair, .index = index};
  struct mrc_turn turn = {.calls = &calls,
                          .driver = &driver,
                          .engine = host->engine,
                          .capacity = host->driver.capacity};
  uint64_t deadline_ns;
  int turns = 0;
  host->handled = 0;
  do {
    mrc_assert(turns++ < MAX_TURNS);
    receive(pair, index);
    deadline_ns = mrc_turn_run_dry(&turn, pair->now_ns);
    mrc_watch_state(pair, index);
  } while (deadline_ns <= pair->now_ns);
  const uint64_t idle_ns = pair->now_ns + host->handled * host->driver.packet_ns;
  host->busy_until_ns = mrc_max_u64(host->busy_until_ns, idle_ns);
  if (deadline_ns != MRC_NEVER) mrc_pair_run_at(pair, index, deadline_ns);
}

void mrc_driver_unblock(struct mrc_pair *pair, int host, int port) {
  pair->hosts[host].blocked &= ~bit_of(port);
  mrc_engine_port_blocked(pair->hosts[host].engine, port, false, pair->now_ns);
  mrc_driver_run(pair, host);
}
