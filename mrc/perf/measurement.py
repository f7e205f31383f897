# SPDX-License-Identifier: Apache-2.0
"""Measurements for programs: `measure` runs tests against a server, `serve` is such a server; and
how what their ends count becomes the declared results.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import mrc
from mrc import mailbox, versions
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.cli import figures
from mrc.config import ContextConfig, Limits, Queues
from mrc.connect.listener import Listener
from mrc.connect.parse import Destination, host_and_port
from mrc.errors import ArgumentError
from mrc.perf.load import MAX_QPS, MAX_SECONDS, Pattern, PerfDirection, PerfPlan
from mrc.perf.meter import History, MeterInterval
from mrc.perf.results import (
    Changes,
    Interval,
    IntervalEvent,
    Perf,
    PerfEnd,
    PerfMachine,
    PerfServed,
    ReceivedPlane,
    SentPlane,
    Setup,
    StartEvent,
    Test,
    TestEvent,
    TestPlan,
)
from mrc.perf.session import SERVICE, PerfOutcome, PerfServer, TestResult, connect
from mrc.results import like
from mrc.tasks import Opening, cancelled
from mrc.typed import checked
from mrc.units import digits

logger = logging.getLogger("mrc.perf")

Progress = Callable[[StartEvent | IntervalEvent | TestEvent], object]
SWEEP_SIZES = tuple(2**power for power in range(1, 24))
SWEEP_SECONDS = 1.0
SIZE = 1 << 20
LATENCY_SIZE = 2
SECONDS = 10.0
LEAST_INTERVAL_SECONDS = 0.001


# ---- The client ----------------------------------------------------------------------------------


async def measure(
    target: str,
    *,
    size: int | None = None,
    seconds: float | None = None,
    total_bytes: int | None = None,
    omit_seconds: float = 0.0,
    qps: int = 1,
    depth: int = 8,
    rate_bits_per_second: float = 0.0,
    reverse: bool = False,
    bidirectional: bool = False,
    latency: bool = False,
    sweep: bool = False,
    redundant: bool = False,
    bin_ns: int = 0,
    interval_seconds: float = 1.0,
    progress: Progress | None = None,
    timeout: float = 5.0,
    context: Context | None = None,
    config: ContextConfig | None = None,
) -> Perf:
    """What `mrc perf HOST --json` prints of a test against the server at `target`, "host" or
    "host:port": of `serve`, or of `mrc perf --server` there.

    Writes of `size` bytes [1 MiB; 2 with `latency`] stay in flight, `depth` on each of so many
    `qps`, for `seconds` [10] or until each writing end has written `total_bytes`.

    - `reverse`: the server writes; `bidirectional`: both ends write.
    - `latency`: one WRITE_IMM at a time is answered by another.
    - `sweep`: a test of `seconds` [1] with each power of two from 2 B to 8 MiB as size.
    - `omit_seconds`: run before `seconds` begin, and not counted.
    - `rate_bits_per_second`: limit of each writing end; 0: none.
    - `redundant`: each packet leaves on two planes; for messages of at most 64 KiB.
    - `bin_ns`: width of the bins in which both ends record the bytes that arrive; 0: no recording.
    - `progress` is called with each event that `mrc perf --json-stream` prints, as it happens:
      first a StartEvent, then IntervalEvents, `interval_seconds` apart, and a TestEvent of each
      test. An exception that it raises ends the measurement.
    - `timeout`: time limit for connecting, in seconds.
    - `context` is an open Context to use; else one is opened with `config`, and closed at the end.

    Raises ArgumentError for wrong arguments; ConnectError, ResolveError and PathError when it
    cannot connect; PlanRefusedError when the server has not enough memory; and another MrcError if
    a test fails. Before it raises during a test, also CancelledError, `progress` gets a TestEvent
    of what was measured until then, with `interrupted` set.
    """
    tests = plans(
        size=size, seconds=seconds, total_bytes=total_bytes, omit_seconds=omit_seconds, qps=qps,
        depth=depth, rate_bits_per_second=rate_bits_per_second, reverse=reverse,
        bidirectional=bidirectional, latency=latency, sweep=sweep, redundant=redundant,
        bin_ns=bin_ns,
    )  # fmt: skip
    if not LEAST_INTERVAL_SECONDS <= interval_seconds <= MAX_SECONDS:
        within = f"{digits(LEAST_INTERVAL_SECONDS)}..{digits(MAX_SECONDS)}"
        raise ArgumentError(f"interval_seconds: {interval_seconds!r:.40} is not within {within}")
    target = checked("target", target, str)
    try:
        destination = host_and_port(target)
    except ValueError as error:
        raise ArgumentError(f"target: {error}") from None
    async with _opened(context, config) as ctx:
        found = await run(
            ctx, destination, tests, interval_seconds=interval_seconds, timeout=timeout,
            progress=progress or (lambda _: None),
        )  # fmt: skip
    if found.results[-1].interrupted and (task := asyncio.current_task()):
        task.cancel()  # once more: the test took the cancellation, to end in order
        await asyncio.sleep(0)
    return found


def plans(
    *,
    size: int | None,
    seconds: float | None,
    total_bytes: int | None,
    reverse: bool,
    bidirectional: bool,
    latency: bool,
    sweep: bool,
    qps: int,
    bin_ns: int,
    names: Mapping[str, str] | None = None,
    **others: Any,
) -> list[PerfPlan]:
    """The tests that these arguments of `measure` ask for; raises ArgumentError. `names` has what
    its message calls an argument, if not by its name.
    """
    for wrong, why in (
        (seconds and total_bytes, "{seconds} and {total_bytes}: use only one of them"),
        (reverse and bidirectional, "{reverse} and {bidirectional}: use only one of them"),
        (
            sweep and (size is not None or total_bytes),
            "{sweep}: tests every size for a time; use neither {size} nor {total_bytes} with it",
        ),
        (sweep and bin_ns, "{bin_ns}: not available for a sweep ({sweep})"),
        (
            latency and (reverse or bidirectional or qps != 1),
            "{latency}: uses one QP and both directions; drop {qps}, {reverse} and {bidirectional}",
        ),
    ):
        if wrong:
            known = ("bidirectional", "bin_ns", "latency", "qps", "reverse", "seconds", "size",
                     "sweep", "total_bytes")  # fmt: skip
            raise ArgumentError(why.format(**{each: each for each in known} | dict(names or {})))
    default = LATENCY_SIZE if latency else SIZE
    length = (SWEEP_SECONDS if sweep else SECONDS) if seconds is None else seconds
    direction = PerfDirection.REVERSE if reverse else PerfDirection.FORWARD
    return [
        PerfPlan(
            pattern=Pattern.PING_PONG if latency else Pattern.STREAM,
            direction=PerfDirection.BOTH if bidirectional else direction,
            size=each,
            qps=qps,
            seconds=0.0 if total_bytes is not None else length,
            total_bytes=total_bytes or 0,
            bin_ns=bin_ns,
            **others,
        )
        for each in (SWEEP_SIZES if sweep else (default if size is None else size,))
    ]


async def run(
    ctx: Context,
    destination: Destination,
    tests: Sequence[PerfPlan],
    *,
    progress: Progress,
    interval_seconds: float,
    timeout: float,
    arguments: Sequence[str] = (),
) -> Perf:
    """Runs the tests one after the other; see `measure`. `arguments` are those of a command. When
    it is cancelled during a test, it returns what was measured until then.
    """
    host, port = destination

    def show(interval: MeterInterval) -> None:
        progress(like(IntervalEvent, interval_of(interval)))

    def add(result: TestResult) -> None:
        done.append(test_of(result))
        progress(like(TestEvent, done[-1]))

    async with connect(ctx, host, port, timeout=timeout) as client:
        done: list[Test] = []
        setup = like(
            Setup,
            figures.settings(ctx, client.session.qp, tcp_port=port),
            planes=client.session.qp.planes,
            machine=machine(ctx, arguments),
        )
        progress(like(StartEvent, setup))
        for plan in tests:
            result = await client.run(
                plan, interval_seconds=interval_seconds, on_interval=show, on_failed=add
            )
            add(result)
            if result.interrupted:
                break
        return like(Perf, setup, results=tuple(done))


def _opened(
    context: Context | None, config: ContextConfig | None
) -> AbstractAsyncContextManager[Context]:
    if context is None:
        return mrc.open(config)
    if config is not None:
        raise ArgumentError("context and config: use only one of them")
    return nullcontext(context)


# ---- The server ----------------------------------------------------------------------------------


def serve(
    host: str | None = None,
    port: int = versions.TCP_PORT,
    *,
    one_off: bool = False,
    on_served: Callable[[PerfServed], object] | None = None,
    on_failed: Callable[[str, Exception], object] | None = None,
    context: Context | None = None,
    config: ContextConfig | None = None,
) -> Opening[Server]:
    """Serves the tests of `measure` and of `mrc perf`: what `mrc perf --server` does.

    It listens on the address `host` [every address of this host] and TCP `port`; 0: a free one,
    which `Server.port` has. `on_served` is called with each test that ended, `on_failed` with a
    client and the error that ended its session; without it a warning is logged. With `one_off` the
    server ends after its first client.

    `context` is an open Context to use; else one is opened with `config`, and closed at the end. A
    test of more than 60 QPs needs a `config` with a larger `Limits.max_qps_per_source`; without
    `config` all tests are possible.

    Raises ArgumentError for wrong arguments, and what `Context.listen` raises.
    """
    server = Server(one_off, on_served or (lambda _: None), on_failed or _log)
    config = server_config() if context is None and config is None else config
    return Opening(server._open(host, port, context, config))


def server_config(max_peer_bytes: int = Limits().max_peer_bytes, **fields: Any) -> ContextConfig:
    """A configuration with which a server admits every test."""
    return ContextConfig(
        limits=Limits(max_peer_bytes=max_peer_bytes, max_qps_per_source=2 * MAX_QPS),
        queues=Queues(max_unread=mailbox.MAX_UNREAD),
        **fields,
    )


def _log(client: str, error: Exception) -> None:
    logger.warning("the session of %s failed: %s", client, error)


class Server:
    """Serves tests, until it is closed."""

    context: Context
    """The Context that it uses."""
    port: int
    """Its TCP port."""

    def __init__(
        self,
        one_off: bool,
        on_served: Callable[[PerfServed], object],
        on_failed: Callable[[str, Exception], object],
    ) -> None:
        self._one_off = one_off
        self._on_served = on_served
        self._on_failed = on_failed
        self._held = AsyncExitStack()
        self._last: Exception | None = None

    async def _open(
        self, host: str | None, port: int, context: Context | None, config: ContextConfig | None
    ) -> Server:
        async with AsyncExitStack() as held:
            self.context = await held.enter_async_context(_opened(context, config))
            listening = self.context.listen(host, port, private={"service": SERVICE.name})
            listener = await held.enter_async_context(listening)
            self.port = listener.port
            self._running = asyncio.create_task(self._run(listener))
            held.push_async_callback(cancelled, self._running)
            self._held = held.pop_all()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _run(self, listener: Listener) -> None:
        await mailbox.race(self._accept(listener), mailbox.Service.until_guessed(self.context))

    async def _accept(self, listener: Listener) -> None:
        """Serves clients until the listener ends: with `one_off` after the first client, with a
        one-time code after the one that it lets in.
        """
        server = PerfServer(self.context, self._show)

        async def serve_one(qp: QP) -> None:
            failed: Exception | None = None
            try:
                await server.serve(qp)
            except Exception as error:
                failed = error
                self._on_failed(qp.peer.host, error)
            if server.is_session(qp) and (self._one_off or self.context._is_closed):
                self._last = failed
                await listener.close()

        async with asyncio.TaskGroup() as serving:
            async for qp in listener:
                serving.create_task(serve_one(qp))

    def _show(self, client: str, plan: PerfPlan, outcome: PerfOutcome) -> None:
        end = end_of(plan, outcome, receives=plan.server_receives)
        self._on_served(PerfServed(peer=client, plan=plan_of(plan), server=end))

    async def until_closed(self) -> Exception | None:
        """Waits until it serves nobody any more, and returns the error that ended the session of
        its last client, if it ended by itself. Raises MrcError when the one-time code is used up
        and nobody has connected.
        """
        await asyncio.wait((self._running,))
        if not self._running.cancelled():
            self._running.result()
        return self._last

    async def close(self) -> None:
        """Ends all sessions and tests, and closes the Context if it has opened it."""
        await self._held.aclose()


# ---- Results -------------------------------------------------------------------------------------


def interval_of(interval: MeterInterval) -> Interval:
    return like(Interval, interval, **_by_plane(interval))


def _by_plane(interval: MeterInterval) -> dict[str, Any]:
    sent, received = interval.planes, interval.planes_received
    percent, back = figures.carried_percent(sent), figures.carried_percent(received)
    return {
        "planes": tuple(
            SentPlane(
                plane=plane,
                sent_bytes=count,
                carried_percent=percent[plane],
                slow=plane in interval.planes_slow,
                suspended=plane in interval.planes_suspended,
                weight=interval.weights.get(plane, 100),
            )
            for plane, count in sent.items()
        ),
        "planes_received": tuple(
            ReceivedPlane(plane=plane, received_bytes=count, carried_percent=back[plane])
            for plane, count in received.items()
        ),
    }


def end_of(plan: PerfPlan, outcome: PerfOutcome, *, receives: bool) -> PerfEnd:
    """The result of one end. `bins` is None for an end that receives nothing."""
    ping_pong = plan.pattern is Pattern.PING_PONG
    total, history = outcome.total, outcome.history
    return like(
        PerfEnd,
        total,
        **_by_plane(total),
        messages=outcome.messages,
        messages_per_second=outcome.messages / total.seconds if total.seconds > 0 else 0.0,
        latency_of="half round trip" if ping_pong else "completion",
        latency=outcome.latency if outcome.latency.count else None,
        bins=figures.bins(history.recording) if history and receives else None,
        changes=changes(history) if history else None,
    )


def plan_of(plan: PerfPlan) -> TestPlan:
    return like(
        TestPlan,
        plan,
        pattern=plan.pattern.value,
        direction=plan.direction.value,
        message_bytes=plan.size,
        seconds=plan.seconds or None,
        total_bytes=plan.total_bytes or None,
        rate_bits_per_second=plan.rate_bits_per_second or None,
        bin_ns=plan.bin_ns or None,
        redundant=plan.redundant,
    )


def test_of(result: TestResult) -> Test:
    plan, server, total = result.plan, result.server, result.client.total
    return Test(
        plan=plan_of(plan),
        interrupted=result.interrupted,
        goodput_bits_per_second=total.written_bits_per_second + total.received_bits_per_second,
        intervals=tuple(map(interval_of, result.intervals)),
        client=end_of(plan, result.client, receives=plan.client_receives),
        server=None if server is None else end_of(plan, server, receives=plan.server_receives),
    )


def changes(history: History) -> Changes:
    return like(Changes, history, start_monotonic_ns=history.recording.start_monotonic_ns)


def machine(ctx: Context, arguments: Sequence[str]) -> PerfMachine:
    """The time, the machine and the arguments of a measurement."""
    cpus = re.findall(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
    return PerfMachine(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=ctx.name,
        kernel=os.uname().release,
        cpu=cpus[0] if cpus else None,  # Linux on ARM does not report the model
        cpu_cores=os.cpu_count(),
        arguments=tuple(arguments),
    )
