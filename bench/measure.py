# SPDX-License-Identifier: Apache-2.0
"""Runs rows in turn, round after round, and computes metrics from their results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bed import Bed
from contenders import Raw
from end import BenchError, core_ns, cpu_ns
from rows import Row

GIB = 1 << 30
Metrics = dict[str, Any]
# Row name -> metrics of each round.
Rounds = dict[str, list[Metrics]]


def run_rounds(
    bed: Bed, rows: Sequence[Row], repeats: int, warm_up: bool, note: Callable[[str], None]
) -> tuple[Rounds, dict[str, str]]:
    """Runs every row once a round, so that a slow moment of the machine affects adjacent rows.

    Returns the metrics, and the reasons for missing rows of peers.
    """
    rounds: Rounds = {row.name: [] for row in rows}
    failed: dict[str, str] = {}
    for number in range(repeats + warm_up):
        for row in rows:
            if row.name in failed:
                continue
            try:
                metrics = measure(bed, row)
            except BenchError as error:
                if not row.peer:
                    raise BenchError(f"{row.name}: {error}") from error
                failed[row.name] = str(error)
                continue
            if number >= warm_up:
                rounds[row.name].append(metrics)
            note(f"round {number + 1 - warm_up}: {row.name}: {brief(metrics)}")
    return {name: found for name, found in rounds.items() if found}, failed


def measure(bed: Bed, row: Row) -> Metrics:
    """Measures one row once."""
    before = bed.sent_bytes(), cpu_ns(row.pids), core_ns()
    raw = row.measure()
    after = bed.sent_bytes(), cpu_ns(row.pids), core_ns()
    planes, cpu, cores = (
        [now - then for then, now in zip(*both, strict=True)]
        for both in zip(before, after, strict=True)
    )
    if not row.costed:
        return metrics_of(raw, planes)
    raw["core_seconds"] = [ns / 1e9 for ns in cores]
    # A program that ended meanwhile reported its own CPU time. `cpu` has the softirq threads'.
    raw["cpu_seconds"] = [
        ns / 1e9 + own for ns, own in zip(cpu, raw.get("cpu_seconds", (0, 0)), strict=True)
    ]
    return metrics_of(raw, planes)


def metrics_of(raw: Raw, planes_bytes: Sequence[int]) -> Metrics:
    """Rates and costs of a row, as far as its contender reports them."""
    seconds = raw["ns"] / 1e9
    metrics: Metrics = {name: raw[name] for name in ("p50_ns", "p99_ns", "p999_ns") if name in raw}
    if "messages" in raw:
        metrics["messages_per_second"] = raw["messages"] / seconds
    if "retransmissions" in raw:
        metrics["retransmissions"] = raw["retransmissions"]
    if raw.get("bytes"):
        gib = raw["bytes"] / GIB
        metrics["goodput_bits_per_second"] = 8 * raw["bytes"] / seconds
        for kind in ("cpu", "core") if "core_seconds" in raw else ():
            for side, spent in zip(("sender", "receiver"), raw[f"{kind}_seconds"], strict=True):
                metrics[f"{side}_{kind}_seconds_per_gib"] = spent / gib
        metrics |= {f"{name}_per_gib": raw[name] / gib for name in ("packets", "syscalls")
                    if name in raw}  # fmt: skip
        total = sum(planes_bytes)
        metrics["plane_shares"] = [count / total for count in planes_bytes]
    return metrics


def summary(rounds: Sequence[Metrics]) -> dict[str, Any]:
    """Median, smallest and largest value of every metric, and its values in order."""
    found: dict[str, Any] = {}
    for name in rounds[0]:
        values = [metrics[name] for metrics in rounds]
        if name == "plane_shares":
            found[name] = [statistics.median(plane) for plane in zip(*values, strict=True)]
            continue
        found[name] = {
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            "rounds": values,
        }
    return found


def brief(metrics: Metrics) -> str:
    if "goodput_bits_per_second" in metrics:
        return f"{metrics['goodput_bits_per_second'] / 1e9:.3g} Gbit/s"
    return f"p50 {metrics['p50_ns'] / 1e3:.3g} us"
