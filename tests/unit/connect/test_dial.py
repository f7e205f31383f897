# SPDX-License-Identifier: Apache-2.0
"""Dialling a name that has several addresses, some of which do not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from unittest.mock import Mock

import pytest
from slowness import PATIENCE

from mrc.connect import dial as dialling
from mrc.connect.dial import dial, numeric
from mrc.errors import ConnectError, MrcError, ResolveError
from mrc.fabric.hostconfig import HostConfig, HostPeer, PathSource

SILENT = "127.0.0.66"  # a listener there accepts no more connections
REFUSING = "127.0.0.67"
ANSWERING = "127.0.0.68"
ELSEWHERE = "192.0.2.1"  # no address of this host


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A TCP port with a listener at ANSWERING, a full one at SILENT and none at REFUSING."""
    monkeypatch.setattr(dialling, "_HEAD_START_SECONDS", 0.05)
    with (
        socket.create_server((ANSWERING, 0)) as answering,
        socket.create_server((SILENT, port := answering.getsockname()[1]), backlog=0),
        socket.create_connection((SILENT, port)),
    ):
        yield port


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def found(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", (address, 0)) for address in addresses for _ in range(2)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (("192.0.2.1", 80), "192.0.2.1"),
        (("fd00::1", 80, 0, 0), "fd00::1"),
        (("fe80::1", 80, 0, 2), "fe80::1%2"),
    ],
)
def test_numeric(found: tuple[str | int, ...], address: str) -> None:
    assert numeric(found) == address


async def test_dial__of_two_connections_that_come_together_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialling, "_HEAD_START_SECONDS", 0)
    both, writers = asyncio.Event(), [Mock(), Mock()]
    left = list(writers)

    async def connection(*_: object, **__: object) -> tuple[Mock, Mock]:
        writer = left.pop(0)
        if not left:
            both.set()
        await both.wait()
        return Mock(), writer

    monkeypatch.setattr(asyncio, "open_connection", connection)
    _, chosen = await dialling._first([(ANSWERING, None), (SILENT, None)], 80)
    assert [writer.close.call_count for writer in writers] == [
        int(writer is not chosen) for writer in writers
    ]


@pytest.mark.parametrize(
    ("host", "name"), [("h1", "192.0.2.1"), ("h0", "localhost"), ("elsewhere", "elsewhere")]
)
async def test_dial__a_host_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    asked = []

    async def found(name: str, *_: object, **__: object) -> list[object]:
        asked.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    peers = {"h1": HostPeer(name="h1", oob="192.0.2.1")}
    config = HostConfig(host="h0", source=PathSource.INTERFACES, peers=peers)
    with pytest.raises(ResolveError, match=f"{host}: no such host: unknown"):
        await dial(config, host, 1)
    assert asked == [name]


@pytest.mark.parametrize(
    "addresses",
    [
        (ANSWERING,),
        (ANSWERING, SILENT),
        (SILENT, ANSWERING),
        (REFUSING, SILENT, SILENT, ANSWERING),
        (SILENT, REFUSING, ANSWERING),
    ],
)
async def test_dial__the_first_address_that_answers(
    port: int, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    resolve_to(monkeypatch, *addresses)
    async with asyncio.timeout(PATIENCE):
        channel = await dial(None, "h1", port)
    assert (channel.remote, channel.called) == (ANSWERING, "h1")
    channel.abort()


async def test_dial__no_address_answers(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, REFUSING, "127.0.0.69")
    with pytest.raises(ConnectError, match=f"h1: no program listens on TCP port {port}"):
        await dial(None, "h1", port)


@pytest.mark.parametrize(("source", "seen"), [("127.0.0.9", "127.0.0.9"), (ELSEWHERE, "127.0.0.1")])
async def test_dial__from_an_address_that_leads_there(source: str, seen: str) -> None:
    """Otherwise from any."""
    callers: list[str] = []

    def on_peer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer.get_extra_info("peername")[0])
        writer.close()

    server = await asyncio.start_server(on_peer, "127.0.0.1", 0)
    async with asyncio.timeout(PATIENCE), server:
        port = server.sockets[0].getsockname()[1]
        channel = await dial(None, "127.0.0.1", port, ip_address(source))
        with pytest.raises(MrcError):
            await channel.receive()
        channel.abort()
    assert callers == [seen]


async def test_dial__keeps_the_zone_of_a_link_local_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's getaddrinfo removes it from the text of the address."""
    dialled: list[str] = []

    async def found(*_: object, **__: object) -> list[object]:
        return [(10, 1, 6, "", ("fe80::1", 0, 0, 3)), (10, 1, 6, "", ("fd00::1", 0, 0, 0))]

    async def refuse(host: str, port: int, **_: object) -> None:
        dialled.append(host)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(ConnectError):
        await dial(None, "fe80::1%eth2", 4791)
    assert dialled == ["fe80::1%3", "fd00::1"]
