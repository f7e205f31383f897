/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include <errno.h>

#include "check.h"

TEST(test_put__refuses_twice_and_full) {
  struct mrc_keymap map;
  CHECK_EQ(mrc_keymap_init(&map, 2), 0);
  CHECK_EQ(mrc_keymap_put(&map, 7, 70), 0);
  CHECK_EQ(mrc_keymap_put(&map, 7, 71), -EEXIST);
  CHECK_EQ(mrc_keymap_put(&map, 0, 0), 0);
  CHECK_EQ(mrc_keymap_put(&map, 9, 90), -ENOSPC);
  CHECK_EQ(mrc_keymap_get(&map, 7), 70);
  CHECK_EQ(mrc_keymap_get(&map, 0), 0);
  CHECK_EQ(mrc_keymap_get(&map, 9), MRC_KEYMAP_NONE);
  mrc_keymap_remove(&map, 0);
  CHECK_EQ(mrc_keymap_put(&map, 9, 90), 0);
  mrc_keymap_free(&map);
}

/* Random puts and removes, compared with an array. Keys are few, so runs of full cells are long. */
TEST(test_remove__keeps_every_other_key) {
  enum { KEYS = 64, CAPACITY = 32, STEPS = 20000 };
  struct mrc_keymap map;
  uint32_t model[KEYS];
  uint32_t count = 0;
  struct mrc_prng prng = {.state = 1};
  CHECK_EQ(mrc_keymap_init(&map, CAPACITY), 0);
  for (uint32_t key = 0; key < KEYS; key++)
    model[key] = MRC_KEYMAP_NONE;
  for (uint32_t step = 0; step < STEPS; step++) {
    const uint32_t key = mrc_prng_below(&prng, KEYS);
    if (model[key] != MRC_KEYMAP_NONE) {
      mrc_keymap_remove(&map, key);
      model[key] = MRC_KEYMAP_NONE;
      count--;
    } else if (count < CAPACITY) {
      CHECK_EQ(mrc_keymap_put(&map, key, step), 0);
      model[key] = step;
      count++;
    }
    for (uint32_t k = 0; k < KEYS; k++)
      CHECK_EQ(mrc_keymap_get(&map, k), model[k]);
  }
  mrc_keymap_free(&map);
}
