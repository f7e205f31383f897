# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks from their rounds or from what programs print: metrics, medians, checks."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checks
import contenders
import peers
import pytest
import ranks
import rows as bench_rows
from bed import Bed
from figures import GOODPUT, P50, P99
from msgspec.structs import replace
from rows import BEDS
from streams import Seen, long_contenders, settled

from mrc.enums import CcKind
from mrc.sim import scenario
from mrc.sim import traffic as run
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Fabric, shape_of


def test_missing__says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    assert set(peers.missing()) == {"ucx_perftest", "socat", "iperf3", "sshd"}
    assert "apt-get install ucx-utils" in peers.missing()["ucx_perftest"]


def test_ucx__blanks_before_a_small_count(monkeypatch: pytest.MonkeyPatch) -> None:
    output = "iterations,50.0_percentile_lat\n  20,3.9,9918.1,9918.1,100.8,200.0,101,101\n"
    ran = (SimpleNamespace(output=output), {"ns": 1})
    monkeypatch.setattr(peers, "serve_and_run", lambda *_, **__: ran)
    bed: Any = SimpleNamespace(planes=4, plane_address=lambda *_: "fd00::1")
    assert peers.ucx(bed, "tag_bw", 1 << 20, 1) == {"ns": 0.1e9, "bytes": 20 << 20}


def test_metrics_of__rates_and_costs() -> None:
    spent = {"cpu_seconds": [0.25, 0.5], "core_seconds": [0.3, 0.6]}
    raw = {"bytes": 1 << 29, "ns": 2e9, "messages": 512, "packets": 1000, "p50_ns": 7, **spent}
    found = bench_rows.metrics_of(raw, [300, 100])
    assert found["goodput_bits_per_second"] == 1 << 31
    assert found["messages_per_second"] == 256
    assert found["sender_cpu_seconds_per_gib"] == 0.5
    assert found["receiver_core_seconds_per_gib"] == 1.2
    assert found["packets_per_gib"] == 2000
    assert "syscalls_per_gib" not in found
    assert found["plane_shares"] == [0.75, 0.25]


def test_summary__medians_of_the_rounds() -> None:
    rounds = [{"p50_ns": value, "plane_shares": [value, 1]} for value in (3, 1, 2)]
    found = bench_rows.summary(rounds)
    assert found["p50_ns"] == {"median": 2, "min": 1, "max": 3, "rounds": [3, 1, 2]}
    assert found["plane_shares"] == [2, 1]


def goodputs(*values: float) -> list[dict[str, Any]]:
    return [{"goodput_bits_per_second": value, "plane_shares": [0.5, 0.5]} for value in values]


@pytest.mark.parametrize(
    ("bed", "rounds", "expected"),
    [
        (  # the second round was slow for both, the third for only one
            "9000", {"UDP floor": goodputs(10, 5, 10), "mrc, WRITE 1 MiB": goodputs(8, 4, 1)},
            {"mrc, WRITE 1 MiB, of floor": (0.8, True)},
        ),
        (
            "500mbit", {"mrc, WRITE 1 MiB": [
                {GOODPUT: value, "plane_shares": shares}
                for value, shares in ((95, [0.5, 0.5]), (97, [0.52, 0.48]), (98, [0.515, 0.485]))
            ]},
            {"rate-limited, of payload capacity": (0.97, True),
             "rate-limited, worst plane's distance from an equal share": (0.03, False)},
        ),
        (
            "25ms", {"mrc": goodputs(89, 91, 95), "TCP, cubic": goodputs(99, 99, 99)},
            {"25 ms, from the 20th round trip on, of payload capacity": (0.91, True)},
        ),
        *((bed, {}, {}) for bed in ("9000", "1500", "500mbit", "25ms")),
    ],
)  # fmt: skip
def test_evaluate__ratios_are_taken_round_by_round(
    bed: str, rounds: Any, expected: dict[str, tuple[float, bool]]
) -> None:
    found = checks.evaluate({bed: rounds}, {bed: 100.0})
    assert {each.name: (round(each.value, 6), each.met) for each in found} == expected


