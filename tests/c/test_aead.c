/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries that seal packets: known answers, and that they agree with each other. */
#include <stddef.h>
#include <stdlib.h>

#if defined(__x86_64__) && __has_include(<intel-ipsec-mb.h>)
#include <intel-ipsec-mb.h>
#endif

#include "check.h"
#include "core/wire.h"
#include "io/aead.h"
#include "mrc.h"

enum { MOST = 9000 };

typedef const struct mrc_aead *find_fn(void);
static find_fn *const finders[] = {mrc_aead_ipsec_mb, mrc_aead_libcrypto};
enum { LIBRARIES = sizeof finders / sizeof finders[0] };

static void *make_key(const struct mrc_aead *aead, const uint8_t secret[MRC_SECRET_BYTES]) {
  void *key = aead->reserve(aead->key_bytes);
  CHECK(key != NULL && (uintptr_t)key % 64 == 0);
  aead->set(key, secret);
  return key;
}

static void drop_key(const struct mrc_aead *aead, void *key) {
  aead->unset(key);
  aead->release(key, aead->key_bytes);
}

static void from_hex(const char *hex, uint8_t *out) {
  for (; *hex != 0; hex += 2, out++) {
    const char byte[3] = {hex[0], hex[1], 0};
    *out = (uint8_t)strtoul(byte, NULL, 16);
  }
}

/* Test cases 16 and, without text, its additional data alone, of McGrew and Viega's "The
   Galois/Counter Mode of Operation"; 12 bytes of nonce, 256 bits of key. */
static const char key_hex[] = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
static const char nonce_hex[] = "cafebabefacedbaddecaf888";
static const char clear_hex[] = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
static const char text_hex[] =
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
static const char cipher_hex[] =
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662";
static const char tag_hex[] = "76fc6ece0f4e1768cddf8853bb2d551b";

TEST(test_aead__known_answers) {
  int found = 0;
  EACH_OF(int, i, 0, LIBRARIES) {
    const struct mrc_aead *aead = finders[i]();
    if (aead == NULL) continue;
    found++;
    uint8_t secret[32], nonce[12], clear[20], text[60], cipher[60], tag[16], out[60], made[16];
    from_hex(key_hex, secret);
    from_hex(nonce_hex, nonce);
    from_hex(clear_hex, clear);
    from_hex(text_hex, text);
    from_hex(cipher_hex, cipher);
    from_hex(tag_hex, tag);
    void *key = make_key(aead, secret);
    aead->seal(key, nonce, (struct mrc_part){clear, 20}, (struct mrc_part){text, 60}, out, made);
    CHECK_MEM_EQ(out, cipher, 60);
    CHECK_MEM_EQ(made, tag, 16);
    CHECK(aead->open(key, nonce, (struct mrc_part){clear, 20}, out, 60, made));
    CHECK_MEM_EQ(out, text, 60);
    made[15] ^= 1;
    CHECK(!aead->open(key, nonce, (struct mrc_part){clear, 20}, out, 60, made));
    drop_key(aead, key);
  }
  CHECK(found > 0); /* libcrypto at least: Python's ssl requires it */
}

/* FIPS 180-2, appendix B.1. */
TEST(test_hash__known_answer) {
  uint8_t expected[32], digest[32];
  from_hex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", expected);
  for (int i = 0; i < LIBRARIES; i++) {
    const struct mrc_aead *aead = finders[i]();
    if (aead == NULL) continue;
    aead->hash((const uint8_t *)"abc", 3, digest);
    CHECK_MEM_EQ(digest, expected, 32);
  }
}

/* Both libraries, over all small sizes and some large ones, with the parts of a MAC cut anywhere.
 */
TEST(test_aead__libraries_agree) {
  const struct mrc_aead *one = mrc_aead_ipsec_mb(), *other = mrc_aead_libcrypto();
  if (one == NULL || other == NULL) return;
  static uint8_t text[MOST], outs[2][MOST];
  uint8_t secret[32], nonce[12] = {7}, tags[2][16];
  for (int i = 0; i < 32; i++)
    secret[i] = (uint8_t)(3 * i);
  for (int i = 0; i < MOST; i++)
    text[i] = (uint8_t)(i * i >> 3);
  void *keys[2] = {make_key(one, secret), make_key(other, secret)};
  for (size_t n = 0; n <= MOST; n += n < 300 ? 1 : 997) {
    CHECK_ROW(n);
    const struct mrc_part clear = {text, n % 64}, all = {text, n};
    nonce[11] = (uint8_t)n;
    one->seal(keys[0], nonce, clear, all, outs[0], tags[0]);
    other->seal(keys[1], nonce, clear, all, outs[1], tags[1]);
    CHECK_MEM_EQ(outs[0], outs[1], n);
    CHECK_MEM_EQ(tags[0], tags[1], 16);
    const size_t a = n / 3, b = (n - a) / 2;
    const struct mrc_part parts[3] = {{text, a}, {text + a, b}, {text + a + b, n - a - b}};
    const struct mrc_part whole[3] = {{text, n}};
    one->mac(keys[0], nonce, parts, tags[0]);
    other->mac(keys[1], nonce, whole, tags[1]);
    CHECK_MEM_EQ(tags[0], tags[1], 16);
    CHECK(one->check(keys[0], nonce, whole[0], tags[1]));
    CHECK(other->check(keys[1], nonce, whole[0], tags[0]));
    tags[1][n % 16] ^= 1;
    CHECK(!one->check(keys[0], nonce, whole[0], tags[1]));
    CHECK(!other->check(keys[1], nonce, whole[0], tags[1]));
  }
  drop_key(one, keys[0]);
  drop_key(other, keys[1]);
}

/* aead.h beside the header of the installed version. */
TEST(test_ipsec_mb__layout) {
#if defined(IMB_VERSION_NUM) && IMB_VERSION_NUM < 0x30000
#define SAME(field) CHECK(offsetof(struct ipsec_mb_manager, field) == offsetof(IMB_MGR, field))
  SAME(sha256);
  SAME(gcm256_enc);
  SAME(gcm256_dec);
  SAME(gcm256_pre);
  SAME(gmac256_init);
  SAME(gmac256_update);
  SAME(gmac256_finalize);
#undef SAME
  CHECK(sizeof(struct gcm_context_data) <= sizeof(struct ipsec_mb_context));
  CHECK(sizeof(struct gcm_key_data) <= IPSEC_MB_KEY_BYTES && IPSEC_MB_KEY_BYTES % 64 == 0);
#else
  printf("skipped: needs the header of IPsec-MB 1 or 2: apt-get install libipsec-mb-dev\n");
#endif
}

TEST(test_best__by_name) {
  CHECK(mrc_aead_best() != NULL);
  CHECK(strcmp(mrc_aead_best()->name, mrc_aead_name()) == 0);
}
