# SPDX-License-Identifier: Apache-2.0
"""The two ends of a test, and the messages between them, over the mailbox of the session's QP.

client: plan                    server: ready (its memory) | refuse
client: connects the QPs of the test, each with the token of its plan as private data
                                server: connected
client: start                   server: resets its counters; started
                                the writing ends begin, each until its plan's bytes or the stop
client: stop                    server: finished, when its writes in flight have ended or take too
                                long; it comes before the stop if the plan's bytes were written
client: start again             if this was the omitted part of the test
client: end (the seconds that both ends count)
                                server: bins in pieces, if the plan has bin_ns; then result
client: plan for the next test, or the end of the session
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import replace

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.admission import BudgetError
from mrc.connect.parse import shown
from mrc.engine.memory import RemoteMemory
from mrc.errors import InUseError, MrcError, ProtocolError, reason_of
from mrc.events import Immediate
from mrc.mailbox import MailboxClosedError, MailboxSession, Service
from mrc.perf.load import (
    MAX_SECONDS,
    Load,
    Pattern,
    PerfPlan,
    PingPong,
    Regions,
    Tally,
    failing,
    load_of,
    regions,
    settled,
    stopped,
)
from mrc.perf.meter import History, Meter, MeterInterval, PeerBins
from mrc.perf.results import Latency
from mrc.tasks import Limit, cancelled, first_error, took_cancellation, within
from mrc.typed import Whole, take
from mrc.units import digits

# A result with many changes is long.
SERVICE = Service("perf", "performance test", 5, long_answers=True)
QP_SERVICE = "perf-qp"  # service of the QPs that carry a test's writes

Message = dict[str, Any]
_Duration = Annotated[float, Meta(ge=0, le=1e9)]


class PlanRefusedError(MrcError):
    """The server refused the plan."""


async def say(session: MailboxSession, kind: str, **body: Any) -> None:
    """Sends a message; returns when the peer has acknowledged it."""
    await session.watched(session.mailbox.send({"type": kind, **body}))


async def hear(session: MailboxSession, *kinds: str) -> Message:
    """The peer's next message, which must be one of `kinds`.

    Raises RefusedError if the peer refuses, ProtocolError for any other message.
    """
    message = await session.receive()
    kind = None if isinstance(message, Immediate) else message.get("type")
    if isinstance(message, dict) and kind == "refuse":
        raise PlanRefusedError(f"{session.qp.peer.host}: {shown(message.get('error'))}")
    if isinstance(message, Immediate) or kind not in kinds:
        raise ProtocolError(
            f"{session.qp.peer.host} sent '{shown(kind, 40)}', not {' or '.join(kinds)}"
        )
    return message


@asynccontextmanager
async def served_memory(
    ctx: Context, host: str, port: int, size: int, *, timeout: float
) -> AsyncIterator[tuple[dict[str, Any], RemoteMemory]]:
    """Begins a test that needs so many bytes: the private data of its QPs, and the server's memory
    that they may write to. Raises SessionError where another service listens.
    """
    async with SERVICE.connect(ctx, host, port, timeout=timeout) as session:
        nothing = RemoteMemory(0, 0, 0).to_dict()
        plan = PerfPlan(size=size, depth=1, seconds=0, total_bytes=size)
        await say(session, "plan", plan=plan.to_dict(), memory=nothing)
        ready = await hear(session, "ready")
        private = {"service": QP_SERVICE, "token": ready.get("token")}
        yield private, RemoteMemory.from_dict(ready.get("memory"))


class PerfOutcome(Struct, frozen=True):
    """The result of one end of a test; `messages` counts the messages that this end wrote."""

    total: MeterInterval
    messages: Whole
    latency: Latency
    history: History | None = None

    def lasting(self, seconds: object) -> PerfOutcome:
        """This result over the time that the peer measured; raises ProtocolError."""
        try:
            return replace(self, total=replace(self.total, seconds=take(seconds, _Duration)))
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent no duration of the test: {why}") from None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the bins of the history."""
        history = self.history.to_dict() if self.history is not None else None
        told: dict[str, Any] = to_builtins(replace(self, history=None))
        return told | {"history": history}

    @classmethod
    def from_dict(cls, value: object, bins: PeerBins) -> PerfOutcome:
        """The inverse of `to_dict`; raises ProtocolError."""
        try:
            outcome = take(value, cls)
            history = outcome.history and outcome.history.completed(bins.planes)
            return replace(outcome, history=history)
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent a result that cannot be read: {why}") from None