def test_evaluate__the_best_tcp_flow_counts() -> None:
    rounds = {
        "mrc, WRITE 1 MiB": goodputs(8, 8, 8),
        "TCP, cubic, write": goodputs(9, 9, 9),
        "TCP, bbr, sendfile": goodputs(10, 10, 1),
    }
    for each in rounds.values():
        for metrics in each:
            metrics |= {f"{side}_cpu_seconds_per_gib": 1.0 for side in ("sender", "receiver")}
    found = {check.name: check for check in checks.evaluate({"9000": rounds}, {})}
    check = found["mrc, WRITE 1 MiB, of best TCP flow"]
    assert check.value == 0.8
    assert not check.met
    assert found["CPU a GiB, both sides, of best TCP flow"].met


def test_settled__counts_from_the_first_byte_on() -> None:
    """The second after the first byte is skipped; bytes after the end of the time are left out."""
    streams = [[0] * 30 + [5] * 10 + [10] * 20 + [99] * 5, [0] * 35 + [0] * 5 + [1] * 20 + [0] * 5]
    raw = settled(Seen(start=7.0, width=0.1, streams=streams), 1.0, 2.0)
    assert raw == {"bytes": 220, "ns": 2e9}


def test_long_way__contenders_in_the_order_of_a_round() -> None:
    names = [each.name for each in long_contenders(Bed("long", **BEDS["25ms"], planes=4, t1=2))]
    assert [name for name in names if not name.endswith("bbr")] == [
        "mrc", "TCP, cubic", "TCP, a flow a plane", "MPTCP",
    ]  # fmt: skip


def test_missing_controls__says_what_to_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(contenders, "_AVAILABLE", tmp_path / "available")
    for available, controls, missing in (
        ("reno cubic\n", ["cubic"], {"TCP, bbr": "this kernel has no bbr: modprobe tcp_bbr"}),
        ("reno bbr cubic\n", ["cubic", "bbr"], {}),
    ):
        (tmp_path / "available").write_text(available)
        assert contenders.tcp_controls() == controls
        assert contenders.missing_controls() == missing


# ---- perftest ------------------------------------------------------------------------------------

LINE = "-" * 80
WRITE_BW = f"""{LINE}
 Number of qps   : 1\t\tTransport type : IB
{LINE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      10500            0.00               2.75\t\t   0.005246
{LINE}
"""
WRITE_LAT = f"""{LINE}
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec] ...
 2\t500\t28.67\t6057.28\t86.28\t244.03\t342.02\t1952.96\t6057.28
{LINE}
"""


def test_of_write_bw__the_average() -> None:
    assert peers.of_write_bw(WRITE_BW) == {GOODPUT: pytest.approx(2.75e9)}


def test_of_write_lat__the_median_and_the_tail() -> None:
    expected = {P50: pytest.approx(86280), P99: pytest.approx(1952960)}
    assert peers.of_write_lat(WRITE_LAT) == expected


@pytest.mark.parametrize("output", ["", "Completion with error\n", WRITE_BW + WRITE_BW])
def test_numbers__without_one_row_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="rows of numbers"):
        peers.numbers(output)


def test_of_perf__goodput_or_latency() -> None:
    latency = {"p50_ns": 70000, "p99_ns": 90000, "max_ns": 100000}
    goodput = {"latency_of": "completion", "latency": latency}
    found = peers.of_perf({"results": [{"goodput_bits_per_second": 5e9, "client": goodput}]})
    assert found == {GOODPUT: 5e9}
    half = {"latency_of": "half round trip", "latency": latency}
    found = peers.of_perf({"results": [{"goodput_bits_per_second": 1e6, "client": half}]})
    assert found == {P50: 70000, P99: 90000}


def test_perftest_table__medians_with_their_spread() -> None:
    """The ratio is that of neighbours, not that of the medians."""
    theirs, ours = ([{GOODPUT: each * 1e9} for each in rounds] for rounds in ((1, 8, 3), (2, 4, 4)))
    latency = [{P50: 50e3, P99: 50e3}]
    rows = [peers.perftest_row(65536, theirs, ours), peers.perftest_row(2, latency, latency)]
    assert peers.perftest_table(rows, GOODPUT).splitlines() == [
        "Gbit/s  ib_write_bw  mrc perf   ratio",
        "64 KiB  3 (1 - 8)    4 (2 - 4)  0.75 (0.5 - 2)",
    ]
    assert peers.perftest_table(rows, P50).splitlines()[1].split() == [
        "2", "B", "50", "(50", "-", "50)", "50", "(50", "-", "50)", "1", "(1", "-", "1)",
    ]  # fmt: skip


# ---- allreduce -----------------------------------------------------------------------------------

MB = 1_000_000


