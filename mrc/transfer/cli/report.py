# SPDX-License-Identifier: Apache-2.0
"""What mrc send and mrc recv print of a transfer: bars on the terminal, lines, lost planes, files
that were left out, the result as JSON.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

import mrc
from mrc import versions
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.cli import figures
from mrc.cli.output import Exit, Output
from mrc.connect.parse import printable, shown
from mrc.enums import WarningKind
from mrc.errors import MrcError
from mrc.events import (
    EventsLost,
    EvEvent,
    EvInfo,
    PlaneEvent,
    PlaneInfo,
    PlaneShareEvent,
    PortEvent,
    QpErrorEvent,
    QpEvent,
    QpInfo,
)
from mrc.results import like, nonzero
from mrc.tasks import cancelled
from mrc.transfer.limits import CHUNK_BYTES, FileError
from mrc.transfer.messages import MAX_ERROR, shortened
from mrc.transfer.results import (
    MAX_LISTED,
    FailedFile,
    Outage,
    Role,
    StoredBatch,
    Total,
    Transfer,
    TransferPlane,
    Waits,
)
from mrc.transfer.sender import CHUNKS_IN_FLIGHT
from mrc.transfer.session import TransferSession
from mrc.units import counted, scaled

if TYPE_CHECKING:
    from rich.progress import TaskID

MANY_OVERFLOWS = 100  # packets; fewer cost no speed


def carried_bytes(role: str, planes: Sequence[PlaneInfo]) -> dict[int, int]:
    """Payload that each plane carried in the direction of the transfer."""
    name = "sent_bytes" if role == "sender" else "received_bytes"
    return {plane.plane: getattr(plane, name) for plane in planes}


def backup_lines(
    planes: Sequence[PlaneInfo], evs: Sequence[EvInfo], carried: Mapping[int, int]
) -> Iterator[tuple[str, bool]]:
    """A line about each backup, and whether it was used: "plane 2 (wwan0): backup, not used"."""
    nics = {ev.plane: ev.path.partition(">")[0] for ev in evs if not ev.usids}
    for plane in planes:
        if plane.weight == 0:
            nic, used = nics.get(plane.plane), carried[plane.plane]
            name = f"plane {plane.plane}" + (f" ({nic})" if nic else "")
            did = f"carried {scaled(used, 'B')}" if used else "not used"
            yield f"{name}: backup, {did}", used > 0


async def overflow(ctx: Context) -> str:
    """A sentence when packets were lost because the kernel limits the receive buffer; or ""."""
    if all(warning.kind is not WarningKind.RCVBUF_SMALL for warning in ctx.warnings):
        return ""
    count = (await ctx.counters()).get("RX_OVERFLOW", 0)
    if count < MANY_OVERFLOWS:
        return ""
    lost = counted(count, "packet")
    return f"{lost} did not fit the receive buffer: mrc doctor shows how to enlarge it"


def waits_sentence(waits: Waits) -> str:
    """Which part of the transfer held the others up."""
    parts = (
        ("reading", waits.reading_seconds),
        ("the network", waits.network_seconds),
        ("storing", waits.storing_seconds),
    )
    told = ", ".join(f"{scaled(seconds, 's')} for {part}" for part, seconds in parts if seconds)
    return f"waited {told}" if told else ""


def sent_bytes(moved: StoredBatch | Total) -> int:
    """The bytes that travelled: holes, and those that the receiver had kept, did not."""
    return moved.bytes - moved.resumed_bytes - moved.hole_bytes


def batch_lines(batch: StoredBatch, seconds: float) -> list[str]:
    """A line about each file, stored and verified; of a pack of many files one about all."""
    rate = f"  {scaled(sent_bytes(batch) * 8 / seconds, 'bit/s')}" if seconds > 0 else ""
    times = f"  {scaled(seconds, 's')}{rate}"
    if batch.packed and (batch.folders or batch.count > MAX_LISTED):
        counts = [counted(batch.count, "file"), counted(batch.folders, "folder")]
        counts += [counted(batch.links, "link")] * (batch.links > 0)
        return [f"{', '.join(counts)}  {scaled(batch.bytes, 'B')}{times}"]
    return [
        f"{printable(file.path)}  {scaled(file.bytes, 'B')}{'' if batch.packed else times}"
        f"  {versions.DIGEST}:{file.digest}"
        for file in batch.files
    ]


# ---- Bars on the terminal ------------------------------------------------------------------------


BAR_SECONDS = 0.2
MAX_TITLE = 48  # characters of a bar's title
_RATE_SMOOTHING = 0.3


def payload_bytes(role: str, info: QpInfo) -> int:
    """Payload bytes that a sender's peer acknowledged, or that a receiver received; each once."""
    return info.acknowledged_bytes if role == "sender" else info.received_bytes


