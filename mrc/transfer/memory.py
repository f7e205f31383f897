# SPDX-License-Identifier: Apache-2.0
"""The memory of transfers: the window of a receiver; what a sender writes from, a mapped file or
memory that a helper thread fills.

A page fault in a mapped file costs more time than all other work on its bytes. A fault that waits
for the disk would delay every QP of the Context. So a helper thread populates the pages. One call
for many pages is also several times cheaper than one fault per page.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import mmap
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple, Self

from msgspec import Struct

from mrc.aio.context import Context
from mrc.engine.memory import Region
from mrc.linux import system
from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.messages import FRAME, Holes, seal
from mrc.transfer.threads import WorkerThread

STEP_BYTES = 4 << 20
FILLED_BYTES = 256 << 20  # of memory for filled chunks; only chunks in flight or ahead occupy it
FILLED_AHEAD = 4  # chunks filled before the writes need them
UNKNOWN = 1 << 62
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate_for_reads(address: int, length: int) -> None:
    """Populates a page-aligned range of a mapping. May wait for the disk: call it in a thread.

    Ignores errors: the kernel may lack this advice, or the file may have shrunk.
    """
    _libc.madvise(address, length, _POPULATE_READ)


class ReceiveWindow(Struct, frozen=True):
    """The window's memory and its registration."""

    memory: mmap.mmap
    region: Region


@asynccontextmanager
async def open_window(ctx: Context, length: int) -> AsyncIterator[ReceiveWindow]:
    """A window of `length` bytes; the peer may write into it until this context ends."""
    with system.anonymous_memory(length) as memory:
        async with ctx.register(memory, writable=True) as region:
            yield ReceiveWindow(memory, region)


class FeedChunk(NamedTuple):
    """A chunk, in the memory of its feed."""

    offset: int
    length: int


class Mapped:
    """The chunks of a mapped file, without those of holes. A thread prepares all of them in steps,
    at most `ahead_bytes` ahead of the writes.

    An async context manager; after its end no thread uses the mapping.
    """

    def __init__(
        self, region: Region, holes: Holes, prepare: Callable[[int, int], None], ahead_bytes: int
    ) -> None:
        self.region = region
        self._holes = holes
        self._prepare = prepare  # takes offset and length; runs in a thread
        self._ahead_bytes = ahead_bytes
        self._at = 0
        self._begun = 0
        self._prepared = 0
        self._progress = asyncio.Event()
        self._error: BaseException | None = None
        self._line = WorkerThread()

    async def __aenter__(self) -> Self:
        self._prepare_ahead()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self._line.__aexit__(kind, *rest)

    def _prepare_ahead(self) -> None:
        wanted = min(self.region.length, self._at + self._ahead_bytes)
        while self._begun < wanted:
            step = min(STEP_BYTES, self.region.length - self._begun)
            self._line.put_and_tell(self._on_prepared, self._prepare, self._begun, step)
            self._begun += step

    def _on_prepared(self, error: BaseException | None) -> None:
        if error is None:
            self._prepared = min(self._prepared + STEP_BYTES, self.region.length)
        elif self._error is None:
            self._error = error
        self._progress.set()

    async def next(self) -> FeedChunk | None:
        """The next chunk; None after the last one."""
        while self._holes.left(self._at // CHUNK_BYTES) and self.left_bytes():
            await self._prepared_chunk()
        return await self._prepared_chunk() if self.left_bytes() else None

    async def _prepared_chunk(self) -> FeedChunk:
        """The next chunk once it is prepared; raises the error of `prepare`."""
        piece = FeedChunk(self._at, min(CHUNK_BYTES, self.left_bytes()))
        self._prepare_ahead()
        self._at += piece.length
        while self._prepared < self._at:
            if self._error is not None:
                raise self._error
            self._progress.clear()
            await self._progress.wait()
        return piece

    async def skip(self, chunks: int) -> None:
        """Goes on behind these chunks, once they are prepared too."""
        end = min(chunks * CHUNK_BYTES, self.region.length)
        while self._at < end:
            await self._prepared_chunk()

    def begin_anew(self) -> None:
        """Goes on with the first chunk."""
        self._at = 0

    def written(self, piece: FeedChunk) -> None:
        """The receiver has this chunk: its memory may be used for another."""

    def left_bytes(self) -> int:
        """Bytes that `next` has not returned yet."""
        return self.region.length - self._at


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
        self._filled: deque[FeedChunk] = deque()
        self._filling = 0
        self._lengths: dict[int, int] = {}  # of chunks that the thread has filled
        self._ended = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._line = WorkerThread(stop)

    async def open(self, ctx: Context, held: AsyncExitStack) -> Self:
        """Takes its memory, which `held` releases, and starts to fill it."""
        self._memory = held.enter_context(system.anonymous_memory(FILLED_BYTES))
        registered = ctx.register(self._memory)
        self.region: Region = await held.enter_async_context(registered)
        return self

    async def __aenter__(self) -> Self:
        self._fill_ahead()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self._line.__aexit__(kind, *rest)

    async def next(self) -> FeedChunk | None:
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

    def written(self, piece: FeedChunk) -> None:
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
            self._filled.append(FeedChunk(slot * CHUNK_BYTES, length))
        else:
            self._ended = True
        self._changed.set()


ChunkFeed = Mapped | Filled  # the chunks of an offer, in order
