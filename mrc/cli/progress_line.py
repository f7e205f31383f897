# SPDX-License-Identifier: Apache-2.0
"""The line that shows a running transfer, as long as the terminal is wide. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from mrc.cli.output import format_bytes, format_rate
from mrc.events import PlaneInfo
from mrc.units import counted

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
