/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant: compared with a plain array of arrivals, the receive window judges every PSN alike,
 * has the same start and end, and a SACK's bits are the array's. A PSN that no SACK has reported
 * (except SACKs that the kernel refused) is news; every report reduces the news. (In the widest
 * window, PSNs in the word that also holds the window's start may remain unreported.)
 *
 * The input is the width, the first PSN, and a stream of operations, each a byte and its operands.
 */
#include <stdbool.h>
#include <string.h>

#include "core/base.h"
#include "core/windows.h"
#include "fuzz.h"

enum { MAX_REPORTS = 4 }; /* between two arrivals */

/* One PSN of the window. */
struct place {
  bool arrived;
  bool last;
  bool other;
  bool shared;  /* its word also held the window's start */
  uint8_t told; /* number of SACKs that reported it and that the kernel took */
};

static struct fuzz_input input;
static struct mrc_rxwin win;
static struct {
  struct place places[MRC_RXWIN_MAX_PSNS + 64]; /* [0] is the window's start; beyond it: empty */
  uint32_t first_psn, start, end;               /* start, end: PSNs since the first, unwrapped */
} model;

static uint32_t psn_of(uint32_t ahead) { return mrc_psn_add(model.first_psn, model.start + ahead); }

static uint64_t model_bits(uint32_t ahead) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < 64; i++)
    bits |= (uint64_t)model.places[ahead + i].arrived << i;
  return bits;
}

static void tell(uint32_t ahead, uint64_t bits, int by) {
  for (; bits != 0; bits &= bits - 1) {
    struct place *place = &model.places[ahead + (uint32_t)__builtin_ctzll(bits)];
    if (place->told < UINT8_MAX) place->told = (uint8_t)(place->told + by);
  }
}

static void arrive(uint32_t ahead, bool last, bool other) {
  const uint32_t psn = psn_of(ahead);
  const enum mrc_rx_verdict verdict = mrc_rxwin_judge(&win, psn);
  if (ahead >= win.psns) {
    mrc_assert(verdict == MRC_RX_BEYOND);
    return;
  }
  mrc_assert(verdict == (model.places[ahead].arrived ? MRC_RX_DUPLICATE : MRC_RX_NEW));
  if (verdict != MRC_RX_NEW) return;
  mrc_rxwin_add(&win, psn, last, other);
  model.places[ahead] = (struct place){
      .arrived = true,
      .last = last,
      .other = other,
      .shared = ahead >= 64 && mrc_rxwin_word(&win, psn) == mrc_rxwin_word(&win, win.next_psn)};
  if (model.start + ahead >= model.end) model.end = model.start + ahead + 1;
}

static void advance(uint32_t most) {
  uint32_t n = 0;
  while (n < most && model.places[n].arrived) {
    mrc_assert(mrc_bitmap_test(&win.received, win.next_psn));
    mrc_assert(mrc_bitmap_test(&win.last, win.next_psn) == model.places[n].last);
    uint32_t others, run = mrc_rxwin_run(&win, &others);
    mrc_assert((run == 0) == model.places[n].last);
    if (run == 0)
      run = 1;
    else if (run > most - n)
      run = most - n;
    for (uint32_t i = 0; i < run; i++) {
      mrc_assert(model.places[n + i].arrived && (run == 1 || !model.places[n + i].last));
      others -= model.places[n + i].other && !model.places[n + i].last;
    }
    mrc_assert(run == most - n || others == 0);
    mrc_rxwin_advance(&win, run);
    n += run;
  }
  memmove(model.places, model.places + n, (win.psns - n) * sizeof model.places[0]);
  memset(model.places + (win.psns - n), 0, n * sizeof model.places[0]);
  model.start += n;
  mrc_assert(n == most || !mrc_bitmap_test(&win.received, win.next_psn));
}

