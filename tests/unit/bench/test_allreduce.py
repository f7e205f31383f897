# SPDX-License-Identifier: Apache-2.0
"""Figures of `bench/allreduce` from the times of a run, and their display."""

from __future__ import annotations

import allreduce_figures as figures
import pytest

MB = 1_000_000


def metrics(bus_bps: float, p50_us: float = 100) -> figures.Metrics:
    return {
        "bus_bits_per_second": bus_bps, "p50_ns": p50_us * 1e3, "p99_ns": p50_us * 2e3,
        "cpu_seconds_per_gb": 1.0, "core_seconds_per_gb": 2.0,
    }  # fmt: skip


def test_bus_share__what_each_rank_must_send() -> None:
    assert [figures.bus_share(ranks) for ranks in (2, 4)] == [1.0, 1.5]


def test_metrics__of_known_times() -> None:
    """100 operations of 1 MB in 0.9 s, one of them in 108 ms; CPU time of 125."""
    times = [8 * MB] * 99 + [108 * MB]
    raw = {"ns": times, "operations": 125, "cpu_ns": 300 * MB, "core_ns": 600 * MB}
    found = figures.metrics(MB, 2, raw)
    assert found["bus_bits_per_second"] == pytest.approx(8 * MB * 100 / 0.9)
    assert (found["p50_ns"], found["p99_ns"]) == (8 * MB, 8 * MB)
    # Both ranks sent 0.125 GB.
    assert found["cpu_seconds_per_gb"] == pytest.approx(1.2)
    assert found["core_seconds_per_gb"] == pytest.approx(2.4)
    four = figures.metrics(MB, 4, raw)
    assert four["bus_bits_per_second"] == pytest.approx(1.5 * found["bus_bits_per_second"])


def test_count_for__within_limits() -> None:
    assert [figures.count_for(1.0, one) for one in (1e-6, 0.01, 2.0)] == [2000, 100, 5]


def test_checks__with_a_rate_the_planes_are_the_measure() -> None:
    rounds = {
        "mrc": {4096: [metrics(1e6, 120)], 1 << 20: [metrics(1.8e9)], 4 << 20: [metrics(1.7e9)]},
        "TCP": {4096: [metrics(1e6, 100)], 1 << 20: [metrics(0.4e9)], 4 << 20: [metrics(0.4e9)]},
    }
    small, one, four = figures.checks("bed", rounds, 2e9)
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
    latency, rate = figures.checks("bed", rounds, None)
    assert (latency.value, latency.met) == (2.0, False)
    assert (rate.name, rate.value, rate.met) == (
        "bed: 1 MiB, bus bandwidth, of Gloo over TCP", 1.0, True)  # fmt: skip


def test_table__each_contender_has_a_column() -> None:
    rounds = {name: {1024: [metrics(1e9), metrics(3e9)]} for name in ("mrc", "TCP")}
    text = figures.table(figures.rows(rounds))
    first, line, *_ = text.splitlines()
    assert first.split() == ["Gbit/s", "mrc", "TCP"]
    assert line.count("2 (1 - 3)") == 2
    assert text.count("p99, us") == text.count("CPU, s/GB") == 1
