/* SPDX-License-Identifier: Apache-2.0 */
#include "core/services.h"

#include <errno.h>
#include <stdlib.h>

/* ---- timers ---- */

#define NOWHERE UINT32_MAX

void mrc_timers_init(struct mrc_timers *timers, struct mrc_timer_cell *cells, uint32_t capacity) {
  mrc_assert(capacity > 0);
  *timers = (struct mrc_timers){.cells = cells, .capacity = capacity};
}

static void put(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  timers->cells[index].heap = id;
  timers->cells[id].place = index;
}

static uint64_t key_at(const struct mrc_timers *timers, uint32_t index) {
  return timers->cells[timers->cells[index].heap].deadline_ns;
}

static void sift_up(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  while (index > 0 && key_at(timers, (index - 1) / 2) > timers->cells[id].deadline_ns) {
    put(timers, index, timers->cells[(index - 1) / 2].heap);
    index = (index - 1) / 2;
  }
  put(timers, index, id);
}

static void sift_down(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  for (;;) {
    uint32_t child = 2 * index + 1;
    if (child >= timers->count) break;
    if (child + 1 < timers->count && key_at(timers, child + 1) < key_at(timers, child)) child++;
    if (key_at(timers, child) >= timers->cells[id].deadline_ns) break;
    put(timers, index, timers->cells[child].heap);
    index = child;
  }
  put(timers, index, id);
}

void mrc_timers_set(struct mrc_timers *timers, uint32_t id, uint64_t deadline_ns) {
  mrc_assert(id < timers->capacity);
  if (deadline_ns == MRC_NEVER && id >= timers->known) return;
  while (timers->known <= id)
    timers->cells[timers->known++].place = NOWHERE;
  const uint32_t place = timers->cells[id].place;
  if (place != NOWHERE) { /* takes it out */
    if (timers->cells[id].deadline_ns == deadline_ns) return;
    const uint32_t last = timers->cells[--timers->count].heap;
    timers->cells[id].place = NOWHERE;
    if (last != id) {
      sift_up(timers, place, last);
      sift_down(timers, timers->cells[last].place, last);
    }
  }
  timers->cells[id].deadline_ns = deadline_ns;
  if (deadline_ns != MRC_NEVER) sift_up(timers, timers->count++, id);
}

uint64_t mrc_timers_next(const struct mrc_timers *timers) {
  return timers->count == 0 ? MRC_NEVER : key_at(timers, 0);
}

uint32_t mrc_timers_pop(struct mrc_timers *timers, uint64_t now_ns) {
  if (mrc_timers_next(timers) > now_ns) return NOWHERE;
  const uint32_t id = timers->cells[0].heap;
  mrc_timers_set(timers, id, MRC_NEVER);
  return id;
}

/* ---- the transmit in progress ---- */

_Static_assert(MRC_ARENA_PACKETS >= 2 * MRC_MAX_BURST_PACKETS, "a full burst always fits");

struct mrc_scratch *mrc_scratch_create(const struct mrc_engine_config *config) {
  struct mrc_scratch *scratch = calloc(1, sizeof *scratch);
  if (scratch == NULL) return NULL;
  const uint32_t burst = config->max_burst_bytes != 0 ? config->max_burst_bytes : MRC_BURST_BYTES;
  const bool stages = config->staged_packet_bytes != 0 || config->aead != NULL;
  scratch->packets = calloc(MRC_ARENA_PACKETS, sizeof *scratch->packets);
  if (stages) scratch->staged = calloc(MRC_MAX_BURSTS, burst);
  if (scratch->packets != NULL && (scratch->staged != NULL || !stages)) return scratch;
  mrc_scratch_destroy(scratch);
  return NULL;
}

void mrc_scratch_destroy(struct mrc_scratch *scratch) {
  if (scratch == NULL) return;
  free(scratch->packets);
  free(scratch->staged);
  free(scratch);
}

int mrc_arena_init(struct mrc_arena *arena, const struct mrc_engine_config *config) {
  *arena = (struct mrc_arena){.max_burst_bytes = config->max_burst_bytes,
                              .staged_packet_bytes = config->staged_packet_bytes};
  struct mrc_scratch *scratch = config->scratch;
  arena->shares_scratch = scratch != NULL;
  if (scratch == NULL) scratch = mrc_scratch_create(config);
  if (scratch == NULL) return -ENOMEM;
  arena->scratch = scratch;
  arena->packets = scratch->packets;
  arena->staged = scratch->staged;
  return 0;
}

/* ---- completions ---- */

#define ORPHAN 1 /* in the reserved field of a completion whose QP is gone; 0 when polled */

