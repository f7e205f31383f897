# SPDX-License-Identifier: Apache-2.0
"""Where the chunks of a sender come from: a mapped file, or memory that a helper thread fills."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple, Protocol, Self

from mrc.aio.context import Context
from mrc.binding.verbs import MR
from mrc.enums import Access
from mrc.transfer.holes import Holes
from mrc.transfer.messages import CHUNK_BYTES
from mrc.transfer.pack import FRAME, seal
from mrc.transfer.populate import Ahead, anonymous
from mrc.transfer.threads import Line

FILLED_BYTES = 256 << 20  # of memory for filled chunks; only chunks in flight or ahead occupy it
FILLED_AHEAD = 4  # chunks filled before the writes need them
UNKNOWN = 1 << 62


class Piece(NamedTuple):
    """A chunk, in the memory of its feed."""

    offset: int
    length: int


class Feed(Protocol):
    """The chunks of an offer, in order."""

    @property
    def mr(self) -> MR: ...

    async def next(self) -> Piece | None:
        """The next chunk; None after the last one."""

    def written(self, piece: Piece) -> None:
        """The receiver has this chunk: its memory may be used for another."""

    def left_bytes(self) -> int:
        """Bytes that `next` has not returned yet; UNKNOWN if nobody knows."""


class Mapped:
    """The chunks of a mapped file, without those of holes. `ahead` prepares all of them."""

    def __init__(self, mr: MR, ahead: Ahead, holes: Holes) -> None:
        self.mr = mr
        self._ahead = ahead
        self._holes = holes
        self._at = 0

    async def next(self) -> Piece | None:
        while self._holes.left(self._at // CHUNK_BYTES) and self.left_bytes():
            await self._prepared()
        return await self._prepared() if self.left_bytes() else None

    async def _prepared(self) -> Piece:
        piece = Piece(self._at, min(CHUNK_BYTES, self.left_bytes()))
        self._ahead.reached(self._at)
        self._at += piece.length
        await self._ahead.until(self._at)
        return piece

    async def skip(self, chunks: int) -> None:
        """Goes on behind these chunks, once they are prepared too."""
        end = min(chunks * CHUNK_BYTES, self.mr.length)
        while self._at < end:
            await self._prepared()

    def written(self, piece: Piece) -> None:
        pass

    def left_bytes(self) -> int:
        return self.mr.length - self._at


class Filled:
    """Framed chunks that `fill` fills in a helper thread. An async context manager.

    `fill` gets the memory for the payload of a chunk and returns the bytes that it put there; 0
    ends the feed. `left_bytes` says how many are left, and `stop` ends a `fill` that waits.
    """

    def __init__(
        self,
        fill: Callable[[memoryview], int],
        left_bytes: Callable[[], int],
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._fill = fill
        self.left_bytes = left_bytes
        self._free = list(range(FILLED_BYTES // CHUNK_BYTES))  # a heap: the lowest are used first
        self._filled: deque[Piece] = deque()
        self._filling = 0
        self._lengths: dict[int, int] = {}  # of chunks that the thread has filled
        self._ended = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._line = Line(stop)

    async def open(self, ctx: Context, held: AsyncExitStack) -> Self:
        """Takes its memory, which `held` releases, and starts to fill it."""
        self._memory = held.enter_context(anonymous(FILLED_BYTES))
        registered = ctx.register(self._memory, access=Access.LOCAL_READ)
        self.mr: MR = await held.enter_async_context(registered)
        return self

    async def __aenter__(self) -> Self:
        self._fill_ahead()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self._line.__aexit__(kind, *rest)

    async def next(self) -> Piece | None:
        while not self._filled:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        piece = self._filled.popleft()
        self._fill_ahead()
        return piece

    def written(self, piece: Piece) -> None:
        heapq.heappush(self._free, piece.offset // CHUNK_BYTES)
        self._fill_ahead()

    def _fill_ahead(self) -> None:
        while self._free and self._filling + len(self._filled) < FILLED_AHEAD and not self._ended:
            slot = heapq.heappop(self._free)
            self._filling += 1
            told = partial(self._on_filled, slot)
            self._line.put_and_tell(told, self._fill_slot, slot)

    def _fill_slot(self, slot: int) -> None:
        start = slot * CHUNK_BYTES
        with memoryview(self._memory) as whole, whole[start : start + CHUNK_BYTES] as chunk:
            with chunk[FRAME.size :] as payload:
                length = self._fill(payload)
            self._lengths[slot] = seal(chunk, length) if length else 0

    def _on_filled(self, slot: int, error: BaseException | None) -> None:
        self._filling -= 1
        if error is not None:
            self._error = self._error or error
        elif length := self._lengths.pop(slot):
            self._filled.append(Piece(slot * CHUNK_BYTES, length))
        else:
            self._ended = True
        self._changed.set()
