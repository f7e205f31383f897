/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/gbn.h"

#include <stdlib.h>

#include "core/base.h"

int mrc_gbn_sender_init(struct mrc_gbn_sender *sender, const struct mrc_gbn_config *config) {
  *sender = (struct mrc_gbn_sender){.config = *config, .deadline_ns = MRC_NEVER};
  const int error = mrc_cc_init(&sender->cc, &config->cc);
  if (error != 0) return error;
  sender->sent_ns = calloc(config->window, sizeof(*sender->sent_ns));
  mrc_assert(sender->sent_ns);
  return 0;
}

void mrc_gbn_sender_free(struct mrc_gbn_sender *sender) { free(sender->sent_ns); }

static uint64_t inflight_bytes(const struct mrc_gbn_sender *sender) {
  return (sender->next - sender->unacked) * sender->config.cc.mtu_bytes;
}

bool mrc_gbn_may_send(const struct mrc_gbn_sender *sender) {
  if (sender->next == sender->end) return false;
  if (sender->next - sender->unacked == sender->config.window) return false;
  const uint64_t inflight = inflight_bytes(sender);
  return inflight == 0 || inflight + sender->config.cc.mtu_bytes <= sender->cc.cwnd_bytes;
}

uint64_t mrc_gbn_on_sent(struct mrc_gbn_sender *sender, uint64_t now_ns) {
  const uint64_t psn = sender->next++;
  const bool again = psn < sender->sent_end;
  sender->sent_ns[psn % sender->config.window] = again ? MRC_NEVER : now_ns;
  sender->sent_end = mrc_max_u64(sender->sent_end, sender->next);
  sender->packets++;
  sender->again += again;
  if (sender->deadline_ns == MRC_NEVER) sender->deadline_ns = now_ns + sender->config.timeout_ns;
  return psn;
}

/* Samples the round trip of the newest packet acknowledged. 0 if it was retransmitted: the answer
   may be for either copy. */
static uint64_t sample_rtt(struct mrc_gbn_sender *sender, uint64_t expected, uint64_t now_ns) {
  const uint64_t sent_ns = sender->sent_ns[(expected - 1) % sender->config.window];
  if (sent_ns == MRC_NEVER) return 0;
  mrc_rtt_sample(&sender->rtt, now_ns - sent_ns);
  return now_ns - sent_ns;
}

static void advance(struct mrc_gbn_sender *sender, uint64_t expected, bool ce, uint64_t now_ns) {
  const uint64_t rtt_ns = sample_rtt(sender, expected, now_ns);
  const struct mrc_cc_ack ack = {
      .bytes = (expected - sender->unacked) * sender->config.cc.mtu_bytes,
      .inflight_bytes = inflight_bytes(sender),
      .rtt_ns = rtt_ns,
      .base_rtt_ns = sender->rtt.base_ns,
      .smooth_rtt_ns = sender->rtt.smooth_ns,
      .ce = ce};
  mrc_cc_on_ack(&sender->cc, &ack, now_ns);
  sender->unacked = expected;
  sender->next = mrc_max_u64(sender->next, expected); /* it had gone back further than necessary */
  sender->timeouts = 0;
  sender->deadline_ns =
      sender->unacked < sender->next ? now_ns + sender->config.timeout_ns : MRC_NEVER;
}

static void go_back(struct mrc_gbn_sender *sender) {
  sender->next = sender->unacked;
  sender->deadline_ns = MRC_NEVER; /* until the next packet is sent */
  sender->went_back++;
}

void mrc_gbn_on_answer(struct mrc_gbn_sender *sender, uint32_t expected, bool nak, bool ce,
                       uint64_t now_ns) {
  const int32_t ahead = mrc_psn_diff(expected, (uint32_t)sender->unacked & MRC_PSN_MASK);
  if (ahead < 0 || sender->unacked + (uint64_t)ahead > sender->sent_end) return;
  if (ahead > 0) advance(sender, sender->unacked + (uint64_t)ahead, ce, now_ns);
  if (!nak || sender->next == sender->unacked) return;
  const struct mrc_cc_loss loss = {.bytes = sender->config.cc.mtu_bytes,
                                   .inflight_bytes = inflight_bytes(sender)};
  mrc_cc_on_loss(&sender->cc, &loss, now_ns);
  go_back(sender);
}

bool mrc_gbn_on_timeout(struct mrc_gbn_sender *sender) {
  if (sender->timeouts++ == sender->config.retries) return false;
  mrc_cc_on_timeout(&sender->cc);
  go_back(sender);
  return true;
}

bool mrc_gbn_receive(struct mrc_gbn_receiver *receiver, uint32_t psn, bool ce) {
  const int32_t ahead = mrc_psn_diff(psn, (uint32_t)receiver->expected & MRC_PSN_MASK);
  receiver->ce |= ce;
  receiver->repeated += ahead < 0;
  if (ahead > 0) {
    receiver->nak_due |= !receiver->nak_sent;
    receiver->nak_sent = true;
    return false;
  }
  receiver->ack_due = true; /* also for a repeated packet: the first answer may be lost */
  if (ahead < 0) return false;
  receiver->expected++;
  receiver->nak_sent = receiver->nak_due = false;
  return true;
}