int mrc_cq_init(struct mrc_cq *cq, uint32_t capacity) {
  const uint32_t size = mrc_ceil_pow2(capacity);
  *cq = (struct mrc_cq){.wcs = malloc(size * sizeof *cq->wcs), .mask = size - 1};
  return cq->wcs == NULL ? -ENOMEM : 0;
}

void mrc_cq_free(struct mrc_cq *cq) {
  free(cq->wcs);
  *cq = (struct mrc_cq){0};
}

bool mrc_cq_promise(struct mrc_cq *cq, uint32_t n, bool posted) {
  const uint32_t capacity = cq->mask + 1, limit = posted ? capacity - capacity / 4 : capacity;
  const uint32_t used = cq->tail - cq->head + cq->promised;
  if (used > limit || n > limit - used) return false;
  cq->promised += n;
  return true;
}

void mrc_cq_push(struct mrc_cq *cq, const struct mrc_wc *wc) {
  mrc_assert(cq->promised > 0);
  mrc_assert(cq->tail - cq->head <= cq->mask);
  cq->promised--;
  cq->wcs[cq->tail++ & cq->mask] = *wc;
}

bool mrc_cq_pop(struct mrc_cq *cq, struct mrc_wc *wc, bool *of_qp) {
  if (cq->head == cq->tail) return false;
  *wc = cq->wcs[cq->head++ & cq->mask];
  *of_qp = wc->reserved != ORPHAN;
  wc->reserved = 0;
  return true;
}

void mrc_cq_orphan(struct mrc_cq *cq, uint32_t qpn) {
  for (uint32_t i = cq->head; i != cq->tail; i++)
    if (cq->wcs[i & cq->mask].qpn == qpn) cq->wcs[i & cq->mask].reserved = ORPHAN;
}

/* ---- registered memory ---- */

int mrc_mr_table_init(struct mrc_mr_table *table, uint32_t capacity) {
  *table = (struct mrc_mr_table){.mrs = calloc(capacity, sizeof *table->mrs), .capacity = capacity};
  if (table->mrs == NULL || mrc_keymap_init(&table->by_key, capacity) != 0) {
    mrc_mr_table_free(table);
    return -ENOMEM;
  }
  for (uint32_t i = 0; i < capacity; i++)
    table->mrs[i].next_free = i + 1;
  return 0;
}

void mrc_mr_table_free(struct mrc_mr_table *table) {
  free(table->mrs);
  mrc_keymap_free(&table->by_key);
  *table = (struct mrc_mr_table){0};
}

int mrc_mr_table_add(struct mrc_mr_table *table, uint64_t address, uint64_t bytes, uint32_t key,
                     uint32_t access, uint32_t domain) {
  const uint32_t known = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE | MRC_ACCESS_REMOTE_READ;
  if (bytes == 0 || address == 0 || address + bytes < address) return -EINVAL;
  if (access == 0 || (access & ~known) != 0) return -EINVAL;
  const uint32_t index = table->free_head;
  if (index == table->capacity) return -ENOSPC;
  const int error = mrc_keymap_put(&table->by_key, key, index);
  if (error != 0) return error;
  struct mrc_mr *mr = &table->mrs[index];
  table->free_head = mr->next_free;
  *mr = (struct mrc_mr){
      .address = address, .bytes = bytes, .key = key, .access = access, .domain = domain};
  return 0;
}

int mrc_mr_table_remove(struct mrc_mr_table *table, uint32_t key) {
  const uint32_t index = mrc_keymap_get(&table->by_key, key);
  if (index == MRC_KEYMAP_NONE) return -ENOENT;
  struct mrc_mr *mr = &table->mrs[index];
  if (mr->refs != 0) {
    mr->access = MRC_ACCESS_LOCAL_READ; /* for those that read from it */
    return -EBUSY;
  }
  mrc_keymap_remove(&table->by_key, key);
  *mr = (struct mrc_mr){.next_free = table->free_head};
  table->free_head = index;
  return 0;
}

/* Inline: runs for every packet. */
inline struct mrc_mr *mrc_mr_find(struct mrc_mr_table *table, uint32_t key, uint64_t address,
                                  uint64_t bytes, uint32_t access, uint32_t domain) {
  struct mrc_mr *mr = &table->mrs[table->last];
  if (mr->key != key || mr->access == 0) {
    const uint32_t index = mrc_keymap_get(&table->by_key, key);
    if (index == MRC_KEYMAP_NONE) return NULL;
    table->last = index;
    mr = &table->mrs[index];
  }
  if ((mr->access & access) != access) return NULL;
  if (mr->domain != 0 && mr->domain != domain) return NULL;
  /* In this order neither a sum nor a difference can wrap. */
  if (address < mr->address || bytes > mr->bytes) return NULL;
  if (address - mr->address > mr->bytes - bytes) return NULL;
  return mr;
}

