# SPDX-License-Identifier: Apache-2.0
"""Runs rows in turn, round after round, and computes metrics from their results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from bed import Bed
from benchmark import run_rounds
from contenders import Raw
from end import core_ns, cpu_ns
from figures import GOODPUT, spreads
from rows import Row

GIB = 1 << 30
Metrics = dict[str, Any]
# Row name -> metrics of each round.
Rounds = dict[str, list[Metrics]]


def run_rows(
    bed: Bed, rows: Sequence[Row], args: argparse.Namespace
) -> tuple[Rounds, dict[str, str]]:
    """The metrics of every row, and the reasons for missing rows of peers."""
    return run_rounds(
        {row.name: partial(measure, bed, row) for row in rows},
        args.repeats,
        warm_up=not args.quick,
        peers=[row.name for row in rows if row.peer],
        brief=lambda name, metrics: f"{name}: {brief(metrics)}",
    )


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
        metrics[GOODPUT] = 8 * raw["bytes"] / seconds
        for kind in ("cpu", "core") if "core_seconds" in raw else ():
            for side, spent in zip(("sender", "receiver"), raw[f"{kind}_seconds"], strict=True):
                metrics[f"{side}_{kind}_seconds_per_gib"] = spent / gib
        metrics |= {f"{name}_per_gib": raw[name] / gib for name in ("packets", "syscalls")
                    if name in raw}  # fmt: skip
        total = sum(planes_bytes)
        metrics["plane_shares"] = [count / total for count in planes_bytes]
    return metrics


def summary(rounds: Sequence[Metrics]) -> dict[str, Any]:
    """The spread of every metric, and the median of each plane's share."""
    found: dict[str, Any] = spreads(
        [{name: each[name] for name in each if name != "plane_shares"} for each in rounds]
    )
    if "plane_shares" in rounds[0]:
        planes = zip(*(each["plane_shares"] for each in rounds), strict=True)
        found["plane_shares"] = [median(plane) for plane in planes]
    return found


def brief(metrics: Metrics) -> str:
    if GOODPUT in metrics:
        return f"{metrics[GOODPUT] / 1e9:.3g} Gbit/s"
    return f"p50 {metrics['p50_ns'] / 1e3:.3g} us"
