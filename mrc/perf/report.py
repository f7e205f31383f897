# SPDX-License-Identifier: Apache-2.0
"""What `mrc perf` prints: lines while a test runs, a summary, a table of a sweep, CSV, and JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import asdict

import mrc
from mrc.cli import endpoint, figures
from mrc.cli.output import Output, format_table
from mrc.perf.load import Pattern, PerfPlan
from mrc.perf.results import (
    Changes,
    EndEvent,
    EvChange,
    Interval,
    IntervalEvent,
    Latency,
    Perf,
    PerfFailed,
    PerfServed,
    PlaneChange,
    ReceivedPlane,
    SentPlane,
    ShareChange,
    StartEvent,
    Test,
    TestEvent,
)
from mrc.results import like, plain
from mrc.units import counted, digits, scaled

MAX_LINES = 12  # most lines about changes in text output; JSON has each change
NO_LATENCY = Latency(0, 0, 0, 0, 0, 0, 0)
_Change = EvChange | PlaneChange | ShareChange


def _rates(plan: PerfPlan, interval: Interval) -> str:
    """Goodput in each direction that the test writes."""
    parts = []
    if plan.client_writes:
        parts.append(f"{scaled(interval.written_bits_per_second, 'bit/s'):>11}")
    if plan.server_writes or plan.pattern is Pattern.PING_PONG:
        mark = " back" if parts else ""
        parts.append(f"{scaled(interval.received_bits_per_second, 'bit/s'):>11}{mark}")
    return "  ".join(parts)


def interval_line(plan: PerfPlan, interval: Interval, *, verbose: bool = False) -> str:
    """One interval as a line, with `verbose` also the number of EVs that changed.

    Planes: what the client writes, or with -R what it receives. Only an end that writes
    retransmits.
    """
    planes = _moved(interval.planes if plan.client_writes else interval.planes_received)
    marks = {}
    for each in interval.planes:
        if word := (
            "suspended" if each.suspended else "slow" if each.slow
            else figures.weight_text(each.weight)
        ):  # fmt: skip
            marks[each.plane] = f" ({word})"
    again = f"  {interval.retransmitted_packets:6} rtx" if plan.client_writes else ""
    changes = f"  {interval.ev_changes:4} EV changes" if verbose else ""
    end = interval.start_seconds + interval.seconds
    span = f"{interval.start_seconds:7.2f}-{end:<7.2f} s"
    shares = figures.shares_text(planes, marks)
    return f"{span}  {_rates(plan, interval)}{again}{changes}  {shares}".rstrip()


def _moved(planes: Iterable[SentPlane | ReceivedPlane]) -> dict[int, int]:
    """The bytes that each plane carried away, or brought."""
    return {
        each.plane: each.sent_bytes if isinstance(each, SentPlane) else each.received_bytes
        for each in planes
    }


def slow_planes(plan: PerfPlan, test: Test) -> list[str]:
    """The planes that carried much less than the others: a sentence for each direction."""
    ends = [test.client, *test.intervals, *([test.server] if test.server else [])]
    planes = [plane for each in ends for plane in each.planes]
    lost = {each.plane for each in planes if each.suspended or each.weight < 100}
    there = figures.sentence(_moved(test.client.planes), lost) if plan.client_writes else ""
    back = figures.sentence(_moved(test.client.planes_received), lost) if plan.server_writes else ""
    if back and plan.client_writes:
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


def summary_lines(plan: PerfPlan, test: Test, *, verbose: bool = False) -> list[str]:
    """The summary of one test."""
    client, server = test.client, test.server
    lines = ["-" * 72]
    if test.interrupted:
        lines.append("ended early; the results until then:")
    lines.append(interval_line(plan, client, verbose=verbose))
    writers = [("sent", client)] if client.messages else []
    writers += [("returned", server)] if server is not None and server.messages else []
    title = "half RTT" if plan.pattern is Pattern.PING_PONG else "completion"
    for word, end in writers:
        rate = end.messages / client.seconds if client.seconds > 0 else 0.0
        lines.append(
            f"{word:<10} {counted(end.messages, 'message')} of {scaled(plan.size, 'B')},"
            f" {rate:.0f} a second"
        )
        if end.latency is not None:
            lines.append(_latency_line(title, end.latency))
    for name, each in (("client", client), ("server", server)):
        if each is not None:
            lines.append(f"{name:<10} {_cost(plan, each)}")
            if verbose and each.written_bytes:
                lines.append(f"{'':<10} {_waits_text(each)}")
    return lines + _history_lines(test)


def _history_lines(test: Test) -> list[str]:
    """The lines of --bins; the server's are missing if its result did not arrive."""
    ends = [("client", test.client), *([("server", test.server)] if test.server else [])]
    lines = []
    for name, end in ends:
        if end.bins is not None:
            lines += figures.bins_lines(name, end.bins)
    for name, end in ends:
        if end.changes is not None:
            lines += change_lines(name, end.changes)
    return lines


def _cost(plan: PerfPlan, total: Interval) -> str:
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


def _waits_text(total: Interval) -> str:
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


def server_line(served: PerfServed) -> str:
    plan, end = served.plan, served.server
    return (
        f"{served.peer}: {plan.pattern} {plan.direction}, {scaled(plan.message_bytes, 'B')}"
        f" messages, {plan.qps} QP, {scaled(end.seconds, 's')}: received"
        f" {scaled(end.received_bits_per_second, 'bit/s')}, wrote"
        f" {scaled(end.written_bits_per_second, 'bit/s')}"
    )


