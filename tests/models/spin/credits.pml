/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC (csrc/verbs/rc.c): two ends whose requests, answers and credits share the slots of frames.

   Each end has the same requests, in this order: a READ, two SENDs, a READ. Its program posts
   receives, one at a time, only after its first READ was answered. Each frame has one record here,
   and there are two slots in each direction. When nothing can happen any more, all must be done. */

#define SLOTS 2
#define REQUESTS 4
#define MESSAGES 2
#define OTHER (1 - me)

mtype = { READ, SEND, DATA, SLOT_CREDIT, GRANT };

typedef End {
  byte next;     /* request */
  byte asking;   /* READs without an answer */
  byte answered;
  byte answers;  /* that the other end waits for */
  byte sent;     /* frames */
  byte credit;   /* of these, read by the other end */
  byte read;     /* frames of the other end */
  byte told;     /* of these, as the other end knows */
  byte messages; /* sent */
  byte granted;  /* receives, by the other end */
  byte received; /* messages */
  byte grants;   /* receives posted */
  byte grants_told;
  bool held;     /* a frame waits for a receive */
};
End end[2];

/* What is written, frames read, receives granted. */
chan wire[2] = [6] of { mtype, byte, byte };

inline write(what) {
  wire[me] ! what, end[me].read, end[me].grants;
  end[me].told = end[me].read;
  end[me].grants_told = end[me].grants;
}

inline write_frame(what) {
  write(what);
  end[me].sent++
}

#define HAS_SLOT (end[me].sent - end[me].credit < SLOTS)
#define IS_READ  (end[me].next == 0 || end[me].next == REQUESTS - 1)
#define MAY_READ (end[me].next < REQUESTS && IS_READ && end[me].asking == 0)
#define MAY_SEND (end[me].next < REQUESTS && !IS_READ && end[me].messages < end[me].granted)
#define OWES     (end[me].read - end[me].told >= SLOTS / 2)

inline take() {
  wire[OTHER] ? what, count, receives;
  end[me].credit = count;
  end[me].granted = receives;
  if
  :: what == READ -> end[me].answers++; end[me].read++
  :: what == DATA -> end[me].asking--; end[me].answered++; end[me].read++
  :: what == SEND && end[me].received < end[me].grants -> end[me].received++; end[me].read++
  :: what == SEND && end[me].received == end[me].grants -> end[me].held = true
  :: else
  fi
}

proctype works(byte me) {
  mtype what;
  byte count, receives;
  do
  :: atomic { HAS_SLOT && MAY_READ -> write_frame(READ); end[me].next++; end[me].asking++ }
  :: atomic { HAS_SLOT && MAY_SEND -> write_frame(SEND); end[me].next++; end[me].messages++ }
  :: atomic { HAS_SLOT && end[me].answers > 0 -> write_frame(DATA); end[me].answers-- }
  :: atomic { OWES -> write(SLOT_CREDIT) }
  :: atomic { end[me].grants_told < end[me].grants -> write(GRANT) }
  :: atomic { !end[me].held && nempty(wire[OTHER]) -> take() }
  :: atomic { end[me].held && end[me].received < end[me].grants ->
       end[me].held = false; end[me].received++; end[me].read++ }
  :: atomic { end[me].answered > 0 && end[me].grants < MESSAGES -> end[me].grants++ }
  :: atomic { timeout ->
       assert(end[0].received == MESSAGES && end[1].received == MESSAGES);
       assert(end[0].answered == 2 && end[1].answered == 2);
       break }
  od
}

init {
  atomic {
    run works(0);
    run works(1)
  }
}
