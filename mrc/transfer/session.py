# SPDX-License-Identifier: Apache-2.0
"""What sender and receiver share: one QP with a mailbox, and the watch over the peer's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from mrc.endpoint import Context
from mrc.enums import WcStatus
from mrc.errors import CompletionError, MrcError, PathError, PeerGoneError, ProtocolError
from mrc.mailbox import Mailbox, MailboxMemory, mailbox_memory
from mrc.qp import QP
from mrc.transfer.messages import VERSION, TransferMessage, from_json, to_json
from mrc.verbs import RemoteMemory

SERVICE = "files"
LAST_WORDS_SECONDS = 1.0  # to tell the peer why we stop; it finds out by itself too
LOST_TIMEOUTS = 3  # local timeouts in a row that no living path lets happen
CAUSE_SECONDS = 0.5  # a QP's end follows its first failed work request at once

T = TypeVar("T")


class TransferError(MrcError):
    """The transfer failed; the message says at which end and why."""


class VerificationError(TransferError):
    """What arrived is not what was sent."""


@dataclass(frozen=True, slots=True)
class TransferredFile:
    """A file that is stored and verified at the receiver."""

    name: str
    bytes: int
    digest: str
    path: str  # at the end that reports it


@dataclass(frozen=True, slots=True)
class Session:
    """One connected QP between a sender and a receiver, with its mailbox."""

    ctx: Context
    qp: QP
    mailbox: Mailbox
    held: AsyncExitStack  # released only after the QP, which may read or write there until its end

    async def say(self, message: TransferMessage) -> None:
        """Returns when the peer has the message."""
        await self.watched(self.mailbox.send(to_json(message)))

    async def say_last(self, message: TransferMessage) -> None:
        """Tells the peer why we stop, and lets it hang up first, if that is quickly done."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.say(message)
                await self.qp.peer_gone.wait()
        except (TimeoutError, MrcError):
            pass

    async def hear(self) -> TransferMessage | int:
        """The next message of the peer, or the index of the next chunk that it wrote."""
        item = await self.watched(self.mailbox.receive())
        return item if isinstance(item, int) else from_json(item)

    async def watched(
        self, work: Coroutine[Any, Any, T], *more: Coroutine[Any, Any, NoReturn]
    ) -> T:
        """The result of `work`, unless the QP ends or one of `more` raises before."""
        try:
            return await race(work, self.mailbox.failed(), *more)
        except CompletionError as error:
            raise await self._explain(error) from error
        except PeerGoneError as error:
            # A peer that found all paths lost before we did has given up for the same reason.
            if (await self.qp.query()).timeouts >= LOST_TIMEOUTS:
                raise paths_lost(self.qp.peer_host) from error
            raise

    async def _explain(self, error: CompletionError) -> MrcError:
        """What a failed work request means for a transfer."""
        try:
            # What the QP itself died of says more than that its work requests were flushed.
            async with asyncio.timeout(CAUSE_SECONDS):
                await self.mailbox.failed()
        except TimeoutError:
            return explain(error, self.qp.peer_host)
        except CompletionError as cause:
            return explain(cause, self.qp.peer_host)
        except MrcError as cause:
            return cause


def paths_lost(host: str) -> PathError:
    return PathError(
        f"all paths to {host} are lost: nothing sent there is acknowledged any more; `mrc paths"
        f" {host}` shows which answer"
    )


def explain(error: CompletionError, host: str) -> MrcError:
    if error.status is WcStatus.RETRY_EXC_ERR:
        return paths_lost(host)
    return TransferError(f"the transfer with {host} broke: {error}")


async def race(work: Coroutine[Any, Any, T], *watchers: Coroutine[Any, Any, NoReturn]) -> T:
    """The result of `work`, or the error of the first of `watchers` to raise one before."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in (work, *watchers)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        result: T = next(task for task in tasks if task.done()).result()
        return result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def connect_session(
    ctx: Context, host: str, port: int, *, total_bytes: int, timeout: float
) -> AsyncIterator[Session]:
    """A session with the receiver that listens at `host`; it learns `total_bytes` for its bar."""
    async with AsyncExitStack() as held:
        memory = await held.enter_async_context(mailbox_memory(ctx))
        private = {
            "service": SERVICE,
            "version": VERSION,
            "bytes": total_bytes,
            "inbox": memory.inbox_mr.remote.to_json(),
        }
        async with (
            await ctx.connect(host, port, private=private, timeout=timeout) as qp,
            _open_mailbox(qp, memory) as mailbox,
        ):
            yield Session(ctx, qp, mailbox, held)


@asynccontextmanager
async def accept_session(ctx: Context, qp: QP) -> AsyncIterator[Session]:
    """A session with the sender that connected `qp`, which this closes at the end."""
    async with AsyncExitStack() as held:
        try:
            memory = await held.enter_async_context(mailbox_memory(ctx))
        except BaseException:
            await qp.abort()
            raise
        async with qp, _open_mailbox(qp, memory, _inbox_of(qp)) as mailbox:
            yield Session(ctx, qp, mailbox, held)


def _inbox_of(qp: QP) -> RemoteMemory:
    """The sender's inbox, if it speaks our version of the transfer."""
    version = qp.private.get("version")
    if version != VERSION:
        raise ProtocolError(
            f"{qp.peer_host} speaks version {version!r:.20} of the file transfer, this is version"
            f" {VERSION}; install the same mrc at both ends"
        )
    return RemoteMemory.from_json(qp.private.get("inbox"))


@asynccontextmanager
async def _open_mailbox(
    qp: QP, memory: MailboxMemory, peer: RemoteMemory | None = None
) -> AsyncIterator[Mailbox]:
    async with AsyncExitStack() as stack:
        try:
            mailbox = await stack.enter_async_context(Mailbox(qp, memory, peer=peer))
        except CompletionError as error:
            raise explain(error, qp.peer_host) from error
        yield mailbox
