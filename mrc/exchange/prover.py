# SPDX-License-Identifier: Apache-2.0
"""Decides which EVs live and what they carry: answers and a time in, probes and verdicts out.

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

Time in which this process itself did not run does not count. If the caller can ask the peer over
TCP, neither does time in which the peer answered nothing at all: it may be stopped or unreachable.
In each plane one EV, the leader, searches for the size; the other EVs of the plane then confirm
what it found.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Hashable, Sequence

from msgspec import Struct, field

from mrc.exchange.sizes import AGAIN, SizeSearch

PEER = -1  # index of an Ask that is a question over TCP: does the peer's program run?
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
_ASK_SECONDS = 0.5  # with two round trips: after such a silence the peer is asked over TCP
_REFINE_SECONDS = 4.0  # after the first answer no more searches between common sizes begin
_GRACE_SECONDS = 0.02  # packets of one EV overtake each other by less
_WITNESS_GRACE_SECONDS = 0.1  # the same for different EVs
# How long an answer may come, at first and when hosts are late. No verdict waits for it. With a
# shorter time a busy host that proves many QPs asks again for what it has not read yet, and so on.
_TIMEOUT_SECONDS = (4.0, 8.0)
_OVERSLEPT_SECONDS = 0.005
_LONG_SECONDS = 0.1  # with a longer round trip a control leaves with the first probe
_MISSES = (4, 16)  # needed for a verdict, at least and at most
_CHANCE = 1e-5
_LEAST_ROUNDS = 3  # of which none could be sent, or none was answered on any EV


class Ask(Struct, frozen=True):
    """A probe to send: `payload` bytes on EV `index`; 0: small. `number` names it.

    `index` PEER: a question over TCP, which has no timeout.
    """

    number: int
    index: int
    payload: int
    timeout: float


class _Plane(Struct, eq=False):
    goal: int  # what its EVs have to carry
    leader: _Ev | None = None
    opened: bool = False
    searched: bool = False
    rtt: float = math.inf  # the shortest, in seconds: waiting longer is not the path's fault
    timeout: float = _TIMEOUT_SECONDS[0]
    heard: float = math.inf  # when its first answer came

    @property
    def grace(self) -> float:
        """By how much packets of one EV and their answers may overtake each other."""
        return max(_GRACE_SECONDS, self.rtt / 4 if self.rtt < math.inf else 0.0)


class _Address(Struct, eq=False):
    evs: list[_Ev] = field(default_factory=list)
    answered: bool = False
    over: bool = False  # and has not answered
    tries: int = 0
    since: float = 0.0  # of the first try
    ran: float = 0.0  # how long the peer had run then
    next: float = 0.0


class _Ev(Struct, eq=False):
    index: int
    plane: _Plane
    address: _Address | None  # which has to answer first
    search: SizeSearch
    alive: bool = False  # it has answered
    dead: bool = False
    missed: int = 0  # controls since the last answer, by witnesses
    unsent: int = 0  # small probes since the last answer that could not be sent
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


class _Probe(Struct, eq=False):
    ev: _Ev
    payload: int
    sent: float
    answered: bool = False


class _Round(Struct, eq=False):
    """What leaves together on one EV."""

    ev: _Ev
    sent: float
    control: _Probe
    sizes: list[_Probe] = field(default_factory=list)
    witness: _Probe | None = None
    due: float = math.inf  # when missing answers count as missed

    @property
    def probes(self) -> list[_Probe | None]:
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
        self._planes = {plane: _Plane(agreed) for plane in planes}
        addresses = {each: _Address() for each in destinations if each is not None}
        self._addresses = list(addresses.values())
        self._evs = [
            _Ev(index, self._planes[plane], addresses.get(destination), SizeSearch(agreed))
            for index, (destination, plane) in enumerate(zip(destinations, planes, strict=True))
        ]
        for ev in self._evs:
            if ev.address is not None:
                ev.address.evs.append(ev)
        self._under_way: dict[int, _Probe] = {}
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

    # ---- Input ----------------------------------------------------------------------------

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

    # ---- Output ---------------------------------------------------------------------------

    def advance(self, now: float) -> list[Ask]:
        """The probes to send now. Judges first what is due."""
        if self._start == math.inf:
            self._start = self._answered = self.deadline = now
        self._now = self._awake(now)
        self._judge_rounds()
        self._count_large()
        self._ask_peer()
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
        """For how long the peer is known to have run."""
        return self._seconds if self._asks_peer else self._now - self._start

    @property
    def _ask_seconds(self) -> float:
        return _ASK_SECONDS + 2 * self._rtt

    def _count_large(self) -> None:
        """Older ones have left the queues."""
        since = self._now - max(_FIRST_WAIT_SECONDS, 2 * self._longest_rtt)
        probes = self._under_way.values()
        self._large = sum(1 for probe in probes if probe.payload and probe.sent > since)

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

    # ---- Probes ---------------------------------------------------------------------------

    def _ask_peer(self) -> None:
        """Asks over TCP after a silence, one question at a time."""
        silent = self._now - self._answered >= self._ask_seconds
        if self._asks_peer and silent and not self._question and not self.done:
            self._number += 1
            self._question = self._number
            self._asks.append(Ask(self._number, PEER, 0, math.inf))

    def _try(self, address: _Address) -> None:
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

    def _run(self, ev: _Ev) -> None:
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

    def _round(self, ev: _Ev, sizes: Sequence[int]) -> None:
        """Sends probes of these sizes, and behind them the small ones."""
        probes = [self._ask(ev, size) for size in sizes]
        witness = None
        control = self._ask(ev, 0)
        if not ev.alive or ev.rounds >= _MISSES[0]:
            witness = self._witness(ev)
        self._rounds.append(_Round(ev, self._now, control, probes, witness))
        ev.since = min(ev.since, self._now)
        ev.rounds += 1
        ev.next = self._now + self._gap(ev, len(sizes))

    def _gap(self, ev: _Ev, sizes: int) -> float:
        """The time until the next round; answers shorten it."""
        gap = max(_GAP_SECONDS, 2 * self._late)  # a busy process must not make itself busier
        if sizes > AGAIN:  # what to ask next depends on the answers
            return 4 * gap + 2 * ev.plane.rtt
        free = self._needed if ev.alive else 0
        doublings = max(0, ev.rounds - free) + (0 if ev.alive else 1)
        return min(gap * (1 << min(doublings, 8)), _LONGEST_GAP_SECONDS)

    def _witness(self, ev: _Ev) -> _Probe | None:
        """A small probe on another EV that answers, of the same plane if there is one."""
        others = [each for each in self._evs if each.alive and not each.dead and each is not ev]
        near = [each for each in others if each.plane is ev.plane] or others
        return self._ask(near[self._number % len(near)], 0) if near else None

    def _ask(self, ev: _Ev, payload: int) -> _Probe:
        self._number += 1
        self._large += payload > 0
        probe = self._under_way[self._number] = _Probe(ev, payload, self._now)
        self._asks.append(Ask(self._number, ev.index, payload, self._timeout(ev)))
        return probe

    def _timeout(self, ev: _Ev) -> float:
        if ev.address is not None and not ev.address.answered:
            return _TIMEOUT_SECONDS[1]  # it gets a few probes only
        return min(ev.plane.timeout + 2 * self._longest_rtt, _TIMEOUT_SECONDS[1])

    # ---- Verdicts -------------------------------------------------------------------------

    def _conclude(self, ev: _Ev) -> None:
        """Draws the conclusions about one EV from its answers and misses."""
        plane = ev.plane
        ev.dead = self._is_dead(ev)
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

    def _is_dead(self, ev: _Ev) -> bool:
        if ev.rounds >= _LEAST_ROUNDS and (self._is_silence or ev.unsent >= ev.rounds):
            return True
        quiet = self._now - ev.since >= _QUIET_SECONDS + 2 * self._longest_rtt
        return quiet and ev.missed >= self._needed

    def _is_silent(self, address: _Address) -> bool:
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
