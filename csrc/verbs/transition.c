/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/transition.h"

#include <errno.h>
#include <stddef.h>

#include "program/say.h"

/* Alternate paths and SQD are not served. Everything else is the kernel's table for RC. */
static const struct transition {
  int required;
  int optional;
  bool legal;
} transitions[IBV_QPS_RTS + 1][IBV_QPS_RTS + 1] = {
    [IBV_QPS_RESET][IBV_QPS_INIT] = {.legal = true,
                                     .required =
                                         IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    [IBV_QPS_INIT][IBV_QPS_INIT] = {.legal = true,
                                    .optional =
                                        IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    [IBV_QPS_INIT][IBV_QPS_RTR] = {.legal = true,
                                   .required = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                               IBV_QP_MIN_RNR_TIMER,
                                   .optional = IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
    [IBV_QPS_RTR][IBV_QPS_RTS] = {.legal = true,
                                  .required = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                              IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                                  .optional = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS |
                                              IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    [IBV_QPS_RTS][IBV_QPS_RTS] = {.legal = true,
                                  .optional = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS |
                                              IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
};

/* Any state may become RESET or ERR, without further attributes. */
static struct transition find(enum ibv_qp_state from, enum ibv_qp_state to) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return (struct transition){.legal = true};
  if (from > IBV_QPS_RTS || to > IBV_QPS_RTS) return (struct transition){0};
  return transitions[from][to];
}

bool vb_transition_is_legal(enum ibv_qp_state from, enum ibv_qp_state to) {
  return find(from, to).legal;
}

static const char *name_of(int attribute) {
  static const struct {
    int attribute;
    const char *name;
  } names[] = {{IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"},
               {IBV_QP_PORT, "IBV_QP_PORT"},
               {IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"},
               {IBV_QP_AV, "IBV_QP_AV"},
               {IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"},
               {IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"},
               {IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"},
               {IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"},
               {IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"},
               {IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"},
               {IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"},
               {IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"},
               {IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"},
               {IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"}};
  size_t i = 0;
  while (i < sizeof names / sizeof names[0] && names[i].attribute != attribute)
    i++;
  return i < sizeof names / sizeof names[0] ? names[i].name : "an attribute";
}

int vb_transition_check(enum ibv_qp_state from, enum ibv_qp_state to, int mask) {
  static const char *const states[] = {"RESET", "INIT", "RTR", "RTS"};
  const struct transition found = find(from, to);
  const int missing = found.required & ~mask;
  const int more = mask & ~(found.required | found.optional | IBV_QP_STATE);
  if (!found.legal) return EINVAL;
  if (missing != 0)
    PR_SAY_ONCE("a QP does not go from %s to %s: the mask of ibv_modify_qp lacks %s", states[from],
                states[to], name_of(missing & -missing));
  else if (more != 0)
    PR_SAY_ONCE(
        "a QP in state %d does not go to %d: the mask of ibv_modify_qp has 0x%x, which no"
        " RC QP takes there",
        from, to, more);
  return missing || more ? EINVAL : 0;
}
