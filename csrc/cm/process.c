/* SPDX-License-Identifier: Apache-2.0 */
#include "cm/process.h"

#include "program/owner.h"

struct cm_process cm_process = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .link.fd = -1};

/* Only the name for lines on stderr: verbs and their engine are libmrc's. */
const struct pr_owner pr_owner = {.name = "libmrc-cm"};

static struct cm_id **place_of(uint32_t number) { return &cm_process.ids[number % CM_PLACES]; }

struct cm_id *cm_find(uint32_t number) {
  struct cm_id *id = *place_of(number);
  while (id && id->number != number)
    id = id->next;
  return id;
}

void cm_add(struct cm_id *id) {
  struct cm_id **place = place_of(id->number);
  id->next = *place;
  *place = id;
}

void cm_remove(struct cm_id *id) {
  struct cm_id **place = place_of(id->number);
  while (*place != id)
    place = &(*place)->next;
  *place = id->next;
}
