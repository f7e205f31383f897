/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/aead.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base.h"
#include "core/wire.h"
#include "mrc.h"

/* ---- Memory for keys: not in core dumps, zeros in a forked child, wiped at its end ---- */

static size_t whole_pages(size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

/* Zeros, aligned to a page; NULL without memory, or on a kernel that cannot keep them secret. */
static void *reserve(size_t bytes) {
  const size_t n = whole_pages(bytes);
  void *memory = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  if (madvise(memory, n, MADV_DONTDUMP) == 0 && madvise(memory, n, MADV_WIPEONFORK) == 0)
    return memory;
  munmap(memory, n);
  return NULL;
}

/* In constant time. */
static bool is_same(const uint8_t *one, const uint8_t *other, size_t n) {
  uint8_t differs = 0;
  for (size_t i = 0; i < n; i++)
    differs |= one[i] ^ other[i];
  return differs == 0;
}

static void release(void *memory, size_t bytes) {
  explicit_bzero(memory, bytes);
  munmap(memory, whole_pages(bytes));
}

/* ---- IPsec-MB ---- */

/* Intel's IPsec-MB, versions 1 and 2, if this host has one of them: AES-GCM by AVX-512. */

#ifdef __x86_64__
/* The manager holds pointers to the functions for this CPU. Its direct functions keep no state. */
static const struct ipsec_mb_manager *manager;

static void mb_hash(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]) {
  manager->sha256(message, n, digest);
}

static void mb_set(void *key, const uint8_t secret[MRC_SECRET_BYTES]) {
  manager->gcm256_pre(secret, key);
}

static void mb_unset(void *key) { (void)key; }

static void mb_seal(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                    struct mrc_part text, uint8_t *out, uint8_t *tag) {
  struct ipsec_mb_context context;
  manager->gcm256_enc(key, &context, out, text.at, text.n, nonce, clear.at, clear.n, tag,
                      MRC_TAG_BYTES);
}

static bool mb_open(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                    uint8_t *text, size_t n, const uint8_t *tag) {
  struct ipsec_mb_context context;
  uint8_t made[MRC_TAG_BYTES];
  manager->gcm256_dec(key, &context, text, text, n, nonce, clear.at, clear.n, made, MRC_TAG_BYTES);
  return is_same(made, tag, MRC_TAG_BYTES);
}

static void mb_mac(void *key, const uint8_t nonce[MRC_NONCE_BYTES], const struct mrc_part parts[3],
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

static bool mb_check(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part whole,
                     const uint8_t *tag) {
  const struct mrc_part parts[3] = {whole};
  uint8_t made[MRC_TAG_BYTES];
  mb_mac(key, nonce, parts, made);
  return is_same(made, tag, sizeof made);
}

static const struct mrc_aead ipsec_mb = {.name = "IPsec-MB",
                                         .key_bytes = IPSEC_MB_KEY_BYTES,
                                         .reserve = reserve,
                                         .release = release,
                                         .hash = mb_hash,
                                         .set = mb_set,
                                         .unset = mb_unset,
                                         .seal = mb_seal,
                                         .open = mb_open,
                                         .mac = mb_mac,
                                         .check = mb_check};

/* The manager of this library; NULL if a function is missing or the version has another layout. */
static struct ipsec_mb_manager *mb_start(void *library) {
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
    if (library != NULL) manager = mb_start(library);
  }
  return manager == NULL ? NULL : &ipsec_mb;
}

#else
const struct mrc_aead *mrc_aead_ipsec_mb(void) { return NULL; }
#endif

/* ---- libcrypto ---- */

/* OpenSSL's libcrypto, which Python's ssl needs too. Its functions are declared here, so that mrc
   is built without its headers; they are the same from 1.1 on. */

enum { GET_TAG = 0x10, SET_TAG = 0x11 }; /* of EVP_CIPHER_CTX_ctrl */

typedef struct evp_cipher_ctx evp_ctx; /* EVP_CIPHER_CTX */

static struct {
  evp_ctx *(*new)(void);
  void (*free)(evp_ctx *);
  const void *(*aes_256_gcm)(void);
  int (*start)(evp_ctx *, const void *kind, void *engine, const uint8_t *key, const uint8_t *nonce,
               int encrypts);
  int (*update)(evp_ctx *, uint8_t *out, int *n_out, const uint8_t *in, int n);
  int (*finish)(evp_ctx *, uint8_t *out, int *n_out);
  int (*control)(evp_ctx *, int type, int n, void *value);
  uint8_t *(*sha256)(const uint8_t *message, size_t n, uint8_t *digest);
} library;

/* A key seals or opens: the library keeps a context for each direction. */
struct key {
  _Alignas(64) uint8_t secret[MRC_SECRET_BYTES];
  evp_ctx *cipher;
  int encrypts; /* what the cipher is set up for; -1: nothing */
};

