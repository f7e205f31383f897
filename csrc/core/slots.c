/* SPDX-License-Identifier: Apache-2.0 */
#include "core/slots.h"

uint32_t mrc_slots_place(const struct mrc_slots *slots, uint32_t frame) {
  return frame % slots->count * slots->bytes;
}

bool mrc_slots_may_send(const struct mrc_slots *slots) {
  return slots->sent - slots->credit < slots->count;
}

bool mrc_slots_credit(struct mrc_slots *slots, uint32_t freed, uint32_t mask) {
  const uint32_t news = (freed - slots->credit) & mask;
  if (news > slots->sent - slots->credit) return false;
  slots->credit += news;
  return true;
}

bool mrc_slots_is_next(const struct mrc_slots *slots, uint32_t frame, uint32_t mask) {
  return ((frame - slots->arrived) & mask) == 0;
}

bool mrc_slots_granted(const struct mrc_slots *slots) {
  return slots->arrived - slots->told < slots->count;
}

void mrc_slots_free(struct mrc_slots *slots, uint32_t frame) {
  if (frame - slots->freed <= slots->arrived - slots->freed) slots->freed = frame;
}

bool mrc_slots_owe(const struct mrc_slots *slots) {
  return slots->freed - slots->told >= slots->count / 2;
}
