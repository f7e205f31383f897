# SPDX-License-Identifier: Apache-2.0
"""What `mrc perf` runs and prints: lines while a test runs, a summary, a table of a sweep, CSV, and
JSON, for which the measurements become the declared results.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

import mrc
from mrc import mailbox
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.cli import endpoint, figures
from mrc.cli.output import Exit, Output, format_table
from mrc.config import ContextConfig, Limits, Queues
from mrc.enums import PlaneShares
from mrc.errors import MrcError
from mrc.perf.load import MAX_QPS, Pattern, PerfDirection, PerfPlan
from mrc.perf.meter import History, MeterInterval
from mrc.perf.results import (
    Changes,
    EndEvent,
    EvChange,
    Interval,
    IntervalEvent,
    Latency,
    Perf,
    PerfEnd,
    PerfFailed,
    PerfMachine,
    PerfServed,
    PlaneChange,
    ReceivedPlane,
    SentPlane,
    Setup,
    ShareChange,
    StartEvent,
    Test,
    TestEvent,
    TestPlan,
)
from mrc.perf.session import SERVICE, Client, PerfOutcome, PerfServer, TestResult, connect
from mrc.results import like, plain
from mrc.units import counted, digits, scaled

MAX_LINES = 12  # most lines about changes in text output; JSON has each change
_Change = EvChange | PlaneChange | ShareChange


def _rates(plan: PerfPlan, interval: MeterInterval) -> str:
    """Goodput in each direction that the test writes."""
    parts = []
    if plan.client_writes:
        parts.append(f"{scaled(interval.written_bits_per_second, 'bit/s'):>11}")
    if plan.server_writes or plan.pattern is Pattern.PING_PONG:
        mark = " back" if parts else ""
        parts.append(f"{scaled(interval.received_bits_per_second, 'bit/s'):>11}{mark}")
    return "  ".join(parts)


def interval_line(plan: PerfPlan, interval: MeterInterval, *, verbose: bool = False) -> str:
    """One interval as a line, with `verbose` also the number of EVs that changed.

    Planes: what the client writes, or with -R what it receives. Only an end that writes
    retransmits.
    """
    planes = interval.planes if plan.client_writes else interval.planes_received
    marks = {
        plane: f" ({figures.weight_text(weight)})" for plane, weight in interval.weights.items()
    }
    marks |= dict.fromkeys(interval.planes_slow, " (slow)")
    marks |= dict.fromkeys(interval.planes_suspended, " (suspended)")
    again = f"  {interval.retransmitted_packets:6} rtx" if plan.client_writes else ""
    changes = f"  {interval.ev_changes:4} EV changes" if verbose else ""
    end = interval.start_seconds + interval.seconds
    span = f"{interval.start_seconds:7.2f}-{end:<7.2f} s"
    shares = figures.shares_text(planes, marks)
    return f"{span}  {_rates(plan, interval)}{again}{changes}  {shares}".rstrip()


def slow_planes(result: TestResult) -> list[str]:
    """The planes that carried much less than the others: a sentence for each direction."""
    total = result.client.total
    ends = [total, *result.intervals, *([result.server.total] if result.server else [])]
    lost = {plane for each in ends for plane in (*each.planes_suspended, *each.weights)}
    there = figures.sentence(total.planes, lost) if result.plan.client_writes else ""
    back = figures.sentence(total.planes_received, lost) if result.plan.server_writes else ""
    if back and result.plan.client_writes:
        back += " on the way back"
    return [each for each in (there, back) if each]


def _latency_line(title: str, latency: Latency) -> str:
    words = [
        f"{name} {scaled(value / 1e9, 's')}"
        for name, value in (
            ("p50", latency.p50_ns),
            ("p99", latency.p99_ns),
            ("p99.9", latency.p999_ns),
            ("max", latency.max_ns),
        )
    ]
    return f"{title:<10} {'  '.join(words)}  ({counted(latency.count, 'sample')})"


def summary_lines(result: TestResult, *, verbose: bool = False) -> list[str]:
    """The summary of one test."""
    plan, client, server = result.plan, result.client, result.server
    lines = ["-" * 72]
    if result.interrupted:
        lines.append("ended early; the results until then:")
    lines.append(interval_line(plan, client.total, verbose=verbose))
    seconds = client.total.seconds
    writers = [("sent", client)] if client.messages else []
    writers += [("returned", server)] if server is not None and server.messages else []
    title = "half RTT" if plan.pattern is Pattern.PING_PONG else "completion"
    for word, end in writers:
        rate = end.messages / seconds if seconds > 0 else 0.0
        lines.append(
            f"{word:<10} {counted(end.messages, 'message')} of {scaled(plan.size, 'B')},"
            f" {rate:.0f} a second"
        )
        if end.latency.count:
            lines.append(_latency_line(title, end.latency))
    for name, each in (("client", client), ("server", server)):
        if each is not None:
            lines.append(f"{name:<10} {_cost(plan, each.total)}")
            if verbose and each.total.written_bytes:
                lines.append(f"{'':<10} {_waits_text(each.total)}")
    return lines + _history_lines(result)


def _history_lines(result: TestResult) -> list[str]:
    """The lines of --bins; the server's are missing if its result did not arrive."""
    ends = [("client", result.client, result.plan.client_receives)]
    if result.server is not None:
        ends.append(("server", result.server, result.plan.server_receives))
    lines = []
    for name, end, receives in ends:
        if end.history is not None and receives:
            lines += figures.bins_lines(name, end.history.recording)
    for name, end, _ in ends:
        if end.history is not None:
            lines += change_lines(name, end.history)
    return lines


