/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP or MPTCP with as little work as possible: one of two ends, for one flow or several at once.
 * The sender reads from a file or from 1 MiB of memory. The receiver writes to a file or to a
 * buffer that stays in the cache.
 *
 *   flow receive PORT mptcp|tcp
 *   flow send PORT mptcp|tcp
 *
 * Jobs of the receiver: take FLOWS BINS [FILE] until every flow has ended; the bytes of each flow
 *                                              also in as many bins of 1 ms
 * Jobs of the sender:   send CC write|sendfile MS FROM TO [FROM TO ...]
 *                       file CC PATH FROM TO   the whole file
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <linux/in6.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job.h"

enum {
  MAX_FLOWS = 32,
  CHUNK_BYTES = 1 << 20,
  BIN_NS = 1000000,
  MPTCP_INFO = 1,               /* of linux/mptcp.h, which conflicts with netinet/in.h */
  MPTCP_INFO_BYTES_RETRANS = 6, /* index of the 64-bit word in struct mptcp_info, Linux 6.5 */
};

static uint8_t buffer[CHUNK_BYTES];

static int open_socket(bool mptcp) {
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, mptcp ? IPPROTO_MPTCP : IPPROTO_TCP);
  if (fd < 0) fail(errno, mptcp ? "MPTCP" : "TCP");
  return fd;
}

/* ---- Receiving ---- */

static int listen_on(uint16_t port, bool mptcp) {
  int fd = open_socket(mptcp);
  struct sockaddr_in6 local = parse_address("::", port);
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd, (struct sockaddr *)&local, sizeof local) != 0 || listen(fd, MAX_FLOWS) != 0)
    fail(errno, "listen");
  return fd;
}

struct taken {
  uint64_t bytes;
  uint64_t syscalls;
  uint64_t start_ns;
  uint64_t n_bins;
  uint32_t *bins; /* those of the first flow, and so on */
};

static void store(int file, const uint8_t *data, size_t n) {
  for (ssize_t done = 0; file >= 0 && n > 0; data += done, n -= (size_t)done)
    if ((done = write(file, data, n)) < 0) fail(errno, "write");
}

/* False at the end of the flow. Bytes after the last bin count in `bytes` only. */
static bool take_some(int fd, nfds_t flow, int file, struct taken *taken) {
  ssize_t n = recv(fd, buffer, CHUNK_BYTES, 0);
  if (n < 0) fail(errno, "recv");
  taken->syscalls += file < 0 ? 1 : 2;
  taken->bytes += (uint64_t)n;
  store(file, buffer, (size_t)n);
  if (taken->n_bins > 0) {
    uint64_t bin = (clock_ns() - taken->start_ns) / BIN_NS;
    if (bin < taken->n_bins) taken->bins[flow * taken->n_bins + bin] += (uint32_t)n;
  }
  return n > 0;
}

static nfds_t accept_all(int listener, const struct job *job, struct pollfd *flows) {
  nfds_t n = (nfds_t)job_number(job, 1);
  if (n > MAX_FLOWS) fail(0, "too many flows");
  for (nfds_t i = 0; i < n; i++) {
    flows[i] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
    if (flows[i].fd < 0) fail(errno, "accept");
  }
  return n;
}

static void print_taken(const struct taken *taken, nfds_t flows) {
  printf("{\"bytes\": %lu, \"syscalls\": %lu, \"start_monotonic_ns\": %lu, \"width_ns\": %d",
         taken->bytes, taken->syscalls, taken->start_ns, BIN_NS);
  printf(", \"flows\": [");
  for (nfds_t i = 0; i < flows; i++) {
    printf("%s[", i ? ", " : "");
    for (uint64_t k = 0; k < taken->n_bins; k++)
      printf("%s%u", k ? "," : "", taken->bins[i * taken->n_bins + k]);
    printf("]");
  }
  printf("]}\n");
}

