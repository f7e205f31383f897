/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed packets of one QP: keys and counters of both directions.

   A sealed packet ends in a seal of 12 bytes and a tag of 16 in place of the ICRC. The seal holds
   the mode, the QPN of the receiver, which names the key, and a counter. The nonce is the epoch's
   IV XOR (EV, 4 bytes; counter, 8 bytes; both big-endian). Every packet that is built takes the
   next counter, also a retransmission and also if the kernel then refuses the packet: so no nonce
   is used twice. The tag covers the headers, and EV and counter by the nonce. MRC_SEAL_AEAD
   encrypts immediate, payload and padding; the other headers stay readable for switches and for who
   debugs a network. With MRC_SEAL_AUTH the tag covers everything before it.

   2^epoch_bits counters are an epoch, and each epoch has its own key: HKDF of the secret before,
   which is then forgotten. The receiver holds the keys of the newest epoch, the one before and the
   next one. If all packets of whole epochs get lost, the sender is further on than these keys. The
   receiver then derives the key of the epoch that a packet names, and keeps it if the packet is
   authentic; it refuses all epochs before that one. Anybody can name an epoch. So the receiver
   derives such a key a few times a second at most, and none that the sender cannot have come to
   since the packet with the highest counter.

   Replays: a counter more than MRC_SEAL_REPLAY behind the highest one is refused. Within that range
   a data packet is refused as a duplicate PSN, and acknowledgements are idempotent. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/hkdf.h"
#include "core/wire.h"
#include "mrc.h"

/* ---- seals ---- */

#define MRC_SEAL_COUNTERS ((uint64_t)1 << 48) /* of one direction of a QP */
#define MRC_SEAL_EPOCH_BITS 21                /* 18 GB of full packets, a quarter of QUIC's limit */
#define MRC_IV_BYTES 16                       /* of a nonce; the rest is 0 */
#define MRC_SEAL_LOOK_NS 250000000ull         /* between two looks at a later epoch */
#define MRC_SEAL_PACKET_NS 50                 /* a sender seals no packet faster */
#define MRC_SEAL_MOST_EPOCHS 1024             /* that a receiver may be behind */
#define MRC_SEAL_REPLAY ((uint64_t)1 << 20)   /* a lap of PSNs is 2^24 */

struct mrc_seal_key {
  void *key; /* expanded */
  uint8_t iv[MRC_IV_BYTES];
};

/* A direction: the secret of the next epoch, which every later one follows from. */
struct mrc_seal_chain {
  uint8_t secret[MRC_SECRET_BYTES];
  uint64_t epochs; /* keys derived */
};

/* It lies in memory of mrc_aead.reserve, followed by the expanded keys. */
struct mrc_seal {
  const struct mrc_aead *aead;
  uint8_t mode; /* enum mrc_seal_mode, not NONE */
  uint8_t epoch_bits;
  uint32_t qpn, peer_qpn;
  uint64_t sent;      /* packets numbered; the next counter */
  uint64_t newest;    /* 1 + highest counter opened, 0: none */
  uint64_t status;    /* 1 + counter of the last port status taken */
  uint64_t oldest;    /* the first epoch since the last one that was skipped */
  uint64_t opened_ns; /* the packet with the highest counter, or the first one of all */
  uint64_t look_ns;   /* no look at a later epoch before */
  struct mrc_seal_chain out, in;
  struct mrc_seal_key out_key;
  struct mrc_seal_key in_keys[3]; /* by epoch modulo 3 */
  struct mrc_seal_key later_key;  /* of a look at a later epoch */
};

/* A packet that is being sealed. */
struct mrc_sealing {
  const uint8_t *header;
  uint32_t header_bytes;
  uint32_t imm_bytes; /* at the end of the header */
  const uint8_t *payload;
  uint32_t payload_bytes;
  uint32_t pad;
  uint32_t ev;
};

/* The seal on the wire. */
struct mrc_seal_stamp {
  uint8_t mode;     /* enum mrc_seal_mode, and a version of 0 in the high bits */
  uint32_t qpn;     /* of the receiver: whose key */
  uint64_t counter; /* 48 bits */
};

void mrc_seal_encode(const struct mrc_seal_stamp *stamp, uint8_t out[MRC_SEAL_BYTES]);
struct mrc_seal_stamp mrc_seal_decode(const uint8_t bytes[MRC_SEAL_BYTES]);

/* NULL without memory. */
struct mrc_seal *mrc_seal_new(const struct mrc_aead *aead, uint32_t qpn,
                              const struct mrc_seal_attr *attr, uint32_t epoch_bits);
void mrc_seal_free(struct mrc_seal *seal);
/* Whether all counters are used up, so that nothing more may be sent. */
bool mrc_seal_is_spent(const struct mrc_seal *seal);
/* Numbers and seals a packet. Writes pad, seal and tag to `trailer`, and the whole packet to
   `staged`, which may be NULL unless the mode is MRC_SEAL_AEAD. */
void mrc_seal_close(struct mrc_seal *seal, const struct mrc_sealing *packet, uint8_t *trailer,
                    uint8_t *staged);
/* Checks a received packet that `wire` was decoded from, and decrypts it in place. Returns 0 or a
   drop reason. `counter` is that of a good packet. */
int mrc_seal_open(struct mrc_seal *seal, uint8_t *packet, size_t bytes, uint32_t ev,
                  struct mrc_wire *wire, uint64_t *counter, uint64_t now_ns);