def _cost(plan: PerfPlan, total: MeterInterval) -> str:
    moved = total.written_bytes + total.received_bytes
    share = total.cpu_seconds / total.seconds if total.seconds > 0 else 0.0
    per_gib = ""
    if moved and plan.pattern is Pattern.STREAM:
        per_gib = f", {digits(total.cpu_seconds / moved * 2**30, 3)} CPU seconds per GiB"
    cost = f"{share:.0%} of a CPU{per_gib}"
    if not total.sent_packets:  # an end that only receives sends no data
        return cost
    return (
        f"{cost}; {counted(total.sent_packets, 'data packet')} sent, of which"
        f" {counted(total.retransmitted_packets, 'retransmission')}"
        f" ({scaled(total.retransmitted_bytes, 'B')})"
    )


def _waits_text(total: MeterInterval) -> str:
    """What kept an end from sending more."""
    names = {
        "program": "its program",
        "peer": "the peer's window",
        "network": "congestion windows",
        "socket": "full sockets",
        "nothing": "its processor",
    }
    waits = asdict(total.waits)
    shares = [
        f"{name} {waits[f'{key}_seconds'] / total.seconds:.0%}"
        for key, name in names.items()
        if waits[f"{key}_seconds"] > 0
    ]
    return f"held by {', '.join(shares) or 'unknown'}"


def server_line(client: str, plan: PerfPlan, outcome: PerfOutcome) -> str:
    total = outcome.total
    return (
        f"{client}: {plan.pattern} {plan.direction}, {scaled(plan.size, 'B')} messages,"
        f" {plan.qps} QP, {scaled(total.seconds, 's')}: received"
        f" {scaled(total.received_bits_per_second, 'bit/s')}, wrote"
        f" {scaled(total.written_bits_per_second, 'bit/s')}"
    )


def sweep_table(results: Sequence[TestResult]) -> str:
    """A table with a row for each size, or for each size and writing end."""
    if results and results[0].plan.pattern is Pattern.PING_PONG:
        return _latency_table(results)
    return _goodput_table(results)


def _latency_table(results: Sequence[TestResult]) -> str:
    head = ("MsgSize", "RoundTrips", "min(us)", "p50(us)", "p99(us)", "p99.9(us)", "max(us)")
    rows = []
    for result in results:
        found = result.client.latency
        times = (found.min_ns, found.p50_ns, found.p99_ns, found.p999_ns, found.max_ns)
        rows.append((result.plan.size, found.count, *(_Number(each / 1e3, 1) for each in times)))
    return f"half of each round trip:\n{format_table(head, rows)}"


