# SPDX-License-Identifier: Apache-2.0
"""Values of several rounds, their checks, and tables of both. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from mrc.cli.output import format_table
from mrc.units import scaled

GOODPUT, P50, P99 = "goodput_bits_per_second", "p50_ns", "p99_ns"

Metrics = Mapping[str, Any]
Spread = Mapping[str, Any]
"""Median, smallest and largest value of the rounds, and the values in order."""


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": median(values), "min": min(values), "max": max(values), "rounds": list(values),
    }  # fmt: skip


def spreads(rounds: Sequence[Metrics]) -> dict[str, Any]:
    """The spread of every metric."""
    return {name: spread([each[name] for each in rounds]) for name in rounds[0]}


def ratios(ours: Sequence[Metrics], theirs: Sequence[Metrics], metric: str) -> list[float]:
    """Round by round, so that a slow moment of the machine affects both."""
    return [a[metric] / b[metric] for a, b in zip(ours, theirs, strict=True)]


def quantile(ordered: Sequence[int], thousandth: int) -> int:
    """As in job.h."""
    return ordered[(len(ordered) - 1) * thousandth // 1000]


# ---- checks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """A value of the run beside its target."""

    name: str
    value: float
    relation: str  # ">=" or "<="
    target: float

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.relation == ">=" else self.value <= self.target

    def encode(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def told(repeats: Sequence[Sequence[Check]]) -> list[dict[str, Any]]:
    """The checks of one scenario for JSON: the median of its repeats, and their spread."""
    found = []
    for same in zip(*repeats, strict=True):
        values = [check.value for check in same]
        check = replace(same[0], value=median(values))
        found.append({**check.encode(), "smallest": min(values), "largest": max(values)})
    return found


# ---- tables -------------------------------------------------------------------------------------


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cell(values: Spread, divisor: float = 1) -> str:
    """`2 (1 - 3)`: the median, the smallest and the largest value."""
    middle, low, high = (short(values[name] / divisor) for name in ("median", "min", "max"))
    return f"{middle} ({low} - {high})"


def size_table(
    head: Sequence[str], lines: Mapping[int, Sequence[Spread]], divisors: Sequence[float]
) -> str:
    """A line for each size in bytes."""
    rows = [
        (scaled(size, "B"), *map(cell, values, divisors)) for size, values in lines.items()
    ]  # fmt: skip
    return format_table(head, rows)


def aligned(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns of text; all but the first are right-aligned."""
    texts = [[str(each) for each in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in texts
    )


def checks_table(checks: Sequence[Mapping[str, Any]], busy: str = "") -> str:
    """`busy`: why the machine is too busy to judge a check that is not met; or empty."""
    spread = any("smallest" in check for check in checks)
    head = ("check", "median", *(["from - to"] if spread else []), "target", "")
    rows = [
        (
            check["name"],
            f"{check['value']:.3g}",
            *([f"{check['smallest']:.3g} - {check['largest']:.3g}"] if spread else []),
            f"{check['relation']} {check['target']:g}",
            # A busy machine can miss a target that mrc meets, so such a check is not judged.
            "met" if check["met"] else "not judged" if busy else "NOT MET",
        )
        for check in checks
    ]
    return format_table(head, rows)
