/* SPDX-License-Identifier: Apache-2.0 */
/* What the modules of csrc/msg share: operations, peers, and what waits to be matched. */
#pragma once

#include "core/base.h"
#include "msg/frame.h"
#include "msg/types.h"

/* A hash table of list nodes. It knows neither the members nor their keys: the caller hashes, and
   compares the members of one chain. A member leaves by mrc_node_leave. */

struct mrc_msg_chains {
  struct mrc_node *heads;
  uint32_t mask; /* number of chains - 1 */
};

/* At least n chains. 0 or -ENOMEM. */
int mrc_msg_chains_init(struct mrc_msg_chains *chains, uint32_t n) MRC_MUST_CHECK;
void mrc_msg_chains_free(struct mrc_msg_chains *chains);

/* The chain of a key with this hash. */
static inline struct mrc_node *mrc_msg_chain(const struct mrc_msg_chains *chains, uint64_t hash) {
  return &chains->heads[hash & chains->mask];
}

enum {
  MRC_MSG_CHUNK = 1 << 20,     /* a longer message is several writes, between which frames go */
  MRC_MSG_CHUNKS_AT_ONCE = 16, /* writes of messages that a QP has at once */
  /* A peer sends another FETCH when an answer has come, before the answer is acknowledged. */
  MRC_MSG_FETCHES = MRC_MSG_READS + MRC_MSG_CHUNKS_AT_ONCE,
  MRC_MSG_HEAP_OVERHEAD = 64 /* what an entry costs beside its bytes, at least */
};

enum mrc_msg_state {
  MRC_MSG_FREE,
  /* sends */
  MRC_MSG_QUEUED,          /* eager: waits for a frame */
  MRC_MSG_WAITING,         /* announced, or about to be: waits for a CTS */
  MRC_MSG_WITHDRAWN_ASKED, /* as before, but cancelled: waits for the answer, or a CTS */
  MRC_MSG_WRITING,         /* has a CTS, or is a WRITE */
  MRC_MSG_SENT,            /* eager, in a frame that the peer has not acknowledged */
  /* receives */
  MRC_MSG_POSTED,     /* matches nothing yet */
  MRC_MSG_ASKED,      /* the same, and a CTS says where to write */
  MRC_MSG_CANCELLING, /* the same, but cancelled: waits for the answer, or a message */
  MRC_MSG_MATCHED,    /* announced: waits for the data */
  MRC_MSG_SPENT,      /* has ended, but messages are on their way to parts of its memory */
  /* READs, ATOMICs */
  MRC_MSG_READING /* its FETCH or CHANGE has left, or is about to */
};

struct mrc_msg_op {
  struct mrc_node node;     /* in `by_tag` or `posted`, or in a list of the peer */
  struct mrc_node out;      /* in `out` of the peer: a record of it is to be sent */
  struct mrc_node owner;    /* in `operations` of the peer, or of none */
  struct mrc_node named;    /* in `by_cookie` of the module */
  struct mrc_msg_post post; /* RECV with `least`: what is left of its memory */
  struct mrc_msg_op *whole; /* of this part of a RECV with `least`; or NULL */
  uint64_t turn;            /* counts the posts of the module */
  uint64_t hash;    /* of peer, space and tag; not of an eager send, which waits for nothing */
  uint64_t bytes;   /* of the message */
  uint64_t begun;   /* bytes for which writes were posted */
  uint64_t address; /* SEND, WRITE: at the peer */
  uint32_t rkey;
  uint32_t key;    /* of its memory region; 0: none */
  uint32_t id;     /* index and, above, how often the entry was used; never 0 */
  uint32_t peer;   /* or MRC_MSG_ANY */
  uint32_t theirs; /* id of the peer's operation; SENT: number of the frame */
  uint32_t writes; /* posted and not completed */
  uint32_t parts;  /* RECV with `least`: messages on their way to parts of its memory */
  int32_t result;
  uint8_t state;  /* enum mrc_msg_state */
  uint8_t record; /* enum mrc_msg_record_kind: what is in `out` */
  bool announced; /* SEND: its RTS has left, or there is none */
  bool fetched;   /* in `fetches` */
  bool arrived;   /* RECV: the data are in place, but the RTS has not been read */
};

