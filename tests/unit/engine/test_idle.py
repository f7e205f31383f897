# SPDX-License-Identifier: Apache-2.0
"""The CPU time of an idle Context."""

from __future__ import annotations

import asyncio
import time

import pytest
from endpoints import READ, WRITE, Pair, connected_pair, spawn, until

from mrc.engine import engine

WATCHED_SECONDS = 0.5


async def cpu_per_second() -> float:
    """CPU time of this process, datapath threads included, while this test only waits."""
    cpu, clock = time.process_time(), time.monotonic()
    await asyncio.sleep(WATCHED_SECONDS)
    return (time.process_time() - cpu) / (time.monotonic() - clock)


async def has_error_reports(pair: Pair) -> bool:
    return (await pair.near_context.counters())["TX_ERROR_REPORTS"] > 0


@pytest.mark.parametrize("version", [4, 6])
async def test_idle__icmp_errors_leave_nothing_to_do(version: int) -> None:
    async with (
        connected_pair(version) as pair,
        pair.near_context.register(bytes(1 << 20), access=READ) as source,
        pair.far_context.register(bytearray(1 << 20), access=WRITE) as target,
    ):
        assert await cpu_per_second() < 0.1, "before any error"
        far = pair.far_context._opened().dispatcher
        await far.call(engine.port_close(1), "port")
        write = spawn(pair.near.write(source, target.remote))
        await until(lambda: has_error_reports(pair))
        assert await cpu_per_second() < 0.1, "a descriptor with an error stays ready"
        await pair.near.abort()
        await asyncio.gather(write, return_exceptions=True)
