/* SPDX-License-Identifier: Apache-2.0 */
/* One direction of a sealed QP: no data packet is taken twice, although PSNs come round.

   Every packet takes the next counter, also a retransmission. The receiver refuses counters that
   are more than REPLAY behind the highest one (csrc/core/seal.c), and PSNs that it has had
   (csrc/core/windows.c). The network delivers any packet at any time, as often as it likes, or never.
   Numbers are small: PSNs come round after LAP. */

#define COUNTERS 9
#define REPLAY   1
#define LAP      6
#define WINDOW   2 /* PSNs that the sender is ahead of those acknowledged */

byte sent = 0;            /* the next counter */
byte acknowledged = 0;    /* all data before has been acknowledged */
byte next = 0;            /* the next data */
byte data[COUNTERS];      /* what the packet with this counter carries; its PSN is that modulo LAP */

byte newest = 0;          /* 1 + highest counter opened */
byte base = 0;            /* all data before has arrived */
bool later = false;       /* the data after `base` has arrived too */

byte ahead;

active proctype sender() {
  byte again;
  do
  :: atomic { sent < COUNTERS && next < acknowledged + WINDOW -> /* new data */
      data[sent] = next;
      next++;
      sent++
    }
  :: atomic { sent < COUNTERS && acknowledged < next -> /* a retransmission */
      select(again : acknowledged .. next - 1);
      data[sent] = again;
      sent++;
      again = 0
    }
  :: acknowledged < base -> acknowledged++
  od
}

active proctype network() {
  byte i;
end:
  do
  :: sent > 0 ->
    atomic {
      select(i : 0 .. sent - 1);
      if
      :: i + REPLAY >= newest ->
        newest = (i >= newest -> i + 1 : newest);
        ahead = (data[i] % LAP + LAP - base % LAP) % LAP;
        if
        :: ahead == 0 ->
          assert(data[i] == base); /* and no data of another lap */
          base = base + (later -> 2 : 1);
          later = false
        :: ahead == 1 && !later ->
          assert(data[i] == base + 1);
          later = true
        :: else /* a duplicate, or beyond the window */
        fi
      :: else
      fi;
      i = 0
    }
  od
}
