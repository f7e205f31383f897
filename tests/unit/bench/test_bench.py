# SPDX-License-Identifier: Apache-2.0
"""Results of a comparison from its rounds: metrics, medians, checks, bars."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import checks
import contenders
import long_way
import measure
import peers
import pytest
import report
from bed import Bed
from failover_run import Seen
from rows import BEDS


def test_missing__says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    assert set(peers.missing()) == {"ucx_perftest", "fi_pingpong", "socat", "iperf3", "sshd"}
    assert "apt-get install ucx-utils" in peers.missing()["ucx_perftest"]


def test_metrics_of__rates_and_costs() -> None:
    spent = {"cpu_seconds": [0.25, 0.5], "core_seconds": [0.3, 0.6]}
    raw = {"bytes": 1 << 29, "ns": 2e9, "messages": 512, "packets": 1000, "p50_ns": 7, **spent}
    found = measure.metrics_of(raw, [300, 100])
    assert found["goodput_bits_per_second"] == 1 << 31
    assert found["messages_per_second"] == 256
    assert found["sender_cpu_seconds_per_gib"] == 0.5
    assert found["receiver_core_seconds_per_gib"] == 1.2
    assert found["packets_per_gib"] == 2000
    assert "syscalls_per_gib" not in found
    assert found["plane_shares"] == [0.75, 0.25]


def test_summary__medians_of_the_rounds() -> None:
    rounds = [{"p50_ns": value, "plane_shares": [value, 1]} for value in (3, 1, 2)]
    found = measure.summary(rounds)
    assert found["p50_ns"] == {"median": 2, "min": 1, "max": 3, "rounds": [3, 1, 2]}
    assert found["plane_shares"] == [2, 1]


def goodputs(*values: float) -> list[dict[str, Any]]:
    return [{"goodput_bits_per_second": value, "plane_shares": [0.5, 0.5]} for value in values]


def by_name(found: list[Any]) -> dict[str, Any]:
    return {check.name: check for check in found}


def test_evaluate__ratios_are_taken_round_by_round() -> None:
    """The second round was slow for both, the third for only one."""
    rounds = {"UDP floor": goodputs(10, 5, 10), "mrc, WRITE 1 MiB": goodputs(8, 4, 1)}
    (check,) = checks.evaluate({"9000": rounds}, {})
    assert check.name == "mrc, WRITE 1 MiB, of floor"
    assert check.value == 0.8
    assert check.met


def test_evaluate__the_best_tcp_flow_counts() -> None:
    rounds = {
        "mrc, WRITE 1 MiB": goodputs(8, 8, 8),
        "TCP, cubic, write": goodputs(9, 9, 9),
        "TCP, bbr, sendfile": goodputs(10, 10, 1),
    }
    for each in rounds.values():
        for metrics in each:
            metrics |= {f"{side}_cpu_seconds_per_gib": 1.0 for side in ("sender", "receiver")}
    found = by_name(checks.evaluate({"9000": rounds}, {}))
    check = found["mrc, WRITE 1 MiB, of best TCP flow"]
    assert check.value == 0.8
    assert not check.met
    assert found["CPU a GiB, both sides, of best TCP flow"].met


def test_evaluate__rate_limited() -> None:
    rounds = {"mrc, WRITE 1 MiB": goodputs(95, 97, 98)}
    rounds["mrc, WRITE 1 MiB"][1]["plane_shares"] = [0.52, 0.48]
    rounds["mrc, WRITE 1 MiB"][2]["plane_shares"] = [0.515, 0.485]
    share, even = checks.evaluate({"500mbit": rounds}, {"500mbit": 100.0})
    assert (share.value, share.met) == (0.97, True)
    assert (round(even.value, 6), even.met) == (0.03, False)


def test_evaluate__nothing_measured() -> None:
    beds: dict[str, Any] = {name: {} for name in ("9000", "1500", "500mbit", "25ms")}
    assert checks.evaluate(beds, dict.fromkeys(beds, 1.0)) == []


def test_evaluate__a_long_way() -> None:
    rounds = {"mrc": goodputs(89, 91, 95), "TCP, cubic": goodputs(99, 99, 99)}
    (check,) = checks.evaluate({"25ms": rounds}, {"25ms": 100.0})
    assert (check.value, check.met) == (0.91, True)


def test_settled__counts_from_the_first_byte_on() -> None:
    """The second after the first byte is skipped; bytes after the end of the time are left out."""
    streams = [[0] * 30 + [5] * 10 + [10] * 20 + [99] * 5, [0] * 35 + [0] * 5 + [1] * 20 + [0] * 5]
    raw = long_way.settled(Seen(start=7.0, width=0.1, streams=streams), 1.0, 2.0)
    assert raw == {"bytes": 220, "ns": 2e9}


def test_long_way__contenders_in_the_order_of_a_round() -> None:
    names = [each.name for each in long_way.contenders(Bed("long", **BEDS["25ms"], planes=4, t1=2))]
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


def test_goodput_svg__a_bar_for_each_row_that_moved_bytes() -> None:
    spread = {"median": 2e9, "min": 1e9, "max": 4e9}
    rows = [
        {"name": "mrc <1>", "metrics": {"goodput_bits_per_second": spread}},
        {"name": "ping", "metrics": {"p50_ns": spread}},
    ]
    svg = report.goodput_svg("a bed", rows)
    assert svg.count("<rect") == 1
    assert "mrc &lt;1&gt;" in svg
    assert "ping" not in svg
    assert ">2</text>" in svg
