# SPDX-License-Identifier: Apache-2.0
"""The sending end: offers, digests, and what the receiver says of them."""

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
    digest = Digest()
    # From now on, so while the receiver makes room too.
    async with Ahead(source.bytes, partial(_prepare, source, mr, digest), AHEAD_BYTES) as ahead:
        await session.say(Offer(source.name, source.bytes, CHUNK_BYTES))
        reply = await _hear(session, source)
        if not isinstance(reply, Accept):
            raise ProtocolError(
                f"{session.qp.peer_host} did not answer an offer with an acceptance"
            )
        if mr is not None:
            try:
                await Writing(session, mr, reply, ahead).run()
            except SpokenError:
                await _hear(session, source)
                peer = session.qp.peer_host
                raise ProtocolError(f"{peer} spoke in the middle of a file") from None
    source.check_unchanged()
    await session.say(Done(digest.hexdigest()))
    if not isinstance(await _hear(session, source), Stored):
        raise ProtocolError(f"{session.qp.peer_host} did not say that it stored the file")
    return TransferredFile(source.name, source.bytes, digest.hexdigest(), path)


def _prepare(source: Source, mr: MR | None, digest: Digest, offset: int, length: int) -> None:
    """Hashes the mapping: it is registered, so a part that somebody cuts off gives zeros."""
    assert mr is not None, "an empty file needs no preparation"
    populate_for_reads(mr.address + offset, length)
    with memoryview(source.map) as whole:
        digest.update(whole[offset : offset + length])


async def _hear(session: Session, source: Source) -> TransferMessage:
    """The receiver's next message; raises TransferError if it refuses."""
    while isinstance(message := await session.hear(), int):
        pass  # credit that came after the last chunk
    host = session.qp.peer_host
    if not isinstance(message, Refuse):
        return message
    cause = shown(message.error)
    if message.code == "verification":
        raise VerificationError(f"{printable(source.path)}: {cause}")
    if message.code == "stopped":
        raise TransferError(f"{host} gave up in the middle of the transfer: {cause}")
    raise TransferError(f"{host} refused the file: {cause}")
