# SPDX-License-Identifier: Apache-2.0
"""TLS over the streams of a connection, with both ends on loopback."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from authority import A, B, TestAuthority

from mrc.connect import tls
from mrc.connect.tls import TlsStream
from mrc.trust.identity import load
from mrc.trust.security import Authority

Ends = tuple[TlsStream, TlsStream]


@asynccontextmanager
async def ends(client: ssl.SSLContext, server: ssl.SSLContext) -> AsyncIterator[Ends]:
    """Both ends of a connection, before they start."""
    arrived: asyncio.Future[TlsStream] = asyncio.get_running_loop().create_future()

    def on_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result(TlsStream(reader, writer, server, None))

    listening = await asyncio.start_server(on_peer, "127.0.0.1", 0, limit=4096)
    streams = await asyncio.open_connection(*listening.sockets[0].getsockname())
    one = TlsStream(*streams, client, "host")
    try:
        yield one, await arrived
    finally:
        one.transport.abort()
        (await arrived).transport.abort()
        listening.close()


@pytest.fixture
async def met(tmp_path: Path) -> AsyncIterator[Ends]:
    identity = load(tmp_path / "id.pem")
    async with ends(
        tls.client_context(None).context(), tls.server_context(identity, None).context()
    ) as both:
        await asyncio.gather(*(end.start() for end in both))
        yield both


async def test_readexactly__gets_what_the_other_side_writes(met: Ends) -> None:
    data = os.urandom(1 << 20)  # many records, and more than the buffers below

    async def write() -> None:
        met[0].write(data)
        await met[0].drain()

    _, got = await asyncio.gather(write(), met[1].readexactly(len(data)))
    assert got == data


def test_close__of_a_connection_that_is_gone(tmp_path: Path) -> None:
    """With uvloop, as in the commands: a closed transport refuses what is written to it."""
    identity = load(tmp_path / "id.pem")

    async def run() -> None:
        async with ends(
            tls.client_context(None).context(), tls.server_context(identity, None).context()
        ) as both:
            await asyncio.gather(*(end.start() for end in both))
            one, other = both
            other.transport.abort()
            assert await one.read(1) == b""
            one.transport.abort()
            await asyncio.sleep(0)
            one.write_eof()
            one.close()
            with pytest.raises(ConnectionError):
                await one.drain()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_read__at_the_end(met: Ends) -> None:
    one, other = met
    one.write(b"last")
    one.close()
    assert await other.read(100) == b"last"
    assert await other.read(100) == b""
    with pytest.raises(asyncio.IncompleteReadError):
        await other.readexactly(1)


async def test_read__of_a_connection_that_is_cut(met: Ends) -> None:
    one, other = met
    one._writer.write_eof()
    assert await other.read(100) == b""


async def test_start__of_a_connection_that_ends(tmp_path: Path) -> None:
    server = tls.server_context(load(tmp_path / "id.pem"), None).context()
    async with ends(tls.client_context(None).context(), server) as (one, other):
        other._writer.close()
        with pytest.raises(ConnectionError):
            await one.start()


@pytest.mark.parametrize("alert", [b"", bytes.fromhex("15 0303 0002 0100")], ids=["", "alert"])
async def test_write_eof__before_tls_has_begun(tmp_path: Path, alert: bytes) -> None:
    """A host that refuses its peer then says all that it has to say; the peer must not wait.

    Some versions of OpenSSL send a close_notify alert even then.
    """
    server = tls.server_context(load(tmp_path / "id.pem"), None).context()
    async with ends(tls.client_context(None).context(), server) as (one, other):
        other._writer.write(alert)
        other.write_eof()
        with pytest.raises(ConnectionError):
            await one.start()


async def test_read__after_write_eof(met: Ends) -> None:
    one, other = met
    one.write_eof()
    assert await other.read(100) == b""
    other.write(b"last")
    other.close()
    assert await one.read(100) == b"last"
    assert await one.read(100) == b""
    with pytest.raises(asyncio.IncompleteReadError):
        await one.readexactly(1)


async def outcomes(one: Authority, other: Authority) -> list[str]:
    """What each side says of the start, or of the first read after it."""

    async def side(end: TlsStream) -> str:
        try:
            await end.start()
            await end.read(1)
        except ssl.SSLError as error:
            return str(tls.explain(error, "host"))
        return ""

    context, listens = tls.client_context(one).context(), tls.server_context(None, other).context()
    async with ends(context, listens) as both:
        return list(await asyncio.gather(*map(side, both)))


async def test_start__tells_the_peer_why_its_certificate_is_refused(tmp_path: Path) -> None:
    ca, strange = TestAuthority(tmp_path), TestAuthority(tmp_path, "strange")
    good, late = ca.issue(A), ca.issue(B, file="late", begins=-3, ends=-2)
    said = await outcomes(late, good)
    assert "that this host's certificate has expired" in said[0]
    assert "its certificate has expired" in said[1]
    said = await outcomes(good, late)
    assert "its certificate has expired" in said[0]
    assert "that this host's certificate has expired" in said[1]
    said = await outcomes(strange.issue(A, file="stranger"), good)
    assert "not of this host's authority" in said[0]
    assert "does not know this host's authority" in said[1]
