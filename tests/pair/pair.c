/* SPDX-License-Identifier: Apache-2.0 */
#include "pair/pair.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "pair/driver.h"
#include "virtual/sealer.h"

enum {
  EPOCH_BITS = 12,         /* keys change often */
  CAPACITY = 16,           /* bursts of one transmit call */
  LIVELOCK_EVENTS = 100000 /* at one time */
};

/* ---- time ---- */

/* Runs the driver, or delays the run by a random stall of the host. */
static void run(struct mrc_pair *pair, int index) {
  struct mrc_pair_host *host = &pair->hosts[index];
  const struct mrc_pair_driver *driver = &host->driver;
  host->run_at_ns = MRC_NEVER;
  if (driver->stall_ppm && mrc_prng_below(&pair->prng, 1000000) < driver->stall_ppm) {
    host->busy_until_ns =
        pair->now_ns + 1 + mrc_prng_below(&pair->prng, (uint32_t)driver->stall_ns);
    mrc_pair_run_at(pair, index, host->busy_until_ns);
    return;
  }
  mrc_driver_run(pair, index);
}

/* False for a run that was moved to another time; one time may have many of these. */
static bool handle(struct mrc_pair *pair, const struct mrc_heap_entry *event) {
  switch (event->kind) {
    case MRC_PAIR_ON_PACKET:
      mrc_pair_forward(pair, event->pointer);
      return true;
    case MRC_PAIR_ON_RUN:
      if (pair->hosts[event->index].run_at_ns != event->at_ns) return false;
      run(pair, (int)event->index);
      return true;
    default:
      mrc_driver_unblock(pair, (int)event->index / MRC_PAIR_MAX_PLANES,
                         (int)event->index % MRC_PAIR_MAX_PLANES + 1);
      return true;
  }
}

bool mrc_pair_step(struct mrc_pair *pair, uint64_t until_ns) {
  if (mrc_heap_next_ns(&pair->heap) > until_ns) return false;
  pair->now_ns = mrc_heap_next_ns(&pair->heap);
  int events = 0;
  for (struct mrc_heap_entry event; mrc_heap_next_ns(&pair->heap) == pair->now_ns;) {
    mrc_assert(mrc_heap_pop(&pair->heap, &event));
    events += handle(pair, &event);
    mrc_assert(events <= LIVELOCK_EVENTS);
  }
  return true;
}

void mrc_pair_run(struct mrc_pair *pair, uint64_t until_ns) {
  while (mrc_pair_step(pair, until_ns)) {
  }
  pair->now_ns = until_ns;
}

void mrc_pair_kick(struct mrc_pair *pair, int host) { mrc_pair_run_at(pair, host, pair->now_ns); }

/* ---- faults ---- */

void mrc_pair_silence(struct mrc_pair *pair, int plane, bool silent) {
  for (int from = 0; from < pair->config.hosts; from++)
    for (int to = 0; to < pair->config.hosts; to++)
      for (int path = 0; path < pair->config.paths; path++)
        mrc_pair_path(pair, from, to, plane, path)->config.silent = silent;
}

void mrc_pair_port_up(struct mrc_pair *pair, int host, int plane, bool up) {
  pair->hosts[host].down &= ~(1u << (plane - 1));
  if (!up) pair->hosts[host].down |= 1u << (plane - 1);
  pair->port_out[host][plane - 1].config.silent = !up;
  pair->port_in[host][plane - 1].config.silent = !up;
  mrc_engine_port_up(pair->hosts[host].engine, plane, up, pair->now_ns);
  mrc_pair_kick(pair, host);
}

void mrc_pair_lose(struct mrc_pair *pair, struct mrc_pair_rule rule) {
  mrc_assert(pair->n_rules < MRC_PAIR_MAX_RULES);
  pair->rules[pair->n_rules++] = rule;
}

