/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's libcrypto, which Python's ssl needs too. Its functions are declared here, so that mrc
   is built without its headers; they are the same from 1.1 on. */
#include "io/aead_libcrypto.h"

#include <dlfcn.h>
#include <string.h>

#include "core/base.h"
#include "core/wire.h"
#include "io/keys.h"

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

static void hash(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]) {
  library.sha256(message, n, digest);
}

static void set(void *memory, const uint8_t secret[MRC_SECRET_BYTES]) {
  struct key *key = memory;
  memcpy(key->secret, secret, sizeof key->secret);
  key->encrypts = -1;
}

static void unset(void *memory) {
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

static void seal(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 struct mrc_part text, uint8_t *out, uint8_t *tag) {
  evp_ctx *cipher = begin(key, nonce, 1);
  add(cipher, NULL, clear.at, clear.n);
  add(cipher, out, text.at, text.n);
  end(cipher, tag);
}

static bool open(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part clear,
                 uint8_t *text, size_t n, const uint8_t *tag) {
  uint8_t nothing[16];
  int done;
  evp_ctx *cipher = begin(key, nonce, 0);
  add(cipher, NULL, clear.at, clear.n);
  add(cipher, text, text, n);
  mrc_assert(library.control(cipher, SET_TAG, MRC_TAG_BYTES, (void *)tag) == 1);
  return library.finish(cipher, nothing, &done) == 1;
}

static void mac(void *key, const uint8_t nonce[MRC_NONCE_BYTES], const struct mrc_part parts[3],
                uint8_t *tag) {
  evp_ctx *cipher = begin(key, nonce, 1);
  for (int i = 0; i < 3; i++)
    add(cipher, NULL, parts[i].at, parts[i].n);
  end(cipher, tag);
}

static bool check(void *key, const uint8_t nonce[MRC_NONCE_BYTES], struct mrc_part whole,
                  const uint8_t *tag) {
  const struct mrc_part parts[3] = {whole};
  uint8_t made[MRC_TAG_BYTES];
  mac(key, nonce, parts, made);
  return mrc_same(made, tag, sizeof made);
}

static const struct mrc_aead libcrypto = {.name = "libcrypto",
                                          .key_bytes = sizeof(struct key),
                                          .reserve = mrc_keys_reserve,
                                          .release = mrc_keys_release,
                                          .hash = hash,
                                          .set = set,
                                          .unset = unset,
                                          .seal = seal,
                                          .open = open,
                                          .mac = mac,
                                          .check = check};

static void *load(void) {
  static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so.4"};
  void *found = NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && found == NULL; i++)
    found = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  return found;
}

static bool find(void *from, void *place, const char *name) {
  *(void **)place = dlsym(from, name);
  return *(void **)place != NULL;
}

const struct mrc_aead *mrc_aead_libcrypto(void) {
  void *from = load();
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