class _Bars:
    """The bars of all running transfers, on stderr."""

    def __init__(self) -> None:
        # Without a terminal, the command starts without all of this.
        from rich.console import Console
        from rich.progress import Progress, TextColumn
        from rich.table import Column

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=self._console,
            transient=True,
            auto_refresh=False,
        )
        self._shown = 0

    def add(self) -> TaskID:
        if self._shown == 0:
            self._progress.start()
        self._shown += 1
        return self._progress.add_task("", total=None)

    def update(self, task: TaskID, moved: Moved) -> None:
        line = progress_line(moved, self._console.width - 1)
        self._progress.update(task, description=line)
        self._progress.refresh()

    def hide(self) -> None:
        """Removes the bars from the terminal until `show`, so that lines can be printed."""
        if self._shown:
            self._progress.stop()

    def show(self) -> None:
        if self._shown:
            self._progress.start()

    def remove(self, task: TaskID) -> None:
        self._progress.remove_task(task)
        self._shown -= 1
        if self._shown == 0:
            self._progress.stop()


class ProgressMeter:
    """Shows the progress of sessions; without a terminal only results and notes."""

    def __init__(self, out: Output, role: Role) -> None:
        self.out = out
        self.role = role
        self._noted = False
        self._resumed: dict[int, int] = {}  # bytes that need not move, by id
        self._waiting = ""
        self.waited_seconds = 0.0
        """time of the waits for the other side's user, in which nothing could move"""
        self._bars = _Bars() if sys.stderr.isatty() and not out.quiet else None

    @contextmanager
    def lines(self) -> Iterator[None]:
        """Hides the bars while the body prints lines."""
        if self._bars is not None:
            self._bars.hide()
        try:
            yield
        finally:
            if self._bars is not None:
                self._bars.show()

    @contextmanager
    def waiting(self, host: str) -> Iterator[None]:
        """Shows that this end waits for the user at `host`, while the body does."""
        self._waiting, start = f"waiting for {shown(host)} to accept", time.monotonic()
        if self._bars is None:
            self.out.note(self._waiting)
        try:
            yield
        finally:
            self._waiting = ""
            self.waited_seconds += time.monotonic() - start

    def _moving(self) -> float:
        """A clock that stands still during waits."""
        return time.monotonic() - self.waited_seconds

    def text(self, text: str) -> None:
        """Prints a result above the bars."""
        with self.lines():
            self.out.text(text)

    async def files(self, batches: AsyncIterator[StoredBatch], total: Total) -> None:
        """Prints lines about each finished file or pack. Adds all of them to `total`, and the time
        they took, without waits.

        There may be many files, so it keeps them only under --json.
        """
        then = self._moving()
        async for batch in batches:
            total.add(batch, listed=self.out.as_json)
            now = self._moving()
            with self.lines():
                for line in batch_lines(batch, now - then):
                    self.out.text(line)
            total.seconds += now - then
            then = now

    def note(self, text: str) -> None:
        """Prints a note above the bars; an empty text prints nothing."""
        if text:
            with self.lines():
                self.out.note(text)

    def note_once(self, text: str) -> None:
        """Prints only the first note of this kind."""
        if text and not self._noted:
            self._noted = True
            self.note(text)

    def detail(self, text: str) -> None:
        """Prints a note of -v above the bars."""
        if self.out.verbose:
            self.note(text)

    def resumed(self, moving: TransferSession, name: str, there: int, size: int) -> None:
        """The receiver has so many bytes of a file of this size."""
        self._resumed[id(moving)] = self._resumed.get(id(moving), 0) + there
        if there == size:
            self.note(f"{shown(name)}: was there with the same {scaled(size, 'B')}")
        else:
            self.note(f"{shown(name)}: goes on behind {scaled(there, 'B')} of an earlier transfer")

    @asynccontextmanager
    async def watch(
        self,
        moving: TransferSession,
        title: str,
        total: int | None,
        there: Callable[[], int] = lambda: 0,
    ) -> AsyncIterator[None]:
        """Shows the progress of `moving` while the body runs.

        `title` may contain text from the peer. `there` says how many bytes need not move.
        """
        self._resumed[id(moving)] = 0
        if self._bars is None:
            yield
            return
        title = shown(title, MAX_TITLE)
        task = asyncio.create_task(self._show(self._bars, moving, title, total, there))
        try:
            yield
        finally:
            await cancelled(task)

    async def _show(
        self,
        bars: _Bars,
        moving: TransferSession,
        title: str,
        total: int | None,
        there: Callable[[], int],
    ) -> None:
        bar, count = bars.add(), PlaneCount()
        try:
            before, then, rate = await moving.query(), time.monotonic(), 0.0
            while True:
                await asyncio.sleep(BAR_SECONDS)
                info, now = await moving.query(), time.monotonic()
                moved = payload_bytes(self.role, info)
                done = moved + self._resumed[id(moving)] + there()
                current = (moved - payload_bytes(self.role, before)) * 8 / (now - then)
                rate += _RATE_SMOOTHING * (current - rate) if rate else current
                if self._waiting:
                    rate = 0.0
                planes = count.text(carried_bytes(self.role, info.planes), info.planes, now)
                bars.update(bar, Moved(title, done, total, rate, planes, self._waiting))
                before, then = info, now
        finally:
            bars.remove(bar)


