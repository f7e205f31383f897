# SPDX-License-Identifier: Apache-2.0
"""What an agent says to another one outside an exchange, over loopback."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from socket import IPPROTO_TCP, TCP_USER_TIMEOUT
from types import SimpleNamespace
from typing import Any

import pytest
from slowness import PATIENCE

from mrc.agent import peers
from mrc.agent.peers import (
    EndpointAddress,
    QpGoneError,
    QpRequest,
    ask,
    described,
    qp_request_in,
    repeat,
    request_qp,
    resume,
)
from mrc.connect.oob import Channel
from mrc.errors import (
    BusyError,
    ConnectError,
    ConnectRefusedError,
    ConnectTimeoutError,
    Kind,
    MrcError,
    PeerGoneError,
    ProtocolError,
)

HOST = "127.0.0.1"
ASKED = QpRequest(
    EndpointAddress(ip_address(HOST), "0" * 32, 7),
    EndpointAddress(ip_address(HOST), "1" * 32, 8),
    9,
)
PARAMETERS: Any = SimpleNamespace(private={"from": 5, "to": 6}, dest_qpn=6)
LOCAL: Any = SimpleNamespace(host=None, guard=None, source=None)


@asynccontextmanager
async def peer(answer: Callable[[Channel], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of an agent that answers so, and then waits for the end of the connection."""
    ended: asyncio.Queue[None] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(Channel(reader, writer))
        await reader.read()
        writer.close()
        ended.put_nowait(None)

    server = await asyncio.start_server(serve, HOST, 0)
    async with server, asyncio.timeout(PATIENCE):
        yield server.sockets[0].getsockname()[1]
        await ended.get()


@pytest.mark.parametrize(
    ("error", "advises"),
    [
        (ConnectRefusedError("start both with mrc run --rc, or neither"), False),
        (ConnectError("QP 7 belongs to QP 8"), False),
        (BusyError("not now"), False),
        (OSError("broken"), False),
        (ConnectTimeoutError("no answer"), True),
    ],
)
def test_described__advice_only_where_nobody_answered(error: Exception, advises: bool) -> None:
    assert described(error).endswith("; does mrc agent run there?") == advises
    assert described(away()) == "no program listens; does mrc agent run there?"


def away() -> ConnectError:
    """What `dial` raises while no agent runs there."""
    error = ConnectError("no program listens")
    error.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return error


def attempts(*answers: MrcError | int) -> Callable[[], Awaitable[int]]:
    left = list(answers)

    async def attempt() -> int:
        answer = left.pop(0)
        if isinstance(answer, MrcError):
            raise answer
        return answer

    return attempt


async def test_repeat__an_agent_that_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_FIRST_PAUSE_SECONDS", 0)
    answers = attempts(away(), away(), PeerGoneError("the peer closed"), BusyError("young"), 7)
    assert await repeat(answers, PATIENCE, asyncio.Semaphore(1)) == 7


async def test_repeat__no_longer_than_its_time() -> None:
    with pytest.raises(ConnectError, match="no program listens"):
        await repeat(attempts(away(), 7), 0.0)


async def test_repeat__a_refusal_is_final() -> None:
    with pytest.raises(ConnectRefusedError, match="not you"):
        await repeat(attempts(ConnectRefusedError("not you"), 7), PATIENCE)


async def test_request_qp__admitted() -> None:
    async def answer(channel: Channel) -> None:
        assert qp_request_in(await channel.receive()) == ASKED
        await channel.send("knock", qpn=0x123456)

    async with peer(answer) as port:
        assert await request_qp(LOCAL, HOST, port, ASKED) == 0x123456


@pytest.mark.parametrize(
    ("kind", "error"), [(Kind.BUSY, BusyError), (Kind.OTHER, ConnectRefusedError)]
)
async def test_request_qp__refused(kind: Kind, error: type[Exception]) -> None:
    async def answer(channel: Channel) -> None:
        await channel.receive()
        await channel.refuse("not you", kind)

    async with peer(answer) as port:
        with pytest.raises(error, match=f"{HOST}: TCP port {port}: .* not you") as found:
            await request_qp(LOCAL, HOST, port, ASKED)
        assert type(found.value) is error


async def test_request_qp__a_wrong_answer() -> None:
    async def answer(channel: Channel) -> None:
        await channel.receive()
        await channel.send("knock", qpn=0)

    async with peer(answer) as port:
        with pytest.raises(ProtocolError, match="a wrong answer to a knock"):
            await request_qp(LOCAL, HOST, port, ASKED)


async def test_ask__says_why_the_qp_never_comes() -> None:
    answers: list[dict[str, Any]] = [{}, {"gone": "no program\nhas it"}]

    async def answer(channel: Channel) -> None:
        assert await channel.receive() == {"type": "ask", "from": 5, "to": 6}
        await channel.send("ask", **answers.pop(0))

    async with peer(answer) as port:
        await ask(LOCAL, HOST, port, PARAMETERS)
    async with peer(answer) as port:
        with pytest.raises(QpGoneError) as found:
            await ask(LOCAL, HOST, port, PARAMETERS)
        assert str(found.value) == f"{HOST}: TCP port {port}: no program\\nhas it"


async def test_resume__the_connection_stays() -> None:
    async def answer(channel: Channel) -> None:
        message = await channel.receive()
        assert (message["type"], message["from"], message["to"]) == ("resume", 5, 6)
        await channel.send("resume", **{"from": 6, "to": 5})
        await channel.send("gone")

    async with peer(answer) as port:
        channel = await resume(LOCAL, HOST, port, PARAMETERS)
        tcp = channel._writer.get_extra_info("socket")
        assert tcp.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT) == 0, "its silence is no error"
        assert (await channel.receive())["type"] == "gone"
        channel.abort()


async def test_resume__another_qp() -> None:
    async def answer(channel: Channel) -> None:
        await channel.receive()
        await channel.send("resume", **{"from": 7, "to": 5})

    async with peer(answer) as port:
        with pytest.raises(ProtocolError, match="means another QP"):
            await resume(LOCAL, HOST, port, PARAMETERS)


async def test_resume__of_a_qp_that_has_ended() -> None:
    async def answer(channel: Channel) -> None:
        await channel.receive()
        await channel.send("resume", gone=True)

    async with peer(answer) as port:
        with pytest.raises(QpGoneError, match="QP 0x6 has ended"):
            await resume(LOCAL, HOST, port, PARAMETERS)
