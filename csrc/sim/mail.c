/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/mail.h"

#include <stdlib.h>

#include "virtual/memory.h"

void mrc_mailbox_put(struct mrc_mailbox *box, struct mrc_mail mail) {
  box->at = mrc_grow(box->at, box->n, &box->capacity, sizeof(*box->at));
  box->at[box->n++] = mail;
}

void mrc_mailbox_free(struct mrc_mailbox *box) { free(box->at); }
