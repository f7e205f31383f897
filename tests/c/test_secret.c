/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include "check.h"

/* The vector of SipHash's authors for eight bytes; OpenSSL computes the same. */
TEST(test_hash__reference) {
  const uint64_t key[2] = {0x0706050403020100, 0x0F0E0D0C0B0A0908};
  CHECK_EQ(mrc_secret_hash(key, 0x0706050403020100), 0x93F5F5799A932462);
}

TEST(test_next__the_seed_decides) {
  struct mrc_secret one = {.key = {1}}, same = {.key = {1}}, other = {.key = {2}};
  const uint64_t first = mrc_secret_next(&one), second = mrc_secret_next(&one);
  CHECK_EQ(mrc_secret_next(&same), first);
  CHECK_EQ(mrc_secret_next(&same), second);
  CHECK(first != second && mrc_secret_next(&other) != first);
}
