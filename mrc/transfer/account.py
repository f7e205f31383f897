# SPDX-License-Identifier: Apache-2.0
"""The account of a transfer at one end, over all its connections: what was stored and what was not
copied, its progress, the times without a plane, the result.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from msgspec.structs import replace

from mrc import versions
from mrc.aio.qp import QP
from mrc.aio.recording import Recording
from mrc.cli import figures
from mrc.errors import MrcError
from mrc.events import PlaneEvent, PlaneInfo, QpEvent, QpInfo
from mrc.results import like, nonzero
from mrc.tasks import cancelled, took_cancellation
from mrc.transfer.limits import CHUNK_BYTES, FileError
from mrc.transfer.progress import Connected, Disconnected, Event, Progress, Waiting
from mrc.transfer.results import (
    FailedFile,
    Outage,
    Role,
    StoredBatch,
    Total,
    Transfer,
    TransferPlane,
    sent_bytes,
)
from mrc.transfer.sender import CHUNKS_IN_FLIGHT
from mrc.transfer.session import TransferSession

PROGRESS_SECONDS = 0.2  # between two calls of `on_progress`
QUIET_SECONDS = 1.0  # without payload, while other planes carry some, until a plane counts as lost
MAX_NAMED = 1000  # files of a transfer that are named; the others are only counted
_RATE_SMOOTHING = 0.3
_MAX_OUTAGES = 256  # kept; a plane that flaps for hours has more
_MAX_FRESH = 1 << 16  # hashes of names that wait to be sorted in

OnProgress = Callable[[Progress], object]


def carried_bytes(role: str, planes: Sequence[PlaneInfo]) -> dict[int, int]:
    """Payload that each plane carried in the direction of the transfer."""
    name = "sent_bytes" if role == "sender" else "received_bytes"
    return {plane.plane: getattr(plane, name) for plane in planes}


def payload_bytes(role: str, info: QpInfo) -> int:
    """Payload bytes that a sender's peer acknowledged, or that a receiver received; each once."""
    return info.acknowledged_bytes if role == "sender" else info.received_bytes


class PlaneCount:
    """Counts the planes that work: not suspended, and not silent while others carry payload."""

    def __init__(self) -> None:
        self._carried: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._any_at = 0.0

    def working(self, carried: dict[int, int], planes: Sequence[PlaneInfo], now: float) -> int:
        """`carried` has each plane's bytes so far; `now` is in seconds. A backup is usually
        silent.
        """
        before, self._carried = self._carried, carried
        for plane, count in carried.items():
            if count > before.get(plane, 0):
                self._heard[plane] = self._any_at = now
            self._heard.setdefault(plane, now)
        lost = sum(
            plane.suspended
            or (plane.weight > 0 and self._any_at - self._heard[plane.plane] > QUIET_SECONDS)
            for plane in planes
        )
        return len(planes) - lost


class OutageLog:
    """The times without a plane, by the events of a QP, and of the next one where a transfer
    connects again.
    """

    def __init__(self) -> None:
        self._start_ns: int | None = None
        self._outages: list[Outage] = []
        self._lost_at: dict[int, float] = {}

    def connected(self, carrying: Collection[int] = ()) -> None:
        """A QP begins; times count from the first one on. `carrying`: planes that carry data now,
        so those that an earlier QP has lost are back.
        """
        at = self._seconds(time.monotonic_ns())
        for plane in carrying:
            self._back(plane, at)

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
        if lost_at is not None and len(self._outages) < _MAX_OUTAGES:
            self._outages.append(Outage(plane, lost_at, max(lost_at, at)))

    @property
    def outages(self) -> tuple[Outage, ...]:
        """The times without a plane, in the order in which they began."""
        lasting = [Outage(plane, at, None) for plane, at in self._lost_at.items()]
        return tuple(sorted([*self._outages, *lasting], key=lambda each: each.lost_at_seconds))


