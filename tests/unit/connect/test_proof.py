# SPDX-License-Identifier: Apache-2.0
"""The proof of the paths: verdicts, probes, sizes, findings, and the window. A model of the paths
between two hosts runs a prover in virtual time.

In it, packets on one path keep their order. Hosts stall: while a host does, it neither answers nor
looks at answers, and all that waits comes at once afterwards. Answers return on any EV of the plane
that lives: the engine answers on a path that was proven (test_ev.c).
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import math
import re
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from endpoints import connected_pair, joined, loopback_config, pattern, transfer
from slowness import PATIENCE
from unit.test_tasks import in_virtual_time

from mrc.config import Queues, Spraying
from mrc.connect import proof
from mrc.connect.proof import (
    ADDRESS_TRIES,
    BOUND_SECONDS,
    MOST_UNDER_WAY,
    NEAR_BYTES,
    PEER,
    SMALL_BYTES,
    Ask,
    Proof,
    Prover,
    SizeSearch,
    common_sizes,
    plane_limits,
    plane_names,
    proof_of,
    prove,
    psns_for,
    silent_paths,
    sizes_between,
    smaller_packets,
)
from mrc.errors import QueueFullError, StateError
from mrc.events import ProbeResult
from mrc.limits import MIN_MTU
from mrc.linux import system

SMALL = 16


@dataclass
class Ev:
    limit: int  # the payload that it carries; 0: it is dead
    plane: int = 1
    delay: float = 0.0005
    jitter: float = 0.0
    loss: float = 0.0  # in each direction
    icmp: bool = False  # a router tells what is too large, and the kernel tells the wrong probe
    address: Hashable = None
    until: float = math.inf  # then it is dead
    arrived: list[float] = field(default_factory=lambda: [0.0, 0.0])  # the last, by direction

    def carry(self, rng: Random, now: float, way: int) -> float | None:
        """When a packet sent now arrives; None: never."""
        if rng.random() < self.loss or now >= self.until:
            return None
        self.arrived[way] = max(self.arrived[way], now + self.delay + rng.random() * self.jitter)
        return self.arrived[way]


@dataclass
class Host:
    stalls: Sequence[tuple[float, float]] = ()

    def runs(self, at: float) -> float:
        """The first time from `at` on at which the host runs."""
        for begin, end in self.stalls:
            if begin <= at < end:
                at = end
        return at


class Run:
    """Runs a prover over the EVs until it is done, or until `most` seconds have passed."""

    def __init__(
        self, evs: Sequence[Ev], agreed: int, rng: Random | None = None, *,
        here: Host | None = None, there: Host | None = None, allowance: int = 0,
        rtt: float = 0.0, most: float = 120.0, full_until: float = 0.0, tcp: Ev | None = None,
    ) -> None:  # fmt: skip
        self.evs, self.rng = evs, rng or Random(1)
        self._here, self._there = here or Host(), there or Host()
        self._full_until = full_until
        self._tcp = tcp
        self.asked: list[tuple[float, Ask]] = []
        self.bytes = 0
        self._coming: list[tuple[float, int, Ask, int, float]] = []  # number, errno, round trip
        self._order = count()
        self._ended: set[int] = set()
        self.prover = Prover(
            [ev.address for ev in evs], [ev.plane for ev in evs], agreed,
            allowance=allowance, rtt=rtt, asks_peer=tcp is not None,
        )  # fmt: skip
        self.seconds = self._run(most)
        self.carried = self.prover.carried

    def tries(self, index: int) -> list[int]:
        return [ask.payload for _, ask in self.asked if ask.index == index]

    def _run(self, most: float) -> float:
        now = self._here.runs(0.0)
        while True:
            # After a stall the timer of the prover may be seen before the answers are.
            asks = self.prover.advance(now) if self.rng.random() < 0.3 else []
            self._receive(now)
            asks += self.prover.advance(now)
            for ask in asks:
                self._send(ask, now)
            if self.prover.done or now > most:
                return now
            due = [self.prover.deadline, *(self._coming[0][:1] if self._coming else ())]
            now = self._here.runs(max(now, min(due)))

    def _receive(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            _, _, ask, error, sent = heapq.heappop(self._coming)
            if ask.number in self._ended:
                continue
            self._ended.add(ask.number)
            if error:
                self.prover.on_failure(ask.number, error)
            else:
                self.prover.on_answer(ask.number, now - sent, now)

    def _send(self, ask: Ask, now: float) -> None:
        if ask.index == PEER:
            self._send_over_tcp(ask, now)
            return
        self.asked.append((now, ask))
        self.bytes += ask.payload or SMALL
        if now < self._full_until:
            self.prover.on_refusal(ask.number, now)
            return
        ev, rng = self.evs[ask.index], self.rng
        self._comes(now + ask.timeout, ask, errno.ETIMEDOUT, now)
        if max(ask.payload, SMALL) > ev.limit:
            if ev.icmp and ev.limit and rng.random() < 0.5:
                self._comes(now + ev.delay, ask, errno.EMSGSIZE, now)
            return
        if ev.icmp and rng.random() < 0.02:
            self._comes(now, ask, errno.EMSGSIZE, now)
            return
        there = ev.carry(rng, now, 0)
        if there is None:
            return
        there = self._there.runs(there)
        back = rng.choice([each for each in self.evs if each.plane == ev.plane and each.limit])
        here = back.carry(rng, there, 1)
        if here is not None and self._here.runs(here) <= now + ask.timeout:
            self._comes(here, ask, 0, now)

    def _send_over_tcp(self, ask: Ask, now: float) -> None:
        """A question, and its answer, get there unless TCP is silent too."""
        assert self._tcp is not None
        if self._tcp.limit:
            there = self._there.runs(now + self._tcp.delay)
            self._comes(there + self._tcp.delay, ask, 0, now)

    def _comes(self, at: float, ask: Ask, error: int, sent: float) -> None:
        heapq.heappush(self._coming, (at, next(self._order), ask, error, sent))


# ---- Verdicts ------------------------------------------------------------------------------------


def evs(count: int, limit: int = 9000, **fields: Any) -> list[Ev]:
    return [Ev(limit, **fields) for _ in range(count)]


# ---- Named schedules ------------------------------------------------------------------------


def test_advance__every_ev_carries_the_agreed_size() -> None:
    run = Run(evs(8), 8844)
    assert run.carried == (8844,) * 8
    assert len(run.asked) == 8
    assert run.seconds == pytest.approx(0.001)


def test_advance__full_size_probes_do_not_flood_the_fabric() -> None:
    run = Run(evs(100), 8844)
    assert run.carried == (8844,) * 100
    at_once = [sum(1 for at, _ in run.asked if at == time) for time, _ in run.asked]
    assert max(at_once) == MOST_UNDER_WAY


@pytest.mark.parametrize("limit", [8843, 5000, 2049, 1500, 1400, 1309, 1224, 300, MIN_MTU])
@pytest.mark.parametrize("icmp", [False, True])
def test_advance__a_smaller_mtu_on_the_way_is_found(limit: int, icmp: bool) -> None:
    run = Run([*evs(2), *evs(8, limit, plane=2, icmp=icmp)], 8844)
    assert run.carried[:2] == (8844, 8844)
    assert all(limit - NEAR_BYTES < (found or 0) <= limit for found in run.carried[2:])
    assert run.seconds < 1


def test_advance__an_ev_that_carries_less_than_the_others_of_its_plane() -> None:
    first, second, third = Run([*evs(1, 1400), *evs(1, 1200), *evs(1, 1400)], 8844).carried
    assert 1200 - NEAR_BYTES < (second or 0) <= 1200
    assert min(first or 0, third or 0) >= (second or 0)


def test_advance__an_ev_that_carries_less_than_the_least_is_dead() -> None:
    assert Run([*evs(1), *evs(1, 100)], 1024).carried == (1024, 0)


def test_advance__dead_evs_beside_living_ones() -> None:
    run = Run([*evs(2), *evs(2, 0), *evs(1, 0, plane=2)], 8844)
    assert run.carried == (8844, 8844, 0, 0, 0)
    assert 1 <= run.seconds < 2
    assert sum(run.tries(2)) == 8844, "one full-size probe, then small ones"


def test_advance__nothing_answers() -> None:
    run = Run(evs(2, 0), 1024)
    assert run.carried == (0, 0)
    assert 4 <= run.seconds < 5


def test_advance__answers_that_come_after_seconds() -> None:
    """The peer's host does not run for three seconds, nothing else has answered."""
    run = Run(evs(4, 1224), 1408, there=Host([(0.0, 3.0)]))
    assert run.carried == (1224,) * 4


def test_advance__a_long_sleep_of_this_host() -> None:
    """Time in which this process did not run is no evidence."""
    run = Run(evs(4, 1224), 1408, here=Host([(0.01, 20.0)]))
    assert run.carried == (1224,) * 4
    run = Run([*evs(2), *evs(2, 0)], 1408, here=Host([(0.01, 20.0)]))
    assert run.carried == (1408, 1408, 0, 0)


TCP = Ev(1, delay=0.002)


def test_advance__a_peer_that_is_stopped_is_asked_over_tcp() -> None:
    """Nothing answers for 30 s, TCP neither: no verdict, and the tries of its address are kept."""
    for address in (None, "a"):
        made = evs(4, 1224, address=address)
        run = Run(made, 1408, there=Host([(0.0, 30.0)]), tcp=TCP, allowance=5000)
        assert run.carried == (1224,) * 4
        run = Run(made, 1408, there=Host([(0.0005, 30.0)]), tcp=TCP, allowance=5000)
        assert run.carried == (1224,) * 4


def test_advance__nothing_answers_except_tcp() -> None:
    for address in (None, "a"):
        run = Run(evs(2, 0, address=address), 1024, tcp=TCP, allowance=5000)
        assert run.carried == ((0, 0) if address is None else (None, None))
        assert 4 <= run.seconds < 5


