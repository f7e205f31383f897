# SPDX-License-Identifier: Apache-2.0
"""Verdicts about paths, against a model whose truth the test knows."""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from path_model import Ev, Host, Run

from mrc.connect.proof import (
    ADDRESS_TRIES,
    BOUND_SECONDS,
    MOST_UNDER_WAY,
    NEAR_BYTES,
    SMALL_BYTES,
    Ask,
    Prover,
    common_sizes,
)
from mrc.limits import MIN_MTU


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
