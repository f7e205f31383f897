/* SPDX-License-Identifier: Apache-2.0 */
#include "core/services.h"

#include <errno.h>

#include "check.h"

TEST(test_add__refuses) {
  static const struct {
    uint64_t address, bytes;
    uint32_t key, access;
    int error;
  } rows[] = {
      {0x1000, 0, 1, MRC_ACCESS_LOCAL_READ, -EINVAL},
      {0, 16, 1, MRC_ACCESS_LOCAL_READ, -EINVAL},
      {UINT64_MAX - 15, 17, 1, MRC_ACCESS_LOCAL_READ, -EINVAL}, /* wraps around */
      {0x1000, 16, 1, 0, -EINVAL},
      {0x1000, 16, 1, 8, -EINVAL}, /* no such right */
      {0x1000, 16, 1, MRC_ACCESS_LOCAL_READ, 0},
      {0x2000, 16, 1, MRC_ACCESS_LOCAL_READ, -EEXIST},
      {0x1000, 16, 0, MRC_ACCESS_REMOTE_WRITE, 0}, /* the same memory twice, and key 0, are fine */
      {0x3000, 16, 3, MRC_ACCESS_LOCAL_READ, -ENOSPC},
  };
  struct mrc_mr_table table;
  CHECK_EQ(mrc_mr_table_init(&table, 2), 0);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(
        mrc_mr_table_add(&table, rows[i].address, rows[i].bytes, rows[i].key, rows[i].access, 0),
        rows[i].error);
  }
  mrc_mr_table_free(&table);
}

/* Key 7 opens [0x1000, 0x1100) for remote writes. */
TEST(test_find__bounds_and_rights) {
  static const struct {
    uint32_t key;
    uint64_t address, bytes;
    uint32_t access;
    bool found;
  } rows[] = {
      {7, 0x1000, 0x100, MRC_ACCESS_REMOTE_WRITE, true},
      {7, 0x10FF, 1, MRC_ACCESS_REMOTE_WRITE, true},
      {7, 0x1100, 0, MRC_ACCESS_REMOTE_WRITE, true}, /* no bytes at the very end */
      {7, 0x1101, 0, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x10FF, 2, MRC_ACCESS_REMOTE_WRITE, false}, /* one byte too far */
      {7, 0x0FFF, 1, MRC_ACCESS_REMOTE_WRITE, false}, /* one byte too early */
      {7, 0x0FFF, 0x102, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x1000, 0x101, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x1001, UINT64_MAX, MRC_ACCESS_REMOTE_WRITE, false}, /* the sum wraps */
      {7, UINT64_MAX, 0x1101, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x1000, 0x100, MRC_ACCESS_LOCAL_READ, false},
      {7, 0x1000, 0x100, MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE, false},
      {8, 0x1000, 0x100, MRC_ACCESS_REMOTE_WRITE, false}, /* no such key */
  };
  struct mrc_mr_table table;
  CHECK_EQ(mrc_mr_table_init(&table, 4), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 0x100, 7, MRC_ACCESS_REMOTE_WRITE, 0), 0);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(
        mrc_mr_find(&table, rows[i].key, rows[i].address, rows[i].bytes, rows[i].access, 0) != NULL,
        rows[i].found);
  }
  mrc_mr_table_free(&table);
}

/* An MR without a domain is open to all, one with a domain to those of the same. */
TEST(test_find__domain) {
  static const struct {
    uint32_t domain, other;
    bool found;
  } rows[] = {{0, 0, true}, {0, 5, true}, {5, 5, true}, {5, 0, false}, {5, 6, false}};
  struct mrc_mr_table table;
  CHECK_EQ(mrc_mr_table_init(&table, 1), 0);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 16, 7, MRC_ACCESS_LOCAL_READ, rows[i].domain), 0);
    CHECK_EQ(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, rows[i].other) != NULL,
             rows[i].found);
    CHECK_EQ(mrc_mr_table_remove(&table, 7), 0);
  }
  mrc_mr_table_free(&table);
}

TEST(test_remove__refuses_while_in_use_and_frees_the_entry) {
  struct mrc_mr_table table;
  CHECK_EQ(mrc_mr_table_init(&table, 1), 0);
  const uint32_t all = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE | MRC_ACCESS_REMOTE_READ;
  CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 16, 7, all, 0), 0);
  struct mrc_mr *mr = mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, 0);
  CHECK(mr != NULL);
  mr->refs = 1;
  CHECK_EQ(mrc_mr_table_remove(&table, 7), -EBUSY);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_REMOTE_WRITE, 0) == NULL);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_REMOTE_READ, 0) == NULL);
  mr->refs = 0;
  CHECK_EQ(mrc_mr_table_remove(&table, 8), -ENOENT);
  CHECK_EQ(mrc_mr_table_remove(&table, 7), 0);
  CHECK_EQ(mrc_mr_table_remove(&table, 7), -ENOENT);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, 0) == NULL);
  CHECK_EQ(mrc_mr_table_add(&table, 0x2000, 16, 9, MRC_ACCESS_LOCAL_READ, 0), 0);
  mrc_mr_table_free(&table);
}

/* A reused entry is not given away twice, so no write reaches another live region. */
TEST(test_remove__keeps_the_others) {
  struct mrc_mr_table table;
  CHECK_EQ(mrc_mr_table_init(&table, 3), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 16, 7, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x2000, 16, 8, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK_EQ(mrc_mr_table_remove(&table, 8), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x3000, 16, 9, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x4000, 16, 10, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, 0) != NULL);
  CHECK(mrc_mr_find(&table, 9, 0x3000, 16, MRC_ACCESS_LOCAL_READ, 0) != NULL);
  mrc_mr_table_free(&table);
}
