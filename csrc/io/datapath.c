/* SPDX-License-Identifier: Apache-2.0 */
#include "io/datapath.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "core/base.h"
#include "core/calls.h"
#include "io/aead.h"

/* The counters of engine and driver are one list, the engine's first. */
enum { ALL_COUNTERS = MRC_COUNTERS + MRC_IO_COUNTERS };
static const struct {
  const char *name, *meaning;
} counters[ALL_COUNTERS] = {
#define X(name, meaning) {#name, meaning},
#include "core/counters.def"
#include "io/io_counters.def"
#undef X
};

const char *mrc_counter_name(int index) {
  return index >= 0 && index < ALL_COUNTERS ? counters[index].name : NULL;
}

const char *mrc_counter_meaning(int index) {
  return index >= 0 && index < ALL_COUNTERS ? counters[index].meaning : NULL;
}

/* ---- Ports that open and close ---- */

/* Transmit sockets are always watched for errors, and for room only while they are full. */
int mrc_datapath_watch_port(const struct mrc_datapath *datapath, int port) {
  const struct mrc_udp_port *own = mrc_udp_port(&datapath->udp, port);
  int error = mrc_datapath_watch(datapath, own->receive_fd, EPOLLIN,
                                 mrc_source_tag(MRC_SOURCE_RECEIVE, port, 0));
  for (int i = 0; error == 0 && i < own->n_transmitters; i++)
    error = mrc_datapath_watch(datapath, own->transmitters[i].fd, 0,
                               mrc_source_tag(MRC_SOURCE_TRANSMIT, port, i));
  return error;
}

static void warn(struct mrc_datapath *datapath, int port, enum mrc_warning kind, uint32_t bytes) {
  if (mrc_spsc_room(&datapath->events) < 2) return; /* a reply also needs room */
  const struct mrc_event warning = {.type = MRC_EVENT_WARNING,
                                    .port = (uint8_t)port,
                                    .status = (uint8_t)kind,
                                    .result = (int32_t)bytes};
  mrc_datapath_put_event(datapath, &warning);
}

void mrc_datapath_warn_small_buffers(struct mrc_datapath *datapath, int port) {
  const struct mrc_udp *udp = &datapath->udp;
  const struct mrc_udp_port *own = mrc_udp_port(udp, port);
  if (own->rcvbuf_bytes < udp->rcvbuf_wanted)
    warn(datapath, port, MRC_WARNING_RCVBUF_SMALL, own->rcvbuf_bytes);
  if (own->sndbuf_bytes < udp->sndbuf_wanted)
    warn(datapath, port, MRC_WARNING_SNDBUF_SMALL, own->sndbuf_bytes);
}

static int open_port(struct mrc_datapath *datapath, uint32_t number,
                     struct mrc_port_opening *opening) {
  const int port = (int)number;
  if (number < 1 || number > (uint32_t)datapath->udp.n_slots) return -EINVAL;
  struct mrc_cause cause = {0};
  const bool first =
      port > datapath->udp.n_ports || mrc_udp_port(&datapath->udp, port)->rcvbuf_bytes == 0;
  const uint32_t used = mrc_engine_ports_used(datapath->engine);
  int error = mrc_udp_open_port(&datapath->udp, port, &opening->config, used, &cause);
  if (error == 0 && (error = mrc_datapath_watch_port(datapath, port)) != 0) {
    mrc_cause_errno(&cause, -error, "cannot watch the sockets of port %d", port);
    mrc_udp_close_port(&datapath->udp, port);
  }
  snprintf(opening->cause, sizeof opening->cause, "%s", cause.message);
  if (error != 0) return error;
  const struct mrc_udp_port *own = mrc_udp_port(&datapath->udp, port);
  opening->udp_port = datapath->udp.udp_port;
  for (int i = 0; i < own->n_transmitters; i++)
    opening->sports[i] = own->transmitters[i].sport;
  if (first) mrc_datapath_warn_small_buffers(datapath, port);
  mrc_engine_port_up(datapath->engine, port, true, datapath->now_ns);
  return 0;
}

static int close_port(struct mrc_datapath *datapath, uint32_t number) {
  const int port = (int)number;
  if (number < 1 || number > (uint32_t)datapath->udp.n_ports) return -EINVAL;
  const struct mrc_udp_port *own = mrc_udp_port(&datapath->udp, port);
  if (!mrc_udp_port_is_open(own)) return -ENOENT;
  mrc_engine_port_up(datapath->engine, port, false, datapath->now_ns);
  /* Needed, because close leaves a socket in epoll if a forked process has a copy of it. */
  epoll_ctl(datapath->epoll_fd, EPOLL_CTL_DEL, own->receive_fd, NULL);
  for (int i = 0; i < own->n_transmitters; i++)
    epoll_ctl(datapath->epoll_fd, EPOLL_CTL_DEL, own->transmitters[i].fd, NULL);
  mrc_udp_close_port(&datapath->udp, port);
  mrc_engine_port_blocked(datapath->engine, port, false, datapath->now_ns);
  return 0;
}

