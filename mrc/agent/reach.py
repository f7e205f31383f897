# SPDX-License-Identifier: Apache-2.0
"""What an agent says to the agent of a peer outside an exchange: it finds a QP again, or knocks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mrc.agent.knock import KNOCK, Knock, admitted_in
from mrc.agent.wanted import Wanted
from mrc.aio.local import Local
from mrc.errors import ConnectError, ProtocolError
from mrc.exchange.dial import dial
from mrc.exchange.oob import Channel

RESUME = "resume"  # message: the agent of a connected QP looks for the peer's agent


@asynccontextmanager
async def _reached(local: Local, host: str, port: int) -> AsyncIterator[Channel]:
    """A connection to the peer's agent; an error ends it. Raises MrcError, OSError."""
    channel = await dial(local.host, host, port)
    try:
        if local.guard is not None:
            await local.guard.connect(channel)
        yield channel
    except BaseException:
        channel.abort()
        raise


class QpGoneError(ConnectError):
    """The peer's agent has answered that the QP, or its program, has ended."""


async def resume(local: Local, host: str, port: int, wanted: Wanted) -> Channel:
    """The connection of a QP whose agents have lost each other; raises MrcError, OSError."""
    async with _reached(local, host, port) as channel:
        await channel.send(RESUME, **wanted.private)
        answer = await channel.expect(RESUME)
        if answer.get("gone") is True:
            raise QpGoneError(f"QP {wanted.dest_qpn:#x} has ended")
        if answer.get("from") != wanted.dest_qpn:
            raise ProtocolError("the peer's agent means another QP")
        return channel


async def knock(local: Local, host: str, port: int, asked: Knock) -> int:
    """The QPN at the endpoint that was asked; raises MrcError, OSError."""
    async with _reached(local, host, port) as channel:
        await channel.send(KNOCK, **asked.message)
        qpn = admitted_in(await channel.expect(KNOCK))
        await channel.close()
        return qpn