int mrc_pair_forge(struct mrc_pair *pair, int host, const uint8_t *bytes, size_t n,
                   const struct mrc_meta *meta) {
  uint8_t *arrived = malloc(n > 0 ? n : 1); /* exactly as long, so that a sanitizer sees its end */
  mrc_assert(arrived);
  memcpy(arrived, bytes, n);
  int drop = mrc_engine_receive(pair->hosts[host].engine, arrived, n, n, meta, pair->now_ns);
  free(arrived);
  mrc_pair_kick(pair, host);
  return drop;
}

/* ---- life ---- */

static void create_host(struct mrc_pair *pair, int index) {
  struct mrc_engine_config config = pair->config.engine;
  config.seed = mrc_prng_next(&pair->prng);
  config.ports = (uint32_t)pair->config.planes;
  config.aead = &mrc_sealer;
  if (config.seal_epoch_bits == 0) config.seal_epoch_bits = EPOCH_BITS;
  struct mrc_pair_host *host = &pair->hosts[index];
  host->engine = mrc_engine_create(&config);
  mrc_assert(host->engine);
  host->driver = pair->config.driver;
  if (host->driver.capacity == 0) host->driver.capacity = CAPACITY;
  host->inbox_end = &host->inbox;
  host->run_at_ns = MRC_NEVER;
  for (int i = 0; i < pair->config.planes; i++) {
    pair->port_out[index][i] = (struct mrc_link){.config = pair->config.port_out,
                                                 .prng.state = mrc_prng_next(&pair->prng)};
    pair->port_in[index][i] =
        (struct mrc_link){.config = pair->config.port_in, .prng.state = mrc_prng_next(&pair->prng)};
  }
}

struct mrc_pair *mrc_pair_create(const struct mrc_pair_config *config) {
  struct mrc_pair *pair = calloc(1, sizeof(*pair));
  mrc_assert(pair);
  pair->config = *config;
  if (pair->config.hosts == 0) pair->config.hosts = 2;
  if (pair->config.planes == 0) pair->config.planes = 1;
  if (pair->config.paths == 0) pair->config.paths = 1;
  if (pair->config.family == 0) pair->config.family = 6;
  mrc_assert(pair->config.hosts <= MRC_PAIR_MAX_HOSTS);
  mrc_assert(pair->config.planes <= MRC_PAIR_MAX_PLANES);
  mrc_assert(pair->config.paths <= MRC_PAIR_MAX_PATHS);
  pair->prng.state = config->seed;
  pair->now_ns = 1000000000; /* clocks do not start at 0 */
  int n = pair->config.hosts * pair->config.hosts * pair->config.planes * pair->config.paths;
  pair->paths = calloc((size_t)n, sizeof(*pair->paths));
  mrc_assert(pair->paths);
  for (int i = 0; i < n; i++)
    pair->paths[i] =
        (struct mrc_link){.config = pair->config.path, .prng.state = mrc_prng_next(&pair->prng)};
  for (int i = 0; i < pair->config.hosts; i++)
    create_host(pair, i);
  return pair;
}

static void free_inbox(struct mrc_pair_host *host) {
  for (struct mrc_datagram *packet = host->inbox, *next; packet; packet = next) {
    next = packet->next;
    free(packet);
  }
}

void mrc_pair_destroy(struct mrc_pair *pair) {
  for (int i = 0; i < pair->config.hosts; i++)
    mrc_engine_destroy(pair->hosts[i].engine);
  for (int i = 0; i < pair->n_ends; i++) {
    mrc_audit_memory(&pair->ends[i]->audit);
    mrc_audit_free(&pair->ends[i]->audit);
    free(pair->ends[i]);
  }
  for (struct mrc_heap_entry event; mrc_heap_pop(&pair->heap, &event);)
    free(event.pointer);
  for (int i = 0; i < pair->config.hosts; i++)
    free_inbox(&pair->hosts[i]);
  mrc_heap_free(&pair->heap);
  free(pair->paths);
  free(pair);
}