def test_advance__nothing_answers_and_tcp_is_silent_too() -> None:
    run = Run(evs(2, 0), 1024, tcp=Ev(0), most=100)
    assert not run.prover.done


def test_advance__a_busy_process_asks_less_often() -> None:
    """It sees the answers later than they came."""

    def asked(late: float) -> int:
        prover, now, number = Prover([None] * 2, [1, 1], 1408, rtt=0.001), 0.0, 0
        coming: list[Any] = []
        while now < 0.9:
            for answered, at in [each for each in coming if each[1] <= now]:
                prover.on_answer(answered, 0.001, now)
                coming.remove((answered, at))
            for ask in prover.advance(now):
                number += 1
                if ask.index == 0:
                    coming.append((ask.number, now + 0.001 + late))
            now = min([prover.deadline, *(at for _, at in coming)])
        return number

    assert asked(late=0.05) < asked(late=0.0)


def test_advance__a_round_trip_of_600_ms() -> None:
    run = Run(evs(8, 1224, delay=0.3), 1408, rtt=0.6)
    assert run.carried == (1224,) * 8
    assert run.seconds < 5


def test_advance__planes_with_very_different_round_trips() -> None:
    run = Run([*evs(2), *evs(2, plane=2, delay=0.4)], 8844)
    assert run.carried == (8844,) * 4


@pytest.mark.parametrize("address", [None, "a"])
def test_on_refusal__probes_pause_and_nothing_is_concluded(address: str | None) -> None:
    """For six seconds the probes of other QPs fill the table of this host."""
    run = Run(evs(4, 1224, address=address), 1408, allowance=1000, full_until=6.0)
    assert run.carried == (1224,) * 4
    assert sum(1 for at, _ in run.asked if 1 < at < 6) < 80


@pytest.mark.parametrize(("loss", "seed"), [(0.5, 3), (0.65, 0)])
def test_advance__ends_when_nothing_is_certain(loss: float, seed: int) -> None:
    """So many packets are lost in each direction. What has answered then counts."""
    run = Run(evs(4, 1224, loss=loss), 1408, Random(seed))
    assert run.seconds < BOUND_SECONDS + 1
    assert all(found is not None and found <= 1224 for found in run.carried)
    assert any(run.carried)


def test_advance__an_ev_that_answers_needs_no_witness() -> None:
    """Others get few probes while one searches for its size."""
    run = Run([*evs(1), *evs(1, 1400, plane=2)], 8844)
    assert len(run.tries(0)) < len(run.tries(1)) / 10


