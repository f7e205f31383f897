# SPDX-License-Identifier: Apache-2.0
"""QPs between the processes of a group, over loopback."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from endpoints import BUDGET_SECONDS, loopback_config
from msgspec.structs import replace

import mrc
from mrc import ArgumentError, ConnectError, ContextConfig, MrcError, ProtocolError
from mrc.config import Retries
from mrc.connect.security import Security
from mrc.engine import native
from mrc.torch.group import ADDRESS_BYTES, NOTE_BYTES, TOKEN_BYTES, Group, Member, MemberAddress

SLOT_BYTES = 8192  # of an inbox of messages
ADDRESS = MemberAddress(b"0123456789abcdef", "h1", 4791, b"of 8 has")


@asynccontextmanager
async def grouped(
    *configs: ContextConfig, versions: Sequence[int] = (1, 1, 1), **options: Any
) -> AsyncIterator[list[Group]]:
    """A process for each of these."""
    async with asyncio.timeout(BUDGET_SECONDS), AsyncExitStack() as held:
        found = []
        for config, version in zip(configs, versions, strict=False):
            context = await held.enter_async_context(mrc.open(config))
            group = Group(context, "test", "127.0.0.1", version=version, **options)
            found.append(await held.enter_async_context(group))
        yield found


@pytest.fixture
async def groups() -> AsyncIterator[list[Group]]:
    """Three processes."""
    async with grouped(*[loopback_config()] * 3, timeout=BUDGET_SECONDS) as found:
        yield found


async def joined(groups: list[Group]) -> tuple[Member, Member]:
    """Each of the first two as the other one has it."""
    one, other = groups[:2]
    return await asyncio.gather(one.member(other.address), other.member(one.address))


def test_address__round_trip() -> None:
    assert len(ADDRESS.pack()) == ADDRESS_BYTES
    assert MemberAddress.unpack(ADDRESS.pack()) == ADDRESS
    assert MemberAddress.unpack(ADDRESS.pack() + b"more") == ADDRESS


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
        MemberAddress.unpack(data)


async def test_member__both_ways(groups: list[Group]) -> None:
    """Each two have one QP, whichever of them asks first, and however often."""
    for one in groups:
        for other in groups:
            if one is not other:
                here, there = await asyncio.gather(
                    one.member(other.address), other.member(one.address)
                )
                assert here is await one.member(other.address)
                assert here.qp.mpr == there.qp.mpr
                assert here.qp.message_peer >= 0
    assert len({(await groups[0].member(other.address)).qp.qpn for other in groups[1:]}) == 2


async def test_member__both_are_told_why_one_cannot_connect() -> None:
    """The one that waits does not wait for the time limit."""
    configs = [loopback_config(version) for version in (4, 6)]
    async with grouped(*configs, timeout=10 * BUDGET_SECONDS) as groups:
        here, there = await asyncio.gather(
            groups[0].member(groups[1].address),
            groups[1].member(groups[0].address),
            return_exceptions=True,
        )
    for error in (here, there):
        assert isinstance(error, MrcError) and "no IP version in common" in str(error)


async def test_member__itself(groups: list[Group]) -> None:
    with pytest.raises(ArgumentError, match="address of this process"):
        await groups[0].member(groups[0].address)


async def test_member__a_stranger_is_refused(groups: list[Group]) -> None:
    """An address without the right token does not connect, and the next attempt is a new one."""
    low, high = sorted(groups[:2], key=lambda group: group.address.token)
    wrong = replace(high.address, token=b"\xff" * 16)
    for _ in range(2):
        with pytest.raises(ConnectError, match="belongs to another group"):
            await low.member(wrong)


async def test_member__another_version_is_refused() -> None:
    async with grouped(*[loopback_config()] * 2, versions=(1, 2)) as groups:
        low, high = sorted(groups, key=lambda group: group.address.token)
        with pytest.raises(ConnectError, match="install the same mrc"):
            await low.member(high.address)


@pytest.mark.parametrize(
    ("secrets", "told"),
    [
        ((b"", b"1"), ("has a secret and this process has none", "has no secret and this process")),
        ((b"1", b"2"), ("has another secret than this process",) * 2),
    ],
)
async def test_member__with_another_secret(
    secrets: tuple[bytes, bytes], told: tuple[str, str]
) -> None:
    """Both processes tell it at once, whichever of them would have connected."""
    configs = [
        loopback_config(security=Security(secret=secret * 32) if secret else None)
        for secret in secrets
    ]
    async with grouped(*configs, remedy="set MRC_SECRET") as groups:
        for one, other, text in zip(groups, reversed(groups), told, strict=True):
            with pytest.raises(ConnectError, match=f"127.0.0.1 {text}.*: set MRC_SECRET"):
                await one.member(other.address)


async def test_member__with_the_same_secret() -> None:
    config = loopback_config(security=Security(secret=b"1" * 32))
    async with grouped(config, config) as groups:
        assert b"1" * 8 not in groups[0].address.pack()
        found, _ = await joined(groups)
        assert found.qp.peer.identity == "secret"


async def test_member__that_closes_has_not_died(groups: list[Group]) -> None:
    here, there = await joined(groups)
    await groups[1].__aexit__(None, None, None)
    ended = await here.ended
    assert not ended.died
    assert "closed the connection" in str(ended.error)
    assert there.qp.closed


async def test_member__that_has_closed_before_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it delivered was lost: the process connected anew, to one that was no more."""
    tokens = [b"\xff" * TOKEN_BYTES, bytes(TOKEN_BYTES)]  # the second one connects
    drawn = SimpleNamespace(
        token_bytes=lambda count: tokens.pop(0), compare_digest=secrets.compare_digest
    )
    monkeypatch.setattr("mrc.torch.group.secrets", drawn)
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config()) as one,
        mrc.open(loopback_config()) as two,
        Group(two, "test", "127.0.0.1", version=1) as there,
        two.messages(1) as received,
    ):
        async with Group(one, "test", "127.0.0.1", version=1) as here, one.messages(1) as sent:
            to = await here.member(there.address)
            for text in (b"one", b"two"):
                await sent.send(to.qp, text)
            address = here.address
        for text in (b"one", b"two"):
            member = await there.member(address)
            assert not (await member.ended).died
            buffer = bytearray(3)
            await received.recv(buffer, member.qp)
            assert buffer == text