/* ---- Recordings ---- */

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

/* ---- Commands ---- */

static int register_mr(struct mrc_datapath *datapath, const struct mrc_command *command) {
  int error = mrc_mr_register(datapath->engine, command->address, command->bytes, command->key,
                              command->access, command->value);
  if (error != 0 || datapath->unguarded) return error;
  error = mrc_guards_add(&datapath->guards, command->key, command->address, command->bytes,
                         datapath->sleeper.fd);
  if (error != 0) mrc_mr_deregister(datapath->engine, command->key);
  return error;
}

static int deregister_mr(struct mrc_datapath *datapath, const struct mrc_command *command) {
  int error = mrc_mr_deregister(datapath->engine, command->key);
  if (error == 0) mrc_guards_remove(&datapath->guards, command->key);
  return error;
}

/* Whether an EV array names only transmit sockets that exist, with the family of their port. The
   engine can check ports, but only the driver has the sockets. */
static bool evs_fit(const struct mrc_udp *udp, const struct mrc_ev_attr *evs, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (evs[i].port < 1 || evs[i].port > udp->n_ports) return false;
    const struct mrc_udp_port *port = mrc_udp_port(udp, evs[i].port);
    if (evs[i].tx_index > port->n_transmitters || evs[i].family != port->config.family)
      return false;
  }
  return true;
}

/* Whether the sockets that an EV array names still have the addresses and source ports in it. */
static bool evs_are_current(const struct mrc_udp *udp, const struct mrc_ev_attr *evs, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    const struct mrc_udp_port *port = mrc_udp_port(udp, evs[i].port);
    const int index = evs[i].tx_index;
    const uint16_t sport =
        index < port->n_transmitters ? port->transmitters[index].sport : udp->udp_port;
    if (!mrc_udp_port_is_open(port) || sport != evs[i].ev >> 16 ||
        memcmp(port->config.address, evs[i].src, sizeof evs[i].src) != 0)
      return false;
  }
  return true;
}

static int probe_ev(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->bytes > UINT16_MAX) return -EMSGSIZE;
  const struct mrc_probe_attr probe = {.cookie = command->cookie,
                                       .timeout_ns = command->timeout_ns,
                                       .qpn = command->qpn,
                                       .ev_index = command->value,
                                       .bytes = (uint32_t)command->bytes};
  const int taken = mrc_engine_probe_evs(datapath->engine, &probe, 1, datapath->now_ns);
  return taken < 0 ? taken : taken == 1 ? 0 : -EAGAIN;
}

static int set_port_up(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->value < 1 || command->value > (uint32_t)datapath->udp.n_ports) return -EINVAL;
  if (!mrc_udp_port_is_open(mrc_udp_port(&datapath->udp, (int)command->value))) return -ENOENT;
  mrc_engine_port_up(datapath->engine, (int)command->value, command->key != 0, datapath->now_ns);
  return 0;
}

static int set_evs(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->value > MRC_MAX_EVS || !evs_fit(&datapath->udp, command->pointer, command->value))
    return -EINVAL;
  if (!evs_are_current(&datapath->udp, command->pointer, command->value)) return -ENETDOWN;
  return mrc_qp_set_evs(datapath->engine, command->qpn, command->pointer, (int)command->value);
}

static int read_counters(const struct mrc_datapath *datapath, const struct mrc_command *command) {
  const int capacity = (int)command->value;
  uint64_t *values = command->pointer;
  int n = mrc_engine_counters(datapath->engine, values, capacity);
  for (int i = 0; i < MRC_IO_COUNTERS; i++, n++)
    if (n < capacity) values[n] = datapath->udp.counters[i];
  return n;
}

/* What a command has, by its number. */
static const struct {
  bool has_pointer;   /* command.pointer must be set */
  bool counts;        /* command.value is the length of an array */
  bool refusals_only; /* completions report success */
} table[MRC_COMMAND_QP_SET_YIELDING + 1] = {
    [MRC_COMMAND_QP_CREATE] = {.has_pointer = true},
    [MRC_COMMAND_QP_SET_EVS] = {.has_pointer = true, .counts = true},
    [MRC_COMMAND_QP_SET_PEER] = {.has_pointer = true, .counts = true},
    [MRC_COMMAND_QP_SET_SEAL] = {.has_pointer = true},
    [MRC_COMMAND_QP_POST] = {.refusals_only = true},
    [MRC_COMMAND_QP_POST_MANY] = {.has_pointer = true, .counts = true, .refusals_only = true},
    [MRC_COMMAND_QP_QUERY] = {.has_pointer = true},
    [MRC_COMMAND_QP_QUERY_EVS] = {.has_pointer = true, .counts = true},
    [MRC_COMMAND_COUNTERS] = {.has_pointer = true, .counts = true},
    [MRC_COMMAND_DROPS] = {.has_pointer = true, .counts = true},
    [MRC_COMMAND_TRACE] = {.has_pointer = true, .counts = true},
    [MRC_COMMAND_RECORD_START] = {.has_pointer = true},
    [MRC_COMMAND_PORT_OPEN] = {.has_pointer = true},
    [MRC_COMMAND_MSG_OPEN] = {.has_pointer = true},
    [MRC_COMMAND_MSG_CONNECT] = {.has_pointer = true},
};

