# SPDX-License-Identifier: Apache-2.0
"""Ends of QPs in virtual time: two programs exchange messages or writes, then each ends.

What one end was told is delivered counts as delivered, however soon the other end ends after it. An
end by a fault is told to both within a bound.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import mrc
from mrc.engine.memory import Part, RemoteMemory
from virtual.connect import stalls
from virtual.host import Host
from virtual.world import Audit, World

_BOUND_SECONDS = 120  # in which both ends end after a fault
_FAULTS = ("killed", "killed", "no power", "leaves", "all planes down")


@dataclass
class Scenario:
    """What a seed draws."""

    planes: int
    delay_ms: float
    bits_per_second: float
    loss: float
    stalls: str
    kind: str
    """what travels: messages, or writes with immediates"""
    there: list[int]
    """lengths of what the dialler sends"""
    back: list[int]
    """lengths of what the listener sends"""
    fault: str = ""
    """what b does, after `fault_seconds`"""
    fault_seconds: float = 0.0
    tasks: int = 1
    """how many of them are under way at once"""
    depth: int = 256
    """of the send queue"""
    at_once: bool = False
    """all writes are posted before the first one is waited for"""
    lazy_seconds: list[float] = field(default_factory=list)
    """how long each end does nothing before it ends"""

    @classmethod
    def drawn(cls, rng: Random) -> Scenario:
        """A scenario of a second or two of virtual time."""

        def lengths() -> list[int]:
            most = rng.choice((100, 30_000, 2_000_000))
            return [rng.randrange(most) for _ in range(rng.choice((0, 1, 1, 3, 20)))]

        made = cls(
            rng.choice((1, 2)), 10 ** rng.uniform(-1.5, 2), 10 ** rng.uniform(7.5, 9.5),
            rng.choice((0, 0, 0.01)), rng.choice(("idle", "idle", "busy")),
            rng.choice(("messages", "writes")), lengths(), lengths(),
        )  # fmt: skip
        made.tasks = rng.choice((1, 4, 20))
        made.lazy_seconds = [rng.choice((0, 0, 0.001, 0.5)) for _ in range(2)]
        if rng.random() < 0.4:
            made.fault = rng.choice(_FAULTS)
            made.fault_seconds = rng.uniform(0, made.delay_ms / 50 + 0.1)
        if made.kind == "writes":
            made.depth, made.at_once = rng.choice((1, 2, 256)), rng.random() < 0.5
        return made


@dataclass
class _End:
    """What one of the two programs sends, receives and says."""

    sends: list[bytes]
    receives: list[int]
    got: list[bytes] = field(default_factory=list)
    sent: int = 0
    connected: bool = False
    memory: Any = None
    """where the peer's writes go"""


def run(world: World, audit: Audit) -> None:
    """Two programs, and perhaps a fault of one."""
    scenario = Scenario.drawn(world.rng)
    audit.describe(scenario)
    a, b = (world.host(name, scenario.planes) for name in "ab")
    world.join(
        a, b, bits_per_second=scenario.bits_per_second, delay_ms=scenario.delay_ms,
        loss=scenario.loss,
    )  # fmt: skip
    for host in (a, b):
        host.stall_of = stalls(scenario.stalls, Random(world.rng.random()))
    there = [world.rng.randbytes(length) for length in scenario.there]
    back = [world.rng.randbytes(length) for length in scenario.back]
    ours, theirs = _End(there, scenario.back), _End(back, scenario.there)
    exchange = _messages if scenario.kind == "messages" else _writes
    server = b.start(_listener(scenario, theirs, exchange))
    world.run(1)
    client = a.start(_dialler(scenario, ours, exchange))
    if scenario.fault:
        world.at(world.now + scenario.fault_seconds, lambda: _strike(world, scenario, a, b, server))
    world.run_until(client, _BOUND_SECONDS)
    world.run_until(server, _BOUND_SECONDS)
    for name, task, end, other in (("a", client, ours, theirs), ("b", server, theirs, ours)):
        _judge(scenario, audit, name, task, end, other)
    if client.done() and server.done():
        audit.nothing_left(world)


def _strike(world: World, scenario: Scenario, a: Host, b: Host, server: asyncio.Task[Any]) -> None:
    match scenario.fault:
        case "killed":
            b.kill()
        case "no power":
            b.kill(powered=False)
        case "leaves":
            server.cancel()
        case _:
            for path in world.paths(a, b):
                path.up = False


