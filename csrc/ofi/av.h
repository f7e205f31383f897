/* SPDX-License-Identifier: Apache-2.0 */
/* Address vectors: an fi_addr_t is the place of an endpoint in the table of peers, in every one. */
#ifndef MRC_OFI_AV_H
#define MRC_OFI_AV_H

#include <rdma/fi_domain.h>

int of_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
               void *context);

#endif
