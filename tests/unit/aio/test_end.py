# SPDX-License-Identifier: Apache-2.0
"""The end of a QP: what the peer is told of it, over loopback."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from unittest.mock import AsyncMock, Mock, patch

import pytest
from endpoints import BUDGET_SECONDS, connected_pair, loopback_config, spawn

from mrc import (
    CompletionError,
    Context,
    PathError,
    PeerGoneError,
    ProtocolError,
    Retries,
    StateError,
)
from mrc.connect import connect as connecting
from mrc.connect.oob import decode_body
from mrc.engine.engine import Notice
from mrc.enums import EventReason, EventType
from mrc.events import PlaneEvent, PlaneShareEvent, PortEvent

REASONS = [
    (ProtocolError("host sent a wrong frame"), "host sent a wrong frame"),
    (TimeoutError(), "a time limit has passed"),
    (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
    (MemoryError(), "out of memory"),
    (asyncio.CancelledError(), "it was interrupted, or a time limit has passed"),
    (KeyError("secret"), r"its program failed \(KeyError\)"),
    (BaseExceptionGroup("", [StateError("first")]), "first"),
]


@pytest.mark.parametrize(("error", "reason"), REASONS)
async def test_exit__the_peer_is_told_the_reason(error: BaseException, reason: str) -> None:
    async with connected_pair() as pair:
        await pair.near.__aexit__(type(error), error, None)
        with pytest.raises(PeerGoneError, match=f"ended the connection: {reason}$"):
            await anext(pair.far.immediates())


async def test_exit__of_the_context_tells_the_reason() -> None:
    async with connected_pair() as pair:
        await pair.near_context.__aexit__(MemoryError, MemoryError(), None)
        with pytest.raises(PeerGoneError, match="ended the connection: out of memory"):
            await anext(pair.far.immediates())


async def test_write__after_the_peer_has_closed_and_its_connection_has_ended() -> None:
    async with connected_pair() as pair:
        await pair.far.close()
        watcher = pair.near._watcher
        assert watcher is not None
        await watcher
        with pytest.raises(PeerGoneError, match="closed the connection"):
            await pair.near.write_imm(imm=1)


async def test_write__is_answered_while_this_process_is_stopped() -> None:
    """The answer waits in a socket. The time of the stop is none in which it did not come."""
    async with connected_pair() as pair:
        end = pair.near
        answered = asyncio.Event()
        places = Mock(taken=1, until_free=AsyncMock(side_effect=answered.wait))
        dispatcher = Mock(fail_works=Mock(side_effect=lambda *_: failed.append(answered.is_set())))
        failed: list[bool] = []
        queue = Mock(places=places)
        with patch.multiple(end, _queue=queue, _dispatcher=dispatcher, query=AsyncMock()):
            end.query.return_value.planes = ()  # type: ignore[attr-defined]
            ended = spawn(end._on_ended(PeerGoneError("it has ended")))
            await pair.near_context.counters()  # meanwhile it waits
            time.sleep(0.5)  # noqa: ASYNC251 the stop
            asyncio.get_running_loop().call_later(0.05, answered.set)
            places.taken = 0
            await ended
        assert failed == [True]


async def test_close__of_a_qp_that_failed_tells_the_reason() -> None:
    async with connected_pair(
        retries=Retries(ack_timeout_exponent=6, linear=1, exponential=1)
    ) as pair:
        await pair.near.deny("*")
        with pytest.raises(CompletionError):
            await pair.near.write_imm(imm=1)
        await pair.near.close()
        with pytest.raises(PathError, match="its QP failed: no path to the peer answers"):
            await anext(pair.far.immediates())


async def test_fail__writes_under_way_get_the_reason() -> None:
    async with connected_pair() as pair:
        await pair.near.deny("*")
        writing = spawn(pair.near.write_imm(imm=1))
        await pair.near.query()
        pair.near._fail(PathError("this path carries nothing"))
        with pytest.raises(PathError, match="this path carries nothing"):
            await writing
        with pytest.raises(PathError, match="this path carries nothing"):
            await pair.near.write_imm(imm=2)


async def test_hangup__a_peer_that_breaks_the_protocol() -> None:
    """This end knows better than that the peer was stopped."""
    async with connected_pair() as pair:
        pair.far._channel._writer.write(b"\0\0\0\2[]")
        with pytest.raises(ProtocolError, match="does not speak mrc's exchange"):
            await anext(pair.near.immediates())


async def test_bye__what_the_peer_sent_before_comes_first() -> None:
    """Also if this end hears of the bye before it looks at what the engine has received."""
    async with connected_pair() as pair:
        dispatcher = pair.near._dispatcher
        dispatcher.loop.remove_reader(dispatcher.engine.fd)
        await pair.far.write_imm(imm=7)
        closing = spawn(pair.far.close())
        try:
            assert [each.imm async for each in pair.near.immediates()] == [7]
        finally:
            dispatcher.loop.add_reader(dispatcher.engine.fd, dispatcher._on_readable)
        await closing


async def test_connect__the_listener_is_told_why_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    monkeypatch.setattr(connecting, "establish", AsyncMock(side_effect=no_memory))
    said = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.set_result(await reader.read())
        writer.close()

    async with (
        asyncio.timeout(BUDGET_SECONDS),
        await asyncio.start_server(listen, "127.0.0.1", 0) as server,
        Context(loopback_config()) as context,
    ):
        with pytest.raises(OSError, match="Cannot allocate memory"):
            await context.connect("127.0.0.1", server.sockets[0].getsockname()[1])
        told = decode_body((await said)[4:])
    assert (told["reason"], told["kind"]) == ("Cannot allocate memory", "")


@pytest.mark.parametrize(
    ("kind", "status", "event"),
    [
        (EventType.PLANE, 0, PlaneEvent(2, True, EventReason.NONE)),
        (EventType.PLANE, 1, PlaneEvent(2, False, EventReason.NONE)),
        (EventType.PLANE_SHARE, 0, PlaneShareEvent(2, True, 30, EventReason.NONE)),
        (EventType.PLANE_SHARE, 1, PlaneShareEvent(2, False, 30, EventReason.NONE)),
        (EventType.PORT, 1, PortEvent(2, True, EventReason.NONE)),
        (EventType.PORT, 0, PortEvent(2, False, EventReason.NONE)),
    ],
)
async def test_on_notice__becomes_an_event(kind: EventType, status: int, event: object) -> None:
    async with connected_pair() as pair, asyncio.timeout(BUDGET_SECONDS):
        notice = Notice(kind, pair.near.qpn, ev_index=0, port=2, status=status, result=30)
        pair.near._on_notice(notice)
        async for each in pair.near.events():
            if each == event:
                break
