# SPDX-License-Identifier: Apache-2.0
"""The receiving end: checks offers, receives files through the window, and verifies them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass

from mrc.errors import ProtocolError
from mrc.exchange.budget import BudgetError
from mrc.exchange.foreign import printable, shown
from mrc.messaging.mailbox import MailboxClosedError
from mrc.results.transfer import TransferredFile
from mrc.transfer.files import FileError, OutputDirectory, Target
from mrc.transfer.messages import Accept, Bye, Offer, Refuse, Stored
from mrc.transfer.patience import IDLE_SECONDS, IdleError, patience, until_idle
from mrc.transfer.session import Session, VerificationError
from mrc.transfer.window import WINDOW_BYTES, Storing, Window, open_window
from mrc.transfer.writing import CHUNK_BYTES

_MESSAGE_BYTES = 1 << 20  # mailbox messages, which count as received payload beside the file


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one sender; the receiver refuses files beyond them."""

    bytes: int = 1 << 44  # of all its files together
    files: int = 1 << 16
    window_bytes: int = WINDOW_BYTES  # memory for chunks that are not stored yet
    idle_seconds: float = IDLE_SECONDS  # without progress


async def receive_files(
    session: Session,
    directory: OutputDirectory,
    *,
    limits: Limits = Limits(),
    on_data: Callable[[], None] = lambda: None,
) -> AsyncIterator[TransferredFile]:
    """Yields each file when it is stored and verified; ends after the sender's last file.

    Calls `on_data` before it stores each chunk, and before each file gets its final name.
    Raises FileError when it cannot store a file, TransferError when the sender stops the transfer
    or makes no progress.
    """
    quota = _Quota(limits)
    try:
        window = await _open_window(session, limits.window_bytes)
        while (offer := await _hear_offer(session, limits)) is not None:
            quota.take(offer)
            with closing(directory.create(offer.name, offer.bytes)) as target:
                received = await _receive_file(session, window, target, offer, limits, on_data)
            yield received
    except IdleError as error:
        await session.say_last(Refuse("stopped", str(error)))
        raise
    except (FileError, BudgetError) as error:
        await session.say_last(Refuse("file", str(error)))
        raise
    except VerificationError as error:
        await session.say_last(Refuse("verification", str(error)))
        raise
    except asyncio.CancelledError:
        await session.say_last(Refuse("stopped", "the receiver was stopped"))
        raise


async def _open_window(session: Session, most_bytes: int) -> Window:
    """The window of a session: a quarter of the memory left for this peer, up to `most_bytes`."""
    memory, address = session.ctx.peer_memory, session.qp.peer_address
    share = memory.left(address) // 4
    length = max(min(most_bytes, share - share % CHUNK_BYTES), min(most_bytes, CHUNK_BYTES))
    # Released only after the QP: on failure the peer may still be writing.
    session.held.enter_context(memory.taken(address, length))
    return await session.held.enter_async_context(open_window(session.ctx, length))


class _Quota:
    """The remaining bytes and files of a session."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = limits.files
        self._bytes = limits.bytes

    def take(self, offer: Offer) -> None:
        """Raises FileError for a file that exceeds the limits."""
        if self._files == 0:
            most = f"{self._limits.files} files of one sender (mrc recv --max-files)"
            raise FileError(f"{shown(offer.name)}: exceeds the limit of {most}")
        if offer.bytes > self._bytes:
            most = f"{self._limits.bytes} bytes of one sender (mrc recv --max-bytes)"
            raise FileError(f"{shown(offer.name)}: {offer.bytes} bytes exceed the limit of {most}")
        self._files -= 1
        self._bytes -= offer.bytes


async def _hear_offer(session: Session, limits: Limits) -> Offer | None:
    """The next offer; None when there are no more files."""
    try:
        async with patience(session, limits.idle_seconds):
            message = await session.hear()
    except MailboxClosedError:
        return None  # between two files this means the same as a bye
    if isinstance(message, Bye):
        return None
    if not isinstance(message, Offer):
        raise ProtocolError(f"{session.qp.peer_host} sent data that it has not offered")
    return message


async def _receive_file(
    session: Session,
    window: Window,
    target: Target,
    offer: Offer,
    limits: Limits,
    on_data: Callable[[], None],
) -> TransferredFile:
    if offer.chunk_bytes > len(window.memory):
        raise ProtocolError(f"{session.qp.peer_host} offered chunks larger than the window")
    target.check_room()
    async with patience(session, limits.idle_seconds):
        await session.say(Accept(window.mr.remote, session.joined.token))
    storing = Storing(session, window, target, offer, on_data)
    idle = until_idle(session, limits.idle_seconds, storing.progress, offer.bytes + _MESSAGE_BYTES)
    digest, done = await storing.run(idle)
    if done.digest != digest:
        raise VerificationError(
            f"{printable(target.name)}: the received data (digest {digest}) differs from the sent"
            f" data ({shown(done.digest, 40)}); the file was not stored: send it again"
        )
    on_data()
    target.commit()
    async with patience(session, limits.idle_seconds):
        await session.say(Stored())
    return TransferredFile(target.name, target.bytes, digest, target.path)
