/* SPDX-License-Identifier: Apache-2.0 */
/* The auditor of the simulator detects violations: each row breaks one invariant in a process of
   its own, and the auditor must stop that process. */
#include "virtual/audit.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MTU = 256, MEMORY = 1024, MPR = 128 };

/* A requester and its responder, two messages of two packets posted. */
struct ends {
  struct mrc_audit requester;
  struct mrc_audit responder;
};

static struct ends *make_ends(void) {
  struct ends *ends = calloc(1, sizeof *ends);
  mrc_audit_init(&ends->requester, MEMORY, 1);
  mrc_audit_init(&ends->responder, MEMORY, 2);
  ends->requester.path_mtu = MTU;
  ends->requester.mpr = MPR;
  ends->requester.max_wimm = 1;
  mrc_audit_posted(&ends->requester, 2 * MTU, false, 0);
  mrc_audit_posted(&ends->requester, 2 * MTU, true, 77);
  return ends;
}

static struct mrc_wire data(struct ends *ends, uint32_t psn) {
  return (struct mrc_wire){.opcode = MRC_OP_WRITE_MIDDLE,
                           .psn = psn,
                           .va = (uintptr_t)ends->requester.target + (uint64_t)psn * MTU,
                           .payload = ends->requester.source + (uint64_t)psn * MTU,
                           .payload_bytes = MTU};
}

static void send_data(struct ends *ends, uint32_t psn, bool rtx) {
  struct mrc_wire wire = data(ends, psn);
  wire.rtx = rtx;
  mrc_audit_data_sent(&ends->requester, &wire, 1, 1, ~0u);
}

static void place(struct ends *ends, uint32_t psn) {
  const struct mrc_wire wire = data(ends, psn);
  memcpy(ends->requester.target + (uint64_t)psn * MTU, wire.payload, MTU);
  mrc_audit_data_received(&ends->responder, &ends->requester, &wire);
}

static struct mrc_wire sack(uint32_t cum_psn, uint64_t bitmap) {
  return (struct mrc_wire){
      .opcode = MRC_OP_SACK,
      .psn = cum_psn & 0xFFFFFF,
      .sack = {.cum_psn = cum_psn & 0xFFFFFF, .sack_offset = 1, .bitmap = bitmap}};
}

static void complete(struct ends *ends, uint64_t wr_id, uint8_t status) {
  mrc_audit_completion(&ends->requester,
                       &(struct mrc_wc){.wr_id = wr_id,
                                        .bytes = 2 * MTU,
                                        .status = status,
                                        .opcode = wr_id ? MRC_WC_WRITE_IMM : MRC_WC_WRITE});
}

static void deliver(struct ends *ends, uint64_t wr_id, uint32_t imm) {
  mrc_audit_immediate(
      &ends->requester,
      &(struct mrc_wc){.wr_id = wr_id, .imm = imm, .bytes = 2 * MTU, .opcode = MRC_WC_RECV_IMM});
}

static void place_all(struct ends *ends) {
  for (uint32_t psn = 0; psn < 4; psn++) {
    send_data(ends, psn, false);
    place(ends, psn);
  }
}

/* ---- valid runs ---- */

static void all_is_well(struct ends *ends) {
  place_all(ends);
  const struct mrc_wire wire = sack(3, 0);
  mrc_audit_sack_sent(&ends->responder, &wire);
  mrc_audit_sack_received(&ends->requester, &wire);
  deliver(ends, 0, 77);
  complete(ends, 0, MRC_WC_SUCCESS);
  complete(ends, 1, MRC_WC_SUCCESS);
  mrc_audit_memory(&ends->requester);
}

static void all_out_of_order(struct ends *ends) {
  for (uint32_t psn = 0; psn < 4; psn++)
    send_data(ends, psn, false);
  place(ends, 3);
  place(ends, 1);
  struct mrc_wire wire = sack(0xFFFFFF, 1 << 3 | 1 << 1);
  wire.sack.sack_offset = 1;
  mrc_audit_sack_sent(&ends->responder, &wire);
  mrc_audit_sack_received(&ends->requester, &wire);
  place(ends, 0);
  place(ends, 2);
  complete(ends, 0, MRC_WC_SUCCESS);
}

static void an_error_flushes(struct ends *ends) {
  complete(ends, 0, MRC_WC_RETRY_EXC_ERR);
  complete(ends, 1, MRC_WC_WR_FLUSH_ERR);
}

/* ---- violations ---- */

