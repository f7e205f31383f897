# SPDX-License-Identifier: Apache-2.0
"""The receive and send windows compared with Python sets and lists, around the wrap of PSNs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
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
