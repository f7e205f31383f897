# SPDX-License-Identifier: Apache-2.0
"""The receiving end: what a sender offers is checked, taken through the window, and verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

from mrc.errors import ProtocolError
from mrc.foreign import printable, shown
from mrc.mailbox import MailboxClosedError
from mrc.transfer.files import FileError, OutputDirectory, Target
from mrc.transfer.messages import Accept, Bye, Offer, Refuse, Stored
from mrc.transfer.session import Session, TransferredFile, VerificationError
from mrc.transfer.threads import in_thread
from mrc.transfer.window import WINDOW_BYTES, Storing, Window, open_window


async def receive_files(
    session: Session, directory: OutputDirectory, *, window_bytes: int = WINDOW_BYTES
) -> AsyncIterator[TransferredFile]:
    """Yields each file that is stored and verified, until the sender says that there are no more.

    What was written and is not stored yet takes `window_bytes` of memory at most.
    Raises FileError for what cannot be stored here, TransferError when the sender gives up.
    """
    # Released only with the QP: on failure the peer may still be writing.
    window = await session.held.enter_async_context(open_window(session.ctx, window_bytes))
    try:
        while (offer := await _hear_offer(session)) is not None:
            with closing(directory.create(offer.name, offer.bytes)) as target:
                received = await _receive_file(session, window, target, offer)
            yield received
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
        message = await session.hear()
    except MailboxClosedError:
        return None  # between two files this says the same as a bye
    if isinstance(message, Bye):
        return None
    if not isinstance(message, Offer):
        raise ProtocolError(f"{session.qp.peer_host} sends what it has not offered")
    return message


async def _receive_file(
    session: Session, window: Window, target: Target, offer: Offer
) -> TransferredFile:
    if offer.chunk_bytes > len(window.memory):
        raise ProtocolError(f"{session.qp.peer_host} offers chunks larger than the window")
    await in_thread(target.allocate)
    await session.say(Accept(window.mr.remote, session.joined.token))
    digest, done = await Storing(session, window, target, offer).run()
    if done.digest != digest:
        raise VerificationError(
            f"{printable(target.name)}: what arrived ({digest}) is not what was sent"
            f" ({shown(done.digest, 40)}); nothing was stored"
        )
    target.commit()
    await session.say(Stored())
    return TransferredFile(target.name, target.bytes, digest, target.path)