def _judge(
    scenario: Scenario, audit: Audit, name: str, task: asyncio.Task[Any], end: _End, other: _End
) -> None:
    dead = name == "b" and scenario.fault in ("killed", "no power")
    waits = name == "b" and not end.connected  # for the first peer, without a limit
    if scenario.fault in ("no power", "all planes down"):
        waits = waits or end.sent == len(end.sends)  # who only receives takes silence for silence
    audit.check(task.done() or dead or waits, f"{name} has not ended")
    error: BaseException | None = None
    if task.done() and not task.cancelled():
        error = task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    audit.result(
        f"{name}: sent {end.sent}, got {len(end.got)}"
        + (f", {type(error).__name__}: {error}" if error else "")
    )
    for at, (got, sent) in enumerate(zip(end.got, other.sends, strict=False)):
        audit.check(got == sent, f"{name} got something else than item {at}")
    if not scenario.fault:
        audit.check(error is None, f"nothing was wrong, but {name}: {error!r}")
    elif error is not None:
        audit.check(isinstance(error, mrc.MrcError), f"{name}: {error!r}")


async def _listener(
    scenario: Scenario, end: _End, exchange: Callable[..., Awaitable[None]]
) -> None:
    messages = scenario.kind == "messages"
    async with (
        mrc.open(queues=mrc.config.Queues(sq_depth=scenario.depth)) as ctx,
        _region(ctx, end) as region,
        ctx.listen(messages=messages, private=region.handle.to_dict()) as listener,
        listener.accept() as qp,
    ):
        end.connected = True
        await exchange(scenario, ctx, qp, end)
        await asyncio.sleep(scenario.lazy_seconds[1])


async def _dialler(scenario: Scenario, end: _End, exchange: Callable[..., Awaitable[None]]) -> None:
    messages = scenario.kind == "messages"
    async with (
        mrc.open(queues=mrc.config.Queues(sq_depth=scenario.depth)) as ctx,
        _region(ctx, end) as region,
        ctx.connect("b", messages=messages, private=region.handle.to_dict(), timeout=60) as qp,
    ):
        end.connected = True
        await exchange(scenario, ctx, qp, end)
        await asyncio.sleep(scenario.lazy_seconds[0])


def _region(ctx: mrc.Context, end: _End) -> Any:
    """Memory for all that the peer writes."""
    # Not a bytearray: the number of digits of its address, in the hello, is not always the same.
    end.memory = mmap.mmap(-1, sum(end.receives) + 1)
    return ctx.register(end.memory, writable=True)


async def _messages(scenario: Scenario, ctx: mrc.Context, qp: mrc.QP, end: _End) -> None:
    slots = asyncio.Semaphore(scenario.tasks)
    found: dict[int, bytes] = {}
    async with ctx.messages() as messages, asyncio.TaskGroup() as group:

        async def send(tag: int, data: bytes) -> None:
            async with slots:
                await messages.send(qp, data, tag=tag)
                end.sent += 1

        async def receive(tag: int, length: int) -> None:
            buffer = bytearray(length)
            await messages.recv(buffer, qp, tag=tag)
            found[tag] = bytes(buffer)

        for tag, data in enumerate(end.sends):
            group.create_task(send(tag, data))
        for tag, length in enumerate(end.receives):
            group.create_task(receive(tag, length))
    end.got += [found[tag] for tag in sorted(found)]


async def _writes(scenario: Scenario, ctx: mrc.Context, qp: mrc.QP, end: _End) -> None:
    target = RemoteMemory.from_dict(qp.peer.private)
    slots = asyncio.Semaphore(scenario.tasks)
    starts = [sum(end.receives[:at]) for at in range(len(end.receives))]
    async with ctx.register(b"".join(end.sends) + b"\0") as source, asyncio.TaskGroup() as group:

        async def write(at: int, part: Part, to: RemoteMemory) -> None:
            async with slots:
                await qp.write(part, to, imm=at)
                end.sent += 1

        async def answered(posted: asyncio.Future[int]) -> None:
            await posted
            end.sent += 1

        async def read() -> None:
            left = len(end.receives)
            found: dict[int, bytes] = {}
            while left and (immediate := await anext(stream, None)) is not None:
                assert not scenario.at_once or immediate.imm == len(found), "another order"
                start = starts[immediate.imm]
                found[immediate.imm] = end.memory[start : start + immediate.bytes]
                left -= 1
            end.got += [found[at] for at in sorted(found)]
            if left:
                raise mrc.PeerGoneError(f"{left} items have not come")

        stream = aiter(qp.immediates())
        offset = 0
        for at, data in enumerate(end.sends):
            part, to = source[offset : offset + len(data)], target[offset:]
            at_once = scenario.at_once
            group.create_task(
                answered(qp.post(part, to, imm=at)) if at_once else write(at, part, to)
            )
            offset += len(data)
        group.create_task(read())
