# SPDX-License-Identifier: Apache-2.0
"""The output of `--bins`: goodput over time, and the longest gap."""

from __future__ import annotations

from mrc.aio.recording import Recording
from mrc.cli.output import format_rate, format_seconds
from mrc.cli.terminal import column_chart
from mrc.observe.results import Bins, PlaneBins
from mrc.results import like

COLUMNS = 64
ROWS = 8


def bins(recording: Recording) -> Bins:
    planes = sorted(recording.planes.items())
    return like(
        Bins,
        recording,
        planes=tuple(PlaneBins(plane=plane, bytes=tuple(each)) for plane, each in planes),
    )


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
