# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of transfers as bars on the terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol

from mrc.cli.output import Output, format_bytes
from mrc.cli.progress_line import Moved, PlaneCount, progress_line
from mrc.cli.report import batch_lines, carried_bytes
from mrc.connect.parse import shown
from mrc.events import QpInfo
from mrc.tasks import cancelled
from mrc.transfer.pack import StoredBatch, Total

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
