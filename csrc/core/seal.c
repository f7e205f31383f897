/* SPDX-License-Identifier: Apache-2.0 */
#include "core/seal.h"

#include <endian.h>
#include <string.h>

#include "core/base.h"

/* ---- seals ---- */

enum {
  N_KEYS = 5,
  LAST_ANSWERS = 1 << 20 /* packets that may follow the last data packet */
};

/* Its first MRC_NONCE_BYTES count. */
struct nonce {
  uint8_t bytes[MRC_IV_BYTES];
};

/* ---- keys ---- */

static struct mrc_part label(const char *text) {
  return (struct mrc_part){(const uint8_t *)text, strlen(text)};
}

/* The secret of the epoch after; the one that it came from is gone afterwards. */
static void skip_epoch(const struct mrc_aead *aead, struct mrc_seal_chain *chain) {
  uint8_t made[MRC_DIGEST_BYTES];
  mrc_hkdf_expand(aead, chain->secret, label("mrc next"), made);
  memcpy(chain->secret, made, sizeof chain->secret);
  chain->epochs++;
  explicit_bzero(made, sizeof made);
}

/* The key of the chain's next epoch. */
static void next_epoch(const struct mrc_aead *aead, struct mrc_seal_chain *chain,
                       struct mrc_seal_key *key) {
  uint8_t made[MRC_DIGEST_BYTES];
  mrc_hkdf_expand(aead, chain->secret, label("mrc key"), made);
  aead->set(key->key, made);
  mrc_hkdf_expand(aead, chain->secret, label("mrc iv"), made);
  memcpy(key->iv, made, MRC_NONCE_BYTES);
  explicit_bzero(made, sizeof made);
  skip_epoch(aead, chain);
}

static size_t bytes_of(const struct mrc_aead *aead) {
  return (sizeof(struct mrc_seal) + 63) / 64 * 64 + N_KEYS * aead->key_bytes;
}

struct mrc_seal *mrc_seal_new(const struct mrc_aead *aead, uint32_t qpn,
                              const struct mrc_seal_attr *attr, uint32_t epoch_bits) {
  struct mrc_seal *seal = aead->reserve(bytes_of(aead));
  if (seal == NULL) return NULL;
  seal->aead = aead;
  seal->mode = (uint8_t)attr->mode;
  seal->epoch_bits = (uint8_t)epoch_bits;
  seal->qpn = qpn;
  seal->peer_qpn = attr->peer_qpn;
  memcpy(seal->out.secret, attr->send, sizeof seal->out.secret);
  memcpy(seal->in.secret, attr->receive, sizeof seal->in.secret);
  uint8_t *keys = (uint8_t *)seal + bytes_of(aead) - N_KEYS * aead->key_bytes;
  seal->out_key.key = keys;
  next_epoch(aead, &seal->out, &seal->out_key);
  for (int i = 0; i < 3; i++)
    seal->in_keys[i].key = keys + (size_t)(i + 1) * aead->key_bytes;
  seal->later_key.key = keys + (size_t)4 * aead->key_bytes;
  next_epoch(aead, &seal->in, &seal->in_keys[0]);
  next_epoch(aead, &seal->in, &seal->in_keys[1]);
  return seal;
}

void mrc_seal_free(struct mrc_seal *seal) {
  if (seal == NULL) return;
  const struct mrc_aead *aead = seal->aead;
  aead->unset(seal->out_key.key);
  for (int i = 0; i < 3; i++)
    aead->unset(seal->in_keys[i].key);
  aead->unset(seal->later_key.key);
  aead->release(seal, bytes_of(aead));
}

/* ---- the seal on the wire ---- */

void mrc_seal_encode(const struct mrc_seal_stamp *stamp, uint8_t out[MRC_SEAL_BYTES]) {
  const uint32_t mode_qpn = htobe32((uint32_t)stamp->mode << 24 | stamp->qpn);
  const uint64_t counter = htobe64(stamp->counter);
  memcpy(out, &mode_qpn, sizeof mode_qpn);
  memcpy(out + sizeof mode_qpn, &counter, sizeof counter);
}

struct mrc_seal_stamp mrc_seal_decode(const uint8_t bytes[MRC_SEAL_BYTES]) {
  uint32_t mode_qpn;
  uint64_t counter;
  memcpy(&mode_qpn, bytes, sizeof mode_qpn);
  memcpy(&counter, bytes + sizeof mode_qpn, sizeof counter);
  mode_qpn = be32toh(mode_qpn);
  return (struct mrc_seal_stamp){
      .mode = (uint8_t)(mode_qpn >> 24), .qpn = mode_qpn & 0xFFFFFF, .counter = be64toh(counter)};
}

