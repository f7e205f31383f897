/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/record.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/base.h"
#include "sim/fabric.h"

/* Makes room for one item more. */
static void *grow(void *items, int n, int *capacity, size_t bytes) {
  if (n < *capacity) return items;
  *capacity = *capacity ? 2 * *capacity : 256;
  items = realloc(items, (size_t)*capacity * bytes);
  mrc_assert(items);
  return items;
}

/* FNV-1a, a word at a time. */
static void hash(struct mrc_sim *sim, uint64_t word) {
  sim->record.stats.trace = (sim->record.stats.trace ^ word) * 0x100000001B3ull;
}

static uint32_t get_u24(const uint8_t *bytes) {
  return (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
}

static void print_hop(const struct mrc_sim *sim, uint32_t index) {
  const struct mrc_hop *hop = &sim->hops[index];
  const uint32_t plane = hop->plane + 1u;
  const uint32_t first = mrc_fabric_t0_up(sim, hop->plane, 0, 0);
  const uint32_t down = mrc_fabric_t1_down(sim, hop->plane, 0, 0);
  FILE *file = sim->record.file;
  if (hop->from_host)
    fprintf(file, "h%u>t0:%u.%u", hop->from_host - 1, plane, hop->to);
  else if (hop->to_kind == MRC_NODE_HOST)
    fprintf(file, "t0:%u.%u>h%u", plane, mrc_fabric_t0_of(sim, hop->to), hop->to);
  else if (hop->to_kind == MRC_NODE_T1)
    fprintf(file, "t0:%u.%u>t1:%u.%u", plane, (index - first) / sim->config.t1, plane, hop->to);
  else
    fprintf(file, "t1:%u.%u>t0:%u.%u", plane, (index - down) % sim->config.t1, plane, hop->to);
}

void mrc_record_line(struct mrc_sim *sim, const char *what, uint32_t hop,
                     const struct mrc_frame *packet) {
  const uint8_t *bth = packet->header;
  const uint32_t dest_qpn = get_u24(&bth[5]), psn = get_u24(&bth[9]);
  hash(sim, sim->now_ns);
  hash(sim, (uint64_t)hop << 8 | (uint8_t)what[0]);
  hash(sim, (uint64_t)bth[0] << 56 | (uint64_t)dest_qpn << 24 | psn);
  hash(sim, (uint64_t)mrc_frame_udp_bytes(packet) << 8 | packet->ecn);
  if (sim->record.file == NULL || sim->origin_ns == MRC_NEVER) return;
  fprintf(sim->record.file, "%" PRIu64 " %s ", mrc_sim_time(sim), what);
  print_hop(sim, hop);
  fprintf(sim->record.file, " op=%02x qp=%u psn=%u bytes=%u path=%u%s\n", bth[0], dest_qpn, psn,
          mrc_frame_udp_bytes(packet), packet->path, packet->ecn == 3 ? " ce" : "");
}

void mrc_record_sent(struct mrc_sim *sim, uint32_t hop, const struct mrc_frame *packet,
                     bool survives) {
  struct mrc_sim_stats *stats = &sim->record.stats;
  stats->hops++;
  if (!survives && stats->lost++ == 0) stats->first_lost_ns = mrc_sim_time(sim);
  mrc_record_line(sim, survives ? "send" : "lose", hop, packet);
}

void mrc_record_event(struct mrc_sim *sim, const struct mrc_sim_event *event) {
  struct mrc_sim_record *record = &sim->record;
  record->events =
      grow(record->events, record->n_events, &record->event_capacity, sizeof(*record->events));
  record->events[record->n_events++] = *event;
}

void mrc_record_message(struct mrc_sim *sim, uint32_t flow, uint64_t wanted_ns) {
  struct mrc_sim_record *record = &sim->record;
  record->stats.writes_done++;
  record->messages = grow(record->messages, record->n_messages, &record->message_capacity,
                          sizeof(*record->messages));
  record->messages[record->n_messages++] =
      (struct mrc_sim_message){.wanted_ns = wanted_ns, .done_ns = mrc_sim_time(sim), .flow = flow};
}

/* Of the sample just taken. */
static void record_planes(struct mrc_sim *sim, uint32_t flow) {
  struct mrc_sim_record *record = &sim->record;
  const uint32_t planes = sim->config.planes;
  record->plane_bytes = grow(record->plane_bytes, record->n_samples - 1, &record->plane_capacity,
                             planes * sizeof(*record->plane_bytes));
  uint64_t *row = &record->plane_bytes[(size_t)(record->n_samples - 1) * planes];
  for (uint32_t plane = 0; plane < planes; plane++)
    row[plane] = mrc_sim_plane_bytes(sim, flow, plane + 1);
}

void mrc_record_samples(struct mrc_sim *sim) {
  struct mrc_sim_record *record = &sim->record;
  for (uint32_t i = 0; i < sim->traffic.n_flows; i++) {
    struct mrc_sim_flow_info info;
    mrc_assert(mrc_sim_flow(sim, i, &info) == 0);
    record->samples = grow(record->samples, record->n_samples, &record->sample_capacity,
                           sizeof(*record->samples));
    record->samples[record->n_samples++] =
        (struct mrc_sim_sample){.now_ns = mrc_sim_time(sim),
                                .bytes_received = info.bytes_received,
                                .packets_retransmitted = info.packets_retransmitted,
                                .flow = i};
    if (sim->config.samples_planes) record_planes(sim, i);
  }
}

void mrc_record_free(struct mrc_sim *sim) {
  if (sim->record.file) fclose(sim->record.file);
  free(sim->record.samples);
  free(sim->record.plane_bytes);
  free(sim->record.events);
  free(sim->record.messages);
}
