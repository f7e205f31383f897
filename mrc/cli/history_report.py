# SPDX-License-Identifier: Apache-2.0
"""The option `--bins`, and its output: goodput over time, the longest gap, EV and plane changes."""

from __future__ import annotations

import argparse
from typing import Any

from mrc.aio.recorder import MIN_WIDTH_NS
from mrc.binding.recording import MAX_BINS, Recording
from mrc.cli.arguments import time_argument
from mrc.cli.chart import column_chart
from mrc.cli.output import format_rate, format_seconds
from mrc.perf.history import History
from mrc.results.perf import Changes
from mrc.results.plain import like
from mrc.results.qp import Bins, PlaneBins

COLUMNS = 64
ROWS = 8
MAX_LINES = 12  # most lines about changes in text output; JSON has all changes


# ---- option ---------------------------------------------------------------------------------


def add_option(parser: Any, default: str, text: str) -> None:
    """`--bins [WIDTH]`: `args.bins` is in nanoseconds, and 0 without the option."""
    parser.add_argument(
        "--bins", type=_width, nargs="?", const=_width(default), default=0, metavar="WIDTH",
        help=f"{text} [{default}; doubled when more than {MAX_BINS} bins are needed]",
    )  # fmt: skip


def _width(text: str) -> int:
    width_ns = time_argument(text)
    if width_ns < MIN_WIDTH_NS:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1us")
    return width_ns


# ---- JSON -----------------------------------------------------------------------------------


def bins(recording: Recording) -> Bins:
    planes = sorted(recording.planes.items())
    return like(
        Bins,
        recording,
        planes=tuple(PlaneBins(plane=plane, bytes=tuple(each)) for plane, each in planes),
    )


def changes(history: History) -> Changes:
    return like(Changes, history, start_monotonic_ns=history.recording.start_monotonic_ns)


# ---- text -----------------------------------------------------------------------------------


def bins_lines(receiver: str, recording: Recording) -> list[str]:
    """A chart of the bytes received, with one column for several bins, and the longest gap."""
    counts = recording.bytes
    if not any(counts):
        return [f"{receiver}: nothing arrived"]
    each = -(-len(counts) // COLUMNS)
    column_ns = each * recording.width_ns
    rates = [8e9 * sum(counts[i : i + each]) / column_ns for i in range(0, len(counts), each)]
    gap_ns, at_ns = recording.longest_gap_ns, recording.longest_gap_at_ns
    marks = {} if at_ns is None else {at_ns // column_ns: "^"}
    title = (
        f"goodput at the {receiver}, each column is {format_seconds(column_ns / 1e9)}"
        f" ({each} bins of {format_seconds(recording.width_ns / 1e9)})"
    )
    chart = column_chart(rates, top=max(rates), rows=ROWS, marks=marks, label=format_rate)
    lines = [title, *chart]
    if at_ns is not None:
        lines.append(f"longest gap {format_seconds(gap_ns / 1e9)}, from {at_ns / 1e9:.6f} s on (^)")
    tail_ns = recording.duration_ns - (recording.last_ns or 0)
    if tail_ns > gap_ns:
        lines.append(f"nothing arrived in the last {format_seconds(tail_ns / 1e9)}")
    return lines


def change_lines(end: str, history: History) -> list[str]:
    """The first changes of EVs and planes at one end."""
    told = [(ev.at_ns, f"{ev.path}: {ev.old} to {ev.new}, {ev.reason}") for ev in history.evs]
    for plane in history.planes:
        moved = "suspended" if plane.suspended else "resumed"
        told.append((plane.at_ns, f"plane {plane.plane} {moved}, {plane.reason}"))
    for share in history.shares:
        word = "slow" if share.slow else "no longer slow"
        text = f"plane {share.plane} {word}: carries {share.percent}% of the others"
        told.append((share.at_ns, f"{text}, {share.reason}"))
    lines = [f"{end:<10} {at_ns / 1e9:10.6f} s  {text}" for at_ns, text in sorted(told)]
    left_out = len(lines) - MAX_LINES + history.lost_changes
    more = [f"{end:<10} {left_out} more changes: see --json"] if left_out > 0 else []
    return [*lines[:MAX_LINES], *more]