def _goodput_table(results: Sequence[TestResult]) -> str:
    """OCP's columns: 1 Gbps is 10^9 bit/s, 1 Mpps is 10^6 messages a second."""
    head = ["MsgSize", "TotalOps", "BW_avg(Gbps)", "MsgRate(Mpps)", "p50(us)", "p99(us)"]
    both = any(result.plan.direction is PerfDirection.BOTH for result in results)
    rows = []
    for result in results:
        for name, end in (("client", result.client), ("server", result.server)):
            if end is None or not end.messages:
                continue
            row = [
                result.plan.size,
                end.messages,
                _Number(end.total.written_bits_per_second / 1e9, 3),
                _Number(end.messages / end.total.seconds / 1e6 if end.total.seconds else 0.0, 6),
                _Number(end.latency.p50_ns / 1e3, 1),
                _Number(end.latency.p99_ns / 1e3, 1),
            ]
            rows.append([*row[:1], name, *row[1:]] if both else row)
    if both:
        head.insert(1, "writer")
    title = "p50 and p99: from the post of a message to its completion"
    return f"{format_table(head, rows)}\n{title}"


def change_lines(end: str, history: History) -> list[str]:
    """The changes of EVs and planes at one end: a line for each kind of change, with its first
    time. A flapping EV makes the same change many times, and each QP makes it on its own.
    """
    told: dict[str, list[_Change]] = {}
    changes: list[_Change] = [*history.evs, *history.planes, *history.shares]
    for change in sorted(changes, key=attrgetter("at_ns")):
        told.setdefault(_text(change), []).append(change)
    shown = list(told.items())[:MAX_LINES]
    lines = [
        f"{end:<10} {same[0].at_ns / 1e9:10.6f} s  {text}{_repeated(same)}" for text, same in shown
    ]
    left_out = sum(map(len, told.values())) - sum(len(same) for _, same in shown)
    left_out += history.lost_changes
    more = [f"{end:<10} {counted(left_out, 'more change')}: see --json"] if left_out > 0 else []
    return [*lines, *more]


def _text(change: _Change) -> str:
    if isinstance(change, EvChange):
        return f"{change.path}: {change.old} to {change.new}, {change.reason}"
    if isinstance(change, PlaneChange):
        moved = "suspended" if change.suspended else "resumed"
        return f"plane {change.plane} {moved}, {change.reason}"
    word = "slow" if change.slow else "no longer slow"
    return f"plane {change.plane} {word}, {change.reason}"


def _repeated(same: Sequence[_Change]) -> str:
    """How often a change was made, and the share that a plane carried then."""
    share = next((each for each in same if isinstance(each, ShareChange)), None)
    percent = "" if share is None else f": carries {share.percent}% of the others"
    if len(same) == 1:
        return percent
    qps = len({each.qpn for each in same})
    where = f" by {counted(qps, 'QP')}" if qps > 1 else ""
    return f"{percent} ({counted(len(same), 'time')}{where}, until {same[-1].at_ns / 1e9:.6f} s)"


class _Number(float):
    """A float that prints with `decimals` decimals; a table right-aligns it as a number."""

    def __new__(cls, value: float, decimals: int) -> _Number:
        number = super().__new__(cls, value)
        number.decimals = decimals
        return number

    decimals: int

    def __str__(self) -> str:
        return f"{float(self):.{self.decimals}f}"


