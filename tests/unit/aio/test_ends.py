# SPDX-License-Identifier: Apache-2.0
"""Waits and calls that have to end: of the peer's end, of memory, of admission, of iterators."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import walls
from endpoints import (
    BUDGET_SECONDS,
    READ,
    WRITE,
    connected_pair,
    loopback_config,
    set_port,
    spawn,
)

from mrc import CompletionError, ConnectError, Context, RemoteMemory, StateError, Timeouts, WcStatus
from mrc.errors import PeerGoneError


async def test_until_peer_gone__ends_when_this_side_closes() -> None:
    async with connected_pair() as pair:
        waiting = spawn(pair.near.until_peer_gone())
        await asyncio.sleep(0)
        await pair.near.close()
        with pytest.raises(StateError, match="is closed"):
            await waiting
        with pytest.raises(StateError, match="is closed"):
            await pair.near.until_peer_gone()
        await pair.far.until_peer_gone()
        await pair.far.close()
        await pair.far.until_peer_gone()  # it has gone, also for who asks later


@walls.needs("programs")
async def test_write__a_qp_of_messages_takes_none() -> None:
    """One of them ended the process: nobody was there for its completion."""
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as context,
        context.listen("127.0.0.1", 0, messages=True) as listener,
        context.connect("127.0.0.1", listener.port, messages=True) as near,
        context.register(bytearray(8), access=WRITE) as mr,
        await listener.accept(),
    ):
        remote = RemoteMemory(mr.address, mr.rkey, mr.length)
        refused = pytest.raises(StateError, match="carries messages and nothing else")
        with refused:
            await near.write(mr, remote)
        with refused:
            await near.write_imm(imm=1)
        with refused:
            near.post(mr, remote)
        with refused:
            near.post_many([])
        with refused:
            near.post_scattered(mr, remote, length=1, local_offsets=[0], remote_offsets=[0])


async def test_register__an_error_ends_the_use_of_its_memory() -> None:
    """The engine would use it until it gives up the peer, 9 s later."""
    async with connected_pair(timeouts=Timeouts(linger=0.01)) as pair:
        target = bytearray(1 << 20)
        async with pair.far_context.register(target, access=WRITE) as mr:
            await set_port(pair.near_context, 1, up=False)
            write: asyncio.Future[Any] | None = None
            with pytest.raises(RuntimeError, match="mine"):
                async with pair.near_context.register(bytes(1 << 20), access=READ) as source:
                    write = pair.near.post(source, mr.remote)
                    raise RuntimeError("mine")
            assert write is not None
            with pytest.raises(StateError, match="memory of a write was deregistered"):
                await write
            assert pair.near.closed


async def no(_: dict[str, Any]) -> bool:
    await asyncio.sleep(0)
    return False


async def fails(_: dict[str, Any]) -> None:
    await asyncio.sleep(0)
    raise ValueError("of the program")


async def refuses(_: dict[str, Any]) -> None:
    raise ConnectError("not today")


def fails_at_once(private: dict[str, Any]) -> None:
    raise KeyError(private["name"])


@pytest.mark.parametrize(
    ("admit", "reason", "logged"),
    [
        (lambda _: False, "does not admit this host", ""),
        (no, "does not admit this host", ""),
        (refuses, "not today", ""),
        (fails, r"its program failed \(ValueError\)", "ValueError: of the program"),
        (fails_at_once, r"its program failed \(KeyError\)", "KeyError: 'me'"),
    ],
)
async def test_admit__refuses(
    admit: Callable[[dict[str, Any]], bool | Awaitable[bool | None] | None],
    reason: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as context,
        context.listen("127.0.0.1", 0, admit=admit) as listener,
    ):
        with pytest.raises(ConnectError, match=reason):
            await context.connect("127.0.0.1", listener.port, private={"name": "me"})
        assert not context.qps
    assert logged in caplog.text and "bug" not in caplog.text


@pytest.mark.parametrize("verdict", [True, None])
@pytest.mark.parametrize("waits", [True, False])
async def test_admit__lets_in(verdict: bool | None, waits: bool) -> None:
    async def later(_: dict[str, Any]) -> bool | None:
        await asyncio.sleep(0)
        return verdict

    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as context,
        context.listen("127.0.0.1", 0, admit=later if waits else lambda _: verdict) as listener,
        context.connect("127.0.0.1", listener.port),
        await listener.accept(),
    ):
        pass


async def test_listener__its_iterator_outlives_a_timeout() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as context,
        context.listen("127.0.0.1", 0) as listener,
    ):
        peers = aiter(listener)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(peers), 0.01)
        async with context.connect("127.0.0.1", listener.port), await anext(peers):
            pass
        await listener.close()
        with pytest.raises(StopAsyncIteration):
            await anext(peers)


async def test_error__is_a_new_one_for_each_call() -> None:
    """One object collected the frames of every call that raised it."""
    async with connected_pair() as pair:
        await pair.far.abort()
        depths = []
        for _ in range(3):
            with pytest.raises(PeerGoneError) as caught:
                await anext(pair.near.immediates())
            depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert depths == depths[:1] * 3


def test_completion_error__crosses_processes() -> None:
    error = CompletionError(WcStatus.RETRY_EXC_ERR, "write of 5 bytes")
    same = pickle.loads(pickle.dumps(error))
    assert (str(same), same.status, type(same)) == (str(error), error.status, CompletionError)
