# SPDX-License-Identifier: Apache-2.0
"""How far a transfer is: a bar on the terminal, or samples as NDJSON for programs."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import IO, Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from mrc.cli.output import Output, format_rate
from mrc.errors import MrcError
from mrc.events import PlaneInfo, QpInfo
from mrc.exchange.foreign import shown

BAR_SECONDS = 0.2
SAMPLE_SECONDS = 0.01
MAX_QUERY_SECONDS = 0.003
MAX_TITLE = 48  # characters of a bar's title
_RATE_SMOOTHING = 0.3


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--progress-json",
        metavar="FILE",
        help="append a sample of the payload bytes so far to FILE (or descriptor number), every"
        f" {SAMPLE_SECONDS * 1000:.0f} ms, as NDJSON",
    )


def payload_bytes(role: str, info: QpInfo) -> int:
    """Payload that the peer has for certain, each byte once."""
    return info.bytes_acked if role == "sender" else info.bytes_received


def plane_bytes(role: str, plane: PlaneInfo) -> int:
    """Payload that a sender sent by this plane, or that came in by it."""
    return plane.bytes if role == "sender" else plane.bytes_received


def plane_shares(role: str, before: Sequence[PlaneInfo], now: Sequence[PlaneInfo]) -> str:
    """ "planes 1: 25% 2: 25% 3: 50%" of what moved in between."""
    moved = [plane_bytes(role, b) - plane_bytes(role, a) for a, b in zip(before, now, strict=True)]
    total = sum(moved)
    if total <= 0:
        return ""
    shares = (f"{p.plane}: {m / total:.0%}" for p, m in zip(now, moved, strict=True))
    return "planes " + " ".join(shares)


class Watched(Protocol):
    """What moves payload: a QP, or a session of several."""

    @property
    def qpn(self) -> int: ...
    async def query(self) -> QpInfo: ...


class _Bars:
    """The bars of all transfers under way, on stderr; nothing unless that is a terminal."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("{task.fields[shares]}", markup=False),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        self._shown = 0

    def add(self, title: str, total: int | None) -> TaskID:
        if self._shown == 0:
            self._progress.start()
        self._shown += 1
        return self._progress.add_task(title, total=total, rate="", shares="")

    def update(self, task: TaskID, done: int, rate: float, shares: str) -> None:
        self._progress.update(task, completed=done, rate=format_rate(rate), shares=shares)
        self._progress.refresh()

    def hide(self) -> None:
        """Until `show`, the terminal is free for lines of text."""
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
    """Watches QPs or sessions for a subcommand. A context manager."""

    def __init__(self, out: Output, role: str, json_target: str | None) -> None:
        self._out = out
        self._role = role
        self._bars = _Bars() if sys.stderr.isatty() and not out.quiet else None
        self._stream: IO[str] | None = _open(json_target) if json_target else None

    def __enter__(self) -> ProgressMeter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    @contextmanager
    def lines(self) -> Iterator[None]:
        """While the body prints whole lines, no bar is in their way."""
        if self._bars is not None:
            self._bars.hide()
        try:
            yield
        finally:
            if self._bars is not None:
                self._bars.show()

    def text(self, text: str) -> None:
        """Prints a result above the bars."""
        with self.lines():
            self._out.text(text)

    def note(self, text: str) -> None:
        """Prints a note above the bars; an empty one is none."""
        if text:
            with self.lines():
                self._out.note(text)

    @asynccontextmanager
    async def watch(self, moving: Watched, title: str, total: int | None) -> AsyncIterator[None]:
        """Shows the progress of one of them while the body runs.

        A part of `title` may come from the peer.
        """
        title = shown(title, MAX_TITLE)
        tasks = []
        if self._bars is not None:
            tasks.append(asyncio.create_task(self._show(self._bars, moving, title, total)))
        if self._stream is not None:
            tasks.append(asyncio.create_task(self._sample(self._stream, moving)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._stream is not None:
                await self._last_sample(self._stream, moving)

    async def _show(self, bars: _Bars, moving: Watched, title: str, total: int | None) -> None:
        bar = bars.add(title, total)
        try:
            before, then, rate = await moving.query(), time.monotonic(), 0.0
            while True:
                await asyncio.sleep(BAR_SECONDS)
                info, now = await moving.query(), time.monotonic()
                done = payload_bytes(self._role, info)
                current = (done - payload_bytes(self._role, before)) * 8 / (now - then)
                rate += _RATE_SMOOTHING * (current - rate) if rate else current
                shares = plane_shares(self._role, before.planes, info.planes)
                bars.update(bar, done, rate, shares)
                before, then = info, now
        finally:
            bars.remove(bar)

    async def _sample(self, stream: IO[str], moving: Watched) -> None:
        while True:
            asked = time.monotonic()
            info = await moving.query()
            answered = time.monotonic()
            # The answer is from somewhere in between: a sample that cannot say when is left out.
            if answered - asked < MAX_QUERY_SECONDS:
                _write_sample(stream, self._role, moving, info, (asked + answered) / 2)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _last_sample(self, stream: IO[str], moving: Watched) -> None:
        try:
            _write_sample(stream, self._role, moving, await moving.query(), time.monotonic())
        except MrcError:
            pass  # the QP is gone; the samples so far stand


def _write_sample(stream: IO[str], role: str, moving: Watched, info: QpInfo, now: float) -> None:
    sample: dict[str, Any] = {
        "monotonic_seconds": now,
        "qpn": moving.qpn,
        "bytes": payload_bytes(role, info),
        "packets_retransmitted": info.packets_retransmitted,
        "planes": [
            {"plane": p.plane, "bytes": plane_bytes(role, p), "lost": p.lost} for p in info.planes
        ],
    }
    stream.write(json.dumps(sample) + "\n")
    stream.flush()


def _open(target: str) -> IO[str]:
    if target.isascii() and target.isdigit():
        return os.fdopen(int(target), "w")
    return open(target, "a", encoding="utf-8")
