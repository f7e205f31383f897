/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the UDP sockets of one port and converts addresses to the kernel's form. It owns nothing:
   the descriptors are the caller's. */
#pragma once

#include <netinet/in.h>
/* After it: the two headers agree only in this order. */
#include <linux/in6.h>

#include "core/base.h"
#include "io/cause.h"
#include "mrc.h"

/* The headers of older kernels hide these options, which the kernels have. */
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#define IPV6_FLOWINFO_SEND 33
#endif

union mrc_sockaddr {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};

/* Fills `target` with a 16-byte address and port, and returns its length. */
socklen_t mrc_sockaddr_set(union mrc_sockaddr *target, const uint8_t address[16], int family,
                           uint16_t udp_port, uint32_t flow_label);

/* Opens the receive socket of a port on udp_port (0: any free one), non-blocking. Returns the
   descriptor or a negative errno with its cause; -EADDRINUSE when the UDP port is taken. */
int mrc_socket_open_receive(const struct mrc_port_config *port, uint16_t udp_port,
                            struct mrc_cause *cause) MRC_MUST_CHECK;
/* Opens a transmit socket on the port's address and a source port; 0: the kernel chooses. */
int mrc_socket_open_transmit(const struct mrc_port_config *port, uint16_t sport,
                             struct mrc_cause *cause) MRC_MUST_CHECK;
/* The UDP port that a socket is bound to. */
uint16_t mrc_socket_udp_port(int fd);

/* Requests a buffer of `bytes`, beyond the system's limit if privileged; returns the size granted.
   `option` is SO_RCVBUF or SO_SNDBUF. */
uint32_t mrc_socket_set_buffer(int fd, int option, uint32_t bytes);
