/* SPDX-License-Identifier: Apache-2.0 */
/* Intel's IPsec-MB, versions 1 and 2, if this host has one of them: AES-GCM by AVX-512. */
#include "io/aead_ipsec_mb.h"

#ifdef __x86_64__
#include <dlfcn.h>
#include <string.h>

#include "core/base.h"
#include "core/wire.h"
#include "io/ipsec_mb.h"
#include "io/keys.h"

/* The manager holds pointers to the functions for this CPU. Its direct functions keep no state. */
static const struct ipsec_mb_manager *manager;

static void hash(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]) {
  manager->sha256(message, n, digest);
}

static void set(void *key, const uint8_t secret[MRC_SECRET_BYTES]) {
  manager->gcm256_pre(secret, key);
}

static void unset(void *key) { (void)key; }

static void seal(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 struct mrc_part text, uint8_t *out, uint8_t *tag) {
  struct ipsec_mb_context context;
  manager->gcm256_enc(key, &context, out, text.at, text.n, nonce, clear.at, clear.n, tag,
                      MRC_TAG_BYTES);
}

static bool open(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 uint8_t *text, size_t n, const uint8_t *tag) {
  struct ipsec_mb_context context;
  uint8_t made[MRC_TAG_BYTES];
  manager->gcm256_dec(key, &context, text, text, n, nonce, clear.at, clear.n, made, MRC_TAG_BYTES);
  return mrc_same(made, tag, MRC_TAG_BYTES);
}

static void mac(void *key, const uint8_t nonce[MRC_NONCE_BYTES], const struct mrc_part parts[3],
                uint8_t *tag) {
  struct ipsec_mb_context context;
  if (parts[1].n + parts[2].n == 0) { /* faster: a message that is all clear */
    manager->gcm256_enc(key, &context, NULL, NULL, 0, nonce, parts[0].at, parts[0].n, tag,
                        MRC_TAG_BYTES);
    return;
  }
  manager->gmac256_init(key, &context, nonce, MRC_NONCE_BYTES);
  for (int i = 0; i < 3; i++)
    if (parts[i].n > 0) manager->gmac256_update(key, &context, parts[i].at, parts[i].n);
  manager->gmac256_finalize(key, &context, tag, MRC_TAG_BYTES);
}

static bool check(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part whole,
                  const uint8_t *tag) {
  const struct mrc_part parts[3] = {whole};
  uint8_t made[MRC_TAG_BYTES];
  mac(key, nonce, parts, made);
  return mrc_same(made, tag, sizeof made);
}

static const struct mrc_aead ipsec_mb = {.name = "IPsec-MB",
                                         .key_bytes = IPSEC_MB_KEY_BYTES,
                                         .reserve = mrc_keys_reserve,
                                         .release = mrc_keys_release,
                                         .hash = hash,
                                         .set = set,
                                         .unset = unset,
                                         .seal = seal,
                                         .open = open,
                                         .mac = mac,
                                         .check = check};

/* The manager of this library; NULL if a function is missing or the version has another layout. */
static struct ipsec_mb_manager *start(void *library) {
  unsigned (*version)(void);
  struct ipsec_mb_manager *(*allocate)(uint64_t flags);
  void (*choose)(struct ipsec_mb_manager *, int *architecture);
  *(void **)&version = dlsym(library, "imb_get_version");
  *(void **)&allocate = dlsym(library, "alloc_mb_mgr");
  *(void **)&choose = dlsym(library, "init_mb_mgr_auto");
  if (version == NULL || allocate == NULL || choose == NULL) return NULL;
  const unsigned major = version() >> 16;
  if (major < IPSEC_MB_FIRST || major > IPSEC_MB_LAST) return NULL;
  struct ipsec_mb_manager *made = allocate(0);
  if (made != NULL) choose(made, NULL);
  return made;
}

const struct mrc_aead *mrc_aead_ipsec_mb(void) {
  static const char *const names[] = {"libIPSec_MB.so.2", "libIPSec_MB.so.1"};
  for (size_t i = 0; i < sizeof names / sizeof names[0] && manager == NULL; i++) {
    void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) manager = start(library);
  }
  return manager == NULL ? NULL : &ipsec_mb;
}

#else
const struct mrc_aead *mrc_aead_ipsec_mb(void) { return NULL; }
#endif
