/* SPDX-License-Identifier: Apache-2.0 */
/* Congestion control behind one interface: how many bytes may be in flight, on one plane of a QP or
   on all of them. The input is acknowledgements, round trips and losses, without packets or paths.
   The delay-based window is in cc.c, NSCC in nscc.c. */
#pragma once

#include "core/base.h"
#include "mrc.h"

/* ---- algorithms ---- */

/* A drain makes the window small for two round trips. A delay that remains then is a queue of other
   flows, or the path has become longer. */
enum mrc_cc_drain {
  MRC_CC_NO_DRAIN,
  MRC_CC_EMPTYING, /* packets of the larger window are still in flight */
  MRC_CC_MEASURING /* the delay that remains is not our queue */
};

/* The delay-based window holds the standing queue near this target, which is short compared with
   common buffers. The jitter is added to the target. The values are our choice. */
#define MRC_CC_TARGET_DELAY_NS 3000000ull
#define MRC_CC_MAX_JITTER_NS 6000000ull /* largest jitter that is added */
#define MRC_CC_MIN_ROUND_NS 1000000ull  /* shortest time between two decisions */
#define MRC_CC_INITIAL_BYTES 262144ull  /* sum of the initial windows of a QP */

struct mrc_cc_delay {
  bool slow_start;
  bool round_held;         /* the window may not grow in the round */
  bool round_paid;         /* an overflow or late packet has already cut the window in the round */
  bool round_limited;      /* the window was the limit at some time in the round */
  uint8_t drain;           /* enum mrc_cc_drain */
  uint8_t calm_rounds;     /* rounds in a row without a queue, while the window was the limit */
  uint8_t newest_samples;  /* samples in newest_ns[0] */
  bool yields;             /* to windows of the same QP on the same links */
  uint8_t coupled;         /* such windows */
  uint8_t rests;           /* in a row */
  uint8_t queued_drains;   /* in a row, while coupled, that found a queue */
  uint32_t round_samples;  /* delays taken in the round */
  uint64_t round_end_ns;   /* end of the current round, about two round trips */
  uint64_t round_rtt_ns;   /* largest smoothed RTT reported in the round */
  uint64_t round_delay_ns; /* smallest queueing delay of the round */
  uint64_t round_sum_ns;   /* sum of the queueing delays of the round */
  uint64_t round_reverse_ns; /* sum of its reverse queues; at the end of the round their mean */
  uint64_t reverse_ns;       /* the longest reverse queue of late */
  uint64_t jitter_ns;        /* smoothed: mean delay of a round minus its smallest delay */
  uint64_t newest_ns[2];   /* smallest delay of the newest group of samples, and of the last one */
  uint64_t base_ns;        /* base RTT; delays are measured above it */
  uint64_t queue_since_ns; /* delay when the standing queue was first seen */
  uint64_t queue_since_bytes; /* window at that time; 0: no standing queue */
  uint64_t foreign_ns;        /* part of the base RTT that is the queue of other flows */
  uint64_t drained_ns;        /* end of the last drain */
  uint64_t peak_bytes;        /* the window that went round fastest */
  uint64_t peak_ns;           /* in this time */
  uint64_t found_base_ns;     /* base RTT that a drain found; 0: none */
};

/* NSCC, as Ultra Ethernet describes it and MRC uses it. */
struct mrc_cc_nscc {
  struct mrc_cc_profile profile; /* with every default filled in */
  uint64_t alpha;         /* increase in bytes per window of acknowledgements without delay */
  uint64_t base_limit_ns; /* upper limit of every base RTT: the configured one */
  uint64_t avg_delay_ns;  /* moving average of the queueing delay */
  uint64_t gathered;      /* increase not yet applied: bytes per window, times bytes acknowledged */
  uint64_t gathered_bytes; /* acknowledged since the last adjustment */
  uint64_t adjusted_ns;    /* end of the last adjustment period */
  uint64_t decreased_ns;   /* time of the last multiplicative decrease */
  uint64_t calm_bytes;     /* acknowledged in a row with almost no delay */
  uint64_t qa_end_ns;      /* end of the quick adapt period; 0: no period has begun */
  uint64_t achieved_bytes; /* acknowledged in that period */
  uint64_t ignore_bytes;   /* in flight when quick adapt fired: these have no further effect */
  uint64_t saved_bytes;    /* window before the receiver's penalty; 0: no penalty */
  bool qa_armed;           /* an overflow or a trim occurred in this period */
};

struct mrc_cc {
  uint8_t kind; /* enum mrc_cc_kind */
  uint32_t mtu_bytes;
  uint64_t cwnd_bytes;
  uint64_t cwnd_before_timeout_bytes; /* restored if a timeout was spurious; 0: none */
  uint64_t min_bytes;
  uint64_t max_bytes;
  uint64_t unasked_bytes; /* sent since the last packet that requested a SACK */
  uint64_t rest_end_ns;   /* a window that yields carries nothing before */
  union {
    struct mrc_cc_delay delay;
    struct mrc_cc_nscc nscc;
  };
};

