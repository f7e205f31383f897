/* SPDX-License-Identifier: Apache-2.0 */
#include "core/crc.h"

#include <endian.h>
#include <stdbool.h>
#include <string.h>

#include "core/base.h"
#include "core/wire.h"

/* ---- CRC-32 ---- */

/* ISA-L is the fastest library, zlib is everywhere. Both take and give the inverted state, so that
   0 starts a CRC and calls chain. */
#if MRC_HAVE_ISAL
#include <isa-l/crc.h>

static uint32_t by_library(uint32_t crc, const uint8_t *bytes, size_t n) {
  return crc32_gzip_refl(crc, bytes, n);
}
#else
/* zlib's header is often not installed, and this prototype has been stable for thirty years. */
unsigned long crc32(unsigned long crc, const unsigned char *bytes, unsigned int n);

static uint32_t by_library(uint32_t crc, const uint8_t *bytes, size_t n) {
  return n == 0 ? crc : (uint32_t)crc32(crc, bytes, (unsigned int)n); /* NULL restarts zlib */
}
#endif

#if defined(__x86_64__)
#include <immintrin.h>

enum {
  BLOCK = 64,
  AHEAD = 1024, /* bytes to fetch ahead: the processor's own prefetching stops at each page */
};

/* Carry-less multiplication of 64 bytes at a time (V. Gopal et al., "Fast CRC Computation for
   Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009). Multiplied by the factors of a
   distance, a remainder moves that many bits towards the end of the message: x^(distance + 32) and
   x^(distance - 32) mod P, their bits reversed, times x. tests/c/test_crc.c derives them. */
#define WIDE \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,vpclmulqdq,pclmul")))
#define FACTORS_64 0, 0x163cd6124
#define FACTORS_128 0x0ccaa009e, 0x1751997d0
#define FACTORS_256 0x15a546366, 0x0f1da05aa
#define FACTORS_384 0x174359406, 0x03db1ecdc
#define FACTORS_512 0x1c6e41596, 0x154442bd4
#define FACTORS_1024 0x14a7fe880, 0x1e88ef372
#define FACTORS_1536 0x12e958ac4, 0x1821d8bc0
#define FACTORS_2048 0x1322d1430, 0x11542778a
#define BARRETT 0x1f7011641, 0x1db710641 /* x^64 / P, and P; both with their bits reversed */
#define FOUR(factors) _mm512_set_epi64(factors, factors, factors, factors)

static bool is_wide(void) {
  return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("vpclmulqdq");
}

/* Moves `x` by the distance of the factors, onto `next`. */
static inline WIDE __m512i fold(__m512i x, __m512i factors, __m512i next) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, factors, 0x00),
                                   _mm512_clmulepi64_epi128(x, factors, 0x11), next, 0x96);
}

/* Blocks of a message, which are copied on the way if there is somewhere to copy them. */
struct blocks {
  const uint8_t *from;
  const uint8_t *end;
  uint8_t *to; /* or NULL */
};

static inline WIDE __m512i take(struct blocks *blocks) {
  const __m512i block = _mm512_loadu_si512(blocks->from);
  _mm_prefetch((const char *)blocks->from + AHEAD, _MM_HINT_T0);
  blocks->from += BLOCK;
  if (blocks->to != NULL) {
    _mm512_storeu_si512(blocks->to, block);
    blocks->to += BLOCK;
  }
  return block;
}

/* At least four bytes: `odd` bytes stand at `begin`, and unless `from` is NULL a block behind them;
   whole blocks follow at `from`. The arguments are no struct, which would go through memory: right
   after a copy, such stores wait for the cache. */
static WIDE uint32_t wide(uint32_t crc, const uint8_t *begin, size_t odd, const uint8_t *from,
                          const uint8_t *end, uint8_t *to) {
  struct blocks rest = {from, end, to};
  /* The odd bytes become the end of a block of zeros: zeros in front change nothing. */
  const __mmask64 mask = odd == 0 ? 0 : ~0ull << (BLOCK - odd);
  const __m512i state = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc));
  __m512i x = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, begin - (BLOCK - odd)),
                               _mm512_maskz_expand_epi8(mask, state));
  if (from != NULL) {
    const uint32_t beyond_odd = odd < 4 ? ~crc >> 8 * odd : 0; /* the rest of the state */
    const __m512i block = _mm512_loadu_si512(begin + odd);
    x = fold(x, FOUR(FACTORS_512),
             _mm512_xor_si512(block, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)beyond_odd))));
  }
  if (rest.end - rest.from >= 8 * BLOCK) {
    /* Four remainders side by side hide how long a multiplication takes. */
    const __m512i factors = FOUR(FACTORS_2048);
    __m512i b = take(&rest), c = take(&rest), d = take(&rest);
    while (rest.end - rest.from >= 4 * BLOCK) {
      x = fold(x, factors, take(&rest));
      b = fold(b, factors, take(&rest));
      c = fold(c, factors, take(&rest));
      d = fold(d, factors, take(&rest));
    }
    const __m512i last = fold(b, FOUR(FACTORS_1024), fold(c, FOUR(FACTORS_512), d));
    x = fold(x, FOUR(FACTORS_1536), last);
  }
  while (rest.from < rest.end)
    x = fold(x, FOUR(FACTORS_512), take(&rest));
  /* 512 bits to 128, to 64, and to the remainder by P. */
  const __m512i factors = _mm512_set_epi64(0, 0, FACTORS_128, FACTORS_256, FACTORS_384);
  const __m512i moved = fold(x, factors, _mm512_maskz_mov_epi64(0xC0, x));
  const __m256i half =
      _mm256_xor_si256(_mm512_castsi512_si256(moved), _mm512_extracti64x4_epi64(moved, 1));
  __m128i r = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i low = _mm_setr_epi32(-1, 0, -1, 0), barrett = _mm_set_epi64x(BARRETT);
  r = _mm_xor_si128(_mm_srli_si128(r, 8),
                    _mm_clmulepi64_si128(r, _mm_set_epi64x(FACTORS_128), 0x10));
  r = _mm_xor_si128(_mm_srli_si128(r, 4),
                    _mm_clmulepi64_si128(_mm_and_si128(r, low), _mm_set_epi64x(FACTORS_64), 0x00));
  const __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(r, low), barrett, 0x10);
  r = _mm_xor_si128(r, _mm_clmulepi64_si128(_mm_and_si128(quotient, low), barrett, 0x00));
  return ~(uint32_t)_mm_extract_epi32(r, 1);
}

