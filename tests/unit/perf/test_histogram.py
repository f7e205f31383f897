# SPDX-License-Identifier: Apache-2.0
"""Counting durations in bounded memory."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mrc.perf.meter import Histogram
from mrc.perf.results import Latency


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_histogram__percentiles(durations: list[int], fraction: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    wanted = fraction * len(durations)
    exact = next(value for seen, value in enumerate(sorted(durations), 1) if seen >= wanted)
    found = histogram.percentile(fraction)
    assert exact <= found <= exact + exact // 64


def test_histogram__summary() -> None:
    histogram = Histogram()
    assert histogram.summary() == Latency(0, 0, 0, 0, 0, 0, 0)
    for duration in range(1, 101):
        histogram.add(duration)
    assert histogram.summary() == Latency(100, 1, 50, 50, 99, 100, 100)


def test_histogram__size_is_bounded() -> None:
    histogram = Histogram()
    rng = random.Random(1)
    for _ in range(20000):
        histogram.add(rng.randrange(1 << rng.randrange(1, 40)))
    assert len(histogram._buckets) <= 40 * 64
