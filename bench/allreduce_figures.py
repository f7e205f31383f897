# SPDX-License-Identifier: Apache-2.0
"""Metrics, checks and tables of `bench/allreduce`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from figures import Check, quantile, ratios, size_table, spreads

SIZES = tuple(4**i << 10 for i in range(9))  # 1 KiB to 64 MiB
LARGE = 1 << 20  # targets of bandwidth apply from this size on
SMALL = 4 << 10  # the target of latency applies to this size

Metrics = dict[str, float]
Rounds = Mapping[str, Mapping[int, Sequence[Metrics]]]
"""By contender, then by bytes of the tensor: the metrics of each round."""


def bus_share(ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests define it for an allreduce.

    Each rank must send and receive this share of the tensor at least, so the bus bandwidth can be
    compared with the rate of a host's links, whatever the number of ranks.
    """
    return 2 * (ranks - 1) / ranks


def count_for(seconds: float, one_seconds: float) -> int:
    """Operations that take about `seconds`, within limits."""
    return max(5, min(2000, round(seconds / one_seconds)))


def metrics(size: int, ranks: int, raw: Mapping[str, Any]) -> Metrics:
    """Metrics of one measurement. CPU time is that of all ranks, for each GB that crosses the
    fabric. It includes the operations before the first that was timed.
    """
    ordered = sorted(raw["ns"])
    sent_bytes = size * bus_share(ranks)  # by each rank in one operation
    gigabytes = sent_bytes * raw["operations"] * ranks / 1e9
    return {
        "bus_bits_per_second": 8e9 * sent_bytes * len(ordered) / sum(ordered),
        "p50_ns": quantile(ordered, 500),
        "p99_ns": quantile(ordered, 990),
        "cpu_seconds_per_gb": raw["cpu_ns"] / 1e9 / gigabytes,
        "core_seconds_per_gb": raw["core_ns"] / 1e9 / gigabytes,
    }


def rows(rounds: Rounds) -> list[dict[str, Any]]:
    """A row for each contender and size: median, smallest and largest value of each metric."""
    return [
        {"contender": name, "bytes": size, "metrics": spreads(found)}
        for name, sizes in rounds.items()
        for size, found in sizes.items()
    ]


# ---- targets ------------------------------------------------------------------------------------


def checks(title: str, rounds: Rounds, capacity_bps: float | None) -> Iterator[Check]:
    """The targets of mrc on one bed. `capacity_bps`: payload of full packets on all planes of a
    host; None without a rate limit.
    """
    ours, tcp = rounds.get("mrc", {}), rounds.get("TCP", {})
    if SMALL in ours and SMALL in tcp:
        name = f"{title}: 4 KiB, p50, of Gloo over TCP"
        yield Check(name, median(ratios(ours[SMALL], tcp[SMALL], "p50_ns")), "<=", 1.5)
    for size in (size for size in ours if size >= LARGE):
        name = f"{title}: {size >> 20} MiB, bus bandwidth, of "
        if capacity_bps is not None:
            share = median(each["bus_bits_per_second"] for each in ours[size]) / capacity_bps
            yield Check(name + "the planes", share, ">=", 0.9)
        elif size in tcp:
            share = median(ratios(ours[size], tcp[size], "bus_bits_per_second"))
            yield Check(name + "Gloo over TCP", share, ">=", 1.0)


# ---- tables -------------------------------------------------------------------------------------

_COLUMNS = (
    ("bus_bits_per_second", 1e9, "Gbit/s"),
    ("p50_ns", 1e3, "p50, us"),
    ("p99_ns", 1e3, "p99, us"),
    ("cpu_seconds_per_gb", 1, "CPU, s/GB"),
)


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows of one bed as text: contenders beside each other, a line for each size."""
    names = list(dict.fromkeys(row["contender"] for row in found))
    by_place = {(row["contender"], row["bytes"]): row["metrics"] for row in found}
    sizes = dict.fromkeys(row["bytes"] for row in found)
    return "\n\n".join(
        size_table(
            (heading, *names),
            {size: [by_place[name, size][metric] for name in names] for size in sizes},
            [divisor] * len(names),
        )
        for metric, divisor, heading in _COLUMNS
    )