static void take(int listener, const struct job *job) {
  struct pollfd flows[MAX_FLOWS];
  struct taken taken = {.n_bins = job_number(job, 2)};
  int file = -1;
  taken.bins = calloc(MAX_FLOWS * taken.n_bins + 1, sizeof *taken.bins);
  if (!taken.bins) fail(errno, "bins");
  if (job->n > 3 &&
      (file = open(job->words[3], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) < 0)
    fail(errno, job->words[3]);
  nfds_t n = accept_all(listener, job, flows);
  taken.start_ns = clock_ns();
  /* One flow blocks in recv and needs no poll. */
  for (nfds_t left = n; left > 0;) {
    if (n > 1) poll(flows, n, -1), taken.syscalls++;
    for (nfds_t i = 0; i < n; i++) {
      if (flows[i].fd < 0 || (n > 1 && !flows[i].revents)) continue;
      if (take_some(flows[i].fd, i, file, &taken)) continue;
      close(flows[i].fd); /* shows the sender that all was read */
      flows[i].fd = -1;
      left--;
    }
  }
  if (file >= 0) close(file);
  print_taken(&taken, n);
  free(taken.bins);
}

/* ---- Sending ---- */

struct sending {
  struct pollfd flows[MAX_FLOWS];
  nfds_t n;
  int source; /* of sendfile; -1: write from the buffer */
  uint64_t bytes;
  uint64_t syscalls;
  uint64_t packets;
  uint64_t retransmissions;
  uint64_t reinjected_bytes; /* retransmitted by MPTCP on another subflow */
};

static int connect_from(const char *from, const char *to, uint16_t port, const char *cc,
                        bool mptcp) {
  int fd = open_socket(mptcp);
  struct sockaddr_in6 local = parse_address(from, 0);
  struct sockaddr_in6 remote = parse_address(to, port);
  if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)) != 0) fail(errno, cc);
  /* The host owns its whole prefix, but most of its addresses are on no interface. */
  set_option(fd, IPPROTO_IPV6, IPV6_FREEBIND, 1);
  if (bind(fd, (struct sockaddr *)&local, sizeof local) != 0) fail(errno, from);
  if (connect(fd, (struct sockaddr *)&remote, sizeof remote) != 0) fail(errno, to);
  return fd;
}

static void connect_all(struct sending *sending, const struct job *job, int first, uint16_t port,
                        bool mptcp) {
  for (int i = first; i + 1 < job->n && sending->n < MAX_FLOWS; i += 2)
    sending->flows[sending->n++] = (struct pollfd){
        .fd = connect_from(job->words[i], job->words[i + 1], port, job->words[1], mptcp),
        .events = POLLOUT};
  if (sending->n == 0) fail(0, "no flow");
}

static void send_some(struct sending *sending, int fd) {
  int flags = sending->n > 1 ? MSG_DONTWAIT : 0;
  off_t start = 0;
  ssize_t n = sending->source < 0 ? send(fd, buffer, CHUNK_BYTES, flags)
                                  : sendfile(fd, sending->source, &start, CHUNK_BYTES);
  if (n < 0 && errno != EAGAIN) fail(errno, "send");
  sending->syscalls++;
  if (n > 0) sending->bytes += (uint64_t)n;
}

static void count(struct sending *sending, int fd) {
  struct tcp_info info = {0};
  socklen_t length = sizeof info;
  uint64_t mptcp[MPTCP_INFO_BYTES_RETRANS + 1] = {0};
  socklen_t mptcp_length = sizeof mptcp;
  if (getsockopt(fd, SOL_MPTCP, MPTCP_INFO, mptcp, &mptcp_length) == 0)
    sending->reinjected_bytes += mptcp[MPTCP_INFO_BYTES_RETRANS];
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return; /* MPTCP may lack it */
  sending->packets += info.tcpi_data_segs_out;
  sending->retransmissions += info.tcpi_total_retrans;
}

