/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: all QPs, the services that they share, and the functions that its driver calls. */
#pragma once

#include "core/base.h"
#include "core/crc.h"
#include "core/endpoint.h"
#include "core/services.h"

struct mrc_engine {
  struct mrc_services services;
  struct mrc_endpoint endpoint;
  struct mrc_qps qps;
  struct mrc_prng prng;
  bool committing;                    /* between a transmit and its commit */
  struct mrc_icrc_prefix icrc_prefix; /* of the last packet received */
  /* Large rings, last. Nobody sets them: memory of theirs that was never used is never touched. */
  struct mrc_probe_room probe_room;
  struct mrc_event events[MRC_EVENT_RING];
  struct mrc_answer answers[MRC_ANSWER_PLACES];
};
