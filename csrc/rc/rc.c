/* SPDX-License-Identifier: Apache-2.0 */
#include "rc/rc.h"

void mrc_rc_init(struct mrc_rc *rc, const struct mrc_rc_config *config) {
  mrc_assert(config->size > 0 && (config->size & (config->size - 1)) == 0);
  *rc = (struct mrc_rc){.owner = config->owner,
                        .user = config->user,
                        .inbox = config->inbox,
                        .outbox = config->outbox,
                        .outbox_key = config->outbox_key,
                        .requests = config->requests,
                        .size = config->size,
                        .slots = {.count = MRC_RC_SLOTS, .bytes = MRC_RC_SLOT_BYTES}};
}

void mrc_rc_connect(struct mrc_rc *rc, const struct mrc_rc_peer *peer) {
  mrc_assert(peer->most_asking > 0 && peer->most_asking <= MRC_RC_ANSWERS);
  rc->their_inbox = peer->inbox;
  rc->their_rkey = peer->rkey;
  rc->most_asking = peer->most_asking;
  rc->their_receives_shared = peer->shared;
  rc->connected = true;
}

uint32_t mrc_rc_post(struct mrc_rc *rc, const struct mrc_rc_request *request) {
  mrc_assert(rc->tail - rc->head < rc->size);
  *mrc_rc_request_at(rc, rc->tail) = *request;
  if (mrc_rc_takes_receive(request)) rc->wanted++;
  return rc->tail++;
}

void mrc_rc_grant(struct mrc_rc *rc, uint32_t n) { rc->grants += n; }

void mrc_rc_fail(struct mrc_rc *rc, uint32_t place, enum mrc_wc_status status) {
  struct mrc_rc_request *request = mrc_rc_request_at(rc, place);
  request->status = (uint8_t)status;
  request->acked = true;
  rc->wrong = (uint8_t)status;
  mrc_rc_settle(rc);
}
