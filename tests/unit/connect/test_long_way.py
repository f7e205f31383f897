# SPDX-License-Identifier: Apache-2.0
"""Exchanges over a TCP connection with a long round trip; codes of attempts that did not end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from slowness import PATIENCE

import mrc
from mrc import Timeouts
from mrc.connect import connect as connecting_side
from mrc.connect.oob import Channel
from mrc.errors import ConnectError, ConnectTimeoutError, PeerGoneError
from mrc.tasks import cancelled
from mrc.trust.identity import load
from mrc.trust.security import Security

CODE = "maple-rocket-cider"
LOCAL = "127.0.0.1"
CONFIG = mrc.ContextConfig(interfaces=("lo",))


class Way:
    """A relay that delivers each byte `delay` seconds later, and nothing after `most` bytes."""

    def __init__(self, port: int, delay: float, most: int) -> None:
        self._port, self._delay, self._most = port, delay, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def close(self) -> None:
        await cancelled(*self._tasks)
        for writer in self._writers:
            writer.transport.abort()

    async def on_peer(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(LOCAL, self._port)
        self._writers += [back, forth]
        for source, to, most in ((near, forth, 1 << 30), (far, back, self._most)):
            task = asyncio.create_task(self._carry(source, to, most))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, most: int
    ) -> None:
        later = asyncio.get_running_loop().call_later
        while data := await source.read(1 << 16):
            later(self._delay, to.write, data[: max(0, most)])
            most -= len(data)
        later(self._delay, to.close)


@contextlib.asynccontextmanager
async def way(port: int, delay: float, most: int = 1 << 30) -> AsyncIterator[int]:
    """The port at which the way to `port` begins."""
    made = Way(port, delay, most)
    server = await asyncio.start_server(made.on_peer, LOCAL, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await made.close()


@pytest.fixture
def listening(tmp_path: Path) -> mrc.ContextConfig:
    security = Security(code=CODE, identity=load(tmp_path / "b.pem").path)
    return dataclasses.replace(CONFIG, security=security)


def connecting(code: str = CODE) -> mrc.ContextConfig:
    return dataclasses.replace(CONFIG, security=Security(code=code))


async def test_connect__a_silent_peer_gains_nothing_by_a_long_way(
    listening: mrc.ContextConfig,
) -> None:
    there = dataclasses.replace(listening, timeouts=Timeouts(hello=0.2))
    async with (
        asyncio.timeout(PATIENCE),
        mrc.Context(there) as other,
        other.listen(LOCAL, 0) as listener,
        way(listener.port, 0.1) as port,
    ):
        reader, writer = await asyncio.open_connection(LOCAL, port)
        assert b"did not finish within 0.2 s" in await reader.read()
        writer.close()


async def test_code__is_still_good_after_an_attempt_that_was_too_slow(
    listening: mrc.ContextConfig,
) -> None:
    """The peer gives up before this side has shown anything by which a guess can be checked."""
    async with (
        asyncio.timeout(PATIENCE),
        mrc.Context(listening) as other,
        other.listen(LOCAL, 0) as listener,
        mrc.Context(connecting()) as one,
    ):
        async with way(listener.port, 0.0, most=200) as port:  # until TLS
            with pytest.raises(ConnectTimeoutError):
                await one.connect(LOCAL, port, timeout=0.5)
        async with one.connect(LOCAL, listener.port) as near, await listener.accept():
            assert near.peer_identity == "code"


async def test_code__an_end_after_the_guess_is_not_called_wrong(
    listening: mrc.ContextConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener has answered the guess, so the code is used; but it was not wrong. The next
    attempt says so too.
    """
    send = Channel.send

    async def ends(channel: Channel, message: str, /, **fields: str) -> None:
        if message == "confirm":
            channel.abort()
            raise PeerGoneError("the way has ended")
        await send(channel, message, **fields)

    monkeypatch.setattr(Channel, "send", ends)
    monkeypatch.setattr(connecting_side, "_DROPS", 0)
    async with (
        asyncio.timeout(PATIENCE),
        mrc.Context(listening) as other,
        other.listen(LOCAL, 0) as listener,
        mrc.Context(connecting()) as one,
    ):
        with pytest.raises(PeerGoneError):
            await one.connect(LOCAL, listener.port)
        lost = "the code was used, but the exchange did not finish"
        assert lost in await other._code_failed()
        with pytest.raises(ConnectError, match=lost):
            await one.connect(LOCAL, listener.port)
    assert not any("wrong" in message for message in caplog.messages)
