/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of emulated RC without an engine. What an end posts waits until a test delivers it, and
   its completion until the test hands it over. The ends check all that they get: messages whole and
   in order, answers of the right memory, nothing without a receive. */
#pragma once

#include <stdlib.h>

#include "check.h"
#include "rc/rc.h"

enum {
  PAIR_REQUESTS = 64,
  PAIR_QUEUE = PAIR_REQUESTS + MRC_RC_WRS,
  PAIR_MEMORY = 1 << 18,
  PAIR_LOG = 1 << 14,
  PAIR_KEY = 7 /* of an end's memory */
};

struct pair_log {
  uint32_t bytes;
  uint32_t imm;
  bool with_imm, solicited, written;
};

struct pair_end {
  struct mrc_rc rc;
  struct pair_end *other;
  uint8_t *boxes, *memory, *source;
  uint64_t counter; /* that ATOMICs of the other end change */
  uint64_t added;   /* by this end's */
  struct mrc_rc_request requests[PAIR_REQUESTS];
  struct mrc_wr queue[PAIR_QUEUE]; /* posted and not delivered */
  uint64_t acks[PAIR_QUEUE];       /* delivered; the completion is not handed over */
  uint32_t n_queue, n_acks;
  struct pair_log log[PAIR_LOG]; /* messages that this end has posted, in order */
  uint32_t n_log, n_received;    /* by the other end */
  uint32_t posted, done;
  uint32_t total, got; /* of the message that arrives */
  bool shared, receiving;
  uint32_t pool; /* shared receives */
  uint32_t wanted;
  uint32_t granted; /* ever */
  uint8_t failed;   /* enum mrc_wc_status; 0: it has not */
  /* What the owner refuses, as long as it is set. */
  bool no_memory, no_room, no_reading;
};

static uint8_t pair_pattern(uint32_t at, uint32_t salt) {
  return (uint8_t)(at * 7 + (at >> 8) * 13 + salt * 31);
}

static void pair_post(void *user, const struct mrc_wr *wr) {
  struct pair_end *end = user;
  mrc_assert(end->n_queue + end->n_acks < PAIR_QUEUE);
  end->queue[end->n_queue++] = *wr;
}

static bool pair_gather(void *user, uint32_t place, uint32_t at, uint8_t *to, uint32_t n) {
  struct pair_end *end = user;
  const struct mrc_rc_request *request = mrc_rc_request_at(&end->rc, place);
  if (end->no_memory) return false;
  CHECK(at + n <= request->bytes);
  for (uint32_t i = 0; i < n; i++)
    to[i] = pair_pattern(at + i, request->bytes);
  return true;
}

static bool pair_scatter(void *user, uint32_t place, uint32_t at, const uint8_t *from, uint32_t n) {
  struct pair_end *end = user;
  const struct mrc_rc_request *request = mrc_rc_request_at(&end->rc, place);
  mrc_assert(at + n <= request->bytes);
  if (end->no_memory) return false;
  if (request->kind == MRC_RC_DO_READ) {
    CHECK_MEM_EQ(from, end->other->source + request->va + at, n);
  } else {
    uint64_t value;
    CHECK_EQ(n, sizeof value);
    memcpy(&value, from, sizeof value);
    CHECK_EQ(value, end->added); /* nobody else adds */
    end->added += request->value;
  }
  return true;
}

static void pair_done(void *user) { ((struct pair_end *)user)->done++; }

static void pair_failed(void *user, enum mrc_wc_status status) {
  struct pair_end *end = user;
  CHECK_EQ(end->failed, 0);
  end->failed = (uint8_t)status;
}

static void pair_use(struct pair_end *end) {
  mrc_assert(end->granted > 0); /* as the module has to see to */
  end->granted--;
}

static enum mrc_wc_status pair_begin(void *user, uint32_t total) {
  struct pair_end *end = user;
  CHECK(!end->receiving);
  pair_use(end);
  end->receiving = true;
  end->total = total;
  end->got = 0;
  return end->no_room ? MRC_WC_REM_INV_REQ_ERR : MRC_WC_SUCCESS;
}

static enum mrc_wc_status pair_receive(void *user, uint32_t at, const uint8_t *from, uint32_t n) {
  struct pair_end *end = user;
  mrc_assert(end->receiving && n > 0 && at == end->got && n <= end->total - at);
  for (uint32_t i = 0; end->other != NULL && i < n; i++)
    if (from[i] != pair_pattern(at + i, end->total)) {
      CHECK_FAIL("byte %u of %u is wrong", at + i, end->total);
      break;
    }
  end->got += n;
  return MRC_WC_SUCCESS;
}

static void pair_received(void *user, const struct mrc_rc_message *message) {
  struct pair_end *end = user;
  if (message->written)
    pair_use(end);
  else
    mrc_assert(end->receiving && end->got == message->bytes);
  if (!message->written) end->receiving = false;
  if (end->other == NULL) return; /* the peer is hostile */
  const struct pair_log *log = &end->other->log[end->other->n_received++];
  CHECK_EQ(message->bytes, log->bytes);
  CHECK_EQ(message->written, log->written);
  CHECK_EQ(message->with_imm, log->with_imm);
  CHECK_EQ(message->solicited, log->solicited);
  if (log->with_imm) CHECK_EQ(message->imm, log->imm);
  for (uint32_t i = 0; message->written && i < message->bytes; i++)
    if (end->memory[i] != pair_pattern(i, message->imm)) {
      CHECK_FAIL("byte %u of a WRITE_IMM of %u is not in place", i, message->bytes);
      break;
    }
}

static void pair_grant(struct pair_end *end, uint32_t n) {
  end->granted += n;
  mrc_rc_grant(&end->rc, n);
}

