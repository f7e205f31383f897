# SPDX-License-Identifier: Apache-2.0
"""Values of rounds, checks and tables that all benchmarks share."""

from __future__ import annotations

import figures
from figures import Check


def test_ratios__round_by_round() -> None:
    ours, theirs = ([{"a": value} for value in values] for values in ((4, 9), (2, 3)))
    assert figures.ratios(ours, theirs, "a") == [2, 3]
    assert figures.spreads(ours)["a"] == {"median": 6.5, "min": 4, "max": 9, "rounds": [4, 9]}


def test_told__the_median_of_the_runs_counts() -> None:
    def runs(*values: float) -> list[list[Check]]:
        return [[Check("share", value, ">=", 0.97)] for value in values]

    (check,) = figures.told(runs(0.99, 0.5, 0.98))
    assert check == {"name": "share", "value": 0.98, "relation": ">=", "target": 0.97, "met": True,
                     "smallest": 0.5, "largest": 0.99}  # fmt: skip
    assert not figures.told(runs(0.9, 0.96, 1.0))[0]["met"]


def test_checks_table__says_what_is_not_met() -> None:
    met, missed = Check("a", 0.9, ">=", 0.9).encode(), Check("b", 2.0, "<=", 0.5).encode()
    assert figures.checks_table([met, missed]).splitlines() == [
        "check  median  target",
        "a      0.9     >= 0.9  met",
        "b      2       <= 0.5  NOT MET",
    ]
    spread = [{**check, "smallest": 0.1, "largest": 3} for check in (met, missed)]
    assert figures.checks_table(spread, "busy").splitlines()[1:] == [
        "a      0.9     0.1 - 3    >= 0.9  met",
        "b      2       0.1 - 3    <= 0.5  not judged",
    ]


def test_aligned__numbers_end_below_each_other() -> None:
    assert figures.aligned(("", "Gbit/s"), [("mrc", "12.5"), ("UDP floor", 9)]).splitlines() == [
        "           Gbit/s",
        "mrc          12.5",
        "UDP floor       9",
    ]
