/* SPDX-License-Identifier: Apache-2.0 */
#include "io/ports.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>

#include "core/calls.h"
#include "io/udp_open.h"

/* Transmit sockets are always watched for errors, and for room only while they are full. */
int mrc_ports_watch(struct mrc_datapath *datapath, int port) {
  const struct mrc_udp_port *own = mrc_udp_port(&datapath->udp, port);
  int error = mrc_datapath_watch(datapath, own->receive_fd, EPOLLIN,
                                 mrc_source_tag(MRC_SOURCE_RECEIVE, port, 0));
  for (int i = 0; error == 0 && i < own->n_transmitters; i++)
    error = mrc_datapath_watch(datapath, own->transmitters[i].fd, 0,
                               mrc_source_tag(MRC_SOURCE_TRANSMIT, port, i));
  return error;
}

/* Needed, because close leaves a socket in epoll if a forked process has a copy of it. */
static void unwatch(struct mrc_datapath *datapath, int port) {
  const struct mrc_udp_port *own = mrc_udp_port(&datapath->udp, port);
  epoll_ctl(datapath->epoll_fd, EPOLL_CTL_DEL, own->receive_fd, NULL);
  for (int i = 0; i < own->n_transmitters; i++)
    epoll_ctl(datapath->epoll_fd, EPOLL_CTL_DEL, own->transmitters[i].fd, NULL);
}

static void warn(struct mrc_datapath *datapath, int port, enum mrc_warning kind, uint32_t bytes) {
  if (mrc_spsc_room(&datapath->events) < 2) return; /* a reply also needs room */
  const struct mrc_event warning = {.type = MRC_EVENT_WARNING,
                                    .port = (uint8_t)port,
                                    .status = (uint8_t)kind,
                                    .result = (int32_t)bytes};
  mrc_datapath_put_event(datapath, &warning);
}

void mrc_ports_warn_small_buffers(struct mrc_datapath *datapath, int port) {
  const struct mrc_udp *udp = &datapath->udp;
  const struct mrc_udp_port *own = mrc_udp_port(udp, port);
  if (own->rcvbuf_bytes < udp->rcvbuf_wanted)
    warn(datapath, port, MRC_WARNING_RCVBUF_SMALL, own->rcvbuf_bytes);
  if (own->sndbuf_bytes < udp->sndbuf_wanted)
    warn(datapath, port, MRC_WARNING_SNDBUF_SMALL, own->sndbuf_bytes);
}

static void fill_opening(const struct mrc_udp *udp, int port, struct mrc_port_opening *opening) {
  const struct mrc_udp_port *own = mrc_udp_port(udp, port);
  opening->udp_port = udp->udp_port;
  for (int i = 0; i < own->n_transmitters; i++)
    opening->sports[i] = own->transmitters[i].sport;
}

int mrc_ports_open(struct mrc_datapath *datapath, int port, struct mrc_port_opening *opening,
                   uint64_t now_ns) {
  if (port < 1 || port > datapath->udp.n_slots) return -EINVAL;
  struct mrc_cause cause = {0};
  const bool first =
      port > datapath->udp.n_ports || mrc_udp_port(&datapath->udp, port)->rcvbuf_bytes == 0;
  const uint32_t used = mrc_engine_ports_used(datapath->engine);
  int error = mrc_udp_open_port(&datapath->udp, port, &opening->config, used, &cause);
  if (error == 0 && (error = mrc_ports_watch(datapath, port)) != 0) {
    mrc_cause_errno(&cause, -error, "cannot watch the sockets of port %d", port);
    mrc_udp_close_port(&datapath->udp, port);
  }
  snprintf(opening->cause, sizeof opening->cause, "%s", cause.message);
  if (error != 0) return error;
  fill_opening(&datapath->udp, port, opening);
  if (first) mrc_ports_warn_small_buffers(datapath, port);
  mrc_engine_port_up(datapath->engine, port, true, now_ns);
  return 0;
}

int mrc_ports_close(struct mrc_datapath *datapath, int port, uint64_t now_ns) {
  if (port < 1 || port > datapath->udp.n_ports) return -EINVAL;
  if (!mrc_udp_port_is_open(mrc_udp_port(&datapath->udp, port))) return -ENOENT;
  mrc_engine_port_up(datapath->engine, port, false, now_ns);
  unwatch(datapath, port);
  mrc_udp_close_port(&datapath->udp, port);
  mrc_engine_port_blocked(datapath->engine, port, false, now_ns);
  return 0;
}
