/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/shards.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "core/base.h"
#include "sim/numbers.h"

struct mrc_crew {
  pthread_barrier_t barrier; /* before and after each job */
  pthread_mutex_t lock;      /* of `next` */
  mrc_crew_work work;        /* 0: the threads end */
  void *context;
  uint32_t n;
  uint32_t next; /* item that no thread has taken */
  uint32_t threads;
  pthread_t others[];
};

static uint32_t take(struct mrc_crew *crew) {
  pthread_mutex_lock(&crew->lock);
  const uint32_t item = crew->next < crew->n ? crew->next++ : UINT32_MAX;
  pthread_mutex_unlock(&crew->lock);
  return item;
}

static void help(struct mrc_crew *crew) {
  for (uint32_t item; (item = take(crew)) != UINT32_MAX;)
    crew->work(crew->context, item);
}

static void *serve(void *argument) {
  struct mrc_crew *crew = argument;
  pthread_mutex_lock(&crew->lock); /* until the barrier is ready */
  pthread_mutex_unlock(&crew->lock);
  for (;;) {
    pthread_barrier_wait(&crew->barrier);
    if (crew->work == NULL) return NULL;
    help(crew);
    pthread_barrier_wait(&crew->barrier);
  }
}

/* Starts the other threads, or as many as the system allows. Signals are for the thread that runs
   the simulation. */
