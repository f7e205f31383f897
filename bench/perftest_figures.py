# SPDX-License-Identifier: Apache-2.0
"""Results of `bench/perftest` from what the programs print, and their table. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mrc.cli.output import format_bytes, format_table

GOODPUT, P50, P99 = "goodput_bits_per_second", "p50_ns", "p99_ns"
PERFTEST, PERF = "perftest", "mrc perf"

Metrics = Mapping[str, float]
Rounds = Mapping[str, Sequence[Metrics]]
"""By contender: the metrics of each round."""


def numbers(output: str) -> list[float]:
    """The row of numbers that a program of perftest prints; raises ValueError without one."""
    rows = [line.split() for line in output.splitlines() if re.fullmatch(r"[\s\d.]+", line)]
    rows = [row for row in rows if row]
    if len(rows) != 1:
        raise ValueError(f"prints {len(rows)} rows of numbers instead of one")
    return [float(word) for word in rows[0]]


def of_write_bw(output: str) -> Metrics:
    """Of `ib_write_bw --report_gbits`: size, count, peak, average, messages."""
    _, _, _, average, _ = numbers(output)
    return {GOODPUT: average * 1e9}


def of_write_lat(output: str) -> Metrics:
    """Of `ib_write_lat`: size, count, least, most, typical, average, deviation, 99%, 99.9%.

    Its typical time is the median.
    """
    _, _, _, _, typical, _, _, late, _ = numbers(output)
    return {P50: typical * 1e3, P99: late * 1e3}


def of_perf(document: Mapping[str, Any]) -> Metrics:
    """Of `mrc perf --json`, with `--lat` or without."""
    (test,) = document["results"]
    if test["client"]["latency_of"] == "completion":
        return {GOODPUT: test["goodput_bits_per_second"]}
    latency = test["client"]["latency"]
    return {P50: latency[P50], P99: latency[P99]}


def row(size: int, rounds: Rounds) -> dict[str, Any]:
    """Medians and spread of both contenders at one size, and the median of the rounds' ratios."""
    found: dict[str, Any] = {"bytes": size, "metrics": {}}
    for metric in rounds[PERF][0]:
        values = {name: [each[metric] for each in own] for name, own in rounds.items()}
        ratios = [a / b for a, b in zip(values[PERFTEST], values[PERF], strict=True)]
        found["metrics"][metric] = {
            "ratio": spread(ratios), **{name: spread(own) for name, own in values.items()}
        }  # fmt: skip
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": median(values), "min": min(values), "max": max(values), "rounds": list(values),
    }  # fmt: skip


_COLUMNS = {
    GOODPUT: (1e9, "Gbit/s", "ib_write_bw"),
    P50: (1e3, "p50, us", "ib_write_lat"),
    P99: (1e3, "p99, us", "ib_write_lat"),
}


def table(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """One metric as text: a line for each size, medians with the smallest and largest value."""
    divisor, heading, program = _COLUMNS[metric]
    lines = [
        (
            format_bytes(row["bytes"]),
            _cell(values[PERFTEST], divisor),
            _cell(values[PERF], divisor),
            _cell(values["ratio"], 1),
        )
        for row in rows
        if (values := row["metrics"].get(metric)) is not None
    ]
    return format_table((heading, program, PERF, "ratio"), lines)


def _cell(values: Mapping[str, float], divisor: float) -> str:
    middle, low, high = (values[name] / divisor for name in ("median", "min", "max"))
    return f"{_short(middle)} ({_short(low)} - {_short(high)})"


def _short(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