/* ---- endpoint requests ---- */

/* Shares of the slots. Commands take at most half of them. A QP's own probes take at most an eighth
   of the free ones, so that a QP with many bad EVs leaves room for other QPs. The last 64 are kept
   for port status messages. */
#define MAX_COMMANDED (MRC_MAX_EV_PROBES / 2)
#define QP_SHARE 8
#define KEPT_FOR_STATUS 64

_Static_assert(65536 % MRC_MAX_EV_PROBES == 0, "every rest has as many ids");

void mrc_probes_init(struct mrc_probes *probes, struct mrc_probe_room *room, uint64_t seed) {
  *probes = (struct mrc_probes){.slots = room->slots, .ids.key[0] = seed};
  mrc_timers_init(&probes->timers, room->timers, MRC_MAX_EV_PROBES);
}

struct mrc_ev_probe *mrc_probes_find(const struct mrc_probes *probes, uint16_t id) {
  const uint16_t slot = probes->slot_of[id % MRC_MAX_EV_PROBES];
  return slot != 0 && probes->slots[slot - 1].id == id ? &probes->slots[slot - 1] : NULL;
}

const struct mrc_ev_probe *mrc_probes_start(struct mrc_probes *probes, struct mrc_probe_user *user,
                                            const struct mrc_ev_probe *request) {
  const bool status = request->purpose == MRC_EV_PROBE_PORT_STATUS;
  const bool command = request->purpose == MRC_EV_PROBE_COMMAND;
  const uint32_t free_slots = MRC_MAX_EV_PROBES - probes->n;
  if (free_slots <= (status ? 0 : KEPT_FOR_STATUS)) return NULL;
  if (command && probes->n_commanded >= MAX_COMMANDED) return NULL;
  if (!status && !command &&
      user->n_own >= mrc_max_u32(1, (free_slots - KEPT_FOR_STATUS) / QP_SHARE))
    return NULL;
  /* A random id, so that only a host that has seen the probe can answer it. If another has the same
     rest, the next id that none has: a rest is free. */
  uint16_t id = (uint16_t)mrc_secret_next(&probes->ids);
  while (probes->slot_of[id % MRC_MAX_EV_PROBES] != 0)
    id++;
  /* A free slot + 1, preferably one that was used before: memory for the others was never touched.
   */
  uint16_t slot = probes->free;
  if (slot != 0)
    probes->free = probes->slots[slot - 1].next;
  else
    slot = (uint16_t)++probes->n_slots;
  struct mrc_ev_probe *probe = &probes->slots[slot - 1];
  probes->slot_of[id % MRC_MAX_EV_PROBES] = slot;
  *probe = *request;
  probe->id = id;
  probe->user = user;
  probes->n++;
  if (command) {
    probes->n_commanded++;
    user->n_commanded++;
  } else {
    user->n_own++;
  }
  mrc_probes_enqueue(probes, probe);
  return probe;
}

void mrc_probes_enqueue(struct mrc_probes *probes, struct mrc_ev_probe *probe) {
  const uint16_t slot = (uint16_t)(probe - probes->slots + 1);
  probe->next = 0;
  if (probes->first == 0)
    probes->first = slot;
  else
    probes->slots[probes->last - 1].next = slot;
  probes->last = slot;
  probes->n_unsent++;
}

struct mrc_ev_probe *mrc_probes_dequeue(struct mrc_probes *probes) {
  mrc_assert(probes->n_unsent > 0);
  struct mrc_ev_probe *probe = &probes->slots[probes->first - 1];
  probes->first = probe->next;
  probes->n_unsent--;
  mrc_assert(probe->purpose != MRC_EV_PROBE_FREE);
  return probe;
}

void mrc_probes_end(struct mrc_probes *probes, struct mrc_ev_probe *probe) {
  const uint16_t slot = (uint16_t)(probe - probes->slots);
  mrc_timers_set(&probes->timers, slot, MRC_NEVER);
  if (probe->purpose == MRC_EV_PROBE_COMMAND) {
    probes->n_commanded--;
    probe->user->n_commanded--;
  } else {
    probe->user->n_own--;
  }
  probes->n--;
  probes->slot_of[probe->id % MRC_MAX_EV_PROBES] = 0;
  probe->purpose = MRC_EV_PROBE_FREE;
  probe->next = probes->free;
  probes->free = (uint16_t)(slot + 1);
}