def sweep_table(tests: Sequence[Test]) -> str:
    """A table with a row for each size, or for each size and writing end."""
    if tests and tests[0].plan.pattern == "ping-pong":
        return _latency_table(tests)
    return _goodput_table(tests)


def _latency_table(tests: Sequence[Test]) -> str:
    head = ("MsgSize", "RoundTrips", "min(us)", "p50(us)", "p99(us)", "p99.9(us)", "max(us)")
    rows = []
    for test in tests:
        found = test.client.latency or NO_LATENCY
        times = (found.min_ns, found.p50_ns, found.p99_ns, found.p999_ns, found.max_ns)
        size = test.plan.message_bytes
        rows.append((size, found.count, *(_Number(each / 1e3, 1) for each in times)))
    return f"half of each round trip:\n{format_table(head, rows)}"


def _goodput_table(tests: Sequence[Test]) -> str:
    """OCP's columns: 1 Gbps is 10^9 bit/s, 1 Mpps is 10^6 messages a second."""
    head = ["MsgSize", "TotalOps", "BW_avg(Gbps)", "MsgRate(Mpps)", "p50(us)", "p99(us)"]
    both = any(test.plan.direction == "both" for test in tests)
    rows = []
    for test in tests:
        for name, end in (("client", test.client), ("server", test.server)):
            if end is None or not end.messages:
                continue
            latency = end.latency or NO_LATENCY
            row = [
                test.plan.message_bytes,
                end.messages,
                _Number(end.written_bits_per_second / 1e9, 3),
                _Number(end.messages_per_second / 1e6, 6),
                _Number(latency.p50_ns / 1e3, 1),
                _Number(latency.p99_ns / 1e3, 1),
            ]
            rows.append([*row[:1], name, *row[1:]] if both else row)
    if both:
        head.insert(1, "writer")
    title = "p50 and p99: from the post of a message to its completion"
    return f"{format_table(head, rows)}\n{title}"


def change_lines(end: str, found: Changes) -> list[str]:
    """The changes of EVs and planes at one end: a line for each kind of change, with its first
    time. A flapping EV makes the same change many times, and each QP makes it on its own.
    """
    told: dict[str, list[_Change]] = {}
    changes: list[_Change] = [*found.evs, *found.planes, *found.shares]
    for change in sorted(changes, key=attrgetter("at_ns")):
        told.setdefault(_text(change), []).append(change)
    shown = list(told.items())[:MAX_LINES]
    lines = [
        f"{end:<10} {same[0].at_ns / 1e9:10.6f} s  {text}{_repeated(same)}" for text, same in shown
    ]
    left_out = sum(map(len, told.values())) - sum(len(same) for _, same in shown)
    left_out += found.lost_changes
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

    def __init__(self, out: Output, plans: Sequence[PerfPlan], *, stream: bool) -> None:
        self._out = out
        self._plans = plans
        self._sweep = len(plans) > 1
        self._stream = stream
        self._setup: StartEvent | None = None
        self._tests: list[Test] = []

    @property
    def has_begun(self) -> bool:
        """Whether a server was there."""
        return self._setup is not None

    def show(self, ctx: mrc.Context, event: StartEvent | IntervalEvent | TestEvent) -> None:
        """Prints what has happened."""
        match event:
            case StartEvent():
                endpoint.announce(self._out, ctx)
                self._setup = event
                self._start(event)
            case IntervalEvent() if not self._sweep:
                self._out.text(interval_line(self._plans[0], event, verbose=self._out.verbose))
            case TestEvent():
                self._add(self._plans[len(self._tests)], event)
        if self._stream:
            self._out.result(event)

    def _start(self, setup: StartEvent) -> None:
        self._out.text(
            f"to {setup.peer}: planes {', '.join(map(str, setup.planes))}, packets of"
            f" {setup.path_mtu} B"
        )
        self._out.detail(
            f"cc {setup.cc}, integrity {setup.integrity}, window {counted(setup.mpr, 'PSN')}"
        )

    def _add(self, plan: PerfPlan, test: TestEvent) -> None:
        self._tests.append(like(Test, test))
        if not self._sweep:
            self._out.text("\n".join(summary_lines(plan, test, verbose=self._out.verbose)))
            for line in slow_planes(plan, test):
                self._out.note(line)
        elif sys.stderr.isatty():
            short = scaled(test.goodput_bits_per_second, "bit/s")
            if plan.pattern is Pattern.PING_PONG:
                latency = test.client.latency or NO_LATENCY
                short = f"half RTT p50 {scaled(latency.p50_ns / 1e9, 's')}"
            self._out.note(f"{scaled(plan.size, 'B')}: {short}")

    def end(self) -> None:
        whole = self._whole()
        self._out.result(like(EndEvent, whole) if self._stream else whole)

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
            self._out.text(sweep_table(self._tests))
        # Each interval of a single test of goodput; otherwise each test, which has the latency.
        if self._sweep or any(each.plan.pattern == "ping-pong" for each in self._tests):
            rows = [row for test in self._tests for row in test_rows(test)]
        else:
            rows = [
                {"message_bytes": each.plan.message_bytes, "qps": each.plan.qps} | _row(interval)
                for each in self._tests
                for interval in each.intervals
            ]
        self._out.rows(rows)
        return like(Perf, self._setup, results=tuple(self._tests))


def test_rows(test: Test) -> list[dict[str, Any]]:
    """Lines of CSV: a whole test, at each end."""
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