async def outcome_of(meter: Meter, tally: Tally) -> PerfOutcome:
    """The result of this end, up to the last lap. Ends its history."""
    history = await meter.history()
    return PerfOutcome(meter.total(), tally.messages, tally.latency.summary(), history)


async def say_outcome(session: MailboxSession, outcome: PerfOutcome) -> None:
    """Sends the result of this end to the client."""
    if outcome.history is not None:
        for plane, bins in outcome.history.pieces():
            await say(session, "bins", plane=plane, bytes=bins)
    await say(session, "result", outcome=outcome.to_dict())


async def hear_outcome(session: MailboxSession) -> PerfOutcome:
    """Receives the server's result."""
    bins = PeerBins()
    while (message := await hear(session, "result", "bins"))["type"] != "result":
        if message["type"] == "bins":
            bins.add(message.get("plane"), message.get("bytes"))
    return PerfOutcome.from_dict(message.get("outcome"), bins)


# ---- The client: connects to a server and runs plans with it -------------------------------------


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
    async with SERVICE.connect(ctx, host, port, timeout=timeout) as session:
        yield Client(session, host, port, timeout)


class Client(Struct, frozen=True):
    """Runs one plan at a time."""

    session: MailboxSession
    host: str
    port: int
    timeout: float

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
        async with (
            regions(self.session.ctx, plan.memory_bytes) as memory,
            AsyncExitStack() as stack,
        ):
            target = memory.target.handle.to_dict()
            await say(self.session, "plan", plan=plan.to_dict(), memory=target)
            ready = await hear(self.session, "ready")
            theirs = RemoteMemory.from_dict(ready.get("memory"))
            qps = await stack.enter_async_context(_closing())
            await self._connect_all(qps, plan.qps, ready.get("token"))
            await hear(self.session, "connected")
            meter = await stack.enter_async_context(
                Meter(self.session.ctx, qps, bin_ns=plan.bin_ns)
            )
            load = partial(load_of, plan, qps, memory.source, theirs, writes=plan.client_writes)
            test = ClientTest(self.session, plan, load, meter, interval_seconds, on_interval)
            try:
                return await test.run()
            except MrcError:
                client = await test.outcome()
                on_failed(TestResult(plan, client, None, tuple(test.intervals), interrupted=True))
                raise

    async def _connect_all(self, qps: list[QP], count: int, token: object) -> None:
        """Adds so many QPs; those that are connected when another one fails are in the list."""
        turns = asyncio.Semaphore(_AT_ONCE)
        private = {"service": QP_SERVICE, "token": token}

        async def add() -> None:
            async with turns:
                qp = await self.session.ctx.connect(
                    self.host, self.port, private=private, timeout=self.timeout
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


class ClientTest(Struct, dict=True):
    """One running test."""

    session: MailboxSession
    plan: PerfPlan
    new_load: Callable[[], Load | PingPong]
    meter: Meter
    interval_seconds: float
    on_interval: Callable[[MeterInterval], None]
    intervals: list[MeterInterval] = field(default_factory=list)
    server_finished: bool = False

    def __post_init__(self) -> None:
        self.load = self.new_load()

    async def run(self) -> TestResult:
        client = server = None
        interrupted = False
        patience = within(None)
        try:
            async with patience:
                if self.plan.omit_seconds:
                    interrupted = await self._part(self.plan.omit_seconds, patience, laps=False)
                if not interrupted:
                    interrupted = await self._part(self.plan.seconds, patience, laps=True)
                client = await self.outcome()
                await say(self.session, "end", seconds=client.total.seconds)
                server = await hear_outcome(self.session)
        except TimeoutError:
            if not patience.expired():
                raise
            interrupted = True
        client = client or await self.outcome()
        return TestResult(self.plan, client, server, tuple(self.intervals), interrupted)

    async def _part(self, seconds: float, patience: asyncio.Timeout, *, laps: bool) -> bool:
        """Both ends write, for `seconds` if that is above 0, and then wait a little for their
        writes in flight, so that both count the same. Returns whether it was interrupted; then
        `patience` limits what remains of the test.
        """
        self.load = self.new_load()
        self.server_finished = False
        await self.meter.begin()
        await say(self.session, "start")
        await hear(self.session, "started")
        work = asyncio.create_task(self.load.run())
        watch = [asyncio.create_task(self._laps())] if laps else []
        try:
            interrupted = False
            try:
                over = self._until_over(work, seconds)
                await self.session.watched(over, *map(failing, (work, *watch)))
            except asyncio.CancelledError:
                took_cancellation()
                interrupted = True
                patience.reschedule(asyncio.get_running_loop().time() + LAST_WORDS_SECONDS)
            self.load.stop()
            if self.plan.pattern is Pattern.PING_PONG:
                await self.session.watched(settled(work))  # the server answers until its stop
            await say(self.session, "stop")
            if not work.cancelled():
                await self.session.watched(settled(work))
            if not self.server_finished:
                await hear(self.session, "finished")
        finally:
            await cancelled(work, *watch)
        return interrupted

    async def _until_over(self, work: asyncio.Task[None], seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
            return
        await stopped(work)
        if self.plan.server_writes and self.plan.pattern is Pattern.STREAM:
            await hear(self.session, "finished")
            self.server_finished = True

    async def _laps(self) -> None:
        """Reports an interval at a time. One that would end about when the test does, or later,
        goes on to the end of the test instead, which `outcome` reports.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        number = 0
        while True:
            number = next_lap(number, loop.time() - begun, self.interval_seconds)
            after = number * self.interval_seconds
            if 0 < self.plan.seconds < after + self.interval_seconds / 10:
                return
            await asyncio.sleep(begun + after - loop.time())
            self._tell(await self.meter.lap())

    async def outcome(self) -> PerfOutcome:
        """Ends the last interval, and with it the measurements of this end."""
        with suppress(MrcError):  # a QP has failed: count up to the last interval
            self._tell(await self.meter.lap())
        return await outcome_of(self.meter, self.load.tally)

    def _tell(self, interval: MeterInterval) -> None:
        self.intervals.append(interval)
        self.on_interval(interval)


def next_lap(number: int, elapsed_seconds: float, interval_seconds: float) -> int:
    """The interval to report after this one. A process that stood still reports the time as one
    interval, not as several without a length.
    """
    return max(number + 1, int(elapsed_seconds / interval_seconds + 0.1) + 1)


# ---- The server: runs the plans of any number of clients -----------------------------------------


CONNECT_SECONDS = 30.0  # time limit for connecting all QPs of a test
IDLE_SECONDS = 60.0  # time limit for a client's next message, besides the duration of its test


class ServedTest(Struct):
    """A test that runs, or whose QPs still connect."""

    plan: PerfPlan
    qps: list[QP] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PerfServer:
    """Serves connected QPs. Calls `on_outcome` with the client, the plan and this end's result."""

    def __init__(
        self, ctx: Context, on_outcome: Callable[[str, PerfPlan, PerfOutcome], None]
    ) -> None:
        self._ctx = ctx
        self._on_outcome = on_outcome
        self._tests: dict[str, ServedTest] = {}

    def is_session(self, qp: QP) -> bool:
        """Whether this QP is a client's session, over which it requests tests."""
        return qp.peer.private.get("service") == SERVICE.name

    async def serve(self, qp: QP) -> None:
        """Serves a QP until the peer closes it; raises the error that ends a session."""
        if self.is_session(qp):
            async with SERVICE.accept(self._ctx, qp) as session:
                await self._serve_session(session)
        elif qp.peer.private.get("service") == QP_SERVICE:
            await self._join(qp)
        else:
            await SERVICE.let_look(qp)

    async def _join(self, qp: QP) -> None:
        """Adds a QP to the test that its token names, and keeps it until the test ends."""
        token = qp.peer.private.get("token")
        test = self._tests.get(token) if isinstance(token, str) else None
        if test is None or test.complete.is_set():
            await qp.abort("no test waits for this QP")
            return
        async with qp:
            test.qps.append(qp)
            if len(test.qps) == test.plan.qps:
                test.complete.set()
            await test.ended.wait()

    async def _serve_session(self, session: MailboxSession) -> None:
        while True:
            try:
                async with _patience(session, "a plan"):
                    message = await hear(session, "plan")
            except MailboxClosedError:
                return
            try:
                plan = PerfPlan.from_dict(message.get("plan"))
                peer, needed = session.qp.peer.address, 2 * plan.memory_bytes
                with self._ctx._peer_memory.taken(peer, needed):
                    outcome = await self._carry_out(session, plan, message)
            except (MemoryError, OSError) as error:
                await say(session, "refuse", error=f"no memory for the test: {error}")
                continue
            except BudgetError as error:
                await say(session, "refuse", error=f"{error}; mrc perf --server --max-memory")
                continue
            except InUseError as error:
                await say(session, "refuse", error=f"another test has --bins: {error}")
                continue
            self._on_outcome(session.qp.peer.host, plan, outcome)

    async def _carry_out(
        self, session: MailboxSession, plan: PerfPlan, message: Message
    ) -> PerfOutcome:
        theirs = RemoteMemory.from_dict(message.get("memory"))
        async with (
            regions(self._ctx, plan.memory_bytes) as memory,
            self._joined(session, plan, memory) as qps,
            Meter(self._ctx, qps, bin_ns=plan.bin_ns) as meter,
        ):
            await say(session, "connected")
            async with _patience(session, "the start of its test"):
                await hear(session, "start")
            load = partial(load_of, plan, qps, memory.source, theirs, writes=plan.server_writes)
            most_seconds = plan.omit_seconds + (plan.seconds or MAX_SECONDS)
            async with _patience(session, "the end of its test", most_seconds):
                outcome = await _run(session, load, meter)
            await say_outcome(session, outcome)
            return outcome

    @asynccontextmanager
    async def _joined(
        self, session: MailboxSession, plan: PerfPlan, memory: Regions
    ) -> AsyncIterator[list[QP]]:
        """Waits until the client has connected the QPs of this plan, and yields them."""
        token, test = secrets.token_hex(8), ServedTest(plan)
        self._tests[token] = test
        try:
            await say(session, "ready", token=token, memory=memory.target.handle.to_dict())
            async with Limit(CONNECT_SECONDS):
                await session.watched(test.complete.wait())
            yield test.qps
        except TimeoutError:
            raise MrcError(f"{session.qp.peer.host} did not connect the QPs of its plan") from None
        finally:
            del self._tests[token]
            test.ended.set()


@asynccontextmanager
async def _patience(
    session: MailboxSession, what: str, seconds: float = 0.0
) -> AsyncIterator[None]:
    """Limits the body to IDLE_SECONDS plus `seconds`: an idle session occupies memory."""
    try:
        async with Limit(seconds + IDLE_SECONDS):
            yield
    except TimeoutError:
        late = f"did not send {what} within {digits(seconds + IDLE_SECONDS)} s"
        raise MrcError(f"{session.qp.peer.host} {late}") from None


async def _run(
    session: MailboxSession, new_load: Callable[[], Load | PingPong], meter: Meter
) -> PerfOutcome:
    """Runs the test from the client's first start message, which has come, to its end message."""
    told: Message = {"type": "start"}
    while told["type"] == "start":
        load = new_load()
        await meter.begin()
        await say(session, "started")
        await _part(session, load, meter)
        told = await hear(session, "start", "end")
    await meter.lap()
    outcome = await outcome_of(meter, load.tally)
    return outcome.lasting(told.get("seconds"))


async def _part(session: MailboxSession, load: Load | PingPong, meter: Meter) -> None:
    """Writes until the client's stop message, and a little longer for the writes in flight."""
    work = asyncio.create_task(load.answer() if isinstance(load, PingPong) else load.run())
    telling = asyncio.create_task(_tell_end(session, work, meter))
    try:
        await session.watched(hear(session, "stop"), failing(telling))
        if isinstance(load, PingPong):
            answered = asyncio.create_task(load.answered())
            await session.watched(settled(answered), failing(telling))
            work.cancel()
        else:
            load.stop()
            await session.watched(settled(work))
        await session.watched(stopped(telling))
    finally:
        await cancelled(work, telling)


async def _tell_end(session: MailboxSession, work: asyncio.Task[None], meter: Meter) -> None:
    """Tells the client that this end writes no more; raises the error of its work."""
    await asyncio.wait({work})
    if not work.cancelled():
        await stopped(work)
    await meter.wrote()
    await say(session, "finished")
