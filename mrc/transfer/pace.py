# SPDX-License-Identifier: Apache-2.0
"""Limits the rate of a sender: it writes its chunks in pieces, at their times. A receiver that has
named the rate gives no credit before that.
"""

from __future__ import annotations

import asyncio

from mrc.transfer.messages import CHUNK_BYTES

PIECE_SECONDS = 0.02  # of the rate: a piece leaves as one burst
MIN_PIECE_BYTES = 4096


def lower(*rates: float) -> float:
    """The lowest of these rates; 0 is no limit."""
    return min((rate for rate in rates if rate), default=0.0)


class Pace:
    """Lets `rate` bits per second pass; 0: no limit."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.limited = rate > 0
        self._next = 0.0  # when the next piece may leave
        self._turn = asyncio.Lock()

    def pieces(self, length: int) -> list[tuple[int, int]]:
        """Offset and length of each piece of a chunk."""
        wanted = int(self._rate / 8 * PIECE_SECONDS) if self.limited else CHUNK_BYTES
        step = max(MIN_PIECE_BYTES, wanted - wanted % MIN_PIECE_BYTES)
        return [(start, min(step, length - start)) for start in range(0, length, step)]

    async def until(self, length: int) -> None:
        """Waits until so many bytes may leave; the callers leave in their order."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            self._next = max(self._next, now)
            await asyncio.sleep(self._next - now)
            self._next += length * 8 / self._rate


class Due:
    """When a sender may get more credit, by its rate and by all that has come in its session."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._due = 0.0
        self._counted = 0

    def begin(self, rate: float) -> None:
        """The sender may now send so many bits per second; 0: no limit."""
        self._rate = rate
        self._due = max(self._due, asyncio.get_running_loop().time())

    async def wait(self, bytes_come: int) -> None:
        """Waits as long as the rate requires for all that has come."""
        now = asyncio.get_running_loop().time()
        more, self._counted = bytes_come - self._counted, bytes_come
        if self._rate:
            self._due = max(self._due + more * 8 / self._rate, now)
            await asyncio.sleep(self._due - now)