static void placed_twice(struct ends *ends) {
  place_all(ends);
  memcpy(ends->requester.target, ends->requester.source, MTU); /* again, unseen */
  complete(ends, 0, MRC_WC_SUCCESS);
}
static void taken_twice(struct ends *ends) {
  place_all(ends);
  place(ends, 1);
}
static void placed_not_at_all(struct ends *ends) {
  const struct mrc_wire wire = data(ends, 0);
  mrc_audit_data_received(&ends->responder, &ends->requester, &wire);
}
static void placed_in_part(struct ends *ends) {
  const struct mrc_wire wire = data(ends, 0);
  memcpy(ends->requester.target, wire.payload, MTU - 1);
  mrc_audit_data_received(&ends->responder, &ends->requester, &wire);
  place(ends, 1);
  complete(ends, 0, MRC_WC_SUCCESS);
}
static void placed_astray(struct ends *ends) {
  place_all(ends);
  ends->requester.target[700] = 0x11;
  mrc_audit_memory(&ends->requester);
}
static void guard_touched(struct ends *ends) {
  ends->requester.target[MEMORY] = 0xEF;
  mrc_audit_memory(&ends->requester);
}
static void completed_too_early(struct ends *ends) {
  place(ends, 0);
  complete(ends, 0, MRC_WC_SUCCESS);
}
static void completed_out_of_order(struct ends *ends) {
  place_all(ends);
  complete(ends, 1, MRC_WC_SUCCESS);
}
static void success_after_an_error(struct ends *ends) {
  place_all(ends);
  complete(ends, 0, MRC_WC_WR_FLUSH_ERR);
  complete(ends, 1, MRC_WC_SUCCESS);
}
static void immediate_before_its_bytes(struct ends *ends) {
  for (uint32_t psn = 1; psn < 4; psn++)
    place(ends, psn);
  deliver(ends, 0, 77);
}
static void wrong_immediate(struct ends *ends) {
  place_all(ends);
  deliver(ends, 0, 78);
}
static void immediate_twice(struct ends *ends) {
  place_all(ends);
  deliver(ends, 0, 77);
  deliver(ends, 1, 77);
}
static void sack_of_what_never_came(struct ends *ends) {
  place(ends, 0);
  const struct mrc_wire wire = sack(1, 0);
  mrc_audit_sack_sent(&ends->responder, &wire);
}
static void bitmap_of_what_never_came(struct ends *ends) {
  place(ends, 0);
  const struct mrc_wire wire = sack(0, 1 << 1);
  mrc_audit_sack_sent(&ends->responder, &wire);
}
static void cumulative_psn_goes_back(struct ends *ends) {
  place(ends, 0);
  place(ends, 1);
  const struct mrc_wire first = sack(1, 0), second = sack(0, 0);
  mrc_audit_sack_sent(&ends->responder, &first);
  mrc_audit_sack_sent(&ends->responder, &second);
}
static void sack_of_unsent_is_taken(struct ends *ends) {
  send_data(ends, 0, false);
  const struct mrc_wire wire = sack(1, 0);
  mrc_audit_sack_received(&ends->requester, &wire);
}
static void ack_of_half_a_message(struct ends *ends) {
  place(ends, 0);
  const struct mrc_wire wire = {.opcode = MRC_OP_ACK, .aeth.msn = 1};
  mrc_audit_ack_sent(&ends->responder, &ends->requester, &wire);
}
static void retransmission_without_its_bit(struct ends *ends) {
  send_data(ends, 0, false);
  send_data(ends, 0, false);
}
static void bit_on_a_first_transmission(struct ends *ends) { send_data(ends, 0, true); }
static void sent_beyond_the_window(struct ends *ends) { send_data(ends, MPR, false); }
static void sent_after_completion(struct ends *ends) {
  place_all(ends);
  complete(ends, 0, MRC_WC_SUCCESS);
  send_data(ends, 1, true);
}
static void too_many_immediates(struct ends *ends) {
  mrc_audit_posted(&ends->requester, 0, true, 1);
  for (uint32_t psn = 0; psn < 5; psn++)
    send_data(ends, psn, false);
}

TEST(test_audit__stops_at_what_is_wrong) {
  static const struct {
    void (*script)(struct ends *ends);
    bool right;
  } rows[] = {
      {all_is_well, true},
      {all_out_of_order, true},
      {an_error_flushes, true},
      {placed_twice, false},
      {taken_twice, false},
      {placed_not_at_all, false},
      {placed_in_part, false},
      {placed_astray, false},
      {guard_touched, false},
      {completed_too_early, false},
      {completed_out_of_order, false},
      {success_after_an_error, false},
      {immediate_before_its_bytes, false},
      {wrong_immediate, false},
      {immediate_twice, false},
      {sack_of_what_never_came, false},
      {bitmap_of_what_never_came, false},
      {cumulative_psn_goes_back, false},
      {sack_of_unsent_is_taken, false},
      {ack_of_half_a_message, false},
      {retransmission_without_its_bit, false},
      {bit_on_a_first_transmission, false},
      {sent_beyond_the_window, false},
      {sent_after_completion, false},
      {too_many_immediates, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      freopen("/dev/null", "w", stderr);
      rows[i].script(make_ends());
      _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, !rows[i].right);
    if (rows[i].right) CHECK_EQ(status, 0);
  }
}
