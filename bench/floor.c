/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor: UDP sockets without a protocol, over the same encapsulated routes as mrc. One of two
 * ends. Each end has a receive socket and a transmit socket for each plane.
 *
 *   floor PORT SOURCE IFNAME=ADDRESS[,ADDRESS...] ...     the peer's address on each path
 *
 * Jobs:  send PACKET_BYTES PACKETS MS     bursts of PACKETS packets, all planes in turn
 *        receive                          until the next job comes and the sockets are empty
 *        ping BYTES MS SPIN               half round trips over the first path
 *        echo SPIN                        answers pings until the next job comes
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <linux/in6.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "job.h"

enum {
  MAX_PLANES = 32,
  MAX_PATHS = 64, /* of a plane */
  AT_ONCE = 8,    /* messages of one sendmmsg, as in mrc's driver */
  RECEIVE_AT_ONCE = 16,
  MESSAGE_BYTES = 65536,
  BUFFER_BYTES = 8 << 20, /* of a receive socket, mrc's default */
  WAIT_MS = 20,           /* interval at which a blocking echo checks for the next job */
  MAX_LABEL = 0xffff,
};

struct plane {
  int receive_fd;
  int transmit_fd;
  struct sockaddr_in6 paths[MAX_PATHS];
  int n_paths;
};

struct end {
  struct plane planes[MAX_PLANES];
  int n_planes;
  int epoll_fd;
};

static struct latency latency;
static uint8_t bytes[RECEIVE_AT_ONCE][MESSAGE_BYTES];

static int open_socket(const char *ifname, struct sockaddr_in6 local) {
  int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail(errno, "socket");
  if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, ifname, (socklen_t)strlen(ifname)) != 0)
    fail(errno, ifname);
  if (bind(fd, (struct sockaddr *)&local, sizeof local) != 0) fail(errno, "bind");
  return fd;
}

static void open_plane(struct plane *plane, char *argument, uint16_t port, const char *source) {
  char *ifname = strtok(argument, "=");
  plane->receive_fd = open_socket(ifname, parse_address("::", port));
  set_option(plane->receive_fd, IPPROTO_UDP, UDP_GRO, 1);
  int wanted = BUFFER_BYTES;
  /* This requires privilege. Without it, SO_RCVBUF is limited by net.core.rmem_max. */
  if (setsockopt(plane->receive_fd, SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof wanted) != 0)
    set_option(plane->receive_fd, SOL_SOCKET, SO_RCVBUF, wanted);
  plane->transmit_fd = open_socket(ifname, parse_address(source, 0));
  set_option(plane->transmit_fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  set_option(plane->transmit_fd, IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1);
  for (char *text = strtok(NULL, ","); text && plane->n_paths < MAX_PATHS; text = strtok(NULL, ","))
    plane->paths[plane->n_paths++] = parse_address(text, port);
  if (plane->n_paths == 0) fail(0, "a plane without a path");
}

static void open_end(struct end *end, int argc, char **argv) {
  if (argc < 4 || argc - 3 > MAX_PLANES) fail(0, "usage: floor PORT SOURCE IFNAME=ADDRESS,... ...");
  end->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  for (int i = 3; i < argc; i++) {
    struct plane *plane = &end->planes[end->n_planes++];
    open_plane(plane, argv[i], (uint16_t)atoi(argv[1]), argv[2]);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = plane->receive_fd};
    if (epoll_ctl(end->epoll_fd, EPOLL_CTL_ADD, plane->receive_fd, &event) != 0)
      fail(errno, "epoll");
  }
}

/* ---- Bursts ---- */