static void hire(struct mrc_crew *crew, uint32_t threads) {
  sigset_t all, before;
  sigfillset(&all);
  mrc_assert(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
  pthread_mutex_lock(&crew->lock);
  crew->threads = 1;
  while (crew->threads < threads &&
         pthread_create(&crew->others[crew->threads - 1], NULL, serve, crew) == 0)
    crew->threads++;
  mrc_assert(pthread_barrier_init(&crew->barrier, NULL, crew->threads) == 0);
  pthread_mutex_unlock(&crew->lock);
  mrc_assert(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

struct mrc_crew *mrc_crew_create(uint32_t threads) {
  mrc_assert(threads > 0);
  struct mrc_crew *crew = calloc(1, sizeof(*crew) + threads * sizeof(crew->others[0]));
  mrc_assert(crew);
  mrc_assert(pthread_mutex_init(&crew->lock, NULL) == 0);
  hire(crew, threads);
  return crew;
}

void mrc_crew_destroy(struct mrc_crew *crew) {
  crew->work = NULL;
  pthread_barrier_wait(&crew->barrier);
  for (uint32_t i = 1; i < crew->threads; i++)
    mrc_assert(pthread_join(crew->others[i - 1], NULL) == 0);
  mrc_assert(pthread_barrier_destroy(&crew->barrier) == 0);
  mrc_assert(pthread_mutex_destroy(&crew->lock) == 0);
  free(crew);
}

/* Calls `work` once for each item from 0 to n - 1, and returns when all are done. What a job has
   written, the next one reads. */
static void crew_each(struct mrc_crew *crew, mrc_crew_work work, void *context, uint32_t n) {
  if (crew->threads == 1) { /* a barrier and a lock cost system calls also where nobody waits */
    for (uint32_t item = 0; item < n; item++)
      work(context, item);
    return;
  }
  crew->work = work;
  crew->context = context;
  crew->n = n;
  crew->next = 0;
  pthread_barrier_wait(&crew->barrier);
  help(crew);
  pthread_barrier_wait(&crew->barrier);
}

/* ---- which shard ---- */

static uint32_t shard_of_end(const struct mrc_sim *sim, uint32_t index) {
  const struct mrc_fabric *fabric = &sim->whole.fabric;
  return mrc_fabric_shard_of_end(fabric, sim->n_shards, &fabric->hops[index]);
}

/* The other direction of a link ends where this one begins. */
static uint32_t shard_of_feeder(const struct mrc_sim *sim, uint32_t index) {
  const struct mrc_topology *topology = &sim->whole.world.config.topology;
  const struct mrc_topology_place at = mrc_topology_place_of(topology, index);
  const uint32_t links = mrc_topology_links(topology, at.tier);
  return shard_of_end(sim, at.down ? index - links : index + links);
}

static uint32_t shard_of_flow(const struct mrc_sim *sim, uint32_t flow) {
  return mrc_topology_shard_of_host(&sim->whole.world.config.topology, sim->n_shards,
                                    sim->flows.at[flow].config.from);
}

static struct mrc_sim_parts *owner_of(const struct mrc_sim *sim,
                                      const struct mrc_heap_entry *event) {
  switch ((enum mrc_sim_event_kind)event->kind) {
    case MRC_SIM_ON_POST:
      return sim->shards[shard_of_flow(sim, event->index)];
    case MRC_SIM_ON_ARRIVAL:
      return sim->shards[shard_of_end(sim, event->index)];
    case MRC_SIM_ON_DRAIN:
      return sim->shards[shard_of_feeder(sim, event->index)];
    case MRC_SIM_ON_RUN:
      return sim->shards[mrc_topology_shard_of_host(&sim->whole.world.config.topology,
                                                    sim->n_shards, event->index)];
    default:
      return NULL; /* the whole */
  }
}

void mrc_shards_hand_out(struct mrc_sim *sim) {
  struct mrc_agenda *agenda = &sim->whole.world.agenda;
  struct mrc_heap_entry event;
  if (mrc_agenda_next_ns(agenda) == MRC_NEVER) return;
  while (mrc_agenda_pop(agenda, &event)) {
    struct mrc_sim_parts *owner = owner_of(sim, &event);
    if (owner)
      mrc_agenda_push(&owner->world.agenda, event);
    else
      mrc_heap_push(&sim->events, event);
  }
  mrc_agenda_rewind(agenda); /* it has passed the times that are still to come */
}

/* ---- life ---- */

static struct mrc_sim_parts *make_shard(struct mrc_sim *sim, uint32_t number) {
  const struct mrc_sim_parts *whole = &sim->whole;
  struct mrc_sim_parts *shard = calloc(1, sizeof(*shard));
  mrc_assert(shard);
  shard->world.config = whole->world.config;
  shard->world.now_ns = whole->world.now_ns;
  shard->world.origin_ns = whole->world.origin_ns;
  mrc_agenda_init(&shard->world.agenda);
  shard->fabric = whole->fabric;
  shard->fabric.pool = (struct mrc_frame_pool){0};
  shard->fabric.shard = number;
  shard->fabric.shards = sim->n_shards;
  if (sim->n_shards > 1) {
    shard->fabric.outboxes = calloc(sim->n_shards, sizeof(*shard->fabric.outboxes));
    mrc_assert(shard->fabric.outboxes);
  }
  shard->hosts.at = whole->hosts.at;
  shard->engines = whole->engines;
  shard->engines.scratch = mrc_engines_new_scratch();
  shard->gbn = whole->gbn;
  shard->tcp = whole->tcp;
  mrc_sim_join(sim, shard);
  return shard;
}

/* Whether a flow waits for writes that arrive at another host than its own. */
static bool waits_for_others(const struct mrc_sim *sim) {
  for (uint32_t i = 0; i < sim->flows.n; i++) {
    const struct mrc_sim_flow_config *config = &sim->flows.at[i].config;
    if (config->after && sim->flows.at[config->after - 1].config.to != config->from) return true;
  }
  return false;
}

void mrc_shards_make(struct mrc_sim *sim) {
  const struct mrc_sim_config *config = &sim->whole.world.config;
  const bool serial = sim->lookahead_ns == 0 || sim->file.lines || waits_for_others(sim);
  sim->n_shards = serial ? 1 : mrc_topology_shards(&config->topology, config->shards);
  sim->shards = calloc(sim->n_shards, sizeof(struct mrc_sim_parts *));
  mrc_assert(sim->shards);
  for (uint32_t i = 0; i < sim->n_shards; i++)
    sim->shards[i] = make_shard(sim, i);
  for (uint32_t i = 0; i < sim->flows.n; i++)
    sim->shards[shard_of_flow(sim, i)]->traffic.n_unfinished++;
  mrc_shards_hand_out(sim);
}

void mrc_shards_free(struct mrc_sim *sim) {
  for (uint32_t i = 0; i < sim->n_shards; i++) {
    struct mrc_sim_parts *shard = sim->shards[i];
    for (uint32_t to = 0; to < sim->n_shards && shard->fabric.outboxes; to++)
      free(shard->fabric.outboxes[to].at);
    free(shard->fabric.outboxes);
    free(shard->engines.scratch);
    mrc_frame_pool_free(&shard->fabric.pool);
    mrc_agenda_free(&shard->world.agenda);
    mrc_record_free(&shard->record);
    free(shard);
  }
  free(sim->shards);
  mrc_heap_free(&sim->events);
}

/* ---- windows ---- */

struct window {
  struct mrc_sim *sim;
  uint64_t until_ns;
};

static void run_one(void *context, uint32_t number) {
  const struct window *window = context;
  struct mrc_sim_parts *shard = window->sim->shards[number];
  while (mrc_agenda_next_ns(&shard->world.agenda) < window->until_ns)
    mrc_sim_step(shard);
}

/* All packets of a hop come from one shard, so that their order is that of sending. */
static void take_mail(void *context, uint32_t number) {
  const struct window *window = context;
  struct mrc_agenda *agenda = &window->sim->shards[number]->world.agenda;
  for (uint32_t from = 0; from < window->sim->n_shards; from++) {
    struct mrc_mailbox *box = &window->sim->shards[from]->fabric.outboxes[number];
    for (uint32_t i = 0; i < box->n; i++)
      mrc_agenda_push(agenda, (struct mrc_heap_entry){.at_ns = box->at[i].at_ns,
                                                      .pointer = box->at[i].packet,
                                                      .kind = MRC_SIM_ON_ARRIVAL,
                                                      .index = box->at[i].hop});
    box->n = 0;
  }
}

/* Packets end in the pool of their last shard: those that have too many free ones give to others.
 */
static void level_pools(struct mrc_sim *sim) {
  enum { MANY = 8192, FEW = MANY / 4 };
  struct mrc_frame_pool *spare = &sim->whole.fabric.pool;
  for (uint32_t i = 0; i < sim->n_shards; i++) {
    struct mrc_frame_pool *pool = &sim->shards[i]->fabric.pool;
    if (pool->n_free > MANY) mrc_frame_pool_move(pool, spare, pool->n_free - MANY / 2);
  }
  for (uint32_t i = 0; i < sim->n_shards && spare->n_free > 0; i++) {
    struct mrc_frame_pool *pool = &sim->shards[i]->fabric.pool;
    if (pool->n_free < FEW) mrc_frame_pool_move(spare, pool, FEW);
  }
}

void mrc_shards_run(struct mrc_sim *sim, struct mrc_crew *crew, uint64_t until_ns) {
  struct window window = {.sim = sim, .until_ns = until_ns};
  crew_each(crew, run_one, &window, sim->n_shards);
  /* A step begins at least a window after the one before has ended: in no window that has passed.
   */
  for (uint32_t i = 0; i < sim->n_shards; i++)
    mrc_traffic_end_steps(&sim->shards[i]->traffic, &sim->whole.world);
  mrc_shards_hand_out(sim);
  if (sim->n_shards == 1) return;
  crew_each(crew, take_mail, &window, sim->n_shards);
  level_pools(sim);
}

uint64_t mrc_shards_next_ns(const struct mrc_sim *sim) {
  uint64_t next_ns = MRC_NEVER;
  for (uint32_t i = 0; i < sim->n_shards; i++)
    next_ns = mrc_min_u64(next_ns, mrc_agenda_next_ns(&sim->shards[i]->world.agenda));
  return next_ns;
}

/* ---- results ---- */

uint32_t mrc_shards_unfinished(const struct mrc_sim *sim) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < sim->n_shards; i++)
    n += sim->shards[i]->traffic.n_unfinished;
  return n;
}

uint64_t mrc_shards_done_ns(const struct mrc_sim *sim) {
  uint64_t done_ns = 0;
  for (uint32_t i = 0; i < sim->n_shards; i++)
    done_ns = mrc_max_u64(done_ns, sim->shards[i]->traffic.done_ns);
  return done_ns;
}

void mrc_shards_collect(struct mrc_sim *sim) {
  struct mrc_sim_record *record = &sim->whole.record;
  const uint32_t first_event = record->n_events, first_message = record->n_messages;
  for (uint32_t i = 0; i < sim->n_shards; i++)
    mrc_record_move_rows(record, &sim->shards[i]->record);
  mrc_record_order(record, first_event, first_message);
}
