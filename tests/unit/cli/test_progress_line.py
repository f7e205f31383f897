# SPDX-License-Identifier: Apache-2.0
"""The line of a running transfer in terminals of any width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from mrc.transfer.cli.report import Moved, PlaneCount, progress_line

MOVED = Moved("to h1", 1_950_000_000, 4 << 30, 480e6, "4/4")


def test_progress_line__at_80_columns() -> None:
    line = progress_line(MOVED, 80)
    assert line.startswith(" 45%  ━━━━━─")
    assert line.endswith("1.82 GiB of 4 GiB   480 Mbit/s  ETA 0:39  4/4 planes  to h1")


def test_progress_line__at_60_columns() -> None:
    line = progress_line(replace(MOVED, title="to a-host-with-a-long-name.example"), 60)
    assert line.startswith(" 45%  1.82 GiB of 4 GiB   480 Mbit/s  ETA 0:39  4/4 planes")
    assert len(line) <= 60


def test_progress_line__while_nothing_can_move() -> None:
    waiting = replace(MOVED, done=0, rate=27.0, waiting="waiting for h1 to accept")
    assert progress_line(waiting, 80) == "waiting for h1 to accept"
    assert progress_line(waiting, 10) == "waiting fo"


def test_progress_line__a_bar_where_there_is_room() -> None:
    line = progress_line(MOVED, 120)
    assert line.startswith(" 45%  ━━━━━━━━━━━━━─────────────────  1.82 GiB of 4 GiB")
    assert line.endswith("to h1")


@pytest.mark.parametrize("width", [*range(1, 130, 7), 60, 80])
@pytest.mark.parametrize(
    "moved",
    [
        MOVED,
        replace(MOVED, done=1023 << 20, total=1023 << 30, rate=1, planes="16/16"),
        replace(MOVED, total=None),
        replace(MOVED, rate=0.0),
        replace(MOVED, done=5 << 30),
        replace(MOVED, done=0, total=0),
        replace(MOVED, total=1 << 63, rate=999.9e9, title="x" * 48),
        replace(MOVED, planes="", title=""),
        replace(MOVED, title="写真" * 24),
        replace(MOVED, waiting="waiting for 写真"),
    ],
)
def test_progress_line__never_wraps(moved: Moved, width: int) -> None:
    """Some characters take two columns."""
    assert cell_len(progress_line(moved, width)) <= width


@pytest.mark.parametrize("width", [59, 79])
def test_progress_line__the_worst_numbers_keep_the_planes(width: int) -> None:
    worst = Moved("from h1", 1023 << 20, 1023 << 30, 999e6, "16/16")
    line = progress_line(worst, width)
    assert "1023 MiB of 1023 GiB   999 Mbit/s  ETA 2:26:" in line
    assert "16/16" in line


@pytest.mark.parametrize(
    ("done", "rate", "text"),
    [
        (0, 8e6, "ETA 8:44"),
        (0, 8e4, "ETA 14:33:49"),
        (0, 8e2, "ETA -:--"),
        (0, 0.0, "ETA -:--"),
        (500 << 20, 8e6, "ETA 0:00"),
        (600 << 20, 8e6, "ETA 0:00"),
    ],
)
def test_progress_line__time_left(done: int, rate: float, text: str) -> None:
    assert text in progress_line(Moved("", done, 500 << 20, rate, ""), 80)


@dataclass(frozen=True)
class Plane:
    plane: int
    suspended: bool = False


def test_plane_count__suspended_and_silent_planes_are_lost() -> None:
    planes: Any = [Plane(1), Plane(2), Plane(3)]
    count = PlaneCount()
    assert count.text({1: 0, 2: 0, 3: 0}, planes, 10.0) == "3/3"
    assert count.text({1: 5, 2: 5, 3: 5}, planes, 10.2) == "3/3"
    assert count.text({1: 9, 2: 5, 3: 9}, planes, 11.0) == "3/3", "silent for less than a second"
    assert count.text({1: 12, 2: 5, 3: 12}, planes, 11.4) == "2/3"
    assert count.text({1: 13, 2: 6, 3: 13}, planes, 11.6) == "3/3"
    assert count.text({1: 13, 2: 6, 3: 13}, planes, 30.0) == "3/3", "nothing to carry"
    planes[0] = Plane(1, suspended=True)
    assert count.text({1: 13, 2: 6, 3: 13}, planes, 30.2) == "2/3"