# ---- The line of a running transfer --------------------------------------------------------------


QUIET_SECONDS = 1.0  # without payload, while other planes carry some, until a plane counts as lost
_GAP = "  "
_LEAST_TITLE, _LEAST_BAR, _MOST_BAR = 6, 10, 30


class Moved(Struct, frozen=True):
    """A transfer at one moment."""

    title: str
    done: int
    total: int | None  # bytes; None: unknown
    rate: float  # bit/s
    planes: str  # "3/4"; empty: unknown
    waiting: str = ""  # why nothing moves; shown instead of the numbers


def progress_line(moved: Moved, width: int) -> str:
    """Percentage, size, rate and time left; then, as far as `width` allows, planes, title, bar."""
    if moved.waiting:
        return _cut(moved.waiting, width)
    share = None if not moved.total else min(moved.done / moved.total, 1.0)
    first = "" if share is None else f"{int(100 * share):3}%"
    size = f"{scaled(moved.done, 'B'):>8}"
    size += "" if moved.total is None else f" of {scaled(moved.total, 'B')}"
    parts = [size, f"{scaled(moved.rate, 'bit/s'):>11}", _left(moved)]
    room = width - cell_len(_GAP.join(filter(None, [first, *parts])))

    def add(*texts: str) -> None:
        nonlocal room
        for text in texts:
            if text and len(_GAP) + cell_len(text) <= room:
                parts.append(text)
                room -= len(_GAP) + cell_len(text)
                return

    if moved.planes:
        working, _, planes = moved.planes.partition("/")
        add(f"{working}/{counted(int(planes), 'plane')}", moved.planes)
    if moved.title and room - len(_GAP) >= _LEAST_TITLE:
        add(moved.title, f"{_cut(moved.title, room - len(_GAP) - 1)}…")
    else:
        add(moved.title)
    bar = min(room - len(_GAP), _MOST_BAR)
    if share is not None and bar >= _LEAST_BAR:
        full = int(bar * share)
        parts.insert(0, "━" * full + "─" * (bar - full))
    return _cut(_GAP.join(text for text in [first, *parts] if text), width)


def _cut(text: str, columns: int) -> str:
    """The text, or the part of it that fits: some characters take two columns."""
    return text if cell_len(text) <= columns else set_cell_size(text, columns).rstrip()


