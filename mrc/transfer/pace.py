# SPDX-License-Identifier: Apache-2.0
"""Limits the rate of a sender: it writes its chunks in pieces, at their times."""

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