class PerfReport:
    """Prints the tests of one client while they run, as text, JSON, a stream of JSON, or CSV."""

    def __init__(
        self, out: Output, plans: Sequence[PerfPlan], setup: Setup, *, stream: bool
    ) -> None:
        self._out = out
        self._sweep = len(plans) > 1
        self._setup = setup
        self._stream = stream
        self._results: list[TestResult] = []

    def start(self) -> None:
        setup = self._setup
        self._out.text(
            f"to {setup.peer}: planes {', '.join(map(str, setup.planes))}, packets of"
            f" {setup.path_mtu} B"
        )
        self._out.detail(
            f"cc {setup.cc}, integrity {setup.integrity}, window {counted(setup.mpr, 'PSN')}"
        )
        if self._stream:
            self._out.result(like(StartEvent, setup))

    def interval(self, plan: PerfPlan) -> Callable[[MeterInterval], None]:
        """Returns the function that prints each interval of this plan."""

        def show(interval: MeterInterval) -> None:
            if not self._sweep:
                self._out.text(interval_line(plan, interval, verbose=self._out.verbose))
            if self._stream:
                self._out.result(like(IntervalEvent, interval_of(interval)))

        return show

    def add(self, result: TestResult) -> None:
        self._results.append(result)
        if not self._sweep:
            self._out.text("\n".join(summary_lines(result, verbose=self._out.verbose)))
            for line in slow_planes(result):
                self._out.note(line)
        elif sys.stderr.isatty():
            short = scaled(goodput(result), "bit/s")
            if result.plan.pattern is Pattern.PING_PONG:
                short = f"half RTT p50 {scaled(result.client.latency.p50_ns / 1e9, 's')}"
            self._out.note(f"{scaled(result.plan.size, 'B')}: {short}")
        if self._stream:
            self._out.result(like(TestEvent, test_of(result)))

    def end(self) -> None:
        whole = self._whole()
        if self._stream:
            self._out.result(like(EndEvent, whole))
        else:
            self._out.result(whole)

    def fail(self, error: BaseException) -> int:
        """Prints the tests until an error, and the error; returns the exit code."""
        whole = self._whole()
        # One object has both, except in a stream, which ends with the error.
        failure = self._out.failed(error, as_json=self._stream)
        if not self._stream:
            self._out.result(like(PerfFailed, whole, failure))
        return failure.exit_code

    def _whole(self) -> Perf:
        """All tests so far; prints them for people and as CSV."""
        if self._sweep:
            self._out.text(sweep_table(self._results))
        # Each interval of a single test of goodput; otherwise each test, which has the latency.
        if self._sweep or any(r.plan.pattern is Pattern.PING_PONG for r in self._results):
            rows = [row for result in self._results for row in test_rows(result)]
        else:
            rows = [
                {"message_bytes": r.plan.size, "qps": r.plan.qps} | _row(interval_of(each))
                for r in self._results
                for each in r.intervals
            ]
        self._out.rows(rows)
        return like(Perf, self._setup, results=tuple(map(test_of, self._results)))


async def measure(
    args: argparse.Namespace,
    out: Output,
    host: str,
    port: int,
    plans: list[PerfPlan],
    config: ContextConfig,
) -> int:
    report: PerfReport | None = None

    async def once() -> int:
        nonlocal report
        try:
            async with (
                mrc.open(config) as ctx,
                connect(ctx, host, port, timeout=args.timeout) as client,
            ):
                endpoint.announce(out, ctx)
                setup = like(
                    Setup,
                    figures.settings(ctx, client.session.qp, tcp_port=port),
                    planes=client.session.qp.planes,
                    machine=machine(ctx, args.command_line),
                )
                report = PerfReport(out, plans, setup, stream=args.json_stream)
                return await _run(client, plans, report, args.interval)
        except MrcError as error:
            if report is None:
                raise
            return report.fail(error)

    return await endpoint.first_connected(args, out, once)


async def _run(
    client: Client, plans: list[PerfPlan], report: PerfReport, interval_seconds: float
) -> int:
    report.start()
    interrupted = False
    for plan in plans:
        result = await client.run(
            plan,
            interval_seconds=interval_seconds,
            on_interval=report.interval(plan),
            on_failed=report.add,
        )
        report.add(result)
        interrupted = result.interrupted
        if interrupted:
            break
    report.end()
    return Exit.INTERRUPTED if interrupted else Exit.OK


