/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The route of a batch of bursts to the kernel, in the order of its stages:
 *
 *   1. short data goes before acknowledgements (put_in_order)
 *   2. each burst becomes one message, which the kernel cuts (GSO, fill_message), or, where an
 *      interface does not support that, one message a packet (fill_messages)
 *   3. one sendmmsg for all messages of a socket; an error that may be an earlier packet's is
 *      removed, and the send repeated once (send_again_if_failed)
 *   4. until a socket or a queue is full: then its port waits (send_group)
 *   5. each burst gets its fate: taken, refused, or an errno (mrc_udp_send)
 */
#define _GNU_SOURCE 1
#include "io/send.h"

#include <errno.h>
#include <limits.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "io/sigbus.h"
#include "io/udp.h"

enum {
  PACKET_IOVECS = 3, /* header, payload, trailer */
  BURST_IOVECS = MRC_MAX_BURST_PACKETS * PACKET_IOVECS,
  CONTROL_BYTES = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(uint16_t)),
  FATE_UNKNOWN = 2, /* neither taken, nor refused, nor an errno */
};

_Static_assert(BURST_IOVECS <= IOV_MAX, "a burst fits one message");
_Static_assert((int)MRC_MAX_BURST_PACKETS >= (int)MRC_UDP_BURSTS,
               "the outbox holds one batch, or one burst sent packet by packet");

struct control {
  _Alignas(struct cmsghdr) uint8_t bytes[CONTROL_BYTES];
};

/* Messages of one sendmmsg, all of one socket: one per burst, or one per packet of a burst. */
struct mrc_udp_outbox {
  struct mmsghdr messages[MRC_MAX_BURST_PACKETS];
  struct control controls[MRC_UDP_BURSTS];
  union mrc_sockaddr targets[MRC_UDP_BURSTS];
  struct iovec iovecs[MRC_UDP_BURSTS][BURST_IOVECS];
};

/* The bursts of one batch that go through one socket. */
struct group {
  struct mrc_udp *udp;
  struct mrc_udp_port *port;
  struct mrc_udp_transmitter *transmitter; /* NULL: the receive socket */
  int fd;
  const struct mrc_burst *bursts;
  int *taken;
  int indices[MRC_UDP_BURSTS]; /* into bursts and taken */
  int n;
  uint64_t now_ns;
};

int mrc_udp_outbox_open(struct mrc_udp *udp) {
  udp->outbox = calloc(1, sizeof *udp->outbox);
  return udp->outbox ? 0 : -ENOMEM;
}

static bool waits(const struct mrc_udp_port *port) {
  return port->n_full > 0 || port->retry_ns != MRC_NEVER;
}

/* ---- 1. The order ---- */

static bool is_control(const struct mrc_burst *burst) { return (burst->tclass & 3) == 0; }

/* The order of sending: as given, except that single data packets go before acknowledgements. A
   send takes longer than all other work, and the receiver of a short message waits for every send
   before it. Data packets keep their order, because the engine detects losses by it. */
static void put_in_order(const struct mrc_burst *bursts, int n, int *order) {
  bool short_data = true;
  for (int i = 0; i < n; i++)
    short_data &= is_control(&bursts[i]) || bursts[i].n_packets == 1;
  int placed = 0;
  for (int i = 0; i < n; i++)
    if (!short_data || !is_control(&bursts[i])) order[placed++] = i;
  for (int i = 0; i < n && short_data; i++)
    if (is_control(&bursts[i])) order[placed++] = i;
  mrc_assert(placed == n);
}

/* ---- 2. Messages ---- */

static size_t packet_bytes(const struct mrc_packet *packet) {
  return packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
}

static int fill_iovecs(struct iovec *iovecs, const struct mrc_burst *burst, int index) {
  const struct mrc_packet *packet = &burst->packets[index];
  int n = 0;
  if (burst->staged != NULL) {
    const uint8_t *at = burst->staged + (size_t)index * burst->packet_bytes;
    iovecs[n++] = (struct iovec){(void *)at, packet_bytes(packet)};
    return n;
  }
  iovecs[n++] = (struct iovec){(void *)packet->header, packet->header_bytes};
  if (packet->payload_bytes > 0)
    iovecs[n++] = (struct iovec){(void *)packet->payload, packet->payload_bytes};
  if (packet->trailer_bytes > 0)
    iovecs[n++] = (struct iovec){(void *)packet->trailer, packet->trailer_bytes};
  return n;
}

