# SPDX-License-Identifier: Apache-2.0
"""A result of `bench/failover` for a terminal: a chart of each run, figures, checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from failover_figures import duration, events_of, rates, story_of, summary
from failover_scenario import DOWN, LOSS, SLOW
from figures import checks_table

from mrc.cli.output import format_rate, format_table
from mrc.cli.terminal import column_chart

_COLUMNS, _ROWS = 80, 4
_LETTERS = {DOWN: ("D", "U"), LOSS: ("L", "O"), SLOW: ("T", "F")}


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The whole result, line by line."""
    story, bed = story_of(result), result["bed"]
    for run in story:
        yield f"{run['contender']}: {summary(run)}"
        yield from _chart(run, bed["planes"] * bed["plane_payload_bits_per_second"])
    if story:
        seconds = story[0]["seconds"]
        yield (
            f"{'':>14}0 to {seconds:g} s; plane 1 S: silent, H: healed, D: link down, U: link up,"
        )
        yield f"{'':>14}L: 20% loss, O: over, T: a tenth of its rate, F: full rate again"
        yield ""
        yield _table(story)
    yield ""
    yield checks_table(result["checks"], result.get("busy", ""))


def _chart(run: Mapping[str, Any], capacity: float) -> list[str]:
    seconds = run["seconds"]
    values = [bps for _, bps in rates(run, 0.0, seconds, seconds / _COLUMNS)]
    marks = {}
    for event in events_of(run):
        begin, end = _LETTERS.get(event.mode, ("S", "H"))
        for at, letter in ((event.at, begin), (event.until, end)):
            marks[int(_COLUMNS * min(at / seconds, 1))] = letter
    return column_chart(values, top=capacity, rows=_ROWS, marks=marks, label=format_rate)


def _table(story: Sequence[Mapping[str, Any]]) -> str:
    """Time below 95% of the remaining capacity, from each change to the next."""
    names = [part["name"] for part in story[0]["figures"]["phases"][1:]]
    rows = [
        (
            run["contender"],
            *(duration(part["below_seconds"]) for part in run["figures"]["phases"][1:]),
            f"{run['figures']['retransmitted_bytes'] / 1e6:.1f} MB",
        )
        for run in story
    ]
    return format_table(("below 95% after", *names, "sent again"), rows)
