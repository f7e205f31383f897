/* SPDX-License-Identifier: Apache-2.0 */
#include "io/commands.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "core/base.h"
#include "core/calls.h"
#include "io/aead.h"
#include "io/ports.h"

static const struct {
  const char *name, *meaning;
} counters[MRC_IO_COUNTERS] = {
#define X(name, meaning) [MRC_IO_##name] = {#name, meaning},
#include "io/io_counters.def"
#undef X
};

typedef int run_fn(struct mrc_datapath *datapath, const struct mrc_command *command);

static int run_mr_register(struct mrc_datapath *datapath, const struct mrc_command *command) {
  int error = mrc_mr_register(datapath->engine, command->address, command->bytes, command->key,
                              command->access, command->value);
  if (error != 0 || datapath->unguarded) return error;
  error = mrc_guards_add(&datapath->guards, command->key, command->address, command->bytes,
                         datapath->sleeper.fd);
  if (error != 0) mrc_mr_deregister(datapath->engine, command->key);
  return error;
}

static int run_mr_deregister(struct mrc_datapath *datapath, const struct mrc_command *command) {
  int error = mrc_mr_deregister(datapath->engine, command->key);
  if (error == 0) mrc_guards_remove(&datapath->guards, command->key);
  return error;
}

static int run_qp_create(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_create(datapath->engine, command->pointer);
}

static int run_qp_modify(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_modify(datapath->engine, command->qpn, command->value,
                       command->value == MRC_QP_RTR ? command->pointer : NULL,
                       command->value == MRC_QP_RTS ? command->pointer : NULL, datapath->now_ns);
}

/* Whether an EV array names only transmit sockets that exist, with the family of their port. The
   engine can check ports, but only the driver has the sockets. */
static bool evs_fit(const struct mrc_udp *udp, const struct mrc_ev_attr *evs, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (evs[i].port < 1 || evs[i].port > udp->n_ports) return false;
    const struct mrc_udp_port *port = mrc_udp_port(udp, evs[i].port);
    if (evs[i].tx_index >= port->n_transmitters || evs[i].family != port->config.family)
      return false;
  }
  return true;
}

/* Whether the sockets that an EV array names still have the addresses and source ports in it. */
static bool evs_are_current(const struct mrc_udp *udp, const struct mrc_ev_attr *evs, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    const struct mrc_udp_port *port = mrc_udp_port(udp, evs[i].port);
    if (!mrc_udp_port_is_open(port) ||
        port->transmitters[evs[i].tx_index].sport != evs[i].ev >> 16 ||
        memcmp(port->config.address, evs[i].src, sizeof evs[i].src) != 0)
      return false;
  }
  return true;
}

static int run_qp_set_evs(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->value > MRC_MAX_EVS || !evs_fit(&datapath->udp, command->pointer, command->value))
    return -EINVAL;
  if (!evs_are_current(&datapath->udp, command->pointer, command->value)) return -ENETDOWN;
  return mrc_qp_set_evs(datapath->engine, command->qpn, command->pointer, (int)command->value);
}

static int run_qp_set_peer(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_set_peer(datapath->engine, command->qpn, command->pointer, (int)command->value);
}

static int run_qp_set_seal(struct mrc_datapath *datapath, const struct mrc_command *command) {
  mrc_engine_set_aead(datapath->engine, mrc_aead_best());
  return mrc_qp_set_seal(datapath->engine, command->qpn, command->pointer);
}

static int run_qp_destroy(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_destroy(datapath->engine, command->qpn);
}

static int run_qp_post(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_post(datapath->engine, command->qpn, &command->wr, 1, datapath->now_ns);
}

static int run_qp_post_many(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_post(datapath->engine, command->qpn, command->pointer, command->value,
                     datapath->now_ns);
}

static int run_qp_probe_ev(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->bytes > UINT16_MAX) return -EMSGSIZE;
  const struct mrc_probe_attr probe = {.cookie = command->cookie,
                                       .timeout_ns = command->timeout_ns,
                                       .qpn = command->qpn,
                                       .ev_index = command->value,
                                       .bytes = (uint32_t)command->bytes};
  const int taken = mrc_engine_probe_evs(datapath->engine, &probe, 1, datapath->now_ns);
  return taken < 0 ? taken : taken == 1 ? 0 : -EAGAIN;
}

static int run_qp_set_ev_state(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_set_ev_state(datapath->engine, command->qpn, command->value, command->key,
                             datapath->now_ns);
}

static int run_qp_query(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_query(datapath->engine, command->qpn, command->pointer);
}

static int run_qp_query_evs(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_query_evs(datapath->engine, command->qpn, command->pointer, (int)command->value);
}

/* The counters of engine and driver are one list, the engine's first. */
const char *mrc_counter_name(int index) {
  if (index < MRC_COUNTERS) return mrc_engine_counter_name(index);
  return index - MRC_COUNTERS < MRC_IO_COUNTERS ? counters[index - MRC_COUNTERS].name : NULL;
}

const char *mrc_counter_meaning(int index) {
  if (index < MRC_COUNTERS) return mrc_engine_counter_meaning(index);
  return index - MRC_COUNTERS < MRC_IO_COUNTERS ? counters[index - MRC_COUNTERS].meaning : NULL;
}

static int run_counters(struct mrc_datapath *datapath, const struct mrc_command *command) {
  const int capacity = (int)command->value;
  uint64_t *values = command->pointer;
  int n = mrc_engine_counters(datapath->engine, values, capacity);
  for (int i = 0; i < MRC_IO_COUNTERS; i++, n++)
    if (n < capacity) values[n] = datapath->udp.counters[i];
  return n;
}