async def test_tell__a_note_arrives_before_the_end() -> None:
    config, notes = loopback_config(), list[tuple[Member, bytes]]()
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(config) as one,
        mrc.open(config) as two,
        Group(
            two, "test", "127.0.0.1", version=1,
            on_note=lambda member, note: notes.append((member, note)),
        ) as there,
    ):  # fmt: skip
        async with Group(one, "test", "127.0.0.1", version=1) as here:
            to, back = await asyncio.gather(here.member(there.address), there.member(here.address))
            here.tell(to, b"one")
            here.tell(to, bytes(NOTE_BYTES))
        assert not (await back.ended).died
        assert notes == [(back, b"one"), (back, bytes(NOTE_BYTES))]


async def test_member__that_breaks_the_protocol(
    groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames go to a wrong slot. Both ends say what happened."""
    new_struct = native.new_struct

    def moved(name: str, **fields: Any) -> Any:
        wrong = {"address": fields["address"] + SLOT_BYTES} if name == "mrc_msg_inbox" else {}
        return new_struct(name, **fields | wrong)

    monkeypatch.setattr(native, "new_struct", moved)
    here, there = await joined(groups)
    told = [str((await member.ended).error) for member in (here, there)]
    assert any(text.startswith("messages with ") for text in told), told  # by who noticed first
    assert all("the peer broke the protocol of messages" in text for text in told), told


async def test_member__that_aborts_has_died(groups: list[Group]) -> None:
    here, there = await joined(groups)
    await there.qp.abort()
    assert (await here.ended).died


async def test_member__without_paths_and_without_traffic() -> None:
    """Nobody sends anything: the group notices by itself that all paths are lost."""
    config = loopback_config(
        retries=Retries(ack_timeout_exponent=14, linear=4, exponential=0)
    )  # gives up after 84 ms
    async with grouped(config, config, beat_seconds=0.02) as groups:
        here, there = await joined(groups)
        await here.qp.deny("*")
        ended = await here.ended
        assert ended.died and f"all paths to {here.qp.peer.host} are lost" in str(ended.error)
        assert (await there.ended).died