# ---- Addresses that the peer named ----------------------------------------------------------


def test_advance__an_address_answers_a_small_probe_before_it_gets_large_ones() -> None:
    run = Run([*evs(2, address="a"), *evs(2, address="b")], 8844, allowance=1000)
    assert run.carried == (8844,) * 4
    assert [run.tries(index) for index in range(4)] == [[0, 8844], [8844], [0, 8844], [8844]]


@pytest.mark.parametrize("seed", range(8))
def test_advance__addresses_that_answer_once(seed: int) -> None:
    """Their ARP entries change then, for instance. Neither is the only witness of the other."""
    once = [
        Ev(0 if n else SMALL, plane, address=plane, until=0.01)
        for plane in (1, 2)
        for n in range(3)
    ]
    evs = [*once, Ev(1408, 3, address=3), Ev(1408, 3, address=3)]
    run = Run(evs, 1408, Random(seed), allowance=10_000, tcp=Ev(1408))
    assert run.carried == (0,) * 6 + (1408,) * 2
    assert run.seconds < BOUND_SECONDS / 2


def test_advance__an_address_that_never_answers_gets_small_probes_only() -> None:
    run = Run([*evs(1, address="a"), *evs(2, 0, address="b")], 8844, allowance=10_000)
    assert run.carried == (8844, None, None)
    assert run.tries(1) + run.tries(2) == [0] * ADDRESS_TRIES
    assert 2 <= run.seconds < 3


def test_advance__one_dead_ev_does_not_condemn_its_address() -> None:
    run = Run([*evs(1, 0, address="a"), *evs(2, address="a")], 8844, allowance=10_000)
    assert run.carried == (0, 8844, 8844)


@pytest.mark.parametrize("allowance", [0, SMALL_BYTES - 1, SMALL_BYTES, 5 * SMALL_BYTES + 7])
def test_advance__addresses_that_never_answer_get_no_more_than_the_allowance(
    allowance: int,
) -> None:
    run = Run([ev for n in range(32) for ev in evs(1, 0, address=n)], 8844, allowance=allowance)
    assert run.carried == (None,) * 32
    assert len(run.asked) == allowance // SMALL_BYTES


# ---- Random schedules -----------------------------------------------------------------------


def stalls(rng: Random, kind: str) -> Host:
    """A host that is idle; or busy: often does not run for some time; or asleep: once for long."""
    if kind == "asleep":
        begin = 0.8 * rng.random()
        return Host([(begin, begin + rng.choice((3, 30)) * rng.random())])
    often, longest = {"idle": (9e9, 0.0), "busy": (0.02, 0.02), "laden": (0.1, 0.4)}[kind]
    spans, at = [], 0.0
    while at < 60:
        at += rng.expovariate(1 / often)
        spans.append((at, at + longest * rng.random() ** 3))
        at = spans[-1][1]
    return Host(spans)


def drawn(rng: Random) -> tuple[list[Ev], int, float]:
    """EVs of some planes, the agreed payload, and the round trip of the exchange."""
    agreed = rng.choice((1408, 1428, 8928))
    delay = 10 ** rng.uniform(-4.3, -0.9)
    loss, icmp = rng.choice((0, 0, 0, 0.001, 0.01, 0.05)), rng.random() < 0.5
    made = []
    for plane in range(1, rng.choice((1, 1, 2, 4)) + 1):
        limit = rng.choice((agreed, agreed, 1208, rng.randrange(1180, agreed + 1)))
        way = delay * rng.uniform(1, 3)
        common_to_all = Ev(limit, plane, way, way * rng.choice((0, 0, 0.1, 0.5)), loss, icmp)
        for number in range(rng.choice((1, 2, 4, 8))):
            fate = rng.random()
            own = rng.randrange(600, limit) if fate < 0.05 else limit
            own = 0 if fate > 0.95 and number else own
            made.append(replace(common_to_all, limit=own, arrived=[0.0, 0.0]))
    return made, agreed, 2 * delay