/* AT_ONCE messages over the paths of one plane in turn. Returns how many the kernel took. */
static int send_round(const struct plane *plane, uint32_t packet_bytes, uint32_t burst_bytes,
                      uint32_t round) {
  struct mmsghdr messages[AT_ONCE] = {0};
  struct sockaddr_in6 targets[AT_ONCE];
  struct iovec iovec = {.iov_base = bytes[0], .iov_len = burst_bytes};
  _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint16_t))] = {0};
  struct cmsghdr *segment = (struct cmsghdr *)control;
  *segment = (struct cmsghdr){
      .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))};
  uint16_t segment_bytes = (uint16_t)packet_bytes;
  memcpy(CMSG_DATA(segment), &segment_bytes, sizeof segment_bytes);
  for (uint32_t i = 0; i < AT_ONCE; i++) {
    uint32_t path = (round * AT_ONCE + i) % (uint32_t)plane->n_paths;
    targets[i] = plane->paths[path];
    targets[i].sin6_flowinfo = htonl((path + 1) & MAX_LABEL);
    struct msghdr *header = &messages[i].msg_hdr;
    *header = (struct msghdr){.msg_name = &targets[i],
                              .msg_namelen = sizeof targets[i],
                              .msg_iov = &iovec,
                              .msg_iovlen = 1};
    if (burst_bytes > packet_bytes) {
      header->msg_control = control;
      header->msg_controllen = sizeof control;
    }
  }
  int sent = sendmmsg(plane->transmit_fd, messages, AT_ONCE, 0);
  if (sent < 0 && errno != ENOBUFS) fail(errno, "sendmmsg");
  return sent < 0 ? 0 : sent;
}

static void send_bursts(const struct end *end, const struct job *job) {
  uint32_t packet_bytes = (uint32_t)job_number(job, 1);
  uint32_t burst_bytes = packet_bytes * (uint32_t)job_number(job, 2);
  uint64_t start_ns = clock_ns();
  uint64_t end_ns = start_ns + job_number(job, 3) * 1000000u;
  uint64_t bursts = 0;
  uint64_t syscalls = 0;
  while (clock_ns() < end_ns)
    for (int i = 0; i < end->n_planes; i++, syscalls++)
      bursts += (uint64_t)send_round(&end->planes[i], packet_bytes, burst_bytes,
                                     (uint32_t)(syscalls / (uint32_t)end->n_planes));
  printf("{\"bytes\": %lu, \"packets\": %lu, \"syscalls\": %lu, \"ns\": %lu}\n",
         bursts * burst_bytes, bursts * (burst_bytes / packet_bytes), syscalls,
         clock_ns() - start_ns);
}

struct received {
  uint64_t bytes;
  uint64_t packets;
  uint64_t syscalls;
  uint64_t first_ns;
  uint64_t last_ns;
};

static uint64_t packets_of(struct msghdr *header, uint32_t length) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
    int segment;
    if (c->cmsg_level != SOL_UDP || c->cmsg_type != UDP_GRO) continue;
    memcpy(&segment, CMSG_DATA(c), sizeof segment);
    return (length + (uint32_t)segment - 1) / (uint32_t)segment;
  }
  return 1;
}

static void receive_some(int fd, struct received *received) {
  struct mmsghdr messages[RECEIVE_AT_ONCE] = {0};
  struct iovec iovecs[RECEIVE_AT_ONCE];
  _Alignas(struct cmsghdr) uint8_t controls[RECEIVE_AT_ONCE][CMSG_SPACE(sizeof(int))];
  for (int i = 0; i < RECEIVE_AT_ONCE; i++) {
    iovecs[i] = (struct iovec){.iov_base = bytes[i], .iov_len = MESSAGE_BYTES};
    messages[i].msg_hdr = (struct msghdr){.msg_iov = &iovecs[i],
                                          .msg_iovlen = 1,
                                          .msg_control = controls[i],
                                          .msg_controllen = sizeof controls[i]};
  }
  int n = recvmmsg(fd, messages, RECEIVE_AT_ONCE, MSG_DONTWAIT, NULL);
  if (n <= 0) return;
  received->syscalls++;
  received->last_ns = clock_ns();
  if (received->first_ns == 0) {
    received->first_ns = received->last_ns; /* the first messages start the clock, uncounted */
    return;
  }
  for (int i = 0; i < n; i++) {
    received->bytes += messages[i].msg_len;
    received->packets += packets_of(&messages[i].msg_hdr, messages[i].msg_len);
  }
}

