# SPDX-License-Identifier: Apache-2.0
"""Sessions between the processes of a group, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from endpoints import BUDGET_SECONDS, loopback_config

from mrc import ArgumentError, ConnectError, Context, MrcError, ProtocolError
from mrc.group import ADDRESS_BYTES, Address, Group
from mrc.messaging.session import Service

SERVICE = Service("test", "test", 1)
ADDRESS = Address(b"0123456789abcdef", "h1", 4791)


@pytest.fixture
async def groups() -> AsyncIterator[list[Group]]:
    """Three processes."""
    async with AsyncExitStack() as held:
        found = []
        for _ in range(3):
            context = await held.enter_async_context(Context(loopback_config()))
            group = Group(context, SERVICE, "127.0.0.1", timeout=BUDGET_SECONDS)
            found.append(await held.enter_async_context(group))
        yield found


def test_address__round_trip() -> None:
    assert len(ADDRESS.pack()) == ADDRESS_BYTES
    assert Address.unpack(ADDRESS.pack()) == ADDRESS
    assert Address.unpack(ADDRESS.pack() + b"more") == ADDRESS


def test_address__a_long_name() -> None:
    with pytest.raises(ArgumentError, match="exceeds 128 bytes"):
        replace(ADDRESS, host="x" * 129).pack()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x" * (ADDRESS_BYTES - 1), bytes(ADDRESS_BYTES), b"\xff" * ADDRESS_BYTES,
        replace(ADDRESS, port=0).pack(), replace(ADDRESS, host="a\nb").pack(),
    ],
)  # fmt: skip
def test_address__wrong_bytes(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="the address of a peer"):
        Address.unpack(data)


async def test_session__both_ways(groups: list[Group]) -> None:
    """Each two have one session, whichever of them asks first, and however often."""
    for one in groups:
        for other in groups:
            if one is not other:
                here, there = await asyncio.gather(
                    one.session(other.address), other.session(one.address)
                )
                assert here is await one.session(other.address)
                await here.mailbox.send({"type": "hello"})
                assert await there.receive() == {"type": "hello"}


async def test_session__with_itself(groups: list[Group]) -> None:
    with pytest.raises(ArgumentError, match="address of this process"):
        await groups[0].session(groups[0].address)


async def test_session__a_stranger_is_refused(groups: list[Group]) -> None:
    """An address without the right token does not connect."""
    low, high = sorted(groups[:2], key=lambda group: group.address.token)
    wrong = replace(high.address, token=b"\xff" * 16)
    with pytest.raises(ConnectError, match="belongs to another group"):
        await low.session(wrong)


async def test_session__the_peer_closes(groups: list[Group]) -> None:
    here, there = await asyncio.gather(
        groups[0].session(groups[1].address), groups[1].session(groups[0].address)
    )
    await groups[1].__aexit__(None, None, None)
    with pytest.raises(MrcError, match="closed the connection"):
        await here.receive()
    assert there.qp.closed
