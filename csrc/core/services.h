/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of an engine share: the configuration, the time of the current call, ports, the
   transmit in progress, completions, registered memory, endpoint requests, counters, trace, events,
   and the lists and timers of QPs. It does not know what a QP is. */
#pragma once

#include "core/base.h"
#include "mrc.h"

/* ---- timers ---- */

/* Deadlines of many objects in one indexed binary heap: each id has at most one deadline. The
   meaning of the ids is the caller's. Setting, clearing and taking the earliest cost O(log n). */

struct mrc_timer_cell {
  uint64_t deadline_ns; /* of the id that is this cell's index */
  uint32_t place;       /* of that id: its index in the heap, or UINT32_MAX */
  uint32_t heap;        /* the id at this index of the heap, earliest first */
};

struct mrc_timers {
  struct mrc_timer_cell *cells;
  uint32_t count;
  uint32_t capacity;
  uint32_t known; /* ids below it had deadlines; memory for the others was never touched */
};

/* Ids are 0 .. capacity - 1. The cells are the caller's; they need not be set. */
void mrc_timers_init(struct mrc_timers *timers, struct mrc_timer_cell *cells, uint32_t capacity);
/* MRC_NEVER clears. */
void mrc_timers_set(struct mrc_timers *timers, uint32_t id, uint64_t deadline_ns);
/* When `id` is due, or MRC_NEVER. */
static inline uint64_t mrc_timers_at(const struct mrc_timers *timers, uint32_t id) {
  const bool is_set = id < timers->known && timers->cells[id].place != UINT32_MAX;
  return is_set ? timers->cells[id].deadline_ns : MRC_NEVER;
}
/* The earliest deadline, or MRC_NEVER. */
uint64_t mrc_timers_next(const struct mrc_timers *timers);
/* Takes the earliest id whose deadline has come, or returns UINT32_MAX. */
uint32_t mrc_timers_pop(struct mrc_timers *timers, uint64_t now_ns);

/* Scales a minimum timeout to hosts of this noise. Minimum timeouts are stated for MRC_NOISE_NS. */
#define MRC_NOISE_NS 500000u
static inline uint64_t mrc_floor_ns(uint64_t ns, uint32_t noise_ns) {
  return ns * noise_ns / MRC_NOISE_NS;
}

/* ---- ports ---- */

/* Ports of this host: which are up, and whose sockets are full. Port or plane n (from 1) has index
   n - 1, and is bit n - 1 of a mask. */

/* How long a full socket may hold back the other planes. Our choice: a longer time keeps the shares
   equal, a shorter time limits the effect of a stuck port. */
#define MRC_BLOCKED_PATIENCE_NS 20000000ull

struct mrc_ports {
  uint32_t up;                        /* as a mask */
  uint32_t blocked;                   /* ports with a full socket, as a mask */
  bool was_down;                      /* any port was ever down */
  uint64_t blocked_ns[MRC_MAX_PORTS]; /* since when */
};

static inline uint32_t mrc_plane_of(uint32_t port) { return port - 1; }
static inline uint8_t mrc_port_of(uint32_t plane) { return (uint8_t)(plane + 1); }

/* The ports 1..n as a mask. */
static inline uint32_t mrc_all_ports(uint32_t n) { return UINT32_MAX >> (MRC_MAX_PORTS - n); }

/* The ports that can be sent on now, as a mask. */
static inline uint32_t mrc_ports_usable(const struct mrc_ports *ports) {
  return ports->up & ~ports->blocked;
}

/* ---- the transmit in progress ---- */

/* The transmit in progress, and the memory that a call uses and no later one reads: many engines of
   one thread may share it. */

struct mrc_seal;

/* The default of max_burst_bytes. As TCP does, it leaves tunnels 320 bytes for their headers. */
#define MRC_BURST_BYTES 65215
#define MRC_MAX_BURSTS 64      /* bursts of one transmit */
#define MRC_ARENA_PACKETS 2048 /* packets of one transmit */
#define MRC_ARENA_ENCRYPTED \
  (256u << 10) /* encrypted bytes of one transmit, about: they stay in the cache */

/* Kind of a packet in a burst; the commit treats each kind differently. */
enum mrc_packet_kind {
  MRC_KIND_DATA,
  MRC_KIND_COPY, /* of a packet of a redundant write; its packet in the window is the other one */
  MRC_KIND_SACK,
  MRC_KIND_NACK,
  MRC_KIND_ACK,
  MRC_KIND_PROBE,
  MRC_KIND_EV_PROBE,
  MRC_KIND_ANSWER
};

