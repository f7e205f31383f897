# SPDX-License-Identifier: Apache-2.0
"""What an agent asks the agent of a peer outside a connect: where a QP is that has lost its agent,
whether one can still come, and a QP for an endpoint.

An endpoint for messages has an address but no QP: each pair of endpoints gets one when it is first
needed. The answer to a request is the number of the other side's QP. Then both sides move their QPs
to RTR, as verbs programs do. Endpoints that ask each other at one time name the same two QPs.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins

from mrc.agent.parameters import QpParameters, taken, unpack_address
from mrc.agent.steering import AgentKind, struct_bytes
from mrc.connect.connect import Local
from mrc.connect.dial import dial
from mrc.connect.failures import about
from mrc.connect.oob import Channel
from mrc.connect.parse import shown
from mrc.engine.native import CData
from mrc.errors import BusyError, ConnectError, MrcError, PeerGoneError, ProtocolError
from mrc.fabric.hostconfig import IpAddress, pack_address
from mrc.tasks import Limit, RunningClock
from mrc.units import digits

if TYPE_CHECKING:
    from mrc.agent.program import ProgramContext

# Messages, whose answers have the same type:
RESUME = "resume"  # the agent of a connected QP looks for the peer's agent
ASK = "ask"  # the agent of a QP whose peer has not dialled asks whether it can still come
QP_REQUEST = "knock"  # an endpoint asks for a QP
Qpn = Annotated[int, Meta(ge=3, le=0xFFFFFF)]
T = TypeVar("T")
_FIRST_PAUSE_SECONDS = 0.1  # before the next try to reach an agent
_LONGEST_PAUSE_SECONDS = 0.4
_MOST_REQUESTS = 1024  # that the program has not answered
_ANSWER_SECONDS = 10.0

# ---- Addresses of endpoints, and their requests -------------------------------------------------


class EndpointAddress(Struct, frozen=True):
    """The address of an endpoint."""

    gid: IpAddress
    token: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    """who knows it may connect"""
    number: Qpn
    """names the endpoint at its host"""

    @property
    def fields(self) -> dict[str, Any]:
        """Those of a `struct mrc_agent_endpoint`."""
        return {
            "gid": pack_address(self.gid),
            "token": bytes.fromhex(self.token),
            "number": self.number,
        }


class QpRequest(Struct, frozen=True):
    """One endpoint asks another one."""

    to: EndpointAddress
    by: EndpointAddress
    qpn: Qpn
    """the QP at `by`"""

    @property
    def message(self) -> dict[str, Any]:
        """For the peer's agent."""
        found: dict[str, Any] = to_builtins(self, enc_hook=str)
        return found

    @property
    def body(self) -> bytes:
        """As a `struct mrc_agent_qp_request`."""
        fields = {"to": self.to.fields, "from": self.by.fields, "qpn": self.qpn}
        return struct_bytes("mrc_agent_qp_request", fields)


class QpGrant(Struct, frozen=True):
    """The answer."""

    qpn: Qpn
    """the other side's QP for the one that asked"""


def qp_request_of(fields: CData) -> QpRequest:
    """A `struct mrc_agent_qp_request` of a program; raises ProtocolError."""
    to, by = (
        {
            "gid": str(unpack_address(bytes(each.gid))),
            "token": bytes(each.token).hex(),
            "number": each.number,
        }
        for each in (fields.to, getattr(fields, "from"))
    )
    return qp_request_in({"to": to, "by": by, "qpn": fields.qpn})


def qp_request_in(message: dict[str, Any]) -> QpRequest:
    """The request of a peer's agent; raises ProtocolError."""
    return taken(message, QpRequest, "a wrong knock")


# ---- Connections between agents -----------------------------------------------------------------


