/* SPDX-License-Identifier: Apache-2.0 */
#include "io/aead.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/seal.h"
#include "io/aead_ipsec_mb.h"
#include "io/aead_libcrypto.h"
#include "mrc.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct mrc_aead *best;

static void choose(void) {
  const char *wanted = getenv("MRC_AEAD");
  const struct mrc_aead *const found[] = {mrc_aead_ipsec_mb(), mrc_aead_libcrypto()};
  for (size_t i = 0; i < sizeof found / sizeof found[0] && best == NULL; i++)
    if (found[i] != NULL && (wanted == NULL || strcmp(wanted, found[i]->name) == 0))
      best = found[i];
}

const struct mrc_aead *mrc_aead_best(void) {
  pthread_once(&once, choose);
  return best;
}

int mrc_seal_agree(struct mrc_seal_attr *attr, uint32_t qpn, const uint8_t *random,
                   const uint8_t *peer_random, bool first) {
  const struct mrc_aead *aead = mrc_aead_best();
  if (aead == NULL) return -ENOTSUP;
  mrc_seal_derive(aead, attr, qpn, random, peer_random, first);
  return 0;
}

const char *mrc_aead_name(void) {
  const struct mrc_aead *aead = mrc_aead_best();
  return aead == NULL ? NULL : aead->name;
}
