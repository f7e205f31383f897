# SPDX-License-Identifier: Apache-2.0
"""Who gets a place, an attempt or memory, and who gives his place to a newcomer."""

from __future__ import annotations

import heapq
import itertools
import os
import resource
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Any

import pytest

from mrc.config import Limits
from mrc.connect.admission import (
    Admission,
    Attempts,
    Buckets,
    Budget,
    BudgetError,
    Claims,
    ConnectionPlace,
    Evictable,
    _descriptor_limit,
    origin_of,
    source_of,
    victim,
)
from mrc.engine.paths import PeerSource
from mrc.errors import BusyError, ConnectError
from mrc.linux.system import raise_descriptor_limit

LIMITS = Limits(max_pending=8, max_pending_per_source=2, max_qps=16, max_qps_per_source=4)


SECONDS = itertools.count()  # far apart


def admission(limits: Limits = LIMITS, *, descriptors: int = 1024) -> Admission:
    return Admission(limits, descriptors=lambda: descriptors)


def enter(
    ours: Admission, address: str, dropped: list[str] | None = None, fd: int = 9
) -> ConnectionPlace:
    heard_of = [] if dropped is None else dropped
    return ours.enter(address, fd, lambda: heard_of.append(address), now=next(SECONDS))


def hear(place: ConnectionPlace) -> ConnectionPlace:
    place.hear(next(SECONDS))
    return place


def connect(place: ConnectionPlace) -> ConnectionPlace:
    hear(place).connect(next(SECONDS))
    return place


def know(ours: Admission, *sources: str) -> None:
    """Each has connected before, and ended."""
    for source in sources:
        connect(enter(ours, source)).leave()


def test_enter__a_source_has_so_many_places_and_no_more() -> None:
    ours = admission()
    first = enter(ours, "10.0.0.1")
    enter(ours, "10.0.0.1")
    with pytest.raises(BusyError, match=r"from 10\.0\.0\.1: 2 peers"):
        enter(ours, "10.0.0.1")
    enter(ours, "10.0.0.2")
    first.leave()
    first.leave()  # counts once
    enter(ours, "10.0.0.1")
    with pytest.raises(BusyError):
        enter(ours, "10.0.0.1")


def test_enter__a_source_has_so_many_qps_and_no_more() -> None:
    ours = admission()
    places = []
    for _ in range(4):
        places.append(connect(enter(ours, "10.0.0.1")))
        places[-1].accept()
    with pytest.raises(ConnectError, match=r"10\.0\.0\.1 has 4 QPs here"):
        enter(ours, "10.0.0.1")
    places[0].leave()
    enter(ours, "10.0.0.1")
    with pytest.raises(BusyError, match=r"from 10\.0\.0\.1: 1 peer:"):  # it may become a QP
        enter(ours, "10.0.0.1")


def test_enter__the_last_quarter_of_the_qps_is_for_newcomers() -> None:
    ours = admission()
    for n in range(12):
        connect(enter(ours, f"10.0.0.{n // 3}")).accept()
    with pytest.raises(ConnectError, match="remaining QPs"):
        enter(ours, "10.0.0.1")
    enter(ours, "10.0.1.1")


def test_enter__nobody_is_dropped_while_there_is_room() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(LIMITS.max_pending):
        enter(ours, f"10.0.0.{n}", dropped)
    assert dropped == []


def test_enter__every_newcomer_gets_a_place_and_those_who_wait_longest_go() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
        assert ours.pending <= LIMITS.max_pending
    assert dropped == [f"10.1.0.{n}" for n in range(100 - LIMITS.max_pending)]


def test_hear__each_message_is_progress() -> None:
    ours, dropped = admission(), list[str]()
    places = [hear(enter(ours, f"10.1.0.{n}", dropped)) for n in range(LIMITS.max_pending)]
    hear(places[0])
    enter(ours, "10.1.1.1", dropped)
    assert dropped == ["10.1.0.1"]


