# SPDX-License-Identifier: Apache-2.0
"""A session of a file transfer: its QPs, messages and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import field

from mrc import mailbox
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.errors import MrcError
from mrc.events import EvInfo, Immediate, QpInfo, sum_of
from mrc.exchange.foreign import shown
from mrc.mailbox import Service, SessionError
from mrc.transfer.announced import Announced
from mrc.transfer.arrived import Arrived
from mrc.transfer.joined import TRANSFER, JoinedQps, Joins
from mrc.transfer.messages import VERSION, Abort, TransferMessage, from_dict, to_dict
from mrc.transfer.waiting import Waiting

TAKES_ASKING = "asking"
"""private data of a sender that understands the message Asking, which came after version 4"""
TOKEN_BYTES = 16
SERVICE = Service("files", "file transfer", VERSION)
LAST_WORDS_SECONDS = 1.0  # to send the reason; the peer notices our end even without a reason


class TransferError(SessionError):
    """The transfer failed; the message names the end that failed and the cause."""


class VerificationError(TransferError):
    """The received file differs from the sent file."""


class Session(mailbox.MailboxSession, frozen=True):
    """A session of a file transfer: a QP with a mailbox, and further QPs that carry chunks."""

    joined: JoinedQps
    arrived: Arrived = field(default_factory=Arrived)
    waiting: Waiting = field(default_factory=Waiting)

    @property
    def qps(self) -> list[QP]:
        """All QPs; the first one has the mailbox."""
        return [self.qp, *self.joined.qps]

    async def query(self) -> QpInfo:
        """A snapshot of all QPs together."""
        return sum_of([await qp.query() for qp in self.qps])

    async def evs(self) -> list[EvInfo]:
        """A snapshot of the EVs of all QPs."""
        return [ev for qp in self.qps for ev in await qp.evs()]

    async def say(self, message: TransferMessage) -> None:
        """Returns when the peer has the message."""
        await self.watched(self.mailbox.send(to_dict(message)))

    async def say_last(self, message: TransferMessage) -> None:
        """Sends a last message and waits until the peer closes its QP, for at most 1 s in all."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.say(message)
                await self.qp.until_peer_gone()
        except (TimeoutError, MrcError):
            pass

    async def hear(self) -> TransferMessage | Immediate:
        """The peer's next message or immediate; raises TransferError if the peer sent abort."""
        item = await self.receive()
        if isinstance(item, Immediate):
            return item
        message = from_dict(item)
        if isinstance(message, Abort):
            raise TransferError(f"{self.qp.peer_host} stopped the transfer: {shown(message.error)}")
        return message


@asynccontextmanager
async def connect_session(
    ctx: Context,
    host: str,
    port: int,
    *,
    announced: Announced,
    transfer: str = "",
    timeout: float,
) -> AsyncIterator[Session]:
    """A session with the receiver at `host`; its user sees what is announced, and accepts no more.

    A later session of the same `transfer` goes on with it: the receiver then ends this one.
    """

    async def connect(private: dict[str, Any]) -> QP:
        return await ctx.connect(host, port, private=private, timeout=timeout)

    about = announced.to_dict() | {TAKES_ASKING: True, TRANSFER: transfer}
    async with (
        mailbox.connect_session(ctx, host, port, SERVICE, private=about, timeout=timeout) as opened,
        JoinedQps(connect=connect) as joined,
    ):
        yield Session(opened.ctx, opened.qp, opened.mailbox, opened.held, joined)


@asynccontextmanager
async def accept_session(ctx: Context, qp: QP, joins: Joins) -> AsyncIterator[Session]:
    """A session with the sender of an accepted `qp`; closes the QP at the end.

    The sender's further QPs join the session through `joins`.
    """
    async with mailbox.accept_session(ctx, qp, SERVICE) as opened, joins.session() as joined:
        yield Session(opened.ctx, opened.qp, opened.mailbox, opened.held, joined)