def test_advance__many_qps_of_a_busy_host_do_not_repeat_what_it_has_not_read() -> None:
    """Each probe costs the host 1 ms twice: when it is sent, and when its answer is read."""
    provers, now, sent = [Prover([None] * 8, [1] * 8, 8192) for _ in range(64)], 0.0, 0
    unread: deque[tuple[float, Prover, Ask]] = deque()
    while not all(prover.done for prover in provers):
        for prover in provers:
            for ask in prover.advance(now):
                unread.append((now, prover, ask))
                now, sent = now + 0.001, sent + 1
        for _ in range(min(64, len(unread))):
            asked, prover, ask = unread.popleft()
            now += 0.001
            if now - asked < ask.timeout:
                prover.on_answer(ask.number, now - asked, now)
            else:
                prover.on_failure(ask.number, errno.ETIMEDOUT)
        now += 0.001
        assert sent < 8 * 8 * 64, now


def contradictions(run: Run, agreed: int) -> list[str]:
    """Verdicts that are not true."""
    wrong = [] if run.prover.done else ["it has not ended"]
    for ev, found in zip(run.evs, run.carried, strict=True):
        if bool(found) is not (ev.limit >= MIN_MTU) or (found or 0) > ev.limit:
            wrong.append(f"{found} for {ev}")
    for plane in {ev.plane for ev in run.evs}:
        pairs = zip(run.evs, run.carried, strict=True)
        both = [(found, ev.limit) for ev, found in pairs if ev.plane == plane and found]
        limit = min((limit for _, limit in both), default=0)
        # On a long way the search may end with a common size.
        least = max((size for size in [*common_sizes(agreed), agreed] if size <= limit), default=0)
        if min((found for found, _ in both), default=0) < least:
            wrong.append(f"plane {plane}: {both}")
    return wrong


