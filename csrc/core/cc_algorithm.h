/* SPDX-License-Identifier: Apache-2.0 */
/* What algorithms of congestion control share: their state, what they are told, and the table of
   functions that each of them is. */
#ifndef MRC_CORE_CC_ALGORITHM_H
#define MRC_CORE_CC_ALGORITHM_H

#include "../mrc.h"
#include "base.h"

/* Whether the queue goes when the window does: if not, it is not ours, or the way is longer. */
enum mrc_cc_drain {
  MRC_CC_NO_DRAIN,
  MRC_CC_EMPTYING, /* the window is small, and what was in flight before is on its way */
  MRC_CC_MEASURING /* the queue that is left now is not ours */
};

/* The delay-based window, a choice of ours: it holds the standing queue near this target, short
   against any sane buffer. What the delay varies by without a queue is added. */
#define MRC_CC_TARGET_DELAY_NS 3000000ull
#define MRC_CC_MAX_JITTER_NS 6000000ull /* so much is added at most */
#define MRC_CC_MIN_ROUND_NS 1000000ull  /* shortest time between two decisions */
#define MRC_CC_INITIAL_BYTES 262144ull  /* of all windows of a QP together */

struct mrc_cc_delay {
  bool slow_start;
  bool round_held;            /* the window may not grow in the round */
  bool round_paid;            /* it lost packets to a full queue, and the window paid for them */
  bool round_limited;         /* the window was the limit at some time in the round */
  uint8_t drain;              /* enum mrc_cc_drain */
  uint8_t calm_rounds;        /* in a row without a queue, while the window was the limit */
  uint8_t newest_samples;     /* in newest_ns */
  uint32_t round_samples;     /* delays taken in the round */
  uint64_t round_end_ns;      /* end of the current round, about two round trips */
  uint64_t round_rtt_ns;      /* largest smoothed RTT reported in the round */
  uint64_t round_delay_ns;    /* smallest queueing delay of the round */
  uint64_t round_sum_ns;      /* sum of the queueing delays of the round */
  uint64_t jitter_ns;         /* smoothed: by how much delays exceed the smallest of their round */
  uint64_t newest_ns[2];      /* smallest of the newest few samples, and of the few before */
  uint64_t base_ns;           /* base RTT that the delays are above */
  uint64_t queue_since_ns;    /* delay when the queue began to stand; 0: none stands */
  uint64_t queue_since_bytes; /* window then */
  uint64_t foreign_ns;        /* part of the base RTT that drains found to be of others */
  uint64_t drained_ns;        /* when a drain ended last */
  uint64_t found_base_ns;     /* base RTT that a drain found; 0: none */
};

/* NSCC, as Ultra Ethernet describes it and MRC takes it over. */
struct mrc_cc_nscc {
  struct mrc_cc_profile profile; /* with every default filled in */
  uint64_t alpha;          /* bytes a window of acknowledgements adds while there is no delay */
  uint64_t base_limit_ns;  /* no base RTT is larger: what was configured */
  uint64_t avg_delay_ns;   /* moving average of the queueing delay */
  uint64_t gathered;       /* increase not yet applied: bytes added a window, times bytes acked */
  uint64_t gathered_bytes; /* acknowledged since the last adjustment */
  uint64_t adjusted_ns;    /* last end of an adjustment period */
  uint64_t decreased_ns;   /* last multiplicative decrease */
  uint64_t calm_bytes;     /* acknowledged in a row with no delay worth the name */
  uint64_t qa_end_ns;      /* when quick adapt looks next; 0: no period has begun */
  uint64_t achieved_bytes; /* acknowledged in that period */
  uint64_t ignore_bytes;   /* in flight when quick adapt fired: they have had their effect */
  uint64_t saved_bytes;    /* window before the receiver's penalty; 0: none */
  bool qa_armed;           /* an overflow or a trim in this period */
};

struct mrc_cc {
  uint8_t kind; /* enum mrc_cc_kind */
  uint32_t mtu_bytes;
  uint64_t cwnd_bytes;
  uint64_t cwnd_before_timeout_bytes; /* 0: no timeout that could prove wrong */
  uint64_t min_bytes;
  uint64_t max_bytes;
  union {
    struct mrc_cc_delay delay;
    struct mrc_cc_nscc nscc;
  };
};

struct mrc_cc_config {
  uint64_t max_bytes; /* the PSN window in bytes */
  uint32_t mtu_bytes;
  uint32_t planes;  /* that obey this window */
  uint32_t windows; /* of the QP; each starts with its part */
  uint8_t kind;     /* enum mrc_cc_kind */
  struct mrc_cc_profile profile;
};

struct mrc_cc_ack {
  uint64_t bytes;          /* newly acknowledged */
  uint64_t inflight_bytes; /* before this acknowledgement */
  uint64_t rtt_ns;         /* 0: no sample */
  uint64_t base_rtt_ns;    /* of the plane that gave the sample */
  uint64_t smooth_rtt_ns;
  uint32_t plane;      /* index of that plane */
  bool ce;             /* the packet that this answers was marked */
  bool restore_window; /* the receiver takes its penalty back */
  uint8_t penalty;     /* that the receiver asks for, in 128ths of the bytes */
};

enum mrc_cc_loss_cause {
  MRC_CC_LOSS_PATH,     /* the queue was short: a failed path */
  MRC_CC_LOSS_OVERFLOW, /* the queue was long: no room in it */
  MRC_CC_LOSS_TRIMMED,  /* a switch cut the payload off and said so */
  MRC_CC_LOSS_LATE      /* nothing is lost, but all planes wait for the queue of this one */
};

struct mrc_cc_loss {
  uint64_t bytes;
  uint64_t inflight_bytes; /* without them */
  uint8_t cause;           /* enum mrc_cc_loss_cause */
};

/* One algorithm. What it leaves 0 it does not react to. */
struct mrc_cc_algorithm {
  int (*init)(struct mrc_cc *cc, const struct mrc_cc_config *config);
  void (*on_ack)(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns);
  void (*on_loss)(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns);
  void (*on_refused)(struct mrc_cc *cc, uint64_t inflight_bytes);
  void (*on_timeout)(struct mrc_cc *cc);
  void (*on_spurious_timeout)(struct mrc_cc *cc);
  bool (*is_congestion)(const struct mrc_cc *cc, uint64_t delay_ns);
  uint64_t (*take_base)(struct mrc_cc *cc);
};

extern const struct mrc_cc_algorithm mrc_cc_delay_algorithm; /* in cc_delay.c */
extern const struct mrc_cc_algorithm mrc_cc_nscc_algorithm;  /* in cc_nscc.c */

/* The window, within its bounds. */
static inline uint64_t mrc_cc_clamp(const struct mrc_cc *cc, uint64_t bytes) {
  return mrc_min_u64(mrc_max_u64(bytes, cc->min_bytes), cc->max_bytes);
}

#endif