/* The newest packet on an EV that a SACK shows as received. */
struct mrc_newest {
  uint32_t serial; /* of that SACK */
  uint16_t slot;   /* in the send window */
};

/* The order of packets on each EV in the current SACK; see loss.c. */
struct mrc_order {
  uint32_t serial;                       /* of the current SACK */
  struct mrc_newest newest[MRC_MAX_EVS]; /* by index of the EV */
};

struct mrc_scratch {
  struct mrc_packet *packets; /* MRC_ARENA_PACKETS */
  uint8_t *staged;            /* bytes of all bursts whose packets stand side by side; 0: none */
  struct mrc_order order;
};

struct mrc_arena {
  struct mrc_scratch *scratch;
  bool shares_scratch;
  struct mrc_packet *packets;   /* of the scratch */
  uint8_t *staged;              /* of the scratch */
  struct mrc_burst *bursts;     /* the driver's */
  size_t staged_bytes;          /* of them in use */
  size_t encrypted_bytes;       /* of those encrypted ones */
  uint32_t staged_packet_bytes; /* packets up to this size are staged */
  struct mrc_seal *seal;        /* of the open burst's QP; NULL: plain */
  bool icrc;                    /* the ICRC of its packets counts */
  uint32_t used;                /* packets */
  uint32_t max_burst_bytes;     /* UDP payload of one burst */
  int capacity;                 /* bursts */
  int n_bursts;
};

/* Memory for the calls of any number of engines whose calls come one after the other, and whose
   configurations agree in bursts, staging and aead. Returns NULL when there is no memory. */
struct mrc_scratch *mrc_scratch_create(const struct mrc_engine_config *config);
void mrc_scratch_destroy(struct mrc_scratch *scratch);

/* 0 or -ENOMEM. */
int mrc_arena_init(struct mrc_arena *arena, const struct mrc_engine_config *config) MRC_MUST_CHECK;
/* Whether the transmit has room for another full burst. */
static inline bool mrc_arena_may_open(const struct mrc_arena *arena) {
  return arena->n_bursts < arena->capacity && arena->encrypted_bytes < MRC_ARENA_ENCRYPTED &&
         MRC_ARENA_PACKETS - arena->used >= MRC_MAX_BURST_PACKETS;
}
/* Whether another packet may be added to the open burst. */
static inline bool mrc_arena_has_room(const struct mrc_arena *arena,
                                      const struct mrc_burst *burst) {
  if (burst->n_packets == MRC_MAX_BURST_PACKETS) return false;
  return (burst->n_packets + 1u) * burst->packet_bytes <= arena->max_burst_bytes;
}

/* ---- completions ---- */

/* The completion queue: a ring of fixed capacity. It cannot overflow, because the place of every
   completion is reserved before its work starts. */

struct mrc_cq {
  struct mrc_wc *wcs;
  uint32_t mask;     /* capacity - 1 */
  uint32_t head;     /* next to poll; free-running */
  uint32_t tail;     /* next to fill; free-running */
  uint32_t promised; /* places reserved for work that has not completed */
};

int mrc_cq_init(struct mrc_cq *cq, uint32_t capacity) MRC_MUST_CHECK;
void mrc_cq_free(struct mrc_cq *cq);
/* Reserves n places; false if there are too few. Posted work leaves a quarter of the places to
   immediates from peers. Otherwise two hosts full of posted work would wait for each other for
   ever. */
bool mrc_cq_promise(struct mrc_cq *cq, uint32_t n, bool posted) MRC_MUST_CHECK;
/* Fills a reserved place. */
void mrc_cq_push(struct mrc_cq *cq, const struct mrc_wc *wc);
/* Takes the oldest completion; false if there is none. `of_qp`: its QP still exists. */
bool mrc_cq_pop(struct mrc_cq *cq, struct mrc_wc *wc, bool *of_qp) MRC_MUST_CHECK;
/* The QP is destroyed: its completions must not count for a later QP with the same number. */
void mrc_cq_orphan(struct mrc_cq *cq, uint32_t qpn);

/* ---- registered memory ---- */

/* Registered memory: a table of key, range and access rights. The caller owns the memory. Every
   access to registered memory must pass mrc_mr_find. */

#define MRC_MR_NONE UINT32_MAX /* index of no MR */

struct mrc_mr {
  uint64_t address;
  uint64_t bytes;
  uint32_t key;
  uint32_t access; /* set of enum mrc_access; 0: the entry is free */
  uint32_t domain; /* the only one it is open to; 0: open to all */
  uint32_t refs;   /* unfinished work requests that read from it */
  uint32_t next_free;
};