/* A count, 0 or -errno. */
static int run(struct mrc_datapath *datapath, const struct mrc_command *command) {
  mrc_engine *engine = datapath->engine;
  void *pointer = command->pointer;
  const uint32_t qpn = command->qpn, value = command->value;
  const uint64_t now_ns = datapath->now_ns;
  switch ((enum mrc_command_op)command->op) {
    case MRC_COMMAND_QP_POST: /* first: the most frequent ones */
      return mrc_qp_post(engine, qpn, &command->wr, 1, now_ns);
    case MRC_COMMAND_QP_POST_MANY:
      return mrc_qp_post(engine, qpn, pointer, value, now_ns);
    case MRC_COMMAND_MR_REGISTER:
      return register_mr(datapath, command);
    case MRC_COMMAND_MR_DEREGISTER:
      return deregister_mr(datapath, command);
    case MRC_COMMAND_QP_CREATE:
      return mrc_qp_create(engine, pointer);
    case MRC_COMMAND_QP_MODIFY:
      return mrc_qp_modify(engine, qpn, value, value == MRC_QP_RTR ? pointer : NULL,
                           value == MRC_QP_RTS ? pointer : NULL, now_ns);
    case MRC_COMMAND_QP_SET_EVS:
      return set_evs(datapath, command);
    case MRC_COMMAND_QP_SET_PEER:
      return mrc_qp_set_peer(engine, qpn, pointer, (int)value);
    case MRC_COMMAND_QP_SET_SEAL:
      mrc_engine_set_aead(engine, mrc_aead_best());
      return mrc_qp_set_seal(engine, qpn, pointer);
    case MRC_COMMAND_QP_DESTROY:
      return mrc_qp_destroy(engine, qpn);
    case MRC_COMMAND_QP_PROBE_EV:
      return probe_ev(datapath, command);
    case MRC_COMMAND_QP_SET_EV_STATE:
      return mrc_qp_set_ev_state(engine, qpn, value, command->key, now_ns);
    case MRC_COMMAND_QP_QUERY:
      return mrc_qp_query(engine, qpn, pointer);
    case MRC_COMMAND_QP_QUERY_EVS:
      return mrc_qp_query_evs(engine, qpn, pointer, (int)value);
    case MRC_COMMAND_COUNTERS:
      return read_counters(datapath, command);
    case MRC_COMMAND_DROPS:
      return mrc_engine_drops(engine, pointer, (int)value);
    case MRC_COMMAND_TRACE:
      return mrc_engine_trace(engine, pointer, (int)value);
    case MRC_COMMAND_PORT_UP:
      return set_port_up(datapath, command);
    case MRC_COMMAND_QP_SET_MPR:
      return mrc_qp_set_mpr(engine, qpn, value, now_ns);
    case MRC_COMMAND_QP_SET_RETRIES:
      return mrc_qp_set_retries(engine, qpn, value, command->key, command->access, now_ns);
    case MRC_COMMAND_QP_SET_WEIGHT:
      return mrc_qp_set_weight(engine, qpn, value, command->key, now_ns);
    case MRC_COMMAND_QP_SET_YIELDING:
      return mrc_qp_set_yielding(engine, qpn, value, now_ns);
    case MRC_COMMAND_RECORD_START:
      return mrc_recorder_start(&datapath->recorder, pointer, engine, datapath->udp.n_slots,
                                now_ns);
    case MRC_COMMAND_RECORD_STOP:
      return mrc_recorder_stop(&datapath->recorder, engine, now_ns);
    case MRC_COMMAND_PORT_OPEN:
      return open_port(datapath, value, pointer);
    case MRC_COMMAND_PORT_CLOSE:
      return close_port(datapath, value);
    default: /* MRC_COMMAND_MSG_... */
      if (datapath->extension == NULL) return -ENOSYS;
      return datapath->extension->command(datapath->extension_state, engine, command, now_ns);
  }
}

void mrc_datapath_run_command(struct mrc_datapath *datapath, const struct mrc_command *command) {
  const bool known = command->op < sizeof table / sizeof table[0];
  int result = -EINVAL;
  if (known && !(table[command->op].has_pointer && !command->pointer) &&
      !(table[command->op].counts && command->value > INT_MAX))
    result = run(datapath, command);
  if (result >= 0 && known && table[command->op].refusals_only) return;
  mrc_datapath_put_event(datapath, &(struct mrc_event){.type = MRC_EVENT_REPLY,
                                                       .cookie = command->cookie,
                                                       .qpn = command->qpn,
                                                       .result = result});
}
