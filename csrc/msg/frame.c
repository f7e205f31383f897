/* SPDX-License-Identifier: Apache-2.0 */
#include "msg/frame.h"

#include "core/base.h"

enum { HEAD = 24, WITH_IDS = 32 };

static size_t bare_bytes(uint8_t kind) {
  if (kind == MRC_MSG_EAGER) return HEAD;
  const bool with_place = kind == MRC_MSG_CTS || kind == MRC_MSG_FETCH || kind == MRC_MSG_CHANGE;
  return with_place ? MRC_MSG_RECORD_BYTES : WITH_IDS;
}

size_t mrc_msg_record_bytes(const struct mrc_msg_record *record) {
  const size_t bare = bare_bytes(record->kind);
  return record->kind == MRC_MSG_EAGER ? bare + ((record->bytes + 7) & ~(size_t)7) : bare;
}

size_t mrc_msg_encode(const struct mrc_msg_record *record, uint8_t *out) {
  mrc_put32(out, record->kind);
  mrc_put32(out + 4, record->space);
  mrc_put64(out + 8, record->tag);
  mrc_put64(out + 16, record->bytes);
  if (record->kind == MRC_MSG_EAGER) mrc_put32(out + 20, record->data);
  const size_t bytes = bare_bytes(record->kind);
  if (bytes >= WITH_IDS) {
    mrc_put32(out + HEAD, record->id);
    mrc_put32(out + HEAD + 4, record->kind == MRC_MSG_RTS ? record->data : record->other);
  }
  if (bytes > WITH_IDS) {
    mrc_put64(out + WITH_IDS, record->address);
    mrc_put32(out + WITH_IDS + 8, record->rkey);
    mrc_put32(out + WITH_IDS + 12, 0);
  }
  return bytes;
}

size_t mrc_msg_decode(const uint8_t *in, size_t n, struct mrc_msg_record *record) {
  *record = (struct mrc_msg_record){0};
  if (n < HEAD) return 0;
  const uint32_t kind = mrc_get32(in);
  if (kind < MRC_MSG_EAGER || kind > MRC_MSG_LAST_KIND) return 0;
  record->kind = (uint8_t)kind;
  record->space = mrc_get32(in + 4);
  record->tag = mrc_get64(in + 8);
  record->bytes = kind == MRC_MSG_EAGER ? mrc_get32(in + 16) : mrc_get64(in + 16);
  if (kind == MRC_MSG_EAGER) record->data = mrc_get32(in + 20);
  if (kind == MRC_MSG_EAGER && record->bytes > n - HEAD) return 0;
  const size_t bytes = mrc_msg_record_bytes(record);
  if (bytes > n) return 0;
  if (kind != MRC_MSG_EAGER) {
    record->id = mrc_get32(in + HEAD);
    *(kind == MRC_MSG_RTS ? &record->data : &record->other) = mrc_get32(in + HEAD + 4);
  }
  if (bytes > WITH_IDS && kind != MRC_MSG_EAGER) {
    record->address = mrc_get64(in + WITH_IDS);
    record->rkey = mrc_get32(in + WITH_IDS + 8);
  }
  return bytes;
}
