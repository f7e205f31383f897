/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC: SEND, READ and ATOMIC over the WRITEs of one QP. Sans-IO, as the engine. The caller
   gives requests and grants receives, hands over the completions and immediates of the QP, then
   calls mrc_rc_send. */
#pragma once

#include "rc/incoming.h"
#include "rc/outgoing.h"

struct mrc_rc_config {
  const struct mrc_rc_owner *owner;
  void *user;
  uint8_t *inbox, *outbox; /* MRC_RC_INBOX_BYTES each */
  uint32_t outbox_key;     /* lkey */
  struct mrc_rc_request *requests;
  uint32_t size; /* of `requests`, a power of two */
};

void mrc_rc_init(struct mrc_rc *rc, const struct mrc_rc_config *config);

struct mrc_rc_peer {
  uint64_t inbox;
  uint32_t rkey;
  uint32_t most_asking; /* READs and ATOMICs without an answer, 1 .. MRC_RC_ANSWERS */
  bool shared;          /* its receives are shared by several QPs */
};

/* The QP is in RTS. Requests may be posted before. */
void mrc_rc_connect(struct mrc_rc *rc, const struct mrc_rc_peer *peer);
/* Posts a request, for which there must be a place; returns the place. */
uint32_t mrc_rc_post(struct mrc_rc *rc, const struct mrc_rc_request *request);
/* A request that was given to the engine has failed there: no later one is sent. */
void mrc_rc_fail(struct mrc_rc *rc, uint32_t place, enum mrc_wc_status status);
/* The peer may use n more receives. */
void mrc_rc_grant(struct mrc_rc *rc, uint32_t n);
