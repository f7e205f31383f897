/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "agent/link.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME "MRC_AGENT"
#define DEFAULT_NAME "@mrc-agent"

enum { BUFFER_BYTES = 1 << 20, MOST_WAITING = 8192 };

struct waiting {
  struct mrc_node node;
  size_t bytes;
  uint8_t packet[];
};

/* "@name" is abstract, anything else a path. */
static socklen_t address_of(struct sockaddr_un *address) {
  const char *name = getenv(NAME);
  if (!name || !*name) name = DEFAULT_NAME;
  const size_t bytes = strlen(name);
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  if (bytes >= sizeof address->sun_path) return 0;
  memcpy(address->sun_path, name, bytes);
  if (name[0] == '@') address->sun_path[0] = 0;
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes + (name[0] != '@'));
}

static int connect_socket(int flags) {
  struct sockaddr_un address;
  const socklen_t bytes = address_of(&address);
  if (bytes == 0) return -ENAMETOOLONG;
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
  if (fd < 0) return -errno;
  if (connect(fd, (struct sockaddr *)&address, bytes) == 0) return fd;
  const int error = -errno;
  close(fd);
  return error;
}

/* Anybody can open an abstract name first. */
static bool is_trusted(int fd) {
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return peer.uid == 0 || peer.uid == geteuid();
}

int pr_link_open(struct pr_link *link) {
  const int fd = connect_socket(0);
  if (fd < 0) return fd;
  if (!is_trusted(fd)) {
    close(fd);
    return -EPERM;
  }
  const int bytes = BUFFER_BYTES;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  *link = (struct pr_link){.fd = fd};
  mrc_list_init(&link->waiting);
  return 0;
}

static struct waiting *first_of(const struct pr_link *link) {
  return MRC_NODE_OWNER(link->waiting.next, struct waiting, node);
}

static void drop_first(struct pr_link *link) {
  struct waiting *first = first_of(link);
  mrc_node_leave(&first->node);
  link->n_waiting--;
  free(first);
}

void pr_link_close(struct pr_link *link) {
  while (link->n_waiting > 0)
    drop_first(link);
  if (link->fd >= 0) close(link->fd);
  link->fd = -1;
}

bool pr_link_is_there(void) {
  const int fd = connect_socket(SOCK_NONBLOCK);
  if (fd < 0) return fd == -EAGAIN; /* its queue is full */
  const bool trusted = is_trusted(fd);
  close(fd);
  return trusted;
}

static void keep(struct pr_link *link, const struct iovec *parts, int n, size_t bytes,
                 bool may_lose) {
  if (may_lose && link->n_waiting >= MOST_WAITING) {
    link->lost++;
    return;
  }
  struct waiting *waiting = malloc(sizeof *waiting + bytes);
  if (!waiting) {
    link->lost++;
    return;
  }
  *waiting = (struct waiting){.bytes = bytes};
  size_t at = 0;
  for (int i = 0; i < n; at += parts[i].iov_len, i++)
    if (parts[i].iov_len > 0) memcpy(waiting->packet + at, parts[i].iov_base, parts[i].iov_len);
  mrc_list_append(&link->waiting, &waiting->node);
  link->n_waiting++;
}

void pr_link_send(struct pr_link *link, const struct mrc_agent_frame *head, const void *body,
                  size_t bytes, const void *more, size_t more_bytes, bool may_lose) {
  if (link->fd < 0) return;
  struct iovec parts[] = {{(void *)(uintptr_t)head, sizeof *head},
                          {(void *)(uintptr_t)body, bytes},
                          {(void *)(uintptr_t)more, more_bytes}};
  const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
  const bool first = link->n_waiting == 0;
  if (first && sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return;
  if (first && errno != EAGAIN) return; /* the agent has gone: the next receive finds it */
  keep(link, parts, 3, sizeof *head + bytes + more_bytes, may_lose);
}

static void flush(struct pr_link *link) {
  while (link->n_waiting > 0) {
    const struct waiting *first = first_of(link);
    const bool sent = send(link->fd, first->packet, first->bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    if (!sent && errno == EAGAIN) return;
    if (!sent) break;
    drop_first(link);
  }
  while (link->n_waiting > 0) /* nothing, or the agent has gone */
    drop_first(link);
}

/* 1: a frame; 0: none now; -ECONNRESET: the agent has gone. */
static int receive(struct pr_link *link, struct pr_frame *frame) {
  static _Alignas(16) uint8_t packet[MRC_AGENT_MAX_FRAME]; /* under the lock of the process */
  const ssize_t bytes = recv(link->fd, packet, sizeof packet, MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (bytes < (ssize_t)sizeof frame->head) return -ECONNRESET;
  memcpy(&frame->head, packet, sizeof frame->head);
  frame->body = packet + sizeof frame->head;
  frame->bytes = (size_t)bytes - sizeof frame->head;
  return 1;
}

int pr_link_take(struct pr_link *link, int (*take)(const struct pr_frame *frame)) {
  struct pr_frame frame;
  int error = 0, found = 1;
  flush(link);
  while (error == 0 && found == 1) {
    found = receive(link, &frame);
    error = found == 1 ? take(&frame) : found;
  }
  if (error != 0) pr_link_close(link);
  return error;
}

/* ---- Lines for users ---- */

enum { MOST_LINES = 16, LINE_BYTES = 400 };

void pr_say(const char *format, ...) {
  static atomic_int lines;
  const char *quiet = getenv("MRC_QUIET");
  if (quiet && strcmp(quiet, "1") == 0) return;
  if (atomic_fetch_add(&lines, 1) >= MOST_LINES) return;
  char line[LINE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s: %s\n", pr_name, line);
}