def try_seeds(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        made, agreed, rtt = drawn(rng)
        if rng.random() < 0.5:
            for ev in made:
                ev.address = ev.plane
        here, there = (stalls(rng, rng.choice(("idle", "busy", "laden", "asleep"))) for _ in "ab")
        tcp = Ev(1, delay=rtt / 2)
        run = Run(made, agreed, rng, here=here, there=there, allowance=5000, rtt=rtt, tcp=tcp)
        assert not contradictions(run, agreed), f"seed {seed}"


def test_advance__no_verdict_that_the_truth_contradicts() -> None:
    try_seeds(range(60))


@pytest.mark.slow
def test_advance__no_verdict_that_the_truth_contradicts__in_hundreds() -> None:
    try_seeds(range(60, 600))


# ---- Probes --------------------------------------------------------------------------------------


RTT_NS = 1_000_000


class Fabric:
    """Carries probes of up to `limits[index]` bytes; 0: a dead EV. No room for `full` probes."""

    def __init__(self, limits: list[int], *, full: int = 0) -> None:
        self.limits, self.full = limits, full
        self.probes = 0
        self.under_way = 0
        self.begun = asyncio.Event()

    async def probe(self, index: int, payload: int, timeout: float) -> ProbeResult:
        self.probes += 1
        if self.probes <= self.full:
            raise QueueFullError("all slots are taken")
        self.under_way += 1
        self.begun.set()
        try:
            await asyncio.sleep(RTT_NS / 1e9 if max(payload, 1) <= self.limits[index] else timeout)
        finally:
            self.under_way -= 1
        if max(payload, 1) <= self.limits[index]:
            return ProbeResult(index, 0, RTT_NS)
        return ProbeResult(index, errno.ETIMEDOUT, None)


@in_virtual_time
async def test_prove__every_ev_carries_the_agreed_size() -> None:
    fabric = Fabric([9000] * 8)
    proof = await prove(fabric.probe, [None] * 8, 8844, planes=[1, 2] * 4)
    assert proof == Proof({1: 8844, 2: 8844}, ())
    assert fabric.probes == 8


@in_virtual_time
async def test_prove__a_smaller_mtu_and_no_probe_is_left_behind() -> None:
    fabric = Fabric([9000, 1408, 1408])
    proof = await prove(fabric.probe, [None] * 3, 8844, planes=[1, 2, 2])
    assert proof == Proof({1: 8844, 2: 1408}, ())
    assert fabric.under_way == 0


@in_virtual_time
async def test_prove__does_not_wait_for_late_answers() -> None:
    fabric = Fabric([1408, 0])

    async def probe(index: int, payload: int, timeout: float) -> ProbeResult:
        return await fabric.probe(index, payload, timeout if index == 0 else PATIENCE)

    async with asyncio.timeout(PATIENCE / 2):
        proof = await prove(probe, [None] * 2, 1408, planes=[1, 1])
    assert proof == Proof({1: 1408}, (1,))
    assert fabric.under_way == 0


@in_virtual_time
async def test_prove__no_room_for_probes_is_no_evidence() -> None:
    """The probes of other QPs may fill the engine's table."""
    fabric = Fabric([1408] * 4, full=40)
    assert (await prove(fabric.probe, [None] * 4, 1408, planes=[1] * 4)).mtu == 1408


@pytest.mark.parametrize("destinations", [[None], ["a"], ["a", "b"]])
@in_virtual_time
async def test_prove__raises_the_error_of_a_probe(destinations: list[str | None]) -> None:
    """For example, when the program of an agent's QP ends meanwhile."""

    async def closed(index: int, payload: int, timeout: float) -> ProbeResult:
        raise StateError("the Context was closed")

    with pytest.raises(StateError, match="the Context was closed"):
        await prove(closed, destinations, 8844, 1000, planes=[1] * len(destinations))


@in_virtual_time
async def test_prove__cancelled_in_the_middle() -> None:
    fabric = Fabric([0] * 4)
    proving = asyncio.create_task(prove(fabric.probe, [None] * 4, 1408, planes=[1] * 4))
    await fabric.begun.wait()
    proving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await proving
    assert fabric.under_way == 0


def test_proof_of__the_least_of_the_living_counts() -> None:
    carried = (1408, 1208, 0, None, 8844)
    assert proof_of(carried, [1, 1, 1, 2, 3]) == Proof({1: 1208, 3: 8844}, (2,), (3,))
    assert proof_of(carried, [1, 1, 1, 2, 3]).mtu == 1208
    assert proof_of((0, None), [1, 2]).mtu == 0


# ---- Sizes ---------------------------------------------------------------------------------------


NEEDED = 4


def search(limit: int, goal: int, *, refine: bool = True) -> tuple[SizeSearch, int]:
    """A search that is over, and how many probes it needed."""
    made = SizeSearch(goal)
    made.widen()
    probes = 0
    while not made.over:
        for size in made.next_sizes():
            probes += 1
            (made.on_answer if size <= limit else made.on_miss)(size)
        made.settle(NEEDED, refine=refine)
    return made, probes


@pytest.mark.parametrize("limit", [8843, 5000, 2049, 1500, 1408, 1400, 1309, 1308, 1240, 300, 256])
def test_search__finds_the_size(limit: int) -> None:
    found, probes = search(limit, 8844)
    assert limit - NEAR_BYTES < found.low <= limit
    assert found.low % 4 == 0
    assert probes < 80


@pytest.mark.parametrize(
    ("room", "payload"),
    [(1500 - 92, 1408), (1500 - 72, 1428), (1420 - 92, 1328), (1400 - 72, 1328)],
)
def test_search__finds_common_sizes_exactly(room: int, payload: int) -> None:
    found, probes = search(room, 8908)
    assert found.low == payload
    assert probes < 60


def test_search__of_a_path_that_carries_the_goal_asks_once() -> None:
    found, probes = search(9000, 1408)
    assert (found.low, found.failed) == (1408, False)
    assert probes == len(common_sizes(1408)) + 1


def test_search__of_a_path_that_carries_less_than_the_least() -> None:
    found, _ = search(100, 8844)
    assert (found.low, found.above, found.over) == (0, MIN_MTU, True)


def test_search__without_time_ends_with_a_common_size() -> None:
    assert search(1500, 8908, refine=False)[0].low == 1428


def test_settle__fewer_misses_than_needed_decide_nothing() -> None:
    made = SizeSearch(1408)
    for _ in range(NEEDED - 1):
        made.on_miss(1408)
        made.settle(NEEDED, refine=True)
        assert not made.failed and not made.over
    made.on_miss(1408)
    made.settle(NEEDED, refine=True)
    assert made.failed and made.over


def test_on_answer__a_late_answer_overturns_too_large() -> None:
    made = SizeSearch(1408)
    for _ in range(NEEDED):
        made.on_miss(1408)
    made.settle(NEEDED, refine=True)
    made.widen()
    assert 1408 not in made.next_sizes()
    made.on_answer(1408)
    assert (made.low, made.failed, made.over) == (1408, False, True)


def test_next_sizes__only_those_that_decide_are_asked_again() -> None:
    made = SizeSearch(1408)
    made.widen()
    made.next_sizes()
    made.on_answer(1208)
    assert made.next_sizes() == [1308, 1328]


@pytest.mark.parametrize("above", [260, 1000, 1024, 8844, 16384])
def test_common__falls_to_the_least(above: int) -> None:
    sizes = common_sizes(above)
    assert all(size < above for size in sizes)
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] == MIN_MTU
    assert all(size % 4 == 0 for size in sizes)


