# SPDX-License-Identifier: Apache-2.0
"""What an error of a connect says beside its cause."""

from __future__ import annotations

import asyncio

import pytest
from endpoints import loopback_config
from slowness import PATIENCE

from mrc import Context
from mrc.agent.end import ProgramEndedError
from mrc.aio.connecting import about
from mrc.errors import BusyError, ConnectRefusedError, Kind, MrcError, PathError, ProtocolError
from mrc.exchange.findings import NoAnswerError, no_answer
from mrc.tasks import cancelled

SILENT = no_answer("h1", ["10.0.0.1"], 4800)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            SILENT,
            f"{SILENT} TCP port 7000 of h1 answers: open both ports in the firewalls of both hosts;"
            " NAT (a masquerade) between them requires a VPN",
        ),
        (ProtocolError("the peer sent rubbish"), "h1: TCP port 7000: the peer sent rubbish"),
        (BusyError("full"), "h1: TCP port 7000: full"),
        (PathError("plane 1 to h1: the MTU is too small"), "plane 1 to h1: the MTU is too small"),
    ],
)
def test_about(error: MrcError, text: str) -> None:
    with pytest.raises(type(error)) as told, about("h1", 7000):
        raise error
    assert str(told.value) == text
    assert type(told.value) is type(error)


async def test_connect__a_refusal_keeps_its_reason_and_kind() -> None:
    def admit(_: object) -> None:
        raise NoAnswerError("not you")

    async with (
        asyncio.timeout(PATIENCE),
        Context(loopback_config()) as context,
        context.listen("127.0.0.1", 0, admit=admit) as listener,
    ):
        with pytest.raises(ConnectRefusedError, match="the peer refused: not you") as refused:
            await context.connect("127.0.0.1", listener.port)
    assert (refused.value.reason, refused.value.kind) == ("not you", Kind.NO_ANSWER)


async def test_connect__that_is_cancelled_tells_the_peer_why() -> None:
    """An agent cancels the connects of a program that has ended."""
    heard = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = b""
        while not said.endswith(b"}") or b'"refuse"' not in said:
            said += await reader.read(1 << 16)
            dialled.set()
        heard.set_result(said)
        writer.close()

    dialled = asyncio.Event()
    async with (
        asyncio.timeout(PATIENCE),
        await asyncio.start_server(listen, "127.0.0.1", 0) as server,
        Context(loopback_config()) as context,
    ):
        port = server.sockets[0].getsockname()[1]
        dialling = asyncio.ensure_future(context.connect("127.0.0.1", port))
        await dialled.wait()
        await cancelled(dialling, why=ProgramEndedError("the program has ended"))
        said = await heard
        assert b'"the program has ended"' in said and b'"kind":"ended"' in said
