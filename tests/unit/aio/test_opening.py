# SPDX-License-Identifier: Apache-2.0
"""The results of connect, listen and register: entered, awaited, or made a task."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, loopback_config

from mrc import ArgumentError, Context, InUseError, StateError
from mrc.aio.context import Opening


async def test_opening__is_closed_at_the_end() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as near,
        Context(loopback_config()) as far,
    ):
        async with far.listen(LOOPBACK[4], 0) as listener:
            async with near.connect(LOOPBACK[4], listener.port) as qp, near.register(b"abc") as mr:
                assert near.qps == (qp,)
                assert mr.length == 3
                peer = await listener.accept()
            assert qp.closed
            await peer.close()
        with pytest.raises(StateError, match="the listener is closed"):
            await listener.accept()


async def test_opening__awaited_it_stays_open() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as near,
        Context(loopback_config()) as far,
    ):
        listener = await far.listen(LOOPBACK[4], 0)
        qp = await asyncio.create_task(near.connect(LOOPBACK[4], listener.port))
        first, second = await asyncio.gather(near.register(b"abc"), near.register(b"defg"))
        assert (first.length, second.length, qp.closed) == (3, 4, False)
        async with qp:  # both spellings work
            await near.deregister(first)
        assert qp.closed


async def test_opening__what_fails_is_not_closed() -> None:
    async def fail() -> int:
        raise ArgumentError("no")

    async def leave(*_: object) -> None:
        raise AssertionError("nothing was opened")

    with pytest.raises(ArgumentError, match="no"):
        async with Opening(fail(), leave):
            pass


async def test_context__that_cannot_open_leaves_nothing() -> None:
    async with Context(loopback_config(metrics=("127.0.0.1", 0))) as first:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(InUseError):
            async with Context(loopback_config(metrics=("127.0.0.1", first.metrics_port))):
                pass
        assert os.listdir("/proc/self/fd") == before


async def test_opening__an_error_in_the_block_aborts_the_qp() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as near,
        Context(loopback_config()) as far,
        far.listen(LOOPBACK[4], 0) as listener,
    ):
        with pytest.raises(KeyError):
            async with near.connect(LOOPBACK[4], listener.port):
                raise KeyError
        peer = await listener.accept()
        with pytest.raises(ConnectionError, match=r"its program failed \(KeyError\)"):
            await anext(peer.immediates())
        await peer.close()


async def test_opening__never_used_opens_nothing() -> None:
    async with Context(loopback_config()) as context:
        context.register(b"abc").close()
        context.connect(LOOPBACK[4], 1).close()
        with pytest.raises(ArgumentError):
            context.register("text")


async def test_qps__one_that_the_caller_forgot_is_closed_with_its_context() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as far,
        far.listen(LOOPBACK[4], 0) as listener,
    ):
        async with Context(loopback_config()) as near:
            await near.connect(LOOPBACK[4], listener.port)
            gc.collect()
            (qp,) = near.qps
            before = qp.closed
        assert (before, qp.closed) == (False, True)
        async with await listener.accept() as peer:
            assert [immediate async for immediate in peer.immediates(timeout=BUDGET_SECONDS)] == []