typedef uint64_t words __attribute__((vector_size(16)));

/* The IV, changed by the EV and the counter: a wrong EV or counter makes a wrong tag. Stored in one
   go, because it is read at once: the CPU could not forward several stores to one load, and would
   wait until the payload before them is in the cache. */
static struct nonce nonce_of(const struct mrc_seal_key *key, uint32_t ev, uint64_t counter) {
  const uint64_t count = htobe64(counter);
  struct nonce nonce;
  words iv;
  memcpy(&iv, key->iv, sizeof iv);
  iv ^= (words){htobe32(ev) | count << 32, count >> 32};
  memcpy(nonce.bytes, &iv, sizeof iv);
  return nonce;
}

/* ---- out ---- */

bool mrc_seal_is_spent(const struct mrc_seal *seal) {
  return seal->sent >= MRC_SEAL_COUNTERS - LAST_ANSWERS;
}

/* Encrypts what follows the clear part of the header. In one pass from the memory region to the
   staged packet, unless the text begins in the header or ends in padding. */
static void encrypt(const struct mrc_seal *seal, const struct mrc_sealing *packet,
                    const uint8_t *nonce, uint8_t *staged, uint8_t *tag) {
  const uint32_t clear = packet->header_bytes - packet->imm_bytes;
  const size_t n = packet->imm_bytes + packet->payload_bytes + packet->pad;
  uint8_t *text = staged + clear;
  const uint8_t *from = packet->payload;
  memcpy(staged, packet->header, packet->header_bytes);
  if (packet->imm_bytes > 0 || packet->pad > 0 || from == NULL) {
    uint8_t *to = staged + packet->header_bytes;
    if (packet->payload_bytes > 0) memcpy(to, packet->payload, packet->payload_bytes);
    memset(to + packet->payload_bytes, 0, packet->pad);
    from = text;
  }
  seal->aead->seal(seal->out_key.key, nonce, (struct mrc_part){packet->header, clear},
                   (struct mrc_part){from, n}, text, tag);
}

/* The payload is read before it is copied, so that the copy finds it in the cache. */
static void authenticate(const struct mrc_seal *seal, const struct mrc_sealing *packet,
                         const uint8_t *nonce, const uint8_t *trailer, uint8_t *staged,
                         uint8_t *tag) {
  const struct mrc_part parts[3] = {{packet->header, packet->header_bytes},
                                    {packet->payload, packet->payload_bytes},
                                    {trailer, packet->pad + MRC_SEAL_BYTES}};
  seal->aead->mac(seal->out_key.key, nonce, parts, tag);
  if (staged == NULL) return;
  memcpy(staged, packet->header, packet->header_bytes);
  if (packet->payload_bytes > 0)
    memcpy(staged + packet->header_bytes, packet->payload, packet->payload_bytes);
  memcpy(staged + packet->header_bytes + packet->payload_bytes, trailer, packet->pad);
}

void mrc_seal_close(struct mrc_seal *seal, const struct mrc_sealing *packet, uint8_t *trailer,
                    uint8_t *staged) {
  mrc_assert(seal->sent < MRC_SEAL_COUNTERS);
  const uint64_t counter = seal->sent++;
  if (counter >> seal->epoch_bits == seal->out.epochs)
    next_epoch(seal->aead, &seal->out, &seal->out_key);
  const struct nonce nonce = nonce_of(&seal->out_key, packet->ev, counter);
  const struct mrc_seal_stamp stamp = {
      .mode = seal->mode, .qpn = seal->peer_qpn, .counter = counter};
  memset(trailer, 0, packet->pad);
  mrc_seal_encode(&stamp, trailer + packet->pad);
  uint8_t *tag = trailer + packet->pad + MRC_SEAL_BYTES;
  if (seal->mode == MRC_SEAL_AEAD)
    encrypt(seal, packet, nonce.bytes, staged, tag);
  else
    authenticate(seal, packet, nonce.bytes, trailer, staged, tag);
  if (staged != NULL)
    memcpy(staged + packet->header_bytes + packet->payload_bytes + packet->pad,
           trailer + packet->pad, MRC_SEALED_BYTES);
}

/* ---- in ---- */

