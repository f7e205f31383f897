# SPDX-License-Identifier: Apache-2.0
"""What an error of a connect says beside its cause."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from endpoints import loopback_config
from slowness import PATIENCE

from mrc import Context
from mrc.aio import connecting
from mrc.aio.connecting import about
from mrc.connect.oob import CutOffError
from mrc.connect.proof import NoAnswerError, no_answer
from mrc.errors import (
    BusyError,
    ConnectRefusedError,
    ConnectTimeoutError,
    Kind,
    MrcError,
    PathError,
    PeerGoneError,
    ProtocolError,
)
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


async def test_connect__to_a_busy_peer__pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that many hosts that connect at once leave the peer time to serve some."""
    pauses: list[tuple[float, float]] = []

    def uniform(least: float, most: float) -> float:
        pauses.append((least, most))
        return 0.0

    end = object()
    local: Any = Mock(guard=None, rng=Mock(uniform=uniform), srv6=Mock(peers={}))
    answers = [*(BusyError("full") for _ in range(5)), end]
    monkeypatch.setattr(connecting, "dial", AsyncMock(return_value=Mock(watchers=[])))
    monkeypatch.setattr(connecting, "establish", AsyncMock(side_effect=answers))
    assert await connecting.connect(local, Mock(), "h1", 7000, timeout=PATIENCE) is end
    assert pauses == [(most / 2, most) for most in (0.05, 0.1, 0.2, 0.4, 0.4)]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([BusyError("full")], BusyError),
        ([PeerGoneError("dropped")], PeerGoneError),
        ([BusyError("full"), CutOffError("silent")], ConnectTimeoutError),
    ],
)
async def test_connect__the_last_answer_before_the_time_limit_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, answers: list[MrcError], error: type[MrcError]
) -> None:
    silent = asyncio.get_running_loop().create_future()
    local: Any = Mock(guard=None, rng=Mock(uniform=lambda *_: 0.0), srv6=Mock(peers={}))
    left = list(answers)

    async def dial(*_: object) -> Mock:
        return Mock(watchers=[], received_bytes=0) if left else await silent

    async def establish(*_: object, **__: object) -> None:
        raise left.pop(0)

    monkeypatch.setattr(connecting, "dial", dial)
    monkeypatch.setattr(connecting, "establish", establish)
    with pytest.raises(error) as raised:
        await connecting.connect(local, Mock(), "h1", 7000, timeout=0.05)
    assert type(raised.value) is error


class ProgramEndedError(MrcError):
    """For which an agent cancels the connects of a program."""

    kind = Kind.ENDED


async def test_connect__that_is_cancelled_tells_the_peer_why() -> None:
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
