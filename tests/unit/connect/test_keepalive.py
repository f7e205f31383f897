# SPDX-License-Identifier: Apache-2.0
"""How long the kernel bears the silence of a connection; tests/virtual loses planes under it."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import pytest
import uvloop
from channels import channels

from mrc.connect.oob import CutOffError, Keepalive
from mrc.errors import PeerGoneError


def options(tcp: socket.socket) -> tuple[int, ...]:
    names = socket.TCP_KEEPINTVL, socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT
    return tuple(tcp.getsockopt(socket.IPPROTO_TCP, name) for name in names)


def test_limit__the_kernel_is_told_and_later_told_otherwise() -> None:
    with socket.socket() as tcp:
        keepalive = Keepalive(tcp)
        usual = options(tcp)
        assert usual[1:] == (60, 0)
        keepalive.limit(0.0)
        assert options(tcp) == (1, 1, 4000)
        keepalive.limit(0.5)
        assert options(tcp) == (1, 1, 6000)
        keepalive.limit(None)
        assert options(tcp) == usual


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_limit__of_a_closed_connection_is_nobody_s_error(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            keepalive = Keepalive(writer.get_extra_info("socket"))
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0)  # only then it has no descriptor any more
            keepalive.limit(0.5)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_limit_silence__names_a_connection_that_was_cut_off(number: int) -> None:
    """Without the limit the error stays as it is: then it is none of the QP's."""
    error = OSError(number, "the kernel's word")
    async with channels() as (one, other):
        one.limit_silence(on=True)
        one._reader.set_exception(error)  # type: ignore[union-attr]
        with pytest.raises(CutOffError):
            await one.receive()
        other._reader.set_exception(error)  # type: ignore[union-attr]
        with pytest.raises(OSError, match="the kernel's word"):
            await other.receive()


async def test_limit_silence__a_peer_that_goes_was_not_cut_off() -> None:
    async with channels() as (one, other):
        one.limit_silence(on=True)
        other.abort()
        with pytest.raises(PeerGoneError):
            await one.receive()
