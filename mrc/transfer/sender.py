# SPDX-License-Identifier: Apache-2.0
"""The sending end: files go chunk by chunk, several in flight, straight from the mapped file."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import NoReturn

from mrc.enums import Access
from mrc.errors import MrcError, ProtocolError
from mrc.transfer.digest import RunningDigest
from mrc.transfer.files import FileError, Source, printable
from mrc.transfer.messages import Abort, Accept, Bye, Done, Offer, Refuse, Stored, TransferMessage
from mrc.transfer.populate import Ahead, populate_for_reads
from mrc.transfer.session import Session, TransferError, TransferredFile, VerificationError
from mrc.verbs import MR, RemoteMemory

CHUNK_BYTES = 4 << 20
CHUNKS_IN_FLIGHT = 8
AHEAD_BYTES = 256 << 20  # hashed before it is sent: page cache, not memory of ours


def check_sources(paths: Sequence[str]) -> int:
    """Returns the bytes of all files; raises FileError if one cannot be sent as it is now."""
    by_name: dict[str, str] = {}
    total = 0
    for path in paths:
        with Source(path) as source:
            if source.name in by_name:
                raise FileError(
                    f"{printable(by_name[source.name])} and {printable(path)} would both be stored"
                    f" as {printable(source.name)}; send them one after the other"
                )
            by_name[source.name] = path
            total += source.bytes
    return total


async def send_files(session: Session, paths: Sequence[str]) -> AsyncIterator[TransferredFile]:
    """Sends files in order and yields each when it is stored and verified at the receiver.

    Raises FileError for what is wrong at this end, TransferError for what the receiver refuses.
    """
    for path in paths:
        release = AsyncExitStack()
        # On failure writes may still be reading the file: then it stays until the QP has ended.
        session.held.push_async_callback(release.aclose)
        try:
            sent = await _send_file(session, path, release)
        except FileError as error:
            await session.say_last(Abort(str(error)))
            raise
        except asyncio.CancelledError:
            await session.say_last(Abort("the sender was stopped"))
            raise
        yield sent
        await release.aclose()  # late, as to unmap takes a while
    try:
        await session.say(Bye())
    except MrcError:
        pass  # every file is stored, so this is a success; the receiver will see us close


async def _send_file(session: Session, path: str, release: AsyncExitStack) -> TransferredFile:
    source = release.enter_context(Source(path))
    mr = None
    if source.bytes:
        registered = session.ctx.register(source.map, access=Access.LOCAL_READ)
        mr = await release.enter_async_context(registered)
    digest = RunningDigest()
    # From now on, so while the receiver makes room too.
    async with Ahead(source.bytes, partial(_prepare, source, mr, digest), AHEAD_BYTES) as ahead:
        await session.say(Offer(source.name, source.bytes, CHUNK_BYTES))
        reply = await _hear(session, source)
        if not isinstance(reply, Accept):
            raise ProtocolError(
                f"{session.qp.peer_host} did not answer an offer with an acceptance"
            )
        if mr is not None:
            await _Writing(session, source, mr, reply.window, ahead).run()
    source.check_unchanged()
    await session.say(Done(digest.hexdigest()))
    if not isinstance(await _hear(session, source), Stored):
        raise ProtocolError(f"{session.qp.peer_host} did not say that it stored the file")
    return TransferredFile(source.name, source.bytes, digest.hexdigest(), path)


def _prepare(
    source: Source, mr: MR | None, digest: RunningDigest, offset: int, length: int
) -> None:
    """Hashes the mapping: it is registered, so a part that somebody cuts off gives zeros."""
    assert mr is not None, "an empty file needs no preparation"
    populate_for_reads(mr.address + offset, length)
    with memoryview(source.map) as whole:
        digest.update(whole[offset : offset + length])


async def _hear(session: Session, source: Source) -> TransferMessage:
    """The receiver's next message; raises TransferError if it refuses."""
    message = await session.hear()
    host = session.qp.peer_host
    if isinstance(message, int):
        raise ProtocolError(f"{host} wrote to a sender")
    if not isinstance(message, Refuse):
        return message
    cause = printable(message.error)
    if message.code == "verification":
        raise VerificationError(f"{printable(source.path)}: {cause}")
    if message.code == "stopped":
        raise TransferError(f"{host} gave up in the middle of the transfer: {cause}")
    raise TransferError(f"{host} refused the file: {cause}")


class _SpokenError(Exception):
    pass


class _Writing:
    """The chunks of one file on their way."""

    def __init__(
        self, session: Session, source: Source, mr: MR, window: RemoteMemory, ahead: Ahead
    ) -> None:
        self._session = session
        self._source = source
        self._mr = mr
        self._window = window
        self._slots = window.length // CHUNK_BYTES
        self._ahead = ahead
        self._started = 0
        self._stored = 0  # at the receiver
        self._credit_came = asyncio.Event()
        self._pending: deque[asyncio.Task[object]] = deque()
        if self._slots == 0:
            raise ProtocolError(f"{session.qp.peer_host} has a window without room for a chunk")

    async def run(self) -> None:
        """Returns when the peer has acknowledged every chunk.

        Raises what the receiver says meanwhile, where nothing but credit is due.
        """
        try:
            await self._session.watched(self._write(), self._take_credit())
        except _SpokenError:
            await _hear(self._session, self._source)
            peer = self._session.qp.peer_host
            raise ProtocolError(f"{peer} spoke in the middle of a file") from None

    async def _write(self) -> None:
        try:
            for offset in range(0, self._mr.length, CHUNK_BYTES):
                if len(self._pending) == CHUNKS_IN_FLIGHT:
                    await self._finish_oldest()
                while self._started == self._stored + self._slots:
                    self._credit_came.clear()
                    await self._credit_came.wait()
                self._ahead.reached(offset)
                length = min(CHUNK_BYTES, self._mr.length - offset)
                await self._ahead.until(offset + length)
                self._start(offset, length)
            while self._pending:
                await self._finish_oldest()
        finally:
            for write in self._pending:
                write.cancel()
            await asyncio.gather(*self._pending, return_exceptions=True)

    def _start(self, offset: int, length: int) -> None:
        write = self._session.qp.write_imm(
            self._started,
            self._mr,
            self._window,
            length=length,
            local_offset=offset,
            remote_offset=self._started % self._slots * CHUNK_BYTES,
        )
        self._started += 1
        self._pending.append(asyncio.create_task(write))

    async def _finish_oldest(self) -> None:
        await self._pending[0]
        self._pending.popleft()

    async def _take_credit(self) -> NoReturn:
        """Raises _SpokenError at a message, and leaves it: the work may end in the same moment."""
        while await self._session.mailbox.immediate_next():
            stored = await self._session.hear()
            assert isinstance(stored, int)
            if not self._stored < stored <= self._started:
                peer = self._session.qp.peer_host
                raise ProtocolError(f"{peer} gave credit for chunks that were never written")
            self._stored = stored
            self._credit_came.set()
        raise _SpokenError
