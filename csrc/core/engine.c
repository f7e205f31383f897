/* SPDX-License-Identifier: Apache-2.0 */
/* The engine itself: its making, and its ports. receive.c takes packets, turn.c sends. */
#include "core/engine.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/loss.h"
#include "core/wire.h"

/* ---- create and destroy ---- */

static uint32_t or_default(uint32_t value, uint32_t otherwise) {
  return value != 0 ? value : otherwise;
}

static uint32_t sack_threshold_bytes(uint32_t readings) {
  if ((readings & MRC_READING_G2_A) != 0) return 16384;
  return (readings & MRC_READING_G2_B) != 0 ? 4096 : 262144;
}

static bool fill_config(struct mrc_engine_config *config) {
  config->max_qps = or_default(config->max_qps, 1024);
  config->max_mrs = or_default(config->max_mrs, 1024);
  config->ports = or_default(config->ports, 1);
  config->cq_depth = or_default(config->cq_depth, 65536);
  config->trace_entries = or_default(config->trace_entries, 4096);
  config->max_burst_bytes = or_default(config->max_burst_bytes, MRC_BURST_BYTES);
  config->sack_threshold_bytes =
      or_default(config->sack_threshold_bytes, sack_threshold_bytes(config->readings));
  config->sack_delay_ns = or_default(config->sack_delay_ns, 500000);
  config->noise_ns = or_default(config->noise_ns, MRC_NOISE_NS);
  config->seal_epoch_bits = or_default(config->seal_epoch_bits, MRC_SEAL_EPOCH_BITS);
  return mrc_dscps_fill(&config->dscps) && (config->readings & ~(uint32_t)MRC_ALL_READINGS) == 0 &&
         config->ports <= MRC_MAX_PORTS && config->max_qps <= 1u << 20 &&
         config->max_mrs <= 1u << 20 && config->noise_ns >= 1000 &&
         config->noise_ns <= 1000000000u && config->cq_depth <= 1u << 24 &&
         config->seal_epoch_bits >= 6 && config->seal_epoch_bits <= MRC_SEAL_EPOCH_BITS &&
         (config->trace_entries & (config->trace_entries - 1)) == 0 &&
         config->trace_entries <= 1u << 24;
}

struct mrc_engine *mrc_engine_create(const struct mrc_engine_config *given) {
  struct mrc_engine_config config = *given;
  if (!fill_config(&config)) return NULL;
  struct mrc_engine *engine = malloc(sizeof *engine);
  if (engine == NULL) return NULL;
  memset(engine, 0, offsetof(struct mrc_engine, probe_room));
  engine->prng.state = config.seed;
  engine->services.events.ring = engine->events;
  engine->endpoint.answers.ring = engine->answers;
  mrc_probes_init(&engine->services.probes, &engine->probe_room, config.seed);
  engine->qps = calloc(config.max_qps, sizeof *engine->qps);
  const bool ok = engine->qps != NULL && mrc_services_init(&engine->services, &config) == 0 &&
                  mrc_endpoint_init(&engine->endpoint, &config) == 0 &&
                  mrc_keymap_init(&engine->by_qpn, config.max_qps) == 0;
  if (ok) return engine;
  mrc_engine_destroy(engine);
  return NULL;
}

void mrc_engine_destroy(struct mrc_engine *engine) {
  if (engine == NULL) return;
  for (uint32_t i = 0; engine->qps != NULL && i < engine->services.config.max_qps; i++)
    if (engine->qps[i] != NULL) mrc_qp_free(engine->qps[i]);
  free(engine->qps);
  mrc_services_free(&engine->services);
  mrc_endpoint_free(&engine->endpoint);
  mrc_keymap_free(&engine->by_qpn);
  free(engine);
}

struct mrc_qp *mrc_engine_qp(const struct mrc_engine *engine, uint32_t qpn) {
  const uint32_t index = mrc_keymap_get(&engine->by_qpn, qpn);
  return index == MRC_KEYMAP_NONE ? NULL : engine->qps[index];
}

/* ---- ports ---- */

/* Begins a call about this port. Returns its plane. */
static uint32_t begin_port(struct mrc_services *services, int port, uint64_t now_ns) {
  mrc_assert(port >= 1 && (uint32_t)port <= services->config.ports);
  services->now_ns = now_ns;
  return mrc_plane_of((uint32_t)port);
}

void mrc_engine_port_blocked(struct mrc_engine *engine, int port, bool blocked, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const uint32_t plane = begin_port(services, port, now_ns), bit = 1u << plane;
  if (((services->ports.blocked & bit) != 0) == blocked) return;
  services->ports.blocked ^= bit;
  if (blocked) {
    services->ports.blocked_ns[plane] = now_ns;
  } else {
    engine->endpoint.answers.n_stuck = services->probes.n_stuck = 0;
    mrc_ready_wake_port_waiting(&services->ready);
  }
}

void mrc_engine_port_up(struct mrc_engine *engine, int port, bool up, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const uint32_t plane = begin_port(services, port, now_ns), bit = 1u << plane;
  if (((services->ports.up & bit) != 0) == up) return;
  services->ports.up ^= bit;
  services->ports.was_down = true;
  mrc_endpoint_on_port_change(services, &engine->endpoint);
  for (uint32_t i = 0; i < services->config.max_qps; i++) {
    struct mrc_qp *qp = engine->qps[i];
    if (qp == NULL || (qp->evset.plane_mask & bit) == 0) continue;
    mrc_health_report_plane(services, qp, plane, MRC_EVENT_PORT, up, MRC_REASON_OWN_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (up)
      mrc_health_retry_plane(services, qp, plane, now_ns);
    else
      mrc_health_suspend_plane(services, qp, plane, MRC_REASON_OWN_PORT, now_ns);
  }
}