struct mrc_mr_table {
  struct mrc_mr *mrs;
  struct mrc_keymap by_key;
  uint32_t capacity;
  uint32_t free_head;
  uint32_t last; /* index of the one found last: most packets of a burst are for one MR */
};

int mrc_mr_table_init(struct mrc_mr_table *table, uint32_t capacity) MRC_MUST_CHECK;
void mrc_mr_table_free(struct mrc_mr_table *table);
int mrc_mr_table_add(struct mrc_mr_table *table, uint64_t address, uint64_t bytes, uint32_t key,
                     uint32_t access, uint32_t domain) MRC_MUST_CHECK;
/* -EBUSY while there are refs: it is open to no peer then. */
int mrc_mr_table_remove(struct mrc_mr_table *table, uint32_t key) MRC_MUST_CHECK;
/* The MR with this key if it covers [address, address + bytes), grants `access` and is open to
   `domain`, otherwise 0. */
struct mrc_mr *mrc_mr_find(struct mrc_mr_table *table, uint32_t key, uint64_t address,
                           uint64_t bytes, uint32_t access, uint32_t domain);

/* ---- endpoint requests ---- */

/* The outstanding endpoint requests of this host (EV probes and port status messages): their slots,
   ids and timers, and the queue of unsent ones. Other modules send them and handle the results. */

#define MRC_MAX_EV_PROBES 1024 /* requests outstanding */

struct mrc_qp;
struct mrc_peer;

enum mrc_ev_probe_purpose {
  MRC_EV_PROBE_FREE,
  MRC_EV_PROBE_COMMAND,
  MRC_EV_PROBE_EV,
  MRC_EV_PROBE_PLANE,
  MRC_EV_PROBE_PATIENT, /* of a suspended plane, with a long timeout */
  MRC_EV_PROBE_BACKUP,  /* of a backup that carries nothing */
  MRC_EV_PROBE_REVERSE,
  MRC_EV_PROBE_PORT_STATUS /* a port status message, answered like a probe */
};

/* Slots used by one QP, or by the port status of one peer. */
struct mrc_probe_user {
  uint32_t n_own;       /* its own requests */
  uint32_t n_commanded; /* by command */
};

struct mrc_ev_probe {
  uint64_t cookie;
  uint64_t sent_ns;
  uint64_t timeout_ns;
  uint64_t waited_ns; /* at the host that answered it */
  struct mrc_probe_user *user;
  struct mrc_qp *qp;     /* of a port status: the QP that carries it, set on sending */
  struct mrc_peer *peer; /* of a port status */
  uint32_t bytes;        /* UDP payload size to pad to; 0: no padding */
  uint32_t ports_up;     /* ports that a port status reported */
  uint16_t ev;
  uint16_t id;           /* private id on the wire */
  uint16_t next;         /* slot + 1 of the next one in the queue, or of the next free one */
  uint16_t tx_timestamp; /* in the request; the answer must echo it */
  uint8_t purpose;       /* enum mrc_ev_probe_purpose */
  uint8_t dscp;
  bool sent; /* taken by the kernel */
};

/* Memory for all requests. What was never used is never touched. */
struct mrc_probe_room {
  struct mrc_ev_probe slots[MRC_MAX_EV_PROBES];
  struct mrc_timer_cell timers[MRC_MAX_EV_PROBES];
};

struct mrc_probes {
  struct mrc_ev_probe *slots; /* MRC_MAX_EV_PROBES */
  struct mrc_timers timers;   /* by slot */
  struct mrc_secret ids;
  uint32_t n_slots;     /* ever used */
  uint32_t n;           /* slots taken */
  uint32_t n_commanded; /* of these, requested by command */
  uint32_t n_unsent;    /* in the queue */
  uint32_t n_stuck;     /* of these, waited for a full socket at the last transmit */
  uint16_t first;       /* slot + 1 of the first one to send, of the last one, and of a free one */
  uint16_t last;
  uint16_t free;
  uint16_t slot_of[MRC_MAX_EV_PROBES]; /* slot + 1, by id modulo MRC_MAX_EV_PROBES; 0: none */
};

void mrc_probes_init(struct mrc_probes *probes, struct mrc_probe_room *room, uint64_t seed);

/* The probe with this id, or 0. */
struct mrc_ev_probe *mrc_probes_find(const struct mrc_probes *probes, uint16_t id);

/* Queues a copy of `request` with a new id; 0 when there is no room. */
const struct mrc_ev_probe *mrc_probes_start(struct mrc_probes *probes, struct mrc_probe_user *user,
                                            const struct mrc_ev_probe *request);
