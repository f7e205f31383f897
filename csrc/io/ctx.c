/* SPDX-License-Identifier: Apache-2.0 */
/* The public context of mrc.h: the control side of a datapath. */
#include "io/ctx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/datapath.h"
#include "io/lineage.h"

struct mrc_ctx {
  struct mrc_datapath datapath;
  uint64_t process; /* the one that opened it; see lineage.h */
};

static bool is_inherited(const mrc_ctx *ctx) { return !mrc_lineage_is_own(ctx->process); }

static mrc_ctx *open_ctx(const struct mrc_ctx_config *config, struct mrc_cause *cause) {
  mrc_ctx *ctx = aligned_alloc(_Alignof(struct mrc_ctx), sizeof *ctx);
  if (!ctx) {
    mrc_cause_errno(cause, ENOMEM, "cannot allocate a context");
    return NULL;
  }
  ctx->process = mrc_lineage_own();
  if (ctx->process == 0)
    mrc_cause_errno(cause, ENOMEM, "cannot allocate the page that detects fork");
  else if (mrc_datapath_open(&ctx->datapath, config, cause) == 0) {
    if (ctx->datapath.polled || mrc_datapath_start(&ctx->datapath, cause) == 0) {
      *cause = (struct mrc_cause){0}; /* a UDP port in use was no failure */
      return ctx;
    }
    mrc_datapath_close(&ctx->datapath);
  }
  free(ctx);
  return NULL;
}

mrc_ctx *mrc_ctx_create(const struct mrc_ctx_config *config, int *error, char *message,
                        int message_bytes) {
  struct mrc_cause cause = {0};
  mrc_ctx *ctx = open_ctx(config, &cause);
  mrc_assert((ctx != NULL) == (cause.error == 0));
  *error = cause.error;
  snprintf(message, (size_t)message_bytes, "%s", cause.message);
  return ctx;
}

void mrc_ctx_destroy(mrc_ctx *ctx) {
  if (is_inherited(ctx)) {
    mrc_datapath_abandon(&ctx->datapath);
    return; /* the parent's thread may have left the memory in any state */
  }
  if (!ctx->datapath.polled) mrc_datapath_stop(&ctx->datapath);
  mrc_datapath_close(&ctx->datapath);
  free(ctx);
}

uint16_t mrc_ctx_udp_port(const mrc_ctx *ctx) { return ctx->datapath.udp.udp_port; }

uint16_t mrc_ctx_source_port(const mrc_ctx *ctx, int port, int tx_index) {
  const struct mrc_udp *udp = &ctx->datapath.udp;
  if (port < 1 || port > udp->n_ports) return 0;
  const struct mrc_udp_port *own = mrc_udp_port(udp, port);
  if (tx_index < 0 || tx_index >= own->n_transmitters) return 0;
  return own->transmitters[tx_index].sport;
}

int mrc_ctx_fd(const mrc_ctx *ctx) {
  return ctx->datapath.polled ? ctx->datapath.epoll_fd : ctx->datapath.bell.fd;
}

/* If it takes only some commands, the descriptor becomes readable when there is room again. */
int mrc_ctx_submit(mrc_ctx *ctx, const struct mrc_command *commands, int n) {
  uint32_t taken = 0;
  uint32_t pushed = 1;
  if (is_inherited(ctx)) return -ECHILD;
  while (pushed > 0 && taken < (uint32_t)n) {
    pushed = mrc_spsc_push(&ctx->datapath.commands, commands + taken, (uint32_t)n - taken);
    taken += pushed;
  }
  if (taken > 0) mrc_datapath_wake(&ctx->datapath);
  return (int)taken;
}

static int take(struct mrc_datapath *datapath, struct mrc_event *events, int n) {
  uint32_t popped = mrc_spsc_pop(&datapath->events, events, (uint32_t)n);
  if (mrc_spsc_starved(&datapath->events)) mrc_datapath_wake(datapath);
  return (int)popped;
}

int mrc_ctx_poll(mrc_ctx *ctx, struct mrc_event *events, int n) {
  struct mrc_datapath *datapath = &ctx->datapath;
  if (is_inherited(ctx)) return -ECHILD;
  if (datapath->polled) return take(datapath, events, n);
  /* Before the pop: events published after it make the descriptor readable again. */
  mrc_bell_silence(&datapath->bell);
  int taken = take(datapath, events, n);
  if (mrc_spsc_used(&datapath->events) > 0) mrc_bell_ring(&datapath->bell);
  return taken;
}

int mrc_ctx_run(mrc_ctx *ctx, uint64_t timeout_ns) {
  if (is_inherited(ctx)) return -ECHILD;
  return mrc_datapath_run(&ctx->datapath, timeout_ns);
}

void *mrc_ctx_extension(mrc_ctx *ctx) {
  return is_inherited(ctx) ? NULL : ctx->datapath.extension_state;
}

void mrc_ctx_wake(mrc_ctx *ctx) { mrc_datapath_wake(&ctx->datapath); }

bool mrc_ctx_arm(mrc_ctx *ctx) { return !is_inherited(ctx) && mrc_datapath_arm(&ctx->datapath); }