async def serve(args: argparse.Namespace, out: Output, trusted: dict[str, Any]) -> int:
    config = ContextConfig(
        limits=Limits(max_peer_bytes=args.max_memory, max_qps_per_source=2 * MAX_QPS),
        queues=Queues(max_unread=mailbox.MAX_UNREAD),
        plane_shares=PlaneShares[args.plane_shares.upper()],
        **endpoint.endpoint_settings(args),
        **endpoint.view_settings(args),
        **trusted,
    )

    def on_outcome(client: str, plan: PerfPlan, outcome: PerfOutcome) -> None:
        out.text(server_line(client, plan, outcome))
        end = end_of(plan, outcome, receives=plan.server_receives)
        out.result(PerfServed(peer=client, plan=plan_of(plan), server=end))

    async with mrc.open(config) as ctx:
        server = PerfServer(ctx, on_outcome)
        async with await ctx.listen(port=args.port, private={"service": SERVICE.name}) as listener:
            endpoint.announce(out, ctx)
            out.note(f"listening on TCP port {listener.port}, UDP port {ctx.udp_port}")
            serving = _serve_all(ctx, server, listener, out, one_off=args.one_off)
            return await mailbox.race(serving, mailbox.Service.until_guessed(ctx))


async def _serve_all(
    ctx: mrc.Context, server: PerfServer, listener: mrc.Listener, out: Output, *, one_off: bool
) -> int:
    """Serves clients until it is cancelled; returns the exit code. With `one_off` the server ends
    after the first client, with --code after the one that it lets in.
    """
    exit_code = Exit.OK

    async def serve_one(qp: QP) -> None:
        nonlocal exit_code
        code = 0
        try:
            await server.serve(qp)
        except Exception as error:
            code = out.session_failed(qp.peer.host, error)
        if server.is_session(qp) and (one_off or ctx._is_closed):
            exit_code = Exit(code)
            await listener.close()

    async with asyncio.TaskGroup() as serving:
        async for qp in listener:
            serving.create_task(serve_one(qp))
    return exit_code


# ---- results ------------------------------------------------------------------------------------


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
        message_bytes=plan.size,
        seconds=plan.seconds or None,
        total_bytes=plan.total_bytes or None,
        rate_bits_per_second=plan.rate_bits_per_second or None,
        bin_ns=plan.bin_ns or None,
        redundant=plan.redundant,
    )


def test_of(result: TestResult) -> Test:
    plan, server = result.plan, result.server
    return Test(
        plan=plan_of(plan),
        interrupted=result.interrupted,
        goodput_bits_per_second=goodput(result),
        intervals=tuple(map(interval_of, result.intervals)),
        client=end_of(plan, result.client, receives=plan.client_receives),
        server=None if server is None else end_of(plan, server, receives=plan.server_receives),
    )


def goodput(result: TestResult) -> float:
    """Bit/s in both directions together."""
    total = result.client.total
    return total.written_bits_per_second + total.received_bits_per_second


def test_rows(result: TestResult) -> list[dict[str, Any]]:
    """Lines of CSV: a whole test, at each end."""
    test = test_of(result)
    head = {
        "message_bytes": test.plan.message_bytes,
        "qps": test.plan.qps,
        "direction": test.plan.direction,
    }
    ends = {"client": test.client, "server": test.server}
    return [head | {"end": name} | _row(end) for name, end in ends.items() if end is not None]


def _row(figures: Interval) -> dict[str, Any]:
    """The figures, with a column for each plane."""
    row = plain(figures)
    for plane in row["planes"]:
        row[f"planes.{plane['plane']}.sent_bytes"] = plane["sent_bytes"]
    for plane in row["planes_received"]:
        row[f"planes.{plane['plane']}.received_bytes"] = plane["received_bytes"]
    row |= {f"waits.{key}": value for key, value in row["waits"].items()}
    return {key: value for key, value in row.items() if key not in ("bins", "changes", "waits")}


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
