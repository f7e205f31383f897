# SPDX-License-Identifier: Apache-2.0
"""Goodput over time from samples of the payload that has arrived. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """The payload bytes that had arrived at a moment."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Mean goodput over [start, start + width)."""

    start: float
    width: float
    bits_per_second: float


@dataclass(frozen=True, slots=True)
class Interval:
    """[start, end) in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Timeline:
    """Payload against time: straight lines between samples, flat before and after."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._seconds = [sample.seconds for sample in samples]
        self._bytes = [sample.bytes for sample in samples]
        assert self._seconds == sorted(self._seconds), "samples come in the order of time"
        assert self._bytes == sorted(self._bytes), "payload that arrived does not leave again"

    def bytes_at(self, seconds: float) -> float:
        """Payload that had arrived by then."""
        after = bisect_right(self._seconds, seconds)
        if after == 0:
            return 0.0
        if after == len(self._seconds):
            return float(self._bytes[-1])
        t0, t1 = self._seconds[after - 1], self._seconds[after]
        b0, b1 = self._bytes[after - 1], self._bytes[after]
        return b0 + (b1 - b0) * (seconds - t0) / (t1 - t0)

    def reached(self, count: int) -> float | None:
        """The moment of the first sample that shows `count` bytes or more."""
        index = bisect_left(self._bytes, count)
        return self._seconds[index] if index < len(self._seconds) else None

    def last_below(self, count: int) -> float:
        """The moment of the last sample that shows fewer than `count` bytes, else of the first."""
        return self._seconds[max(0, bisect_left(self._bytes, count) - 1)]

    def goodput(self, start: float, end: float) -> float:
        """Mean bits per second between two moments; 0 for none between them."""
        if end <= start:
            return 0.0
        return (self.bytes_at(end) - self.bytes_at(start)) * 8 / (end - start)

    def bins(self, start: float, end: float, width: float) -> list[Bin]:
        """Whole bins from `start` on; what is left before `end` is no bin."""
        count = int((end - start) / width + 1e-9)
        starts = (start + i * width for i in range(count))
        return [Bin(at, width, self.goodput(at, at + width)) for at in starts]

    def below(self, start: float, end: float, level: float, window: float) -> list[Interval]:
        """When goodput was below `level`, in order, to a tenth of the window.

        Goodput at a moment is the mean over the `window` around it: over much less, a shaper's
        bursts would make it noise.
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