static void crypto_hash(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]) {
  library.sha256(message, n, digest);
}

static void crypto_set(void *memory, const uint8_t secret[MRC_SECRET_BYTES]) {
  struct key *key = memory;
  memcpy(key->secret, secret, sizeof key->secret);
  key->encrypts = -1;
}

static void crypto_unset(void *memory) {
  struct key *key = memory;
  library.free(key->cipher); /* wipes it */
  key->cipher = NULL;
}

/* A library that fails here has no memory, and to send in the clear is no way out. */
static evp_ctx *begin(struct key *key, const uint8_t nonce[MRC_NONCE_BYTES], int encrypts) {
  if (key->cipher == NULL) key->cipher = library.new();
  mrc_assert(key->cipher != NULL);
  const bool same = key->encrypts == encrypts;
  mrc_assert(library.start(key->cipher, same ? NULL : library.aes_256_gcm(), NULL,
                           same ? NULL : key->secret, nonce, encrypts) == 1);
  key->encrypts = encrypts;
  return key->cipher;
}

static void add(evp_ctx *cipher, uint8_t *out, const uint8_t *in, size_t n) {
  int done;
  if (n > 0) mrc_assert(library.update(cipher, out, &done, in, (int)n) == 1 && done == (int)n);
}

static void end(evp_ctx *cipher, uint8_t *tag) {
  uint8_t nothing[16];
  int done;
  mrc_assert(library.finish(cipher, nothing, &done) == 1);
  mrc_assert(library.control(cipher, GET_TAG, MRC_TAG_BYTES, tag) == 1);
}

static void crypto_seal(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                        struct mrc_part text, uint8_t *out, uint8_t *tag) {
  evp_ctx *cipher = begin(key, nonce, 1);
  add(cipher, NULL, clear.at, clear.n);
  add(cipher, out, text.at, text.n);
  end(cipher, tag);
}

static bool crypto_open(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                        uint8_t *text, size_t n, const uint8_t *tag) {
  uint8_t nothing[16];
  int done;
  evp_ctx *cipher = begin(key, nonce, 0);
  add(cipher, NULL, clear.at, clear.n);
  add(cipher, text, text, n);
  mrc_assert(library.control(cipher, SET_TAG, MRC_TAG_BYTES, (void *)tag) == 1);
  return library.finish(cipher, nothing, &done) == 1;
}

static void crypto_mac(void *key, const uint8_t nonce[MRC_NONCE_BYTES],
                       const struct mrc_part parts[3], uint8_t *tag) {
  evp_ctx *cipher = begin(key, nonce, 1);
  for (int i = 0; i < 3; i++)
    add(cipher, NULL, parts[i].at, parts[i].n);
  end(cipher, tag);
}

static bool crypto_check(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part whole,
                         const uint8_t *tag) {
  const struct mrc_part parts[3] = {whole};
  uint8_t made[MRC_TAG_BYTES];
  crypto_mac(key, nonce, parts, made);
  return is_same(made, tag, sizeof made);
}

static const struct mrc_aead libcrypto = {.name = "libcrypto",
                                          .key_bytes = sizeof(struct key),
                                          .reserve = reserve,
                                          .release = release,
                                          .hash = crypto_hash,
                                          .set = crypto_set,
                                          .unset = crypto_unset,
                                          .seal = crypto_seal,
                                          .open = crypto_open,
                                          .mac = crypto_mac,
                                          .check = crypto_check};

static bool find(void *from, void *place, const char *name) {
  *(void **)place = dlsym(from, name);
  return *(void **)place != NULL;
}

const struct mrc_aead *mrc_aead_libcrypto(void) {
  static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so.4"};
  void *from = NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && from == NULL; i++)
    from = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (from == NULL) return NULL;
  const bool all = find(from, &library.new, "EVP_CIPHER_CTX_new") &&
                   find(from, &library.free, "EVP_CIPHER_CTX_free") &&
                   find(from, &library.aes_256_gcm, "EVP_aes_256_gcm") &&
                   find(from, &library.start, "EVP_CipherInit_ex") &&
                   find(from, &library.update, "EVP_CipherUpdate") &&
                   find(from, &library.finish, "EVP_CipherFinal_ex") &&
                   find(from, &library.control, "EVP_CIPHER_CTX_ctrl") &&
                   find(from, &library.sha256, "SHA256");
  return all ? &libcrypto : NULL;
}

/* ---- The best one ---- */

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
  mrc_hkdf_derive(aead, attr, qpn, random, peer_random, first);
  return 0;
}

const char *mrc_aead_name(void) {
  const struct mrc_aead *aead = mrc_aead_best();
  return aead == NULL ? NULL : aead->name;
}
