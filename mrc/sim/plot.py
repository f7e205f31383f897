# SPDX-License-Identifier: Apache-2.0
"""Plots a scenario's runs as SVG: medians over the seeds, bands between quartiles. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mrc.sim.axes import Chart, Line, Point
from mrc.sim.checks import Outcome, quartiles
from mrc.sim.scenario import Scenario
from mrc.sim.trial import Series, Summary

_MAX_POINTS = 200
_TOP_SHARE = 1.05
_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3))


def draw(scenario: Scenario, summaries: Sequence[Summary]) -> str:
    """The plot of a scenario without variants."""
    return flows_svg(summaries) if scenario.plot == "flows" else time_svg(scenario, summaries)


def _label(series: Series) -> str:
    return series.group if series.kind == "mrc" else f"{series.group}, {series.kind}"


def _by_line(summaries: Sequence[Summary]) -> dict[str, list[tuple[Series, int]]]:
    """Line name -> the series of all seeds, each with the end time of its run."""
    found: dict[str, list[tuple[Series, int]]] = {}
    for summary in summaries:
        for series in summary.series:
            found.setdefault(_label(series), []).append((series, summary.end_ns))
    return found


# ---- goodput over time ----


def time_svg(scenario: Scenario, summaries: Sequence[Summary]) -> str:
    """Goodput of every group over time. Faults are shaded grey."""
    end_ns = max(1, *(summary.end_ns for summary in summaries))
    unit, unit_ns = next(one for one in _UNITS if end_ns >= 2 * one[1] or one[0] == "us")
    chart = Chart(
        x_title=f"time, {unit}",
        y_title="goodput, % of line rate",
        x_end=end_ns / unit_ns,
        y_end=_TOP_SHARE * 100,
    )
    for fault in scenario.faults:
        if fault.at_ns < end_ns:
            last_ns = min(fault.until_ns, end_ns)
            title = f"{fault.target}: {fault.kind}"
            chart.bands.append((fault.at_ns / unit_ns, last_ns / unit_ns, title))
    step_ns = max(end_ns / _MAX_POINTS, scenario.sample_ns)
    for label, series in _by_line(summaries).items():
        points = shares(series, end_ns, step_ns)
        scaled = [
            Point(p.x / unit_ns, *(100 * y for y in (p.low, p.middle, p.high))) for p in points
        ]
        chart.lines.append(Line(label, scaled, dashed=series[0][0].kind != "mrc"))
    return chart.svg()


def shares(runs: Sequence[tuple[Series, int]], end_ns: int, step_ns: float) -> list[Point]:
    """Goodput in each step as a share of the line rate, over the seeds that still run."""
    points = []
    for i in range(max(1, int(end_ns / step_ns))):
        start_ns, stop_ns = int(i * step_ns), int((i + 1) * step_ns)
        rates = [
            (series.curve.at(stop_ns) - series.curve.at(start_ns))
            * 8e9
            / ((stop_ns - start_ns) * series.line_bps)
            for series, over_ns in runs
            if stop_ns <= over_ns
        ]
        if rates:
            points.append(Point(stop_ns, *quartiles(rates)))
    return points


# ---- goodput of each flow ----


def flows_svg(summaries: Sequence[Summary]) -> str:
    """Goodput of all flows, slowest first. Point n is over the n-th slowest flows of all seeds."""
    chart = Chart(
        x_title="flows, the slowest first, %",
        y_title="goodput, % of line rate",
        x_end=100,
        y_end=_TOP_SHARE * 100,
    )
    for label, runs in _by_line(summaries).items():
        n = len(runs[0][0].flows)
        points = [
            Point(100 * (i + 1) / n, *quartiles([100 * series.flows[i] for series, _ in runs]))
            for i in range(n)
        ]
        chart.lines.append(Line(label, points, dashed=runs[0][0].kind != "mrc"))
    return chart.svg()


# ---- one value of each variant ----


def variants_svg(outcomes: Sequence[Sequence[Outcome]], variants: Sequence[str]) -> str:
    """The first check of every variant side by side, with its target as a line."""
    first = [row[0] for row in outcomes]
    chart = Chart(
        x_title="", y_title=first[0].name.removesuffix(f", {variants[0]}") + ", %",
        x_end=len(variants), y_end=_TOP_SHARE * 100, x_names=variants,
    )  # fmt: skip
    points = [
        Point(i + 0.5, *(100 * (value or 0) for value in (o.low, o.value, o.high)))
        for i, o in enumerate(first)
    ]
    chart.lines.append(Line("mrc", points, marked=True))
    for kind in first[0].baselines:
        beside = [100 * (outcome.baselines[kind] or 0) for outcome in first]
        line = [Point(i + 0.5, y, y, y) for i, y in enumerate(beside)]
        chart.lines.append(Line(kind, line, dashed=True, marked=True))
    demanded = [(i, o.target) for i, o in enumerate(first) if o.target is not None]
    if demanded:
        target = 100 * demanded[0][1]
        line = [Point(x, target, target, target) for x in (demanded[0][0], demanded[-1][0] + 1)]
        chart.lines.append(Line(f"target, {target:g}%", line, thin=True))
    return chart.svg()
