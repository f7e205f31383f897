# SPDX-License-Identifier: Apache-2.0
"""The receiving end: the peer writes each file straight into its place on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

from mrc.enums import Access
from mrc.errors import ProtocolError
from mrc.mailbox import MailboxClosedError
from mrc.transfer.digest import RunningDigest
from mrc.transfer.files import FileError, OutputDirectory, Target, printable
from mrc.transfer.messages import (
    Abort,
    Accept,
    Bye,
    Done,
    Offer,
    Refuse,
    Stored,
    TransferMessage,
)
from mrc.transfer.populate import Ahead, populate_for_writes
from mrc.transfer.session import Session, TransferError, TransferredFile, VerificationError
from mrc.transfer.threads import Line, in_thread

AHEAD_BYTES = 64 << 20  # more than a sender has in flight


async def receive_files(
    session: Session, directory: OutputDirectory
) -> AsyncIterator[TransferredFile]:
    """Yields each file that is stored and verified, until the sender says that there are no more.

    Raises FileError for what cannot be stored here, TransferError when the sender gives up.
    """
    try:
        while (offer := await _hear_offer(session)) is not None:
            target = directory.create(offer.name, offer.bytes)
            # On failure the peer may still be writing: then it stays until the QP has ended.
            session.held.callback(target.close)
            yield await _receive_file(session, target, offer)
            target.close()  # late, as to unmap takes a while
    except FileError as error:
        await session.say_last(Refuse("file", str(error)))
        raise
    except VerificationError as error:
        await session.say_last(Refuse("verification", str(error)))
        raise
    except asyncio.CancelledError:
        await session.say_last(Refuse("stopped", "the receiver was stopped"))
        raise


async def _hear_offer(session: Session) -> Offer | None:
    """The next offer; None when there are no more files."""
    try:
        message = await _hear(session)
    except MailboxClosedError:
        return None  # between two files this says the same as a bye
    if isinstance(message, Bye):
        return None
    if not isinstance(message, Offer):
        raise ProtocolError(f"{session.qp.peer_host} sends what it has not offered")
    return message


async def _receive_file(session: Session, target: Target, offer: Offer) -> TransferredFile:
    region = AsyncExitStack()
    session.held.push_async_callback(region.aclose)
    await in_thread(target.allocate)
    if offer.bytes:
        opened = session.ctx.register(target.map, access=Access.REMOTE_WRITE)
        mr = await region.enter_async_context(opened)
        async with Ahead(mr.length, partial(_populate, mr.address), AHEAD_BYTES) as pages:
            await session.say(Accept(mr.remote))
            digest = await _take_chunks(session, target, offer.chunk_bytes, pages)
    else:
        await session.say(Accept(None))
        digest = RunningDigest().hexdigest()
    await _check_digest(session, target, digest)
    await region.aclose()  # from here on nobody can change what was verified
    target.commit()
    await session.say(Stored())
    return TransferredFile(target.name, target.bytes, digest, target.path)


def _populate(address: int, offset: int, length: int) -> None:
    populate_for_writes(address + offset, length)


async def _take_chunks(session: Session, target: Target, chunk_bytes: int, pages: Ahead) -> str:
    """Returns the digest of the file once all of it is there."""
    digest = RunningDigest()
    async with Line() as hashing:
        for index, offset in enumerate(range(0, target.bytes, chunk_bytes)):
            if await _hear(session) != index:
                raise ProtocolError(f"{session.qp.peer_host} does not write its chunks in order")
            pages.reached(offset + chunk_bytes)
            with memoryview(target.map) as whole:
                hashing.put(digest.update, whole[offset : offset + chunk_bytes])
        return await asyncio.wrap_future(hashing.put(digest.hexdigest))


async def _check_digest(session: Session, target: Target, digest: str) -> None:
    done = await _hear(session)
    if not isinstance(done, Done):
        raise ProtocolError(f"{session.qp.peer_host} did not end its file with a digest")
    if done.digest != digest:
        raise VerificationError(
            f"{printable(target.name)}: what arrived ({digest}) is not what was sent"
            f" ({printable(done.digest)}); nothing was stored"
        )


async def _hear(session: Session) -> TransferMessage | int:
    message = await session.hear()
    if isinstance(message, Abort):
        raise TransferError(f"{session.qp.peer_host} gave up: {printable(message.error)}")
    return message
