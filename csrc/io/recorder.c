/* SPDX-License-Identifier: Apache-2.0 */
#include "io/recorder.h"

#include <errno.h>
#include <string.h>

#include "core/base.h"
#include "core/calls.h"

/* Bytes delivered to the marked QPs, or to all QPs if the recording lists none. */
static uint64_t delivered_bytes(const struct mrc_recording *recording, const mrc_engine *engine) {
  enum { COUNTERS = MRC_COUNTER_RX_RECORDED + 1 };
  uint64_t values[COUNTERS];
  mrc_engine_counters(engine, values, COUNTERS);
  return values[recording->n_qps > 0 ? MRC_COUNTER_RX_RECORDED : MRC_COUNTER_RX_BYTES];
}

/* Marks or unmarks the QPs. Returns how many of them do not exist. */
static uint32_t mark(const struct mrc_recording *recording, mrc_engine *engine, bool recorded) {
  uint32_t missing = 0;
  for (uint32_t i = 0; i < recording->n_qps; i++)
    missing += mrc_qp_record(engine, recording->qpns[i], recorded) != 0;
  return missing;
}

int mrc_recorder_start(struct mrc_recorder *recorder, struct mrc_recording *recording,
                       mrc_engine *engine, int n_ports, uint64_t now_ns) {
  if (recorder->recording) return -EBUSY;
  if (recording->n_ports < 1 || recording->n_ports > (uint32_t)n_ports ||
      recording->width_ns == 0 || recording->n_bins < 2 || recording->n_bins % 2 != 0)
    return -EINVAL;
  if (mark(recording, engine, true) > 0) {
    mark(recording, engine, false);
    return -ENOENT;
  }
  recording->start_ns = now_ns;
  *recorder = (struct mrc_recorder){.recording = recording,
                                    .seen_bytes = delivered_bytes(recording, engine)};
  return 0;
}

int mrc_recorder_stop(struct mrc_recorder *recorder, mrc_engine *engine, uint64_t now_ns) {
  struct mrc_recording *recording = recorder->recording;
  if (!recording) return -ENOENT;
  mark(recording, engine, false);
  recording->end_ns = now_ns;
  recorder->recording = NULL;
  return 0;
}

/* Halves the number of bins in use. */
static void fold(struct mrc_recording *recording) {
  const uint32_t ports = recording->n_ports;
  uint64_t *bytes = recording->bytes;
  for (uint32_t bin = 0; bin < recording->n_bins / 2; bin++)
    for (uint32_t port = 0; port < ports; port++)
      bytes[bin * ports + port] =
          bytes[2 * bin * ports + port] + bytes[(2 * bin + 1) * ports + port];
  const size_t half = (size_t)recording->n_bins / 2 * ports;
  memset(bytes + half, 0, half * sizeof *bytes);
  recording->width_ns *= 2;
}

static void note_delivery(struct mrc_recording *recording, uint64_t now_ns) {
  if (recording->first_ns == 0) {
    recording->first_ns = now_ns;
  } else if (now_ns - recording->last_ns > recording->longest_gap_ns) {
    recording->longest_gap_ns = now_ns - recording->last_ns;
    recording->longest_gap_at_ns = recording->last_ns;
  }
  recording->last_ns = now_ns;
}

void mrc_recorder_look(struct mrc_recorder *recorder, const mrc_engine *engine, int port,
                       uint64_t now_ns) {
  struct mrc_recording *recording = recorder->recording;
  const uint64_t bytes = delivered_bytes(recording, engine);
  const uint64_t delivered = bytes - recorder->seen_bytes;
  if (delivered == 0) return;
  recorder->seen_bytes = bytes;
  note_delivery(recording, now_ns);
  if ((uint32_t)port > recording->n_ports) return; /* it opened later and has no bin */
  const uint64_t since_ns = now_ns - recording->start_ns;
  while (since_ns / recording->width_ns >= recording->n_bins)
    fold(recording);
  const size_t bin = (size_t)(since_ns / recording->width_ns);
  recording->bytes[bin * recording->n_ports + (uint32_t)port - 1] += delivered;
}
