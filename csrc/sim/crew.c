/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "core/base.h"

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

void mrc_crew_each(struct mrc_crew *crew, mrc_crew_work work, void *context, uint32_t n) {
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
