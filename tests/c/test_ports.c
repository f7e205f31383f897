/* SPDX-License-Identifier: Apache-2.0 */
/* Ports that close and open while two contexts on loopback use them. */
#include "io/datapath.h"
#include "sides.h"

static int close_port(struct side *side, uint32_t port) {
  return run(side, (struct mrc_command){.op = MRC_COMMAND_PORT_CLOSE, .value = port});
}

static int open_port(struct side *side, uint32_t port, const struct mrc_port_config *config,
                     struct mrc_port_opening *opening) {
  *opening = (struct mrc_port_opening){.config = *config};
  struct mrc_command command = {.op = MRC_COMMAND_PORT_OPEN, .value = port, .pointer = opening};
  return run(side, command);
}

static int wanted_wcs;
static bool all_completed(const struct side *sides) { return sides[0].n_wcs == wanted_wcs; }

/* A write continues while one of its planes is closed; afterwards the plane carries data again. */
TEST(test_close__in_the_middle_of_a_write_and_back) {
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 16 * MIB)) return;
  fill(sides[0].memory, 16 * MIB, 1);
  const struct mrc_port_config *config = &sides[0].config.ports[1];
  const uint16_t sport = mrc_ctx_source_port(sides[0].ctx, 2, 3);
  struct mrc_port_opening opening;
  post(&sides[0], &sides[1], 0, 0, 16 * MIB, MRC_WR_WRITE);
  CHECK_EQ(close_port(&sides[0], 2), 0);
  CHECK_EQ(close_port(&sides[0], 2), -ENOENT);
  CHECK(wait_until(sides, first_completed));
  CHECK_EQ(query(&sides[0]).planes[1].suspended, 1);

  CHECK_EQ(open_port(&sides[0], 2, &sides[0].config.ports[0], &opening), -EINVAL);
  CHECK_STR_EQ(opening.cause, "ports 1 and 2 have the same interface and address");
  struct mrc_port_config other = *config;
  set_address(other.address, "127.0.0.3");
  CHECK_EQ(open_port(&sides[0], 2, &other, &opening), -EBUSY);
  CHECK_EQ(open_port(&sides[0], 2, config, &opening), 0);
  CHECK_EQ(opening.sports[3], sport);
  CHECK_EQ(opening.udp_port, mrc_ctx_udp_port(sides[0].ctx));
  const uint64_t before = query(&sides[0]).planes[1].sent_bytes;
  /* On a busy machine late answers suspend the plane once more. */
  wanted_wcs = 1;
  while (query(&sides[0]).planes[1].sent_bytes == before) {
    while (query(&sides[0]).planes[1].suspended) {
    }
    post(&sides[0], &sides[1], (uint64_t)wanted_wcs, 0, 16 * MIB, MRC_WR_WRITE);
    wanted_wcs++;
    CHECK(wait_until(sides, all_completed));
  }
  check_wcs(&sides[0], wanted_wcs);
  CHECK_MEM_EQ(sides[1].memory, sides[0].memory, 16 * MIB);
  close_sides(sides);
}

static int set_evs(struct side *side, const struct side *peer) {
  struct mrc_ev_attr evs[MAX_PORTS * EVS_PER_PORT];
  struct mrc_qp_create_attr attr = {.qpn = 77, .sq_depth = 1, .mpr = 128, .max_wimm = 1};
  struct mrc_command command = {.op = MRC_COMMAND_QP_CREATE, .pointer = &attr, .qpn = 77};
  CHECK_EQ(run(side, command), 0);
  command.op = MRC_COMMAND_QP_MODIFY;
  command.value = MRC_QP_INIT;
  CHECK_EQ(run(side, command), 0);
  command = (struct mrc_command){.op = MRC_COMMAND_QP_SET_EVS, .pointer = evs, .qpn = 77};
  command.value = (uint32_t)list_evs(side, peer, evs);
  const int error = run(side, command);
  CHECK_EQ(run(side, (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = 77}), 0);
  return error;
}

/* EVs of a connect that began before the reopening name sockets of another address, so they are
 * refused.
 */
TEST(test_open__evs_of_before_are_refused) {
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 0)) return;
  struct mrc_port_config other = sides[0].config.ports[1];
  set_address(other.address, "127.0.0.3");
  struct mrc_port_opening opening;
  CHECK_EQ(set_evs(&sides[0], &sides[1]), 0);
  CHECK_EQ(close_port(&sides[0], 2), 0);
  CHECK_EQ(set_evs(&sides[0], &sides[1]), -ENETDOWN);
  CHECK_EQ(run(&sides[0], (struct mrc_command){.op = MRC_COMMAND_QP_DESTROY, .qpn = sides[0].qpn}),
           0);
  CHECK_EQ(open_port(&sides[0], 2, &other, &opening), 0);
  CHECK_EQ(set_evs(&sides[0], &sides[1]), -ENETDOWN);
  set_address(sides[0].config.ports[1].address, "127.0.0.3");
  CHECK_EQ(set_evs(&sides[0], &sides[1]), 0);
  close_sides(sides);
}

TEST(test_commands__of_ports_that_are_not) {
  struct side sides[2];
  if (!open_sides(sides, &two_planes_v4, 0)) return;
  const struct mrc_port_config *config = &sides[0].config.ports[1];
  struct mrc_port_opening opening;
  CHECK_EQ(close_port(&sides[0], 0), -EINVAL);
  CHECK_EQ(close_port(&sides[0], 3), -EINVAL);
  CHECK_EQ(close_port(&sides[0], UINT32_MAX), -EINVAL);
  CHECK_EQ(open_port(&sides[0], 0, config, &opening), -EINVAL);
  CHECK_EQ(open_port(&sides[0], 3, config, &opening), -EINVAL);
  CHECK_EQ(open_port(&sides[0], UINT32_MAX, config, &opening), -EINVAL);
  CHECK_EQ(open_port(&sides[0], 2, config, &opening), -EEXIST);
  struct mrc_command up = {.op = MRC_COMMAND_PORT_UP, .value = 2, .key = 1};
  CHECK_EQ(run(&sides[0], up), 0);
  CHECK_EQ(close_port(&sides[0], 2), 0);
  CHECK_EQ(run(&sides[0], up), -ENOENT);
  close_sides(sides);
}
