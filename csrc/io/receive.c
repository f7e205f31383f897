/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The route of received packets to the engine, in the order of its stages:
 *
 *   1. one recvmmsg reads messages of one socket into the inbox (mrc_udp_receive)
 *   2. the source address and the control messages give each message its data: destination, marks,
 *      the time of its arrival, drops before it, the size of packets that GRO has joined
 *      (read_message)
 *   3. the engine gets the packets of each message (mrc_udp_deliver)
 */
#define _GNU_SOURCE 1
#include "io/receive.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "io/udp.h"

enum {
  MESSAGES = MRC_UDP_RECEIVED_AT_ONCE,
  MESSAGE_BYTES = 65536, /* the largest UDP payload, with or without GRO */
  CONTROL_BYTES = 256,   /* of the control messages enabled in udp.c */
};

/* Messages of the last receive, until they are delivered. */
struct mrc_udp_inbox {
  struct mmsghdr messages[MESSAGES];
  struct iovec iovecs[MESSAGES];
  union mrc_sockaddr sources[MESSAGES];
  _Alignas(struct cmsghdr) uint8_t controls[MESSAGES][CONTROL_BYTES];
  int n;
  _Alignas(64) uint8_t bytes[MESSAGES][MESSAGE_BYTES];
};

/* Data from the source address and the control messages of one message. */
struct delivery {
  struct mrc_meta meta;
  uint32_t segment_bytes; /* of every packet but the last; 0: one packet */
  uint32_t overflow;      /* drops at this socket so far */
  uint64_t clock_lead_ns; /* kernel's timestamps minus the clock of now_ns */
};

int mrc_udp_inbox_open(struct mrc_udp *udp) {
  udp->inbox = aligned_alloc(64, sizeof *udp->inbox);
  if (!udp->inbox) return -ENOMEM;
  udp->inbox->n = 0;
  for (int i = 0; i < MESSAGES; i++)
    udp->inbox->iovecs[i] =
        (struct iovec){.iov_base = udp->inbox->bytes[i], .iov_len = MESSAGE_BYTES};
  return 0;
}

/* ---- 1. From the kernel ---- */

int mrc_udp_receive(struct mrc_udp *udp, int port) {
  struct mrc_udp_inbox *inbox = udp->inbox;
  mrc_assert(inbox->n == 0);
  for (int i = 0; i < MESSAGES; i++)
    inbox->messages[i].msg_hdr = (struct msghdr){.msg_name = &inbox->sources[i],
                                                 .msg_namelen = sizeof inbox->sources[i],
                                                 .msg_iov = &inbox->iovecs[i],
                                                 .msg_iovlen = 1,
                                                 .msg_control = inbox->controls[i],
                                                 .msg_controllen = CONTROL_BYTES};
  /* An error here is a pending one of the socket, e.g. its interface went down. Reporting it clears
     it, and probes detect failed paths, so it is ignored. */
  int n =
      recvmmsg(mrc_udp_port(udp, port)->receive_fd, inbox->messages, MESSAGES, MSG_DONTWAIT, NULL);
  if (n <= 0) return 0;
  udp->counters[MRC_IO_RX_SYSCALLS]++;
  udp->counters[MRC_IO_RX_DATAGRAMS] += (uint64_t)n;
  inbox->n = n;
  return n;
}

/* ---- 2. The data of a message ---- */

static int int_of(const struct cmsghdr *control) {
  int value;
  memcpy(&value, CMSG_DATA(control), sizeof value);
  return value;
}

static uint64_t ns_of(const struct timespec *time) {
  return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

/* Packets wait in the socket while the host is busy. The kernel's timestamps of their arrival keep
   this wait out of all measured round trips. */
static uint64_t clock_lead_ns(uint64_t now_ns) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return ns_of(&time) - now_ns;
}

/* `address` is all zero before. */
static void set_mapped(uint8_t address[16], const struct in_addr *v4) {
  memset(address + 10, 0xff, 2);
  memcpy(address + 12, v4, 4);
}

/* The enum mrc_trimmed of a packet with this traffic class (ECN bits included). */
static uint8_t trimmed_by(const struct mrc_dscps *dscps, uint32_t tclass) {
  const uint32_t dscp = tclass >> 2 & 0x3F;
  if (dscp == dscps->trimmed) return MRC_TRIMMED;
  return dscp == dscps->trimmed_last ? MRC_TRIMMED_LASTHOP : MRC_UNTRIMMED;
}