def test_hear__the_silent_go_first() -> None:
    ours, dropped = admission(), list[str]()
    places = [enter(ours, f"10.1.0.{n}", dropped) for n in range(LIMITS.max_pending)]
    hear(places[0])
    for n in range(LIMITS.max_pending - 1):
        hear(enter(ours, f"10.1.1.{n}", dropped))
    assert dropped == [f"10.1.0.{n}" for n in range(1, LIMITS.max_pending)]


def test_enter__known_sources_keep_their_places_from_strangers() -> None:
    ours, dropped = admission(), list[str]()
    know(ours, *(f"10.0.0.{n}" for n in range(6)))
    for n in range(6):
        enter(ours, f"10.0.0.{n}", dropped)
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
    assert not [address for address in dropped if address.startswith("10.0.")]


def test_enter__known_sources_leave_a_quarter_of_the_places_to_strangers() -> None:
    ours, dropped = admission(), list[str]()
    known = [f"10.0.0.{n}" for n in range(LIMITS.max_pending)]
    know(ours, *known)
    for address in known:
        enter(ours, address, dropped)
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
    assert [address for address in dropped if address in known] == known[:2]


def test_enter__a_known_source_makes_way_for_another_when_no_stranger_is_left() -> None:
    ours, dropped = admission(), list[str]()
    known = [f"10.0.0.{n}" for n in range(LIMITS.max_pending + 1)]
    know(ours, *known)
    for address in known:
        enter(ours, address, dropped)
    assert dropped == known[:1]


def test_prove__the_other_connections_of_the_source_are_no_strangers_either() -> None:
    ours, dropped = admission(), list[str]()
    first, second = (hear(enter(ours, "10.0.0.1", dropped)) for _ in range(2))
    first.prove(next(SECONDS))
    first.leave()
    for n in range(100):
        hear(enter(ours, f"10.1.0.{n}", dropped))
    assert "10.0.0.1" not in dropped and ours.pending == LIMITS.max_pending
    second.leave()


def test_attempt__who_proves_himself_may_go_on_and_others_may_not() -> None:
    ours = admission()
    for n in range(100):
        place = enter(ours, "10.0.0.1")
        place.attempt(n / 1000)
        place.prove(n / 1000)
        place.leave()
    for _ in range(2):
        place = enter(ours, "10.0.0.2")
        place.attempt(1)
        place.leave()
    with pytest.raises(BusyError, match=r"too many attempts from 10\.0\.0\.2 led to no proof"):
        enter(ours, "10.0.0.2").attempt(1)


def test_enter__who_has_no_attempt_left_gets_no_place() -> None:
    """It would hold a place that others need, only to be refused later."""
    ours = admission()
    for _ in range(2):
        place = enter(ours, "10.0.0.2")
        place.attempt(next(SECONDS) / 1e6)
        place.leave()
    with pytest.raises(BusyError, match="led to no proof"):
        ours.enter("10.0.0.2", 9, lambda: None, now=0.1)
    assert ours.pending == 0


def test_enter__those_that_are_connected_keep_their_places() -> None:
    ours, dropped = admission(), list[str]()
    for n in range(8):
        connect(enter(ours, f"10.0.0.{n}", dropped))
    assert dropped == []
    with pytest.raises(BusyError, match="too many peers are connecting"):
        enter(ours, "10.0.0.9", dropped)


def test_enter__some_descriptors_are_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    ours = admission(descriptors=256)
    enter(ours, "10.0.0.1", fd=191)
    for n in range(2, 4):
        with pytest.raises(BusyError, match="file descriptors"):
            enter(ours, f"10.0.0.{n}", fd=192)
    assert [record.message for record in caplog.records] == [
        "192 of 256 file descriptors are in use: new peers are refused; raise the limit (ulimit -n)"
    ]


def test_connect__ready_qps_count_until_they_are_accepted() -> None:
    ours = admission()
    places = [connect(enter(ours, f"10.0.0.{n}")) for n in range(3)]
    assert ours.pending == 3
    places[0].accept()
    places[1].leave()
    assert ours.pending == 1


def test_raise_descriptor_limit__to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
        assert _descriptor_limit() == before[1] // 2
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ---- Claims ---------------------------------------------------------------------------------

