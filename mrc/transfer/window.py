# SPDX-License-Identifier: Apache-2.0
"""The receiver's window: memory that the sender writes its chunks into, slot after slot, round and
round, and from which they are hashed and written to the file.

A file that is mapped and written in place would spare that copy, but each of its pages is then
allocated, zeroed and mapped first, which costs more; and a disk that is slow or full would hold up,
or end, the datapath. The window stays where caches have it.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from mrc.endpoint import Context
from mrc.enums import Access
from mrc.errors import ProtocolError
from mrc.transfer.digest import RunningDigest
from mrc.transfer.files import Target
from mrc.transfer.messages import Offer
from mrc.transfer.session import Session
from mrc.transfer.threads import Line
from mrc.verbs import MR

WINDOW_BYTES = 32 << 20
_STEP_BYTES = 256 << 10  # hashed and then written, so that the second finds it in the cache


@dataclass(frozen=True, slots=True)
class Window:
    """Memory, and its registration."""

    memory: mmap.mmap
    mr: MR


@asynccontextmanager
async def open_window(ctx: Context) -> AsyncIterator[Window]:
    """A window; the peer may write into it until this ends."""
    with mmap.mmap(-1, WINDOW_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):  # of a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        async with ctx.register(memory, access=Access.REMOTE_WRITE) as mr:
            yield Window(memory, mr)


class Storing:
    """One file on its way through the window."""

    def __init__(self, session: Session, window: Window, target: Target, offer: Offer) -> None:
        self._session = session
        self._window = window
        self._target = target
        self._chunk_bytes = offer.chunk_bytes
        self._chunks = -(-offer.bytes // offer.chunk_bytes)
        self._slots = WINDOW_BYTES // offer.chunk_bytes
        self._digest = RunningDigest()
        self._stored = 0
        self._error: BaseException | None = None
        self._progress = asyncio.Event()

    async def run(self) -> str:
        """Returns the digest of the file once all of it is written."""
        async with Line() as line:
            await self._session.watched(self._take(line), self._give_credit())
        return self._digest.hexdigest()

    async def _take(self, line: Line) -> None:
        written: Future[None] | None = None
        for index in range(self._chunks):
            if await self._session.hear() != index:
                raise ProtocolError(
                    f"{self._session.qp.peer_host} does not write its chunks in order"
                )
            if index >= self._stored + self._slots:
                raise ProtocolError(f"{self._session.qp.peer_host} writes where it has no credit")
            written = line.put_and_tell(self._on_stored, self._store, index)
        if written is not None:
            await asyncio.wrap_future(written)

    def _store(self, index: int) -> None:
        start = index * self._chunk_bytes
        length = min(self._chunk_bytes, self._target.bytes - start)
        slot = index % self._slots * self._chunk_bytes
        with memoryview(self._window.memory) as whole:
            for done in range(0, length, _STEP_BYTES):
                with whole[slot + done : slot + min(done + _STEP_BYTES, length)] as step:
                    self._digest.update(step)
                    self._target.write(start + done, step)

    def _on_stored(self, error: BaseException | None) -> None:
        if error is None:
            self._stored += 1
        elif self._error is None:
            self._error = error
        self._progress.set()

    async def _give_credit(self) -> NoReturn:
        """Tells the sender how many chunks are stored, for as long as it waits for that."""
        said = 0
        while True:
            await self._progress.wait()
            self._progress.clear()
            if self._error is not None:
                raise self._error
            if said + self._slots < self._chunks and said < self._stored:
                said = self._stored
                await self._session.qp.write_imm(said)