static size_t put_control(struct control *control, size_t offset, int level, int type,
                          const void *value, size_t bytes) {
  struct cmsghdr *header = (struct cmsghdr *)(control->bytes + offset);
  mrc_assert(offset + CMSG_SPACE(bytes) <= CONTROL_BYTES);
  header->cmsg_level = level;
  header->cmsg_type = type;
  header->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(header), value, bytes);
  return offset + CMSG_SPACE(bytes);
}

/* Traffic class, and the segment size if the kernel has to cut the message. */
static size_t fill_control(struct control *control, const struct mrc_burst *burst, bool cut) {
  bool v4 = burst->family == 4;
  int tclass = burst->tclass;
  size_t bytes = put_control(control, 0, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                             &tclass, sizeof tclass);
  if (!cut) return bytes;
  uint16_t segment_bytes = (uint16_t)burst->packet_bytes;
  return put_control(control, bytes, IPPROTO_UDP, UDP_SEGMENT, &segment_bytes,
                     sizeof segment_bytes);
}

/* Makes the whole burst one message, at place `i` of the outbox. */
static void fill_message(struct mrc_udp_outbox *outbox, int i, const struct mrc_burst *burst) {
  int n_iovecs = 0;
  if (burst->staged != NULL) {
    const int last = burst->n_packets - 1; /* only the last packet may be shorter */
    const size_t bytes = (size_t)last * burst->packet_bytes + packet_bytes(&burst->packets[last]);
    outbox->iovecs[i][n_iovecs++] = (struct iovec){(void *)burst->staged, bytes};
  } else {
    for (int j = 0; j < burst->n_packets; j++)
      n_iovecs += fill_iovecs(outbox->iovecs[i] + n_iovecs, burst, j);
  }
  union mrc_sockaddr *target = &outbox->targets[i];
  outbox->messages[i].msg_hdr = (struct msghdr){
      .msg_name = target,
      .msg_namelen =
          mrc_sockaddr_set(target, burst->dst, burst->family, burst->dport, burst->flow_label),
      .msg_iov = outbox->iovecs[i],
      .msg_iovlen = (size_t)n_iovecs,
      .msg_control = outbox->controls[i].bytes,
      .msg_controllen = fill_control(&outbox->controls[i], burst, burst->n_packets > 1)};
}

/* Makes every packet of a burst a message of its own. */
static void fill_messages(struct mrc_udp_outbox *outbox, const struct mrc_burst *burst) {
  struct iovec *iovecs = outbox->iovecs[0];
  socklen_t length = mrc_sockaddr_set(&outbox->targets[0], burst->dst, burst->family, burst->dport,
                                      burst->flow_label);
  size_t control_bytes = fill_control(&outbox->controls[0], burst, false);
  for (int j = 0; j < burst->n_packets; j++) {
    int n_iovecs = fill_iovecs(iovecs, burst, j);
    outbox->messages[j].msg_hdr = (struct msghdr){.msg_name = &outbox->targets[0],
                                                  .msg_namelen = length,
                                                  .msg_iov = iovecs,
                                                  .msg_iovlen = (size_t)n_iovecs,
                                                  .msg_control = outbox->controls[0].bytes,
                                                  .msg_controllen = control_bytes};
    iovecs += n_iovecs;
  }
}

/* ---- 3. To the kernel ---- */

/* The kernel also keeps the error of a report that did not fit into the queue. That error would
   fail the next send, and until then wake the datapath again and again. */
static int drain_errors(struct mrc_udp *udp, int fd) {
  enum { ERRORS_AT_ONCE = 64 };
  char control[512];
  int n = 0;
  while (n < ERRORS_AT_ONCE) {
    struct msghdr report = {.msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &report, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    n++;
  }
  int error = 0;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error}); /* clears it */
  udp->counters[MRC_IO_TX_ERROR_REPORTS] += (uint64_t)n;
  return n;
}

int mrc_udp_drain_errors(struct mrc_udp *udp, int port_number, int tx_index) {
  return drain_errors(udp, mrc_udp_socket(mrc_udp_port(udp, port_number), tx_index));
}