A1, A2 = (PeerSource(ip_address("10.0.0.1"), sport) for sport in (40000, 40001))
B1 = PeerSource(ip_address("10.0.1.1"), 40000)


def test_claims__a_source_is_of_who_proved_it_until_he_ends() -> None:
    claims = Claims()
    claims.check("10.0.0.1", [A1, B1])
    give_back = claims.take("10.0.0.1", [A1, B1], [])
    taken = r"UDP port 40000 of 10\.0\.0\.1 belongs to another peer"
    with pytest.raises(ConnectError, match=taken):
        claims.check("10.0.0.9", [A2, A1])
    claims.check("10.0.0.9", [A2])
    give_back()
    claims.check("10.0.0.9", [A1, B1])


def test_claims__a_peer_may_connect_from_each_of_its_addresses() -> None:
    claims = Claims()
    first = claims.take("192.0.2.1", [A1, B1], [])
    for address in ("192.0.2.1", "10.0.0.1", "10.0.1.1", "::ffff:10.0.1.1"):
        claims.check(address, [A1, B1])
    claims.take("10.0.1.1", [A1, B1], [])
    first()
    claims.check("10.0.0.1", [A1])
    with pytest.raises(ConnectError):
        claims.check("192.0.2.1", [A1])


def test_claims__a_peer_may_come_again_from_an_address_that_it_named() -> None:
    """Its link has gone by which it came first, and packets go over IPv6 alone."""
    claims = Claims()
    claims.take("10.0.0.1", [A1], [ip_address("10.0.0.1"), ip_address("10.0.0.2")])
    claims.check("10.0.0.2", [A1])
    with pytest.raises(ConnectError):
        claims.check("10.0.0.3", [A1])


def test_claims__an_address_that_came_while_the_qp_ran() -> None:
    claims = Claims()
    claims.take("10.0.0.1", [A1], [ip_address("10.0.0.1")])
    claims.take("10.0.0.1", [A1, B1], [ip_address("10.0.0.1"), ip_address("10.0.1.1")])
    claims.check("10.0.1.1", [A1, B1])


