# SPDX-License-Identifier: Apache-2.0
"""What happened to the planes of a QP on the way: as one sentence, or line by line with -v."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Protocol

from mrc.cli.output import format_seconds
from mrc.errors import MrcError
from mrc.events import (
    EventsLost,
    EvEvent,
    PlaneEvent,
    PlaneShareEvent,
    PortEvent,
    QpErrorEvent,
    QpEvent,
)
from mrc.tasks import cancelled
from mrc.transfer.results import Outage
from mrc.units import counted

_MOST_OUTAGES = 256  # kept; a plane that flaps for hours has more
_MOST_NAMED = 4
_SHORT_SECONDS = 0.2


class Eventful(Protocol):
    """Something with events: a QP."""

    def events(self) -> AsyncIterator[QpEvent]: ...


class Incidents:
    """Follows the events of a QP, and of the next one where a transfer connects again."""

    def __init__(self, detail: Callable[[str], None]) -> None:
        """Calls `detail` with a line about each event."""
        self._detail = detail
        self._start_ns: int | None = None
        self._outages: list[Outage] = []
        self._lost_at: dict[int, float] = {}

    @asynccontextmanager
    async def follow(self, qp: Eventful, carrying: Collection[int] = ()) -> AsyncIterator[None]:
        """Follows the events of the QP while the body runs; times count from the first QP on.

        `carrying`: planes that carry data now, so those that an earlier QP has lost are back.
        """
        at = self._seconds(time.monotonic_ns())
        for plane in carrying:
            self._back(plane, at)
        task = asyncio.create_task(self._follow(qp))
        try:
            yield
        finally:
            await cancelled(task)

    async def _follow(self, qp: Eventful) -> None:
        try:
            async for event in qp.events():
                self.take(event)
                self._detail(describe(event))
        except MrcError:
            pass  # the QP failed; the transfer reports why

    def take(self, event: QpEvent) -> None:
        if not isinstance(event, PlaneEvent):
            return
        at = self._seconds(event.at_ns)
        if event.suspended:
            self._lost_at.setdefault(event.plane, at)
        else:
            self._back(event.plane, at)

    def _seconds(self, at_ns: int) -> float:
        if self._start_ns is None:
            self._start_ns = at_ns
        return max((at_ns - self._start_ns) / 1e9, 0.0)

    def _back(self, plane: int, at: float) -> None:
        lost_at = self._lost_at.pop(plane, None)
        if lost_at is not None and len(self._outages) < _MOST_OUTAGES:
            self._outages.append(Outage(plane, lost_at, max(lost_at, at)))

    @property
    def outages(self) -> tuple[Outage, ...]:
        """The times without a plane, in the order in which they began."""
        lasting = [Outage(plane, at, None) for plane, at in self._lost_at.items()]
        return tuple(sorted([*self._outages, *lasting], key=lambda each: each.lost_at_seconds))

    def sentence(self, slow: str = "") -> str:
        """One sentence about lost planes and, if none was lost, the slow ones; or ""."""
        return sentence(self.outages) or slow


def sentence(outages: tuple[Outage, ...]) -> str:
    """ "plane 2 was lost at 3.1 s and was back at 5.0 s"; empty without outages."""
    by_plane: dict[int, list[Outage]] = {}
    for each in outages:
        by_plane.setdefault(each.plane, []).append(each)
    parts = [_of_plane(plane, each) for plane, each in by_plane.items()]
    if len(parts) > _MOST_NAMED:
        parts[_MOST_NAMED:] = [f"also lost: {counted(len(parts) - _MOST_NAMED, 'plane')}"]
    return "; ".join(parts)


def _of_plane(plane: int, outages: list[Outage]) -> str:
    first, last = outages[0], outages[-1]
    often = f" {counted(len(outages), 'time')}, first" if len(outages) > 1 else ""
    back_at = last.back_at_seconds
    if back_at is not None and not often and back_at - first.lost_at_seconds < _SHORT_SECONDS:
        gone = format_seconds(back_at - first.lost_at_seconds)
        return f"plane {plane} was lost for {gone} at {_moment(first.lost_at_seconds)}"
    back = "did not come back" if back_at is None else f"was back at {_moment(back_at)}"
    return f"plane {plane} was lost{often} at {_moment(first.lost_at_seconds)} and {back}"


def _moment(seconds: float) -> str:
    """A time in the transfer, to a tenth of a second."""
    return f"{seconds:.1f} s" if seconds < 1000 else f"{seconds:.0f} s"


def describe(event: QpEvent) -> str:
    """One event as a line, for -v."""
    match event:
        case EvEvent():
            return f"plane {event.plane}: EV {event.path} is {event.state.name}: {_why(event)}"
        case PlaneEvent():
            what = "suspended" if event.suspended else "in use again"
            return f"plane {event.plane} is {what}: {_why(event)}"
        case PlaneShareEvent():
            what = "slow" if event.slow else "no longer slow"
            return f"plane {event.plane} is {what}: it carries {event.percent}% of the others"
        case PortEvent():
            return f"plane {event.plane}: port {'up' if event.up else 'down'}: {_why(event)}"
        case EventsLost():
            return f"missing here: {counted(event.count, 'event')}"
        case QpErrorEvent():
            return f"the QP failed: {event.status.explanation}"


def _why(event: EvEvent | PlaneEvent | PortEvent) -> str:
    return event.reason.explanation
