# SPDX-License-Identifier: Apache-2.0
"""`mrc perf`: its options, and its output for people and as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from mrc.cli.main import main
from mrc.cli.output import Output
from mrc.errors import PathError
from mrc.perf.cli import INSTEAD
from mrc.perf.client import TestResult as Result
from mrc.perf.load import Pattern, PerfDirection, PerfPlan
from mrc.perf.messages import PerfOutcome
from mrc.perf.meter import MeterInterval
from mrc.perf.report import PerfReport, interval_line, summary_lines, sweep_table
from mrc.perf.results import Latency, PerfMachine, Setup

MB = 10**6
NONE = Latency(0, 0, 0, 0, 0, 0, 0)


def latency(count: int, p50_ns: int) -> Latency:
    return Latency(count, p50_ns // 2, p50_ns, p50_ns, 2 * p50_ns, 3 * p50_ns, 4 * p50_ns)


def end(written: int, received: int, messages: int, found: Latency) -> PerfOutcome:
    there, back = {1: written}, {1: received}
    interval = MeterInterval(0.0, 2.0, written, received, 10, 1, 0, 0, 0.5, there, back)
    return PerfOutcome(interval, messages, found)


def result(plan: PerfPlan, client: PerfOutcome, server: PerfOutcome) -> Result:
    total = client.total
    halves = [
        replace(total, start_seconds=start, seconds=1.0, written_bytes=total.written_bytes // 2)
        for start in (0.0, 1.0)
    ]
    return Result(plan, client, server, tuple(halves), False)


def both_ways(size: int) -> Result:
    plan = PerfPlan(direction=PerfDirection.BOTH, size=size)
    client = end(100 * MB, 50 * MB, 200, latency(200, 3000))
    return result(plan, client, end(50 * MB, 100 * MB, 100, latency(100, 5000)))


def ping_pong(size: int) -> Result:
    plan = PerfPlan(pattern=Pattern.PING_PONG, size=size)
    client = end(2000, 2000, 1000, latency(1000, 7000))
    return result(plan, client, end(2000, 2000, 1000, NONE))


def setup() -> Setup:
    machine = PerfMachine(
        started_at="", host="h0", kernel="6", cpu=None, cpu_cores=2, arguments=("perf", "h1")
    )  # fmt: skip
    values = {name: None for name in Setup.__struct_fields__ if name != "schema"}
    known = {"peer": "h1", "planes": (1,), "machine": machine}
    return Setup(**values | known)  # type: ignore[arg-type]


def csv_of(results: Sequence[Result], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    out = Output("mrc perf", as_json=False, quiet=True, as_csv=True)
    report = PerfReport(out, [each.plan for each in results], setup(), stream=False)
    report.start()
    for each in results:
        report.add(each)
    report.end()
    return list(csv.DictReader(capsys.readouterr().out.splitlines()))


@pytest.mark.parametrize(("option", "use"), [(o, u) for both, u in INSTEAD.items() for o in both])
def test_run__options_of_iperf3_say_what_to_use(
    option: str, use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["perf", "h1", option, "1M"]) == 2
    assert capsys.readouterr().err == f"mrc perf: {option} of iperf3: {use}; see mrc perf --help\n"


def test_run__csv_is_not_for_servers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "--server", "--csv"]) == 2
    assert "--csv: only at the client" in capsys.readouterr().err


def test_interval_line__only_an_end_that_writes_retransmits() -> None:
    total = end(100, 100, 1, NONE).total
    assert "1 rtx" in interval_line(PerfPlan(), total)
    assert "rtx" not in interval_line(PerfPlan(direction=PerfDirection.REVERSE), total)


def test_sweep_table__each_direction_has_its_own_row() -> None:
    head, first, second, *_ = sweep_table([both_ways(1024)]).split("\n")
    assert head.split()[:4] == ["MsgSize", "writer", "TotalOps", "BW_avg(Gbps)"]
    assert first.split() == ["1024", "client", "200", "0.400", "0.000100", "3.0", "6.0"]
    assert second.split() == ["1024", "server", "100", "0.200", "0.000050", "5.0", "10.0"]


def test_sweep_table__of_latency_says_that_it_is_half_a_round_trip() -> None:
    title, head, row = sweep_table([ping_pong(2)]).split("\n")
    assert title == "half of each round trip:"
    assert head.split() == [
        "MsgSize", "RoundTrips", "min(us)", "p50(us)", "p99(us)", "p99.9(us)", "max(us)",
    ]  # fmt: skip
    assert row.split() == ["2", "1000", "3.5", "7.0", "14.0", "21.0", "28.0"]


def test_summary_lines__an_end_that_only_answers_has_no_latency() -> None:
    lines = summary_lines(ping_pong(2))
    assert [line for line in lines if "p50" in line] == [
        "half RTT   p50 7 us  p99 14 us  p99.9 21 us  max 28 us  (1000 samples)"
    ]
    assert "returned   1000 messages of 2 B, 500 a second" in lines


def test_summary_lines__an_end_that_only_receives_tells_no_packets_sent() -> None:
    client, server = end(100 * MB, 0, 100, latency(100, 3000)), end(0, 100 * MB, 0, NONE)
    silent = replace(server.total, sent_packets=0, retransmitted_packets=0)
    lines = summary_lines(result(PerfPlan(), client, PerfOutcome(silent, 0, NONE)))
    assert "; 10 data packets sent, of which 1 retransmission (0 B)" in lines[-2]
    assert lines[-1].startswith("server ") and "sent" not in lines[-1]


def test_csv__a_line_for_each_interval(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = csv_of([both_ways(1024)], capsys)
    assert (first["start_seconds"], second["start_seconds"]) == ("0.0", "1.0")
    assert first["message_bytes"] == "1024" and first["written_bits_per_second"] == "400000000.0"
    assert first["planes.1.sent_bytes"] == "100000000"


def test_fail__prints_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output("mrc perf", as_json=True, quiet=True)
    report = PerfReport(out, [both_ways(1024).plan], setup(), stream=False)
    report.add(both_ways(1024))
    assert report.fail(PathError("all paths were lost")) == 4
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["error"], found["exit_code"]) == ("all paths were lost", 4)
    assert len(found["results"][0]["intervals"]) == 2
    assert printed.err == "mrc perf: all paths were lost\n"


def test_sweep_table__a_test_that_failed_at_once() -> None:
    both = both_ways(1024)
    client = replace(both.client, total=replace(both.client.total, seconds=0.0))
    assert "1024" in sweep_table([replace(both, client=client)])


@pytest.mark.parametrize("sizes", [[2], [2, 4]])
def test_csv__a_line_for_each_end_of_a_test(
    sizes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = csv_of([ping_pong(size) for size in sizes], capsys)
    assert [(int(row["message_bytes"]), row["end"]) for row in rows] == [
        (size, name) for size in sizes for name in ("client", "server")
    ]
    assert rows[0]["latency_of"] == "half round trip" and rows[0]["latency.p50_ns"] == "7000"
    assert rows[1]["latency.p50_ns"] == ""