/* Something of a peer that matches no operation yet: an eager message or RTS, or a CTS. */
struct mrc_msg_entry {
  struct mrc_node node;  /* in `unexpected`, `claimed` or `requests` of the peer */
  struct mrc_node all;   /* message: in `unexpected` or `claimed` of the module */
  struct mrc_node named; /* RTS, CTS: in `by_id` of the peer */
  struct mrc_node same;  /* in `by_tag` of the peer; not if claimed */
  struct mrc_msg_record record;
  uint64_t claim; /* cookie of the PEEK that has claimed it */
  uint32_t peer;
  uint8_t bytes[]; /* of an eager message */
};

/* CANCELLED and so on, that waits for a frame. */
struct mrc_msg_answer {
  uint64_t bytes; /* as in its record */
  uint32_t id;
  uint8_t kind;
};

struct mrc_msg_peer {
  struct mrc_node busy;    /* in `busy` of the module: something may be posted */
  struct mrc_node stalled; /* in `stalled` of the module: a frame waits for room in the heap */
  uint32_t number;
  uint32_t qpn;
  int32_t error; /* of the QP, negative; 0: none */
  bool connected;
  bool asked; /* a credit is to be sent, due or not */
  struct mrc_msg_limits limits;
  struct mrc_msg_inbox theirs;
  uint8_t *inbox, *outbox; /* MRC_MSG_INBOX_BYTES each */
  uint32_t inbox_key, outbox_key;
  uint16_t sizes[MRC_MSG_SLOTS]; /* bytes of the frames that arrived */

  struct mrc_slots slots; /* a frame is freed when it has been read */
  uint32_t offset;        /* in the frame that is being read */
  uint32_t filled;        /* bytes of the next frame, which the engine had no room for; 0: none */
  uint32_t wrs, imms;     /* work requests, immediates posted and not completed */
  uint32_t chunks;        /* writes of messages among them */
  uint32_t reads;         /* READs whose FETCH is not answered */
  uint64_t heard_ns;      /* when a completion came; 0: none yet */
  size_t heap;            /* bytes of `requests`, `unexpected` and `claimed` */

  struct mrc_node out;     /* operations with a record to send */
  struct mrc_node writing; /* what is WRITING, with bytes not yet posted */
  struct mrc_node sent;    /* what is SENT, in the order of frames */
  struct mrc_node reading; /* READs whose FETCH waits until others are answered */
  struct mrc_msg_op fetches[MRC_MSG_FETCHES]; /* answers to FETCHes of the peer, in no table */
  struct mrc_node operations;                 /* all with this peer */
  struct mrc_node posted;         /* receives by mask, without a message, oldest first */
  struct mrc_node unexpected;     /* messages without a receive, oldest first */
  struct mrc_node claimed;        /* messages that a receive is going to take */
  struct mrc_node requests;       /* CTSs without a send */
  struct mrc_msg_chains by_id;    /* these, and the RTSs in `unexpected` */
  struct mrc_msg_chains by_tag;   /* all of both lists; each chain oldest first */
  struct mrc_msg_answer *answers; /* a ring of MRC_MSG_MAX_OPERATIONS */
  uint32_t answers_head, answers_n;
};

struct mrc_msg {
  struct mrc_msg_config config;
  struct mrc_msg_counters counters;
  struct mrc_secret secret;
  uint64_t factor; /* secret and odd: of the hash of a peer, space and tag */
  struct mrc_msg_op *ops;
  uint32_t free_op; /* head of the list of free entries, by `theirs` */
  uint32_t n_ops;
  uint64_t n_posts;
  struct mrc_msg_chains by_cookie; /* operations, by space and cookie */
  struct mrc_msg_chains by_tag;    /* receives of one peer and tag without a message, and sends
                                      without a CTS; each chain oldest first */
  struct mrc_msg_peer **peers;
  struct mrc_keymap by_qpn;
  struct mrc_node posted;     /* receives from any peer without a message, oldest first */
  struct mrc_node unexpected; /* messages of all peers without a receive, oldest first */
  struct mrc_node claimed;    /* messages of all peers that were claimed */
  struct mrc_node busy;       /* peers for the next pump */
  struct mrc_node stalled;    /* peers whose frames wait for room in the heap */
  uint64_t expire_ns;         /* when a peer may have been silent for too long */
};

#define MRC_MSG_OP(member, pointer) MRC_NODE_OWNER(pointer, struct mrc_msg_op, member)
#define MRC_MSG_ENTRY(member, pointer) MRC_NODE_OWNER(pointer, struct mrc_msg_entry, member)

