/* SPDX-License-Identifier: Apache-2.0 */
/* One direction of a sealed QP: keys by epoch, and a receiver that looks ahead (csrc/core/seal.c).

   The network delivers any packet at any time, as often as it likes, or never. The attacker sends
   packets with any counter, under zeros: the key that everybody knows. Numbers are small: an epoch
   has EPOCH counters, and a tick is the time in which a sender can seal one packet. */

#define EPOCH    3
#define COUNTERS 15 /* five epochs */
#define REPLAY   2  /* less than an epoch */
#define MOST     3  /* epochs that the receiver may be behind */
#define LOOK     2  /* ticks between two looks */
#define LONG     (EPOCH * MOST)
#define AHEAD    (epoch - epochs)
#define ZEROS    15 /* in place of a key; other keys are the numbers of their epochs */

byte sent = 0;    /* packets numbered; the next counter */
byte sealing = 0; /* the sender's key */
bool used[COUNTERS];

byte newest = 0; /* 1 + highest counter opened */
byte epochs = 2; /* keys derived */
byte oldest = 0;
byte keys[3];
byte opened = 0; /* ticks since the time that the receiver keeps */
byte wait = 0;   /* ticks until the next look */
byte fresh = 0;  /* ticks since the highest counter came, which the receiver may not know */

byte epoch;
bool right;
bool due;

inline count(ticks, most) {
  if
  :: ticks < most -> ticks++
  :: else
  fi
}

inline tick() {
  count(opened, LONG);
  count(fresh, LONG);
  if
  :: wait > 0 -> wait--
  :: else
  fi
}

inline advance(counter) {
  if
  :: counter >= newest ->
    opened = 0;
    fresh = 0;
    newest = counter + 1;
    if
    :: counter / EPOCH + 1 == epochs ->
      keys[epochs % 3] = epochs;
      epochs++
    :: else
    fi
  :: else
  fi
}

/* A packet with this counter, sealed with this key, arrives. */
inline open(counter, key) {
  epoch = counter / EPOCH;
  right = false;
  if
  :: counter + REPLAY < newest
  :: counter + REPLAY >= newest && epoch < epochs ->
    right = (epoch + 3 >= epochs && epoch >= oldest && keys[epoch % 3] == key)
  :: epoch >= epochs && wait == 0 && AHEAD < MOST && AHEAD < opened / EPOCH + 1 ->
    wait = LOOK;
    if
    :: key == epoch ->
      right = true;
      keys[epoch % 3] = key;
      oldest = epoch;
      epochs = epoch + 1
    :: else
    fi
  :: else
  fi;
  if
  :: right -> advance(counter)
  :: else
  fi
}

active proctype sender() {
  do
  :: atomic {
    sent < COUNTERS ->
    if
    :: sent / EPOCH > sealing -> sealing++
    :: else
    fi;
    assert(!used[sent] && sealing == sent / EPOCH); /* no nonce twice, and the key of its epoch */
    used[sent] = true;
    sent++;
    tick()
  }
  :: atomic { opened < LONG || fresh < LONG || wait > 0 -> tick() }
  od
}

active proctype network() {
  byte i;
  byte before;
  keys[1] = 1;
  keys[2] = ZEROS;
end:
  do
  :: sent > 0 ->
    atomic {
      select(i : 0 .. sent - 1);
      /* The newest packet is opened if the receiver may look, and is not too far behind. */
      due = (i >= newest && i - newest <= fresh && (i / EPOCH < epochs + MOST) && wait == 0);
      open(i, i / EPOCH);
      assert(right || !due);
      assert(epochs <= sealing + 2); /* no further than the sender */
      i = 0
    }
  :: atomic {
      select(i : 0 .. COUNTERS - 1);
      before = epochs * 32 + newest;
      open(i, ZEROS);
      assert(!right && before == epochs * 32 + newest); /* a forgery moves nothing */
      i = 0; before = 0
    }
  od
}
