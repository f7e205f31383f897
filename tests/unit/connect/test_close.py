# SPDX-License-Identifier: Apache-2.0
"""A channel whose peer does not read, or is gone."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from channels import channels

from mrc.connect.oob import FRAME_BYTES, HELLO_BYTES, Channel
from mrc.errors import PeerGoneError


def fill(channel: Channel) -> None:
    """Writes more than the sockets of a peer that does not read can take."""
    transport = channel._writer.transport
    descriptor = transport.get_extra_info("socket")
    descriptor.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    while not transport.get_write_buffer_size():
        channel._writer.write(bytes(FRAME_BYTES))


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (ConnectionResetError("reset"), PeerGoneError, "the peer closed the connection"),
        (BrokenPipeError("broken"), PeerGoneError, "the peer closed the connection"),
        (OSError(errno.ENOBUFS, "no room"), OSError, "no room"),
    ],
)
async def test_send__to_a_peer_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, error: OSError, raised: type[Exception], text: str
) -> None:
    async with channels() as (one, _):
        monkeypatch.setattr(one._writer, "drain", AsyncMock(side_effect=error))
        with pytest.raises(raised, match=text):
            await one.send("ready")


@pytest.mark.parametrize(("size", "pauses"), [(10, []), (2 * FRAME_BYTES, [4.5])])
async def test_peek__large_messages_get_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, size: int, pauses: list[float]
) -> None:
    times, paused = iter([10.0, 10.5]), list[float]()

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    async with channels() as (one, other):
        await one.send("hello", filler="x" * size)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            patched.setattr(asyncio, "get_running_loop", lambda: Mock(time=times.__next__))
            assert await other.peek(HELLO_BYTES, asyncio.Lock()) == "hello"
    assert paused == pauses


async def test_close__cancelled_while_the_peer_does_not_read() -> None:
    async with channels() as (one, other):
        reader: Any = other._reader
        reader._transport.pause_reading()
        fill(one)
        closing = asyncio.create_task(one.close())
        await asyncio.sleep(0)  # the task waits now
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert one._writer.transport.get_write_buffer_size() == 0  # dropped, not left to linger
