# SPDX-License-Identifier: Apache-2.0
"""The client of a test: connects to a server and runs plans with it, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from msgspec import Struct

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.engine.memory import RemoteMemory
from mrc.errors import MrcError, reason_of
from mrc.mailbox import MailboxSession, connect_session
from mrc.perf.load import (
    Load,
    Pattern,
    PerfPlan,
    PingPong,
    failing,
    load_of,
    regions,
    settled,
    stopped,
)
from mrc.perf.messages import (
    QP_SERVICE,
    SERVICE,
    PerfOutcome,
    hear,
    hear_outcome,
    outcome_of,
    say,
)
from mrc.perf.meter import Meter, MeterInterval
from mrc.tasks import cancelled, first_error, took_cancellation

_AT_ONCE = 8  # connects of the QPs of a test; each takes several round trips
LAST_WORDS_SECONDS = 2.0  # after an interruption: for writes in flight and the server's result


class TestResult(Struct, frozen=True):
    """The results of both ends. `server` is None if it did not come: the test was interrupted, or
    failed.
    """

    plan: PerfPlan
    client: PerfOutcome
    server: PerfOutcome | None
    intervals: tuple[MeterInterval, ...]
    interrupted: bool


@asynccontextmanager
async def connect(ctx: Context, host: str, port: int, *, timeout: float) -> AsyncIterator[Client]:
    """A client of the server at `host`; raises ConnectError, PathError or ResolveError."""
    async with connect_session(ctx, host, port, SERVICE, timeout=timeout) as session:
        yield Client(ctx, session, host, port, timeout)


class Client:
    """Runs one plan at a time."""

    def __init__(
        self, ctx: Context, session: MailboxSession, host: str, port: int, timeout: float
    ) -> None:
        self.session = session
        self._ctx = ctx
        self._host = host
        self._port = port
        self._timeout = timeout

    async def run(
        self,
        plan: PerfPlan,
        *,
        interval_seconds: float = 1.0,
        on_interval: Callable[[MeterInterval], None] = lambda _: None,
        on_failed: Callable[[TestResult], None] = lambda _: None,
    ) -> TestResult:
        """Runs `plan`. If it is cancelled during the test, it ends the test early and returns the
        measurements so far, with `interrupted` set. If it fails, `on_failed` gets them.
        """
        async with regions(self._ctx, plan.memory_bytes) as memory, AsyncExitStack() as stack:
            target = memory.target.remote.to_dict()
            await say(self.session, "plan", plan=plan.to_dict(), memory=target)
            ready = await hear(self.session, "ready")
            theirs = RemoteMemory.from_dict(ready.get("memory"))
            qps = await stack.enter_async_context(_closing())
            await self._connect_all(qps, plan.qps, ready.get("token"))
            await hear(self.session, "connected")
            meter = await stack.enter_async_context(Meter(self._ctx, qps, bin_ns=plan.bin_ns))

            def load() -> Load | PingPong:
                return load_of(plan, qps, memory.source, theirs, writes=plan.client_writes)

            test = ClientTest(self.session, plan, load, meter, interval_seconds, on_interval)
            try:
                return await test.run()
            except MrcError:
                on_failed(await test.so_far())
                raise

    async def _connect_all(self, qps: list[QP], count: int, token: object) -> None:
        """Adds so many QPs; those that are connected when another one fails are in the list."""
        turns = asyncio.Semaphore(_AT_ONCE)
        private = {"service": QP_SERVICE, "token": token}

        async def add() -> None:
            async with turns:
                qp = await self._ctx.connect(
                    self._host, self._port, private=private, timeout=self._timeout
                )
                qps.append(qp)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(add())
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None


@asynccontextmanager
async def _closing() -> AsyncIterator[list[QP]]:
    """Closes the QPs of a list at the same time; writes that are still in flight are dropped."""
    qps: list[QP] = []
    try:
        yield qps
    except BaseException as error:
        await asyncio.gather(*(qp.abort(reason_of(error)) for qp in qps))
        raise
    await asyncio.gather(*(qp.close() for qp in qps))


class ClientTest:
    """One running test."""

    def __init__(
        self,
        session: MailboxSession,
        plan: PerfPlan,
        new_load: Callable[[], Load | PingPong],
        meter: Meter,
        interval_seconds: float,
        on_interval: Callable[[MeterInterval], None],
    ) -> None:
        self._session = session
        self._plan = plan
        self._new_load = new_load
        self._load = new_load()
        self._meter = meter
        self._interval_seconds = interval_seconds
        self._on_interval = on_interval
        self._intervals: list[MeterInterval] = []
        self._server_finished = False

    async def run(self) -> TestResult:
        client = server = None
        interrupted = False
        patience = asyncio.timeout(None)
        try:
            async with patience:
                if self._plan.omit_seconds:
                    interrupted = await self._part(self._plan.omit_seconds, patience, laps=False)
                if not interrupted:
                    interrupted = await self._part(self._plan.seconds, patience, laps=True)
                client = await self._outcome()
                await say(self._session, "end", seconds=client.total.seconds)
                server = await hear_outcome(self._session)
        except TimeoutError:
            if not patience.expired():
                raise
            interrupted = True
        client = client or await self._outcome()
        return TestResult(self._plan, client, server, tuple(self._intervals), interrupted)

    async def so_far(self) -> TestResult:
        """What was measured until the test failed."""
        client = await self._outcome()
        return TestResult(self._plan, client, None, tuple(self._intervals), True)

    async def _part(self, seconds: float, patience: asyncio.Timeout, *, laps: bool) -> bool:
        """Both ends write, for `seconds` if that is above 0, and then wait a little for their
        writes in flight, so that both count the same. Returns whether it was interrupted; then
        `patience` limits what remains of the test.
        """
        self._load = self._new_load()
        self._server_finished = False
        await self._meter.begin()
        await say(self._session, "start")
        await hear(self._session, "started")
        work = asyncio.create_task(self._load.run())
        watch = [asyncio.create_task(self._laps())] if laps else []
        try:
            over = self._until_over(work, seconds)
            interrupted = await self._until_interrupted(self._session.watched(over, failing(work)))
            if interrupted:
                patience.reschedule(asyncio.get_running_loop().time() + LAST_WORDS_SECONDS)
            self._load.stop()
            if self._plan.pattern is Pattern.PING_PONG:
                await self._session.watched(settled(work))  # the server answers until its stop
            await say(self._session, "stop")
            if not work.cancelled():
                await self._session.watched(settled(work))
            if not self._server_finished:
                await hear(self._session, "finished")
        finally:
            await cancelled(work, *watch)
        return interrupted

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs `work`; returns whether it was cancelled before its end."""
        try:
            await work
        except asyncio.CancelledError:
            took_cancellation()
            return True
        return False

    async def _until_over(self, work: asyncio.Task[None], seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
            return
        await stopped(work)
        if self._plan.server_writes and self._plan.pattern is Pattern.STREAM:
            await hear(self._session, "finished")
            self._server_finished = True

    async def _laps(self) -> None:
        """Reports an interval at a time. One that would end about when the test does goes on to the
        end of the test instead, which `_outcome` reports.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        number = 0
        while True:
            number = next_lap(number, loop.time() - begun, self._interval_seconds)
            after = number * self._interval_seconds
            if abs(after - self._plan.seconds) < self._interval_seconds / 10:
                continue
            await asyncio.sleep(begun + after - loop.time())
            self._tell(await self._meter.lap())

    async def _outcome(self) -> PerfOutcome:
        """Ends the last interval, and with it the measurements of this end."""
        with suppress(MrcError):  # a QP has failed: count up to the last interval
            self._tell(await self._meter.lap())
        return await outcome_of(self._meter, self._load.tally)

    def _tell(self, interval: MeterInterval) -> None:
        self._intervals.append(interval)
        self._on_interval(interval)


def next_lap(number: int, elapsed_seconds: float, interval_seconds: float) -> int:
    """The interval to report after this one. A process that stood still reports the time as one
    interval, not as several without a length.
    """
    return max(number + 1, int(elapsed_seconds / interval_seconds + 0.1) + 1)
