# SPDX-License-Identifier: Apache-2.0
"""What a capture shows, as a page with plots that loads nothing from the network. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from mrc.conform import shown
from mrc.conform.passive import Direction, Judge
from mrc.conform.results import Captured
from mrc.sim.axes import Chart, Line, Point
from mrc.sim.drawing import style_sheet

_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
{style}
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--paper); }}
svg {{ max-width: 100%; height: auto; }} pre {{ overflow-x: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
<pre>{text}</pre>
{plots}
</body>
</html>
"""


def page(name: str, judge: Judge, found: Captured) -> str:
    """The page of a capture. Requires the extra `plot`."""
    plots = []
    for way in judge.directions.values():
        ends = f"{way.source} to {way.destination}, QPN 0x{way.qpn:06x}"
        plots.append(f"<h2>{html.escape(ends)}</h2>")
        plots += [chart.svg() for chart in _charts(way) if chart.lines]
    return _PAGE.format(
        title=html.escape(f"mrc conform judge: {name}"), style=style_sheet(),
        text=html.escape("\n".join(shown.lines(found))), plots="\n".join(plots),
    )  # fmt: skip


def _charts(way: Direction) -> Iterator[Chart]:
    course = way.course
    yield _over_time("PSNs in flight", "PSNs", course.flight.samples, 1.0)
    unit, scale = _unit([value for _, value in course.round_trips.samples])
    title = f"from a packet to its SACK, {unit}"
    yield _over_time("Round trips", title, course.round_trips.samples, scale)
    yield _sorted("Packets of each EV", "EVs, the busiest last", "% of the mean", {
        "data": _shares(list(way.evs.values()))})  # fmt: skip
    waits = {"after a SACK or NACK": course.waits_reported, "by a timer": course.waits_silent}
    unit, scale = _unit([wait for each in waits.values() for wait in each])
    yield _sorted("Times until a retransmission", "retransmissions, the latest last", unit, {
        name: [wait / scale for wait in each] for name, each in waits.items()})  # fmt: skip


def _unit(seconds: Sequence[float]) -> tuple[str, float]:
    """A unit for these times, and its length in seconds."""
    most = max(seconds, default=0.0)
    return next(one for one in _UNITS if most >= 2 * one[1] or one[0] == "us")


def _shares(counts: list[int]) -> list[float]:
    mean = sum(counts) / len(counts) if counts else 1.0
    return [100 * count / mean for count in counts]


def _over_time(
    title: str, name: str, samples: Sequence[tuple[float, float]], scale: float
) -> Chart:
    end = max((seconds for seconds, _ in samples), default=0.0)
    unit, second = _unit([end])
    points = [_point(seconds / second, value / scale) for seconds, value in samples]
    return _chart(title, f"time, {unit}", name, {"": points})


def _sorted(title: str, x_title: str, y_title: str, values: dict[str, list[float]]) -> Chart:
    """Point n is the n-th smallest value."""
    lines = {
        name: [_point(n, value) for n, value in enumerate(sorted(each), 1)]
        for name, each in values.items() if each
    }  # fmt: skip
    return _chart(title, x_title, y_title, lines)


def _point(x: float, y: float) -> Point:
    return Point(x, y, y, y)


def _chart(title: str, x_title: str, y_title: str, lines: dict[str, list[Point]]) -> Chart:
    points = [point for each in lines.values() for point in each]
    chart = Chart(
        x_title=x_title, y_title=y_title, title=title,
        x_end=max((point.x for point in points), default=0.0) or 1.0,
        y_end=1.05 * max((point.middle for point in points), default=0.0) or 1.0,
    )  # fmt: skip
    chart.lines = [
        Line(name or y_title, each, marked=len(each) < 50) for name, each in lines.items() if each
    ]
    return chart