/* Queues a dequeued probe again because it could not be sent. */
void mrc_probes_enqueue(struct mrc_probes *probes, struct mrc_ev_probe *probe);
/* Takes the first probe of the queue, which must not be empty. */
struct mrc_ev_probe *mrc_probes_dequeue(struct mrc_probes *probes);
/* Frees the slot of a probe that is not in the queue. */
void mrc_probes_end(struct mrc_probes *probes, struct mrc_ev_probe *probe);
/* Ends every probe of the user; returns how many slots came free. */
uint32_t mrc_probes_drop(struct mrc_probes *probes, const struct mrc_probe_user *user);

#define MRC_EVENT_RING 8192 /* events held before polling */

/* The ring of events for the controller. Events that find it full are dropped and counted. */
struct mrc_events {
  struct mrc_event *ring; /* of MRC_EVENT_RING */
  uint32_t head;          /* next to take; free-running */
  uint32_t tail;          /* next to fill; free-running */
  uint64_t lost;          /* events dropped since the last MRC_EVENT_LOST */
};

/* Which QPs may have something to send, as lists, and when each QP is due. */
struct mrc_ready {
  struct mrc_node ready;        /* may have something to send: round robin */
  struct mrc_node answering;    /* the QPs of `ready` that owe an answer */
  struct mrc_node port_waiting; /* they have a blocked port, or one that is down */
  struct mrc_node cq_waiting;   /* their cumulative PSN waits for room in the CQ */
  struct mrc_node slot_waiting; /* their EV probes wait for a slot, in turn */
  struct mrc_timers timers;     /* one for each QP */
  uint32_t n_reporting;         /* QPs that have received what no SACK has reported */
};

/* The nodes of one QP in these lists. */
struct mrc_ready_nodes {
  struct mrc_node ready;
  struct mrc_node answering;
  struct mrc_node port_waiting;
  struct mrc_node cq_waiting;
  struct mrc_node slot_waiting;
};

/* The newest trace entries. */
struct mrc_trace_ring {
  struct mrc_trace_entry *entries;
  uint64_t n; /* ever pushed */
  uint64_t mask;
};

struct mrc_services {
  struct mrc_engine_config config; /* with every default filled in */
  uint64_t now_ns;                 /* of the current call */
  uint64_t overflow_ns;            /* when packets last found no room at a port; 0: never */
  struct mrc_ready ready;          /* QPs that may send, QPs that are due */
  struct mrc_ports ports;
  struct mrc_arena arena; /* the current transmit */
  struct mrc_cq cq;
  struct mrc_mr_table mrs;
  struct mrc_trace_ring trace;
  struct mrc_events events; /* for the controller */
  uint64_t counters[MRC_COUNTERS];
  uint64_t drops[MRC_DROP_COUNT];
  struct mrc_probes probes; /* endpoint requests that are outstanding */
};

/* 0 or -ENOMEM; call mrc_services_free in either case. */
int mrc_services_init(struct mrc_services *services,
                      const struct mrc_engine_config *config) MRC_MUST_CHECK;
void mrc_services_free(struct mrc_services *services);

#define MRC_MOST_CROWD 8
/* How many QPs receive now, at least 1 and at most MRC_MOST_CROWD. SACKs and reverse probes cost as
   much as bursts: each of many QPs sends them more rarely, so that all together send few. */
static inline uint32_t mrc_services_crowd(const struct mrc_services *services) {
  return mrc_min_u32(mrc_max_u32(services->ready.n_reporting, 1), MRC_MOST_CROWD);
}
/* An EV as answers carry it, from the EV as it was seen on the wire; and back. */
static inline uint32_t mrc_services_ev(const struct mrc_services *services, uint32_t ev) {
  return (services->config.readings & MRC_READING_C3_B) != 0 ? ev << 16 | ev >> 16 : ev;
}

static inline void mrc_count(struct mrc_services *services, enum mrc_counter counter, uint64_t n) {
  services->counters[counter] += n;
}
void mrc_trace(struct mrc_services *services, enum mrc_trace_point point, uint32_t qpn, uint64_t a,
               uint64_t b);
/* Counts and traces a drop; returns the reason. */
int mrc_drop(struct mrc_services *services, enum mrc_drop reason, uint32_t qpn, size_t bytes);
/* Queues an event for the controller, or counts it as dropped if there is no room. */
void mrc_event_push(struct mrc_services *services, const struct mrc_event *event);
/* The event MRC_EVENT_LOST, with the number of events dropped since the last one. */
struct mrc_event mrc_events_lost(struct mrc_events *events);
