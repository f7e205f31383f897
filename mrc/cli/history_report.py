# SPDX-License-Identifier: Apache-2.0
"""What `--bins` prints: goodput over time, the longest gap, and what changed when."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mrc.binding.recording import Recording
from mrc.cli.chart import column_chart
from mrc.cli.output import format_rate, format_seconds
from mrc.perf.history import History

COLUMNS = 64
ROWS = 8
MAX_LINES = 12  # of changes, in text; JSON has them all


# ---- JSON -----------------------------------------------------------------------------------


def bins_json(recording: Recording) -> dict[str, Any]:
    """`bytes` and those of each plane are per bin; what is named `_ns` counts from the start."""
    keys = (
        "start_monotonic_ns", "duration_ns", "width_ns", "first_ns", "last_ns", "longest_gap_ns",
        "longest_gap_at_ns", "bytes",
    )  # fmt: skip
    planes = sorted(recording.planes.items())
    return {key: getattr(recording, key) for key in keys} | {
        "planes": [{"plane": plane, "bytes": bins} for plane, bins in planes]
    }


def changes_json(history: History) -> dict[str, Any]:
    return {
        "start_monotonic_ns": history.recording.start_monotonic_ns,
        "evs": [asdict(change) for change in history.evs],
        "planes": [asdict(change) for change in history.planes],
        "shares": [asdict(change) for change in history.shares],
        "changes_lost": history.changes_lost,
    }


# ---- text -----------------------------------------------------------------------------------


def bins_lines(receiver: str, recording: Recording) -> list[str]:
    """A chart of what arrived, a column for several bins, and the longest gap."""
    bins = recording.bytes
    if not any(bins):
        return [f"{receiver}: nothing arrived"]
    each = -(-len(bins) // COLUMNS)
    column_ns = each * recording.width_ns
    rates = [8e9 * sum(bins[i : i + each]) / column_ns for i in range(0, len(bins), each)]
    gap_ns, at_ns = recording.longest_gap_ns, recording.longest_gap_at_ns
    marks = {} if at_ns is None else {at_ns // column_ns: "^"}
    title = (
        f"goodput at the {receiver}, a column is {format_seconds(column_ns / 1e9)}"
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
    left_out = len(lines) - MAX_LINES + history.changes_lost
    more = [f"{end:<10} and {left_out} changes more; --json has them"] if left_out > 0 else []
    return [*lines[:MAX_LINES], *more]