uint32_t mrc_probes_drop(struct mrc_probes *probes, const struct mrc_probe_user *user) {
  const uint32_t dropped = user->n_own + user->n_commanded;
  if (dropped == 0) return 0;
  for (uint32_t n = probes->n_unsent; n > 0; n--) { /* take them out of the queue */
    struct mrc_ev_probe *probe = mrc_probes_dequeue(probes);
    if (probe->user != user) mrc_probes_enqueue(probes, probe);
  }
  for (uint32_t slot = 0; slot < probes->n_slots; slot++) {
    struct mrc_ev_probe *probe = &probes->slots[slot];
    if (probe->purpose != MRC_EV_PROBE_FREE && probe->user == user) mrc_probes_end(probes, probe);
  }
  return dropped;
}

/* ---- counters, trace, events, and whose turn it is ---- */

static int ready_init(struct mrc_ready *ready, uint32_t max_qps) {
  mrc_list_init(&ready->ready);
  mrc_list_init(&ready->answering);
  mrc_list_init(&ready->port_waiting);
  mrc_list_init(&ready->cq_waiting);
  mrc_list_init(&ready->slot_waiting);
  struct mrc_timer_cell *cells = malloc(max_qps * sizeof *cells);
  mrc_timers_init(&ready->timers, cells, max_qps);
  return cells == NULL ? -ENOMEM : 0;
}

int mrc_services_init(struct mrc_services *services, const struct mrc_engine_config *config) {
  services->config = *config;
  services->ports.up = mrc_all_ports(config->ports);
  services->trace = (struct mrc_trace_ring){
      .entries = malloc(config->trace_entries * sizeof *services->trace.entries),
      .mask = config->trace_entries - 1u}; /* a power of two */
  const bool ok = ready_init(&services->ready, config->max_qps) == 0 &&
                  mrc_arena_init(&services->arena, config) == 0 &&
                  mrc_cq_init(&services->cq, config->cq_depth) == 0 &&
                  mrc_mr_table_init(&services->mrs, config->max_mrs) == 0 &&
                  services->trace.entries != NULL;
  return ok ? 0 : -ENOMEM;
}

void mrc_services_free(struct mrc_services *services) {
  free(services->ready.timers.cells);
  if (!services->arena.shares_scratch) mrc_scratch_destroy(services->arena.scratch);
  mrc_cq_free(&services->cq);
  mrc_mr_table_free(&services->mrs);
  free(services->trace.entries);
}

void mrc_trace(struct mrc_services *services, enum mrc_trace_point point, uint32_t qpn, uint64_t a,
               uint64_t b) {
  services->trace.entries[services->trace.n++ & services->trace.mask] = (struct mrc_trace_entry){
      .now_ns = services->now_ns, .point = point, .qpn = qpn, .a = a, .b = b};
}

int mrc_drop(struct mrc_services *services, enum mrc_drop reason, uint32_t qpn, size_t bytes) {
  services->drops[reason]++;
  mrc_count(services, MRC_COUNTER_RX_DROPPED, 1);
  mrc_trace(services, MRC_TRACE_DROP, qpn, reason, bytes);
  return (int)reason;
}

struct mrc_event mrc_events_lost(struct mrc_events *events) {
  const struct mrc_event lost = {.type = MRC_EVENT_LOST, .cookie = events->lost};
  events->lost = 0;
  return lost;
}

static bool push(struct mrc_events *events, const struct mrc_event *event) {
  /* State changes use half of the ring at most. The rest is reserved for the other events. */
  const bool news = event->type == MRC_EVENT_EV_STATE || event->type == MRC_EVENT_PLANE ||
                    event->type == MRC_EVENT_PORT || event->type == MRC_EVENT_PLANE_SHARE;
  const uint32_t limit = news ? MRC_EVENT_RING / 2 : MRC_EVENT_RING;
  const uint32_t used = events->tail - events->head;
  const uint32_t room = used < limit ? limit - used : 0;
  if (room < (news && events->lost > 0 ? 2 : 1)) {
    events->lost++;
    return false;
  }
  /* MRC_EVENT_LOST comes before the event, but does not use the last quarter of the ring. */
  if (events->lost > 0 && room > (news ? 1 : MRC_EVENT_RING / 4))
    events->ring[events->tail++ % MRC_EVENT_RING] = mrc_events_lost(events);
  events->ring[events->tail++ % MRC_EVENT_RING] = *event;
  return true;
}

void mrc_event_push(struct mrc_services *services, const struct mrc_event *event) {
  if (!push(&services->events, event)) mrc_count(services, MRC_COUNTER_EVENTS_DROPPED, 1);
}
