# SPDX-License-Identifier: Apache-2.0
"""The proof of the paths before data flows: which EVs reach the peer, with what packet size, and
the window that fits them.

Every EV is probed with a packet of full size. In each plane one EV, the leader, searches for the
size that fits; the other EVs of the plane then confirm what it found. `Prover` decides without I/O:
answers and a time in, probes and verdicts out. `prove` carries its probes out, the findings put the
result in words, and `psns_for` chooses the window of PSNs.

One missing answer proves nothing: hosts are busy for seconds, packets are lost. Probes therefore
leave in rounds, with a small *control* probe on the same EV. A probe is *missed* when the control
of its round was answered and its own answer is overdue by then. An EV that answers no control needs
a *witness*: a small probe that leaves at the same time on an EV that answers. The verdicts, and
what each of them needs:

- a size fits: it was answered, however late;
- a size is too large: it was missed so often that loss alone, at the rate seen so far, would do
  that once in 100,000 times;
- an EV is dead: as often, and for at least `_QUIET_SECONDS`, witnesses were answered and the EV was
  not; or its probes could not be sent; or no EV at all has answered for `_SILENT_SECONDS`.

Time in which this process itself did not run does not count. If the caller can ping the peer over
TCP, neither does time in which the peer answered nothing at all: it may be stopped or unreachable.

Addresses that the peer named may belong to third parties. An address therefore gets only small
probes until it has answered one, and all such addresses together get at most `allowance` bytes.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from mrc import limits
from mrc.engine.paths import ARP_REMEDY
from mrc.errors import Kind, PathError, QueueFullError
from mrc.events import PairInfo, ProbeResult
from mrc.tasks import first_error, within
from mrc.units import counted

# Payloads on links with an MTU of 9000, 1500, 1450 (VXLAN), 1420 (WireGuard), 1400 or 1280, with
# IPv4, IPv6 or SRv6, and RoCE's sizes. A search begins with them.
COMMON_MTUS = (
    8928, 8908, 8844, 4096, 2048, 1428, 1408, 1376, 1348, 1328, 1308, 1208, 1188, 1124, 1024, 512,
    limits.MIN_MTU,
)  # fmt: skip
NEAR_BYTES = 16  # a search ends this close below the true size
_SIZES = 7  # in question at once, between one that fits and one that is too large
AGAIN = 2  # sizes that are asked for again in a round after the first of a step
PEER = -1  # index of an Ask that is a ping over TCP: whether the peer's program runs
SMALL_BYTES = 80  # size of a small probe with IPv6 and UDP headers
ADDRESS_TRIES = 6
MOST_UNDER_WAY = 32  # more full-size probes could fill the queues on the way
BOUND_SECONDS = 8.0  # with 8 round trips: afterwards only what was answered counts
_FIRST_WAIT_SECONDS = 0.05
_GAP_SECONDS = 0.02  # between two rounds on one EV, so that they meet different queues
_LONGEST_GAP_SECONDS = 0.5
_QUIET_SECONDS = 1.0
_ADDRESS_SECONDS = 2.0  # as _QUIET_SECONDS, for an address that has never answered
_SILENT_SECONDS = 4.0
_ASK_SECONDS = 0.5  # with two round trips: after such a silence the peer gets a ping over TCP
_REFINE_SECONDS = 4.0  # after the first answer no more searches between common sizes begin
_GRACE_SECONDS = 0.02  # packets of one EV overtake each other by less
_WITNESS_GRACE_SECONDS = 0.1  # the same for different EVs
# How long an answer may come, at first and when hosts are late. No verdict waits for it. With a
# shorter time a busy host that proves many QPs probes again for what it has not read yet.
_TIMEOUT_SECONDS = (4.0, 8.0)
_OVERSLEPT_SECONDS = 0.005
_LONG_SECONDS = 0.1  # with a longer round trip a control leaves with the first probe
_MISSES = (4, 16)  # needed for a verdict, at least and at most
_CHANCE = 1e-5
_LEAST_ROUNDS = 3  # of which none could be sent, or none was answered on any EV
HEADER_BYTES = 106  # of a packet beside its payload, from Ethernet on
_WORTH_TELLING = 1.02  # the ratio of two packet sizes
_MOST_NAMED = 4
_LEAST_PSNS = 1024
# 2048 PSNs speed up bulk transfers at MTU 1500 even with a short round trip.
_LEAST_WINDOW_BYTES = 2_800_000
# A lost packet also blocks the window for the round trip of its retransmission.
_ROUND_TRIPS = 2
# A busy host answers this much later. The window need not cover queueing delay: a smaller window
# only shortens queues.
LATE_NS = 500_000


# ---- The search for a size -----------------------------------------------------------------------


def common_sizes(above: int) -> list[int]:
    """The payloads to try first, largest first."""
    return [mtu for mtu in COMMON_MTUS if mtu < above]


def sizes_between(low: int, above: int) -> list[int]:
    """The payloads to try when `low` fits and `above` does not; none when these are near."""
    if above - low <= NEAR_BYTES:
        return []
    step = -(-(above - low) // (4 * (_SIZES + 1))) * 4
    return list(range(low + step, above, step))


class SizeSearch:
    """Finds out whether an EV carries `goal`; after `widen`, what it carries instead."""

    def __init__(self, goal: int, low: int = 0) -> None:
        self.goal = goal
        self.low = low  # the largest size that was answered; 0: none
        self.above = 0  # the smallest size that is too large; 0: none
        self.wide = False
        self._sizes = [goal]  # in question in this step, ascending
        self._asked = False  # in this step
        self._missed: Counter[int] = Counter()

    @property
    def failed(self) -> bool:
        """Whether the goal is too large."""
        return bool(self.above)

    @property
    def doubtful(self) -> bool:
        """Whether a probe of the goal was missed, and nothing else has been probed yet."""
        return not self.wide and self._missed[self.goal] > 0

    @property
    def over(self) -> bool:
        """Whether nothing is left to probe."""
        return self.low >= self.goal or not self._sizes

    def widen(self) -> None:
        """Asks for common sizes below the goal too, and later for sizes between them."""
        self.wide, self._asked = True, False
        sizes = [size for size in sorted(common_sizes(self.above or self.goal)) if size > self.low]
        self._sizes = sizes if self.above else [*sizes, self.goal]

    def next_sizes(self) -> list[int]:
        """The sizes of the next round: in the first of a step all, later those that decide."""
        sizes = [size for size in self._sizes if size > self.low]
        asked, self._asked = self._asked, True
        return sizes[:AGAIN] if asked else sizes

    def on_answer(self, size: int) -> None:
        """A probe of this size was answered."""
        self.low = max(self.low, size)
        if self.low >= self.above:
            self.above = 0

    def on_miss(self, size: int) -> None:
        """A probe of this size was missed."""
        self._missed[size] += 1

    def settle(self, needed: int, *, refine: bool) -> None:
        """Goes to the next step when this one is decided. `refine` allows steps between sizes."""
        larger = [size for size in self._sizes if size > self.low]
        if self.over or (larger and self._missed[larger[0]] < needed):
            return
        self.above = larger[0] if larger else self.above or self.goal
        near = self.wide and refine and self.low > 0
        self._sizes = sizes_between(self.low, self.above) if near else []
        self._asked = False


# ---- Verdicts ------------------------------------------------------------------------------------


class Ask(Struct, frozen=True):
    """A probe to send: `payload` bytes on EV `index`; 0: small. `number` names it.

    `index` PEER: a question over TCP, which has no timeout.
    """

    number: int
    index: int
    payload: int
    timeout: float


class _PlaneProof(Struct, eq=False):
    goal: int  # what its EVs have to carry
    leader: _EvProof | None = None
    opened: bool = False
    searched: bool = False
    rtt: float = math.inf  # the shortest, in seconds: waiting longer is not the path's fault
    timeout: float = _TIMEOUT_SECONDS[0]
    heard: float = math.inf  # when its first answer came

    @property
    def grace(self) -> float:
        """By how much packets of one EV and their answers may overtake each other."""
        return max(_GRACE_SECONDS, self.rtt / 4 if self.rtt < math.inf else 0.0)


class _AddressProof(Struct, eq=False):
    evs: list[_EvProof] = field(default_factory=list)
    answered: bool = False
    over: bool = False  # and has not answered
    tries: int = 0
    since: float = 0.0  # of the first try
    ran: float = 0.0  # how long the peer had run then
    next: float = 0.0


class _EvProof(Struct, eq=False):
    index: int
    plane: _PlaneProof
    address: _AddressProof | None  # which has to answer first
    search: SizeSearch
    alive: bool = False  # it has answered
    dead: bool = False
    missed: int = 0  # controls since the last answer, by witnesses
    unsent: int = 0  # small probes since the last answer that could not be sent
    error: int = 0  # errno of the last of them
    since: float = math.inf  # of the first control since the last answer
    rounds: int = 0  # since the last answer
    opened: bool = False  # its first probe has been sent
    next: float = 0.0  # when the next round may leave

    @property
    def over(self) -> bool:
        unproven = self.address is not None and self.address.over
        return self.dead or unproven or self.search.low >= self.plane.goal

    @property
    def waits(self) -> bool:
        """For its address, or for the leader of its plane."""
        if self.address is not None and not self.address.answered:
            return True
        plane = self.plane
        led = plane.leader is not None and plane.leader is not self
        return self.alive and led and not (plane.searched and not self.search.failed)


class _SentProbe(Struct, eq=False):
    ev: _EvProof
    payload: int
    sent: float
    answered: bool = False


class _Round(Struct, eq=False):
    """What leaves together on one EV."""

    ev: _EvProof
    sent: float
    control: _SentProbe
    sizes: list[_SentProbe] = field(default_factory=list)
    witness: _SentProbe | None = None
    due: float = math.inf  # when missing answers count as missed

    @property
    def probes(self) -> list[_SentProbe | None]:
        return [self.control, self.witness, *self.sizes]


class Prover:
    """`advance` returns the probes to send; it is called again after answers and at `deadline`."""

    def __init__(
        self,
        destinations: Sequence[Hashable],
        planes: Sequence[int],
        agreed: int,
        *,
        allowance: int = 0,
        rtt: float = 0.0,
        asks_peer: bool = False,
    ) -> None:
        self._allowance, self._rtt, self._asks_peer = allowance, rtt, asks_peer
        self._planes = {plane: _PlaneProof(agreed) for plane in planes}
        addresses = {each: _AddressProof() for each in destinations if each is not None}
        self._addresses = list(addresses.values())
        self._evs = [
            _EvProof(index, self._planes[plane], addresses.get(destination), SizeSearch(agreed))
            for index, (destination, plane) in enumerate(zip(destinations, planes, strict=True))
        ]
        for ev in self._evs:
            if ev.address is not None:
                ev.address.evs.append(ev)
        self._under_way: dict[int, _SentProbe] = {}
        self._rounds: list[_Round] = []
        self._asks: list[Ask] = []
        self._number = 0
        self._controls = self._controls_lost = 0
        self._late = 0.0  # how much later than it came this process has seen an answer
        self._pause = self._paused = 0.0  # how long, and until when, no probes are sent
        self._large = 0  # full-size probes on the way
        self._start = math.inf
        self._now = 0.0
        self._overslept = self._overslept_at_deadline = 0.0
        self._question = 0  # number of the question that is under way
        self._answered = 0.0  # when the peer has last answered anything
        self._seconds = 0.0  # until then, without silences
        self.deadline = 0.0
        """when to call `advance` at the latest"""

    @property
    def done(self) -> bool:
        return all(ev.over for ev in self._evs)

    @property
    def carried(self) -> tuple[int | None, ...]:
        """What each EV carries: 0 when it is dead, None when its address has never answered."""
        return tuple(
            None if ev.address is not None and not ev.address.answered
            else 0 if ev.dead or not ev.alive else ev.search.low
            for ev in self._evs
        )  # fmt: skip

    @property
    def errors(self) -> tuple[int, ...]:
        """The errno of probes of each EV that could not be sent; none if all were sent."""
        found = tuple(ev.error for ev in self._evs)
        return found if any(found) else ()

    # Input

    def on_answer(self, number: int, rtt: float, now: float) -> None:
        """The probe was answered, after `rtt` seconds."""
        now = self._awake(now)
        self._seconds += min(now - self._answered, 2 * self._ask_seconds)
        self._answered = now
        if number == self._question:
            self._question = 0
            return
        probe = self._under_way.pop(number)
        ev, probe.answered, self._pause = probe.ev, True, 0.0
        self._late += (max(0.0, now - probe.sent - rtt) - self._late) / 4
        self._controls += probe.payload in (0, ev.plane.goal)
        ev.plane.rtt = min(ev.plane.rtt, rtt)
        ev.plane.heard = min(ev.plane.heard, now)
        if not ev.alive:
            ev.alive, ev.next = True, now
        ev.missed = ev.unsent = ev.rounds = 0
        ev.since = math.inf
        if ev.address is not None:
            ev.address.answered = True
        if probe.payload:
            ev.search.on_answer(probe.payload)
            ev.dead = False
        for each in self._rounds:
            if probe is each.control:
                each.due = now + ev.plane.grace
            elif probe is each.witness and not each.control.answered:
                each.due = now + max(_WITNESS_GRACE_SECONDS, ev.plane.grace, self._rtt)

    def on_failure(self, number: int, error: int) -> None:
        """The probe timed out or could not be sent."""
        probe = self._under_way.pop(number)
        if error == errno.ETIMEDOUT and not probe.payload:
            probe.ev.plane.timeout = _TIMEOUT_SECONDS[1]  # the host may be as late as that
        elif error not in (errno.ETIMEDOUT, errno.EMSGSIZE) and not probe.payload:
            probe.ev.unsent += 1  # EMSGSIZE: the kernel reports a larger probe on a smaller one
            probe.ev.error = error

    def on_refusal(self, number: int, now: float) -> None:
        """This host has no room for the probe: many QPs connect. All probes pause."""
        probe, now = self._under_way.pop(number), now - self._overslept
        if now >= self._paused:
            self._pause = min(max(2 * self._pause, _GAP_SECONDS), _LONGEST_GAP_SECONDS)
            self._paused = now + self._pause
        self._start = self._answered = now  # silence of what was not asked is no evidence
        self._seconds = 0.0
        mine = [each for each in self._rounds if probe in each.probes]
        if not mine:
            probe.ev.opened, probe.ev.next = False, now
        for each in mine:
            self._rounds.remove(each)
            each.ev.rounds, each.ev.next = max(0, each.ev.rounds - 1), now
            if (address := each.ev.address) is not None and not address.answered:
                address.tries, address.next = address.tries - 1, now
                self._allowance += SMALL_BYTES

    # Output

    def advance(self, now: float) -> list[Ask]:
        """The probes to send now. Judges first what is due."""
        if self._start == math.inf:
            self._start = self._answered = self.deadline = now
        self._now = self._awake(now)
        self._judge_rounds()
        since = self._now - max(_FIRST_WAIT_SECONDS, 2 * self._longest_rtt)
        probes = self._under_way.values()  # older ones have left the queues
        self._large = sum(1 for probe in probes if probe.payload and probe.sent > since)
        silent = self._now - self._answered >= self._ask_seconds
        if self._asks_peer and silent and not self._question and not self.done:
            self._number += 1  # over TCP, one question at a time
            self._question = self._number
            self._asks.append(Ask(self._number, PEER, 0, math.inf))
        if self._now >= self._paused:
            for address in self._addresses:
                self._try(address)
            for ev in self._evs:
                self._run(ev)
        if self._ran > BOUND_SECONDS + 8 * self._longest_rtt:
            self._end()
        self._overslept_at_deadline = self._overslept
        self.deadline = self._next() + self._overslept
        asks, self._asks = self._asks, []
        return asks

    @property
    def _longest_rtt(self) -> float:
        known = [plane.rtt for plane in self._planes.values() if plane.rtt < math.inf]
        return max(known, default=self._rtt)

    def _awake(self, now: float) -> float:
        """`now` without the time in which this process did not run."""
        slept = now - self.deadline - _OVERSLEPT_SECONDS
        self._overslept = max(self._overslept, self._overslept_at_deadline + slept)
        return now - self._overslept

    @property
    def _ran(self) -> float:
        """For how long the peer has run, as its answers show."""
        return self._seconds if self._asks_peer else self._now - self._start

    @property
    def _ask_seconds(self) -> float:
        return _ASK_SECONDS + 2 * self._rtt

    @property
    def _full(self) -> bool:
        return self._large >= MOST_UNDER_WAY

    @property
    def _needed(self) -> int:
        """Missed probes for a verdict, by the loss seen so far."""
        loss = (self._controls_lost + 1) / (self._controls + 4)
        return min(max(math.ceil(math.log(_CHANCE) / math.log(loss)), _MISSES[0]), _MISSES[1])

    def _next(self) -> float:
        times = [each.due for each in self._rounds]
        times += [
            self._now + _GAP_SECONDS if self._full and ev.next <= self._now else ev.next
            for ev in self._evs
            if not (ev.over or ev.waits)
        ]
        times += [each.next for each in self._addresses if not (each.answered or each.over)]
        if self._asks_peer and not self._question:
            times.append(self._answered + self._ask_seconds)
        return max(min(times, default=self._now), self._now + 0.001, self._paused)

    # Probes

    def _try(self, address: _AddressProof) -> None:
        """Probes an address that has not answered yet, over one of its EVs."""
        if address.answered or address.over or self._now < address.next:
            return
        if address.tries == ADDRESS_TRIES or self._allowance < SMALL_BYTES:
            address.over = self._is_silent(address)
            address.next = self._now + _GAP_SECONDS
            return
        if self._question and address.tries:  # a peer that is stopped must not use up the tries
            address.next = self._now + _GAP_SECONDS
            return
        self._allowance -= SMALL_BYTES
        if address.tries == 0:
            address.since, address.ran = self._now, self._ran
        # Spreads the attempts over the EVs, so over different ports if there are several.
        ev = address.evs[address.tries * len(address.evs) // ADDRESS_TRIES]
        self._round(ev, [])
        address.next = self._now + min(max(0.25, self._now - address.since), 0.4)
        address.tries += 1

    def _run(self, ev: _EvProof) -> None:
        """Sends what is due on an EV."""
        if not (ev.over or ev.waits):
            self._conclude(ev)
        if ev.over and ev.plane.leader is ev:
            ev.plane.leader = None
            ev.plane.searched |= not ev.dead
        if ev.over or ev.waits or self._now < ev.next:
            return
        if self._full and (ev.alive or not ev.opened):
            return
        if ev.opened:
            self._round(ev, ev.search.next_sizes() if ev.alive else [])
        elif self._rtt > _LONG_SECONDS and not ev.plane.opened:
            self._round(ev, [ev.plane.goal])
        else:
            self._ask(ev, ev.plane.goal)
            ev.next = self._now + max(_FIRST_WAIT_SECONDS, 1.25 * self._longest_rtt)
        ev.opened = ev.plane.opened = True

    def _round(self, ev: _EvProof, sizes: Sequence[int]) -> None:
        """Sends probes of these sizes, and behind them the small ones."""
        probes = [self._ask(ev, size) for size in sizes]
        witness = None
        control = self._ask(ev, 0)
        if not ev.alive or ev.rounds >= _MISSES[0]:  # of the same plane if there is one
            others = [each for each in self._evs if each.alive and not each.dead and each is not ev]
            near = [each for each in others if each.plane is ev.plane] or others
            witness = self._ask(near[ev.rounds % len(near)], 0) if near else None
        self._rounds.append(_Round(ev, self._now, control, probes, witness))
        ev.since = min(ev.since, self._now)
        ev.rounds += 1
        ev.next = self._now + self._gap(ev, len(sizes))

    def _gap(self, ev: _EvProof, sizes: int) -> float:
        """The time until the next round; answers shorten it."""
        gap = max(_GAP_SECONDS, 2 * self._late)  # a busy process must not make itself busier
        if sizes > AGAIN:  # what to probe next depends on the answers
            return 4 * gap + 2 * ev.plane.rtt
        free = self._needed if ev.alive else 0
        doublings = max(0, ev.rounds - free) + (0 if ev.alive else 1)
        return min(gap * (1 << min(doublings, 8)), _LONGEST_GAP_SECONDS)

    def _ask(self, ev: _EvProof, payload: int) -> _SentProbe:
        self._number += 1
        self._large += payload > 0
        probe = self._under_way[self._number] = _SentProbe(ev, payload, self._now)
        timeout = min(ev.plane.timeout + 2 * self._longest_rtt, _TIMEOUT_SECONDS[1])
        if ev.address is not None and not ev.address.answered:
            timeout = _TIMEOUT_SECONDS[1]  # it gets a few probes only
        self._asks.append(Ask(self._number, ev.index, payload, timeout))
        return probe

    # Verdicts

    def _conclude(self, ev: _EvProof) -> None:
        """Draws the conclusions about one EV from its answers and misses."""
        plane = ev.plane
        unheard = ev.rounds >= _LEAST_ROUNDS and (self._is_silence or ev.unsent >= ev.rounds)
        quiet = self._now - ev.since >= _QUIET_SECONDS + 2 * self._longest_rtt
        ev.dead = unheard or (quiet and ev.missed >= self._needed)
        if not ev.alive or ev.dead:
            return
        if ev.search.goal != plane.goal:
            ev.search = SizeSearch(plane.goal, ev.search.low)
        refine = self._now - plane.heard < _REFINE_SECONDS + 8 * self._longest_rtt
        ev.search.settle(self._needed, refine=refine)
        if plane.leader is None and (ev.search.failed or not plane.searched):
            plane.leader = ev
        if plane.leader is ev and ev.search.doubtful:
            ev.search.widen()
        if plane.leader is ev and ev.search.over:
            plane.goal = min(plane.goal, ev.search.low or plane.goal)
            ev.dead = ev.search.low == 0  # it carries less than the least

    @property
    def _is_silence(self) -> bool:
        """Whether nothing has answered, for long enough."""
        long = self._ran >= _SILENT_SECONDS + 2 * self._rtt
        return long and not any(ev.alive for ev in self._evs)

    def _is_silent(self, address: _AddressProof) -> bool:
        """Whether the address, which has not answered any try, will not answer."""
        if address.tries == 0 or self._is_silence:
            return True
        quiet = self._ran - address.ran
        enough = _ADDRESS_SECONDS + 2 * self._longest_rtt
        witnessed = sum(ev.missed for ev in address.evs) >= address.tries - 1
        return quiet >= (enough if witnessed else 2 * enough)

    def _judge_rounds(self) -> None:
        for each in self._rounds:
            if each.due > self._now:
                continue
            if each.control.answered:
                self._judge_sizes(each)
            else:
                each.ev.missed += 1
        longest = _TIMEOUT_SECONDS[1] + self._longest_rtt
        self._rounds = [
            each for each in self._rounds
            if each.due > self._now and self._now - each.sent < longest and not each.ev.over
        ]  # fmt: skip

    def _judge_sizes(self, judged: _Round) -> None:
        ev = judged.ev
        for earlier in self._rounds:
            if earlier.ev is ev and earlier.sent < judged.sent and not earlier.control.answered:
                self._controls += 1
                self._controls_lost += 1
                earlier.due = min(earlier.due, self._now)  # it goes, with what it asked
        for size in judged.sizes:
            if not size.answered:
                ev.search.on_miss(size.payload)
        ev.next = min(ev.next, max(self._now, judged.sent + max(_GAP_SECONDS, 2 * self._late)))

    def _end(self) -> None:
        """Time is up: what was answered counts."""
        for address in self._addresses:
            address.over = not address.answered
        for ev in self._evs:
            if not ev.over and ev.search.low:
                ev.plane.goal = min(ev.plane.goal, ev.search.low)
            elif not ev.over:
                ev.dead = True


# ---- Probes --------------------------------------------------------------------------------------


Probe = Callable[[int, int, float], Awaitable[ProbeResult]]
"""Probes EV `index` with `payload` bytes (0: small) and waits at most `timeout` seconds."""


class Proof(Struct, frozen=True):
    """What each plane carries, and the indices of the EVs that do not live.

    `dead` EVs lead to addresses that answered over another EV, `unproven` EVs to addresses that
    never answered.
    """

    carried: dict[int, int]
    """By plane, the largest payload that all its living EVs carry; only planes with such EVs."""
    dead: tuple[int, ...]
    unproven: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    """The errno of probes of each EV that could not be sent; empty if all were sent."""

    @property
    def mtu(self) -> int:
        """The largest payload that all living EVs carry; 0 when none lives."""
        return min(self.carried.values(), default=0)


def proof_of(carried: Sequence[int | None], planes: Sequence[int]) -> Proof:
    """The proof, from what each EV carries (`Prover.carried`) and its plane."""
    living: dict[int, int] = {}
    for plane, payload in zip(planes, carried, strict=True):
        if payload:
            living[plane] = min(payload, living.get(plane, payload))
    dead = tuple(index for index, payload in enumerate(carried) if payload == 0)
    unproven = tuple(index for index, payload in enumerate(carried) if payload is None)
    return Proof(living, dead, unproven)


async def prove(
    probe: Probe,
    destinations: Sequence[Hashable],
    agreed: int,
    allowance: int = 0,
    *,
    planes: Sequence[int],
    rtt: float = 0.0,
    ping: Callable[[], Awaitable[None]] | None = None,
) -> Proof:
    """Probes one EV for each of `destinations`, with payloads up to `agreed` bytes.

    A destination is an address from the peer, or None if our own configuration names the address.
    `planes` has the plane of each EV. `allowance` is in bytes of packets. `rtt` is a round trip to
    the peer in seconds; 0: unknown. `ping` sends one over TCP and returns with its answer. Then
    the proof goes on for as long as the peer answers nothing at all.
    """
    prover = Prover(
        destinations, planes, agreed, allowance=allowance, rtt=rtt, asks_peer=ping is not None
    )
    now = asyncio.get_running_loop().time
    changed = asyncio.Event()
    under_way: set[asyncio.Task[None]] = set()

    async def send(ask: Ask) -> None:
        if ask.index == PEER:
            assert ping is not None
            await ping()
            prover.on_answer(ask.number, 0.0, now())
            changed.set()
            return
        try:
            result = await probe(ask.index, ask.payload, ask.timeout)
        except QueueFullError:
            prover.on_refusal(ask.number, now())
        else:
            if result.rtt_ns is not None and result.error == 0:
                prover.on_answer(ask.number, result.rtt_ns / 1e9, now())
            else:
                prover.on_failure(ask.number, result.error)
        changed.set()

    try:
        async with asyncio.TaskGroup() as group:
            while True:
                changed.clear()
                asks = prover.advance(now())
                if prover.done:
                    break
                for ask in asks:
                    task = group.create_task(send(ask))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                with suppress(TimeoutError):
                    async with within(max(0.0, prover.deadline - now())):
                        await changed.wait()
            for task in list(under_way):  # late answers are of no interest
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return replace(proof_of(prover.carried, planes), errors=prover.errors)


# ---- Findings ------------------------------------------------------------------------------------


class NoAnswerError(PathError):
    """Nothing has answered the probes of the paths."""

    kind = Kind.NO_ANSWER
    pairs: tuple[PairInfo, ...] = ()
    """the state of all pairs of ports"""


def no_answer(host: str, targets: Sequence[str], udp_port: int, nat: str = "") -> NoAnswerError:
    """Nothing has answered at these addresses. `nat`: what is known of one on the way."""
    where = ", ".join([*targets[:4], *["..."] * (len(targets) > 4)])
    return NoAnswerError(
        f"no path to {host} ({where}) answers on UDP port {udp_port}:"
        f" {nat and nat + '; '}is UDP blocked?"
    )


def plane_limits(mtus: Iterable[tuple[int, int]], most: int) -> dict[int, int]:
    """The payload that each plane's interfaces allow, from pairs of plane and payload."""
    allowed: dict[int, int] = {}
    for plane, mtu in mtus:
        allowed[plane] = min(mtu, allowed.get(plane, most))
    return allowed


