/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "sim/memory.h"
#include "sim/topology.h"

/* Words chained by the mixer of splitmix64. The trace is a sum of such hashes, so that it does not
   depend on the order in which hops are simulated; each hash holds its time and place. */
static uint64_t hash(uint64_t sum, uint64_t word) {
  struct mrc_prng mixer = {.state = sum ^ word};
  return mrc_prng_next(&mixer);
}

static void print_hop(FILE *file, const struct mrc_sim_config *config, uint32_t hop) {
  const uint32_t plane = hop / mrc_topology_hops_per_plane(config) + 1;
  uint32_t at = hop % mrc_topology_hops_per_plane(config);
  if (at < config->hosts) {
    fprintf(file, "h%u>t0:%u.%u", at, plane, mrc_topology_t0_of(config, at));
    return;
  }
  at -= config->hosts;
  if (at < config->hosts) {
    fprintf(file, "t0:%u.%u>h%u", plane, mrc_topology_t0_of(config, at), at);
    return;
  }
  at -= config->hosts;
  const uint32_t links = config->t0 * config->t1, t1 = at % config->t1;
  if (at < links)
    fprintf(file, "t0:%u.%u>t1:%u.%u", plane, at / config->t1, plane, t1);
  else
    fprintf(file, "t1:%u.%u>t0:%u.%u", plane, t1, plane, (at - links) / config->t1);
}

void mrc_record_line(struct mrc_sim_record *record, const char *what, uint32_t hop,
                     const struct mrc_frame *packet) {
  const uint8_t *bth = packet->header;
  const uint32_t dest_qpn = mrc_get_u24(&bth[5]), psn = mrc_get_u24(&bth[9]);
  uint64_t sum = hash(0, record->world->now_ns);
  sum = hash(sum, (uint64_t)hop << 8 | (uint8_t)what[0]);
  sum = hash(sum, (uint64_t)bth[0] << 56 | (uint64_t)dest_qpn << 24 | psn);
  record->stats.trace += hash(sum, (uint64_t)mrc_frame_udp_bytes(packet) << 8 | packet->ecn);
  if (record->file == NULL || record->world->origin_ns == MRC_NEVER) return;
  fprintf(record->file, "%" PRIu64 " %s ", mrc_world_time(record->world), what);
  print_hop(record->file, &record->world->config, hop);
  if (fprintf(record->file, " op=%02x qp=%u psn=%u bytes=%u path=%u%s\n", bth[0], dest_qpn, psn,
              mrc_frame_udp_bytes(packet), packet->path, packet->ecn == 3 ? " ce" : "") < 0 &&
      record->file_error == 0)
    record->file_error = errno;
}

int mrc_record_end_file(struct mrc_sim_record *record) {
  if (record->file == NULL) return 0;
  if (fclose(record->file) != 0 && record->file_error == 0) record->file_error = errno;
  record->file = NULL;
  return -record->file_error;
}

void mrc_record_sent(struct mrc_sim_record *record, uint32_t hop, const struct mrc_frame *packet,
                     bool survives) {
  struct mrc_sim_stats *stats = &record->stats;
  stats->hops++;
  if (!survives && stats->lost++ == 0) stats->first_lost_ns = mrc_world_time(record->world);
  mrc_record_line(record, survives ? "send" : "lose", hop, packet);
}

void mrc_record_event(struct mrc_sim_record *record, const struct mrc_sim_event *event) {
  record->events =
      mrc_grow(record->events, record->n_events, &record->event_capacity, sizeof(*record->events));
  record->events[record->n_events++] = *event;
}

void mrc_record_message(struct mrc_sim_record *record, uint32_t flow, uint64_t wanted_ns) {
  record->stats.writes_done++;
  record->messages = mrc_grow(record->messages, record->n_messages, &record->message_capacity,
                              sizeof(*record->messages));
  record->messages[record->n_messages++] = (struct mrc_sim_message){
      .wanted_ns = wanted_ns, .done_ns = mrc_world_time(record->world), .flow = flow};
}

void mrc_record_sample(struct mrc_sim_record *record, uint32_t flow,
                       const struct mrc_sim_flow_info *info) {
  record->samples = mrc_grow(record->samples, record->n_samples, &record->sample_capacity,
                             sizeof(*record->samples));
  record->samples[record->n_samples++] =
      (struct mrc_sim_sample){.now_ns = mrc_world_time(record->world),
                              .received_bytes = info->received_bytes,
                              .retransmitted_packets = info->retransmitted_packets,
                              .flow = flow};
}

void mrc_record_plane_bytes(struct mrc_sim_record *record, uint32_t plane, uint64_t bytes) {
  const uint32_t planes = record->world->config.planes;
  record->plane_bytes = mrc_grow(record->plane_bytes, record->n_samples - 1,
                                 &record->plane_capacity, planes * sizeof(*record->plane_bytes));
  record->plane_bytes[(size_t)(record->n_samples - 1) * planes + plane - 1] = bytes;
}

void mrc_record_free(struct mrc_sim_record *record) {
  (void)mrc_record_end_file(record);
  free(record->samples);
  free(record->plane_bytes);
  free(record->events);
  free(record->messages);
}