@pytest.mark.parametrize(("low", "above"), [(256, 512), (1408, 2048), (4096, 8844), (1308, 1328)])
def test_between__a_few_sizes_inside(low: int, above: int) -> None:
    sizes = sizes_between(low, above)
    assert 1 <= len(sizes) <= 7
    assert low < sizes[0] and sizes[-1] < above
    assert all(size % 4 == 0 for size in sizes)


def test_between__nothing_is_left_to_find() -> None:
    assert sizes_between(1308, 1308 + NEAR_BYTES) == []


# ---- Findings ------------------------------------------------------------------------------------


NICS = {1: "eth1", 2: "eth2", 3: "eth3"}


@pytest.mark.parametrize(
    ("mtu", "allowed", "found", "said"),
    [
        (8908, {1: 8908, 2: 8908}, {1: 8908, 2: 8908}, "^$"),
        (1388, {1: 1408, 2: 1388}, {1: 1388, 2: 1388}, "^$"),  # IPv4 and IPv6
        # One plane slows down the others.
        (1308, {1: 8908, 2: 8908, 3: 8908}, {1: 8908, 2: 1308, 3: 8908},
         r"^plane 2 \(eth2\) to h1 carries only 1308 bytes in a packet, other planes 8908: all "
         "planes use 1308, which costs 6% of the rate and 6.8 times as many packets; raise its "
         "MTU, or leave it out: -B eth1 -B eth3$"),
        (1376, {1: 1428, 2: 1428}, {1: 1428, 2: 1376},
         "all planes use 1376, which costs 4% more packets; raise"),
        (1124, {1: 1428, 2: 1428}, {1: 1428, 2: 1124},
         "which costs 2% of the rate and 27% more packets; raise"),
        # An interface has a smaller MTU: probes of the size that every interface allows passed.
        (1408, {1: 8908, 2: 1408}, {1: 1408, 2: 1408},
         r"^plane 2 \(eth2\) to h1 carries only 1408 bytes in a packet, other planes .*"
         "leave it out: -B eth1$"),
        # All planes; only the peer noticed.
        (1308, {1: 1408, 2: 1408}, {1: 1308, 2: 1308},
         "^packets to h1 carry 1308 bytes, not 1408: on every plane a link on the way has a "
         "smaller MTU$"),
        (1308, {1: 1408}, {1: 1408}, "^packets to h1 carry 1308 bytes, not 1408: h1 reports"),
    ],
)  # fmt: skip
def test_smaller_packets__in_a_line(
    mtu: int, allowed: dict[int, int], found: dict[int, int], said: str
) -> None:
    assert re.search(said, smaller_packets("h1", mtu, allowed, found, NICS))


def test_smaller_packets__no_remedy_when_the_planes_share_an_interface() -> None:
    line = smaller_packets("h1", 1308, {1: 8908, 2: 8908}, {1: 1308, 2: 8908}, {1: "a", 2: "a"})
    assert "-B" not in line


