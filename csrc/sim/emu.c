/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "sim/emu.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sim/agenda.h"
#include "sim/ethernet.h"
#include "sim/fabric.h"
#include "sim/numbers.h"

/* ---- the ring ---- */

/* The kernel fills it with packets from the interfaces of this namespace: one packet socket for all
   interfaces, with mapped slots, so that receiving needs no system call. */
struct ring {
  uint8_t *slots;      /* mapped */
  uint64_t overflowed; /* packets without a free slot, up to the last ring_overflowed */
  uint32_t slot_bytes;
  uint32_t slots_per_block;
  uint32_t n_slots;
  uint32_t next; /* slot that the kernel fills next, or has filled */
  int fd;
};

/* One packet in its slot. */
struct arrival {
  const uint8_t *bytes;
  uint32_t n; /* bytes there */
  int ifindex;
  bool cut;         /* it was longer than a slot */
  bool unfinished;  /* the host left a checksum to its interface */
  uint64_t real_ns; /* arrival time, CLOCK_REALTIME */
};

enum {
  RING_BYTES = 64 << 20, /* at 100,000 packets/s of 4096 bytes and 9000-byte slots, 70 ms */
  BLOCK_BYTES = 1 << 20,
  HEADROOM_BYTES = 128 /* in a slot before the packet: header, address, alignment */
};

static int map_slots(struct ring *ring, uint32_t frame_bytes) {
  const uint32_t slot_bytes = TPACKET_ALIGN(frame_bytes + HEADROOM_BYTES);
  const struct tpacket_req request = {
      .tp_block_size = BLOCK_BYTES,
      .tp_block_nr = RING_BYTES / BLOCK_BYTES,
      .tp_frame_size = slot_bytes,
      .tp_frame_nr = RING_BYTES / BLOCK_BYTES * (BLOCK_BYTES / slot_bytes)};
  const int version = TPACKET_V2;
  if (setsockopt(ring->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
      setsockopt(ring->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
    return -errno;
  ring->slot_bytes = slot_bytes;
  ring->slots_per_block = BLOCK_BYTES / slot_bytes;
  ring->n_slots = request.tp_frame_nr;
  ring->slots = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
  return ring->slots == MAP_FAILED ? -errno : 0;
}

static void ring_close(struct ring *ring) {
  if (ring->slots != MAP_FAILED) munmap(ring->slots, RING_BYTES);
  close(ring->fd);
}

/* Opens a ring for Ethernet frames of at most `frame_bytes`. 0 or -errno; after an error nothing is
   open. */
static int ring_open(struct ring *ring, uint32_t frame_bytes) {
  *ring = (struct ring){.slots = MAP_FAILED};
  ring->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (ring->fd < 0) return -errno;
  int error = map_slots(ring, frame_bytes);
  /* IPv6 only, so that our own packets do not come back. */
  const struct sockaddr_ll all = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IPV6)};
  if (error == 0 && bind(ring->fd, (const struct sockaddr *)&all, sizeof all) != 0) error = -errno;
  if (error != 0) ring_close(ring);
  return error;
}

static struct tpacket2_hdr *slot_of(const struct ring *ring) {
  const uint64_t block = ring->next / ring->slots_per_block;
  const uint32_t within = ring->next % ring->slots_per_block;
  return (struct tpacket2_hdr *)(ring->slots + block * BLOCK_BYTES +
                                 (uint64_t)within * ring->slot_bytes);
}

/* The oldest packet; false when there is none. It stays valid until the release. */
static bool ring_peek(const struct ring *ring, struct arrival *arrival) {
  const struct tpacket2_hdr *slot = slot_of(ring);
  /* Pairs with the kernel's barrier between filling the slot and handing it over. */
  const uint32_t status = __atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE);
  if (!(status & TP_STATUS_USER)) return false;
  const struct sockaddr_ll *from =
      (const void *)((const uint8_t *)slot + TPACKET_ALIGN(sizeof *slot));
  *arrival = (struct arrival){.bytes = (const uint8_t *)slot + slot->tp_mac,
                              .n = slot->tp_snaplen,
                              .ifindex = from->sll_ifindex,
                              .cut = slot->tp_snaplen < slot->tp_len,
                              .unfinished = (status & TP_STATUS_CSUMNOTREADY) != 0,
                              .real_ns = (uint64_t)slot->tp_sec * 1000000000u + slot->tp_nsec};
  return true;
}