/* The key for this counter, or NULL: too old, of an epoch that is over, or of one to come. */
static const struct mrc_seal_key *key_for(const struct mrc_seal *seal, uint64_t counter) {
  if (counter >= MRC_SEAL_COUNTERS || counter + MRC_SEAL_REPLAY < seal->newest) return NULL;
  const uint64_t epoch = counter >> seal->epoch_bits;
  if (epoch >= seal->in.epochs || epoch + 3 < seal->in.epochs || epoch < seal->oldest) return NULL;
  return &seal->in_keys[epoch % 3];
}

/* The key of a later epoch, and its chain; NULL: it cannot be, or it is too soon to look again. */
static const struct mrc_seal_key *look_ahead(struct mrc_seal *seal, uint64_t counter,
                                             struct mrc_seal_chain *chain, uint64_t now_ns) {
  const uint64_t epoch = counter >> seal->epoch_bits;
  if (counter >= MRC_SEAL_COUNTERS || epoch < seal->in.epochs || now_ns < seal->look_ns)
    return NULL;
  const uint64_t packets = (now_ns - seal->opened_ns) / MRC_SEAL_PACKET_NS;
  const uint64_t most = mrc_min_u64((packets >> seal->epoch_bits) + 1, MRC_SEAL_MOST_EPOCHS);
  if (epoch - seal->in.epochs >= most) return NULL;
  seal->look_ns = now_ns + MRC_SEAL_LOOK_NS;
  *chain = seal->in;
  while (chain->epochs < epoch)
    skip_epoch(seal->aead, chain);
  next_epoch(seal->aead, chain, &seal->later_key);
  return &seal->later_key;
}

int mrc_seal_open(struct mrc_seal *seal, uint8_t *packet, size_t bytes, uint32_t ev,
                  struct mrc_wire *wire, uint64_t *counter, uint64_t now_ns) {
  const size_t header = (size_t)(wire->payload - packet), n = bytes - MRC_TAG_BYTES;
  if (bytes < header + MRC_SEALED_BYTES) return MRC_DROP_SHORT; /* trimmed */
  const struct mrc_seal_stamp says = mrc_seal_decode(packet + n - MRC_SEAL_BYTES);
  if (says.mode != seal->mode || says.qpn != seal->qpn) return MRC_DROP_SEAL;
  if (seal->opened_ns == 0) seal->opened_ns = now_ns;
  const struct mrc_seal_key *key = key_for(seal, says.counter);
  struct mrc_seal_chain later;
  if (key == NULL) key = look_ahead(seal, says.counter, &later, now_ns);
  if (key == NULL) return MRC_DROP_REPLAY;
  const struct nonce nonce = nonce_of(key, ev, says.counter);
  const bool imm = mrc_opcode_is_data(wire->opcode) && mrc_opcode_has_imm(wire->opcode);
  const size_t clear = header - (imm ? MRC_IMM_BYTES : 0);
  const bool right =
      seal->mode == MRC_SEAL_AUTH
          ? seal->aead->check(key->key, nonce.bytes, (struct mrc_part){packet, n}, packet + n)
          : seal->aead->open(key->key, nonce.bytes, (struct mrc_part){packet, clear},
                             packet + clear, n - MRC_SEAL_BYTES - clear, packet + n);
  if (key == &seal->later_key) {
    if (right) { /* The keys of the epochs between are never derived: their places hold others. */
      struct mrc_seal_key *place = &seal->in_keys[(later.epochs - 1) % 3];
      const struct mrc_seal_key other = *place;
      *place = seal->later_key;
      seal->later_key = other;
      seal->oldest = later.epochs - 1;
      seal->in = later;
    }
    explicit_bzero(&later, sizeof later);
  }
  if (!right) return MRC_DROP_SEAL;
  if (imm) memcpy(&wire->imm, wire->payload - MRC_IMM_BYTES, MRC_IMM_BYTES);
  if (imm) wire->imm = be32toh(wire->imm);
  *counter = says.counter;
  if (says.counter < seal->newest) return MRC_DROP_NONE; /* tells nothing of when the sender sent */
  seal->opened_ns = now_ns;
  seal->newest = says.counter + 1;
  if ((says.counter >> seal->epoch_bits) + 1 == seal->in.epochs) /* the epoch begins */
    next_epoch(seal->aead, &seal->in, &seal->in_keys[seal->in.epochs % 3]);
  return MRC_DROP_NONE;
}