def _left(moved: Moved) -> str:
    if moved.total is None:
        return ""
    left_bits = max(moved.total - moved.done, 0) * 8
    if moved.rate <= 0 or left_bits / moved.rate >= 360_000:  # 100 hours
        return "ETA -:--"
    minutes, seconds = divmod(round(left_bits / moved.rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"ETA {hours}:{minutes:02}:{seconds:02}" if hours else f"ETA {minutes}:{seconds:02}"


class PlaneCount:
    """Counts the planes that work: not suspended, and not silent while others carry payload."""

    def __init__(self) -> None:
        self._carried: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._any_at = 0.0

    def text(self, carried: dict[int, int], planes: Sequence[PlaneInfo], now: float) -> str:
        """ "3/4". `carried` has each plane's bytes so far; `now` is in seconds. A backup is usually
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
        return f"{len(planes) - lost}/{len(planes)}"


# ---- What happened to the planes of a QP on the way ----------------------------------------------


_MOST_OUTAGES = 256  # kept; a plane that flaps for hours has more
_MOST_NAMED = 4
_SHORT_SECONDS = 0.2


class Incidents:
    """Follows the events of a QP, and of the next one where a transfer connects again."""

    def __init__(self, detail: Callable[[str], None]) -> None:
        """Calls `detail` with a line about each event."""
        self._detail = detail
        self._start_ns: int | None = None
        self._outages: list[Outage] = []
        self._lost_at: dict[int, float] = {}

    @asynccontextmanager
    async def follow(self, qp: QP, carrying: Collection[int] = ()) -> AsyncIterator[None]:
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

    async def _follow(self, qp: QP) -> None:
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
        gone = scaled(back_at - first.lost_at_seconds, "s")
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


# ---- Files that a transfer leaves out ------------------------------------------------------------


MAX_NAMED = 1000  # files of a transfer that are named; the others are only counted
_MAX_FRESH = 1 << 16  # hashes of names that wait to be sorted in


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


class TransferReport:
    """What one end prints of one transfer, over all its connections: lines about the files that
    were not copied, and the result.

    A peer may name very many files: only the first are kept, those for --json. A pack that is sent
    again names them again, which counts once. Beyond `limit` names, `left_out` raises FileError.
    """

    def __init__(self, meter: ProgressMeter, peer: str, *, limit: float = math.inf) -> None:
        self._out = meter.out
        self._meter = meter
        self._peer = peer
        self._limit = limit
        self._once = _Once()
        self._line = ""
        self.total = Total()
        self.failed: list[FailedFile] = []
        self.failed_count = 0

    def left_out(self, failed: FailedFile) -> None:
        """Prints the cause. Both ends print it, each with the host where it is. All files below a
        folder whose name is refused have the same cause, which is printed once.
        """
        if not self._once.add(failed.name):
            return
        if self.failed_count >= self._limit:
            most = f"{self._limit} files and folders (mrc recv --max-files)"
            raise FileError(f"more cannot be copied than the limit of {most}")
        self.failed_count += 1
        if self.failed_count > MAX_NAMED:
            return
        if self._out.as_json:
            self.failed.append(failed)
        there = "" if failed.end == self._meter.role else f"{shown(self._peer)}: "
        line = f"not copied: {there}{shortened(printable(failed.error), MAX_ERROR)}"
        if line != self._line:
            with self._meter.lines():
                self._out.warn(line)
        self._line = line

    async def show(
        self,
        session: TransferSession,
        tcp_port: int,
        incidents: Incidents,
        *,
        about: str = "",
        recording: mrc.Recording | None = None,
        **numbers: float,
    ) -> None:
        """Prints what happened to the planes, after `about`, the bins, and the JSON, with
        `numbers` that only the caller has.
        """
        role, info = self._meter.role, await session.query()
        carried = carried_bytes(role, info.planes)
        evs = await session.evs()
        weighed = [plane.plane for plane in info.planes if plane.weight < 100]
        if story := incidents.sentence(figures.sentence(carried, weighed)):
            self._meter.note(about + story)
        for line, used in backup_lines(info.planes, evs, carried):
            (self._meter.note if used else self._meter.detail)(about + line)
        self._meter.note_once(await overflow(session.ctx))
        self._meter.detail(waits_sentence(session.waiting.seconds()))
        if recording is not None:
            self._meter.text("\n".join(figures.bins_lines(role, recording)))
        if not self._out.as_json:
            return
        total, ctx, percent = self.total, session.ctx, figures.carried_percent(carried)
        goodput = sent_bytes(total) * 8 / total.seconds if total.seconds > 0 else 0.0
        planes = (like(TransferPlane, p, carried_percent=percent[p.plane]) for p in info.planes)
        settings = figures.settings(ctx, session.qp, tcp_port=tcp_port)
        left_out = dict.fromkeys(("skipped", "excluded", "unchanged", "retries"), 0)
        result = like(
            Transfer,
            *(ctx.config.queues, ctx.config.retries, info, total, left_out, settings),
            role=role,
            files=tuple(total.files.values()),
            failed=tuple(self.failed),
            failed_count=self.failed_count,
            goodput_bits_per_second=goodput,
            waits=session.waiting.seconds(),
            qps=len(session.qps),
            planes=tuple(planes),
            evs=tuple(evs),
            outages=incidents.outages,
            counters=nonzero(await ctx.counters()),
            drops=nonzero(await ctx.drops()),
            transfer_version=versions.TRANSFER,
            chunk_bytes=CHUNK_BYTES,
            chunks_in_flight=CHUNKS_IN_FLIGHT,
            digest_algorithm=versions.DIGEST,
            bins=None if recording is None else figures.bins(recording),
            **numbers,
        )
        self._out.result(result)

    def end(self) -> int:
        """Prints how many files were not copied; returns the exit code."""
        count = self.failed_count
        if not count:
            return Exit.OK
        if count > 1:
            named = f"; the first {MAX_NAMED} are named" if count > MAX_NAMED else ""
            self._out.warn(f"{count} files and folders were not copied{named}")
        return Exit.NOT_ALL_COPIED
