# SPDX-License-Identifier: Apache-2.0
"""Contexts with several engines: QPs, memory, counters, recordings and the end of all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
import walls
from endpoints import BUDGET_SECONDS, READ, WRITE, loopback_config, pattern, spawn, two_planes
from ports import free_port

from mrc import QP, ArgumentError, CompletionError, ConfigError, Context, InUseError, Sockets

KIB = 1 << 10
MS = 1_000_000


def several(engines: int, **options: Any) -> Context:
    return Context(loopback_config(sockets=Sockets(engines=engines), **options))


def engine_of(context: Context, qp: QP) -> int:
    """Which engine of the Context has the QP."""
    (found,) = (i for i, each in enumerate(context._all()) if qp._dispatcher is each)
    return found


async def connected(
    near: Context, far: Context, stack: AsyncExitStack, count: int, **options: Any
) -> list[tuple[QP, QP]]:
    listener = await stack.enter_async_context(far.listen("127.0.0.1", 0, **options))
    ends = []
    for _ in range(count):
        there = near.connect("127.0.0.1", listener.port, **options)
        ours = await stack.enter_async_context(there)
        ends.append((ours, await stack.enter_async_context(await listener.accept())))
    return ends


async def test_qps__are_spread_over_the_engines_of_both_ends() -> None:
    data, count = pattern(100 * KIB), 7
    target = bytearray(count * len(data))
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        several(3, **two_planes()) as near,
        several(2, **two_planes()) as far,
        AsyncExitStack() as stack,
    ):
        ends = await connected(near, far, stack, count)
        assert Counter(engine_of(near, qp) for qp, _ in ends) == {0: 3, 1: 2, 2: 2}
        assert Counter(engine_of(far, qp) for _, qp in ends) == {0: 4, 1: 3}
        async with (
            near.register(data, access=READ) as source,
            far.register(target, access=WRITE) as mr,
            far.record(width_ns=10 * MS) as every,
        ):
            for i, (qp, _) in enumerate(ends):
                await qp.write(source, mr.remote, remote_offset=i * len(data))
            recording = await every.stop()
        assert bytes(target) == count * data
        assert (await far.counters())["RX_BYTES"] == sum(recording.bytes) == len(target)
        assert recording.planes.keys() == {1, 2}
        trace = await far.trace(64)
        assert len(trace) == 64 and trace == sorted(trace, key=lambda entry: entry.now_ns)
        assert {entry.qpn for entry in await far.trace()} >= {qp.qpn for _, qp in ends}


async def test_qps__many_that_connect_at_once_are_spread_too() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        several(4) as near,
        several(4) as far,
        far.listen("127.0.0.1", 0) as listener,
    ):
        waits = [spawn(listener.accept()) for _ in range(8)]
        ours = await asyncio.gather(*(near.connect("127.0.0.1", listener.port) for _ in range(8)))
        theirs = await asyncio.gather(*waits)
        for context, qps in ((near, ours), (far, theirs)):
            assert set(Counter(engine_of(context, qp) for qp in qps).values()) == {2}


@walls.needs("programs")
async def test_qps__with_messages_are_all_of_the_first_engine() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        several(3) as near,
        several(3) as far,
        AsyncExitStack() as stack,
    ):
        ends = await connected(near, far, stack, 3, messages=True)
        assert {engine_of(near, a) for a, _ in ends} == {0} == {engine_of(far, b) for _, b in ends}


async def test_record__qps_of_several_engines() -> None:
    data = bytes(10 * KIB)
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        several(3) as near,
        several(3) as far,
        AsyncExitStack() as stack,
    ):
        ends = await connected(near, far, stack, 3)
        target = bytearray(len(data))
        async with (
            near.register(data, access=READ) as source,
            far.register(target, access=WRITE) as mr,
        ):
            with pytest.raises(ArgumentError, match="another Context"):
                far.record([ends[0][0]])
            async with far.record([ends[0][1], ends[2][1]], width_ns=MS) as recorder:
                with pytest.raises(InUseError):
                    async with far.record([ends[2][1]]):
                        pass
                for qp, _ in ends:
                    await qp.write(source, mr.remote)
                recording = await recorder.stop()
            async with far.record([ends[1][1]]) as again:
                assert not any((await again.stop()).bytes)
    assert sum(recording.bytes) == 2 * len(data)


async def test_deregister__waits_for_all_engines_and_then_nobody_writes() -> None:
    target = bytearray(4 * KIB)
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        several(2) as near,
        several(2) as far,
        AsyncExitStack() as stack,
    ):
        ends = await connected(near, far, stack, 2)
        source = await near.register(bytes(4 * KIB), access=READ)
        mr = await far.register(target, access=WRITE)
        writes = [spawn(qp.write(source, mr.remote)) for qp, _ in ends]
        while source.outstanding < 2:  # noqa: ASYNC110 the tasks have to begin
            await asyncio.sleep(0)
        await near.deregister(source)
        assert source.outstanding == 0
        await asyncio.gather(*writes)
        await far.deregister(mr)
        target.append(0)  # it is not pinned any more
        async with near.register(bytes(4 * KIB), access=READ) as other:
            for qp, _ in ends:
                with pytest.raises(CompletionError):
                    await qp.write(other, mr.remote)


async def test_udp_ports__follow_each_other() -> None:
    port = free_port()
    async with several(3, udp_port=port) as context:
        assert context.udp_port == port
        ports = [each.engine.udp_port for each in context._all()]
        assert ports == [port, port + 1, port + 2]
        with pytest.raises(InUseError, match=f"UDP port {port} is in use"):
            async with several(2, udp_port=port - 1):
                pass


def test_config__what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engines: 0 is not within 1\.\.64"):
        Sockets(engines=0)
    with pytest.raises(ConfigError, match="an event loop that polls runs one engine"):
        Sockets(engines=2, polled=True)
    with pytest.raises(ConfigError, match=r"udp_port: 65534 is not within 0\.\.65533"):
        loopback_config(udp_port=65534, sockets=Sockets(engines=3))
