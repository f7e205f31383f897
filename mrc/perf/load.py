# SPDX-License-Identifier: Apache-2.0
"""The plan of one test, which the client sends to the server; the memory of its writes, and the
writing end, which keeps writes in flight.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Any, NoReturn

from msgspec import Struct, field, structs

from mrc import limits
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.parse import shown
from mrc.engine.memory import Region, RemoteMemory
from mrc.errors import ArgumentError, ProtocolError
from mrc.linux import system
from mrc.perf.meter import Histogram
from mrc.tasks import Limit, cancelled, first_error, within
from mrc.transfer.threads import in_thread
from mrc.typed import take
from mrc.units import digits

MAX_QPS = 256
MAX_DEPTH = 1024
MAX_SIZE = 1 << 30
MAX_SECONDS = 86400.0
MAX_BIN_NS = 10**10
MEMORY_BYTES = 64 << 20  # limit of the places for writes; further writes in flight share places
CATCH_UP_SECONDS = 0.01
SETTLE_SECONDS = 0.5  # for writes in flight, so that both ends count the same; then they are left
_TILE_BYTES = 1 << 20


class PerfDirection(StrEnum):
    """The writing ends: the client, the server, or both."""

    FORWARD = "forward"
    REVERSE = "reverse"
    BOTH = "both"


class Pattern(StrEnum):
    """STREAM keeps writes in flight; PING_PONG answers each WRITE_IMM with another."""

    STREAM = "stream"
    PING_PONG = "ping-pong"


class PerfPlan(Struct, frozen=True):
    """The parameters of one test. Raises ArgumentError for an invalid one."""

    pattern: Pattern = Pattern.STREAM
    direction: PerfDirection = PerfDirection.FORWARD
    size: int = 1 << 20  # bytes of a message
    qps: int = 1
    depth: int = 8  # writes in flight on each QP
    seconds: float = 10.0  # duration; 0: until `total_bytes` are written
    total_bytes: int = 0  # bytes that each writing end writes; 0: `seconds` ends the test
    omit_seconds: float = 0.0  # run before `seconds` begin, and not counted
    rate_bits_per_second: float = 0.0  # limit of each writing end; 0: no limit
    bin_ns: int = 0  # both ends record the bytes received in bins of this width; 0: no recording
    redundant: bool = False  # each packet of a write leaves twice

    def __post_init__(self) -> None:
        _check("size", self.size, 0, MAX_SIZE)
        _check("qps", self.qps, 1, MAX_QPS)
        _check("depth", self.depth, 1, MAX_DEPTH)
        _check("seconds", self.seconds, 0, MAX_SECONDS)
        _check("total_bytes", self.total_bytes, 0, 1 << 62)
        _check("omit_seconds", self.omit_seconds, 0, MAX_SECONDS)
        _check("rate_bits_per_second", self.rate_bits_per_second, 0, 1e15)
        _check("bin_ns", self.bin_ns, limits.MIN_BIN_NS if self.bin_ns else 0, MAX_BIN_NS)
        if self.redundant:
            _check("size", self.size, 0, limits.MAX_REDUNDANT)
        if (self.seconds > 0) == (self.total_bytes > 0):
            raise ArgumentError("seconds, total_bytes: exactly one of them must be above 0")
        if self.size == 0 and (self.total_bytes or self.pattern is Pattern.STREAM):
            raise ArgumentError(
                "size: messages of 0 bytes are only for ping-pong (--lat) with a time"
            )
        if self.total_bytes and self.omit_seconds:
            raise ArgumentError("omit_seconds: requires seconds, not total_bytes")

    @property
    def client_writes(self) -> bool:
        """Whether the client posts writes, apart from answers."""
        return self.direction is not PerfDirection.REVERSE

    @property
    def server_writes(self) -> bool:
        """Whether the server posts writes, apart from answers."""
        return self.direction is not PerfDirection.FORWARD

    @property
    def client_receives(self) -> bool:
        """Whether payload arrives at the client."""
        return self.server_writes or self.pattern is Pattern.PING_PONG

    @property
    def server_receives(self) -> bool:
        """Whether payload arrives at the server."""
        return self.client_writes or self.pattern is Pattern.PING_PONG

    @property
    def places(self) -> int:
        """Number of places in memory that writes use in turn."""
        return max(1, min(self.qps * self.depth, MEMORY_BYTES // max(1, self.size)))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the source and of the target that each end registers."""
        return max(1, self.places * self.size)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for messages and reports."""
        return structs.asdict(self)

    @classmethod
    def from_dict(cls, value: object) -> PerfPlan:
        """The inverse of `to_dict`; raises ProtocolError."""
        try:
            told = take(value, dict[str, Any])
            if missing := [each.name for each in structs.fields(cls) if each.name not in told]:
                raise ValueError(f"{missing[0]}: is missing")
            return take(told, cls)
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent an invalid plan: {why}") from error


def _check(name: str, value: float, low: float, high: float) -> None:
    fractions = ("seconds", "omit_seconds", "rate_bits_per_second")
    whole = not isinstance(value, float) or name in fractions
    if isinstance(value, bool) or not whole or not low <= value <= high:
        raise ArgumentError(
            f"{name}: {shown(value, 40)} is not within {digits(low)}..{digits(high)}"
        )


class Regions(Struct, frozen=True):
    """The two memory regions of one end of a test."""

    source: Region
    target: Region


@asynccontextmanager
async def regions(ctx: Context, size: int) -> AsyncIterator[Regions]:
    """Two regions of `size` bytes with all pages present, so that the test has no page faults.

    A thread fills them, because that takes long.
    """
    with system.anonymous_memory(size) as source, system.anonymous_memory(size) as target:
        await in_thread(_fill, source, os.urandom(_TILE_BYTES))
        await in_thread(_fill, target, bytes(_TILE_BYTES))
        async with (
            ctx.register(source) as source_region,
            ctx.register(target, writable=True) as target_region,
        ):
            yield Regions(source_region, target_region)


def _fill(memory: mmap.mmap, tile: bytes) -> None:
    for offset in range(0, len(memory), len(tile)):
        memory[offset : offset + len(tile)] = tile[: len(memory) - offset]


class Tally(Struct):
    """Counts a writing end's messages. `latency` is per message, or half of each round trip."""

    messages: int = 0
    latency: Histogram = field(default_factory=Histogram)

    def add(self, duration_ns: int) -> None:
        """Counts a message that the peer has acknowledged."""
        self.messages += 1
        self.latency.add(duration_ns)


