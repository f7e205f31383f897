/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for a peer that breaks the protocol of emulated RC; says how its QP ends. Beside it, two
   other ends go on. */
#include "emulated.h"

enum { PEER = 3 /* the least QPN: that peer dials */ };

int main(void) {
  struct ibv_context *context = open_first();
  struct rc_end victim = make_rc_end(context, NULL), a = make_rc_end(context, NULL),
                b = make_rc_end(context, NULL);
  struct ibv_sge to = piece(&victim, 0, 100), from = piece(&a, 0, 8), into = piece(&b, 0, 8);
  struct ibv_async_event event;
  memset(victim.memory, 1, PAIR_BYTES);
  move(&victim, PEER, RNR_FOR_EVER);
  post_receive(&victim, 1, &to, 1);
  printf("%u\n", victim.qp->qp_num);
  fflush(stdout);
  until_failed(&victim);
  CHECK(ibv_get_async_event(context, &event) == 0 && event.element.qp == victim.qp);
  ibv_ack_async_event(&event);
  for (uint32_t i = 0; i < PAIR_BYTES; i++)
    CHECK(victim.memory[i] == 1);
  join_rc(&a, &b, RNR_FOR_EVER);
  post_receive(&b, 1, &into, 1);
  CHECK(post_request(&a, sending(2, &from, 1)) == 0);
  ends_well(&b, 1, IBV_WC_RECV);
  destroy_end(&victim);
  passed("failed");
  return 0;
}
