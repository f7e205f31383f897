# SPDX-License-Identifier: Apache-2.0
"""The sending end: offers files, hashes and writes them, and handles the receiver's replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial

from mrc.binding.verbs import MR
from mrc.enums import Access
from mrc.errors import MrcError, ProtocolError
from mrc.exchange.foreign import printable, shown
from mrc.results.transfer import TransferredFile
from mrc.transfer.files import FileError, Source
from mrc.transfer.messages import (
    Abort,
    Accept,
    Bye,
    Digest,
    Done,
    Offer,
    Refuse,
    Stored,
    TransferMessage,
)
from mrc.transfer.populate import Ahead, populate_for_reads
from mrc.transfer.session import Session, TransferError, VerificationError
from mrc.transfer.writing import CHUNK_BYTES, SpokenError, Writing

AHEAD_BYTES = 256 << 20  # hashed ahead of the writes; occupies page cache, not process memory


def check_sources(paths: Sequence[str]) -> int:
    """Returns the bytes of all files; raises FileError if one of them cannot be sent."""
    by_name: dict[str, str] = {}
    total = 0
    for path in paths:
        with Source(path) as source:
            if source.name in by_name:
                raise FileError(
                    f"{printable(by_name[source.name])} and {printable(path)} would both be stored"
                    f" as {printable(source.name)}: rename one of them"
                )
            by_name[source.name] = path
            total += source.bytes
    return total


async def send_files(session: Session, paths: Sequence[str]) -> AsyncIterator[TransferredFile]:
    """Sends files in order and yields each when the receiver has stored and verified it.

    Raises FileError for errors at this end, TransferError when the receiver refuses a file.
    """
    for path in paths:
        release = AsyncExitStack()
        # On failure the engine may still read the file, so it stays open until the QP has ended.
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
        await release.aclose()  # after the yield, because unmapping takes a while
    try:
        await session.say(Bye())
    except MrcError:
        pass  # all files are stored, so the transfer succeeded; our close replaces the bye


async def _send_file(session: Session, path: str, release: AsyncExitStack) -> TransferredFile:
    source = release.enter_context(Source(path))
    mr = None
    if source.bytes:
        registered = session.ctx.register(source.map, access=Access.LOCAL_READ)
        mr = await release.enter_async_context(registered)
    digest = Digest()
    # Hashing starts before the offer, so it runs while the receiver prepares.
    async with Ahead(source.bytes, partial(_prepare, source, mr, digest), AHEAD_BYTES) as ahead:
        await session.say(Offer(source.name, source.bytes, CHUNK_BYTES))
        reply = await _hear(session, source)
        if not isinstance(reply, Accept):
            raise ProtocolError(
                f"{session.qp.peer_host} answered an offer with an unexpected message"
            )
        if mr is not None:
            try:
                await Writing(session, mr, reply, ahead).run()
            except SpokenError:
                await _hear(session, source)
                peer = session.qp.peer_host
                raise ProtocolError(f"{peer} sent an unexpected message during a file") from None
    source.check_unchanged()
    await session.say(Done(digest.hexdigest()))
    if not isinstance(await _hear(session, source), Stored):
        raise ProtocolError(f"{session.qp.peer_host} did not confirm that it stored the file")
    return TransferredFile(source.name, source.bytes, digest.hexdigest(), path)


def _prepare(source: Source, mr: MR | None, digest: Digest, offset: int, length: int) -> None:
    """Populates and hashes a part of the mapping.

    The mapping is registered, so a truncated part reads as zeros and does not raise SIGBUS.
    """
    assert mr is not None, "an empty file needs no preparation"
    populate_for_reads(mr.address + offset, length)
    with memoryview(source.map) as whole:
        digest.update(whole[offset : offset + length])


async def _hear(session: Session, source: Source) -> TransferMessage:
    """The receiver's next message; raises TransferError if it refuses."""
    while isinstance(message := await session.hear(), int):
        pass  # credit after the last chunk
    host = session.qp.peer_host
    if not isinstance(message, Refuse):
        return message
    cause = shown(message.error)
    if message.code == "verification":
        raise VerificationError(f"{printable(source.path)}: {cause}")
    if message.code == "stopped":
        raise TransferError(f"{host} stopped the transfer: {cause}")
    raise TransferError(f"{host} refused the file: {cause}")
