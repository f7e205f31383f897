# SPDX-License-Identifier: Apache-2.0
"""The chart of columns, compared with drawings."""

from __future__ import annotations

from mrc.cli.figures import column_chart


def test_column_chart__blocks_labels_and_marks() -> None:
    lines = column_chart(
        [0, 1, 2, 4, 8, 16, 7, 0.4],
        top=8,
        rows=2,
        marks={3: "F", 7: "H", 99: "?"},
        label=lambda value: f"{value:g} b",
    )
    assert lines == [
        "         8 b |    ██▆",
        "         4 b | ▂▄████▁",
        "             +---F---H",
    ]


def test_column_chart__without_values() -> None:
    assert column_chart([], top=1, rows=1, marks={}, label=str) == [
        "         1.0 |",
        "             +",
    ]
