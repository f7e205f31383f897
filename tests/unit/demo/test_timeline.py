# SPDX-License-Identifier: Apache-2.0
"""Goodput from bins: a second at full rate, a gap, and three quarters of the rate after it."""

from __future__ import annotations

import pytest

from mrc.demo.run import Timeline

# 100 bytes every 0.1 s until 1.0 s, nothing until 1.3 s, then 75 bytes every 0.1 s until 2.3 s.
LINE = Timeline(0.0, 0.1, [100] * 10 + [0] * 3 + [75] * 10)


@pytest.mark.parametrize(
    ("seconds", "count"),
    [(-1, 0), (0, 0), (0.05, 50), (0.5, 500), (1.0, 1000), (1.2, 1000), (1.35, 1037.5), (9, 1750)],
)
def test_bytes_at__within_and_beyond_bins(seconds: float, count: float) -> None:
    assert LINE.bytes_at(seconds) == pytest.approx(count)


def test_reached__end_of_the_bin_that_has_it() -> None:
    assert LINE.reached(0) == 0
    assert LINE.reached(101) == pytest.approx(0.2)
    assert LINE.reached(1750) == pytest.approx(2.3)
    assert LINE.reached(1751) is None


def test_last_below__start_of_the_bin_that_has_it() -> None:
    assert LINE.last_below(0) == 0
    assert LINE.last_below(1) == 0
    assert LINE.last_below(101) == pytest.approx(0.1)
    assert LINE.last_below(1751) == pytest.approx(2.3)


@pytest.mark.parametrize(
    ("start", "end", "rate"),
    [(0, 1, 8000), (0.95, 1.05, 4000), (1, 1.3, 0), (1.3, 2.3, 6000), (1, 1, 0), (2, 1, 0)],
)
def test_goodput__mean_in_bits(start: float, end: float, rate: float) -> None:
    assert LINE.goodput(start, end) == pytest.approx(rate, abs=1e-6)


def test_ahead__of_a_steady_rate() -> None:
    """It falls behind from 0.2 s to 0.4 s and catches up until 0.6 s."""
    line = Timeline(0.0, 0.1, [100, 100, 50, 50, 150, 150, 100])
    assert line.ahead(0.0, 0.5, 8000) == pytest.approx(0.0)
    assert line.ahead(0.3, 0.5, 8000) == pytest.approx(0.5)
    assert line.ahead(0.3, 0.7, 8000) == pytest.approx(0.6)
    assert line.ahead(0.4, 0.4, 8000) == pytest.approx(0.4)


def test_bins__whole_ones_only() -> None:
    bins = LINE.bins(0.8, 1.55, 0.2)
    assert [(round(each.start, 6), round(each.bits_per_second, 6)) for each in bins] == [
        (0.8, 8000),
        (1.0, 0),
        (1.2, 3000),
    ]
    assert LINE.bins(1, 1.1, 0.2) == []


def intervals(level: float, start: float, end: float) -> list[tuple[float, float]]:
    found = LINE.below(start, end, level, 0.1)
    return [(round(each.start, 6), round(each.end, 6)) for each in found]


def test_below__from_half_a_window_into_the_gap_to_half_a_window_before_its_end() -> None:
    assert intervals(4001, 0.5, 2.2) == [(1.0, 1.32)], "two thirds of the window at 6000 suffice"
    assert intervals(1, 0.5, 2.2) == [(1.05, 1.26)]


def test_below__never_and_all_the_time() -> None:
    assert intervals(5900, 1.4, 2.2) == []
    assert intervals(6100, 1.4, 2.2) == [(1.4, 2.2)]


def test_below__two_dips() -> None:
    line = Timeline(0.0, 0.1, [0 if n in (5, 15) else 100 for n in range(20)])
    found = line.below(0.1, 1.9, 7000, 0.1)
    centres = [each.start + each.seconds / 2 for each in found]
    assert centres == pytest.approx([0.55, 1.55], abs=0.01)


def test_timeline__without_bins() -> None:
    empty = Timeline(0.0, 0.1, [])
    assert empty.bytes_at(1) == 0
    assert empty.reached(1) is None
    assert empty.goodput(0, 1) == 0
