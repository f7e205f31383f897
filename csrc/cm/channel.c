/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "cm/channel.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

struct cm_channel *cm_channel_create(void) {
  struct cm_channel *channel = calloc(1, sizeof *channel);
  if (!channel) return NULL;
  channel->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (channel->channel.fd >= 0) return channel;
  free(channel);
  return NULL;
}

void cm_channel_destroy(struct cm_channel *channel) {
  close(channel->channel.fd);
  while (channel->first) {
    struct cm_event *next = channel->first->next;
    free(channel->first);
    channel->first = next;
  }
  free(channel);
}

static void append(struct cm_channel *channel, struct cm_event *event) {
  event->next = NULL;
  if (channel->last)
    channel->last->next = event;
  else
    channel->first = event;
  channel->last = event;
  eventfd_write(channel->channel.fd, 1);
}

void cm_channel_put(struct cm_id *id, struct cm_event *event) {
  event->id = id;
  append((struct cm_channel *)id->id.channel, event);
}

bool cm_channel_raise(struct cm_id *id, enum rdma_cm_event_type type, int status) {
  struct cm_event *event = calloc(1, sizeof *event);
  if (!event) return false;
  event->event.event = type;
  event->event.status = status;
  event->event.id = &id->id;
  cm_lock();
  cm_channel_put(id, event);
  cm_unlock();
  return true;
}

struct cm_event *cm_channel_take(struct cm_channel *channel) {
  for (;;) {
    eventfd_t one;
    if (eventfd_read(channel->channel.fd, &one) != 0) return NULL;
    cm_lock();
    struct cm_event *event = channel->first;
    if (event) {
      channel->first = event->next;
      if (!channel->first) channel->last = NULL;
      event->id->taken++;
    }
    cm_unlock();
    if (event) return event; /* otherwise its id was destroyed after the read */
  }
}

/* The descriptor counts one event less, unless a thread has just read it and waits for the lock. */
static void take_back(struct cm_channel *channel) {
  uint64_t one;
  const struct iovec to = {.iov_base = &one, .iov_len = sizeof one};
  preadv2(channel->channel.fd, &to, 1, -1, RWF_NOWAIT);
}

struct cm_event *cm_channel_forget(struct cm_id *id) {
  struct cm_channel *channel = (struct cm_channel *)id->id.channel;
  struct cm_event *found = NULL;
  struct cm_event **end = &found;
  struct cm_event **place = &channel->first;
  channel->last = NULL;
  while (*place) {
    struct cm_event *event = *place;
    if (event->id != id) {
      channel->last = event;
      place = &event->next;
      continue;
    }
    *place = event->next;
    event->next = NULL;
    *end = event;
    end = &event->next;
    take_back(channel);
  }
  return found;
}

void cm_channel_move(struct cm_id *id, struct cm_channel *to) {
  struct cm_event *event = cm_channel_forget(id);
  id->id.channel = &to->channel;
  while (event) {
    struct cm_event *next = event->next;
    append(to, event);
    event = next;
  }
}