static void pair_serve(struct pair_end *end) {
  const uint32_t n = end->wanted < end->pool ? end->wanted : end->pool;
  if (!end->shared || n == 0) return;
  end->pool -= n;
  end->wanted -= n;
  pair_grant(end, n);
}

static void pair_wants(void *user, uint32_t n) {
  struct pair_end *end = user;
  end->wanted = n;
  pair_serve(end);
}

static bool pair_read(void *user, uint32_t rkey, uint64_t va, uint8_t *to, uint32_t n) {
  const struct pair_end *end = user;
  if (end->no_reading || rkey != PAIR_KEY || va > PAIR_MEMORY || n > PAIR_MEMORY - va) return false;
  memcpy(to, end->source + va, n);
  return true;
}

static enum mrc_wc_status pair_atomic(void *user, const struct mrc_rc_asked *asked,
                                      uint64_t *value) {
  struct pair_end *end = user;
  if (asked->rkey != PAIR_KEY || end->no_reading) return MRC_WC_REM_ACCESS_ERR;
  *value = end->counter;
  end->counter += asked->value;
  return MRC_WC_SUCCESS;
}

static const struct mrc_rc_owner pair_owner = {.post = pair_post,
                                               .gather = pair_gather,
                                               .scatter = pair_scatter,
                                               .done = pair_done,
                                               .failed = pair_failed,
                                               .begin = pair_begin,
                                               .receive = pair_receive,
                                               .received = pair_received,
                                               .wants = pair_wants,
                                               .read = pair_read,
                                               .atomic = pair_atomic};

/* ---- Life ---- */

static void pair_start_end(struct pair_end *end) {
  memset(end, 0, sizeof *end);
  end->boxes = calloc(2, MRC_RC_INBOX_BYTES);
  end->memory = calloc(1, PAIR_MEMORY);
  end->source = malloc(PAIR_MEMORY);
  mrc_assert(end->boxes != NULL && end->memory != NULL && end->source != NULL);
  for (uint32_t i = 0; i < PAIR_MEMORY; i++)
    end->source[i] = pair_pattern(i, 3);
  const struct mrc_rc_config config = {.owner = &pair_owner,
                                       .user = end,
                                       .inbox = end->boxes,
                                       .outbox = end->boxes + MRC_RC_INBOX_BYTES,
                                       .requests = end->requests,
                                       .size = PAIR_REQUESTS};
  mrc_rc_init(&end->rc, &config);
}

static void pair_connect(struct pair_end *end, uint32_t most_asking) {
  const struct mrc_rc_peer peer = {.inbox = (uintptr_t)end->other->boxes,
                                   .most_asking = most_asking,
                                   .shared = end->other->shared};
  mrc_rc_connect(&end->rc, &peer);
}

static void pair_start(struct pair_end ends[2]) {
  for (int i = 0; i < 2; i++)
    pair_start_end(&ends[i]);
  for (int i = 0; i < 2; i++)
    ends[i].other = &ends[1 - i];
}

static void pair_stop(struct pair_end *end) {
  free(end->boxes);
  free(end->memory);
  free(end->source);
}

/* ---- What a program does ---- */

/* Posts a request. Its bytes follow from its size; a WRITE is of `imm`, which its bytes show. */
static void pair_request(struct pair_end *end, struct mrc_rc_request request) {
  const bool writes = request.kind == MRC_RC_DO_WRITE;
  if (writes) {
    request.va = (uintptr_t)end->other->memory;
    request.local = request.imm; /* what the wire writes */
  } else if (request.rkey == 0) {
    request.rkey = PAIR_KEY;
  }
  if (mrc_rc_takes_receive(&request)) {
    mrc_assert(end->n_log < PAIR_LOG);
    end->log[end->n_log++] = (struct pair_log){.bytes = request.bytes,
                                               .imm = request.imm,
                                               .with_imm = request.with_imm,
                                               .solicited = request.solicited,
                                               .written = writes};
  }
  end->posted++;
  mrc_rc_post(&end->rc, &request);
}

/* ---- The wire ---- */

/* Delivers the oldest of what an end has posted. False: there is nothing. */
static bool pair_deliver(struct pair_end *end) {
  if (end->n_queue == 0) return false;
  const struct mrc_wr wr = end->queue[0];
  memmove(end->queue, end->queue + 1, --end->n_queue * sizeof wr);
  end->acks[end->n_acks++] = wr.wr_id;
  uint8_t *to = (uint8_t *)(uintptr_t)wr.va;
  if (wr.opcode == MRC_WR_WRITE) {
    for (uint32_t i = 0; i < wr.bytes; i++)
      to[i] = pair_pattern(i, (uint32_t)wr.local);
    return true;
  }
  if (wr.bytes > 0) memcpy(to, (const void *)(uintptr_t)wr.local, wr.bytes);
  CHECK(mrc_rc_take(&end->other->rc, wr.imm, wr.bytes));
  return true;
}

/* Hands over the oldest completion. False: there is none. */
static bool pair_complete(struct pair_end *end) {
  if (end->n_acks == 0) return false;
  const uint64_t id = end->acks[0];
  memmove(end->acks, end->acks + 1, --end->n_acks * sizeof id);
  mrc_rc_sent(&end->rc, id);
  return true;
}

/* Everything that can happen without the programs. */
static void pair_run(struct pair_end ends[2]) {
  bool more = true;
  while (more) {
    more = false;
    for (int i = 0; i < 2; i++) {
      mrc_rc_send(&ends[i].rc);
      while (pair_deliver(&ends[i]) || pair_complete(&ends[i]))
        more = true;
    }
  }
}
