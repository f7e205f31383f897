# SPDX-License-Identifier: Apache-2.0
"""Who gives his place to a newcomer, and which floods an honest peer survives."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mrc.config import Limits
from mrc.connect.admission import Admission, victim
from mrc.errors import BusyError


@dataclass
class Held:
    source: str
    since: float
    silent: bool = False
    network: str = ""


def named(found: Held) -> tuple[str, float]:
    return found.source, found.since


def test_victim__waits_longest() -> None:
    assert named(victim([Held("a", 2), Held("b", 1), Held("c", 3)], 9)) == ("b", 1)


def test_victim__is_of_the_source_with_most_places() -> None:
    places = [Held("a", 1), Held("b", 3), Held("b", 2), Held("c", 0), Held("b", 4)]
    assert named(victim(places, 9)) == ("b", 2)


def test_victim__is_silent_if_anybody_is() -> None:
    places = [Held("a", 1), Held("a", 1), Held("b", 8.9, silent=True), Held("c", 5, silent=True)]
    assert named(victim(places, 9)) == ("c", 5)


def test_victim__may_be_silent_for_a_moment() -> None:
    """The first message may be unread."""
    places = [Held("a", 1), Held("b", 8.91, silent=True)]
    assert named(victim(places, 9)) == ("a", 1)


def test_victim__is_of_the_source_with_most_places_also_when_a_network_has_more() -> None:
    """Otherwise a few sources elsewhere would push a peer out of a network that holds many."""
    crowd = [Held(f"n{n}", n, network="n") for n in range(5)]
    assert named(victim([*crowd, Held("far", 7), Held("far", 8)], 9)) == ("far", 7)


@pytest.mark.parametrize(("of_network", "source"), [(2, "other"), (3, "n0")])
def test_victim__is_of_a_network_that_has_more_than_half(of_network: int, source: str) -> None:
    crowd = [Held(f"n{n}", 5 + n, network="n") for n in range(of_network)]
    others = [Held("other", 1, network="o"), Held("third", 2, network="p")]
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