static int run_drops(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_engine_drops(datapath->engine, command->pointer, (int)command->value);
}

static int run_trace(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_engine_trace(datapath->engine, command->pointer, (int)command->value);
}

static int run_port_up(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->value < 1 || command->value > (uint32_t)datapath->udp.n_ports) return -EINVAL;
  if (!mrc_udp_port_is_open(mrc_udp_port(&datapath->udp, (int)command->value))) return -ENOENT;
  mrc_engine_port_up(datapath->engine, (int)command->value, command->key != 0, datapath->now_ns);
  return 0;
}

static int run_qp_set_mpr(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_set_mpr(datapath->engine, command->qpn, command->value, datapath->now_ns);
}

static int run_qp_set_retries(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_qp_set_retries(datapath->engine, command->qpn, command->value, command->key,
                            command->access, datapath->now_ns);
}

static int run_record_start(struct mrc_datapath *datapath, const struct mrc_command *command) {
  return mrc_recorder_start(&datapath->recorder, command->pointer, datapath->engine,
                            datapath->udp.n_slots, datapath->now_ns);
}

static int run_record_stop(struct mrc_datapath *datapath, const struct mrc_command *command) {
  (void)command;
  return mrc_recorder_stop(&datapath->recorder, datapath->engine, datapath->now_ns);
}

static int run_port_open(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->value > INT_MAX) return -EINVAL;
  return mrc_ports_open(datapath, (int)command->value, command->pointer, datapath->now_ns);
}

static int run_port_close(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (command->value > INT_MAX) return -EINVAL;
  return mrc_ports_close(datapath, (int)command->value, datapath->now_ns);
}

static int run_extension(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (datapath->extension == NULL) return -ENOSYS;
  return datapath->extension->command(datapath->extension_state, datapath->engine, command,
                                      datapath->now_ns);
}

static const struct {
  run_fn *run;
  bool has_pointer;   /* command.pointer must be set */
  bool counts;        /* command.value is the length of an array */
  bool refusals_only; /* completions report success */
} table[] = {
    [MRC_COMMAND_MR_REGISTER] = {.run = run_mr_register},
    [MRC_COMMAND_MR_DEREGISTER] = {.run = run_mr_deregister},
    [MRC_COMMAND_QP_CREATE] = {.run = run_qp_create, .has_pointer = true},
    [MRC_COMMAND_QP_MODIFY] = {.run = run_qp_modify},
    [MRC_COMMAND_QP_SET_EVS] = {.run = run_qp_set_evs, .has_pointer = true, .counts = true},
    [MRC_COMMAND_QP_SET_PEER] = {.run = run_qp_set_peer, .has_pointer = true, .counts = true},
    [MRC_COMMAND_QP_SET_SEAL] = {.run = run_qp_set_seal, .has_pointer = true},
    [MRC_COMMAND_QP_DESTROY] = {.run = run_qp_destroy},
    [MRC_COMMAND_QP_POST] = {.run = run_qp_post, .refusals_only = true},
    [MRC_COMMAND_QP_POST_MANY] = {.run = run_qp_post_many,
                                  .has_pointer = true,
                                  .counts = true,
                                  .refusals_only = true},
    [MRC_COMMAND_QP_PROBE_EV] = {.run = run_qp_probe_ev},
    [MRC_COMMAND_QP_SET_EV_STATE] = {.run = run_qp_set_ev_state},
    [MRC_COMMAND_QP_QUERY] = {.run = run_qp_query, .has_pointer = true},
    [MRC_COMMAND_QP_QUERY_EVS] = {.run = run_qp_query_evs, .has_pointer = true, .counts = true},
    [MRC_COMMAND_COUNTERS] = {.run = run_counters, .has_pointer = true, .counts = true},
    [MRC_COMMAND_DROPS] = {.run = run_drops, .has_pointer = true, .counts = true},
    [MRC_COMMAND_TRACE] = {.run = run_trace, .has_pointer = true, .counts = true},
    [MRC_COMMAND_PORT_UP] = {.run = run_port_up},
    [MRC_COMMAND_QP_SET_MPR] = {.run = run_qp_set_mpr},
    [MRC_COMMAND_QP_SET_RETRIES] = {.run = run_qp_set_retries},
    [MRC_COMMAND_RECORD_START] = {.run = run_record_start, .has_pointer = true},
    [MRC_COMMAND_RECORD_STOP] = {.run = run_record_stop},
    [MRC_COMMAND_PORT_OPEN] = {.run = run_port_open, .has_pointer = true},
    [MRC_COMMAND_PORT_CLOSE] = {.run = run_port_close},
    [MRC_COMMAND_MSG_OPEN] = {.run = run_extension, .has_pointer = true},
    [MRC_COMMAND_MSG_CONNECT] = {.run = run_extension, .has_pointer = true},
    [MRC_COMMAND_MSG_IDLE] = {.run = run_extension},
    [MRC_COMMAND_MSG_FAIL] = {.run = run_extension},
    [MRC_COMMAND_MSG_CLOSE] = {.run = run_extension},
};

static bool is_known(const struct mrc_command *command) {
  return command->op < sizeof table / sizeof table[0];
}

int mrc_command_run(struct mrc_datapath *datapath, const struct mrc_command *command) {
  if (!is_known(command)) return -EINVAL;
  if (table[command->op].has_pointer && !command->pointer) return -EINVAL;
  if (table[command->op].counts && command->value > INT_MAX) return -EINVAL;
  return table[command->op].run(datapath, command);
}

bool mrc_command_is_answered(const struct mrc_command *command, int result) {
  return result < 0 || !is_known(command) || !table[command->op].refusals_only;
}