def metrics(bus_bps: float, p50_us: float = 100) -> ranks.Metrics:
    return {
        "bus_bits_per_second": bus_bps, "p50_ns": p50_us * 1e3, "p99_ns": p50_us * 2e3,
        "cpu_seconds_per_gb": 1.0, "core_seconds_per_gb": 2.0,
    }  # fmt: skip


def test_bus_share__what_each_rank_must_send() -> None:
    assert [ranks.bus_share(count) for count in (2, 4)] == [1.0, 1.5]


def test_ranks_metrics__of_known_times() -> None:
    """100 operations of 1 MB in 0.9 s, one of them in 108 ms; CPU time of 125."""
    times = [8 * MB] * 99 + [108 * MB]
    raw = {"ns": times, "operations": 125, "cpu_ns": 300 * MB, "core_ns": 600 * MB}
    found = ranks.metrics(MB, 2, raw)
    assert found["bus_bits_per_second"] == pytest.approx(8 * MB * 100 / 0.9)
    assert (found["p50_ns"], found["p99_ns"]) == (8 * MB, 8 * MB)
    # Both ranks sent 0.125 GB.
    assert found["cpu_seconds_per_gb"] == pytest.approx(1.2)
    assert found["core_seconds_per_gb"] == pytest.approx(2.4)
    four = ranks.metrics(MB, 4, raw)
    assert four["bus_bits_per_second"] == pytest.approx(1.5 * found["bus_bits_per_second"])


def test_count_for__within_limits() -> None:
    assert [ranks.count_for(1.0, one) for one in (1e-6, 0.01, 2.0)] == [2000, 100, 5]


def test_checks__with_a_rate_the_planes_are_the_measure() -> None:
    rounds = {
        "mrc": {4096: [metrics(1e6, 120)], 1 << 20: [metrics(1.8e9)], 4 << 20: [metrics(1.7e9)]},
        "TCP": {4096: [metrics(1e6, 100)], 1 << 20: [metrics(0.4e9)], 4 << 20: [metrics(0.4e9)]},
    }
    small, one, four = ranks.checks("bed", rounds, 2e9)
    assert small.value == pytest.approx(1.2) and small.met
    assert one.name == "bed: 1 MiB, bus bandwidth, of the planes"
    assert one.value == pytest.approx(0.9) and one.met
    assert four.value == pytest.approx(0.85) and not four.met


def test_checks__without_a_rate_tcp_is_the_measure() -> None:
    """Rounds are compared one by one: the median of the ratios."""
    ours = [metrics(rate, 200) for rate in (8e9, 10e9, 3e9)]
    theirs = [metrics(rate, 100) for rate in (10e9, 10e9, 1e9)]
    large, small = 1 << 20, 4096
    rounds = {"mrc": {small: ours, large: ours}, "TCP": {small: theirs, large: theirs}}
    latency, rate = ranks.checks("bed", rounds, None)
    assert (latency.value, latency.met) == (2.0, False)
    assert (rate.name, rate.value, rate.met) == (
        "bed: 1 MiB, bus bandwidth, of Gloo over TCP", 1.0, True)  # fmt: skip


def test_ranks_table__each_contender_has_a_column() -> None:
    rounds = {name: {1024: [metrics(1e9), metrics(3e9)]} for name in ("mrc", "TCP")}
    text = ranks.table(ranks.rows(rounds))
    first, line, *_ = text.splitlines()
    assert first.split() == ["Gbit/s", "mrc", "TCP"]
    assert line.count("2 (1 - 3)") == 2
    assert text.count("p99, us") == text.count("CPU, s/GB") == 1


# ---- congestion ----------------------------------------------------------------------------------

FILES = sorted((Path(__file__).parents[3] / "bench" / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenarios__are_those_of_real_hosts(path: Path) -> None:
    """They have the timeouts and acknowledgements of real hosts, so a test bed changes nothing.
    NSCC runs with and without trimming.
    """
    parts = scenario.load_scenario(str(path)).parts
    if parts[0].transport.cc is CcKind.NSCC:
        assert {part.topology.trimming for part in parts} == {True, False}
    for part in parts:
        shape = shape_of(part.topology, (), Fabric.EMULATED)
        same = replace(part, baselines=(), plot="time", links=(), sample_ns=10_000_000)
        assert run.fitted(replace(part, links=()), shape) == same
        assert run.unsupported(part, "mrc") is None
        run.scheduled_faults(part.with_seed(1), make_plan("x", shape))
