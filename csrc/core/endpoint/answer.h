/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to endpoint requests. The engine answers only peers of its QPs, and at most
   MRC_MAX_ANSWERS requests at a time, so that no host can use it to reflect traffic. */
#pragma once

#include "core/qp.h"
#include "core/wire.h"

#define MRC_MAX_ANSWERS 256                     /* endpoint responses waiting to be sent */
#define MRC_ANSWER_PLACES (2 * MRC_MAX_ANSWERS) /* see mrc_answer_on_refused */

/* An endpoint request that waits for its response. */
struct mrc_answer {
  uint64_t arrived_ns;         /* when the request reached this host */
  uint8_t asker[16];           /* address that sent the request */
  const struct mrc_peer *peer; /* peer that sent the request */
  struct mrc_qp *qp;           /* whose key sealed it, and seals the answer; NULL: plain */
  uint16_t id;
  uint16_t tx_timestamp;
  uint8_t op;
  uint8_t port;
  uint8_t m; /* enum mrc_sack_m */
};

struct mrc_answers {
  struct mrc_answer *ring; /* MRC_ANSWER_PLACES */
  uint32_t head;           /* free-running */
  uint32_t n;
  uint32_t n_stuck; /* number of these that found their port's socket full at the last transmit */
};

/* 0 or -ENOMEM. */
/* Takes an endpoint request that `sealer` has opened, or, if that is NULL, a plain one with a good
   ICRC, from a source that at least one plain peer claims. Returns 0 or a drop reason. */
int mrc_answer_on_request(struct mrc_services *services, struct mrc_peers *peers,
                          struct mrc_answers *answers, const struct mrc_wire *wire,
                          const struct mrc_meta *meta, struct mrc_qp *sealer, uint64_t now_ns);
/* Adds waiting answers to the transmit, up to half of it. False if the transmit is full. */
bool mrc_answer_transmit(struct mrc_services *services, const struct mrc_peers *peers,
                         struct mrc_answers *answers);
/* The kernel refused the answer from this place of the ring: queues it again. */
void mrc_answer_on_refused(struct mrc_answers *answers, uint32_t place);
/* Removes the answers that this QP seals, and if it is the last one of its peer those to the peer.
 */
void mrc_answer_drop(struct mrc_answers *answers, const struct mrc_qp *qp, bool last);