def plane_names(planes: Iterable[int], nics: Mapping[int, str]) -> str:
    """ "plane 2 (eth1)", or "planes 2 (eth1) and 3 (eth2)"."""
    each = [f"{plane} ({nics[plane]})" if plane in nics else str(plane) for plane in planes]
    if len(each) > _MOST_NAMED:
        each[_MOST_NAMED:] = [f"{len(each) - _MOST_NAMED} more"]
    if len(each) == 1:
        return f"plane {each[0]}"
    return f"planes {', '.join(each[:-1])} and {each[-1]}"


def smaller_packets(
    host: str,
    path_mtu: int,
    allowed: Mapping[int, int],
    found: Mapping[int, int],
    nics: Mapping[int, str],
) -> str:
    """Why packets to `host` are smaller than they could be, and what that costs; or "".

    `allowed` has the payload that the interfaces of each plane allow; the probes were not larger
    than the least of them. `found` has what the probes found on each living plane, and `nics` the
    interface of each plane of this host.
    """
    probed = min(allowed.values())
    carried = {
        plane: allowed[plane] if payload == probed else payload for plane, payload in found.items()
    }
    most = max([probed, *carried.values()])
    if most < _WORTH_TELLING * path_mtu:
        return ""
    limiting = [plane for plane, payload in carried.items() if payload <= path_mtu]
    if not limiting:
        return (
            f"packets to {host} carry {path_mtu} bytes, not {most}: {host} reports that its own"
            " packets carry no more; its mrc names the plane"
        )
    others = sorted(carried.keys() - set(limiting))
    if not others:
        return (
            f"packets to {host} carry {path_mtu} bytes, not {most}: on every plane a link on the"
            " way has a smaller MTU"
        )
    verb = "carries" if len(limiting) == 1 else "carry"
    rate, times = 1 - _efficiency(path_mtu) / _efficiency(most), most / path_mtu
    costs = f"{rate:.0%} of the rate and " if rate >= 0.01 else ""
    costs += f"{times:.1f} times as many" if times >= 1.5 else f"{times - 1:.0%} more"
    costs += " packets"
    return (
        f"{plane_names(limiting, nics)} to {host} {verb} only {path_mtu} bytes in a packet, other"
        f" planes {most}: all planes use {path_mtu}, which costs {costs}"
        f"{_remedy(limiting, others, nics)}"
    )


