# SPDX-License-Identifier: Apache-2.0
"""When the writes of a flow are due."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from msgspec.structs import replace
from unit.workload.scenes import SHAPE, scenario

from mrc.errors import MrcError
from mrc.sim.run import make_flows
from mrc.workload import transports
from mrc.workload.run import host_tasks
from mrc.workload.task import Counts, FlowTask
from mrc.workload.transports import Writer

# ---- Writes --------------------------------------------------------------------------------------


class FakeLink:
    """Completes writes when it is told to."""

    def __init__(self, fails_at: int = -1) -> None:
        self.begun: list[asyncio.Event] = []
        self.started = asyncio.Condition()
        self._fails_at = fails_at

    async def write(self) -> None:
        done = asyncio.Event()
        self.begun.append(done)
        async with self.started:
            self.started.notify_all()
        await done.wait()
        if len(self.begun) - 1 == self._fails_at:
            raise MrcError("no path is left")

    async def until_begun(self, count: int) -> None:
        async with self.started:
            await self.started.wait_for(lambda: len(self.begun) >= count)

    async def counts(self) -> Counts:
        return Counts()


def flow_task(**changes: Any) -> FlowTask:
    part = scenario()
    (task, _) = host_tasks(part, make_flows(part, 1), SHAPE, "mrc", 1)
    return replace(task.sends[0], **{"depth": 2, "writes": 6} | changes)


async def test_run__keeps_the_depth() -> None:
    link = FakeLink()
    writer = Writer(flow_task(), link, 1, lambda number: None)
    start_ns = time.monotonic_ns()
    running = asyncio.create_task(writer.run(start_ns))
    for number in range(6):
        await link.until_begun(min(number + 2, 6))
        assert len(link.begun) == min(number + 2, 6)
        link.begun[number].set()
    await running
    sent = await writer.sent(start_ns)
    assert (sent.posted, sent.completed, sent.failed, sent.error) == (6, 6, 0, "")
    due, done = zip(*sent.times, strict=True)
    assert len(set(due)) > 0 and all(a <= b for a, b in sent.times)
    assert sent.last_ns == max(done) >= sent.first_ns


async def test_run__steps_wait_for_the_barrier() -> None:
    link, steps = FakeLink(), asyncio.Queue[int]()
    writer = Writer(flow_task(step_writes=3), link, 1, steps.put_nowait)
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    for number in range(3):
        await link.until_begun(number + 1)
        link.begun[number].set()
    assert await steps.get() == 0
    assert len(link.begun) == 3
    writer.begin_step()
    for number in range(3, 6):
        await link.until_begun(number + 1)
        link.begun[number].set()
    await running
    assert steps.empty()  # no step follows the last one


async def test_run__each_write_follows_an_arrival() -> None:
    link = FakeLink()
    writer = Writer(flow_task(after=1, writes=3), link, 1, lambda number: None)
    writer.on_arrival(0)  # before it has begun
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    for number in range(3):
        await link.until_begun(number + 1)
        assert len(link.begun) == number + 1
        link.begun[number].set()
        writer.on_arrival(number + 1)
    await running


async def test_run__open_loop() -> None:
    """Writes become due whether the ones before have ended or not."""
    link = FakeLink()
    writer = Writer(flow_task(interval_ns=1000, depth=6), link, 1, lambda number: None)
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    await link.until_begun(6)
    for event in link.begun:
        event.set()
    await running


async def test_run__a_failure_ends_the_flow() -> None:
    link = FakeLink(fails_at=1)
    writer = Writer(flow_task(), link, 1, lambda number: None)
    running = asyncio.create_task(writer.run(time.monotonic_ns()))
    await link.until_begun(2)
    link.begun[1].set()
    await running
    sent = await writer.sent(0)
    assert (sent.completed, sent.failed, sent.error) == (0, 6, "no path is left")


# ---- iperf3 --------------------------------------------------------------------------------------
#
# What iperf3 prints.


def test_samples__of_a_server() -> None:
    intervals = [{"sum": {"end": 0.1, "bytes": 30}}, {"sum": {"end": 0.15, "bytes": 12}}]
    told: dict[str, Any] = {"intervals": intervals, "end": {}}
    assert transports._iperf3_samples(told) == [(0, 0), (100_000_000, 30), (150_000_000, 42)]
    told["end"] = {"sum_received": {"seconds": 0.14, "bytes": 50}}
    assert transports._iperf3_samples(told)[-1] == (150_000_001, 50)
    assert transports._iperf3_samples({"error": "no route"}) == [(0, 0)]


def test_listens__when_the_port_is_open() -> None:
    with socket.socket(socket.AF_INET6) as server:
        server.bind(("::", 0))
        port = server.getsockname()[1]
        assert not transports._listens(port)
        server.listen()
        assert transports._listens(port)