/* Waits until the peer has read everything and closed its end. */
static void finish(struct sending *sending, uint64_t start_ns) {
  for (nfds_t i = 0; i < sending->n; i++)
    if (shutdown(sending->flows[i].fd, SHUT_WR) != 0) fail(errno, "shutdown");
  for (nfds_t i = 0; i < sending->n; i++)
    if (recv(sending->flows[i].fd, buffer, 1, 0) < 0) fail(errno, "the end of a flow");
  uint64_t ns = clock_ns() - start_ns;
  for (nfds_t i = 0; i < sending->n; i++) {
    count(sending, sending->flows[i].fd);
    close(sending->flows[i].fd);
  }
  printf(
      "{\"bytes\": %lu, \"packets\": %lu, \"syscalls\": %lu, \"retransmissions\": %lu, "
      "\"reinjected_bytes\": %lu, \"ns\": %lu}\n",
      sending->bytes, sending->packets, sending->syscalls, sending->retransmissions,
      sending->reinjected_bytes, ns);
}

static int memory_file(void) {
  int fd = memfd_create("source", MFD_CLOEXEC);
  if (fd < 0 || write(fd, buffer, CHUNK_BYTES) != CHUNK_BYTES) fail(errno, "memfd");
  return fd;
}

static void send_for(const struct job *job, uint16_t port, bool mptcp) {
  struct sending sending = {.source = -1};
  if (job->n < 6) fail(0, "send CC MODE MS FROM TO ...");
  connect_all(&sending, job, 4, port, mptcp);
  if (strcmp(job->words[2], "sendfile") == 0) sending.source = memory_file();
  for (nfds_t i = 0; i < sending.n && sending.n > 1; i++)
    fcntl(sending.flows[i].fd, F_SETFL, O_NONBLOCK);
  uint64_t start_ns = clock_ns();
  uint64_t end_ns = start_ns + job_number(job, 3) * 1000000u;
  while (clock_ns() < end_ns) {
    if (sending.n > 1) poll(sending.flows, sending.n, 10), sending.syscalls++;
    for (nfds_t i = 0; i < sending.n; i++)
      if (sending.n == 1 || sending.flows[i].revents) send_some(&sending, sending.flows[i].fd);
  }
  for (nfds_t i = 0; i < sending.n; i++)
    fcntl(sending.flows[i].fd, F_SETFL, 0);
  finish(&sending, start_ns);
  if (sending.source >= 0) close(sending.source);
}

static void send_file(const struct job *job, uint16_t port, bool mptcp) {
  struct sending sending = {0};
  struct stat file;
  if (job->n != 5) fail(0, "file CC PATH FROM TO");
  sending.source = open(job->words[2], O_RDONLY | O_CLOEXEC);
  if (sending.source < 0 || fstat(sending.source, &file) != 0) fail(errno, job->words[2]);
  connect_all(&sending, job, 3, port, mptcp);
  uint64_t start_ns = clock_ns();
  for (off_t at = 0; at < file.st_size; sending.syscalls++)
    if (sendfile(sending.flows[0].fd, sending.source, &at, (size_t)(file.st_size - at)) <= 0)
      fail(errno, "sendfile");
  sending.bytes = (uint64_t)file.st_size;
  finish(&sending, start_ns);
  close(sending.source);
}

int main(int argc, char **argv) {
  static struct job job;
  prctl(PR_SET_PDEATHSIG, 9);
  memset(buffer, 1, sizeof buffer); /* real pages, not the kernel's shared page of zeros */
  if (argc != 4) fail(0, "usage: flow receive|send PORT mptcp|tcp");
  uint16_t port = (uint16_t)atoi(argv[2]);
  bool mptcp = strcmp(argv[3], "mptcp") == 0;
  int listener = strcmp(argv[1], "receive") == 0 ? listen_on(port, mptcp) : -1;
  printf("{}\n");
  fflush(stdout);
  while (job_read(&job)) {
    if (job_is(&job, "take"))
      take(listener, &job);
    else if (job_is(&job, "send"))
      send_for(&job, port, mptcp);
    else if (job_is(&job, "file"))
      send_file(&job, port, mptcp);
    else
      fail(0, "unknown job");
    fflush(stdout);
  }
  return 0;
}
