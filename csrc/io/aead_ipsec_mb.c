/* SPDX-License-Identifier: Apache-2.0 */
/* Intel's IPsec-MB, where its headers were there when mrc was built: AES-GCM by AVX-512. */
#include "io/aead_ipsec_mb.h"

#ifdef MRC_HAVE_IPSEC_MB
#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <string.h>

#include "core/base.h"
#include "core/wire.h"
#include "io/keys.h"

#define LIBRARY "libIPSec_MB.so.1"

/* The manager holds pointers to the functions for this CPU. Its direct functions keep no state. */
static IMB_MGR *manager;

static void hash(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]) {
  IMB_SHA256(manager, message, n, digest);
}

static void set(void *key, const uint8_t secret[MRC_SECRET_BYTES]) {
  IMB_AES256_GCM_PRE(manager, secret, key);
}

static void unset(void *key) { (void)key; }

static void seal(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 struct mrc_part text, uint8_t *out, uint8_t *tag) {
  struct gcm_context_data context;
  IMB_AES256_GCM_ENC(manager, key, &context, out, text.at, text.n, nonce, clear.at, clear.n, tag,
                     MRC_TAG_BYTES);
}

static bool open(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 uint8_t *text, size_t n, const uint8_t *tag) {
  struct gcm_context_data context;
  uint8_t made[MRC_TAG_BYTES];
  IMB_AES256_GCM_DEC(manager, key, &context, text, text, n, nonce, clear.at, clear.n, made,
                     MRC_TAG_BYTES);
  return mrc_same(made, tag, MRC_TAG_BYTES);
}

static void mac(void *key, const uint8_t nonce[MRC_NONCE_BYTES], const struct mrc_part parts[3],
                uint8_t *tag) {
  struct gcm_context_data context;
  if (parts[1].n + parts[2].n == 0) { /* faster: a message that is all clear */
    IMB_AES256_GCM_ENC(manager, key, &context, NULL, NULL, 0, nonce, parts[0].at, parts[0].n, tag,
                       MRC_TAG_BYTES);
    return;
  }
  IMB_AES256_GMAC_INIT(manager, key, &context, nonce, MRC_NONCE_BYTES);
  for (int i = 0; i < 3; i++)
    if (parts[i].n > 0) IMB_AES256_GMAC_UPDATE(manager, key, &context, parts[i].at, parts[i].n);
  IMB_AES256_GMAC_FINALIZE(manager, key, &context, tag, MRC_TAG_BYTES);
}

static bool check(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part whole,
                  const uint8_t *tag) {
  const struct mrc_part parts[3] = {whole};
  uint8_t made[MRC_TAG_BYTES];
  mac(key, nonce, parts, made);
  return mrc_same(made, tag, sizeof made);
}

static const struct mrc_aead ipsec_mb = {.name = "IPsec-MB",
                                         .key_bytes = (sizeof(struct gcm_key_data) + 63) / 64 * 64,
                                         .reserve = mrc_keys_reserve,
                                         .release = mrc_keys_release,
                                         .hash = hash,
                                         .set = set,
                                         .unset = unset,
                                         .seal = seal,
                                         .open = open,
                                         .mac = mac,
                                         .check = check};

/* The layout of the manager is that of one version. */
const struct mrc_aead *mrc_aead_ipsec_mb(void) {
  if (manager != NULL) return &ipsec_mb;
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return NULL;
  unsigned (*version)(void);
  IMB_MGR *(*allocate)(uint64_t);
  void (*start)(IMB_MGR *, IMB_ARCH *);
  *(void **)&version = dlsym(library, "imb_get_version");
  *(void **)&allocate = dlsym(library, "alloc_mb_mgr");
  *(void **)&start = dlsym(library, "init_mb_mgr_auto");
  if (version == NULL || allocate == NULL || start == NULL || version() != IMB_VERSION_NUM)
    return NULL;
  IMB_MGR *made = allocate(0);
  if (made == NULL) return NULL;
  start(made, NULL);
  manager = made;
  return &ipsec_mb;
}

#else
const struct mrc_aead *mrc_aead_ipsec_mb(void) { return NULL; }
#endif
