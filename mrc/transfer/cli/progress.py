# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of transfers as bars on the terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from mrc.cli.output import Output, format_bytes, format_rate
from mrc.connect.parse import shown
from mrc.events import PlaneInfo, QpInfo
from mrc.tasks import cancelled
from mrc.transfer.cli.report import batch_lines, carried_bytes
from mrc.transfer.pack import StoredBatch, Total
from mrc.units import counted

if TYPE_CHECKING:
    from rich.progress import TaskID


BAR_SECONDS = 0.2
MAX_TITLE = 48  # characters of a bar's title
_RATE_SMOOTHING = 0.3


def payload_bytes(role: str, info: QpInfo) -> int:
    """Payload bytes that a sender's peer acknowledged, or that a receiver received; each once."""
    return info.acknowledged_bytes if role == "sender" else info.received_bytes


class Watched(Protocol):
    """Something that moves payload: a QP, or a session of several QPs."""

    async def query(self) -> QpInfo: ...


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
    """Shows the progress of QPs or sessions; without a terminal only results and notes."""

    def __init__(self, out: Output, role: str) -> None:
        self._out = out
        self._role = role
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
            self._out.note(self._waiting)
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
            self._out.text(text)

    async def files(self, batches: AsyncIterator[StoredBatch], total: Total) -> None:
        """Prints lines about each finished file or pack. Adds all of them to `total`, and the time
        they took, without waits.

        There may be many files, so it keeps them only under --json.
        """
        then = self._moving()
        async for batch in batches:
            total.add(batch, listed=self._out.as_json)
            now = self._moving()
            with self.lines():
                for line in batch_lines(batch, now - then):
                    self._out.text(line)
            total.seconds += now - then
            then = now

    def note(self, text: str) -> None:
        """Prints a note above the bars; an empty text prints nothing."""
        if text:
            with self.lines():
                self._out.note(text)

    def note_once(self, text: str) -> None:
        """Prints only the first note of this kind."""
        if text and not self._noted:
            self._noted = True
            self.note(text)

    def detail(self, text: str) -> None:
        """Prints a note of -v above the bars."""
        if self._out.verbose:
            self.note(text)

    def resumed(self, moving: Watched, name: str, there: int, size: int) -> None:
        """The receiver has so many bytes of a file of this size."""
        self._resumed[id(moving)] = self._resumed.get(id(moving), 0) + there
        if there == size:
            self.note(f"{shown(name)}: was there with the same {format_bytes(size)}")
        else:
            self.note(f"{shown(name)}: goes on behind {format_bytes(there)} of an earlier transfer")

    @asynccontextmanager
    async def watch(
        self, moving: Watched, title: str, total: int | None, there: Callable[[], int] = lambda: 0
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
        moving: Watched,
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
                moved = payload_bytes(self._role, info)
                done = moved + self._resumed[id(moving)] + there()
                current = (moved - payload_bytes(self._role, before)) * 8 / (now - then)
                rate += _RATE_SMOOTHING * (current - rate) if rate else current
                if self._waiting:
                    rate = 0.0
                planes = count.text(carried_bytes(self._role, info.planes), info.planes, now)
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
    parts = [_size(moved), f"{format_rate(moved.rate):>11}", _left(moved)]
    room = width - _wide([first, *parts])

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


def _wide(parts: Sequence[str]) -> int:
    return cell_len(_GAP.join(text for text in parts if text))


def _cut(text: str, columns: int) -> str:
    """The text, or the part of it that fits: some characters take two columns."""
    return text if cell_len(text) <= columns else set_cell_size(text, columns).rstrip()


def _size(moved: Moved) -> str:
    done = f"{format_bytes(moved.done):>8}"
    return done if moved.total is None else f"{done} of {format_bytes(moved.total)}"


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
        """ "3/4". `carried` has each plane's bytes so far; `now` is in seconds."""
        before, self._carried = self._carried, carried
        for plane, count in carried.items():
            if count > before.get(plane, 0):
                self._heard[plane] = self._any_at = now
            self._heard.setdefault(plane, now)
        lost = sum(
            plane.suspended or self._any_at - self._heard[plane.plane] > QUIET_SECONDS
            for plane in planes
        )
        return f"{len(planes) - lost}/{len(planes)}"
