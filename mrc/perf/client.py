# SPDX-License-Identifier: Apache-2.0
"""The client of a test: connects to a server and runs plans with it, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.binding.verbs import RemoteMemory
from mrc.messaging.session import Session, connect_session
from mrc.perf.load import Load, PingPong, Tally, load_of
from mrc.perf.memory import regions
from mrc.perf.messages import (
    QP_SERVICE,
    SERVICE,
    Outcome,
    hear,
    hear_outcome,
    outcome_of,
    say,
)
from mrc.perf.meter import Interval, Meter
from mrc.perf.plan import Pattern, Plan
from mrc.perf.work import failing, stopped
from mrc.tasks import cancelled

LAST_WORDS_SECONDS = 2.0  # time limit for the server's result after an interruption


@dataclass(frozen=True, slots=True)
class TestResult:
    """The results of both ends. `server` is None if an interrupted test did not receive it."""

    plan: Plan
    client: Outcome
    server: Outcome | None
    intervals: tuple[Interval, ...]
    interrupted: bool


@asynccontextmanager
async def connect(ctx: Context, host: str, port: int, *, timeout: float) -> AsyncIterator[Client]:
    """A client of the server at `host`; raises ConnectError, PathError or ResolveError."""
    async with connect_session(ctx, host, port, SERVICE, timeout=timeout) as session:
        yield Client(ctx, session, host, port, timeout)


class Client:
    """Runs one plan at a time."""

    def __init__(
        self, ctx: Context, session: Session, host: str, port: int, timeout: float
    ) -> None:
        self.session = session
        self._ctx = ctx
        self._host = host
        self._port = port
        self._timeout = timeout

    async def run(
        self,
        plan: Plan,
        *,
        interval_seconds: float = 1.0,
        on_interval: Callable[[Interval], None] = lambda _: None,
    ) -> TestResult:
        """Runs `plan`. If it is cancelled during the test, it ends the test early and returns the
        measurements so far, with `interrupted` set.
        """
        async with regions(self._ctx, plan.memory_bytes) as memory, AsyncExitStack() as stack:
            target = memory.target.remote.to_json()
            await say(self.session, "plan", plan=plan.to_json(), memory=target)
            ready = await hear(self.session, "ready")
            theirs = RemoteMemory.from_json(ready.get("memory"))
            qps = [await self._connect(stack, ready.get("token")) for _ in range(plan.qps)]
            await hear(self.session, "connected")
            meter = await stack.enter_async_context(Meter(self._ctx, qps, bin_ns=plan.bin_ns))
            load = load_of(plan, qps, memory.source, theirs, writes=plan.client_writes)
            test = _Test(self.session, plan, load, meter)
            return await test.run(interval_seconds, on_interval)

    async def _connect(self, stack: AsyncExitStack, token: object) -> QP:
        private = {"service": QP_SERVICE, "token": token}
        qp = await self._ctx.connect(self._host, self._port, private=private, timeout=self._timeout)
        return await stack.enter_async_context(qp)


@dataclass(slots=True)
class _Test:
    """One running test."""

    session: Session
    plan: Plan
    load: Load | PingPong
    meter: Meter
    intervals: list[Interval] = field(default_factory=list)

    async def run(
        self, interval_seconds: float, on_interval: Callable[[Interval], None]
    ) -> TestResult:
        await self.meter.begin()
        await say(self.session, "start")
        work = asyncio.create_task(self.load.run())
        try:
            interrupted = await self._until_interrupted(
                self.session.watched(
                    self._measure(work, interval_seconds, on_interval), failing(work)
                )
            )
            self.load.stop()
            client, server = await self._finish(work, LAST_WORDS_SECONDS if interrupted else None)
        finally:
            await cancelled(work)
        return TestResult(self.plan, client, server, tuple(self.intervals), interrupted)

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs `work`; returns whether it was cancelled before its end."""
        try:
            await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return True
        return False

    async def _finish(
        self, work: asyncio.Task[None], seconds: float | None
    ) -> tuple[Outcome, Outcome | None]:
        """Waits for the writes in flight, at most `seconds`, and requests the server's outcome."""
        try:
            async with asyncio.timeout(seconds):
                await self.session.watched(stopped(work))
                client = await outcome_of(self.meter, self.load.tally)
                await say(self.session, "stop")
                return client, await hear_outcome(self.session)
        except TimeoutError:
            return await outcome_of(self.meter, self.load.tally), None

    async def _measure(
        self,
        work: asyncio.Task[None],
        interval_seconds: float,
        on_interval: Callable[[Interval], None],
    ) -> None:
        """Runs the omitted part and the measured part of the test."""
        if self.plan.omit_seconds:
            await asyncio.sleep(self.plan.omit_seconds)
            await say(self.session, "mark")
            await self.meter.begin()
            self.load.tally = Tally()
        laps = asyncio.create_task(self._laps(interval_seconds, on_interval))
        try:
            await self._until_over(work)
        finally:
            await cancelled(laps)

    async def _until_over(self, work: asyncio.Task[None]) -> None:
        if self.plan.seconds:
            await asyncio.sleep(self.plan.seconds)
            return
        await stopped(work)
        if self.plan.server_writes and self.plan.pattern is Pattern.STREAM:
            await hear(self.session, "finished")

    async def _laps(self, interval_seconds: float, on_interval: Callable[[Interval], None]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += interval_seconds
            await asyncio.sleep(due - loop.time())
            interval = await self.meter.lap()
            self.intervals.append(interval)
            on_interval(interval)
