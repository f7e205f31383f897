/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base.h"
#include "sim/numbers.h"
#include "virtual/link.h"

uint32_t mrc_flows_add(struct mrc_sim_flows *flows, const struct mrc_sim_flow_config *config) {
  flows->at = mrc_grow(flows->at, flows->n, &flows->capacity, sizeof(*flows->at));
  struct mrc_sim_flow *flow = &flows->at[flows->n];
  *flow = (struct mrc_sim_flow){.config = *config,
                                .wanted_ns = calloc(config->writes, sizeof(uint64_t))};
  mrc_assert(flow->wanted_ns);
  return flows->n++;
}

void mrc_flows_free(struct mrc_sim_flows *flows) {
  for (uint32_t i = 0; i < flows->n; i++) {
    free(flows->at[i].wanted_ns);
    free(flows->at[i].evs[MRC_FROM]);
    free(flows->at[i].evs[MRC_TO]);
  }
  free(flows->at);
}

/* ---- records ---- */

/* Words chained by the mixer of splitmix64. The trace is a sum of such hashes, so that it does not
   depend on the order in which hops are simulated; each hash holds its time and place. */
static uint64_t hash(uint64_t sum, uint64_t word) {
  struct mrc_prng mixer = {.state = sum ^ word};
  return mrc_prng_next(&mixer);
}

static void print_hop(FILE *file, const struct mrc_sim_config *config, uint32_t hop) {
  const uint32_t plane = hop / mrc_topology_hops_per_plane(&config->topology) + 1;
  const struct mrc_topology_place at = mrc_topology_place_of(&config->topology, hop);
  char below[32], above[32];
  if (at.tier == MRC_TIER_HOST) {
    snprintf(below, sizeof below, "h%u", at.end);
    snprintf(above, sizeof above, "t0:%u.%u", plane, at.near);
  } else {
    snprintf(below, sizeof below, "t%u:%u.%u", at.tier - 1u, plane, at.near);
    snprintf(above, sizeof above, "t%u:%u.%u", (unsigned)at.tier, plane, at.end);
  }
  fprintf(file, "%s>%s", at.down ? above : below, at.down ? below : above);
}

void mrc_record_line(struct mrc_sim_record *record, const char *what, uint32_t hop,
                     const struct mrc_frame *packet) {
  const uint8_t *bth = packet->header;
  const uint32_t dest_qpn = mrc_get_u24(&bth[5]), psn = mrc_get_u24(&bth[9]);
  uint64_t sum = hash(0, record->world->now_ns);
  sum = hash(sum, (uint64_t)hop << 8 | (uint8_t)what[0]);
  sum = hash(sum, (uint64_t)bth[0] << 56 | (uint64_t)dest_qpn << 24 | psn);
  record->stats.trace += hash(sum, (uint64_t)mrc_frame_udp_bytes(packet) << 8 | packet->ecn);
  FILE *lines = record->file ? record->file->lines : NULL;
  if (lines == NULL || record->world->origin_ns == MRC_NEVER) return;
  fprintf(lines, "%" PRIu64 " %s ", mrc_world_time(record->world), what);
  print_hop(lines, &record->world->config, hop);
  if (fprintf(lines, " op=%02x qp=%u psn=%u bytes=%u path=%u%s\n", bth[0], dest_qpn, psn,
              mrc_frame_udp_bytes(packet), packet->path, packet->ecn == 3 ? " ce" : "") < 0 &&
      record->file->error == 0)
    record->file->error = errno;
}

int mrc_record_end_file(struct mrc_record_file *file) {
  if (file->lines == NULL) return 0;
  if (ferror(file->lines) && file->error == 0) file->error = EIO; /* within a line */
  if (fclose(file->lines) != 0 && file->error == 0) file->error = errno;
  file->lines = NULL;
  return -file->error;
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

static void append_message(struct mrc_sim_record *record, const struct mrc_sim_message *message) {
  record->messages = mrc_grow(record->messages, record->n_messages, &record->message_capacity,
                              sizeof(*record->messages));
  record->messages[record->n_messages++] = *message;
}

void mrc_record_message(struct mrc_sim_record *record, uint32_t flow, uint64_t wanted_ns) {
  record->stats.completed_writes++;
  append_message(
      record, &(struct mrc_sim_message){
                  .wanted_ns = wanted_ns, .done_ns = mrc_world_time(record->world), .flow = flow});
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
  const uint32_t planes = record->world->config.topology.planes;
  record->plane_bytes = mrc_grow(record->plane_bytes, record->n_samples - 1,
                                 &record->plane_capacity, planes * sizeof(*record->plane_bytes));
  record->plane_bytes[(size_t)(record->n_samples - 1) * planes + plane - 1] = bytes;
}

/* ---- several records ---- */

void mrc_record_add_stats(struct mrc_sim_stats *sum, const struct mrc_sim_stats *stats) {
  if (stats->lost > 0 && (sum->lost == 0 || stats->first_lost_ns < sum->first_lost_ns))
    sum->first_lost_ns = stats->first_lost_ns;
  sum->events += stats->events;
  sum->packets += stats->packets;
  sum->hops += stats->hops;
  sum->lost += stats->lost;
  sum->corrupt += stats->corrupt;
  sum->unroutable += stats->unroutable;
  sum->completed_writes += stats->completed_writes;
  sum->trace += stats->trace;
}

/* `reserved` keeps the order within each record. */
void mrc_record_move_rows(struct mrc_sim_record *record, struct mrc_sim_record *from) {
  for (uint32_t i = 0; i < from->n_events; i++) {
    from->events[i].reserved = record->n_events;
    mrc_record_event(record, &from->events[i]);
  }
  for (uint32_t i = 0; i < from->n_messages; i++) {
    from->messages[i].reserved = record->n_messages;
    append_message(record, &from->messages[i]);
  }
  from->n_events = from->n_messages = 0;
}

static int compare(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int compare_events(const void *left, const void *right) {
  const struct mrc_sim_event *a = left, *b = right;
  if (a->now_ns != b->now_ns) return compare(a->now_ns, b->now_ns);
  if (a->flow != b->flow) return compare(a->flow, b->flow);
  if (a->receiver != b->receiver) return compare(a->receiver, b->receiver);
  return compare(a->reserved, b->reserved);
}

static int compare_messages(const void *left, const void *right) {
  const struct mrc_sim_message *a = left, *b = right;
  if (a->done_ns != b->done_ns) return compare(a->done_ns, b->done_ns);
  if (a->flow != b->flow) return compare(a->flow, b->flow);
  return compare(a->reserved, b->reserved);
}

void mrc_record_order(struct mrc_sim_record *record, uint32_t first_event, uint32_t first_message) {
  struct mrc_sim_event *events = record->events;
  struct mrc_sim_message *messages = record->messages;
  const uint32_t n_events = record->n_events - first_event;
  const uint32_t n_messages = record->n_messages - first_message;
  if (n_events > 0) qsort(events + first_event, n_events, sizeof(*events), compare_events);
  if (n_messages > 0)
    qsort(messages + first_message, n_messages, sizeof(*messages), compare_messages);
  for (uint32_t i = first_event; i < record->n_events; i++)
    events[i].reserved = 0;
  for (uint32_t i = first_message; i < record->n_messages; i++)
    messages[i].reserved = 0;
}

void mrc_record_free(struct mrc_sim_record *record) {
  free(record->samples);
  free(record->plane_bytes);
  free(record->events);
  free(record->messages);
}