static void ring_release(struct ring *ring) {
  /* Pairs with the kernel's barrier before it fills the slot: our reads are over. */
  __atomic_store_n(&slot_of(ring)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
  ring->next = (ring->next + 1) % ring->n_slots;
}

/* The number of packets so far for which the kernel had no slot. */
static uint64_t ring_overflowed(struct ring *ring) {
  struct tpacket_stats news; /* since the last call */
  socklen_t bytes = sizeof news;
  const int error = getsockopt(ring->fd, SOL_PACKET, PACKET_STATISTICS, &news, &bytes);
  mrc_assert(error == 0);
  ring->overflowed += news.tp_drops;
  return ring->overflowed;
}

/* ---- the emulator ---- */

enum {
  BATCH = 8, /* packets taken before the fabric's next turn */
  SECOND_NS = 1000000000,
  MAX_MTU = 65535,
  MAX_BLOCK = 65535
};
#define MAX_FRAMES_BYTES (512ull << 20) /* limit of all packets in the fabric */

struct mrc_emu {
  struct mrc_world world;
  struct mrc_sim_record record;
  struct mrc_fabric fabric;
  struct ring ring;
  struct mrc_emu_outbox outbox;
  int *ifindices; /* [plane * hosts + host] */
  int *port_of;   /* [ifindex]: place in ifindices; -1: another interface */
  int n_port_of;
  uint32_t frame_bytes;
  uint32_t block; /* see mrc_emu_config */
  uint64_t received;
  uint64_t offloaded;
  uint64_t overloaded;
  bool stopped;
  pthread_mutex_t lock; /* protects everything above */
  pthread_mutex_t turn; /* taken before `lock`, so that a busy loop cannot starve other threads */
  int wake;             /* eventfd: stopped */
};

static uint64_t clock_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

static void enter(struct mrc_emu *emu) {
  pthread_mutex_lock(&emu->turn);
  pthread_mutex_lock(&emu->lock);
  pthread_mutex_unlock(&emu->turn);
}

static void leave(struct mrc_emu *emu) { pthread_mutex_unlock(&emu->lock); }

/* ---- the edge ---- */

static void flush(struct mrc_emu *emu) {
  mrc_emu_outbox_flush(&emu->outbox, &emu->fabric.pool, clock_ns(CLOCK_MONOTONIC));
}

static void on_arrive(void *edge, uint32_t host, struct mrc_frame *packet) {
  struct mrc_emu *emu = edge;
  if (!mrc_ethernet_write(packet, (uint32_t)mrc_prng_next(&emu->world.prng))) {
    emu->record.stats.unroutable++;
    mrc_frame_pool_put(&emu->fabric.pool, packet);
    return;
  }
  const int ifindex = emu->ifindices[packet->plane * emu->world.config.topology.hosts + host];
  if (mrc_emu_outbox_put(&emu->outbox, packet, ifindex, emu->world.now_ns)) flush(emu);
}

/* Nothing waits for room in our ports: the hosts have queues before them. */
static void on_drained(void *edge, uint32_t host, const struct mrc_hop *hop) {
  (void)edge, (void)host, (void)hop;
}

static const struct mrc_fabric_edge calls = {
    .arrive = on_arrive, .drained = on_drained, .next_carrier = mrc_ethernet_next_carrier};

/* ---- create ---- */

static void build_fabric(struct mrc_emu *emu, const struct mrc_emu_config *config) {
  struct mrc_fabric *fabric = &emu->fabric;
  emu->world.config.seed = config->seed;
  emu->world.config.topology = config->topology;
  mrc_agenda_init(&emu->world.agenda);
  emu->world.prng.state = config->seed;
  emu->record.world = &emu->world;
  *fabric = (struct mrc_fabric){
      .world = &emu->world, .record = &emu->record, .calls = &calls, .edge = emu};
  emu->block = config->block;
  emu->frame_bytes = MRC_EMU_ETHERNET_BYTES + config->mtu;
  fabric->pool.room_bytes = mrc_ethernet_room_bytes(emu->frame_bytes);
  mrc_fabric_build(fabric);
  fabric->kinds[MRC_FABRIC_FROM_HOST].queue = (struct mrc_queue_config){
      .buffer_bytes = config->topology.buffer_bytes, .trims = config->topology.trims};
}

static void learn_ports(struct mrc_emu *emu, const int *ifindices) {
  const int n = (int)(emu->world.config.topology.hosts * emu->world.config.topology.planes);
  emu->ifindices = malloc((size_t)n * sizeof(*ifindices));
  mrc_assert(emu->ifindices);
  memcpy(emu->ifindices, ifindices, (size_t)n * sizeof(*ifindices));
  for (int i = 0; i < n; i++)
    if (ifindices[i] >= emu->n_port_of) emu->n_port_of = ifindices[i] + 1;
  emu->port_of = malloc((size_t)emu->n_port_of * sizeof(*emu->port_of));
  mrc_assert(emu->port_of);
  for (int i = 0; i < emu->n_port_of; i++)
    emu->port_of[i] = -1;
  for (int i = 0; i < n; i++)
    if (ifindices[i] > 0) emu->port_of[ifindices[i]] = i;
}

static int open_sockets(struct mrc_emu *emu) {
  int error = ring_open(&emu->ring, emu->frame_bytes);
  if (error != 0) return error;
  error = mrc_emu_outbox_open(&emu->outbox);
  if (error == 0) {
    emu->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (emu->wake >= 0) return 0;
    error = -errno;
    mrc_emu_outbox_close(&emu->outbox);
  }
  ring_close(&emu->ring);
  return error;
}

static void free_memory(struct mrc_emu *emu) {
  mrc_agenda_free(&emu->world.agenda);
  mrc_fabric_free(&emu->fabric);
  free(emu->ifindices);
  free(emu->port_of);
  free(emu);
}

int mrc_emu_create(const struct mrc_emu_config *config, const int *ifindices, mrc_emu **out) {
  if (!mrc_topology_is_sound(&config->topology) || config->block > MAX_BLOCK ||
      config->mtu > MAX_MTU)
    return -EINVAL;
  struct mrc_emu *emu = calloc(1, sizeof(*emu));
  mrc_assert(emu);
  build_fabric(emu, config);
  learn_ports(emu, ifindices);
  const int error = open_sockets(emu);
  if (error != 0) {
    free_memory(emu);
    return error;
  }
  pthread_mutex_init(&emu->lock, NULL);
  pthread_mutex_init(&emu->turn, NULL);
  emu->world.now_ns = clock_ns(CLOCK_MONOTONIC);
  *out = emu;
  return 0;
}

void mrc_emu_destroy(mrc_emu *emu) {
  close(emu->wake);
  mrc_emu_outbox_close(&emu->outbox);
  ring_close(&emu->ring);
  pthread_mutex_destroy(&emu->lock);
  pthread_mutex_destroy(&emu->turn);
  free_memory(emu);
}

/* ---- run ---- */

/* Runs all events of the fabric that are due. Each event keeps its own time, however late it
   runs. */
static void advance(struct mrc_emu *emu, uint64_t until_ns) {
  struct mrc_heap_entry event;
  while (mrc_agenda_next_ns(&emu->world.agenda) <= until_ns) {
    mrc_assert(mrc_agenda_pop(&emu->world.agenda, &event));
    emu->world.now_ns = event.at_ns;
    if (event.kind == MRC_SIM_ON_ARRIVAL)
      mrc_fabric_arrive(&emu->fabric, event.index, event.pointer);
    else
      mrc_fabric_drain(&emu->fabric, event.index);
  }
  emu->world.now_ns = mrc_max_u64(emu->world.now_ns, until_ns);
}

/* Moves a packet from the ring into the fabric, or counts why it cannot. */
static void admit(struct mrc_emu *emu, const struct arrival *arrival) {
  struct mrc_fabric *fabric = &emu->fabric;
  const int port = arrival->ifindex < emu->n_port_of ? emu->port_of[arrival->ifindex] : -1;
  if (port < 0) return;
  emu->received++;
  if (arrival->cut || arrival->n > emu->frame_bytes) {
    emu->offloaded++;
    return;
  }
  if (fabric->pool.n_used * emu->frame_bytes > MAX_FRAMES_BYTES) {
    emu->overloaded++;
    return;
  }
  const uint32_t plane = (uint32_t)port / emu->world.config.topology.hosts;
  const uint32_t host = (uint32_t)port % emu->world.config.topology.hosts;
  struct mrc_frame *packet = mrc_frame_pool_get(&fabric->pool);
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  memcpy(bytes->at, arrival->bytes, arrival->n);
  bytes->n = arrival->n;
  packet->from = host;
  if (arrival->unfinished && !mrc_ethernet_finish(packet)) {
    emu->offloaded++;
    mrc_frame_pool_put(&fabric->pool, packet);
    return;
  }
  if (mrc_ethernet_read(packet, emu->block, plane)) {
    mrc_fabric_send(fabric, packet);
    return;
  }
  emu->record.stats.unroutable++;
  mrc_frame_pool_put(&fabric->pool, packet);
}

/* Takes arrived packets, each at its arrival time; false when the ring is empty. */
static bool take(struct mrc_emu *emu) {
  struct arrival arrival;
  /* In this order: after a pause between the two, packets are late, but none is early. */
  const uint64_t real_ns = clock_ns(CLOCK_REALTIME), now_ns = clock_ns(CLOCK_MONOTONIC);
  const uint64_t lead_ns = real_ns - now_ns;
  for (int i = 0; i < BATCH; i++) {
    if (!ring_peek(&emu->ring, &arrival)) return false;
    advance(emu, mrc_min_u64(arrival.real_ns - lead_ns, now_ns));
    admit(emu, &arrival);
    ring_release(&emu->ring);
  }
  return true;
}

/* Sleeps until a packet arrives or an event is due. */
static void wait(const struct mrc_emu *emu, uint64_t due_ns) {
  struct pollfd fds[] = {{.fd = emu->ring.fd, .events = POLLIN},
                         {.fd = emu->wake, .events = POLLIN}};
  const uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
  const uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
  const struct timespec timeout = {.tv_sec = (time_t)(left_ns / SECOND_NS),
                                   .tv_nsec = (long)(left_ns % SECOND_NS)};
  ppoll(fds, 2, due_ns == MRC_NEVER ? NULL : &timeout, NULL);
}

void mrc_emu_run(mrc_emu *emu) {
  /* Requests the lowest real-time priority. If the system refuses it, a busy machine makes us
     late. */
  const struct sched_param least = {.sched_priority = 1};
  pthread_setschedparam(pthread_self(), SCHED_RR, &least);
  prctl(PR_SET_TIMERSLACK, 1); /* ns; by default the kernel may sleep 50 us longer */
  for (bool stopped = false; !stopped;) {
    enter(emu);
    stopped = emu->stopped;
    const bool more = take(emu);
    advance(emu, clock_ns(CLOCK_MONOTONIC));
    flush(emu);
    const uint64_t due_ns = mrc_agenda_next_ns(&emu->world.agenda);
    leave(emu);
    if (!more) wait(emu, due_ns);
  }
}

void mrc_emu_stop(mrc_emu *emu) {
  enter(emu);
  emu->stopped = true;
  leave(emu);
  const uint64_t one = 1;
  const ssize_t written = write(emu->wake, &one, sizeof one);
  mrc_assert(written == sizeof one);
}

/* ---- query and change ---- */

int mrc_emu_hop_number(mrc_emu *emu, int kind, int plane, int near, int end) {
  if (kind < 0) return -EINVAL;
  return mrc_topology_hop(&emu->world.config.topology, (enum mrc_topology_tier)(kind / 2),
                          kind % 2 == 1, (uint32_t)plane - 1, (uint32_t)near, (uint32_t)end);
}

int mrc_emu_set_link(mrc_emu *emu, int number, uint64_t rate_bps, uint64_t delay_ns,
                     uint32_t loss_ppm, uint32_t mtu) {
  if (number < 0 || (uint32_t)number >= emu->fabric.n_hops || rate_bps == 0) return -EINVAL;
  struct mrc_hop_own *hop = mrc_fabric_own(&emu->fabric, (uint32_t)number);
  hop->base.rate_bps = rate_bps;
  hop->base.link.delay_ns = delay_ns;
  hop->base.link.loss_ppm = loss_ppm;
  hop->base.link.mtu_bytes = mtu + MRC_FRAME_LINK_BYTES;
  mrc_hop_configure(hop, &hop->base);
  return 0;
}

int mrc_emu_remove_hop(mrc_emu *emu, int number) {
  if (number < 0 || (uint32_t)number >= emu->fabric.n_hops) return -EINVAL;
  mrc_fabric_remove(&emu->fabric, (uint32_t)number);
  return 0;
}

int mrc_emu_set_faults(mrc_emu *emu, int number, const struct mrc_emu_fault *faults, int n) {
  if (number < 0 || (uint32_t)number >= emu->fabric.n_hops) return -EINVAL;
  for (int i = 0; i < n; i++)
    if (faults[i].kind > MRC_SIM_MTU || (faults[i].kind >= MRC_SIM_RATE && faults[i].a == 0))
      return -EINVAL;
  enter(emu);
  struct mrc_hop_own *hop = mrc_fabric_own(&emu->fabric, (uint32_t)number);
  mrc_hop_configure(hop, &hop->base);
  for (int i = 0; i < n; i++) {
    const struct mrc_sim_fault fault = {.kind = faults[i].kind, .a = faults[i].a, .b = faults[i].b};
    mrc_fault_add(hop, &fault);
  }
  leave(emu);
  return 0;
}

void mrc_emu_ask(mrc_emu *emu, struct mrc_emu_stats *stats) {
  enter(emu);
  *stats = (struct mrc_emu_stats){
      .received = emu->received,
      .sent = emu->outbox.sent,
      .unroutable = emu->record.stats.unroutable,
      .refused = emu->outbox.refused,
      .offloaded = emu->offloaded,
      .overloaded = emu->overloaded + emu->outbox.overloaded + ring_overflowed(&emu->ring)};
  memcpy(stats->late, emu->outbox.late, sizeof stats->late);
  for (uint32_t i = 0; i < emu->fabric.n_hops; i++) {
    const struct mrc_hop *hop = &emu->fabric.hops[i];
    stats->lost += mrc_hop_lost(hop);
    stats->dropped += hop->queue.dropped;
    stats->trimmed += hop->queue.trimmed;
    stats->marked += hop->queue.marked;
  }
  leave(emu);
}

int mrc_emu_ask_hop(mrc_emu *emu, int number, struct mrc_emu_hop *info) {
  if (number < 0 || (uint32_t)number >= emu->fabric.n_hops) return -EINVAL;
  const struct mrc_hop *hop = &emu->fabric.hops[number];
  enter(emu);
  *info = (struct mrc_emu_hop){.packets = hop->packets,
                               .bytes = hop->bytes,
                               .busy_ns = hop->busy_ns,
                               .queue_bytes = mrc_queue_bytes(&hop->queue),
                               .peak_bytes = hop->queue.peak_bytes,
                               .lost = mrc_hop_lost(hop),
                               .dropped = hop->queue.dropped,
                               .trimmed = hop->queue.trimmed,
                               .marked = hop->queue.marked};
  leave(emu);
  return 0;
}
