# SPDX-License-Identifier: Apache-2.0
"""The scenarios of `bench/failover`: faults of the fabric and their times. Pure.

A fault of one plane hits plane 1, which is the plane of the single TCP flow. For the other
contenders all planes are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SILENT, DOWN, LOSS, SLOW = "silent", "down", "loss", "slow"


@dataclass(frozen=True, slots=True)
class Event:
    """A fault with its begin and end, in seconds since the first traffic."""

    name: str
    target: str  # in the notation of `mrc testbed fail`
    plane: int
    at: float
    until: float
    mode: str = SILENT
    loss: float = 1.0
    rate: float = 0.0  # remaining share of the rate of its target's links


@dataclass(frozen=True, slots=True)
class Phase:
    """A time without changes, and its number of planes without a fault."""

    name: str  # the change at its start
    start: float
    end: float
    planes: float  # a slow plane counts with its remaining share


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults over one time axis."""

    name: str
    title: str
    events: tuple[Event, ...]
    seconds: float

    def faster(self, speed: float) -> Scenario:
        """The same scenario, `speed` times as fast."""
        events = tuple(replace(e, at=e.at / speed, until=e.until / speed) for e in self.events)
        return replace(self, events=events, seconds=self.seconds / speed)


STORY = Scenario(
    "story",
    "A plane falls silent, a link goes down, a plane loses packets, a plane is slow",
    (
        Event("plane 1 silent", "plane:1", 1, 2, 6),
        Event("NIC link down", "link:h0.1", 1, 8, 10, DOWN),
        Event("20% loss", "plane:1", 1, 12, 14, LOSS, 0.2),
        Event("plane 1 at 10%", "plane:1", 1, 16, 18, SLOW, 0.0, 0.1),
    ),
    20,
)
FAR_LINK = Scenario(
    "far link",
    "The link of the receiver's NIC goes down",
    (Event("receiver's NIC link down", "link:h1.1", 1, 1, 2, DOWN),),
    3.5,
)
ONE_BY_ONE = Scenario(
    "one by one",
    "The planes die one by one; one of them returns, then all",
    (
        Event("plane 1", "plane:1", 1, 1, 6.5),
        Event("plane 3", "plane:3", 3, 2, 6.5),
        Event("plane 4", "plane:4", 4, 3, 6.5),
        Event("plane 2", "plane:2", 2, 4, 5),
    ),
    8,
)


def phases(events: Sequence[Event], seconds: float, planes: int) -> list[Phase]:
    """The phases from 0 to the end, each from one change to the next. A lossy plane counts as gone,
    a slow plane with its remaining share.
    """
    found = [Phase("start", 0.0, seconds, planes)]
    for moment, name in _changes(events):
        left = dict.fromkeys(range(1, planes + 1), 1.0)
        for event in events:
            if event.at <= moment < event.until:
                left[event.plane] = min(left[event.plane], event.rate)
        found[-1] = replace(found[-1], end=moment)
        if found[-1].start == moment:
            name = found.pop().name
        found.append(Phase(name, moment, seconds, sum(left.values())))
    return found


def _changes(events: Sequence[Event]) -> list[tuple[float, str]]:
    begun = [(event.at, event.name) for event in events]
    return sorted(begun + [(event.until, healed(event)) for event in events])


def healed(event: Event) -> str:
    """The name of the end of a fault."""
    name = event.name.replace(" down", " up").replace(" silent", "")
    names = {DOWN: name, LOSS: "loss over", SLOW: "full rate again"}
    return names.get(event.mode, f"{name} healed")
