# SPDX-License-Identifier: Apache-2.0
"""The receive and send windows compared with Python sets and lists, around the wrap of PSNs; the
EVs of one plane with a list of states and a set for the rotation; PSN arithmetic with integers that
do not wrap.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from models.library import ffi, library

WRAP = 1 << 24
QUICK = settings(max_examples=60, stateful_step_count=40)
LONG = settings(max_examples=300, stateful_step_count=80)
FIRST_PSNS = st.one_of(st.integers(WRAP - 300, WRAP - 1), st.integers(0, WRAP - 1))
NEW, DUPLICATE, BEYOND = range(3)
FREE, UNSENT, INFLIGHT, LOST, ACKED = range(5)


class RxwinMachine(RuleBasedStateMachine):
    """PSNs are counted from the first, without a wrap."""

    @initialize(width=st.sampled_from([64, 128, 256, 1024]), first=FIRST_PSNS)
    def start(self, width: int, first: int) -> None:
        self.width, self.first = width, first
        self.win = ffi().gc(library().shim_rxwin_new(width, first), library().shim_rxwin_free)
        self.arrived: set[int] = set()
        self.ends: set[int] = set()  # last PSNs of messages
        self.others: set[int] = set()  # PSNs of packets with the other size
        self.told: set[int] = set()
        self.next = 0

    def psn(self, index: int) -> int:
        return (self.first + index) % WRAP

    def look(self) -> Any:
        out = ffi().new("struct shim_rxwin *")
        library().shim_rxwin_look(self.win, out)
        return out

    def bits(self, base: int) -> int:
        inside = range(base, min(base + 64, self.next + self.width))
        return sum(1 << (i - base) for i in inside if i in self.arrived)

    @rule(ahead=st.integers(-70, 1100), last=st.booleans(), other=st.booleans())
    def arrive(self, ahead: int, last: bool, other: bool) -> None:
        index = self.next + ahead
        verdict = library().shim_rxwin_judge(self.win, self.psn(index))
        if ahead >= self.width:
            assert verdict == BEYOND
        elif ahead < 0 or index in self.arrived:
            assert verdict == DUPLICATE
        else:
            assert verdict == NEW
            library().shim_rxwin_add(self.win, self.psn(index), last, other)
            self.arrived.add(index)
            self.ends |= {index} if last else set()
            self.others |= {index} if other else set()

    @rule(ahead=st.integers(0, 300), n=st.integers(1, 130))
    def arrive_in_a_run(self, ahead: int, n: int) -> None:
        for i in range(ahead, ahead + n):
            self.arrive(i, False, i % 3 == 0)

    @rule(most=st.integers(1, 200))
    def advance(self, most: int) -> None:
        others = ffi().new("uint32_t *")
        while most > 0 and self.next in self.arrived:
            seen = self.look()
            assert seen.ready
            assert seen.last == (self.next in self.ends)
            word_end = self.next + 64 - self.psn(self.next) % 64
            parts = itertools.takewhile(
                lambda index: index in self.arrived - self.ends, range(self.next, word_end)
            )
            run = list(parts)
            assert library().shim_rxwin_run(self.win, others) == len(run)
            assert others[0] == len(self.others.intersection(run))
            count = min(max(len(run), 1), most)
            library().shim_rxwin_advance(self.win, count)
            self.next += count
            most -= count
        if most > 0:
            assert not self.look().ready

    @rule(refused=st.booleans())
    def report(self, refused: bool) -> None:
        base = ffi().new("uint32_t *")
        bits = library().shim_rxwin_report(self.win, base)
        index = self.next + (base[0] - self.psn(self.next)) % WRAP
        assert index < self.next + self.width
        assert bits == self.bits(index)
        shown = {index + i for i in range(64) if bits >> i & 1}
        if refused:
            library().shim_rxwin_refuse(self.win, base[0])
        else:
            self.told |= shown

    @rule()
    def report_all(self) -> None:
        """Reports until no news is left cover all arrived PSNs."""
        for _ in range(2 + self.width // 64):
            self.report(False)
            if not self.look().has_news:
                break
        assert not self.look().has_news
        assert {i for i in self.arrived if i >= self.next} <= self.told

    @rule(ahead=st.integers(0, 1023))
    def view(self, ahead: int) -> None:
        base = self.next + ahead % self.width
        assert library().shim_rxwin_view(self.win, self.psn(base)) == self.bits(base)

    @invariant()
    def ends_agree(self) -> None:
        seen = self.look()
        end = max(self.arrived, default=-1) + 1
        assert seen.next_psn == self.psn(self.next)
        assert seen.end_psn == self.psn(max(end, self.next))


@dataclass(slots=True, eq=False)
class Packet:
    """The expected state of one PSN in the send window."""

    wqe: int
    size: int
    state: int = UNSENT
    ev: int = 0xFFFF
    ev_lost: int = 0xFFFF
    plane: int = 0
    tries: int = 0


class TxwinMachine(RuleBasedStateMachine):
    """Packets are a list from the oldest not acknowledged; `order` is the order of sending."""

    @initialize(width=st.sampled_from([1, 64, 200]), first=FIRST_PSNS)
    def start(self, width: int, first: int) -> None:
        self.room = 64 if width == 1 else 256 if width == 200 else width
        self.una, self.now = first, 0
        self.win = ffi().gc(library().shim_txwin_new(width, first), library().shim_txwin_free)
        self.packets: list[Packet] = []
        self.order: list[Packet] = []

    def psn(self, index: int) -> int:
        return (self.una + index) % WRAP

    def waiting(self) -> list[int]:
        return [i for i, packet in enumerate(self.packets) if packet.state in (UNSENT, LOST)]

    def inflight(self) -> list[int]:
        return [i for i, packet in enumerate(self.packets) if packet.state == INFLIGHT]

    @rule(n=st.integers(1, 40), size=st.integers(0, 9000))
    def open(self, n: int, size: int) -> None:
        for _ in range(min(n, self.room - len(self.packets))):
            assert library().shim_txwin_open(self.win, n, size) == self.psn(len(self.packets))
            self.packets.append(Packet(wqe=n, size=size))

    @precondition(lambda self: self.waiting())
    @rule(n=st.integers(1, 40), ev=st.integers(0, 1023), plane=st.integers(0, 31))
    def send(self, n: int, ev: int, plane: int) -> None:
        for index in self.waiting()[:n]:
            assert library().shim_txwin_first(self.win) == self.psn(index)
            self.now += 1
            library().shim_txwin_send(self.win, self.psn(index), ev, plane, self.now)
            packet = self.packets[index]
            packet.state, packet.ev, packet.plane = INFLIGHT, ev, plane
            packet.tries = min(packet.tries + 1, 31)
            self.order.append(packet)

    @precondition(lambda self: self.inflight())
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.inflight()))
        packet = self.packets[index]
        library().shim_txwin_refuse(self.win, self.psn(index))
        packet.tries -= 1
        packet.state = LOST if packet.tries else UNSENT
        self.order.remove(packet)

    @precondition(lambda self: self.inflight())
    @rule(data=st.data(), n=st.integers(1, 20))
    def lose(self, data: st.DataObject, n: int) -> None:
        first = data.draw(st.sampled_from(self.inflight()))
        for index in [i for i in self.inflight() if i >= first][:n]:
            packet = self.packets[index]
            library().shim_txwin_lose(self.win, self.psn(index))
            packet.state, packet.ev_lost = LOST, packet.ev
            self.order.remove(packet)

    @precondition(lambda self: self.packets)
    @rule(data=st.data(), n=st.integers(1, 70))
    def acknowledge(self, data: st.DataObject, n: int) -> None:
        first = data.draw(st.integers(0, len(self.packets) - 1))
        for psn in [self.psn(i) for i in range(first, min(first + n, len(self.packets)))]:
            if (index := (psn - self.una) % WRAP) >= len(self.packets):
                break  # behind the window, which has moved over it
            packet = self.packets[index]
            assert library().shim_txwin_acknowledge(self.win, psn) == packet.state
            if packet.state == INFLIGHT:
                self.order.remove(packet)
            packet.state = ACKED
            while self.packets and self.packets[0].state == ACKED:
                self.packets.pop(0)
                self.una = self.psn(1)

    @rule()
    def clear(self) -> None:
        library().shim_txwin_clear(self.win)
        self.una = self.psn(len(self.packets))
        self.packets, self.order = [], []

    @invariant()
    def books_agree(self) -> None:
        seen = ffi().new("struct shim_txwin *")
        library().shim_txwin_look(self.win, seen)
        assert (seen.una_psn, seen.next_psn) == (self.una, self.psn(len(self.packets)))
        assert seen.n_tosend == len(self.waiting())
        assert seen.inflight_bytes == sum(packet.size for packet in self.order)

    @invariant()
    def packets_agree(self) -> None:
        slot = ffi().new("struct shim_txslot *")
        for i, packet in enumerate(self.packets):
            library().shim_txwin_slot(self.win, self.psn(i), slot)
            got = (slot.wqe, slot.bytes, slot.state, slot.ev, slot.ev_lost, slot.plane, slot.tries)
            assert got == (
                packet.wqe, packet.size, packet.state, packet.ev, packet.ev_lost, packet.plane,
                packet.tries,
            )  # fmt: skip

    @invariant()
    def lists_agree(self) -> None:
        psns = ffi().new("uint32_t[]", self.room)
        place = {id(packet): self.psn(i) for i, packet in enumerate(self.packets)}
        for plane in {packet.plane for packet in self.packets}:
            n = library().shim_txwin_list(self.win, plane, psns, self.room)
            expected = [place[id(packet)] for packet in self.order if packet.plane == plane]
            assert list(psns[0:n]) == expected


class TestRxwin(RxwinMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = QUICK


class TestTxwin(TxwinMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = QUICK


@pytest.mark.slow
class TestRxwinLong(RxwinMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = LONG


@pytest.mark.slow
class TestTxwinLong(TxwinMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = LONG


# ---- EVs -----------------------------------------------------------------------------------------

EV_QUICK = settings(max_examples=10, stateful_step_count=50)
EV_LONG = settings(max_examples=500, stateful_step_count=100)
GOOD, SKIP, ASSUMED_BAD, DENIED = range(4)
NONE = 0xFFFF
EVS = st.integers(0, 15)


class EvMachine(RuleBasedStateMachine):
    """The engine chooses the backup; the model checks that one joins, and of which kind."""

    @initialize(n=st.integers(1, 16), active=st.integers(0, 16))
    def start(self, n: int, active: int) -> None:
        lib = library()
        self.n, self.now = n, 0
        self.set = ffi().gc(lib.shim_evset_new(n, active), lib.shim_evset_free)
        self.target = n if active == 0 else min(n, active)
        self.floor = max(1, self.target // 4)
        self.bad_since: dict[int, int] = {}
        self.states = [GOOD] * n
        self.rotation = self.see()[1]
        assert len(self.rotation) == self.target

    def see(self) -> tuple[list[int], set[int]]:
        out = ffi().new("struct shim_ev *")
        states, rotation = [], set()
        for ev in range(self.n):
            library().shim_evset_look(self.set, ev, out)
            states.append(out.state)
            rotation |= {ev} if out.active else set()
        return states, rotation

    def happen(self, event: int, ev: int) -> int:
        self.now += 1
        return int(library().shim_evset_event(self.set, event, ev, self.now))

    def backups(self) -> set[int]:
        return {ev for ev in range(self.n) if self.states[ev] == GOOD} - self.rotation

    def leave(self, ev: int) -> None:
        """The EV leaves the rotation; a backup, if any, joins it."""
        if ev not in self.rotation:
            return
        rotation = self.see()[1]
        came = rotation - self.rotation
        assert self.rotation - rotation == {ev}
        assert came <= self.backups()
        assert len(came) == min(1, len(self.backups()))
        self.rotation = rotation

    @rule(ev=EVS)
    def mark(self, ev: int) -> None:
        ev %= self.n
        changes = ev in self.rotation and self.states[ev] == GOOD
        assert self.happen(library().SHIM_MARKED, ev) == changes
        if changes:
            self.states[ev] = SKIP

    @rule(ev=EVS)
    def clear(self, ev: int) -> None:
        ev %= self.n
        self.happen(library().SHIM_CLEAR, ev)
        if self.states[ev] == SKIP:  # a repeated mark's pause ends later
            self.states[ev] = self.see()[0][ev]
            assert self.states[ev] in (GOOD, SKIP)

    @rule(ev=EVS)
    def lose(self, ev: int) -> None:
        ev %= self.n
        usable = self.states[ev] in (GOOD, SKIP)
        at_floor = ev in self.rotation and len(self.rotation) <= self.floor and not self.backups()
        oldest = min(self.bad_since, key=lambda bad: self.bad_since[bad], default=None)
        changes = usable and not (at_floor and oldest is None)
        assert self.happen(library().SHIM_LOST, ev) == changes
        if not changes:
            return
        if at_floor and oldest is not None:
            self.states[oldest] = GOOD
            del self.bad_since[oldest]
        self.leave(ev)
        self.states[ev] = ASSUMED_BAD
        self.bad_since[ev] = self.now

    @rule(ev=EVS)
    def trust(self, ev: int) -> None:
        ev %= self.n
        changes = self.states[ev] in (ASSUMED_BAD, DENIED)
        assert self.happen(library().SHIM_TRUSTED, ev) == changes
        if changes:
            self.states[ev] = GOOD
            self.bad_since.pop(ev, None)
            self.rotation |= {ev} if len(self.rotation) < self.target else set()

    @rule(ev=EVS)
    def deny(self, ev: int) -> None:
        ev %= self.n
        assert self.happen(library().SHIM_DENIED, ev) == (self.states[ev] != DENIED)
        if self.states[ev] != DENIED:
            self.leave(ev)
            self.states[ev] = DENIED
            self.bad_since.pop(ev, None)

    @rule(turns=st.integers(1, 40))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            ev = self.happen(library().SHIM_TURN, 0)
            assert (ev == NONE) == (not self.rotation)
            if ev == NONE:
                return
            assert ev in self.rotation
            states = self.see()[0]
            for other in range(self.n):
                if other in self.rotation:
                    assert states[other] in (GOOD, SKIP)
                else:
                    assert states[other] == self.states[other]
            self.states = states

    @rule()
    def turn_all_around(self) -> None:
        """Without marks each EV of the rotation has its turn within two rounds."""
        if any(self.states[ev] == SKIP for ev in self.rotation) or self.has_skip_level():
            return
        seen = {self.happen(library().SHIM_TURN, 0) for _ in range(2 * len(self.rotation))}
        assert seen >= self.rotation

    def has_skip_level(self) -> bool:
        out = ffi().new("struct shim_ev *")
        for ev in self.rotation:
            library().shim_evset_look(self.set, ev, out)
            if out.skip_level > 0:
                return True
        return False

    @invariant()
    def states_agree(self) -> None:
        states, rotation = self.see()
        assert states == self.states
        assert rotation == self.rotation
        assert all(states[ev] in (GOOD, SKIP) for ev in rotation)
        assert all(states[ev] != SKIP for ev in set(range(self.n)) - rotation)
        assert len(rotation) == self.target or not self.backups()


class TestEvs(EvMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = EV_QUICK


@pytest.mark.slow
class TestEvsLong(EvMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = EV_LONG


# ---- PSNs ----------------------------------------------------------------------------------------

HALF = WRAP // 2
PSNS = st.integers(0, WRAP - 1)
NEAR = st.integers(-HALF, HALF - 1)


@given(psn=PSNS, n=st.integers(0, (1 << 32) - 1))
@example(psn=WRAP - 1, n=1)
@example(psn=0, n=WRAP)
def test_add_and_sub__are_those_of_the_ring(psn: int, n: int) -> None:
    assert library().shim_psn_add(psn, n) == (psn + n) % WRAP
    assert library().shim_psn_sub(psn, n) == (psn - n) % WRAP


@given(psn=PSNS, distance=NEAR)
@example(psn=WRAP - 1, distance=HALF - 1)
@example(psn=0, distance=-HALF)
def test_diff__is_the_distance_that_was_gone(psn: int, distance: int) -> None:
    other = (psn + distance) % WRAP
    assert library().shim_psn_diff(other, psn) == distance
    assert library().shim_psn_before(other, psn) == (distance < 0)


@given(a=PSNS, b=PSNS)
def test_before__holds_for_one_of_two_unless_they_are_opposite(a: int, b: int) -> None:
    both = library().shim_psn_before(a, b), library().shim_psn_before(b, a)
    assert sum(both) == (0 if a == b else 2 if (a - b) % WRAP == HALF else 1)


@given(first=PSNS, n=st.integers(0, HALF - 1), ahead=NEAR)
@example(first=WRAP - 1, n=1, ahead=0)
@example(first=WRAP - 1, n=1, ahead=1)
def test_in__is_the_half_open_range(first: int, n: int, ahead: int) -> None:
    assert library().shim_psn_in((first + ahead) % WRAP, first, n) == (0 <= ahead < n)
