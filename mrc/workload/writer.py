# SPDX-License-Identifier: Apache-2.0
"""The writes of a flow at its sender: when each becomes due, as in csrc/sim/traffic.c."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Protocol

from mrc.errors import MrcError
from mrc.workload.task import Counts, FlowTask, SentFlow

_EARLY_SECONDS = 0.001  # that a timer of uvloop may come before its time


class FlowLink(Protocol):
    """A connection that carries the writes of one flow."""

    async def write(self) -> None:
        """Writes once, and returns when the receiver has all bytes. Raises MrcError or OSError."""

    async def counts(self) -> Counts: ...


class Writer:
    """Writes a flow. `on_step` is called when a step has ended that another one follows."""

    def __init__(
        self, flow: FlowTask, link: FlowLink, seed: int, on_step: Callable[[int], None]
    ) -> None:
        self.flow = flow
        self._link = link
        self._on_step = on_step
        self._intervals = random.Random(f"intervals {flow.number} {seed}")
        self._numbers = iter(range(flow.writes))
        self._due = asyncio.Semaphore(0)
        self._wanted_ns: list[int] = []
        self._allowed = self._arrived = 0
        self._times: list[tuple[int, int]] = []
        self._first_ns = self._last_ns = 0
        self._posted = self._completed = self._failed = 0
        self._error = ""

    async def run(self, start_ns: int) -> None:
        """Ends when all writes have ended."""
        await sleep_until(start_ns + self.flow.start_ns)
        n = min(self.flow.depth, self.flow.writes)
        slots = [asyncio.create_task(self._slot()) for _ in range(n)]
        slots += [asyncio.create_task(self._open_loop())] if self.flow.interval_ns else []
        try:
            if not self.flow.interval_ns:
                self.begin_step()
            await asyncio.gather(*slots)
        except (MrcError, OSError) as error:
            self._error = str(error) or type(error).__name__
            self._failed = self.flow.writes - self._completed
            self._last_ns = time.monotonic_ns()
        finally:
            for slot in slots:
                slot.cancel()

    def begin_step(self) -> None:
        """Lets the writes of the next step, or all writes, become due."""
        self._allowed += self.flow.step_writes or self.flow.writes
        self._want(self.flow.writes if self.flow.after is None else self._arrived + 1)

    def on_arrival(self, arrived: int) -> None:
        """The flow that this one waits for has brought so many writes."""
        self._arrived = arrived
        if self._wanted_ns:
            self._want(arrived + 1)

    def _want(self, wanted: int) -> None:
        while len(self._wanted_ns) < min(wanted, self._allowed):
            self._wanted_ns.append(time.monotonic_ns())
            self._due.release()

    async def _open_loop(self) -> None:
        self._allowed = self.flow.writes
        at_ns = time.monotonic_ns()
        for wanted in range(1, self.flow.writes + 1):
            self._want(wanted)
            at_ns += round(self._intervals.expovariate(1 / self.flow.interval_ns))
            await sleep_until(at_ns)

    async def _slot(self) -> None:
        for number in self._numbers:
            await self._due.acquire()
            self._posted += 1
            self._first_ns = self._first_ns or time.monotonic_ns()
            await self._link.write()
            self._last_ns = time.monotonic_ns()
            self._completed += 1
            self._times.append((self._wanted_ns[number], self._last_ns))
            if self._completed == self._allowed < self.flow.writes and self.flow.step_writes:
                self._on_step(self.flow.number)

    async def sent(self, start_ns: int) -> SentFlow:
        """What became of the flow. Times count from `start_ns`."""
        return SentFlow(
            number=self.flow.number,
            first_ns=max(0, self._first_ns - start_ns),
            last_ns=max(0, self._last_ns - start_ns),
            posted=self._posted,
            completed=self._completed,
            failed=self._failed,
            counts=await self._link.counts(),
            times=tuple((due - start_ns, done - start_ns) for due, done in self._times),
            error=self._error,
        )


async def sleep_until(at_ns: int) -> None:
    """Until a time of the monotonic clock."""
    await asyncio.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
    if time.monotonic_ns() < at_ns:
        await asyncio.sleep(_EARLY_SECONDS)
