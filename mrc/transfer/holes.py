# SPDX-License-Identifier: Apache-2.0
"""The holes of sparse files, in whole chunks: neither read nor sent."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator

MAX_HOLES = 4096  # of one file; the others are sent as zeros


class Holes:
    """Ranges of chunks that are holes, each with its first chunk and its length. Pure."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = tuple(ranges)
        self._firsts = [first for first, _ in self.ranges]

    def left(self, chunk: int) -> int:
        """Chunks of the hole from this chunk on; 0 if it has data."""
        at = bisect_right(self._firsts, chunk) - 1
        return max(0, sum(self.ranges[at]) - chunk) if at >= 0 else 0

    def bytes_from(self, chunk: int, chunk_bytes: int, size: int) -> int:
        """Bytes of the holes from this chunk on, in a file of `size` bytes."""
        ends = ((max(first, chunk), first + count) for first, count in self.ranges)
        return sum(
            max(0, min(end * chunk_bytes, size) - begin * chunk_bytes) for begin, end in ends
        )

    def are_within(self, chunks: int) -> bool:
        """Whether they are in order, apart, and within a file of so many chunks."""
        end = 0
        for first, count in self.ranges:
            if first < end or count < 1:
                return False
            end = first + count
        return end <= chunks


def holes_of(fd: int, size: int, chunk_bytes: int) -> Holes:
    """The holes of a file; the largest if there are very many."""
    found = [each for each in _ranges(fd, size, chunk_bytes) if each[1] > 0]
    largest = sorted(found, key=lambda each: each[1], reverse=True)[:MAX_HOLES]
    return Holes(sorted(largest))


def _ranges(fd: int, size: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    data = 0
    while data < size:
        try:
            hole = os.lseek(fd, data, os.SEEK_HOLE)
        except OSError:  # the file became shorter, or the file system does not tell
            return
        try:
            data = min(os.lseek(fd, hole, os.SEEK_DATA), size)
        except OSError:  # no data follow
            data = size
        first = -(-hole // chunk_bytes)
        end = -(-size // chunk_bytes) if data == size else data // chunk_bytes
        yield first, end - first