def test_raise_descriptor_limit__without_dev_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bare container: it was told as too few descriptors."""
    monkeypatch.setattr(os, "devnull", "/nowhere")
    raise_descriptor_limit()


# ---- Evictions: who gives his place, and which floods an honest peer survives --------------------


def place(source: str, since: float, silent: bool = False, network: str = "") -> Evictable:
    return Evictable(source, network, since, silent)


def named(found: Evictable) -> tuple[str, float]:
    return found.source, found.since


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([("a", 2), ("b", 1), ("c", 3)], ("b", 1)),
        ([("a", 1), ("b", 3), ("b", 2), ("c", 0), ("b", 4)], ("b", 2)),
        ([("a", 1), ("a", 1), ("b", 8.9, True), ("c", 5, True)], ("c", 5)),
        ([("a", 1), ("b", 8.91, True)], ("a", 1)),  # the first message may be unread
    ],
    ids=["waits longest", "of the source with most", "silent", "silent for a moment"],
)
def test_victim__of_places(places: list[tuple[Any, ...]], expected: tuple[str, float]) -> None:
    assert named(victim([place(*each) for each in places], 9)) == expected


def test_victim__is_of_the_source_with_most_places_also_when_a_network_has_more() -> None:
    """Otherwise a few sources elsewhere would push a peer out of a network that holds many."""
    crowd = [place(f"n{n}", n, network="n") for n in range(5)]
    places = [*crowd, place("far", 7), place("far", 8)]
    assert named(victim(places, 9)) == ("far", 7)


@pytest.mark.parametrize(("of_network", "source"), [(2, "other"), (3, "n0")])
def test_victim__is_of_a_network_that_has_more_than_half(of_network: int, source: str) -> None:
    crowd = [place(f"n{n}", 5 + n, network="n") for n in range(of_network)]
    others = [place("other", 1, network="o"), place("third", 2, network="p")]
    assert victim([*others, *crowd], 9).source == source


# ---- Floods, as far as places count ------------------------------------------------------------

_STEPS = 3  # messages of an honest peer after its first, until it has proved itself
_PLACES = 64


def lost(sources: Callable[[int], str], per_second: int, trip: float, *, wait: float = 1.0) -> bool:
    """Whether an honest peer loses its place to a flood of strangers that hold theirs."""
    limits = Limits(
        max_pending=_PLACES, max_pending_per_source=8, max_qps=1024, max_qps_per_source=64
    )
    ours, order, gone = Admission(limits, descriptors=lambda: 0), itertools.count(), list[str]()
    agenda: list[tuple[float, int, Callable[[float], None]]] = []

    def at(when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(agenda, (when, next(order), act))

    def arrive(number: int, now: float) -> None:
        try:
            ours.enter(sources(number), 9, lambda: None, now=now).hear(now)
        except BusyError:
            pass  # it has all the places that it may have
        at((number + 1) / per_second, lambda then: arrive(number + 1, then))

    def connect(now: float) -> None:
        place = ours.enter("10.1.0.1", 9, lambda: gone.append("lost"), now=now)
        for step in range(_STEPS + 1):
            at(now + step * trip, place.hear)

    at(0, lambda now: arrive(0, now))
    at(wait, connect)
    now = 0.0
    while now < wait + _STEPS * trip + 0.001:
        now, _, act = heapq.heappop(agenda)
        act(now)
    return bool(gone)


def around(number: int) -> str:
    """One of 60 sources: 40 in the network of the honest peer, the others in one network."""
    return f"10.{1 if number % 3 else 9}.1.{number % 60}"


def far(number: int) -> str:
    """One of 60,000 sources of another network."""
    return f"10.9.{number // 250 % 240}.{number % 250}"


def few(number: int) -> str:
    """One of 60 sources in the network of the honest peer."""
    return f"10.1.1.{number % 60}"


def many(number: int) -> str:
    """One of 250 sources in the network of the honest peer."""
    return f"10.1.1.{number % 250}"


def anywhere(number: int) -> str:
    """One of 50,000 sources, each in a network of its own."""
    return f"{11 + number // 250 % 200}.{number % 250}.0.1"


@pytest.mark.parametrize("trip", [0.001, 0.2])
@pytest.mark.parametrize("per_second", [300, 3000])
@pytest.mark.parametrize("sources", [few, around, far])
def test_flood__of_fewer_sources_than_places_or_of_one_network(
    sources: Callable[[int], str], per_second: int, trip: float
) -> None:
    assert not lost(sources, per_second, trip)


@pytest.mark.parametrize("sources", [many, anywhere])
@pytest.mark.parametrize(
    ("per_second", "trip", "is_lost"),
    [(300, 0.2, False), (300, 0.25, True), (1000, 0.05, False), (1000, 0.1, True)],
)
def test_flood__of_more_sources_holds_up_to_so_many_places_a_round_trip(
    sources: Callable[[int], str], per_second: int, trip: float, is_lost: bool
) -> None:
    assert lost(sources, per_second, trip) is is_lost


# ---- Attempts ------------------------------------------------------------------------------------


def test_buckets__are_full_and_fill_again() -> None:
    buckets = Buckets(2, 0.5)
    for _ in range(2):
        assert buckets.has("a", 10)
        buckets.change("a", -1, 10)
    assert [buckets.has("a", now) for now in (10, 11.9, 12)] == [False, False, True]
    assert buckets.has("b", 10)


def test_buckets__never_hold_more_than_they_can() -> None:
    buckets = Buckets(2, 1)
    buckets.change("a", -1, 0)
    buckets.change("a", 5, 0)
    for _ in range(2):
        buckets.change("a", -1, 100)
    assert not buckets.has("a", 100)


def test_buckets__their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.connect.admission._MOST_BUCKETS", 3)
    buckets = Buckets(1, 0.1)
    for name in ("a", "b", "c", "d"):
        buckets.change(name, -1, 0)
    assert len(buckets) == 3
    assert [buckets.has(name, 0) for name in "abcd"] == [True, False, False, False]
    buckets.change("b", 1, 0)
    assert len(buckets) == 2, "a full one is not kept"


def begun(
    ours: Attempts, source: str, network: str = "n", *, now: float = 0
) -> Callable[[float], None]:
    return ours.begin(source, network, known=False, now=now)


def test_begin__a_source_runs_out_alone() -> None:
    ours = Attempts(3)
    for _ in range(3):
        begun(ours, "a")
    with pytest.raises(BusyError, match="too many attempts from a led to no proof"):
        begun(ours, "a")
    begun(ours, "b")
    begun(ours, "a", now=1)


def test_begin__a_refused_attempt_takes_nothing() -> None:
    ours = Attempts(1)
    begun(ours, "a")
    for now in (0.3, 0.6, 0.9):
        with pytest.raises(BusyError):
            begun(ours, "a", now=now)
    begun(ours, "a", now=1)


def count(ours: Attempts, network: str, now: float) -> int:
    """How many new sources of a network can begin, until it or the host runs out."""
    for number in range(10_000):
        try:
            begun(ours, f"{network} {now} {number}", network, now=now)
        except BusyError:
            return number
    raise AssertionError


def test_begin__a_network_leaves_something_to_others() -> None:
    ours = Attempts(8)
    assert [count(ours, network, 0) for network in "abc"] == [384, 128, 0]
    assert [count(ours, network, 1) for network in "abc"] == [192, 64, 0]


def test_begin__known_sources_do_not_depend_on_strangers() -> None:
    ours = Attempts(8)
    count(ours, "n", 0)
    count(ours, "m", 0)
    for _ in range(8):
        ours.begin("a", "n", known=True, now=0)
    with pytest.raises(BusyError, match="from a led"):
        ours.begin("a", "n", known=True, now=0)


def test_give_back__who_proves_himself_never_runs_out() -> None:
    ours = Attempts(1)
    for number in range(1000):
        begun(ours, "a")(0)
        begun(ours, f"b{number}", f"m{number}")(0)
    begun(ours, "a")


def test_give_back__counts_once() -> None:
    ours = Attempts(2)
    give_back, _ = begun(ours, "a"), begun(ours, "a")
    give_back(0)
    give_back(0)
    begun(ours, "a")
    with pytest.raises(BusyError):
        begun(ours, "a")


# ---- Memory --------------------------------------------------------------------------------------


A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def test_taken__one_source_has_half_at_most() -> None:
    budget = Budget(100)
    with ExitStack() as stack:
        stack.enter_context(budget.taken(A, 30))
        assert (budget.left(A), budget.left(B)) == (20, 50)
        with pytest.raises(BudgetError, match="no memory: 21 bytes are needed, 20 are left"):
            stack.enter_context(budget.taken(A, 21))
        stack.enter_context(budget.taken(A, 20))
        stack.enter_context(budget.taken(B, 50))
        assert (budget.left(A), budget.left(B), budget.left(C)) == (0, 0, 0)
        with pytest.raises(BudgetError):
            stack.enter_context(budget.taken(C, 1))
    assert (budget.left(A), budget.left(B), budget.left(C)) == (50, 50, 50)
    assert not budget._held, "a source that holds nothing leaves nothing behind"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_left__of_a_source(one: str, other: str, same: bool) -> None:
    budget = Budget(100)
    with budget.taken(one, 50):
        assert (budget.left(other) == 0) is same


def test_taken__given_back_after_an_error() -> None:
    budget = Budget(100)
    with pytest.raises(ZeroDivisionError), budget.taken(A, 10):
        raise ZeroDivisionError
    assert budget.left(A) == 50


# ---- Sources -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "source", "network"),
    [
        ("10.1.2.3", "10.1.2.3", "10.1.0.0/16"),
        ("::ffff:10.1.2.3", "10.1.2.3", "10.1.0.0/16"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::", "fe80::/48"),
    ],
)
def test_source_of__and_its_network(address: str, source: str, network: str) -> None:
    assert origin_of(address) == (source_of(address), network) == (source, network)


def test_known__the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.connect.admission._MOST_KNOWN", 2)
    ours = admission()
    for source in ("a", "b", "a", "c"):
        ours.know(source)
    assert [source in ours._known for source in "abc"] == [True, False, True]
