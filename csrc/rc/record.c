/* SPDX-License-Identifier: Apache-2.0 */
#include "rc/record.h"

#include "core/base.h"

enum { HEAD = 8 };

void mrc_rc_put_header(const struct mrc_rc_header *header, uint8_t *out) {
  mrc_put32(out, header->read);
  mrc_put32(out + 4, header->granted);
  mrc_put32(out + 8, header->wanted);
  mrc_put32(out + 12, 0);
}

struct mrc_rc_header mrc_rc_get_header(const uint8_t *in) {
  return (struct mrc_rc_header){
      .read = mrc_get32(in), .granted = mrc_get32(in + 4), .wanted = mrc_get32(in + 8)};
}

size_t mrc_rc_fields(uint8_t kind) {
  switch ((enum mrc_rc_kind)kind) {
    case MRC_RC_SEND:
    case MRC_RC_WROTE:
    case MRC_RC_VALUE:
      return HEAD + 8;
    case MRC_RC_READ:
      return HEAD + 16;
    case MRC_RC_ATOMIC:
      return HEAD + 32;
    case MRC_RC_MORE:
    case MRC_RC_DATA:
    case MRC_RC_REFUSED:
    case MRC_RC_FAILED:
      break;
  }
  return HEAD;
}

size_t mrc_rc_encode(const struct mrc_rc_record *record, uint8_t *out) {
  const uint8_t kind = record->kind;
  out[0] = kind;
  out[1] = record->flags;
  out[2] = record->status;
  out[3] = 0;
  mrc_put32(out + 4, record->bytes);
  if (kind == MRC_RC_SEND || kind == MRC_RC_WROTE) {
    mrc_put32(out + HEAD, record->total);
    mrc_put32(out + HEAD + 4, record->imm);
  } else if (kind == MRC_RC_VALUE) {
    mrc_put64(out + HEAD, record->value);
  } else if (kind == MRC_RC_READ || kind == MRC_RC_ATOMIC) {
    mrc_put64(out + HEAD, record->va);
    mrc_put32(out + HEAD + 8, record->rkey);
    mrc_put32(out + HEAD + 12, kind == MRC_RC_READ ? record->total : record->operation);
  }
  if (kind == MRC_RC_ATOMIC) {
    mrc_put64(out + HEAD + 16, record->value);
    mrc_put64(out + HEAD + 24, record->swap);
  }
  return mrc_rc_fields(kind);
}

size_t mrc_rc_decode(const uint8_t *in, size_t n, struct mrc_rc_record *record) {
  *record = (struct mrc_rc_record){0};
  if (n < HEAD || in[0] < MRC_RC_SEND || in[0] > MRC_RC_LAST_KIND) return 0;
  const uint8_t kind = record->kind = in[0];
  record->flags = in[1];
  record->status = in[2];
  record->bytes = mrc_get32(in + 4);
  const size_t bytes = mrc_rc_fields(kind) + (((size_t)record->bytes + 7) & ~(size_t)7);
  const bool has_bytes = kind == MRC_RC_SEND || kind == MRC_RC_MORE || kind == MRC_RC_DATA;
  if (bytes > n || (record->bytes > 0 && !has_bytes)) return 0;
  if (kind == MRC_RC_SEND || kind == MRC_RC_WROTE) {
    record->total = mrc_get32(in + HEAD);
    record->imm = mrc_get32(in + HEAD + 4);
  } else if (kind == MRC_RC_VALUE) {
    record->value = mrc_get64(in + HEAD);
  } else if (kind == MRC_RC_READ || kind == MRC_RC_ATOMIC) {
    record->va = mrc_get64(in + HEAD);
    record->rkey = mrc_get32(in + HEAD + 8);
    *(kind == MRC_RC_READ ? &record->total : &record->operation) = mrc_get32(in + HEAD + 12);
  }
  if (kind == MRC_RC_ATOMIC) {
    record->value = mrc_get64(in + HEAD + 16);
    record->swap = mrc_get64(in + HEAD + 24);
    if (record->operation > MRC_RC_FETCH_ADD) return 0;
  }
  return bytes;
}
