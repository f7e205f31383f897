# SPDX-License-Identifier: Apache-2.0
"""Runs the traffic of a scenario once on a test bed: a process in each host, faults at their times.

The result has the simulator's form, so the same code computes its checks.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

from msgspec import Struct

from mrc.errors import ConfigError, StateError
from mrc.linux.processes import Times
from mrc.sim.draw import with_seed
from mrc.sim.run import Result
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import Flow, make_flows
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric
from mrc.units import counted
from mrc.workload import tasks
from mrc.workload.faults import Faults, Told
from mrc.workload.gather import Moved, counters, result
from mrc.workload.hosts import HostProcess, Hosts
from mrc.workload.results import Over
from mrc.workload.task import HostAnswer, Ready, Said

T = TypeVar("T")

_AHEAD_NS = 200_000_000  # from the start command until the flows begin


class BedResult(Struct, frozen=True):
    """One run on a test bed."""

    result: Result
    over: Over
    answers: tuple[HostAnswer, ...]
    busy: float
    """share of the processors' time that was used, by whatever program, on the busiest machine"""
    late_ns: int
    """largest delay of a fault"""


async def run(bed: Testbed, scenario: Scenario, seed: int, over: Over, told: Told) -> BedResult:
    """Runs a scenario once, over one transport. `told` is called at each change of a fault, in
    another thread.

    Raises ConfigError for a scenario that hosts cannot run, StateError if a host fails.
    """
    scenario = with_seed(scenario, seed)
    if wrong := tasks.unsupported(scenario, over):
        raise ConfigError(f"{scenario.name}: {wrong}")
    flows, faults = make_flows(scenario, seed), Faults(bed, scenario)
    async with AsyncExitStack() as stack:
        stack.callback(faults.heal)
        faults.begin()
        hosts, starting = {}, Hosts(bed, stack)
        for task in tasks.tasks(scenario, flows, bed.shape, over, seed):
            if over == "mptcp":
                bed.prepare_mptcp(f"h{task.host}")
            hosts[task.host] = await starting.start(task)
        await _all(host.until(Ready) for host in hosts.values())
        for host in hosts.values():
            host.tell("connect")
        await _all(host.until(Ready) for host in hosts.values())
        return await _timed(bed, scenario, seed, over, _Running(flows, hosts, faults, told))


class _Running(Struct, frozen=True):
    """What takes part in a run."""

    flows: Sequence[Flow]
    hosts: dict[int, HostProcess]
    faults: Faults
    told: Told


async def _timed(
    bed: Testbed, scenario: Scenario, seed: int, over: Over, running: _Running
) -> BedResult:
    before, used = counters(bed), bed.processor_times()
    start_ns = time.monotonic_ns() + _AHEAD_NS
    for host in running.hosts.values():
        host.tell("start", host.at(start_ns))
    happening = asyncio.create_task(
        asyncio.to_thread(running.faults.happen, start_ns, running.told)
    )
    try:
        until = (start_ns + scenario.until_ns - time.monotonic_ns()) / 1e9
        await _until_over(running, until)
    finally:
        running.faults.end()
        await happening
    busy, after = _busy(used, bed.processor_times()), counters(bed)
    for host in running.hosts.values():
        host.tell("stop")
    answers = tuple(await _all(host.until(HostAnswer) for host in running.hosts.values()))
    moved = _moved(bed, before, after)
    return BedResult(
        result=result(scenario, seed, running.flows, answers, moved, over),
        over=over,
        answers=answers,
        busy=busy,
        late_ns=running.faults.late_ns,
    )


async def _until_over(running: _Running, seconds: float) -> None:
    """Until the flows of all hosts have ended, or the time has; begins steps of jobs."""
    steps = _Steps(running)
    try:
        async with asyncio.timeout(seconds):
            await _all(_listen(host, steps) for host in running.hosts.values())
    except TimeoutError:
        pass


async def _listen(host: HostProcess, steps: _Steps) -> None:
    while True:
        match await host.hear():
            case Said(over=True):
                return
            case Said(step=int(flow)):
                steps.on_step(flow)


class _Steps:
    """The steps of jobs: when all flows of a job have done one, the next begins at all of them."""

    def __init__(self, running: _Running) -> None:
        self._running = running
        self._done = Counter[int]()

    def on_step(self, number: int) -> None:
        flows = self._running.flows
        job = flows[number].job
        assert job is not None
        first, count = job
        self._done[first] += 1
        if self._done[first] % count:
            return
        at_ns = time.monotonic_ns() + flows[first].traffic.compute_ns
        for each in range(first, first + count):
            host = self._running.hosts[flows[each].sender]
            host.tell("step", each, host.at(at_ns))


async def _all(waits: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Waits for all of them; the first error ends the others."""
    jobs = [asyncio.create_task(each) for each in waits]
    try:
        return await asyncio.gather(*jobs)
    finally:
        for job in jobs:
            job.cancel()


def _moved(bed: Testbed, before: Moved, after: Moved) -> Moved:
    moved = {
        name: {key: count - before[name].get(key, 0) for key, count in counts.items()}
        for name, counts in after.items()
    }
    if bed.shape.fabric is Fabric.EMULATED and (lost := moved[""]["overloaded"]):
        raise StateError(
            f"this machine is too slow: the emulator lost {counted(lost, 'packet')}; "
            "build the test bed with a lower --rate"
        )
    return moved


def _busy(before: Mapping[str, Times], after: Mapping[str, Times]) -> float:
    """Of the machine that was busiest."""
    found = []
    for machine, now in after.items():
        total, used, stolen = (b - a for a, b in zip(before[machine], now, strict=True))
        found.append((used + stolen) / total if total else 0.0)
    return max(found)
