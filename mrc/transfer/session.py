# SPDX-License-Identifier: Apache-2.0
"""A session in which files are sent: its errors, and what one says and hears in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.errors import MrcError
from mrc.events import EvInfo, QpInfo, sum_of
from mrc.exchange.foreign import shown
from mrc.messaging import session
from mrc.messaging.session import Service, SessionError
from mrc.transfer.joined import JoinedQps, Joins
from mrc.transfer.messages import VERSION, Abort, TransferMessage, from_json, to_json

SERVICE = Service("files", "file transfer", VERSION)
LAST_WORDS_SECONDS = 1.0  # to tell the peer why we stop; it finds out by itself too


class TransferError(SessionError):
    """The transfer failed; the message says at which end and why."""


class VerificationError(TransferError):
    """What arrived is not what was sent."""


@dataclass(frozen=True, slots=True)
class Session(session.Session):
    """A sender and a receiver of files: a QP with a mailbox, and others that carry chunks."""

    joined: JoinedQps

    @property
    def qps(self) -> list[QP]:
        """All QPs, the one with the mailbox first."""
        return [self.qp, *self.joined.qps]

    async def query(self) -> QpInfo:
        """A snapshot of all QPs together."""
        return sum_of([await qp.query() for qp in self.qps])

    async def evs(self) -> list[EvInfo]:
        """A snapshot of the EVs of all QPs."""
        return [ev for qp in self.qps for ev in await qp.evs()]

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
        """The peer's next message, or its next immediate; raises TransferError if it gave up."""
        item = await self.receive()
        if isinstance(item, int):
            return item
        message = from_json(item)
        if isinstance(message, Abort):
            raise TransferError(f"{self.qp.peer_host} gave up: {shown(message.error)}")
        return message


@asynccontextmanager
async def connect_session(
    ctx: Context, host: str, port: int, *, total_bytes: int, timeout: float
) -> AsyncIterator[Session]:
    """A session with the receiver that listens at `host`; it learns `total_bytes` for its bar."""

    async def connect(private: dict[str, Any]) -> QP:
        return await ctx.connect(host, port, private=private, timeout=timeout)

    about = {"bytes": total_bytes}
    async with (
        session.connect_session(ctx, host, port, SERVICE, private=about, timeout=timeout) as opened,
        JoinedQps(connect=connect) as joined,
    ):
        yield Session(opened.ctx, opened.qp, opened.mailbox, opened.held, joined)


@asynccontextmanager
async def accept_session(ctx: Context, qp: QP, joins: Joins) -> AsyncIterator[Session]:
    """A session with the sender that connected `qp`, which this closes at the end.

    Its further QPs come through `joins`.
    """
    async with session.accept_session(ctx, qp, SERVICE) as opened, joins.session() as joined:
        yield Session(opened.ctx, opened.qp, opened.mailbox, opened.held, joined)
