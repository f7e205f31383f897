# SPDX-License-Identifier: Apache-2.0
"""The sending end: offers files, hashes and writes them, and handles the receiver's replies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial

from mrc.binding.verbs import MR
from mrc.enums import Access
from mrc.errors import MrcError, ProtocolError
from mrc.exchange.foreign import printable, shown
from mrc.results.transfer import TransferredFile
from mrc.transfer.batch import Batch
from mrc.transfer.feed import UNKNOWN, Feed, Filled, Mapped
from mrc.transfer.folders import Meta
from mrc.transfer.messages import (
    CHUNK_BYTES,
    Abort,
    Accept,
    Asking,
    Begin,
    Bye,
    Digest,
    Done,
    Offer,
    Pack,
    Refuse,
    Stored,
    TransferMessage,
)
from mrc.transfer.names import FileError, wire_name
from mrc.transfer.packing import Packing
from mrc.transfer.pipes import PipeReader
from mrc.transfer.plan import Entry, File, Plan, Stdin
from mrc.transfer.populate import STEP_BYTES, Ahead, populate_for_reads
from mrc.transfer.session import Session, TransferError, VerificationError
from mrc.transfer.source import Source
from mrc.transfer.writing import SpokenError, Writing

AHEAD_BYTES = 256 << 20  # hashed ahead of the writes; occupies page cache, not process memory


@dataclass(slots=True)
class How:
    """How to send.

    `on_resumed` is called for a file of which the receiver has so many bytes. `waiting` surrounds
    the time in which the receiver asks its user about this sender.
    """

    keep_meta: bool = True
    resume: bool = True
    on_resumed: Callable[[File, int], None] = lambda file, size: None
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    stored_chunks: int = 0  # of the last file, as far as the receiver has said


@dataclass(slots=True)
class _Digests:
    """The digest of a file as far as it was read, and after each chunk."""

    whole: Digest = field(default_factory=Digest)
    after: list[bytes] = field(default_factory=list)


assert STEP_BYTES == CHUNK_BYTES, "a digest after each chunk"


async def send_plan(session: Session, plan: Plan, how: How | None = None) -> AsyncIterator[Batch]:
    """Sends files in order and yields each when the receiver has stored and verified it.

    Raises FileError for errors at this end, TransferError when the receiver refuses a file.
    """
    how = how or How()
    for run in plan.runs():
        how.stored_chunks = 0
        release = AsyncExitStack()
        # On failure the engine may still read the memory, so it is kept until the QP has ended.
        session.held.push_async_callback(release.aclose)
        try:
            sent = await _send_run(session, run, release, how)
        except FileError as error:
            await session.say_last(Abort(str(error)))
            raise
        except asyncio.CancelledError:
            await session.say_last(Abort("the sender was stopped"))
            raise
        yield sent
        await release.aclose()  # after the yield, because unmapping takes a while
    try:
        await session.say(Bye())
    except MrcError:
        pass  # all files are stored, so the transfer succeeded; our close replaces the bye


async def _send_run(session: Session, run: list[Entry], release: AsyncExitStack, how: How) -> Batch:
    match run:
        case [File() as file]:
            return await _send_file(session, file, release, how)
        case [Stdin() as stdin]:
            return await _send_stdin(session, stdin, release, how)
    return await _send_pack(session, run, release, how)


async def _send_file(session: Session, file: File, release: AsyncExitStack, how: How) -> Batch:
    """Sends a file from its mapping, without a copy."""
    source = release.enter_context(Source(file.path, follow=file.follow))
    mr = None
    if source.bytes:
        registered = session.ctx.register(source.map, access=Access.LOCAL_READ)
        mr = await release.enter_async_context(registered)
    digests = _Digests()
    meta = Meta(source.mode, source.mtime_ns) if how.keep_meta else Meta()
    name, size = wire_name(file.name), source.bytes
    offer = Offer(name, size, CHUNK_BYTES, source.sparse, meta.mode, meta.mtime, how.resume)
    # Hashing starts before the offer, so it runs while the receiver prepares.
    async with Ahead(source.bytes, partial(_prepare, source, mr, digests), AHEAD_BYTES) as ahead:
        accept = await _offer(session, offer, file.path, how)
        feed = None if mr is None else Mapped(mr, ahead)
        begin = 0
        if accept.kept and mr is not None:
            begin = await _begin(session, accept, Mapped(mr, ahead), digests)
        if feed is not None and begin:
            await feed.skip(begin)
            how.on_resumed(file, min(begin * CHUNK_BYTES, source.bytes))
        chunks = await _write(session, accept, feed, file.path, how, begin)
    source.check_unchanged()
    digest = digests.whole.hexdigest()
    await _finish(session, Done(digest, chunks), file.path)
    resumed_bytes = min(begin * CHUNK_BYTES, source.bytes)
    return Batch.of(TransferredFile(file.name, source.bytes, digest, file.path), resumed_bytes)


async def _begin(session: Session, accept: Accept, feed: Mapped, digests: _Digests) -> int:
    """Says where the chunks begin: behind those that the receiver has kept, if they are ours."""
    if accept.kept > -(-feed.left_bytes() // CHUNK_BYTES):
        raise ProtocolError(f"{session.qp.peer_host} has kept more chunks than there are")
    await session.watched(feed.skip(accept.kept))
    same = digests.after[accept.kept - 1].hex() == accept.digest
    begin = accept.kept if same else 0
    await session.say(Begin(begin))
    return begin


async def _send_stdin(session: Session, stdin: Stdin, release: AsyncExitStack, how: How) -> Batch:
    pipe = release.enter_context(PipeReader(sys.stdin.fileno()))
    filled = Filled(pipe.fill, lambda: UNKNOWN, pipe.stop)
    offer = Offer(wire_name(stdin.name), None, CHUNK_BYTES)
    path = "standard input"
    async with await filled.open(session.ctx, release) as feed:
        accept = await _offer(session, offer, path, how)
        chunks = await _write(session, accept, feed, path, how)
    digest = pipe.digest.hexdigest()
    await _finish(session, Done(digest, chunks), path)
    return Batch.of(TransferredFile(stdin.name, pipe.bytes, digest, "-"))


async def _send_pack(
    session: Session, entries: list[Entry], release: AsyncExitStack, how: How
) -> Batch:
    packing = Packing(entries, keep_meta=how.keep_meta)
    release.callback(packing.close)
    filled = Filled(packing.fill, packing.left_bytes)
    size = packing.left_bytes()
    path = ""
    async with await filled.open(session.ctx, release) as feed:
        offer = Pack(len(entries), size, CHUNK_BYTES, how.resume)
        accept = await _offer(session, offer, path, how)
        chunks = await _write(session, accept, feed, path, how)
    await _finish(session, Done("", chunks), path)
    files = tuple(packing.files)
    return Batch(files, len(files), len(entries) - len(files), size, packed=True)


async def _offer(session: Session, offer: Offer | Pack, path: str, how: How) -> Accept:
    await session.say(offer)
    reply = await _hear(session, path)
    if isinstance(reply, Asking):
        with how.waiting():
            reply = await _hear(session, path)
    if not isinstance(reply, Accept):
        raise ProtocolError(f"{session.qp.peer_host} answered an offer with an unexpected message")
    return reply


async def _write(
    session: Session, accept: Accept, feed: Feed | None, path: str, how: How, begin: int = 0
) -> int:
    """Writes the chunks from `begin` on; returns the number of all. An empty file has no feed."""
    if feed is None:
        return 0
    writing = Writing(session, accept, feed, begin)
    try:
        await writing.run()
    except SpokenError:
        await _hear(session, path)
        peer = session.qp.peer_host
        raise ProtocolError(f"{peer} sent an unexpected message during a file") from None
    finally:
        how.stored_chunks = writing.stored
    return writing.chunks


async def _finish(session: Session, done: Done, path: str) -> None:
    await session.say(done)
    if not isinstance(await _hear(session, path), Stored):
        raise ProtocolError(f"{session.qp.peer_host} did not confirm that it stored the file")


def _prepare(source: Source, mr: MR | None, digests: _Digests, offset: int, length: int) -> None:
    """Populates and hashes a part of the mapping.

    The mapping is registered, so a truncated part reads as zeros and does not raise SIGBUS.
    """
    assert mr is not None, "an empty file needs no preparation"
    populate_for_reads(mr.address + offset, length)
    with memoryview(source.map) as whole:
        digests.whole.update(whole[offset : offset + length])
    digests.after.append(digests.whole.digest())


async def _hear(session: Session, path: str) -> TransferMessage:
    """The receiver's next message; raises TransferError if it refuses. A pack has no `path`."""
    while isinstance(message := await session.hear(), int):
        pass  # credit after the last chunk
    host = session.qp.peer_host
    if not isinstance(message, Refuse):
        return message
    cause = shown(message.error)
    if message.code == "verification":
        raise VerificationError(f"{printable(path)}: {cause}" if path else cause)
    if message.code == "stopped":
        raise TransferError(f"{host} stopped the transfer: {cause}")
    raise TransferError(f"{host} refused {'the file' if path else 'the files'}: {cause}")
