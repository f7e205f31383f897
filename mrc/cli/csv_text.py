# SPDX-License-Identifier: Apache-2.0
"""The option `--csv`: a header with the keys of the JSON, then a line for each row."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mrc.connect.parse import printable


def add_option(parser: argparse._ActionsContainer, rows: str) -> None:
    """`--csv`; `rows` describes what a line of it is."""
    parser.add_argument("--csv", action="store_true", help=f"print only CSV on stdout: {rows}")


def csv_text(rows: Sequence[object]) -> str:
    """The rows as CSV, without the last newline.

    Rows are results or mappings. An object inside a row becomes columns such as `latency.p50_ns`;
    null is an empty cell, and lists are left out. All keys of all rows are columns.
    """
    from mrc.results.plain import plain

    table = [dict(_cells(plain(row), "")) for row in rows]
    keys = dict.fromkeys(key for cells in table for key in cells)
    objects = {key.rpartition(".")[0] for key in keys}  # null in some rows
    full = {key for cells in table for key, value in cells.items() if value is not None}
    head = [key for key in keys if key in full or key not in objects]
    text = io.StringIO()
    writer = csv.DictWriter(text, head, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().removesuffix("\n")


def _cells(row: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _cells(value, f"{before}{key}.")
        elif isinstance(value, bool):
            yield before + key, str(value).lower()
        elif isinstance(value, str):
            yield before + key, printable(value)
        elif not isinstance(value, list):
            yield before + key, value
