/* SPDX-License-Identifier: Apache-2.0 */
/* The answering half of endpoint operations. Only peers of a QP of ours are answered, and only so
   many at a time: nobody can use the engine to reflect traffic. */
#ifndef MRC_CORE_ANSWER_H
#define MRC_CORE_ANSWER_H

#include "peer.h"
#include "wire.h"

#define MRC_MAX_ANSWERS 256 /* endpoint responses waiting to be sent */

/* An endpoint request that waits for its response. */
struct mrc_answer {
  uint8_t asker[16];           /* address that the request came from */
  const struct mrc_peer *peer; /* the one who asked */
  uint16_t id;
  uint16_t tx_timestamp;
  uint8_t op;
  uint8_t port;
  uint8_t m; /* enum mrc_sack_m */
};

struct mrc_answers {
  struct mrc_answer ring[MRC_MAX_ANSWERS];
  uint32_t head; /* free-running */
  uint32_t n;
  uint32_t n_stuck; /* of these, so many waited for a port's socket at the last transmit */
};

/* An endpoint request, with a good ICRC, from a source that peers claim. 0 or a drop reason. */
int mrc_answer_on_request(struct mrc_services *services, struct mrc_peers *peers,
                          struct mrc_answers *answers, const struct mrc_wire *wire,
                          const struct mrc_meta *meta, uint64_t now_ns);
/* Adds answers that wait, to half of the transmit; false when that is full. */
bool mrc_answer_transmit(struct mrc_services *services, const struct mrc_peers *peers,
                         struct mrc_answers *answers);
/* The kernel refused the answer that came from this place of the ring: it waits again. */
void mrc_answer_on_refused(struct mrc_answers *answers, uint32_t place);
/* Forgets the answers to this peer. */
void mrc_answer_drop(struct mrc_answers *answers, const struct mrc_peer *peer);

#endif