def _efficiency(payload: int) -> float:
    return payload / (payload + HEADER_BYTES)


def _remedy(limiting: Sequence[int], others: Sequence[int], nics: Mapping[int, str]) -> str:
    out = {nics[plane] for plane in limiting if plane in nics}
    rest = list(dict.fromkeys(nics[plane] for plane in others if plane in nics))
    if not rest or out & set(rest):
        return ""
    options = " ".join(f"-B {nic}" for nic in rest[:_MOST_NAMED]) + " ..." * (
        len(rest) > _MOST_NAMED
    )
    return f"; raise its MTU, or leave it out: {options}"


def silent_paths(
    host: str,
    planes: Sequence[int],
    dead: Iterable[int],
    nics: Mapping[int, str],
    arp: Mapping[int, str] | None = None,
) -> str:
    """Which paths to `host` do not answer; or "". `planes` has the plane of each EV, `arp` by plane
    the hosts where another interface may answer ARP for its addresses.
    """
    silent = [planes[index] for index in dead]
    if not silent:
        return ""
    whole = sorted({plane for plane in silent if silent.count(plane) == planes.count(plane)})
    parts = sorted(set(silent) - set(whole))
    lines = []
    if whole:
        verb = "does" if len(whole) == 1 else "do"
        doubt = next(filter(None, ((arp or {}).get(plane) for plane in whole)), "")
        lines.append(
            f"{plane_names(whole, nics)} to {host} {verb} not answer"
            + f": perhaps because several interfaces of {doubt} answer ARP for its address, as is"
            f" Linux's default: use IPv6 there, or {ARP_REMEDY}" * bool(doubt)
        )
    if parts:
        count = sum(plane in parts for plane in silent)
        total = sum(plane in parts for plane in planes)
        paths = f"{count} of {counted(total, 'path')} to {host}"
        lines.append(f"{paths} on {plane_names(parts, nics)} do not answer")
    return "; ".join(lines)


# ---- The window of PSNs --------------------------------------------------------------------------


def psns_for(link_bps: int, rtt_ns: int, path_mtu: int) -> int:
    """How many PSNs a QP may have in flight: a multiple of limits.MPR_UNIT from 1024 to MAX_MPR.

    The receiving side grants MAX_MPR; this costs it three bits per PSN. The sending side keeps 24
    bytes per PSN, so it uses only as many as its links and the round trip need. `link_bps` is the
    rate of all links together, `rtt_ns` the round trip of the longest plane, which blocks the
    window longest.
    """
    covered_ns = _ROUND_TRIPS * rtt_ns + LATE_NS
    window_bytes = max(link_bps * covered_ns // 8_000_000_000, _LEAST_WINDOW_BYTES)
    units = -(-window_bytes // (path_mtu * limits.MPR_UNIT))
    return min(max(units * limits.MPR_UNIT, _LEAST_PSNS), limits.MAX_MPR)
