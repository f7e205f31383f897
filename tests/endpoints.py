# SPDX-License-Identifier: Apache-2.0
"""Two Contexts on this host, joined over loopback by the real engine and real sockets; and a
snapshot of an endpoint, for tests of what shows it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from slowness import PATIENCE

import mrc
from mrc import QP, Context, ContextConfig, Listener, Region
from mrc.engine import engine

LOOPBACK = {4: "127.0.0.1", 6: "::1"}
BUDGET_SECONDS = PATIENCE  # far more than any test needs: only a hang exceeds it


@dataclass(frozen=True)
class Pair:
    """A connected QP, both ends, with their Contexts."""

    near_context: Context
    far_context: Context
    listener: Listener
    near: QP
    far: QP


def two_planes(**options: Any) -> dict[str, Any]:
    """Options of two planes over loopback."""
    return {"interfaces": (LOOPBACK[4], "127.0.0.2"), **options}


async def set_port(context: Context, plane: int, *, up: bool) -> None:
    """Reports a port's link as up or down to a Context, in place of its monitor."""
    dispatcher = context._opened().dispatcher
    await dispatcher.call(engine.port_up(plane, up=up), "port")


def loopback_config(version: int = 4, **options: Any) -> ContextConfig:
    """One loopback port and none of this host's real interfaces."""
    return ContextConfig(**{"interfaces": (LOOPBACK[version],), **options})


@asynccontextmanager
async def listening(
    near: ContextConfig, far: ContextConfig | None = None, version: int = 4
) -> AsyncIterator[tuple[Context, Context, Listener]]:
    """Two Contexts, of which the far one listens on loopback."""
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(near) as near_context,
        mrc.open(far or near) as far_context,
        far_context.listen(LOOPBACK[version], 0) as listener,
    ):
        yield near_context, far_context, listener


@asynccontextmanager
async def listening_to_itself(
    config: ContextConfig | None = None, version: int = 4, **options: Any
) -> AsyncIterator[tuple[Context, Listener]]:
    """A Context that listens on loopback, with the options of `listen`."""
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(config or loopback_config(version)) as context,
        context.listen(LOOPBACK[version], 0, **options) as listener,
    ):
        yield context, listener


@asynccontextmanager
async def joined(
    near: ContextConfig, far: ContextConfig | None = None, version: int = 4
) -> AsyncIterator[Pair]:
    """A connected QP between two Contexts."""
    async with (
        listening(near, far, version) as (near_context, far_context, listener),
        near_context.connect(LOOPBACK[version], listener.port) as one,
        listener.accept() as other,
    ):
        yield Pair(near_context, far_context, listener, one, other)


def connected_pair(version: int = 4, **options: Any) -> AbstractAsyncContextManager[Pair]:
    return joined(loopback_config(version, **options), version=version)


@asynccontextmanager
async def memory(pair: Pair, data: Any, target: Any) -> AsyncIterator[tuple[Region, Region]]:
    """Memory of the near end that has the data, and memory that it may write to."""
    async with (
        pair.near_context.register(data) as source,
        pair.far_context.register(target, writable=True) as region,
    ):
        yield source, region


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a condition that requires a query."""
    while not await condition():  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.001)


def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place, and from seed to seed."""
    return random.Random(seed).randbytes(size)


async def transfer(pair: Pair, data: bytes) -> bytes:
    """Writes `data` from the near to the far end and returns the bytes at the far end."""
    target = bytearray(len(data))
    async with memory(pair, data, target) as (source, region):
        assert await pair.near.write(source, region.handle) == len(data)
    return bytes(target)


# ---- a snapshot of an endpoint -------------------------------------------------------------------

SNAPSHOT: dict[str, Any] = {
    "schema": 1,
    "host": "h0",
    "program": "mrc send",
    "pid": 7,
    "udp_port": 4791,
    "monotonic_ns": 10**9,
    "ports": [{"plane": 1, "nic": "p1", "address": "fd00::1"}],
    "qps_total": 1,
    "qps": [
        {
            "qpn": 0x1234,
            "id": None,
            "peer": "h1",
            "state": "RTS",
            "path_mtu_bytes": 8844,
            "outstanding": 3,
            "cwnd_bytes": 1 << 20,
            "inflight_bytes": 512,
            "rtt_ns": 250_000,
            "timeouts": 0,
            "acknowledged_bytes": 1000,
            "received_bytes": 0,
            "sent_packets": 10,
            "retransmitted_packets": 1,
            "retransmitted_bytes": 100,
            "spurious_packets": 0,
            "planes": [
                {
                    "plane": 1,
                    "suspended": True,
                    "slow": False,
                    "share_percent": 100,
                    "rtt_ns": None,
                    "sent_bytes": 1100,
                    "received_bytes": 0,
                    "lost_packets": 1,
                    "inflight_bytes": 512,
                }
            ],
            "evs": [
                {
                    "ev": 1,
                    "plane": 1,
                    "path": "t1:1.0",
                    "state": "ASSUMED_BAD",
                    "active": True,
                    "rtt_ns": None,
                    "sent_bytes": 1100,
                    "lost_packets": 1,
                }
            ],
        }
    ],
    "counters": {"TIMEOUTS": 2},
    "drops": {"SHORT": 3},
}
