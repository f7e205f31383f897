# SPDX-License-Identifier: Apache-2.0
"""The sending end: files go chunk by chunk, several in flight, straight from the mapped file."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NoReturn

from mrc.enums import Access
from mrc.errors import MrcError, ProtocolError
from mrc.transfer.digest import RunningDigest, in_thread
from mrc.transfer.files import FileError, Source, printable
from mrc.transfer.messages import Abort, Accept, Bye, Done, Offer, Refuse, Stored, TransferMessage
from mrc.transfer.populate import populate_for_reads
from mrc.transfer.session import Session, TransferError, TransferredFile, VerificationError
from mrc.verbs import MR, RemoteMemory

CHUNK_BYTES = 4 << 20
CHUNKS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class _Chunk:
    offset: int
    length: int
    write: asyncio.Task[object]


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
        try:
            sent = await _send_file(session, path)
        except FileError as error:
            await session.say_last(Abort(str(error)))
            raise
        except asyncio.CancelledError:
            await session.say_last(Abort("the sender was stopped"))
            raise
        yield sent
    try:
        await session.say(Bye())
    except MrcError:
        pass  # every file is stored, so this is a success; the receiver will see us close


async def _send_file(session: Session, path: str) -> TransferredFile:
    release = AsyncExitStack()
    # On failure writes may still be reading the file, so then it stays until the QP has ended.
    session.held.push_async_callback(release.aclose)
    source = release.enter_context(Source(path))
    await session.say(Offer(source.name, source.bytes, CHUNK_BYTES))
    reply = await _hear(session, source)
    if not isinstance(reply, Accept) or (reply.memory is None) != (source.bytes == 0):
        raise ProtocolError(f"{session.qp.peer_host} did not answer an offer with an acceptance")
    digest = RunningDigest()
    if reply.memory is not None:
        mr = await release.enter_async_context(
            session.ctx.register(source.map, access=Access.LOCAL_READ)
        )
        writing = _Writing(session, source, mr, reply.memory, digest)
        await session.watched(writing.run(), _refusal(session, source))
    source.check_unchanged()
    await session.say(Done(digest.hexdigest()))
    if not isinstance(await _hear(session, source), Stored):
        raise ProtocolError(f"{session.qp.peer_host} did not say that it stored the file")
    await release.aclose()
    return TransferredFile(source.name, source.bytes, digest.hexdigest(), path)


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


async def _refusal(session: Session, source: Source) -> NoReturn:
    await _hear(session, source)
    raise ProtocolError(f"{session.qp.peer_host} spoke in the middle of a file")


class _Writing:
    """The chunks of one file on their way, and the digest of what was read."""

    def __init__(
        self,
        session: Session,
        source: Source,
        mr: MR,
        remote: RemoteMemory,
        digest: RunningDigest,
    ) -> None:
        self._qp = session.qp
        self._source = source
        self._mr = mr
        self._remote = remote
        self._digest = digest
        self._buffer = memoryview(bytearray(min(CHUNK_BYTES, source.bytes)))
        self._pending: deque[_Chunk] = deque()

    async def run(self) -> None:
        """Returns when the peer has acknowledged every chunk."""
        try:
            for index, offset in enumerate(range(0, self._source.bytes, CHUNK_BYTES)):
                if len(self._pending) == CHUNKS_IN_FLIGHT:
                    await self._finish_oldest()
                await self._start(index, offset)
            while self._pending:
                await self._finish_oldest()
        finally:
            writes = [chunk.write for chunk in self._pending]
            for write in writes:
                write.cancel()
            await asyncio.gather(*writes, return_exceptions=True)

    async def _start(self, index: int, offset: int) -> None:
        length = min(CHUNK_BYTES, self._source.bytes - offset)
        await in_thread(populate_for_reads, self._mr.address + offset, length)
        write = self._qp.write_imm(
            index,
            self._mr,
            self._remote,
            length=length,
            local_offset=offset,
            remote_offset=offset,
        )
        self._pending.append(_Chunk(offset, length, asyncio.create_task(write)))

    async def _finish_oldest(self) -> None:
        chunk = self._pending[0]
        await chunk.write
        self._pending.popleft()
        # Hashed from a copy that read() made: to look at the mapping of a file that somebody cuts
        # short at this moment would kill the process.
        await in_thread(self._hash, chunk.offset, self._buffer[: chunk.length])

    def _hash(self, offset: int, buffer: memoryview) -> None:
        self._source.read(offset, buffer)
        self._digest.update(buffer)