static void read_control_v6(const struct mrc_dscps *dscps, const struct cmsghdr *control,
                            struct mrc_meta *meta) {
  if (control->cmsg_type == IPV6_PKTINFO) {
    struct in6_pktinfo info;
    memcpy(&info, CMSG_DATA(control), sizeof info);
    memcpy(meta->dst, &info.ipi6_addr, sizeof meta->dst);
  } else if (control->cmsg_type == IPV6_TCLASS) {
    meta->ecn = int_of(control) & 3;
    meta->trimmed = trimmed_by(dscps, (uint32_t)int_of(control));
  } else if (control->cmsg_type == IPV6_FLOWINFO) {
    meta->flow_label = ntohl((uint32_t)int_of(control)) & 0xfffff;
  }
}

static void read_control_v4(const struct mrc_dscps *dscps, const struct cmsghdr *control,
                            struct mrc_meta *meta) {
  if (control->cmsg_type == IP_PKTINFO) {
    struct in_pktinfo info;
    memcpy(&info, CMSG_DATA(control), sizeof info);
    set_mapped(meta->dst, &info.ipi_addr);
  } else if (control->cmsg_type == IP_TOS) {
    meta->ecn = *CMSG_DATA(control) & 3;
    meta->trimmed = trimmed_by(dscps, *CMSG_DATA(control));
  }
}

static void read_source(const union mrc_sockaddr *source, struct mrc_meta *meta) {
  if (source->any.sa_family == AF_INET) {
    set_mapped(meta->src, &source->v4.sin_addr);
    meta->sport = ntohs(source->v4.sin_port);
  } else {
    memcpy(meta->src, &source->v6.sin6_addr, sizeof meta->src);
    meta->sport = ntohs(source->v6.sin6_port);
  }
}

static void read_message(const struct mrc_dscps *dscps, struct msghdr *message,
                         struct delivery *delivery) {
  read_source(message->msg_name, &delivery->meta);
  for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control;
       control = CMSG_NXTHDR(message, control)) {
    if (control->cmsg_level == IPPROTO_IPV6)
      read_control_v6(dscps, control, &delivery->meta);
    else if (control->cmsg_level == IPPROTO_IP)
      read_control_v4(dscps, control, &delivery->meta);
    else if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO)
      delivery->segment_bytes = (uint32_t)int_of(control);
    else if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SO_RXQ_OVFL)
      delivery->overflow = (uint32_t)int_of(control);
    else if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SO_TIMESTAMPNS) {
      struct timespec time;
      memcpy(&time, CMSG_DATA(control), sizeof time);
      delivery->meta.arrived_ns = ns_of(&time) - delivery->clock_lead_ns;
    }
  }
}

/* ---- 3. To the engine ---- */

struct mrc_udp_delivered mrc_udp_deliver(struct mrc_udp *udp, int port_number, mrc_engine *engine,
                                         uint64_t now_ns) {
  struct mrc_udp_port *port = mrc_udp_port(udp, port_number);
  struct mrc_udp_inbox *inbox = udp->inbox;
  const uint64_t lead_ns = clock_lead_ns(now_ns);
  struct mrc_udp_delivered delivered = {0};
  for (int i = 0; i < inbox->n; i++) {
    struct delivery delivery = {.clock_lead_ns = lead_ns,
                                .meta = {.dport = udp->udp_port,
                                         .family = port->config.family,
                                         .port = (uint8_t)port_number},
                                .overflow = port->overflow_seen};
    read_message(&udp->dscps, &inbox->messages[i].msg_hdr, &delivery);
    udp->counters[MRC_IO_RX_OVERFLOW] += delivery.overflow - port->overflow_seen;
    delivery.meta.overflowed = delivery.overflow != port->overflow_seen;
    port->overflow_seen = delivery.overflow;

    uint32_t total = inbox->messages[i].msg_len;
    uint32_t step = delivery.segment_bytes != 0 ? delivery.segment_bytes : MESSAGE_BYTES;
    uint32_t packets = mrc_max_u32(1, (total + step - 1) / step);
    if (packets > 1) udp->counters[MRC_IO_GRO_SEGMENTS] += packets;
    delivered.bytes += total;
    delivered.packets += packets;
    mrc_engine_receive(engine, inbox->bytes[i], total, step, &delivery.meta, now_ns);
  }
  inbox->n = 0;
  return delivered;
}