class _Once:
    """Knows names that it has met, by their hashes: 8 bytes for each, beside the fresh ones."""

    def __init__(self) -> None:
        self._sorted = array("q")
        self._fresh: set[int] = set()

    def add(self, name: str) -> bool:
        """Whether the name is new."""
        key = hash(name)
        at = bisect_left(self._sorted, key)
        if key in self._fresh or (at < len(self._sorted) and self._sorted[at] == key):
            return False
        self._fresh.add(key)
        if len(self._fresh) == _MAX_FRESH:
            self._sorted = array("q", sorted([*self._sorted, *self._fresh]))
            self._fresh.clear()
        return True


class Account:
    """One transfer, over all its connections.

    A peer may name very many files that are not copied: only the first are kept. A pack that is
    sent again names them again, which counts once. Beyond `limit` names, `left_out` raises
    FileError. With `list_files`, the result has the names of all files.
    """

    def __init__(
        self,
        role: Role,
        host: str,
        on_progress: OnProgress | None,
        *,
        number: int = 1,
        limit: float = math.inf,
        list_files: bool = True,
    ) -> None:
        self._role = role
        self._limit = limit
        self._list_files = list_files
        self._on_progress = on_progress
        self._last = Progress(transfer=number, host=host)
        self._there = 0  # bytes of this connection that need not move, beside those kept of a part
        self._connections = 0
        self._once = _Once()
        self._outages = OutageLog()
        self._total = Total()
        self._failed: list[FailedFile] = []
        self.failed_count = 0
        """files and folders that were not copied"""
        self.waited_seconds = 0.0
        """time in which the receiver asked its user, in which nothing could move"""

    # ---- What happens -----------------------------------------------------------------------

    def tell(self, event: Event | None) -> None:
        """Calls `on_progress`."""
        if self._on_progress is not None:
            self._on_progress(replace(self._last, event=event))

    def left_out(self, failed: FailedFile) -> None:
        """A file or folder is not copied."""
        if not self._once.add(failed.name):
            return
        if self.failed_count >= self._limit:
            most = f"{self._limit} files and folders (mrc recv --max-files)"
            raise FileError(f"more cannot be copied than the limit of {most}")
        self.failed_count += 1
        if self.failed_count <= MAX_NAMED:
            self._failed.append(failed)
            self.tell(failed)

    def begin_file(self, name: str) -> None:
        """This file is on its way; "": several small ones."""
        self._last = replace(self._last, file=name)

    def resumed(self, there_bytes: int) -> None:
        """So many bytes need not move."""
        self._there += there_bytes

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """This end waits for the user at the other while the body does."""
        self._last, start = replace(self._last, waiting=True), time.monotonic()
        self.tell(Waiting(self._last.host))
        try:
            yield
        finally:
            self._last = replace(self._last, waiting=False)
            self.waited_seconds += time.monotonic() - start

    def _moving(self) -> float:
        """A clock that stands still during waits."""
        return time.monotonic() - self.waited_seconds

    async def store(self, batches: AsyncIterator[StoredBatch]) -> None:
        """Takes each finished file or pack, and the time it took, without waits."""
        then = self._moving()
        async for batch in batches:
            self._total.add(batch, listed=self._list_files)
            now = self._moving()
            done = max(self._last.done_bytes, self._total.bytes)
            self._last = replace(
                self._last, files=self._total.count, file="", done_bytes=self._within(done)
            )
            self.tell(replace(batch, seconds=now - then))
            self._total.seconds += now - then
            then = now

    def _within(self, done: int) -> int:
        """Packets also carry messages, so more may have moved than there is to do."""
        return done if self._last.bytes is None else min(done, self._last.bytes)

    # ---- A connection -----------------------------------------------------------------------

    @asynccontextmanager
    async def connection(
        self,
        session: TransferSession,
        size: int | None,
        there: Callable[[], int] = lambda: 0,
        carrying: Collection[int] = (),
    ) -> AsyncIterator[None]:
        """Follows a connection while the body runs. An exception of `on_progress` ends the body.

        `size`: bytes of all files. `there` says how many bytes need not move, `carrying` which
        planes carry data.
        """
        self._there = 0
        self._last = replace(self._last, bytes=size)
        self._outages.connected(carrying)
        self._connections += 1
        errors: list[BaseException] = []
        body = asyncio.current_task()
        assert body is not None

        def on_end(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                errors.append(error)
                body.cancel()

        tasks = [asyncio.create_task(self._follow(session.qp))]
        if self._on_progress is not None:
            tasks.append(asyncio.create_task(self._measure(session, there)))
        for task in tasks:
            task.add_done_callback(on_end)
        try:
            self.tell(Connected(session.ctx, session.qp, again=self._connections > 1))
            yield
        except asyncio.CancelledError:
            if not errors:
                raise
            took_cancellation()
            raise errors[0] from None
        finally:
            for task in tasks:
                task.remove_done_callback(on_end)
            await cancelled(*tasks)
            self.tell(Disconnected())

    async def _follow(self, qp: QP) -> None:
        events = qp.events()
        while True:
            try:
                event = await anext(events)
            except (MrcError, StopAsyncIteration):
                return  # if the QP has failed, the transfer reports why
            self._outages.take(event)
            self.tell(event)

    async def _measure(self, session: TransferSession, there: Callable[[], int]) -> None:
        """Calls `on_progress` from time to time."""
        count, rate, before, then = PlaneCount(), 0.0, 0, time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            try:
                info = await session.query()
            except MrcError:
                return  # likewise
            now, moved = time.monotonic(), payload_bytes(self._role, info)
            current = (moved - before) * 8 / max(now - then, 1e-9)
            rate += _RATE_SMOOTHING * (current - rate) if rate else current
            before, then = moved, now
            if self._last.waiting:
                rate = 0.0
            done = moved + self._there + there()
            carried = carried_bytes(self._role, info.planes)
            self._last = replace(
                self._last,
                done_bytes=self._within(done),
                rate_bits_per_second=rate,
                planes=len(info.planes),
                working_planes=count.working(carried, info.planes, now),
            )
            self.tell(None)

    # ---- The end ----------------------------------------------------------------------------

    async def result(
        self,
        session: TransferSession,
        tcp_port: int,
        *,
        recording: Recording | None = None,
        skipped: int = 0,
        excluded: int = 0,
        unchanged: int = 0,
        retries: int = 0,
    ) -> Transfer:
        """The result, which is the last event; what the account does not know is given."""
        total, ctx, info = self._total, session.ctx, await session.query()
        percent = figures.carried_percent(carried_bytes(self._role, info.planes))
        planes = (like(TransferPlane, p, carried_percent=percent[p.plane]) for p in info.planes)
        settings = figures.settings(ctx, session.qp, tcp_port=tcp_port)
        waits = session.waiting.seconds()
        result = like(
            Transfer,
            *(ctx.config.queues, ctx.config.retries, info, total, settings),
            role=self._role,
            files=tuple(total.files.values()),
            failed=tuple(self._failed),
            failed_count=self.failed_count,
            skipped=skipped,
            excluded=excluded,
            unchanged=unchanged,
            retries=retries,
            waited_seconds=self.waited_seconds,
            goodput_bits_per_second=sent_bytes(total) * 8 / (total.seconds or math.inf),
            waits=waits,
            qps=len(session.qps),
            planes=tuple(planes),
            evs=tuple(await session.evs()),
            outages=self._outages.outages,
            counters=nonzero(await ctx.counters()),
            drops=nonzero(await ctx.drops()),
            transfer_version=versions.TRANSFER,
            chunk_bytes=CHUNK_BYTES,
            chunks_in_flight=CHUNKS_IN_FLIGHT,
            digest_algorithm=versions.DIGEST,
            bins=None if recording is None else figures.bins(recording),
        )
        done, size = total.bytes, self._last.bytes
        if self._role == "sender" and size is not None:  # with those that were there before
            done = max(self._last.done_bytes, done) if self.failed_count else size
        self._last = replace(self._last, done_bytes=done, file="")
        self.tell(result)
        return result
