/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "emu/outbox.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base.h"
#include "emu/ethernet.h"

enum { CAPACITY = 8 }; /* a host's stack takes about 3 us a packet, while all others wait */

struct mrc_emu_letters {
  struct mmsghdr messages[CAPACITY];
  struct iovec iovecs[CAPACITY];
  struct sockaddr_ll addresses[CAPACITY];
  struct mrc_frame *packets[CAPACITY];
  uint64_t due_ns[CAPACITY];
};

int mrc_emu_outbox_open(struct mrc_emu_outbox *outbox) {
  *outbox = (struct mrc_emu_outbox){0};
  outbox->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); /* protocol 0: receives nothing */
  if (outbox->fd < 0) return -errno;
  const int on = 1;
  if (setsockopt(outbox->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) != 0) {
    const int error = -errno;
    close(outbox->fd);
    return error;
  }
  outbox->letters = calloc(1, sizeof(*outbox->letters));
  mrc_assert(outbox->letters);
  return 0;
}

void mrc_emu_outbox_close(struct mrc_emu_outbox *outbox) {
  free(outbox->letters);
  close(outbox->fd);
}

bool mrc_emu_outbox_put(struct mrc_emu_outbox *outbox, struct mrc_frame *packet, int ifindex,
                        uint64_t due_ns) {
  struct mrc_emu_letters *letters = outbox->letters;
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  const int i = outbox->n++;
  mrc_assert(i < CAPACITY);
  letters->packets[i] = packet;
  letters->due_ns[i] = due_ns;
  letters->iovecs[i] = (struct iovec){.iov_base = bytes->at, .iov_len = bytes->n};
  letters->addresses[i] = (struct sockaddr_ll){
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IPV6), .sll_ifindex = ifindex};
  letters->messages[i].msg_hdr = (struct msghdr){.msg_name = &letters->addresses[i],
                                                 .msg_namelen = sizeof letters->addresses[i],
                                                 .msg_iov = &letters->iovecs[i],
                                                 .msg_iovlen = 1};
  return outbox->n == CAPACITY;
}

static void count_lateness(struct mrc_emu_outbox *outbox, uint64_t now_ns) {
  for (int i = 0; i < outbox->n; i++) {
    const uint64_t due_ns = outbox->letters->due_ns[i];
    const uint64_t late_ns = now_ns > due_ns ? now_ns - due_ns : 0;
    outbox->late[late_ns ? 64 - __builtin_clzll(late_ns) : 0]++;
  }
}

/* If the kernel refuses a packet, it is the first of the rest: counts and skips it. */
static void send_all(struct mrc_emu_outbox *outbox) {
  for (int done = 0; done < outbox->n;) {
    const int n =
        sendmmsg(outbox->fd, outbox->letters->messages + done, (unsigned)(outbox->n - done), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) {
      outbox->sent += (uint64_t)n;
      done += n;
      continue;
    }
    if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV)
      outbox->refused++;
    else
      outbox->overloaded++;
    done++;
  }
}

void mrc_emu_outbox_flush(struct mrc_emu_outbox *outbox, struct mrc_frame_pool *pool,
                          uint64_t now_ns) {
  if (outbox->n == 0) return;
  count_lateness(outbox, now_ns);
  send_all(outbox);
  for (int i = 0; i < outbox->n; i++)
    mrc_frame_pool_put(pool, outbox->letters->packets[i]);
  outbox->n = 0;
}
