# SPDX-License-Identifier: Apache-2.0
"""The sentence at the end of a transfer, and the lines of -v, from scripted events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from mrc.enums import EventReason, EvState, WcStatus
from mrc.events import (
    EventsLost,
    EvEvent,
    PlaneEvent,
    PlaneShareEvent,
    PortEvent,
    QpErrorEvent,
    QpEvent,
)
from mrc.transfer.cli.report import Incidents, describe, sentence
from mrc.transfer.results import Outage

SILENT, BACK = EventReason.SILENCE, EventReason.PROBES


@pytest.mark.parametrize(
    ("outages", "text"),
    [
        ((), ""),
        ((Outage(2, 3.12, 5.04),), "plane 2 was lost at 3.1 s and was back at 5.0 s"),
        ((Outage(2, 3.12, 3.14),), "plane 2 was lost for 20 ms at 3.1 s"),
        ((Outage(2, 3.12, None),), "plane 2 was lost at 3.1 s and did not come back"),
        (
            (Outage(2, 1, 2), Outage(1, 1.5, 2.5), Outage(2, 3, 4), Outage(2, 1100, 2000)),
            "plane 2 was lost 3 times, first at 1.0 s and was back at 2000 s;"
            " plane 1 was lost at 1.5 s and was back at 2.5 s",
        ),
        (
            tuple(Outage(plane, plane, None) for plane in range(1, 7)),
            "; ".join(f"plane {n} was lost at {n}.0 s and did not come back" for n in range(1, 5))
            + "; also lost: 2 planes",
        ),
    ],
)
def test_sentence__of_outages(outages: tuple[Outage, ...], text: str) -> None:
    assert sentence(outages) == text


class Scripted:
    def __init__(self, *events: QpEvent) -> None:
        self._events = events
        self.read = asyncio.Event()

    async def events(self) -> AsyncIterator[QpEvent]:
        for event in self._events:
            yield event
        self.read.set()


async def test_follow__planes_that_were_lost() -> None:
    said: list[str] = []
    incidents = Incidents(said.append)
    start_ns = time.monotonic_ns()

    def plane(number: int, seconds: float, *, suspended: bool) -> PlaneEvent:
        reason = SILENT if suspended else BACK
        return PlaneEvent(number, suspended, reason, start_ns + round(seconds * 1e9))

    events = (
        plane(3, 0.5, suspended=False),  # was lost before the transfer
        plane(2, 3.1, suspended=True),
        EvEvent(7, 2, "p2", EvState.ASSUMED_BAD, SILENT),
        plane(1, 4.0, suspended=True),
        plane(2, 5.0, suspended=False),
    )
    scripted = Scripted(*events)
    async with incidents.follow(scripted):
        await scripted.read.wait()
    assert incidents.sentence("plane 1 carried 9% of the others") == (
        "plane 2 was lost at 3.1 s and was back at 5.0 s;"
        " plane 1 was lost at 4.0 s and did not come back"
    )
    assert [each.plane for each in incidents.outages] == [2, 1]
    assert said[1].startswith("plane 2 is suspended: other planes delivered")


async def test_follow__another_connection_after_a_loss() -> None:
    """Times go on from the first one, and a plane that carries data on the next one is back."""
    incidents = Incidents(lambda _: None)
    now_ns = time.monotonic_ns()
    lost = Scripted(*(PlaneEvent(plane, True, SILENT, now_ns) for plane in (1, 2)))
    async with incidents.follow(lost):
        await lost.read.wait()
    before = incidents.outages
    assert [each.back_at_seconds for each in before] == [None, None]
    again = Scripted()
    async with incidents.follow(again, {1, 3}):
        await again.read.wait()
    back, lasting = incidents.outages
    assert (back.plane, back.lost_at_seconds) == (1, before[0].lost_at_seconds)
    assert back.back_at_seconds is not None and back.back_at_seconds > back.lost_at_seconds
    assert lasting == before[1]


def test_sentence__slow_planes_when_none_was_lost() -> None:
    assert Incidents(print).sentence("plane 1 carried 9%") == "plane 1 carried 9%"


@pytest.mark.parametrize(
    ("event", "part"),
    [
        (EvEvent(7, 2, "p2", EvState.ASSUMED_BAD, SILENT), "plane 2: EV p2 is ASSUMED_BAD: other"),
        (PlaneShareEvent(2, True, 9, EventReason.DELIVERY), "is slow: it carries 9% of the others"),
        (PortEvent(2, False, EventReason.OWN_PORT), "plane 2: port down: a port of this host"),
        (EventsLost(3), "missing here: 3 events"),
        (QpErrorEvent(WcStatus.RETRY_EXC_ERR), "the QP failed: no path"),
    ],
)
def test_describe__every_event(event: QpEvent, part: str) -> None:
    assert part in describe(event)