static inline void mrc_msg_mark(struct mrc_msg *msg, struct mrc_msg_peer *peer) {
  mrc_list_append(&msg->busy, &peer->busy);
}

/* ---- The table of operations: their ids, memory regions and ends ---- */

/* 0 or -ENOMEM; to be freed in any case. */
int mrc_msg_ops_init(struct mrc_msg *msg) MRC_MUST_CHECK;
void mrc_msg_ops_free(struct mrc_msg *msg);
/* NULL if there are too many. */
struct mrc_msg_op *mrc_msg_op_new(struct mrc_msg *msg, const struct mrc_msg_post *post);
/* The operation with this id, with this peer; NULL if there is none. */
struct mrc_msg_op *mrc_msg_op_at(struct mrc_msg *msg, uint32_t id, uint32_t peer,
                                 enum mrc_msg_kind kind);
/* The oldest operation with this cookie; NULL if there is none. */
struct mrc_msg_op *mrc_msg_op_named(struct mrc_msg *msg, uint32_t space, uint64_t cookie);
/* Takes a receive from any peer, or a new operation, for this one. */
void mrc_msg_op_join(struct mrc_msg_op *op, struct mrc_msg_peer *peer);
/* The operation for a message of so many bytes that a receive takes: the receive itself, or a new
   one with a part of its memory, if the receive takes further messages. */
struct mrc_msg_op *mrc_msg_op_part(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t bytes);
/* Makes its memory a region; false if the engine has no room for one. */
bool mrc_msg_op_register(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t bytes);
/* Ends it and frees its entry. None of its writes may be outstanding. */
void mrc_msg_finish(struct mrc_msg *msg, struct mrc_msg_op *op, int32_t result);

/* Registers memory under a fresh key; 0 if the engine has no room. */
uint32_t mrc_msg_register(struct mrc_msg *msg, uint64_t address, uint64_t bytes, uint32_t access);

/* ---- Which message belongs to which receive, and which CTS to which send ---- */

/* Before an operation is matched: sets its hash. */
void mrc_msg_prepare(const struct mrc_msg *msg, struct mrc_msg_op *op);
/* The oldest receive that takes a message with this record; NULL if there is none. */
struct mrc_msg_op *mrc_msg_match_receive(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                                         const struct mrc_msg_record *record);
/* A receive waits for its message, or a send for its CTS. */
void mrc_msg_await(struct mrc_msg *msg, struct mrc_msg_op *op);
/* The oldest message that this receive takes. */
struct mrc_msg_entry *mrc_msg_match_message(struct mrc_msg *msg, const struct mrc_msg_op *op);
/* Keeps a message for the receive that claims it by this cookie. */
void mrc_msg_claim(struct mrc_msg *msg, struct mrc_msg_entry *entry, uint64_t cookie);
/* The message that this receive claims, or NULL. */
struct mrc_msg_entry *mrc_msg_claimed(struct mrc_msg *msg, const struct mrc_msg_post *post);
/* Whether an older receive without a CTS could take what this exact one asks for. */
bool mrc_msg_is_ambiguous(struct mrc_msg *msg, const struct mrc_msg_op *op);
/* The oldest send that waits for this CTS; the oldest CTS that waits for this send, or message that
   waits for this receive of one peer and tag. */
struct mrc_msg_op *mrc_msg_match_send(struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                      const struct mrc_msg_record *record);
struct mrc_msg_entry *mrc_msg_oldest_for(const struct mrc_msg_peer *peer,
                                         const struct mrc_msg_op *op, bool cts);

/* Keeps what matches nothing. False: no memory, or over the peer's share. */
bool mrc_msg_keep(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                  const struct mrc_msg_record *record, const uint8_t *bytes);
void mrc_msg_drop(struct mrc_msg_peer *peer, struct mrc_msg_entry *entry);
/* The CTS or RTS of a peer with this id that was kept; NULL if there is none. */
struct mrc_msg_entry *mrc_msg_kept(const struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                   enum mrc_msg_record_kind kind, uint32_t id);
/* Drops everything of a peer, or its promises: RTS and CTS, with which a peer that has failed will
   never go on. */
void mrc_msg_forget(struct mrc_msg_peer *peer, bool promises);
