# SPDX-License-Identifier: Apache-2.0
"""The receiver's window: the sender writes each chunk into a free slot of this memory. The receiver
hashes the chunks and writes them to the file in order.

The window is large enough for long round trips. The kernel backs only the pages that were written,
and a sender uses few slots until it adds QPs, so a small window stays in the CPU caches.

Writing into a mapped file would avoid the copy. But the kernel must then allocate, zero and map
each page first, which costs more, and a slow or full disk would block or end the datapath.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from mrc.aio.context import Context
from mrc.binding.verbs import MR
from mrc.enums import Access
from mrc.errors import ProtocolError
from mrc.transfer.files import Target
from mrc.transfer.messages import MAX_SLOTS, Digest, Done, Offer, chunk_of
from mrc.transfer.session import Session
from mrc.transfer.threads import Line

WINDOW_BYTES = 256 << 20
_STEP_BYTES = 256 << 10  # hashed, then written while it is still in the CPU cache


@dataclass(frozen=True, slots=True)
class Window:
    """The window's memory and its registration."""

    memory: mmap.mmap
    mr: MR


@asynccontextmanager
async def open_window(ctx: Context, length: int) -> AsyncIterator[Window]:
    """A window of `length` bytes; the peer may write into it until this context ends."""
    with mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):  # the kernel may lack huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        async with ctx.register(memory, access=Access.REMOTE_WRITE) as mr:
            yield Window(memory, mr)


class Storing:
    """Stores one file through the window."""

    def __init__(
        self,
        session: Session,
        window: Window,
        target: Target,
        offer: Offer,
        on_data: Callable[[], None],
    ) -> None:
        self._session = session
        self._on_data = on_data
        self._window = window
        self._target = target
        self._chunk_bytes = offer.chunk_bytes
        self._chunks = -(-offer.bytes // offer.chunk_bytes)
        self._slots = min(len(window.memory) // offer.chunk_bytes, MAX_SLOTS)
        self._full: set[int] = set()  # slots with a chunk that is not stored yet
        self._arrived: dict[int, int] = {}  # chunks that wait for an earlier one: index to slot
        self._next = 0  # index of the next chunk to store
        self._stored = 0
        self._digest = Digest()
        self._line = Line()
        self._error: BaseException | None = None
        self._progress = asyncio.Event()
        self._all_stored = asyncio.Event()
        if self._chunks == 0:
            self._all_stored.set()

    async def run(self, idle: Coroutine[Any, Any, NoReturn]) -> tuple[str, Done]:
        """Returns the digest of the complete file, and the sender's done message.

        `idle` raises when the sender makes no progress for too long.
        """
        session = self._session
        session.joined.on_chunk = self._on_chunk
        try:
            async with self._line:
                done = await session.watched(
                    self._hear(), self._give_credit(), session.joined.failed(), idle
                )
        finally:
            session.joined.on_chunk = None
        return self._digest.hexdigest(), done

    def progress(self) -> object:
        """A value that changes with each new chunk, and with each call while a chunk is stored."""
        if self._next > self._stored:
            return object()  # we wait for the disk, not for the sender
        return self._next, len(self._arrived)

    async def _hear(self) -> Done:
        while isinstance(item := await self._session.hear(), int):
            self._on_chunk(item)
        if not isinstance(item, Done):
            peer = self._session.qp.peer_host
            raise ProtocolError(f"{peer} sent an unexpected message during a file")
        await self._all_stored.wait()
        return item

    def _on_chunk(self, imm: int) -> None:
        """A chunk is in its slot: stores it if it is next, and the chunks that waited for it."""
        index, slot = chunk_of(imm, self._next)
        if index >= self._chunks:
            raise ProtocolError(
                f"{self._session.qp.peer_host} wrote a chunk that it has not offered"
            )
        if slot >= self._slots or slot in self._full or index in self._arrived:
            raise ProtocolError(f"{self._session.qp.peer_host} wrote a chunk without credit for it")
        self._on_data()
        self._full.add(slot)
        self._arrived[index] = slot
        while (ready := self._arrived.pop(self._next, None)) is not None:
            told = partial(self._on_stored, ready)
            self._line.put_and_tell(told, self._store, self._next, ready)
            self._next += 1

    def _store(self, index: int, slot: int) -> None:
        start = index * self._chunk_bytes
        length = min(self._chunk_bytes, self._target.bytes - start)
        at = slot * self._chunk_bytes
        with memoryview(self._window.memory) as whole:
            for done in range(0, length, _STEP_BYTES):
                with whole[at + done : at + min(done + _STEP_BYTES, length)] as step:
                    self._digest.update(step)
                    self._target.write(start + done, step)

    def _on_stored(self, slot: int, error: BaseException | None) -> None:
        if error is None:
            self._full.remove(slot)
            self._stored += 1
            if self._stored == self._chunks:
                self._all_stored.set()
        elif self._error is None:
            self._error = error
        self._progress.set()

    async def _give_credit(self) -> NoReturn:
        """Sends the number of stored chunks to the sender, except after the last chunk."""
        said = 0
        while True:
            await self._progress.wait()
            self._progress.clear()
            if self._error is not None:
                raise self._error
            if said < self._stored < self._chunks:
                said = self._stored
                await self._session.qp.write_imm(imm=said)
