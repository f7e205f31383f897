# SPDX-License-Identifier: Apache-2.0
"""The server of tests: runs the plans of any number of clients at the same time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct, field

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.admission import BudgetError
from mrc.engine.memory import RemoteMemory
from mrc.errors import InUseError, MrcError
from mrc.mailbox import MailboxClosedError, MailboxSession, accept_session, let_look
from mrc.perf.load import (
    MAX_SECONDS,
    Load,
    PerfPlan,
    PingPong,
    Regions,
    failing,
    load_of,
    regions,
    settled,
    stopped,
)
from mrc.perf.messages import (
    QP_SERVICE,
    SERVICE,
    Message,
    PerfOutcome,
    hear,
    outcome_of,
    say,
    say_outcome,
)
from mrc.perf.meter import Meter
from mrc.tasks import Limit, cancelled
from mrc.units import digits

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
        return qp.private.get("service") == SERVICE.name

    @property
    def private(self) -> dict[str, Any]:
        """The private data that the listener must send to clients."""
        return {"service": SERVICE.name}

    async def serve(self, qp: QP) -> None:
        """Serves a QP until the peer closes it; raises the error that ends a session."""
        if self.is_session(qp):
            async with accept_session(self._ctx, qp, SERVICE) as session:
                await self._serve_session(session)
        elif qp.private.get("service") == QP_SERVICE:
            await self._join(qp)
        else:
            await let_look(qp)

    async def _join(self, qp: QP) -> None:
        """Adds a QP to the test that its token names, and keeps it until the test ends."""
        token = qp.private.get("token")
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
                peer, needed = session.qp.peer_address, 2 * plan.memory_bytes
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
            self._on_outcome(session.qp.peer_host, plan, outcome)

    async def _carry_out(
        self, session: MailboxSession, plan: PerfPlan, message: Message
    ) -> PerfOutcome:
        theirs = RemoteMemory.from_dict(message.get("memory"))
        async with (
            regions(self._ctx, plan.memory_bytes) as memory,
            self._connected(session, plan, memory) as qps,
            Meter(self._ctx, qps, bin_ns=plan.bin_ns) as meter,
        ):
            await say(session, "connected")
            async with _patience(session, "the start of its test"):
                await hear(session, "start")

            def load() -> Load | PingPong:
                return load_of(plan, qps, memory.source, theirs, writes=plan.server_writes)

            most_seconds = plan.omit_seconds + (plan.seconds or MAX_SECONDS)
            async with _patience(session, "the end of its test", most_seconds):
                outcome = await _run(session, load, meter)
            await say_outcome(session, outcome)
            return outcome

    @asynccontextmanager
    async def _connected(
        self, session: MailboxSession, plan: PerfPlan, memory: Regions
    ) -> AsyncIterator[list[QP]]:
        """Waits until the client has connected the QPs of this plan, and yields them."""
        token, test = secrets.token_hex(8), ServedTest(plan)
        self._tests[token] = test
        try:
            await say(session, "ready", token=token, memory=memory.target.remote.to_dict())
            async with Limit(CONNECT_SECONDS):
                await session.watched(test.complete.wait())
            yield test.qps
        except TimeoutError:
            raise MrcError(f"{session.qp.peer_host} did not connect the QPs of its plan") from None
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
        raise MrcError(f"{session.qp.peer_host} {late}") from None


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
