# SPDX-License-Identifier: Apache-2.0
"""Measures at one end of a test what its QPs moved between two moments."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

from msgspec import Struct

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.events import EvEvent, QpInfo
from mrc.perf.history import Historian, History
from mrc.tasks import cancelled
from mrc.typed import Real, Whole


class Interval(Struct, frozen=True):
    """The measurements of one end between two moments."""

    start_seconds: Real  # since the measured part began
    seconds: Real
    written_bytes: int  # payload that the peer acknowledged
    received_bytes: int  # payload that the peer wrote here
    sent_packets: int
    retransmitted_packets: int
    retransmitted_bytes: int  # payload
    ev_changes: int
    cpu_seconds: Real  # of all threads of this process
    planes: Mapping[Whole, Whole]  # plane -> payload bytes sent on it
    planes_received: Mapping[Whole, Whole]  # plane -> payload bytes received on it
    planes_slow: tuple[Whole, ...] = ()  # slow for any QP at the end; see PlaneInfo.slow
    planes_suspended: tuple[Whole, ...] = ()  # suspended by any QP at the end

    @property
    def written_bits_per_second(self) -> float:
        """Goodput of the writes of this end."""
        return 8 * self.written_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def received_bits_per_second(self) -> float:
        """Goodput of the peer's writes."""
        return 8 * self.received_bytes / self.seconds if self.seconds > 0 else 0.0


class _Reading(Struct, frozen=True):
    seconds: float
    cpu_seconds: float
    ev_changes: int
    infos: tuple[QpInfo, ...]

    @property
    def acknowledged_bytes(self) -> int:
        return self.total("acknowledged_bytes")

    def total(self, name: str) -> int:
        return sum(getattr(info, name) for info in self.infos)

    def planes(self, name: str) -> Counter[int]:
        planes = Counter[int]()
        for info in self.infos:
            planes.update({plane.plane: getattr(plane, name) for plane in info.planes})
        return planes

    def marked(self, name: str) -> tuple[int, ...]:
        """Planes for which the field `name` is true in any QP."""
        planes = (plane for info in self.infos for plane in info.planes)
        return tuple(sorted({plane.plane for plane in planes if getattr(plane, name)}))


class Meter:
    """Measures the QPs of a test. An async context manager: it reads their events meanwhile."""

    def __init__(self, ctx: Context, qps: Sequence[QP], *, bin_ns: int = 0) -> None:
        self._qps = tuple(qps)
        self._historian = Historian(ctx, qps, bin_ns) if bin_ns else None
        self._ev_changes = 0
        self._followers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._followers = [asyncio.create_task(self._follow(qp)) for qp in self._qps]
        try:
            await self.begin()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(*self._followers)
        if self._historian is not None:
            await self._historian.end()

    async def _follow(self, qp: QP) -> None:
        async for event in qp.events():
            self._ev_changes += isinstance(event, EvEvent)
            if self._historian is not None:
                self._historian.take(qp.qpn, event)

    async def _read(self) -> _Reading:
        infos = await asyncio.gather(*(qp.query() for qp in self._qps))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        return _Reading(time.monotonic(), cpu, self._ev_changes, tuple(infos))

    async def begin(self) -> None:
        """Begins the measured part, and discards earlier measurements."""
        self._wrote: int | None = None
        if self._historian is not None:
            await self._historian.begin()
        self._first = self._last = await self._read()

    async def wrote(self) -> None:
        """Ends the count of `written_bytes`. A peer that is told of it afterwards has received all
        that it counts, though writes in flight may still be acknowledged.
        """
        self._wrote = (await self._read()).acknowledged_bytes

    async def lap(self) -> Interval:
        """The measurements since the last lap."""
        now = await self._read()
        interval = self._between(self._last, now)
        self._last = now
        return interval

    async def history(self) -> History | None:
        """Ends and returns the history since `begin`; None without `bin_ns`."""
        return await self._historian.history() if self._historian is not None else None

    def total(self) -> Interval:
        """The measurements from `begin` to the last lap."""
        return self._between(self._first, self._last)

    def _between(self, start: _Reading, end: _Reading) -> Interval:
        def moved(name: str) -> int:
            return end.total(name) - start.total(name)

        def moved_by_plane(name: str) -> dict[int, int]:
            before, now = start.planes(name), end.planes(name)
            return {plane: now[plane] - before[plane] for plane in sorted(now)}

        def acknowledged(reading: _Reading) -> int:
            counted = reading.acknowledged_bytes
            return counted if self._wrote is None else min(counted, self._wrote)

        planes = moved_by_plane("sent_bytes")
        return Interval(
            start_seconds=start.seconds - self._first.seconds,
            seconds=end.seconds - start.seconds,
            written_bytes=acknowledged(end) - acknowledged(start),
            received_bytes=moved("received_bytes"),
            sent_packets=moved("sent_packets"),
            retransmitted_packets=moved("retransmitted_packets"),
            retransmitted_bytes=sum(planes.values()) - moved("first_sent_bytes"),
            ev_changes=end.ev_changes - start.ev_changes,
            cpu_seconds=end.cpu_seconds - start.cpu_seconds,
            planes=planes,
            planes_received=moved_by_plane("received_bytes"),
            planes_slow=end.marked("slow"),
            planes_suspended=end.marked("suspended"),
        )
