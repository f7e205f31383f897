# SPDX-License-Identifier: Apache-2.0
"""Goodput over time, computed from the bytes received in bins. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from msgspec import Struct


class Bin(Struct, frozen=True):
    """Mean goodput over [start, start + width)."""

    start: float
    width: float
    bits_per_second: float


class Interval(Struct, frozen=True):
    """[start, end) in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Timeline:
    """Received bytes over time: linear within a bin, constant before and after all bins."""

    def __init__(self, start: float, width: float, bins: Sequence[int]) -> None:
        """`bins` are the bytes of each `width` seconds from `start` on."""
        self._start = start
        self._width = width
        # Total bytes at the start of each bin, and at the end of the last.
        self._totals = [0, *accumulate(bins)]

    def bytes_at(self, seconds: float) -> float:
        """Payload bytes that had arrived at this time."""
        bins = min(max((seconds - self._start) / self._width, 0.0), len(self._totals) - 1.0)
        whole = int(bins)
        before, after = self._totals[whole], self._totals[ceil(bins)]
        return before + (after - before) * (bins - whole)

    def reached(self, count: int) -> float | None:
        """The end of the bin in which the total reached `count` bytes; None if it never did."""
        index = bisect_left(self._totals, count)
        return self._start + index * self._width if index < len(self._totals) else None

    def last_below(self, count: int) -> float:
        """The start of the bin in which the total reached `count` bytes, or the end of the last."""
        return self._start + max(0, bisect_left(self._totals, count) - 1) * self._width

    def goodput(self, start: float, end: float) -> float:
        """Mean bits per second between two times; 0 if `end` is not after `start`."""
        if end <= start:
            return 0.0
        return (self.bytes_at(end) - self.bytes_at(start)) * 8 / (end - start)

    def ahead(self, start: float, end: float, bits_per_second: float) -> float:
        """The time between two times, in whole bins from `start` on, at which most bytes had
        arrived compared with a steady rate: then the least was waiting on the way.
        """
        steps = range(int((end - start) / self._width + 1e-9) + 1)
        times = [start + step * self._width for step in steps]
        return max(times, key=lambda at: self.bytes_at(at) * 8 - at * bits_per_second)

    def bins(self, start: float, end: float, width: float) -> list[Bin]:
        """Whole bins from `start` on; a remainder before `end` is left out."""
        count = int((end - start) / width + 1e-9)
        starts = (start + i * width for i in range(count))
        return [Bin(at, width, self.goodput(at, at + width)) for at in starts]

    def below(self, start: float, end: float, level: float, window: float) -> list[Interval]:
        """The intervals in which goodput was below `level`, in order, to a tenth of `window`.

        Goodput at a moment is the mean over the `window` around it. In a much shorter window the
        bursts of a shaper would dominate.
        """
        step = window / 10
        intervals: list[Interval] = []
        for i in range(int((end - start) / step + 1e-9)):
            at = start + i * step
            if self.goodput(at - window / 2, at + window / 2) >= level:
                continue
            if intervals and intervals[-1].end >= at - step / 2:
                intervals[-1] = Interval(intervals[-1].start, at + step)
            else:
                intervals.append(Interval(at, at + step))
        return intervals
