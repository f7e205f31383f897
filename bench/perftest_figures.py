# SPDX-License-Identifier: Apache-2.0
"""Results of `bench/perftest` from what the programs print, and their table. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from figures import GOODPUT, P50, P99, Metrics, ratios, size_table, spread

PERFTEST, PERF = "perftest", "mrc perf"
COLUMNS = {
    GOODPUT: (1e9, "Gbit/s", "ib_write_bw"),
    P50: (1e3, "p50, us", "ib_write_lat"),
    P99: (1e3, "p99, us", "ib_write_lat"),
}


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


def row(size: int, theirs: Sequence[Metrics], ours: Sequence[Metrics]) -> dict[str, Any]:
    """Medians and spread of both contenders at one size, and the median of the rounds' ratios."""
    return {"bytes": size, "metrics": {
        metric: {
            "ratio": spread(ratios(theirs, ours, metric)),
            PERFTEST: spread([each[metric] for each in theirs]),
            PERF: spread([each[metric] for each in ours]),
        }
        for metric in ours[0]
    }}  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """One metric as text: a line for each size, medians with the smallest and largest value."""
    divisor, heading, program = COLUMNS[metric]
    lines = {
        row["bytes"]: [row["metrics"][metric][name] for name in (PERFTEST, PERF, "ratio")]
        for row in rows
        if metric in row["metrics"]
    }
    return size_table((heading, program, PERF, "ratio"), lines, (divisor, divisor, 1))