/* Compares one report with the model; returns how far ahead its base is. */
static uint32_t report(uint64_t *wanted) {
  const int news = __builtin_popcountll(win.unreported);
  const bool fits_one = mrc_psn_diff(win.end_psn, win.next_psn) <= 64, wanted_none = *wanted == 0;
  uint32_t base;
  const uint64_t bits = mrc_rxwin_report(&win, wanted, &base);
  const uint32_t ahead = mrc_psn_sub(base, win.next_psn);
  mrc_assert(ahead < (fits_one ? 1 : win.psns) && bits == model_bits(ahead));
  tell(ahead, bits, 1);
  const int left = __builtin_popcountll(win.unreported);
  mrc_assert(left <= news && (!fits_one || left == 0));
  /* Of a word with the window's start and its end, the end comes first, and its news remains. */
  mrc_assert(!wanted_none || news == 0 || left < news || win.start_is_due);
  return ahead;
}

/* One transmit of the responder: reports, some of which the kernel then refuses. */
static void transmit(size_t wanted_bytes) {
  const uint8_t variant = (uint8_t)fuzz_take(&input, 1);
  uint64_t wanted = fuzz_take(&input, wanted_bytes);
  const uint32_t n = 1 + variant % MAX_REPORTS;
  uint32_t ahead[MAX_REPORTS];
  for (uint32_t i = 0; i < n; i++)
    ahead[i] = report(&wanted);
  for (uint32_t i = 0; i < n; i++) {
    if (!(variant >> (2 + i) & 1)) continue;
    mrc_rxwin_on_refused(&win, psn_of(ahead[i]));
    tell(ahead[i], model_bits(ahead[i]), -1);
  }
}

/* The answer to a reliability probe shows all PSNs, and does not count as a report. */
static void view_all(uint8_t refused) {
  for (uint32_t ahead = 0; ahead < win.psns; ahead += 64) {
    mrc_assert(mrc_rxwin_view(&win, psn_of(ahead)) == model_bits(ahead));
    if (refused >> (ahead / 64 % 8) & 1) mrc_rxwin_on_refused(&win, psn_of(ahead));
  }
}

static void check(void) {
  mrc_assert(win.next_psn == psn_of(0));
  mrc_assert(win.end_psn == mrc_psn_add(model.first_psn, model.end));
  for (uint32_t i = 0; i < model.end - model.start; i++) {
    const struct place *place = &model.places[i];
    mrc_assert(!place->shared || win.psns == MRC_RXWIN_MAX_PSNS);
    if (place->arrived && place->told == 0 && !place->shared)
      mrc_assert(win.unreported & mrc_rxwin_word(&win, psn_of(i)));
  }
}

static void operate(void) {
  const uint8_t byte = (uint8_t)fuzz_take(&input, 1), variant = byte >> 3;
  switch (byte & 7) {
    case 0: /* the next packets in order, a few missing */
      arrive(variant & 15, variant & 16, variant & 2);
      break;
    case 1:
      arrive((uint32_t)fuzz_take(&input, 2) % (2 * win.psns), variant & 1, variant & 2);
      break;
    case 2:
      mrc_assert(
          mrc_rxwin_judge(&win, mrc_psn_sub(win.next_psn, 1 + (uint32_t)fuzz_take(&input, 2))) ==
          MRC_RX_DUPLICATE);
      break;
    case 3: { /* a run */
      const uint32_t first = (uint32_t)fuzz_take(&input, 1) * (1 + variant);
      for (uint32_t n = (uint32_t)fuzz_take(&input, 1), i = 0; i < n; i++)
        arrive(first + i, i % 32 == 31, i % 3 == 0);
      break;
    }
    case 4:
      advance(variant & 1 ? win.psns : 1u + variant);
      break;
    case 5:
      transmit(0);
      break;
    case 6:
      transmit(1 + variant % 8);
      break;
    default:
      view_all(variant & 1 ? (uint8_t)fuzz_take(&input, 1) : 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const uint32_t widths[] = {64, 128, 192, 256, 512, 1024, 4032, 4096};
  input = (struct fuzz_input){data, size};
  mrc_assert(mrc_rxwin_init(&win, widths[fuzz_take(&input, 1) % 8]) == 0);
  memset(&model, 0, sizeof model);
  model.first_psn = (uint32_t)fuzz_take(&input, 3);
  mrc_rxwin_start(&win, model.first_psn);
  while (input.n > 0) {
    operate();
    check();
  }
  mrc_rxwin_free(&win);
  return 0;
}
