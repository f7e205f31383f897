/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of sockets as GIDs, and which address of this host leads to another. */
#pragma once

#include <rdma/rdma_cma.h>
#include <stdbool.h>

/* Bytes of an address; 0: neither IPv4 nor IPv6. */
socklen_t cm_address_bytes(const struct sockaddr *address);
/* Host order. */
uint16_t cm_address_port(const struct sockaddr *address);
void cm_address_set_port(struct sockaddr *address, uint16_t port);
bool cm_address_is_any(const struct sockaddr *address);
bool cm_address_is_loopback(const struct sockaddr *address);
/* Its GID; all zero for any address. */
void cm_address_gid(const struct sockaddr *address, uint8_t gid[16]);
/* The address of a GID, with a port in host order. */
void cm_address_of_gid(const uint8_t gid[16], uint16_t port, struct sockaddr_storage *address);
/* The address of this host from which the kernel reaches another; a positive errno. */
int cm_address_source(const struct sockaddr *to, struct sockaddr_storage *from);
/* Whether this host has the address; a positive errno. */
int cm_address_check_own(const struct sockaddr *address);
