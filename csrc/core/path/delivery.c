/* SPDX-License-Identifier: Apache-2.0 */
#include "delivery.h"

#define MIN_BYTES 32768   /* shorter flights tell nothing */
#define SURE_BYTES 131072 /* token buckets let the first bytes of a flight pass */
#define STEP_BYTES 16384  /* an acknowledgement may wait until so many have arrived */
#define ROUNDS 8          /* longer flights are measured in parts of so many RTTs */
#define WEIGHT 32         /* bursts in the moving average of losses */

/* ---- rates ---- */

/* How long MRC_DELIVERY_BYTES take at most, going by this flight; 0: unknown. A longer delay than
   the base RTT counts as time here, so the plane may be faster. */
static uint64_t at_most_ns(const struct mrc_delivery *delivery) {
  if (delivery->bytes < MIN_BYTES) return 0;
  return mrc_mul_div(MRC_DELIVERY_BYTES, delivery->took_ns, delivery->bytes);
}

/* How long they take at least: only what came after the first acknowledgement counts, because the
   delay is not rate. 0: unknown, perhaps because the plane was not busy. */
static uint64_t at_least_ns(const struct mrc_delivery *delivery, uint64_t min_bytes) {
  const uint64_t bytes = delivery->bytes - delivery->clock_bytes;
  if (!delivery->busy || bytes + delivery->late_bytes < min_bytes) return 0;
  return mrc_mul_div(MRC_DELIVERY_BYTES, delivery->clocked_ns, mrc_max_u64(bytes, STEP_BYTES));
}

uint64_t mrc_delivery_takes_ns(const struct mrc_delivery *delivery) {
  return mrc_max_u64(delivery->takes_ns, at_least_ns(delivery, SURE_BYTES));
}

/* `weight`: of the new value, in eighths. */
static uint64_t mean_ns(uint64_t old_ns, uint64_t new_ns, uint32_t weight) {
  return old_ns == 0 ? new_ns : ((8 - weight) * old_ns + weight * new_ns) / 8;
}

/* The flight, or a part of it, is over. A slower rate counts at once, a faster one bit by bit: a
   token bucket looks fast for a while. */
static void end_flight(struct mrc_delivery *delivery) {
  const uint64_t least_ns = at_least_ns(delivery, MIN_BYTES), most_ns = at_most_ns(delivery);
  const bool sure = delivery->bytes + delivery->late_bytes >= SURE_BYTES;
  if (least_ns > delivery->takes_ns)
    delivery->takes_ns = mean_ns(delivery->takes_ns, least_ns, sure ? 6 : 2);
  else if (most_ns != 0 && most_ns < delivery->takes_ns && delivery->late_bytes == 0)
    delivery->takes_ns = mean_ns(delivery->takes_ns, most_ns, sure ? 2 : 1);
  delivery->bytes = delivery->late_bytes = delivery->clock_bytes = delivery->clock_ns = 0;
  delivery->busy = false;
}

/* Adds a short flight to those before. Together they show how fast the plane is at least. */
static void sum_up(struct mrc_delivery *delivery) {
  delivery->bytes += delivery->short_bytes;
  delivery->took_ns += delivery->short_ns;
  const bool enough = delivery->bytes >= MIN_BYTES;
  delivery->short_bytes = enough ? 0 : delivery->bytes;
  delivery->short_ns = enough ? 0 : delivery->took_ns;
  delivery->clock_bytes = delivery->bytes;
  delivery->busy = false;
}

void mrc_delivery_on_flight(struct mrc_delivery *delivery, uint64_t now_ns) {
  if (delivery->is_part) delivery->bytes = 0; /* the rest of a flight is too short to tell */
  if (delivery->bytes + delivery->late_bytes >= MIN_BYTES)
    delivery->measured_ns = now_ns;
  else if (delivery->late_bytes == 0)
    sum_up(delivery);
  end_flight(delivery);
  delivery->began_ns = now_ns;
  delivery->took_ns = 0;
  delivery->is_part = false;
}

void mrc_delivery_on_ack(struct mrc_delivery *delivery, uint64_t bytes, uint64_t sent_ns,
                         const struct mrc_rtt *rtt, uint64_t now_ns) {
  if (bytes == 0) return;
  delivery->bytes += bytes;
  const uint64_t whole_ns = now_ns - delivery->began_ns;
  const uint64_t age_ns = now_ns - mrc_min_u64(now_ns, sent_ns);
  delivery->took_ns = whole_ns - mrc_min_u64(whole_ns, delivery->is_part ? 0 : rtt->base_ns);
  if (delivery->clock_ns == 0) {
    delivery->clock_ns = now_ns;
    delivery->clock_age_ns = age_ns;
    delivery->clock_bytes = delivery->bytes;
  }
  delivery->clocked_ns = now_ns - delivery->clock_ns;
  const uint64_t grown_ns = age_ns - mrc_min_u64(age_ns, delivery->clock_age_ns);
  delivery->busy =
      delivery->late_bytes != 0 || (grown_ns != 0 && grown_ns >= delivery->clocked_ns / 4);
  if (whole_ns < ROUNDS * rtt->smooth_ns) return;
  end_flight(delivery);
  delivery->began_ns = delivery->measured_ns = now_ns;
  delivery->is_part = true;
}

void mrc_delivery_on_late(struct mrc_delivery *delivery, uint64_t bytes, uint64_t now_ns) {
  delivery->late_bytes += bytes;
  if (delivery->clock_ns == 0) return; /* nothing has arrived: that may be the delay */
  delivery->clocked_ns = now_ns - delivery->clock_ns;
  delivery->busy = true;
}

void mrc_delivery_forget(struct mrc_delivery *delivery, uint64_t old_ns, uint64_t now_ns) {
  if (now_ns - delivery->measured_ns < old_ns) return;
  delivery->measured_ns = now_ns;
  delivery->takes_ns /= 2;
  delivery->losses = mrc_min_u32(delivery->losses, MRC_DELIVERY_LOSSY);
}

/* ---- losses ---- */

void mrc_delivery_on_arrived(struct mrc_delivery *delivery) {
  delivery->losses -= delivery->losses / WEIGHT;
}

void mrc_delivery_on_lost(struct mrc_delivery *delivery, uint64_t sent_ns,
                          const struct mrc_rtt *rtt) {
  if (delivery->lost_ns != 0 && sent_ns <= delivery->lost_ns + rtt->smooth_ns) return;
  delivery->lost_ns = sent_ns;
  delivery->losses += (MRC_DELIVERY_ALL - delivery->losses) / WEIGHT;
}

void mrc_delivery_on_spurious(struct mrc_delivery *delivery) {
  delivery->losses -= mrc_min_u32(delivery->losses, MRC_DELIVERY_ALL / WEIGHT);
}