/* A queue that stays full still accepts a message now and then; see MRC_UDP_REFUSAL_NS. The queue
   belongs to the interface, so the error is one of the plane: blaming one EV after the other would
   take this time for each. */
static int judge_refusal(struct mrc_udp_port *port, int error, uint64_t now_ns) {
  if (error != -ENOBUFS && error != -ENOMEM) return error;
  if (port->refused_ns == MRC_NEVER) port->refused_ns = now_ns;
  return now_ns - port->refused_ns >= MRC_UDP_REFUSAL_NS ? -ENETDOWN : error;
}

/* Sends messages [done, n) of the outbox once. Returns how many were sent, or a negative errno. */
static int send_messages(struct group *group, int done, int n) {
  group->udp->counters[MRC_IO_TX_SYSCALLS]++;
  int sent =
      sendmmsg(group->fd, group->udp->outbox->messages + done, (unsigned)(n - done), MSG_DONTWAIT);
  if (sent < 0) return judge_refusal(group->port, -errno, group->now_ns);
  group->port->refused_ns = MRC_NEVER;
  return sent;
}

static bool is_refusal(int error) {
  return error == -EAGAIN || error == -ENOBUFS || error == -ENOMEM;
}

/* The port sends nothing more until its socket has room or its queue had time to drain. A receive
   socket is watched for input only. */
static void wait_for_room(struct group *group, int error) {
  if (error != -EAGAIN || group->transmitter == NULL) {
    group->port->retry_ns = group->now_ns + MRC_UDP_RETRY_NS;
  } else if (!group->transmitter->full) {
    group->transmitter->full = true;
    group->port->n_full++;
  }
}

/* Removes causes of failure that are not in the burst itself: an ICMP error of an earlier packet,
   or registered memory that lost its backing. */
static void clear_causes(struct group *group, const struct mrc_burst *burst, int error) {
  if (error != -EFAULT) {
    drain_errors(group->udp, group->fd);
    return;
  }
  if (!mrc_sigbus_in_force()) return; /* a fault would end the process */
  for (int i = 0; i < burst->n_packets; i++)
    mrc_sigbus_touch(burst->packets[i].payload, burst->packets[i].payload_bytes);
}

/* Sends messages [done, n), and repeats the send once after an error that is no refusal. That error
   may belong to an earlier packet, and the kernel returns such an error only once. So only the
   second result counts. */
static int send_again_if_failed(struct group *group, const struct mrc_burst *burst, int done,
                                int n) {
  int sent = send_messages(group, done, n);
  if (sent > 0 || is_refusal(sent)) return sent;
  clear_causes(group, burst, sent);
  return send_messages(group, done, n);
}

/* ---- 4. The bursts of one socket ---- */

/* Sends a burst packet by packet. Once its first packet is sent, the whole burst counts as taken;
   the engine then detects the unsent packets as lost. */
static int send_singly(struct group *group, const struct mrc_burst *burst) {
  fill_messages(group->udp->outbox, burst);
  int done = 0;
  int sent = 1;
  for (; sent > 0 && done < burst->n_packets; done += sent) {
    sent = send_again_if_failed(group, burst, done, burst->n_packets);
    if (sent < 0) break;
  }
  if (is_refusal(sent)) wait_for_room(group, sent);
  if (done > 0) return 1;
  return is_refusal(sent) ? 0 : sent;
}

/* Sends bursts [done, n) of the group, as messages [done, n) of the outbox, until one fails.
   Returns how many of them have a fate now: at least 1, unless the kernel refused or the interface
   does not support GSO. */
static int send_some(struct group *group, int done) {
  const struct mrc_burst *burst = &group->bursts[group->indices[done]];
  int sent = send_again_if_failed(group, burst, done, group->n);
  if (sent > 0) {
    for (int i = done; i < done + sent; i++)
      group->taken[group->indices[i]] = 1;
    return sent;
  }
  if (is_refusal(sent)) {
    wait_for_room(group, sent);
    return 0;
  }
  /* Before Linux 6.11, UDP_SEGMENT returns EIO on interfaces without checksum offload. Before 6.9,
     it returns EINVAL for a segment that is too large for the path. */
  if (burst->n_packets > 1 && sent == -EIO) {
    group->port->gso = false;
    return 0;
  }
  group->taken[group->indices[done]] = burst->n_packets > 1 && sent == -EINVAL ? -EMSGSIZE : sent;
  return 1;
}

