# SPDX-License-Identifier: Apache-2.0
"""The receiver's window: the sender writes each chunk into a free slot of this memory. The receiver
hashes the chunks and stores them in order.

The window is large enough for long round trips. The kernel backs only the pages that were written,
and a sender uses few slots until it adds QPs, so a small window stays in the CPU caches.

Writing into a mapped file would avoid the copy. But the kernel must then allocate, zero and map
each page first, which costs more, and a slow or full disk would block or end the datapath.
"""

from __future__ import annotations

import asyncio
import mmap
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NoReturn, Protocol

from msgspec import Struct

from mrc.aio.context import Context
from mrc.binding.verbs import MR
from mrc.enums import Access
from mrc.errors import ProtocolError
from mrc.events import Immediate
from mrc.results.transfer import FailedFile
from mrc.transfer.holes import Holes
from mrc.transfer.messages import MAX_SLOTS, Done, Reading, Refuse, chunk_of, failed_of
from mrc.transfer.names import FileError, FinalError, wire_name
from mrc.transfer.pace import Due
from mrc.transfer.populate import anonymous
from mrc.transfer.session import Session
from mrc.transfer.threads import Line

WINDOW_BYTES = 256 << 20
NO_HOLES = Holes()
_NO_SLOT = -1  # of chunks in holes


class Window(Struct, frozen=True):
    """The window's memory and its registration."""

    memory: mmap.mmap
    mr: MR


@asynccontextmanager
async def open_window(ctx: Context, length: int) -> AsyncIterator[Window]:
    """A window of `length` bytes; the peer may write into it until this context ends."""
    with anonymous(length) as memory:
        async with ctx.register(memory, access=Access.REMOTE_WRITE) as mr:
            yield Window(memory, mr)


class Sink(Protocol):
    """Takes the chunks of one offer, in order."""

    chunks: int | None  # None: the sender says it at the end
    failed: deque[FailedFile]  # of a pack, that nobody has been told of
    one_by_one: bool  # a chunk may fail many files: both ends hear of them before the next one

    def store(self, index: int, chunk: memoryview) -> None:
        """Stores a chunk, in a helper thread; `chunk` is its whole slot."""

    def bytes_of(self, index: int, chunk: memoryview) -> int:
        """How many bytes of its slot a chunk has, as its sender says."""


class Told(Struct, frozen=True):
    """What the user of a receiver hears of.

    `on_data` is called before each chunk is stored, and before each file gets its final name.
    `on_resumed`: so many bytes of a file of this size were there already. `on_kept`: so many are
    kept, because the transfer was interrupted. `on_failed`: a file or folder is not copied. `rate`
    says how many bits per second the sender of the next file may send; 0: as many as it can.
    """

    on_data: Callable[[], None] = lambda: None
    on_resumed: Callable[[str, int, int], None] = lambda name, there, size: None
    on_kept: Callable[[str, int], None] = lambda name, size: None
    on_failed: Callable[[FailedFile], None] = lambda failed: None
    rate: Callable[[], float] = lambda: 0.0


