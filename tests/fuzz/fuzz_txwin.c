/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant: compared with a plain array of packets, the send window holds the same PSNs in the
 * same states, its bytes in flight equal the sum over them, each plane's list holds its packets in
 * flight in the order of sending, and the first PSN to send is the oldest one that waits.
 *
 * The input is the width, the first PSN, and a stream of operations, each a byte and its operands.
 */
#include <stdbool.h>
#include <string.h>

#include "core/base.h"
#include "core/windows.h"
#include "fuzz.h"

enum { MAX_PSNS = 256, PLANES = 3, SENT_AT_A_TIME = 20 };

static struct fuzz_input input;
static struct mrc_txwin win;
static struct {
  struct mrc_txslot packets[MAX_PSNS]; /* [0] is the oldest not acknowledged */
  uint32_t n;
  uint32_t una_psn;
  uint64_t n_sent;
} model;

static uint32_t psn_of(uint32_t ahead) { return mrc_psn_add(model.una_psn, ahead); }

static bool waits(const struct mrc_txslot *packet) {
  return packet->state == MRC_TX_UNSENT || packet->state == MRC_TX_LOST;
}

/* ---- operations, each on the window and on the model ---- */

static void append_some(uint32_t count) {
  for (uint32_t i = 0; i < count && model.n < win.mask + 1; i++) {
    struct mrc_txslot packet = {.state = MRC_TX_INFLIGHT, .tries = 1, .ev_lost = MRC_TX_NONE};
    packet.wqe = (uint16_t)fuzz_take(&input, 1);
    packet.bytes = (uint16_t)fuzz_take(&input, 1);
    packet.ev = packet.bytes;
    packet.plane = packet.bytes % PLANES & 31;
    packet.sent_ns = model.n_sent++ / SENT_AT_A_TIME;
    mrc_assert(mrc_txwin_append(&win, packet.wqe, packet.bytes, packet.ev, packet.plane,
                                packet.sent_ns) == psn_of(model.n));
    model.packets[model.n++] = packet;
  }
}

static void send(uint32_t ahead, uint8_t variant) {
  struct mrc_txslot *packet = &model.packets[ahead];
  packet->ev = variant;
  packet->plane = variant % PLANES & 31;
  packet->sent_ns = model.n_sent++ / SENT_AT_A_TIME;
  packet->state = MRC_TX_INFLIGHT;
  if (packet->tries < MRC_TX_MAX_TRIES) packet->tries++;
  mrc_txwin_on_send(&win, psn_of(ahead), packet->ev, packet->plane, packet->sent_ns);
}

static void send_first(uint32_t count, uint8_t variant) {
  for (uint32_t ahead = 0; ahead < model.n && count > 0; ahead++) {
    if (!waits(&model.packets[ahead])) continue;
    mrc_assert(mrc_txwin_first_tosend(&win) == psn_of(ahead));
    send(ahead, (uint8_t)(variant + count--));
  }
}

static void refuse(uint32_t ahead) {
  struct mrc_txslot *packet = &model.packets[ahead];
  if (packet->state != MRC_TX_INFLIGHT) return;
  packet->tries--;
  packet->state = packet->tries == 0 ? MRC_TX_UNSENT : MRC_TX_LOST;
  mrc_txwin_on_refused(&win, psn_of(ahead));
}

static void lose(uint32_t ahead) {
  struct mrc_txslot *packet = &model.packets[ahead];
  if (packet->state != MRC_TX_INFLIGHT) return;
  packet->ev_lost = packet->ev;
  packet->state = MRC_TX_LOST;
  mrc_txwin_on_lost(&win, psn_of(ahead));
}

static void acknowledge(uint32_t ahead) {
  mrc_assert(mrc_txwin_on_acked(&win, psn_of(ahead)) == model.packets[ahead].state);
  model.packets[ahead].state = MRC_TX_ACKED;
  uint32_t n = 0;
  while (n < model.n && model.packets[n].state == MRC_TX_ACKED)
    n++;
  model.n -= n;
  model.una_psn = mrc_psn_add(model.una_psn, n);
  memmove(model.packets, model.packets + n, model.n * sizeof model.packets[0]);
}

static void start(uint32_t first_psn) {
  model.n = 0;
  model.una_psn = first_psn;
  mrc_txwin_start(&win, first_psn);
}

static void clear(void) {
  model.una_psn = psn_of(model.n);
  model.n = 0;
  mrc_txwin_clear(&win);
}

/* ---- comparison of the window with the model ---- */