static void send_group(struct group *group) {
  int done = 0;
  if (group->port->gso)
    for (int i = 0; i < group->n; i++)
      fill_message(group->udp->outbox, i, &group->bursts[group->indices[i]]);
  while (done < group->n && group->port->gso && !waits(group->port)) {
    done += send_some(group, done);
  }
  for (; done < group->n && !waits(group->port); done++)
    group->taken[group->indices[done]] = send_singly(group, &group->bursts[group->indices[done]]);
  for (; done < group->n; done++)
    group->taken[group->indices[done]] = 0;
}

/* ---- 5. The batch ---- */

static void count_fates(struct mrc_udp *udp, const int *taken, int n) {
  for (int i = 0; i < n; i++) {
    mrc_assert(taken[i] <= 1);
    enum mrc_io_counter counter = taken[i] > 0    ? MRC_IO_TX_BURSTS
                                  : taken[i] == 0 ? MRC_IO_TX_BURSTS_REFUSED
                                                  : MRC_IO_TX_BURST_ERRORS;
    udp->counters[counter]++;
  }
}

/* Collects the bursts of one socket from the whole batch: with spraying over planes, each burst
   would otherwise need its own system call. */
uint32_t mrc_udp_send(struct mrc_udp *udp, const struct mrc_burst *bursts, int n, int *taken,
                      uint64_t now_ns) {
  mrc_assert(n >= 0 && n <= MRC_UDP_BURSTS);
  uint32_t waiting = 0;
  int order[MRC_UDP_BURSTS];
  for (int i = 0; i < n; i++) {
    const struct mrc_udp_port *port = mrc_udp_port(udp, bursts[i].port);
    mrc_assert(bursts[i].tx_index <= port->n_transmitters);
    mrc_assert(bursts[i].family == port->config.family);
    mrc_assert(bursts[i].n_packets >= 1 && bursts[i].n_packets <= MRC_MAX_BURST_PACKETS);
    mrc_assert(bursts[i].packet_bytes > 0 && bursts[i].packet_bytes <= UINT16_MAX);
    taken[i] = FATE_UNKNOWN;
  }
  put_in_order(bursts, n, order);
  for (int at = 0; at < n; at++) {
    const struct mrc_burst *first = &bursts[order[at]];
    if (taken[order[at]] != FATE_UNKNOWN) continue;
    struct mrc_udp_port *port = mrc_udp_port(udp, first->port);
    struct group group = {.udp = udp,
                          .port = port,
                          .transmitter = first->tx_index < port->n_transmitters
                                             ? &port->transmitters[first->tx_index]
                                             : NULL,
                          .fd = mrc_udp_socket(port, first->tx_index),
                          .bursts = bursts,
                          .taken = taken,
                          .now_ns = now_ns};
    for (int i = at; i < n; i++)
      if (taken[order[i]] == FATE_UNKNOWN && bursts[order[i]].port == first->port &&
          bursts[order[i]].tx_index == first->tx_index)
        group.indices[group.n++] = order[i];
    send_group(&group);
    if (waits(port)) waiting |= 1u << (first->port - 1);
  }
  count_fates(udp, taken, n);
  return waiting;
}

/* ---- When there is room again ---- */

bool mrc_udp_on_room(struct mrc_udp *udp, int port_number, int tx_index) {
  struct mrc_udp_port *port = mrc_udp_port(udp, port_number);
  struct mrc_udp_transmitter *transmitter = &port->transmitters[tx_index];
  if (!transmitter->full) return false;
  transmitter->full = false;
  port->n_full--;
  return !waits(port);
}

uint64_t mrc_udp_deadline(const struct mrc_udp *udp) {
  uint64_t deadline_ns = MRC_NEVER;
  for (int i = 0; i < udp->n_ports; i++)
    deadline_ns = mrc_min_u64(deadline_ns, udp->ports[i].retry_ns);
  return deadline_ns;
}

uint32_t mrc_udp_retry(struct mrc_udp *udp, uint64_t now_ns) {
  uint32_t ready = 0;
  for (int i = 0; i < udp->n_ports; i++) {
    struct mrc_udp_port *port = &udp->ports[i];
    if (port->retry_ns > now_ns) continue;
    port->retry_ns = MRC_NEVER;
    if (!waits(port)) ready |= 1u << i;
  }
  return ready;
}