class Storing:
    """Stores the chunks of one offer through the window.

    A file with a `failure` cannot be stored: it refuses the file, and takes its chunks without
    storing them until the sender stops.
    """

    def __init__(
        self,
        session: Session,
        window: Window,
        chunk_bytes: int,
        sink: Sink,
        told: Told,
        due: Due,
        stop: Callable[[], None] = lambda: None,
        begin: int = 0,
        failure: str = "",
        holes: Holes = NO_HOLES,
    ) -> None:
        self._session = session
        self._came = session.arrived
        self._short = asyncio.Event()  # more is claimed than is known to have come
        self._told = told
        self._due = due
        self._holding = False  # the sender is faster than it may be
        self.failure = failure
        self._refused = False
        self._speaking = False
        self._silent = asyncio.Event()  # nothing is left to say
        self._window = window
        self._sink = sink
        self._chunk_bytes = chunk_bytes
        self._chunks = sink.chunks
        self._slots = min(len(window.memory) // chunk_bytes, MAX_SLOTS)
        self._full: set[int] = set()  # slots with a chunk that is not stored yet
        self._arrived: dict[int, int] = {}  # chunks that wait for an earlier one: index to slot
        self._next = begin  # index of the next chunk to store
        self._stored = begin
        self._holes = holes
        self._line = Line(stop)
        self._error: BaseException | None = None
        self._progress = asyncio.Event()
        self._progress.set()
        self._all_stored = asyncio.Event()

    async def run(self, idle: Coroutine[Any, Any, NoReturn]) -> Done:
        """Returns the sender's done message when all chunks are stored.

        `idle` raises when the sender makes no progress for too long.
        """
        session = self._session
        session.joined.on_chunk = self._on_chunk
        try:
            async with self._line:
                self._store_next()
                return await session.watched(
                    self._hear(),
                    self._give_credit(),
                    self._count(),
                    session.joined.failed(),
                    idle,
                )
        finally:
            session.joined.on_chunk = None

    def progress(self) -> object:
        """A value that changes with each new chunk, and with each call while a chunk is stored."""
        if self._next > self._stored:
            return object()  # we wait for the disk, not for the sender
        if self._holding:
            return object()
        return self._next, len(self._arrived)

    async def _hear(self) -> Done:
        # That the sender is reading counts as progress: every message is received payload.
        while isinstance(item := await self._session.hear(), (Immediate, Reading)):
            if isinstance(item, Immediate):
                self._on_chunk(item)
        if not isinstance(item, Done):
            peer = self._session.qp.peer_host
            raise ProtocolError(f"{peer} sent an unexpected message during a file")
        self._end(item)
        await self._all_stored.wait()
        while self._has_to_speak() or self._speaking:
            self._silent.clear()
            await self._silent.wait()
        return item

    def _end(self, done: Done) -> None:
        """The sender has written all chunks, or the first ones of a file that is not complete. The
        last ones may still arrive on further QPs.
        """
        chunks = done.chunks
        wrong = max(self._arrived, default=self._next - 1) >= chunks
        if self._chunks is not None:
            wrong = wrong or chunks > self._chunks or (chunks < self._chunks and not done.error)
        if wrong:
            peer = self._session.qp.peer_host
            raise ProtocolError(f"{peer} wrote another number of chunks than it says")
        self._chunks = chunks
        if self._stored == chunks:
            self._all_stored.set()

    def _on_chunk(self, immediate: Immediate) -> None:
        """A chunk is in its slot: stores it if it is next, and the chunks that waited for it."""
        index, slot = chunk_of(immediate.imm, self._next)
        if self._chunks is not None and index >= self._chunks:
            raise ProtocolError(
                f"{self._session.qp.peer_host} wrote a chunk that it has not offered"
            )
        if slot >= self._slots or slot in self._full or index in self._arrived:
            raise ProtocolError(f"{self._session.qp.peer_host} wrote a chunk without credit for it")
        self._told.on_data()
        self._came.with_immediates += immediate.bytes
        self._full.add(slot)
        self._arrived[index] = slot
        self._store_next()

    def _store_next(self) -> None:
        """Stores the chunks that are next: arrived ones and those of holes."""
        while True:
            if count := self._holes.left(self._next):
                told = partial(self._on_stored, _NO_SLOT, count)
                self._line.put_and_tell(told, self._store_hole, self._next, count)
                self._next += count
            elif self._next in self._arrived:
                if self._sink.one_by_one and (self._next > self._stored or self._sink.failed):
                    return
                size = self._next_bytes()
                if not self._came.has(size):
                    self._short.set()
                    return
                self._came.used += size
                ready = self._arrived.pop(self._next)
                told = partial(self._on_stored, ready, 1)
                self._line.put_and_tell(told, self._store, self._next, ready)
                self._next += 1
            else:
                return

    def _next_bytes(self) -> int:
        with self._slot(self._arrived[self._next]) as chunk:
            return self._sink.bytes_of(self._next, chunk)

    async def _count(self) -> NoReturn:
        """Asks the engine what has come, where the immediates do not tell: a slow sender writes
        chunks in parts.
        """
        while True:
            await self._short.wait()
            self._short.clear()
            self._came.counted = (await self._session.query()).received_bytes
            if self._next in self._arrived and not self._came.has(self._next_bytes()):
                peer = self._session.qp.peer_host
                raise ProtocolError(f"{peer} wrote fewer bytes than its chunks have")
            self._store_next()

    @contextmanager
    def _slot(self, slot: int) -> Iterator[memoryview]:
        start = slot * self._chunk_bytes
        with (
            memoryview(self._window.memory) as whole,
            whole[start : start + self._chunk_bytes] as chunk,
        ):
            yield chunk

    def _store(self, index: int, slot: int) -> None:
        with self._slot(slot) as chunk:
            self._put(index, chunk)

    def _store_hole(self, first: int, count: int) -> None:
        zeros = memoryview(bytes(self._chunk_bytes))
        for index in range(first, first + count):
            self._put(index, zeros)

    def _put(self, index: int, chunk: memoryview) -> None:
        if self.failure:
            return
        try:
            with self._session.waiting.on("storing"):
                self._sink.store(index, chunk)
        except FinalError:
            raise
        except FileError as error:
            self.failure = str(error)

    def _on_stored(self, slot: int, count: int, error: BaseException | None) -> None:
        if error is None:
            self._full.discard(slot)
            self._stored += count
            if self._stored == self._chunks:
                self._all_stored.set()
        elif self._error is None:
            self._error = error
        self._progress.set()

    async def _give_credit(self) -> NoReturn:
        """Sends the number of stored chunks to the sender, except after the last chunk, and not
        before its rate allows that.
        """
        said = self._stored
        while True:
            await self._progress.wait()
            self._progress.clear()
            if self._error is not None:
                raise self._error
            await self._speak()
            self._store_next()
            if said < self._stored != self._chunks:
                said = self._stored
                self._holding = True
                await self._due.wait(self._came.used)
                self._holding = False
                await self._session.qp.write_imm(imm=said)

    def _has_to_speak(self) -> bool:
        return bool(self._sink.failed) or bool(self.failure and not self._refused)

    async def _speak(self) -> None:
        """Tells both ends what cannot be stored. The sender knows the files that it has named."""
        self._speaking = True
        if self.failure and not self._refused:
            self._refused = True
            await self._session.say(Refuse("file", self.failure))
        failed = [self._sink.failed.popleft() for _ in range(len(self._sink.failed))]
        for each in failed:
            self._told.on_failed(each)
        ours = [(wire_name(each.name), each.error) for each in failed if each.end == "receiver"]
        for message in failed_of(ours):
            await self._session.say(message)
        self._speaking = False
        self._silent.set()
