/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/atomic.h"

#include "msg/operations.h"
#include "msg/send.h"

#define HOW ((1u << MRC_MSG_HOW_BITS) - 1) /* of the `rkey` of CHANGE */

/* A number of 4 or 8 bytes as one of 8, which keeps its sign. */
static int64_t with_sign(uint64_t number, uint32_t bytes) {
  return bytes == 4 ? (int32_t)number : (int64_t)number;
}

/* What a change leaves. */
static uint64_t after(const struct mrc_msg_record *record, uint32_t bytes, uint64_t number) {
  const uint64_t mask = bytes == 4 ? UINT32_MAX : UINT64_MAX;
  const uint64_t operand = record->address & mask;
  const bool less = operand < number;
  const bool signed_less = with_sign(operand, bytes) < with_sign(number, bytes);
  switch ((enum mrc_msg_atomic)(record->rkey & HOW)) {
    case MRC_MSG_ADD:
      return number + operand;
    case MRC_MSG_AND:
      return number & operand;
    case MRC_MSG_OR:
      return number | operand;
    case MRC_MSG_XOR:
      return number ^ operand;
    case MRC_MSG_SWAP:
      return operand;
    case MRC_MSG_COMPARE_SWAP:
      return number == (record->bytes & mask) ? operand : number;
    case MRC_MSG_LOGICAL_AND:
      return number != 0 && operand != 0;
    case MRC_MSG_LOGICAL_OR:
      return number != 0 || operand != 0;
    case MRC_MSG_LOGICAL_XOR:
      return (number != 0) != (operand != 0);
    case MRC_MSG_MIN:
      return less ? operand : number;
    case MRC_MSG_MAX:
      return less ? number : operand;
    case MRC_MSG_SIGNED_MIN:
      return signed_less ? operand : number;
    case MRC_MSG_SIGNED_MAX:
      return signed_less ? number : operand;
  }
  return number;
}

/* Threads of this process may change the number meanwhile. Returns what it was. */
static uint64_t change(const struct mrc_msg_record *record, uint32_t bytes) {
  void *at = (void *)(uintptr_t)record->tag;
  if (bytes == 4) {
    uint32_t number = __atomic_load_n((uint32_t *)at, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n((uint32_t *)at, &number,
                                        (uint32_t)after(record, bytes, number), true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      continue;
    return number;
  }
  uint64_t number = __atomic_load_n((uint64_t *)at, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n((uint64_t *)at, &number, after(record, bytes, number), true,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    continue;
  return number;
}

bool mrc_msg_atomic_is_valid(uint32_t change, uint64_t bytes, uint64_t address) {
  return change <= MRC_MSG_LAST_ATOMIC && (bytes == 4 || bytes == 8) && address % bytes == 0;
}

void mrc_msg_start_atomic(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op) {
  op->state = MRC_MSG_READING;
  mrc_msg_say(msg, peer, op, MRC_MSG_CHANGE);
}

bool mrc_msg_change(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                    const struct mrc_msg_record *record) {
  const uint32_t bytes = record->rkey >> MRC_MSG_HOW_BITS;
  const uint32_t access = MRC_ACCESS_REMOTE_READ | MRC_ACCESS_REMOTE_WRITE;
  if (!mrc_msg_atomic_is_valid(record->rkey & HOW, bytes, record->tag)) return false;
  if (!mrc_qp_may_reach(msg->config.engine, peer->qpn, record->other, record->tag, bytes, access))
    return mrc_msg_answer(msg, peer, MRC_MSG_UNREADABLE, record->id, 0);
  return mrc_msg_answer(msg, peer, MRC_MSG_CHANGED, record->id, change(record, bytes));
}

bool mrc_msg_end_atomic(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t before,
                        int32_t result) {
  if (op == NULL || mrc_node_joined(&op->out)) return false;
  op->post.tag = before;
  mrc_msg_finish(msg, op, result);
  return true;
}
