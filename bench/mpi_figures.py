# SPDX-License-Identifier: Apache-2.0
"""Results of `bench/mpi` from what rank 0 prints, and their tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mrc.cli.output import format_bytes, format_table

MRC, TCP = "mrc", "TCP"
GOODPUT, P50, P99 = "goodput_bits_per_second", "p50_ns", "p99_ns"
COLUMNS = {GOODPUT: (1e9, "Gbit/s"), P50: (1e3, "p50, us"), P99: (1e3, "p99, us")}

Rounds = Mapping[str, Sequence[Mapping[str, Any]]]
"""By contender: what rank 0 printed in each round."""


def _values(printed: Mapping[str, Any], metric: str) -> dict[str, float]:
    """One metric of a round, by size."""
    if metric == GOODPUT:
        return dict(printed["bandwidth"])
    return {size: each[metric] for size, each in printed["latency"].items()}


def rows(rounds: Rounds) -> list[dict[str, Any]]:
    """For each metric and size: the values of both contenders, and the rounds' ratios."""
    found = []
    for metric in COLUMNS:
        by_name = {name: [_values(each, metric) for each in own] for name, own in rounds.items()}
        for size in by_name[MRC][0]:
            values = {name: [each[size] for each in own] for name, own in by_name.items()}
            ratios = [a / b for a, b in zip(values[MRC], values[TCP], strict=True)]
            found.append({"metric": metric, "bytes": int(size), "ratio": ratios, **values})
    return found


def table(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """One metric as text: medians with the smallest and the largest value."""
    unit, title = COLUMNS[metric]
    lines = [
        [
            format_bytes(row["bytes"]),
            *(_spread([value / unit for value in row[name]]) for name in (MRC, TCP)),
            _spread(row["ratio"]),
        ]
        for row in rows
        if row["metric"] == metric
    ]
    return format_table([title, "MPI over mrc", "MPI over TCP", "ratio"], lines)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} - {max(values):.3g})"
