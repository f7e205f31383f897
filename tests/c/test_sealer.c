/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cipher stops a program in which a key seals two packets with one nonce. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "core/wire.h"
#include "virtual/sealer.h"

static const struct mrc_aead *const sealers[] = {&mrc_sealer, &mrc_sealer_of_headers};
static const uint8_t text[8] = "payload";
static const struct mrc_part part = {text, sizeof text};
static uint8_t tag[MRC_TAG_BYTES];

typedef void use_fn(const struct mrc_aead *aead, void *key, uint8_t counter);

static void seal(const struct mrc_aead *aead, void *key, uint8_t counter) {
  const uint8_t nonce[MRC_NONCE_BYTES] = {[MRC_NONCE_BYTES - 1] = counter};
  uint8_t out[sizeof text];
  aead->seal(key, nonce, part, part, out, tag);
}

static void mac(const struct mrc_aead *aead, void *key, uint8_t counter) {
  const uint8_t nonce[MRC_NONCE_BYTES] = {[MRC_NONCE_BYTES - 1] = counter};
  const struct mrc_part parts[3] = {part};
  aead->mac(key, nonce, parts, tag);
}

static void check(const struct mrc_aead *aead, void *key, uint8_t counter) {
  const uint8_t nonce[MRC_NONCE_BYTES] = {[MRC_NONCE_BYTES - 1] = counter};
  CHECK(!aead->check(key, nonce, part, tag) || counter == 1);
}

static void run(const struct mrc_aead *aead, use_fn *first, use_fn *second, uint8_t counter) {
  static const uint8_t secret[MRC_SECRET_BYTES] = {9};
  void *key = aead->reserve(aead->key_bytes);
  aead->set(key, secret);
  first(aead, key, 1);
  second(aead, key, counter);
  aead->release(key, aead->key_bytes);
}

TEST(test_nonce__is_used_once) {
  static const struct {
    use_fn *first, *second;
    uint8_t counter; /* of the second */
    bool right;
  } rows[] = {
      {seal, seal, 2, true}, {mac, mac, 2, true},     {mac, check, 1, true},
      {check, mac, 1, true}, {check, check, 1, true}, {seal, seal, 1, false},
      {mac, mac, 1, false},  {seal, mac, 1, false},   {mac, seal, 1, false},
  };
  for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      freopen("/dev/null", "w", stderr);
      run(sealers[i % 2], rows[i / 2].first, rows[i / 2].second, rows[i / 2].counter);
      _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, !rows[i / 2].right);
    if (rows[i / 2].right) CHECK_EQ(status, 0);
  }
}
