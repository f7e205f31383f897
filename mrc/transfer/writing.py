# SPDX-License-Identifier: Apache-2.0
"""Writes the chunks of an offer: chooses a QP and a slot for each chunk.

It always takes the lowest free slot. So the receiver needs memory and CPU cache only for the chunks
that are in flight or wait to be stored.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from mrc.aio.qp import QP
from mrc.errors import ProtocolError
from mrc.events import Immediate
from mrc.tasks import cancelled
from mrc.transfer.feed import Feed, Piece
from mrc.transfer.holes import Holes
from mrc.transfer.messages import (
    CHUNK_BYTES,
    MAX_SLOTS,
    Accept,
    Reading,
    Refuse,
    TransferMessage,
    chunk_imm,
)
from mrc.transfer.names import FileError
from mrc.transfer.pace import Pace
from mrc.transfer.session import Session
from mrc.transfer.widen import widen

READING_SECONDS = 1.0  # after which the receiver hears that this end still waits for its disk
CHUNKS_IN_FLIGHT = 8  # at least; more if the windows of PSNs cover more


class SpokenError(Exception):
    """The receiver answers before all chunks are written."""


def _covered(qp: QP) -> int:
    """Chunks that keep a QP busy: those that its window covers, and one more."""
    return -(-qp.mpr * qp.path_mtu // CHUNK_BYTES) + 1


class Writing:
    """The chunks of one offer."""

    def __init__(
        self,
        session: Session,
        accept: Accept,
        feed: Feed,
        begin: int,
        holes: Holes,
        pace: Pace,
        on_message: Callable[[TransferMessage], TransferMessage | None],
    ) -> None:
        self._session = session
        self._waiting = session.waiting
        self._on_message = on_message  # returns an answer
        self.answer: TransferMessage | None = None
        """what the receiver said before all chunks were written"""
        self._window = accept.window
        self._token = accept.token
        self._feed = feed
        self._takes_reading = accept.reading
        self._reading = False
        self._slots = min(accept.window.length // CHUNK_BYTES, MAX_SLOTS)
        self._free = list(range(self._slots))  # a heap
        # Chunks that are not stored, in their order: the slot of each one; of a hole how many.
        self._taken: deque[tuple[int | None, int]] = deque()
        self._holes = holes
        self._pace = pace
        self._turn = asyncio.Lock()  # chunks leave one after the other
        self.chunks = begin  # started, or there already
        self.stored = begin  # at the receiver
        self._writes: set[asyncio.Task[Any]] = set()
        self._under_way: Counter[QP] = Counter()
        self._written: Counter[QP] = Counter()
        self._error: BaseException | None = None
        self._changed = asyncio.Event()  # a write ended, or credit came
        if not self._free:
            raise ProtocolError(f"{session.qp.peer_host} has a window smaller than a chunk")
        self._skip_holes()

    def _skip_holes(self) -> None:
        """The receiver stores the chunks of holes by itself, as soon as it can."""
        while count := self._holes.left(self.chunks):
            self._taken.append((None, count))
            self.chunks += count

    async def run(self) -> None:
        """Returns when the peer has acknowledged every chunk, or all that were begun until it has
        answered. Raises FileError when the chunks end, but not before the writes that were begun.
        """
        session = self._session
        watchers = [self._take_credit(), session.joined.failed()]
        if self._takes_reading:
            watchers.append(self._tell_reading())
        if self._token:
            watchers.append(widen(session, self._token, self._feed.left_bytes))
        try:
            try:
                await session.watched(self._write(), *watchers)
            except SpokenError:
                if isinstance(self.answer, Refuse) and self.answer.code == "file":
                    await session.watched(self._until_written(), session.joined.failed())
            except FileError:
                await session.watched(self._until_written(), session.joined.failed())
                raise
        finally:
            await cancelled(*self._writes)

    async def _write(self) -> None:
        while (piece := await self._next_piece()) is not None:
            while self._next_qp() is None:
                with self._waiting.on("storing" if self._able() else "network"):
                    await self._until_changed()
            self._start(piece)
        await self._until_written()

    async def _next_piece(self) -> Piece | None:
        self._reading = True
        with self._waiting.on("reading"):
            piece = await self._feed.next()
        self._reading = False
        return piece

    async def _tell_reading(self) -> NoReturn:
        """A receiver ends the session of a sender of which it hears nothing."""
        while True:
            before = self.chunks
            await asyncio.sleep(READING_SECONDS)
            if self._reading and self.chunks == before:
                await self._session.say(Reading())

    async def _until_written(self) -> None:
        with self._waiting.on("network"):
            while self._writes:
                await self._until_changed()
        self._check()

    def _next_qp(self) -> QP | None:
        """The QP for the next chunk: the one with the fewest chunks in flight, among equals the one
        that has written the fewest, so that no QP stays idle. None while all are busy or no slot is
        free.

        A single QP uses few slots. Several QPs may fill the window, because chunks of all QPs wait
        there for the slowest QP.
        """
        qps = self._session.qps
        most = max(2 * _covered(qps[0]), CHUNKS_IN_FLIGHT) if len(qps) == 1 else MAX_SLOTS
        if not self._free or self._slots - len(self._free) >= most:
            return None
        return min(
            self._able(), key=lambda qp: (self._under_way[qp], self._written[qp]), default=None
        )

    def _able(self) -> list[QP]:
        """The QPs that may have another chunk in flight."""
        return [qp for qp in self._session.qps if self._under_way[qp] < self._enough(qp)]

    def _enough(self, qp: QP) -> int:
        """Limit on the chunks in flight on a QP. A new QP starts with 1; each written chunk adds 1
        to its limit.
        """
        enough = max(_covered(qp), CHUNKS_IN_FLIGHT // len(self._session.qps))
        return enough if qp is self._session.qp else min(enough, 1 + self._written[qp])

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _start(self, piece: Piece) -> None:
        qp = self._next_qp()
        assert qp is not None, "only this function uses slots and QPs"
        slot = heapq.heappop(self._free)
        imm = chunk_imm(self.chunks, slot)
        write = asyncio.create_task(self._write_chunk(qp, piece, imm, slot * CHUNK_BYTES))
        self.chunks += 1
        self._taken.append((slot, 1))
        self._skip_holes()
        self._under_way[qp] += 1
        self._writes.add(write)
        write.add_done_callback(partial(self._on_written, qp, piece))

    async def _write_chunk(self, qp: QP, piece: Piece, imm: int, remote: int) -> None:
        """The last part has the immediate, which arrives after all earlier parts."""
        if not self._pace.limited:
            await self._write_part(qp, piece.offset, remote, piece.length, imm)
            return
        parts = []
        try:
            async with self._turn:
                for start, length in self._pace.pieces(piece.length):
                    await self._pace.until(length)
                    last = imm if start + length == piece.length else None
                    part = self._write_part(qp, piece.offset + start, remote + start, length, last)
                    parts.append(asyncio.create_task(part))
            await asyncio.gather(*parts)
        finally:
            await cancelled(*parts)

    async def _write_part(
        self, qp: QP, local: int, remote: int, length: int, imm: int | None
    ) -> None:
        mr, window = self._feed.mr, self._window
        if imm is None:
            await qp.write(mr, window, length=length, local_offset=local, remote_offset=remote)
        else:
            await qp.write_imm(
                mr, window, imm=imm, length=length, local_offset=local, remote_offset=remote
            )

    def _on_written(self, qp: QP, piece: Piece, write: asyncio.Task[Any]) -> None:
        self._writes.discard(write)
        self._under_way[qp] -= 1
        self._written[qp] += 1
        if not write.cancelled():
            error = write.exception()  # read for every write: asyncio logs errors that are not read
            self._error = self._error or error
            if error is None:
                self._feed.written(piece)
        self._changed.set()

    async def _take_credit(self) -> NoReturn:
        """Frees slots on credit. Raises SpokenError for an answer."""
        while self.answer is None:
            heard = await self._session.hear()
            if not isinstance(heard, Immediate):
                self.answer = self._on_message(heard)
                continue
            stored = heard.imm
            if not self.stored < stored <= self.chunks:
                peer = self._session.qp.peer_host
                raise ProtocolError(f"{peer} sent credit for chunks that were never written")
            self._free_slots(stored - self.stored)
            self.stored = stored
            self._changed.set()
        raise SpokenError

    def _free_slots(self, stored: int) -> None:
        """So many chunks more are stored."""
        while stored:
            slot, count = self._taken.popleft()
            if slot is not None:
                heapq.heappush(self._free, slot)
            elif count > stored:
                self._taken.appendleft((None, count - stored))
            stored -= min(count, stored)
