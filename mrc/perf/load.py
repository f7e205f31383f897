# SPDX-License-Identifier: Apache-2.0
"""The writing end of a test: keeps writes in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct, field

from mrc.aio.qp import QP
from mrc.engine.memory import MR, RemoteMemory
from mrc.perf.histogram import Histogram
from mrc.perf.plan import Pattern, Plan

CATCH_UP_SECONDS = 0.01


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

    def __init__(self, qps: Sequence[QP], source: MR, target: RemoteMemory, plan: Plan) -> None:
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
            await qp.write(
                self._source,
                self._target,
                length=size,
                local_offset=offset,
                remote_offset=offset,
            )
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
                async with asyncio.timeout(start - now):
                    await self._stopped.wait()


class PingPong:
    """One WRITE_IMM at a time: the server answers each WRITE_IMM of the client with its own."""

    def __init__(self, qp: QP, source: MR, target: RemoteMemory, plan: Plan) -> None:
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
            await self._qp.write_imm(self._source, self._target, imm=0, length=self._plan.size)
        else:
            await self._qp.write_imm(imm=0)


def load_of(
    plan: Plan, qps: Sequence[QP], source: MR, target: RemoteMemory, *, writes: bool
) -> Load | PingPong:
    """The load of one end; a Load without QPs if this end does not write."""
    if plan.pattern is Pattern.PING_PONG:
        return PingPong(qps[0], source, target, plan)
    return Load(qps if writes else (), source, target, plan)
