# SPDX-License-Identifier: Apache-2.0
"""Messages between two Contexts over loopback: sends and receives with tags."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import Mock

import pytest
from endpoints import (
    BUDGET_SECONDS,
    LOOPBACK,
    connected_pair,
    loopback_config,
    spawn,
    two_planes,
    until,
)

import mrc
from mrc.aio import qp as qp_module
from mrc.config import Sockets, Timeouts
from mrc.connect.oob import Inbox
from mrc.engine.dispatch import Dispatcher
from mrc.engine.native import lib
from mrc.errors import ArgumentError, ConnectError, InUseError, PeerGoneError, StateError
from mrc.messages.messages import MessagePeer, Messages

SIZES = [0, 1, 4096, 4097, 100_000, (3 << 20) + 5]


@dataclass(frozen=True)
class Talk:
    """Both ends of a QP for messages, and their spaces."""

    near: Messages
    far: Messages
    to_far: mrc.QP
    to_near: mrc.QP

    async def exchange(self, data: bytes, tag: int) -> bytes:
        """Sends from near to far."""
        room = bytearray(len(data))
        _, got = await asyncio.gather(
            self.near.send(self.to_far, data, tag=tag), self.far.recv(room, self.to_near, tag=tag)
        )
        assert got.bytes == len(data) and got.tag == tag and got.qp is self.to_near
        return bytes(room)


@asynccontextmanager
async def talking(**options: Any) -> AsyncIterator[Talk]:
    config = loopback_config(**options)
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(config) as near,
        mrc.open(config) as far,
        far.listen(LOOPBACK[4], 0, messages=True) as listener,
        near.connect(LOOPBACK[4], listener.port, messages=True) as to_far,
        listener.accept() as to_near,
        near.messages() as out,
        far.messages() as back,
    ):
        yield Talk(out, back, to_far, to_near)


def space(of: Messages, number: int) -> mrc.Opening[Messages]:
    """Another one of the same Context."""
    return mrc.Opening(Messages(of._dispatcher, of._qp_of, number)._open())


async def settle(qp: mrc.QP) -> None:
    """Returns when everything that this end said has arrived."""
    assert qp._messages is not None
    await qp._messages.until_idle()


async def test_recv__by_mask_from_any_peer_in_order() -> None:
    async with talking(**two_planes()) as talk:
        for number in range(40):
            await talk.near.send(talk.to_far, bytes([number]), tag=0x100 + number)
        room = bytearray(1)
        assert (await talk.far.recv(room, tag=0x107)).tag == 0x107
        rest = []
        for _ in range(39):
            got = await talk.far.recv(room, tag=0, ignore=0xFFF)
            assert got.tag == 0x100 + room[0]
            rest.append(room[0])
        assert rest == [number for number in range(40) if number != 7]


@pytest.mark.parametrize("polled", [False, True])
async def test_send__many_of_all_sizes_both_ways(polled: bool) -> None:
    async with talking(sockets=Sockets(polled=polled), **two_planes()) as talk:
        datas = [os.urandom(size) for size in (*SIZES[:5] * 30, SIZES[5])]
        rooms = [bytearray(len(data)) for data in datas]
        back = [bytearray(len(data)) for data in datas]
        await asyncio.gather(
            *(talk.near.send(talk.to_far, data, tag=1) for data in datas),
            *(talk.far.send(talk.to_near, data, tag=1) for data in datas),
            *(talk.far.recv(room, talk.to_near, tag=1) for room in rooms),
            *(talk.near.recv(room, talk.to_far, tag=1, exact=True) for room in back),
        )
        assert list(map(bytes, rooms)) == datas
        assert list(map(bytes, back)) == datas


async def test_spaces__never_meet() -> None:
    async with talking() as talk, space(talk.near, 5) as one:
        async with space(talk.far, 5) as other:
            await one.send(talk.to_far, b"five")
            await talk.near.send(talk.to_far, b"zero")
            room = bytearray(4)
            await talk.far.recv(room)
            assert room == b"zero"
            await other.recv(room)
            assert room == b"five"
        with pytest.raises(InUseError):
            await space(talk.near, 0)


async def test_recv__too_little_room() -> None:
    async with talking() as talk:
        for size in (100, 100_000):
            sent = asyncio.create_task(talk.near.send(talk.to_far, bytes(size)))
            with pytest.raises(ArgumentError, match="longer than the buffer"):
                await talk.far.recv(bytearray(size - 1), talk.to_near)
            if size == 100:
                await sent
            else:
                with pytest.raises(ArgumentError, match="longer than the buffer"):
                    await sent
        assert await talk.exchange(b"and on", 3) == b"and on"


@pytest.mark.parametrize("exact", [False, True])
async def test_cancel__leaves_the_buffer_alone(exact: bool) -> None:
    async with talking() as talk:
        room = bytearray(100_000)
        waiting = asyncio.create_task(talk.far.recv(room, talk.to_near, tag=1, exact=exact))
        await asyncio.sleep(0)
        await settle(talk.to_near)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # What was said before this message has been read before it: near knows of the cancel.
        await asyncio.gather(
            talk.far.send(talk.to_near, b"", tag=2),
            talk.near.recv(bytearray(), talk.to_far, tag=2),
        )
        data = os.urandom(len(room))
        assert await talk.exchange(data, 1) == data
        assert room == bytes(len(room))


async def test_exit__that_is_cancelled_closes_the_space_all_the_same() -> None:
    async with talking() as talk, asyncio.timeout(BUDGET_SECONDS):
        messages = await space(talk.far, 7)
        waiting = spawn(messages.recv(bytearray(1), talk.to_near, tag=1))
        await asyncio.sleep(0)
        leaving = spawn(messages.close())
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        with pytest.raises(StateError, match="messages: "):
            await messages.recv(bytearray(1), talk.to_near, tag=1)
        with pytest.raises(StateError):
            await waiting

        async def closed() -> bool:
            return 7 not in talk.far._messages.spaces

        await until(closed)
        async with space(talk.far, 7):
            pass


async def test_close__twice_and_then_the_space_is_free() -> None:
    async with mrc.open(loopback_config()) as context:
        messages = await context.messages(5)
        with pytest.raises(InUseError):
            await context.messages(5)
        for _ in range(2):
            await messages.close()
        with pytest.raises(StateError, match="messages: "):
            await messages.recv(bytearray(1))
        async with context.messages(5):
            pass


async def test_send__that_cannot_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking() as talk:
        held = bytearray(1)
        full = Mock(wraps=lib)
        full.mrc_ctx_msg_post.side_effect = [-errno.ENOMEM]
        monkeypatch.setattr("mrc.messages.messages.lib", full)
        with pytest.raises(OSError, match="message"):
            await talk.near.send(talk.to_far, held)
        held.append(1)  # its memory is free again


async def test_close__messages_that_arrived_are_kept() -> None:
    async with talking() as talk:
        late = asyncio.create_task(talk.far.recv(bytearray(9), talk.to_near, tag=8))
        await talk.near.send(talk.to_far, b"last", tag=7)
        await talk.to_far.close()
        with pytest.raises(PeerGoneError, match="the peer is gone"):
            await late
        room = bytearray(4)
        await talk.far.recv(room, talk.to_near, tag=7)
        assert room == b"last"
        with pytest.raises(PeerGoneError):
            await talk.far.send(talk.to_near, b"back")
        with pytest.raises(StateError):
            await talk.near.send(talk.to_far, b"closed")


async def test_abort__ends_long_transfers() -> None:
    """Method: the event loop runs the engines, so nothing is carried before the end."""
    async with talking(sockets=Sockets(polled=True)) as talk:
        room = bytearray(64 << 20)
        sending = asyncio.create_task(talk.near.send(talk.to_far, bytes(len(room))))
        taking = asyncio.create_task(talk.far.recv(room, talk.to_near, exact=True))
        await asyncio.sleep(0)
        await talk.to_far.abort()
        with pytest.raises((PeerGoneError, StateError)):
            await sending
        with pytest.raises(PeerGoneError):
            await taking


@dataclass(frozen=True)
class Late:
    """A long message whose answers come after the end of the peer."""

    talk: Talk
    sent: asyncio.Task[None]
    room: bytearray
    waiting: asyncio.Task[object]
    """a receive for which nothing will come"""


@asynccontextmanager
async def late_answers(**options: object) -> AsyncIterator[Late]:
    """TCP is faster than the planes: the far end ends while its datapath still answers."""
    async with talking(**options) as talk:
        data, room = os.urandom(64 << 20), bytearray(64 << 20)
        taken = spawn(talk.far.recv(room, talk.to_near, exact=True))
        waiting = spawn(talk.near.recv(bytearray(1), talk.to_far, tag=9))
        await asyncio.sleep(0)
        await settle(talk.to_near)
        sent = spawn(talk.near.send(talk.to_far, data))

        async def begun() -> bool:
            return (await talk.to_far.info()).outstanding > 0

        await until(begun)
        yield Late(talk, sent, room, waiting)
        await sent
        assert (await taken).bytes == len(room) and room == data
        with pytest.raises(PeerGoneError, match="the peer is gone"):
            await waiting


async def test_bye__what_was_delivered_completes() -> None:
    async with late_answers(timeouts=Timeouts(linger=BUDGET_SECONDS)) as late:
        await late.talk.to_near._channel.send("bye")


async def test_hangup__what_was_delivered_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qp_module, "_LATE_SECONDS", BUDGET_SECONDS)
    async with late_answers() as late:
        reader = late.talk.to_far._channel._reader
        assert isinstance(reader, asyncio.StreamReader)
        reader.feed_eof()


async def test_close__messages_that_nobody_takes_are_told() -> None:
    """More than a peer keeps without a receive."""
    async with talking(timeouts=Timeouts(linger=0.05)) as talk:
        sent = [spawn(talk.near.send(talk.to_far, bytes(4096))) for _ in range(1000)]
        await asyncio.sleep(0)
        await talk.to_far.close()
        with pytest.raises(PeerGoneError, match=r"messages were not taken within 0\.05 s"):
            await anext(talk.to_near.immediates())
        await asyncio.gather(*sent, return_exceptions=True)


async def test_connect__needs_messages_on_both_sides() -> None:
    config = loopback_config()
    async with (
        mrc.open(config) as near,
        mrc.open(config) as far,
        far.listen(LOOPBACK[4], 0) as listener,
    ):
        with pytest.raises(ConnectError, match="takes no messages on this QP"):
            await near.connect(LOOPBACK[4], listener.port, messages=True)


async def test_send__over_a_plain_qp() -> None:
    async with connected_pair() as pair, pair.near_context.messages() as messages:
        with pytest.raises(StateError, match="connect it with messages=True"):
            await messages.send(pair.near, b"x")


async def test_until_idle__looks_less_often_the_longer_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    class Busy:
        async def call(self, *_: object) -> bool:
            return len(pauses) == 8

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await MessagePeer(cast(Dispatcher, Busy()), 1, Inbox(0, 0), kept=False).until_idle()
    assert pauses == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02]