def test_silent_paths__whole_planes_and_parts() -> None:
    planes = [1, 1, 2, 2, 3, 3]
    assert silent_paths("h1", planes, [], NICS) == ""
    assert silent_paths("h1", planes, [2, 3], NICS) == "plane 2 (eth2) to h1 does not answer"
    assert silent_paths("h1", planes, [0, 2, 3, 4, 5], NICS) == (
        "planes 2 (eth2) and 3 (eth3) to h1 do not answer;"
        " 1 of 2 paths to h1 on plane 1 (eth1) do not answer"
    )


def test_named__many_planes() -> None:
    assert plane_names(range(1, 5), {}) == "planes 1, 2, 3 and 4"
    assert plane_names(range(1, 8), {}) == "planes 1, 2, 3, 4 and 3 more"


def test_limits__the_least_of_each_plane() -> None:
    limits = plane_limits([(1, 8908), (2, 1408), (1, 1388), (3, 9999)], 8908)
    assert limits == {1: 1388, 2: 1408, 3: 8908}


# ---- The window ----------------------------------------------------------------------------------


US, MS = 1_000, 1_000_000


@pytest.mark.parametrize(
    ("link_bps", "rtt_ns", "path_mtu", "psns"),
    [
        # A rack: the minimum in bytes, so more PSNs if packets are small.
        (4 * 10**8, 50 * US, 8844, 1024),
        (4 * 10**10, 100 * US, 8844, 1024),
        (4 * 10**8, 50 * US, 1384, 2048),
        (4 * 10**8, 50 * US, 1408, 2048),
        (4 * 10**10, 100 * US, 1384, 2560),
        (10**8, 50 * US, 256, 4096),
        # A campus, a country, an ocean.
        (2 * 10**9, 5 * MS, 8844, 1024),
        (2 * 10**9, 25 * MS, 8844, 1536),
        (4 * 10**8, 25 * MS, 1384, 2048),
        (4 * 10**8, 100 * MS, 8844, 1152),
        (4 * 10**8, 100 * MS, 1384, 4096),
        (2 * 10**9, 100 * MS, 8844, 4096),
        (4 * 10**11, 10**10, 256, 4096),
        (0, 0, 8844, 1024),
    ],
)
def test_psns_for__table(link_bps: int, rtt_ns: int, path_mtu: int, psns: int) -> None:
    assert psns_for(link_bps, rtt_ns, path_mtu) == psns


@pytest.mark.parametrize("speed", ["", "-1\n", "0\n", "unknown\n", None])
def test_links_bps__what_does_not_know_its_rate_counts_as_10_gbits(
    tmp_path: Path, speed: str | None
) -> None:
    for nic, text in (("eth0", "1000\n"), ("eth1", speed)):
        (tmp_path / nic).mkdir()
        if text is not None:
            (tmp_path / nic / "speed").write_text(text)
    assert system.links_bps(["eth0"], tmp_path) == 10**9
    assert system.links_bps(["eth1", "eth0", "eth0"], tmp_path) == system.UNKNOWN_BPS + 10**9


def test_links_bps__of_the_slowest_that_has_a_rate(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/speed").write_text("1\n")
    assert system.links_bps(["slow"], tmp_path) == 10**6


@pytest.mark.parametrize(
    ("options", "psns"),
    [
        ({}, 1024),
        ({"spraying": Spraying(mtu_limit=1384)}, 2048),
        ({"spraying": Spraying(mtu_limit=256)}, 4096),
        ({"queues": Queues(mpr=128)}, 128),
    ],
    ids=str,
)
async def test_connect__as_many_psns_as_the_way_calls_for(
    options: dict[str, Any], psns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "LATE_NS", 0)
    monkeypatch.setattr(system, "UNKNOWN_BPS", 1_000_000)  # this host's load must not matter
    async with connected_pair(**options) as pair:
        for qp in (pair.near, pair.far):
            assert qp.mpr == (await qp.info()).peer_mpr == psns


async def test_connect__each_end_keeps_to_what_the_other_grants() -> None:
    small, data = Spraying(mtu_limit=256), pattern(2_000_000)
    far = loopback_config(spraying=small, queues=Queues(mpr=256))
    async with joined(loopback_config(spraying=small), far) as pair:
        assert (pair.near.mpr, pair.far.mpr) == (256, 256)
        assert await transfer(pair, data) == data
