# SPDX-License-Identifier: Apache-2.0
"""The output of `--bins`: goodput over time, the longest gap, EV and plane changes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from mrc.aio.recording import Recording
from mrc.cli.output import format_rate, format_seconds
from mrc.cli.terminal import column_chart
from mrc.observe.results import Bins, PlaneBins
from mrc.perf.meter import History
from mrc.perf.results import Changes, EvChange, PlaneChange, ShareChange
from mrc.results.plain import like
from mrc.units import counted

_Change = EvChange | PlaneChange | ShareChange

COLUMNS = 64
ROWS = 8
MAX_LINES = 12  # most lines about changes in text output; JSON has each change


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
    """The changes of EVs and planes at one end: a line for each kind of change, with its first
    time. A flapping EV makes the same change many times, and each QP makes it on its own.
    """
    told: dict[str, list[_Change]] = {}
    changes: list[_Change] = [*history.evs, *history.planes, *history.shares]
    for change in sorted(changes, key=attrgetter("at_ns")):
        told.setdefault(_text(change), []).append(change)
    shown = list(told.items())[:MAX_LINES]
    lines = [
        f"{end:<10} {same[0].at_ns / 1e9:10.6f} s  {text}{_repeated(same)}" for text, same in shown
    ]
    left_out = sum(map(len, told.values())) - sum(len(same) for _, same in shown)
    left_out += history.lost_changes
    more = [f"{end:<10} {counted(left_out, 'more change')}: see --json"] if left_out > 0 else []
    return [*lines, *more]


def _text(change: _Change) -> str:
    if isinstance(change, EvChange):
        return f"{change.path}: {change.old} to {change.new}, {change.reason}"
    if isinstance(change, PlaneChange):
        moved = "suspended" if change.suspended else "resumed"
        return f"plane {change.plane} {moved}, {change.reason}"
    word = "slow" if change.slow else "no longer slow"
    return f"plane {change.plane} {word}, {change.reason}"


def _repeated(same: Sequence[_Change]) -> str:
    """How often a change was made, and the share that a plane carried then."""
    share = next((each for each in same if isinstance(each, ShareChange)), None)
    percent = "" if share is None else f": carries {share.percent}% of the others"
    if len(same) == 1:
        return percent
    qps = len({each.qpn for each in same})
    where = f" by {counted(qps, 'QP')}" if qps > 1 else ""
    return f"{percent} ({counted(len(same), 'time')}{where}, until {same[-1].at_ns / 1e9:.6f} s)"
