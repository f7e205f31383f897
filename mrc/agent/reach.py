# SPDX-License-Identifier: Apache-2.0
"""What an agent says to the agent of a peer outside an exchange: it finds a QP again, asks whether
one can still come, or knocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TypeVar

from mrc.agent.parameters import Wanted
from mrc.agent.peers import KNOCK, Knock, admitted_in
from mrc.aio.connecting import about
from mrc.aio.local import Local
from mrc.errors import BusyError, ConnectError, PeerGoneError, ProtocolError
from mrc.exchange.dial import dial, may_pass
from mrc.exchange.foreign import shown
from mrc.exchange.oob import Channel
from mrc.running import RunningClock

T = TypeVar("T")
_FIRST_PAUSE_SECONDS = 0.1  # before the next try to reach an agent
_LONGEST_PAUSE_SECONDS = 0.4
RESUME = "resume"  # message: the agent of a connected QP looks for the peer's agent
ASK = "ask"  # message: the agent of a QP whose peer has not dialled asks whether it can still come


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    seconds: float,
    turn: AbstractAsyncContextManager[object] | None = None,
) -> T:
    """Repeats the attempt for `seconds` while the peer's agent is away: it may start again.

    Each attempt holds its `turn`. Raises what the last attempt has raised.
    """
    pause = _FIRST_PAUSE_SECONDS
    with RunningClock() as clock:
        until = clock.time() + seconds
        while True:
            try:
                async with turn or nullcontext():
                    return await attempt()
            except ConnectError as error:
                if not may_pass(error) or clock.time() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


@asynccontextmanager
async def reached(local: Local, host: str, port: int) -> AsyncIterator[Channel]:
    """A connection to the peer's agent; an error ends it. Raises MrcError, OSError."""
    channel = await dial(local.host, host, port, local.source)
    channel.limit_silence(on=True)
    try:
        with about(host, port):
            if local.guard is not None:
                await local.guard.connect(channel)
            yield channel
    except BaseException:
        channel.abort()
        raise


def worded(error: Exception) -> str:
    """A failed try to reach a peer's agent, for the user; with advice if nobody has answered."""
    silent = isinstance(error, ConnectError) and may_pass(error)
    silent = silent and not isinstance(error, (BusyError, PeerGoneError))
    return f"{error}; does mrc agent run there?" if silent else str(error)


class QpGoneError(ConnectError):
    """The peer's agent has answered that the QP, or its program, has ended."""


async def resume(local: Local, host: str, port: int, wanted: Wanted) -> Channel:
    """The connection of a QP whose agents have lost each other; raises MrcError, OSError."""
    async with reached(local, host, port) as channel:
        await channel.send(RESUME, **wanted.private)
        answer = await channel.expect(RESUME)
        if answer.get("gone") is True:
            raise QpGoneError(f"QP {wanted.dest_qpn:#x} has ended")
        if answer.get("from") != wanted.dest_qpn:
            raise ProtocolError("the peer's agent means another QP")
        channel.limit_silence(on=False)
        return channel


async def ask(local: Local, host: str, port: int, wanted: Wanted) -> None:
    """Raises QpGoneError with the reason if the peer's QP never connects to this one; MrcError,
    OSError.
    """
    async with reached(local, host, port) as channel:
        await channel.send(ASK, **wanted.private)
        gone = (await channel.expect(ASK)).get("gone")
        await channel.close()
    if isinstance(gone, str):
        raise QpGoneError(f"{host}: TCP port {port}: {shown(gone)}")


async def knock(local: Local, host: str, port: int, asked: Knock) -> int:
    """The QPN at the endpoint that was asked; raises MrcError, OSError."""
    async with reached(local, host, port) as channel:
        await channel.send(KNOCK, **asked.message)
        qpn = admitted_in(await channel.expect(KNOCK))
        await channel.close()
        return qpn