uint32_t mrc_crc32(uint32_t crc, const uint8_t *bytes, size_t n) {
  if (n < sizeof crc || !is_wide()) return by_library(crc, bytes, n);
  if (n < BLOCK) return wide(crc, bytes, n, NULL, NULL, NULL);
  const size_t odd = n % BLOCK;
  return wide(crc, bytes, odd, bytes + odd + BLOCK, bytes + n, NULL);
}

uint32_t mrc_crc32_copy(uint32_t crc, uint8_t *to, size_t head, const uint8_t *from, size_t n) {
  uint8_t *begin = to - head;
  const size_t odd = (head + n) % BLOCK, ready = odd + BLOCK;
  if (head + n < BLOCK || head > ready || !is_wide()) {
    memcpy(to, from, n);
    return mrc_crc32(crc, begin, head + n);
  }
  memcpy(to, from, ready - head);
  const uint8_t *rest = from + (ready - head);
  return wide(crc, begin, odd, rest, from + n, begin + ready);
}

#else
uint32_t mrc_crc32(uint32_t crc, const uint8_t *bytes, size_t n) {
  return by_library(crc, bytes, n);
}

uint32_t mrc_crc32_copy(uint32_t crc, uint8_t *to, size_t head, const uint8_t *from, size_t n) {
  memcpy(to, from, n);
  return by_library(crc, to - head, head + n);
}
#endif

/* ---- the ICRC ---- */

enum {
  IPV4_BYTES = 20,
  IPV6_BYTES = 40,
  UDP_BYTES = 8,
  PROTOCOL_UDP = 17,
  BTH_VARIANT = 4 /* offset of the BTH byte that may change in flight */
};

/* CRC of eight bytes of ones, in place of InfiniBand's routing header, which RoCE does not have. */
#define CRC_OF_ONES 0x2144DF1Cu

#define POLYNOMIAL 0xEDB88320u /* its bits reversed, without x^32 */

/* A CRC that begins with this difference ends as if the byte at BTH_VARIANT, which is 0 in what we
   send, were 0xFF. */
#define VARIANT_OF_ONES 0x0F6A70D9u

uint32_t mrc_icrc_begin(const struct mrc_icrc_flow *flow, size_t udp_payload_bytes) {
  mrc_assert(flow->family == 4 || flow->family == 6);
  uint8_t ip[IPV6_BYTES + UDP_BYTES], *udp = ip;
  const size_t udp_bytes = UDP_BYTES + udp_payload_bytes;
  const uint16_t ip_length = htobe16((uint16_t)(IPV4_BYTES + udp_bytes));
  const uint16_t udp_length = htobe16((uint16_t)udp_bytes);
  const uint16_t udp_fields[] = {htobe16(flow->sport), htobe16(flow->dport), udp_length};
  memset(ip, 0xFF, sizeof ip); /* also the fields that change in flight */
  if (flow->family == 4) {     /* TOS, TTL and checksum do */
    /* Identification, flags and fragment offset are ones here, unlike in RoCEv2: the kernel chooses
       them after the socket call, and a receiving socket cannot read them. This is our choice, as
       is the whole ICRC over IPv4. */
    ip[0] = 0x45; /* version 4, no options */
    memcpy(ip + 2, &ip_length, sizeof ip_length);
    ip[9] = PROTOCOL_UDP;
    memcpy(ip + 12, flow->src + 12, 4);
    memcpy(ip + 16, flow->dst + 12, 4);
    udp += IPV4_BYTES;
  } else {        /* traffic class, flow label and hop limit do */
    ip[0] = 0x6F; /* version 6 */
    memcpy(ip + 4, &udp_length, sizeof udp_length);
    ip[6] = PROTOCOL_UDP;
    memcpy(ip + 8, flow->src, 16);
    memcpy(ip + 24, flow->dst, 16);
    udp += IPV6_BYTES;
  }
  memcpy(udp, udp_fields, sizeof udp_fields); /* the checksum behind them changes in flight */
  return mrc_crc32(CRC_OF_ONES, ip, (size_t)(udp + UDP_BYTES - ip)) ^ VARIANT_OF_ONES;
}

/* The difference for another value of that byte: its bits run through the CRC, and from there the
   40 bits back to the beginning. */
static uint32_t variant(uint8_t value) {
  uint32_t difference = value;
  for (int bit = 0; bit < 8; bit++)
    difference = difference >> 1 ^ (difference & 1 ? POLYNOMIAL : 0);
  for (int bit = 0; bit < 8 * (BTH_VARIANT + 1); bit++)
    difference = difference << 1 ^ (difference >> 31 ? POLYNOMIAL << 1 | 1 : 0);
  return difference;
}

uint32_t mrc_icrc_packet(uint32_t crc, const uint8_t *bytes, size_t n) {
  mrc_assert(n > BTH_VARIANT);
  if (bytes[BTH_VARIANT] != 0) crc ^= variant(bytes[BTH_VARIANT]);
  return mrc_crc32(crc, bytes, n);
}