struct mrc_cc_config {
  uint64_t max_bytes; /* the PSN window in bytes */
  uint32_t mtu_bytes;
  uint32_t planes;  /* number of planes that share this window */
  uint32_t windows; /* number of windows of the QP; they share the initial bytes */
  uint8_t kind;     /* enum mrc_cc_kind */
  struct mrc_cc_profile profile;
};

struct mrc_cc_ack {
  uint64_t bytes;          /* newly acknowledged */
  uint64_t inflight_bytes; /* before this acknowledgement */
  uint64_t rtt_ns;         /* 0: no sample */
  uint64_t reverse_ns;     /* the part of it that was a queue in the reverse direction */
  uint64_t base_rtt_ns;    /* of the plane of the sample */
  uint64_t smooth_rtt_ns;  /* likewise */
  uint32_t plane;          /* index of that plane */
  uint8_t coupled;         /* planes of the QP that may use the same links; 0: none do */
  bool ce;                 /* the acknowledged packet was marked */
  bool restore_window;     /* the receiver cancels its penalty */
  uint8_t penalty;         /* of the receiver, in 128ths of the bytes */
};

enum mrc_cc_loss_cause {
  MRC_CC_LOSS_PATH,     /* the queue was short: a failed path */
  MRC_CC_LOSS_OVERFLOW, /* the queue was long: it overflowed */
  MRC_CC_LOSS_TRIMMED,  /* a switch trimmed the packet */
  MRC_CC_LOSS_LATE /* nothing is lost, but all planes wait for a packet in this plane's queue */
};

struct mrc_cc_loss {
  uint64_t bytes;
  uint64_t inflight_bytes; /* without these bytes */
  uint8_t cause;           /* enum mrc_cc_loss_cause */
};

/* One algorithm. A function that it does not need is 0. */
struct mrc_cc_algorithm {
  int (*init)(struct mrc_cc *cc, const struct mrc_cc_config *config);
  void (*on_ack)(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns);
  void (*on_loss)(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns);
  void (*on_refused)(struct mrc_cc *cc, uint64_t inflight_bytes);
  void (*on_timeout)(struct mrc_cc *cc);
  void (*on_spurious_timeout)(struct mrc_cc *cc);
  bool (*is_congestion)(const struct mrc_cc *cc, uint64_t delay_ns);
};

extern const struct mrc_cc_algorithm mrc_cc_nscc_algorithm; /* in nscc.c */

/* Limits a window to its bounds. */
static inline uint64_t mrc_cc_clamp(const struct mrc_cc *cc, uint64_t bytes) {
  return mrc_min_u64(mrc_max_u64(bytes, cc->min_bytes), cc->max_bytes);
}

/* ---- the interface ---- */

/* 0 or -EINVAL (an unknown kind, a profile out of range). */
int mrc_cc_init(struct mrc_cc *cc, const struct mrc_cc_config *config) MRC_MUST_CHECK;
/* Returns a corrected base RTT that the algorithm has found, once; 0: none. */
uint64_t mrc_cc_on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns);
/* A packet was declared lost, but not by the local timeout. */
void mrc_cc_on_loss(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns);
/* The kernel refused a packet: the send queue of this host is full. Nothing was lost. */
void mrc_cc_on_refused(struct mrc_cc *cc, uint64_t inflight_bytes);
/* The local timeout expired: starts again with the smallest window. */
void mrc_cc_on_timeout(struct mrc_cc *cc);
/* The packets that the timeout declared lost had arrived: restores the earlier window. */
void mrc_cc_on_spurious_timeout(struct mrc_cc *cc);
/* Whether a loss at this queueing delay was an overflow, and not a failed path. */
bool mrc_cc_is_congestion(const struct mrc_cc *cc, uint64_t delay_ns);
/* Whether the window yields to others of the QP, which reach all links without it. */
void mrc_cc_set_yields(struct mrc_cc *cc, bool yields);
/* Whether the window has begun a drain that has not yet measured. */
bool mrc_cc_begins_drain(const struct mrc_cc *cc);
/* A window that may use the same links has begun a drain, with this round trip: this one drains, or
   carries nothing meanwhile if it yields. */
void mrc_cc_drain(struct mrc_cc *cc, uint64_t rtt_ns, uint64_t now_ns);
/* Whether a data packet should request a SACK, so that the sender never has to wait for one.
   `inflight_bytes`: in flight, this packet included, as in unasked_bytes; `sack_bytes`: after so
   many received bytes the receiver sends a SACK by itself; `shared`: the peer has other QPs. */
bool mrc_cc_asks_for_sack(const struct mrc_cc *cc, uint64_t inflight_bytes, uint32_t sack_bytes,
                          bool shared);