static void receive_bursts(const struct end *end) {
  struct received received = {0};
  for (;;) {
    struct epoll_event ready[MAX_PLANES];
    int n = epoll_wait(end->epoll_fd, ready, MAX_PLANES, WAIT_MS);
    for (int i = 0; i < n; i++)
      receive_some(ready[i].data.fd, &received);
    if (n == 0 && job_waits()) break;
  }
  printf("{\"bytes\": %lu, \"packets\": %lu, \"syscalls\": %lu, \"ns\": %lu}\n", received.bytes,
         received.packets, received.syscalls, received.last_ns - received.first_ns);
}

/* ---- Ping-pong ---- */

/* Receives one datagram. False if none came: after WAIT_MS if blocking, at once if spinning. */
static bool take(int fd, bool spin) {
  ssize_t n = recv(fd, bytes[0], MESSAGE_BYTES, spin ? MSG_DONTWAIT : 0);
  if (n < 0 && errno != EAGAIN && errno != EINTR) fail(errno, "recv");
  return n >= 0;
}

static void put(const struct plane *plane, size_t length) {
  const struct sockaddr_in6 *target = &plane->paths[0];
  if (sendto(plane->transmit_fd, bytes[0], length, 0, (const struct sockaddr *)target,
             sizeof *target) < 0)
    fail(errno, "sendto");
}

static void set_patience(int fd) {
  struct timeval wait = {.tv_usec = WAIT_MS * 1000};
  if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) != 0) fail(errno, "SO_RCVTIMEO");
}

static void ping(const struct end *end, const struct job *job) {
  const struct plane *plane = &end->planes[0];
  size_t length = job_number(job, 1);
  bool spin = job_number(job, 3) != 0;
  set_patience(plane->receive_fd);
  uint64_t start_ns = clock_ns();
  uint64_t end_ns = start_ns + job_number(job, 2) * 1000000u;
  uint64_t now_ns = start_ns;
  uint64_t messages = 0;
  for (; now_ns < end_ns; messages++) {
    uint64_t sent_ns = now_ns;
    put(plane, length);
    while (!take(plane->receive_fd, spin))
      if (clock_ns() - sent_ns > 1000000000u) fail(0, "no answer to a ping in a second");
    now_ns = clock_ns();
    latency_add(&latency, (now_ns - sent_ns) / 2);
  }
  result_print(&latency, messages, 0, now_ns - start_ns);
}

static void echo(const struct end *end, const struct job *job) {
  const struct plane *plane = &end->planes[0];
  bool spin = job_number(job, 1) != 0;
  set_patience(plane->receive_fd);
  uint64_t idle = 0;
  for (bool done = false; !done;) {
    ssize_t n = recv(plane->receive_fd, bytes[0], MESSAGE_BYTES, spin ? MSG_DONTWAIT : 0);
    if (n >= 0)
      put(plane, (size_t)n);
    else if (!spin || ++idle % 4096 == 0)
      done = job_waits();
  }
  printf("{}\n");
}

static void run(const struct end *end, const struct job *job) {
  if (job_is(job, "send"))
    send_bursts(end, job);
  else if (job_is(job, "receive"))
    receive_bursts(end);
  else if (job_is(job, "ping"))
    ping(end, job);
  else if (job_is(job, "echo"))
    echo(end, job);
  else if (job_is(job, "end"))
    return; /* it only ends the job before */
  else
    fail(0, "unknown job");
  fflush(stdout);
}

int main(int argc, char **argv) {
  static struct end end;
  static struct job job;
  prctl(PR_SET_PDEATHSIG, 9);
  open_end(&end, argc, argv);
  printf("{}\n");
  fflush(stdout);
  while (job_read(&job))
    run(&end, &job);
  return 0;
}