async def repeat(
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
                if not error.may_pass or clock.time() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


@asynccontextmanager
async def agent_channel(local: Local, host: str, port: int) -> AsyncIterator[Channel]:
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


def described(error: Exception) -> str:
    """A failed try to reach a peer's agent, for the user; with advice if nobody has answered."""
    silent = isinstance(error, ConnectError) and error.may_pass
    silent = silent and not isinstance(error, (BusyError, PeerGoneError))
    return f"{error}; does mrc agent run there?" if silent else str(error)


class QpGoneError(ConnectError):
    """The peer's agent has answered that the QP, or its program, has ended."""


async def resume(local: Local, host: str, port: int, parameters: QpParameters) -> Channel:
    """The connection of a QP whose agents have lost each other; raises MrcError, OSError."""
    async with agent_channel(local, host, port) as channel:
        await channel.send(RESUME, **parameters.private)
        answer = await channel.expect(RESUME)
        if answer.get("gone") is True:
            raise QpGoneError(f"QP {parameters.dest_qpn:#x} has ended")
        if answer.get("from") != parameters.dest_qpn:
            raise ProtocolError("the peer's agent means another QP")
        channel.limit_silence(on=False)
        return channel


async def ask(local: Local, host: str, port: int, parameters: QpParameters) -> None:
    """Raises QpGoneError with the reason if the peer's QP never connects to this one; MrcError,
    OSError.
    """
    async with agent_channel(local, host, port) as channel:
        await channel.send(ASK, **parameters.private)
        gone = (await channel.expect(ASK)).get("gone")
        await channel.close()
    if isinstance(gone, str):
        raise QpGoneError(f"{host}: TCP port {port}: {shown(gone)}")


async def request_qp(local: Local, host: str, port: int, asked: QpRequest) -> int:
    """The QPN at the endpoint that was asked; raises MrcError, OSError."""
    async with agent_channel(local, host, port) as channel:
        await channel.send(QP_REQUEST, **asked.message)
        answer = await channel.expect(QP_REQUEST)
        granted = taken(answer, QpGrant, "a wrong answer to a knock")
        await channel.close()
        return granted.qpn


# ---- Requests of a program, and at a program ----------------------------------------------------


class QpRequests:
    """Brings requests of QPs from one program to another."""

    def __init__(self, program: ProgramContext) -> None:
        self._program = program
        self._cookies = count(1)
        self._unanswered: dict[int, asyncio.Future[int]] = {}

    async def ask(self, asked: QpRequest) -> None:
        """Asks the endpoint, and tells the program its answer."""
        local, host, port = self._program.address_of(asked.to.gid)
        seconds = local.config.timeouts.exchange
        why = f"{host}: no answer in {digits(seconds)} s"

        async def attempt() -> int:
            nonlocal why
            try:
                return await request_qp(local, host, port, asked)
            except ConnectError as error:  # the next attempt may be cut off by the limit
                why = described(error)
                raise

        try:
            async with Limit(seconds):
                qpn = await repeat(attempt, seconds)
        except TimeoutError:
            self._program.fail(asked.qpn, why)
        except (MrcError, OSError) as error:
            self._program.fail(asked.qpn, described(error))
        else:
            self._program.send(AgentKind.ADMITTED, asked.qpn, 0, qpn.to_bytes(4, "little"))

    async def serve(self, asked: QpRequest) -> int:
        """The program's QP for an endpoint that asks; raises ConnectError, BusyError."""
        if len(self._unanswered) >= _MOST_REQUESTS:
            raise BusyError("too many endpoints ask this program at one time")
        cookie = next(self._cookies)
        answer = self._unanswered[cookie] = asyncio.get_running_loop().create_future()
        try:
            self._program.send(AgentKind.PEER_REQUEST, 0, cookie, asked.body)
            async with Limit(_ANSWER_SECONDS):
                qpn: int = await answer
        except TimeoutError:
            raise BusyError("the program does not answer its agent") from None
        finally:
            del self._unanswered[cookie]
        if qpn == 0:
            raise BusyError("the program has no QP number left for now")
        if qpn == -errno.ENOSPC:
            raise ConnectError("the program has the most peers that it may have")
        if qpn < 0:
            raise ConnectError("the program has no such endpoint: has it ended?")
        return qpn

    def admit(self, qpn: int, cookie: int) -> None:
        """The program has answered; raises ProtocolError."""
        if 0 < qpn < 3 or qpn > 0xFFFFFF:
            raise ProtocolError(f"QP {qpn:#x}: not a QPN")
        answer = self._unanswered.get(cookie)
        if answer is not None and not answer.done():
            answer.set_result(qpn)
