/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that share the items of a job. The caller of mrc_crew_each is one of them; between two
   jobs the others wait. */
#pragma once

#include <stdint.h>

typedef void (*mrc_crew_work)(void *context, uint32_t item);

struct mrc_crew;

/* With one thread, the caller does all the work. */
struct mrc_crew *mrc_crew_create(uint32_t threads);
void mrc_crew_destroy(struct mrc_crew *crew);
/* Calls `work` once for each item from 0 to n - 1, and returns when all are done. What a job has
   written, the next one reads. */
void mrc_crew_each(struct mrc_crew *crew, mrc_crew_work work, void *context, uint32_t n);
