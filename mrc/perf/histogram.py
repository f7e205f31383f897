# SPDX-License-Identifier: Apache-2.0
"""A histogram of durations. Its size is bounded, and its resolution is 1/64 of a duration."""

from __future__ import annotations

from mrc.results.perf import Latency

_STEPS = 64  # buckets in an octave
_SHIFT = 6


class Histogram:
    """Counts durations in buckets. Each octave is divided into 64 buckets of equal width."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._total = 0
        self._min = 0
        self._max = 0

    def add(self, duration_ns: int) -> None:
        """Counts one duration."""
        self._min = duration_ns if self._count == 0 else min(self._min, duration_ns)
        self._max = max(self._max, duration_ns)
        self._count += 1
        self._total += duration_ns
        index = _bucket(duration_ns)
        self._buckets[index] = self._buckets.get(index, 0) + 1

    def percentile(self, fraction: float) -> int:
        """The duration in ns that a `fraction` (0..1) of all durations do not exceed, rounded up to
        the end of its bucket; 0 without durations.
        """
        wanted = fraction * self._count
        seen = 0
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if seen >= wanted:
                return min(_end(index), self._max)
        return 0

    def summary(self) -> Latency:
        """The figures for a report."""
        return Latency(
            self._count,
            self._min,
            self._total // self._count if self._count else 0,
            self.percentile(0.5),
            self.percentile(0.99),
            self.percentile(0.999),
            self._max,
        )


def _bucket(duration_ns: int) -> int:
    octave = max(0, duration_ns.bit_length() - _SHIFT - 1)
    return (octave << _SHIFT) + (duration_ns >> octave)


def _end(index: int) -> int:
    """The largest duration of a bucket."""
    if index < 2 * _STEPS:
        return index
    octave = (index >> _SHIFT) - 1
    return ((index - (octave << _SHIFT) + 1) << octave) - 1
