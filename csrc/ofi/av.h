/* SPDX-License-Identifier: Apache-2.0 */
/* Address vectors: an fi_addr_t is the place of an endpoint in its vector, in the order of
   insertion. Vectors name endpoints; the table of peers owns them. */
#pragma once

#include <rdma/fi_domain.h>

struct of_peer;

int of_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
               void *context);
/* Under the lock. The peer with this address, or NULL. */
struct of_peer *of_av_peer(const struct fid *av, fi_addr_t address);
/* Under the lock. The address of a peer; FI_ADDR_NOTAVAIL: the program has not inserted it. */
fi_addr_t of_av_address(const struct fid *av, const struct of_peer *peer);
