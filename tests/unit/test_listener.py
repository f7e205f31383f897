# SPDX-License-Identifier: Apache-2.0
"""The listening side against strangers: garbage, wrong versions, slow and silent peers."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from endpoints import BUDGET_SECONDS, loopback_config

from mrc import ConnectError, Context, InUseError, Listener, ResolveError, oob
from mrc.oob import MAX_FRAME, encode_frame


@asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[tuple[Context, Listener]]:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config(**options)) as context,
        await context.listen("127.0.0.1", 0) as listener,
    ):
        yield context, listener


async def answer_to(listener: Listener, *pieces: bytes, end: bool = False) -> dict[str, Any] | None:
    """Sends bytes as a stranger and returns the last message that comes back, if one does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        for piece in pieces:
            writer.write(piece)
        if end:
            writer.write_eof()
        received = await reader.read()
    except ConnectionError:
        return None
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass
    messages = []
    while received:
        (length,) = struct.unpack(">I", received[:4])
        messages.append(json.loads(received[4 : 4 + length]))
        received = received[4 + length :]
    return messages[-1] if messages else None


def hello(**changes: Any) -> bytes:
    attributes = {
        "qpn": 77,
        "first_psn": 1,
        "path_mtu": 1024,
        "mpr": 1024,
        "max_wimm": 128,
        "integrity": "icrc",
        "udp_port": 4791,
        "ports": [
            {"nic": "lo", "address": "127.0.0.1/8", "source_ports": [9], "mtu": 1024},
        ],
    }
    message = {
        "type": "hello",
        "version": oob.VERSION,
        "host": "stranger",
        "private": {},
        "attributes": attributes,
    }
    return encode_frame({**message, **changes})


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak"),
        (struct.pack(">I", MAX_FRAME + 1) + b"x", "does not speak"),
        (struct.pack(">I", 4) + b"null", "no message type"),
        (struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff", "no JSON"),
        (encode_frame({"type": "rtr"}), "'rtr' instead of 'hello'"),
        (encode_frame({"type": "a\x1b[2Jb"}), "'a?[2Jb' instead of 'hello'"),
        (hello(version=2), "speaks version 2 of the exchange, this host version 1"),
        (hello(attributes={}), "wrong attributes"),
        (hello(host=None), "wrong hello.host"),
        (hello() + encode_frame({"type": "proved"}), "'proved' instead of 'rtr'"),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_admit__a_stranger_is_told_why(bytes_sent: bytes, reason: str) -> None:
    async with listening() as (context, listener):
        message = await answer_to(listener, bytes_sent)
        assert message is not None
        assert message["type"] == "refuse"
        assert reason in message["reason"]
        async with (
            await context.connect("127.0.0.1", listener.port) as near,
            await listener.accept() as far,
        ):
            await near.write_imm(1)
            assert (await anext(far.immediates())).imm == 1


async def test_admit__any_garbage_ends_in_bounded_time() -> None:
    junk = random.Random(11)
    async with listening(exchange_timeout=0.2) as (context, listener):
        await asyncio.gather(
            *(answer_to(listener, junk.randbytes(junk.randrange(200))) for _ in range(32))
        )
        async with await context.connect("127.0.0.1", listener.port), await listener.accept():
            pass


async def test_admit__a_peer_that_ends_in_the_middle() -> None:
    async with listening() as (_, listener):
        for size in (0, 2, 4, 10, len(hello()) - 1):
            assert await answer_to(listener, hello()[:size], end=True) is None


async def test_admit__a_slow_peer_gets_no_more_than_its_time() -> None:
    async with listening(exchange_timeout=0.1) as (_, listener):
        message = await answer_to(listener, hello()[:10])
        assert message is not None
        assert message["reason"] == "not done within 0.1 s"


async def test_admit__no_path_leads_back_to_the_peer() -> None:
    async with listening(exchange_timeout=0.1) as (_, listener):
        message = await answer_to(listener, hello(), encode_frame({"type": "rtr"}))
        assert message is not None
        assert message["type"] == "refuse"


async def test_admit__no_more_than_so_many_at_a_time() -> None:
    async with listening(exchange_timeout=0.5, max_pending=2) as (context, listener):
        silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        message = await answer_to(listener)
        assert message is not None
        assert "too many peers" in message["reason"]
        for reader, writer in silent:
            await reader.read()  # until its time is over
            writer.close()
            await writer.wait_closed()
        async with await context.connect("127.0.0.1", listener.port), await listener.accept():
            pass


async def test_admit__qps_that_nobody_accepts_count_too() -> None:
    async with listening(max_pending=2) as (context, listener):
        for _ in range(2):
            await context.connect("127.0.0.1", listener.port)
        with pytest.raises(ConnectError, match="the peer refused: too many peers"):
            await context.connect("127.0.0.1", listener.port)
        await listener.accept()
        await context.connect("127.0.0.1", listener.port)


async def test_listen__a_port_that_is_taken() -> None:
    async with listening() as (context, listener):
        with pytest.raises(InUseError, match=f"TCP port {listener.port} is taken"):
            await context.listen("127.0.0.1", listener.port)


async def test_listen__an_address_that_cannot_be() -> None:
    async with Context(loopback_config()) as context:
        with pytest.raises(ResolveError, match=r"no-such-host\.invalid"):
            await context.listen("no-such-host.invalid", 0)


async def test_listen__on_every_address_of_both_versions() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as context,
        await context.listen(None, 0) as listener,
    ):
        for host in ("127.0.0.1", "::1", "localhost"):
            async with await context.connect(host, listener.port), await listener.accept():
                pass


async def test_listen__private_data_goes_to_whoever_connects() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config(name="far")) as context,
        await context.listen("127.0.0.1", 0, private={"service": "files"}) as listener,
        await context.connect("127.0.0.1", listener.port, private={"n": 1}) as near,
        await listener.accept() as far,
    ):
        assert (near.private, far.private) == ({"service": "files"}, {"n": 1})
        assert near.peer_host == far.peer_host == "far"


async def test_listener__iterates_until_it_is_closed() -> None:
    async with listening() as (context, listener):
        seen = []
        for _ in range(3):
            await context.connect("127.0.0.1", listener.port)
        async for qp in listener:
            seen.append(qp)
            if len(seen) == 3:
                await listener.close()
        assert len({qp.qpn for qp in seen}) == 3


async def test_close__an_exchange_under_way_is_dropped() -> None:
    async with listening() as (_, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(hello())
        await reader.readexactly(4)  # the answer begins: the exchange is under way
        await listener.close()
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass
