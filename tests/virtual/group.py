# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks in virtual time: each rank passes messages around a ring, then ends.

Nobody fails because another rank was done sooner. When a rank dies, all others end within a bound:
its neighbours learn it from their QPs, and the others from the neighbours.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

import mrc
from mrc.torch.group import Group, MemberAddress
from virtual.connect import stalls
from virtual.host import Host
from virtual.world import Audit, World

_BOUND_SECONDS = 200
_FAULTS = ("killed", "killed", "no power", "leaves", "sleeps")


@dataclass
class Scenario:
    """What a seed draws."""

    ranks: int
    planes: int
    delay_ms: float
    bits_per_second: float
    loss: float
    stalls: str
    rounds: int
    length: int
    direct: bool
    """every rank also sends each round's message to rank 0"""
    starts: list[float]
    """when each rank begins, in seconds"""
    fault: str
    victim: int
    fault_seconds: float

    @classmethod
    def drawn(cls, rng: Random) -> Scenario:
        """A scenario; the fault is empty for most seeds."""
        ranks = rng.choice((2, 3, 4, 5))
        delay_ms = 10 ** rng.uniform(-1.5, 1.5)
        return cls(
            ranks,
            rng.choice((1, 2)),
            delay_ms,
            10 ** rng.uniform(8, 9.5),
            rng.choice((0, 0, 0.01)),
            rng.choice(("idle", "idle", "busy")),
            rng.choice((1, 2, 5)),
            rng.choice((4, 20_000, 500_000)),
            rng.random() < 0.5,
            [rng.choice((0, 0, 0.01, 2)) for _ in range(ranks)],
            rng.choice(_FAULTS) if rng.random() < 0.4 else "",
            rng.randrange(ranks),
            rng.uniform(0, delay_ms / 20 + 3),
        )


def run(world: World, audit: Audit) -> None:
    """All ranks, and perhaps a fault of one."""
    scenario = Scenario.drawn(world.rng)
    audit.describe(scenario)
    hosts = [world.host(f"r{rank}", scenario.planes) for rank in range(scenario.ranks)]
    for ours in hosts:
        ours.stall_of = stalls(scenario.stalls, Random(world.rng.random()))
    for a, b in combinations(hosts, 2):
        world.join(
            a, b, bits_per_second=scenario.bits_per_second, delay_ms=scenario.delay_ms,
            loss=scenario.loss,
        )  # fmt: skip
    store: list[asyncio.Future[MemberAddress]] = [
        world.loop.create_future() for _ in range(scenario.ranks)
    ]
    data = [world.rng.randbytes(scenario.length) for _ in range(scenario.ranks)]
    tasks = [
        host.start(_rank(scenario, rank, store, data, host)) for rank, host in enumerate(hosts)
    ]
    if scenario.fault:
        world.at(scenario.fault_seconds, lambda: _strike(scenario, hosts, tasks))
    for task in tasks:
        world.run_until(task, _BOUND_SECONDS)
    gone = scenario.fault in ("killed", "no power")
    for rank, task in enumerate(tasks):
        dead = gone and rank == scenario.victim
        # A rank that died before it had told its address is waited for: that is the store's matter.
        unknown = any(not address.done() for address in store)
        audit.check(task.done() or dead or unknown, f"rank {rank} has not ended")
        error = task.exception() if task.done() and not task.cancelled() else None
        audit.result(f"rank {rank}: {type(error).__name__}: {error}" if error else f"rank {rank}")
        if scenario.fault in ("", "sleeps"):
            audit.check(error is None, f"nobody died, but rank {rank}: {error!r}")
        elif error is not None:
            audit.check(isinstance(error, mrc.MrcError), f"rank {rank}: {error!r}")
    if all(task.done() for task in tasks):
        audit.nothing_left(world)


def _strike(scenario: Scenario, hosts: list[Host], tasks: list[asyncio.Task[Any]]) -> None:
    victim = hosts[scenario.victim]
    match scenario.fault:
        case "killed" | "no power":
            victim.kill(powered=scenario.fault == "killed")
        case "leaves":
            tasks[scenario.victim].cancel()
        case _:
            victim.stall(2_000_000_000)


async def _rank(
    scenario: Scenario,
    rank: int,
    store: list[asyncio.Future[MemberAddress]],
    data: list[bytes],
    host: Host,
) -> None:
    await asyncio.sleep(scenario.starts[rank])
    async with (
        mrc.open() as ctx,
        Group(ctx, "ring", host.name, version=1) as group,
        ctx.messages(1) as messages,
    ):
        store[rank].set_result(group.address)
        after, before = (rank + 1) % scenario.ranks, (rank - 1) % scenario.ranks

        async def qp_of(peer: int) -> mrc.QP:
            return (await group.member(await asyncio.shield(store[peer]))).qp

        async def send(peer: int, tag: int) -> None:
            await messages.send(await qp_of(peer), data[rank], tag=tag)

        async def receive(peer: int, tag: int) -> None:
            buffer = bytearray(scenario.length)
            await messages.recv(buffer, await qp_of(peer), tag=tag)
            assert buffer == data[peer], f"rank {rank} got something else from rank {peer}"

        for number in range(scenario.rounds):
            works = [send(after, number), receive(before, number)]
            if scenario.direct and rank != 0:
                works.append(send(0, 100 + number))
            if scenario.direct and rank == 0:
                works += [receive(peer, 100 + number) for peer in range(1, scenario.ranks)]
            await _all(works)


async def _all(works: list[Any]) -> None:
    """Waits for all; raises the first error and cancels the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