class Load:
    """Keeps `plan.depth` writes in flight on every QP until `stop` or `plan.total_bytes`."""

    def __init__(
        self, qps: Sequence[QP], source: Region, target: RemoteMemory, plan: PerfPlan
    ) -> None:
        self._qps = tuple(qps)
        self._source = source
        self._target = target
        self._plan = plan
        self._left = plan.total_bytes
        self._due = 0.0  # when the next write may start, under a rate
        self._stopped = asyncio.Event()
        self.tally = Tally()

    def stop(self) -> None:
        """Starts no more writes; `run` returns when the writes in flight have ended."""
        self._stopped.set()

    async def run(self) -> None:
        """Raises CompletionError when a QP fails."""
        self._due = time.monotonic()
        async with asyncio.TaskGroup() as pumps:
            place = 0
            for _ in range(self._plan.depth):
                for qp in self._qps:
                    pumps.create_task(self._pump(qp, place % self._plan.places * self._plan.size))
                    place += 1

    async def _pump(self, qp: QP, offset: int) -> None:
        while (size := self._take()) is not None:
            if self._plan.rate_bits_per_second:
                await self._pace(size)
                if self._stopped.is_set():
                    return
            start = time.monotonic_ns()
            source, target = self._source[offset : offset + size], self._target[offset:]
            await qp.write(source, target, redundant=self._plan.redundant)
            self.tally.add(time.monotonic_ns() - start)

    def _take(self) -> int | None:
        """Bytes of the next write; None if the load is stopped or complete."""
        if self._stopped.is_set():
            return None
        if not self._plan.total_bytes:
            return self._plan.size
        size = min(self._plan.size, self._left)
        self._left -= size
        return size or None

    async def _pace(self, size: int) -> None:
        """Waits until the rate allows this write, or until `stop`. A late writer catches up at most
        CATCH_UP_SECONDS.
        """
        now = time.monotonic()
        start = max(self._due, now - CATCH_UP_SECONDS)
        self._due = start + 8 * size / self._plan.rate_bits_per_second
        if start > now:
            with suppress(TimeoutError):
                async with within(start - now):
                    await self._stopped.wait()


class PingPong:
    """One WRITE_IMM at a time: the server answers each WRITE_IMM of the client with its own."""

    def __init__(self, qp: QP, source: Region, target: RemoteMemory, plan: PerfPlan) -> None:
        self._qp = qp
        self._source = source
        self._target = target
        self._plan = plan
        self._stopped = False
        self._answering = asyncio.Lock()
        self.tally = Tally()

    def stop(self) -> None:
        """Ends `run` after the current round trip."""
        self._stopped = True

    async def run(self) -> None:
        """Runs the client's end until `stop` or `plan.total_bytes`."""
        answers = self._qp.immediates()
        left = self._plan.total_bytes or -1
        while not self._stopped and left != 0:
            start = time.monotonic_ns()
            await self._say()
            await anext(answers)
            self.tally.add((time.monotonic_ns() - start) // 2)
            left = max(0, left - self._plan.size) if left > 0 else left

    async def answer(self) -> None:
        """Runs the server's end until it is cancelled."""
        async for _ in self._qp.immediates():
            async with self._answering:
                await self._say()
            self.tally.messages += 1

    async def answered(self) -> None:
        """Waits until the client has acknowledged the last answer."""
        async with self._answering:
            pass

    async def _say(self) -> None:
        if self._plan.size:
            source, twice = self._source[: self._plan.size], self._plan.redundant
            await self._qp.write(source, self._target, imm=0, redundant=twice)
        else:
            await self._qp.write(imm=0)


def load_of(
    plan: PerfPlan, qps: Sequence[QP], source: Region, target: RemoteMemory, *, writes: bool
) -> Load | PingPong:
    """The load of one end; a Load without QPs if this end does not write."""
    if plan.pattern is Pattern.PING_PONG:
        return PingPong(qps[0], source, target, plan)
    return Load(qps if writes else (), source, target, plan)


async def stopped(work: asyncio.Task[None]) -> None:
    """Waits for the task and raises its error. Cancelling this wait does not cancel the task."""
    try:
        await asyncio.shield(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from None


async def settled(work: asyncio.Task[None]) -> None:
    """Waits for the end of a task that has been stopped; cancels it after SETTLE_SECONDS."""
    try:
        async with Limit(SETTLE_SECONDS):
            await asyncio.wait({work})
    except TimeoutError:
        await cancelled(work)
    else:
        await stopped(work)


async def failing(work: asyncio.Task[None]) -> NoReturn:
    """Raises the task's error; waits for ever if the task ends without one."""
    await stopped(work)
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends this future")
