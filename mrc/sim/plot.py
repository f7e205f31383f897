# SPDX-License-Identifier: Apache-2.0
"""Plots a scenario's runs as SVG: medians over the seeds, bands between quartiles. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mrc.sim.axes import Chart, Line, Point
from mrc.sim.checks import Outcome, quartiles
from mrc.sim.scenario import Scenario
from mrc.sim.trial import Series, Summary
from mrc.units import digits

_MAX_POINTS = 200
_LEAST_TOP, _MOST_TOP = 105.0, 400.0  # of the y axis, in %
_ABOVE = {
    "line": "hosts took in packets that had arrived before the time of the check",
    "reference": "more than in the run that it is compared with",
    "max-min": "more than the computed fair share, because the other flows left some of theirs",
}
_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3))


def draw(scenario: Scenario, summaries: Sequence[Summary]) -> str:
    """The plot of a scenario without variants."""
    chart = flows_chart(summaries) if scenario.plot == "flows" else time_chart(scenario, summaries)
    return _finished(chart, scenario, [summary.measured.seed for summary in summaries])


def _finished(chart: Chart, scenario: Scenario, seeds: Sequence[int]) -> str:
    """The chart as SVG, with its title, and an axis that is high enough."""
    several = f"median of seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    chart.title = f"{scenario.name}, {several}: {scenario.title}"
    if len(seeds) > 1:
        chart.notes.append("Bands show the quartiles of the seeds.")
    chart.y_end = y_end(chart)
    if _highest(chart) > _MOST_TOP:
        chart.notes.append(f"Values above {digits(_MOST_TOP)}% are drawn at {digits(_MOST_TOP)}%.")
    return chart.svg()


def y_end(chart: Chart) -> float:
    """An end of the y axis above all points, up to a limit."""
    return min(max(_LEAST_TOP, 1.05 * _highest(chart)), _MOST_TOP)


def _highest(chart: Chart) -> float:
    return max((point.high for line in chart.lines for point in line.points), default=0.0)


def _exceeds(chart: Chart) -> bool:
    """Whether the chart shows more than 100%, rounded to a tenth."""
    points = (point for line in chart.lines for point in line.points)
    return any(point.high >= 100.05 for point in points)


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


def time_chart(scenario: Scenario, summaries: Sequence[Summary]) -> Chart:
    """Goodput of every group over time. Faults are shaded grey."""
    end_ns = max(1, *(summary.end_ns for summary in summaries))
    unit, unit_ns = next(one for one in _UNITS if end_ns >= 2 * one[1] or one[0] == "us")
    chart = Chart(
        x_title=f"time, {unit}",
        y_title="goodput, % of line rate",
        x_end=end_ns / unit_ns,
        y_end=_LEAST_TOP,
    )
    for fault in scenario.faults:
        if fault.at_ns < end_ns:
            last_ns = min(fault.end_ns, end_ns)
            title = f"{fault.target} {fault.kind}"
            chart.bands.append((fault.at_ns / unit_ns, last_ns / unit_ns, title))
    step_ns = max(end_ns / _MAX_POINTS, scenario.sample_ns)
    for label, series in _by_line(summaries).items():
        points = shares(series, end_ns, step_ns)
        scaled = [
            Point(p.x / unit_ns, *(100 * y for y in (p.low, p.middle, p.high))) for p in points
        ]
        chart.lines.append(Line(label, scaled, dashed=series[0][0].kind != "mrc"))
    if _exceeds(chart):
        chart.notes.append(
            f"Above 100%: what a host takes in during {digits(step_ns / 1000, 3)} us may have"
            " arrived earlier."
        )
    return chart


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


def flows_chart(summaries: Sequence[Summary]) -> Chart:
    """Goodput of all flows, slowest first. Point n is over the n-th slowest flows of all seeds."""
    chart = Chart(
        x_title="flows, the slowest first, %",
        y_title="goodput, % of line rate",
        x_end=100,
        y_end=_LEAST_TOP,
    )
    for label, runs in _by_line(summaries).items():
        n = len(runs[0][0].flows)
        points = [
            Point(100 * (i + 1) / n, *quartiles([100 * series.flows[i] for series, _ in runs]))
            for i in range(n)
        ]
        chart.lines.append(Line(label, points, dashed=runs[0][0].kind != "mrc"))
    if _exceeds(chart):
        chart.notes.append(
            "Above 100%: a flow's time ends with its last completion, the line rate is computed."
        )
    return chart


# ---- one value of each variant ----


def variants_svg(
    scenario: Scenario, outcomes: Sequence[Sequence[Outcome]], seeds: Sequence[int]
) -> str:
    """The first check of every variant side by side, with its target as a line."""
    first, variants = [row[0] for row in outcomes], [part.variant for part in scenario.variants]
    chart = Chart(
        x_title="", y_title=first[0].name.removesuffix(f", {variants[0]}") + ", %",
        x_end=len(variants), y_end=_LEAST_TOP, x_names=variants,
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
        chart.lines.append(Line(f"target, {digits(target)}%", line, thin=True))
    if _exceeds(chart):
        chart.notes.append(f"Above 100%: {_ABOVE[scenario.variants[0].checks[0].of]}.")
    return _finished(chart, scenario, seeds)