static void check_packet(uint32_t ahead) {
  const struct mrc_txslot *mine = &model.packets[ahead];
  const struct mrc_txslot *slot = mrc_txwin_slot(&win, psn_of(ahead));
  mrc_assert(mrc_txwin_psn_of(&win, (uint16_t)(slot - win.slots)) == psn_of(ahead));
  mrc_assert(slot->state == mine->state && slot->tries == mine->tries);
  mrc_assert(slot->wqe == mine->wqe && slot->bytes == mine->bytes);
  mrc_assert(slot->ev == mine->ev && slot->ev_lost == mine->ev_lost);
  mrc_assert(slot->sent_ns == mine->sent_ns);
  mrc_assert(mrc_bitmap_test(&win.tosend, psn_of(ahead)) == waits(mine));
}

/* Walks a plane's list both ways; returns its bytes. */
static uint64_t check_list(uint8_t plane, uint32_t expected) {
  const struct mrc_txlist *list = &win.lists[plane];
  uint64_t bytes = 0;
  uint16_t older = MRC_TX_NONE;
  uint32_t n = 0;
  for (uint16_t at = list->oldest; at != MRC_TX_NONE; at = win.slots[at].newer, n++) {
    const struct mrc_txslot *slot = &win.slots[at];
    mrc_assert(n < expected && slot->state == MRC_TX_INFLIGHT && slot->plane == plane);
    mrc_assert(slot->older == older);
    mrc_assert(older == MRC_TX_NONE || mrc_txslot_after(slot, &win.slots[older]));
    bytes += slot->bytes;
    older = at;
  }
  mrc_assert(n == expected && list->newest == older && list->bytes == bytes);
  return bytes;
}

static void check(void) {
  uint32_t inflight[PLANES] = {0}, tosend = 0;
  uint64_t bytes = 0, sum = 0;
  mrc_assert(win.una_psn == psn_of(0) && mrc_txwin_outstanding(&win) == model.n);
  mrc_assert(!mrc_txwin_holds(&win, psn_of(model.n)));
  mrc_assert(!mrc_txwin_holds(&win, mrc_psn_sub(model.una_psn, 1)));
  for (uint32_t i = 0; i < model.n; i++) {
    check_packet(i);
    tosend += waits(&model.packets[i]);
    if (model.packets[i].state != MRC_TX_INFLIGHT) continue;
    inflight[model.packets[i].plane]++;
    bytes += model.packets[i].bytes;
  }
  for (uint8_t plane = 0; plane < PLANES; plane++)
    sum += check_list(plane, inflight[plane]);
  mrc_assert(win.n_tosend == tosend && win.inflight_bytes == bytes && sum == bytes);
}

static void operate(void) {
  const uint8_t byte = (uint8_t)fuzz_take(&input, 1), variant = byte >> 3;
  if ((byte & 7) == 0) return append_some(1 + variant);
  if ((byte & 7) == 1) return send_first(1 + variant, (uint8_t)fuzz_take(&input, 1));
  if ((byte & 7) == 2 && variant == 0) return clear();
  if ((byte & 7) == 2 && variant == 1) return start((uint32_t)fuzz_take(&input, 3));
  if (model.n == 0) return;
  const uint32_t ahead = (uint32_t)fuzz_take(&input, 1) % model.n;
  switch (byte & 7) {
    case 2: /* out of turn */
      if (waits(&model.packets[ahead])) send(ahead, variant);
      break;
    case 3:
      refuse(ahead);
      break;
    case 4: /* a burst */
    case 5:
      for (uint32_t i = ahead; i <= ahead + variant && i < model.n; i++)
        lose(i);
      break;
    case 6:
      acknowledge(ahead);
      break;
    default: /* all PSNs up to it, as for a cumulative PSN */
      for (const uint32_t psn = psn_of(ahead);
           model.n > 0 && mrc_psn_diff(psn, model.una_psn) >= 0;)
        acknowledge(0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const uint32_t widths[] = {1, 64, 65, 256};
  input = (struct fuzz_input){data, size};
  const uint8_t byte = (uint8_t)fuzz_take(&input, 1);
  mrc_assert(mrc_txwin_init(&win, widths[byte % 4], PLANES) == 0);
  win.next_order = (uint16_t)-(byte >> 2); /* wraps soon */
  model.n_sent = 0;
  start((uint32_t)fuzz_take(&input, 3));
  while (input.n > 0) {
    operate();
    check();
  }
  mrc_txwin_free(&win);
  return 0;
}
