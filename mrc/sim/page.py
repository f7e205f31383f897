# SPDX-License-Identifier: Apache-2.0
"""What `mrc sim` shows of runs: plots as SVG, with medians over seeds and bands between quartiles;
all experiments on one HTML page that loads nothing from the network; and the declared results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from mrc.enums import EvState, WcStatus
from mrc.results import like
from mrc.sim import drawing, native, results
from mrc.sim.checks import Measured, evaluate, quartiles
from mrc.sim.drawing import Chart, ChartLine, ChartPoint
from mrc.sim.run import SimRun, line_rate_bps
from mrc.sim.scenario import Scenario
from mrc.sim.trials import Series, Summary
from mrc.units import digits, scaled

# ---- Plots ---------------------------------------------------------------------------------------


_MAX_POINTS = 200
_LEAST_TOP, _MOST_TOP = 105.0, 400.0  # of the y axis, in %
_ABOVE = {
    "line": "hosts took in packets that had arrived before the time of the check",
    "reference": "more than in the run that it is compared with",
    "max-min": "more than the computed fair share, because the other flows left some of theirs",
}
_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3))


def draw_scenario(scenario: Scenario, summaries: Sequence[Summary]) -> str:
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


def _by_line(summaries: Sequence[Summary]) -> dict[str, list[tuple[Series, int]]]:
    """Line name -> the series of all seeds, each with the end time of its run."""
    found: dict[str, list[tuple[Series, int]]] = {}
    for summary in summaries:
        for series in summary.series:
            label = series.group if series.kind == "mrc" else f"{series.group}, {series.kind}"
            found.setdefault(label, []).append((series, summary.end_ns))
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
        drawn = [
            ChartPoint(p.x / unit_ns, *(100 * y for y in (p.low, p.middle, p.high))) for p in points
        ]
        chart.lines.append(ChartLine(label, drawn, dashed=series[0][0].kind != "mrc"))
    if _exceeds(chart):
        chart.notes.append(
            f"Above 100%: what a host takes in during {digits(step_ns / 1000, 3)} us may have"
            " arrived earlier."
        )
    return chart


def shares(runs: Sequence[tuple[Series, int]], end_ns: int, step_ns: float) -> list[ChartPoint]:
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
            points.append(ChartPoint(stop_ns, *quartiles(rates)))
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
            ChartPoint(100 * (i + 1) / n, *quartiles([100 * series.flows[i] for series, _ in runs]))
            for i in range(n)
        ]
        chart.lines.append(ChartLine(label, points, dashed=runs[0][0].kind != "mrc"))
    if _exceeds(chart):
        chart.notes.append(
            "Above 100%: a flow's time ends with its last completion, the line rate is computed."
        )
    return chart


# ---- one value of each variant ----


def variants_svg(
    scenario: Scenario, outcomes: Sequence[Sequence[results.Value]], seeds: Sequence[int]
) -> str:
    """The first check of every variant side by side, with its target as a line."""
    first, variants = [row[0] for row in outcomes], [part.variant for part in scenario.variants]
    chart = Chart(
        x_title="", y_title=first[0].name.removesuffix(f", {variants[0]}") + ", %",
        x_end=len(variants), y_end=_LEAST_TOP, x_names=variants,
    )  # fmt: skip
    points = [
        ChartPoint(i + 0.5, *(100 * (value or 0) for value in (o.low, o.value, o.high)))
        for i, o in enumerate(first)
    ]
    chart.lines.append(ChartLine("mrc", points, marked=True))
    for kind in first[0].baselines:
        beside = [100 * (outcome.baselines[kind] or 0) for outcome in first]
        line = [ChartPoint(i + 0.5, y, y, y) for i, y in enumerate(beside)]
        chart.lines.append(ChartLine(kind, line, dashed=True, marked=True))
    demanded = [(i, o.target) for i, o in enumerate(first) if o.target is not None]
    if demanded:
        target = 100 * demanded[0][1]
        line = [
            ChartPoint(x, target, target, target) for x in (demanded[0][0], demanded[-1][0] + 1)
        ]
        chart.lines.append(ChartLine(f"target, {digits(target)}%", line, thin=True))
    if _exceeds(chart):
        chart.notes.append(f"Above 100%: {_ABOVE[scenario.variants[0].checks[0].of]}.")
    return _finished(chart, scenario, seeds)


# ---- The page ------------------------------------------------------------------------------------


_TEMPLATE = Path(__file__).with_name("report.html")


class ScenarioRuns(Struct, frozen=True):
    """A scenario, and for each of its parts the summaries of all seeds."""

    scenario: Scenario
    summaries: Sequence[Sequence[Summary]]

    @property
    def seconds(self) -> float:
        """That all of its runs took."""
        return sum(summary.seconds for part in self.summaries for summary in part)

    def plot(self) -> str:
        """The plot as SVG: goodput, or the first check of each variant."""
        if not all(self.summaries):
            return ""  # nothing to draw
        if not self.scenario.variants:
            return draw_scenario(self.scenario, self.summaries[0])
        seeds = [summary.measured.seed for summary in self.summaries[0]]
        return variants_svg(self.scenario, self.outcomes, seeds)

    @property
    def outcomes(self) -> list[list[results.Value]]:
        """The checks of each part."""
        return [
            evaluate(part, [summary.measured for summary in summaries])
            for part, summaries in zip(self.scenario.parts, self.summaries, strict=True)
        ]

    @property
    def missed(self) -> int:
        """Number of checks that miss their targets."""
        return sum(outcome.met is False for outcome in flat([self]))

    @property
    def exceeds(self) -> bool:
        """Whether a table shows a share above 1, rounded as it is shown."""
        return any(
            check.relation == ">=" and o.value is not None and float(number(o.value)) > 1
            for part, outcomes in zip(self.scenario.parts, self.outcomes, strict=True)
            for check, o in zip(part.checks, outcomes, strict=True)
        )


def of_paper(experiments: Iterable[ScenarioRuns]) -> list[ScenarioRuns]:
    """Those that reproduce a figure of the paper, in its order; sections follow the figures."""

    def place(experiment: ScenarioRuns) -> tuple[bool, int, str]:
        figure = experiment.scenario.figure
        number = re.search(r"Fig\. (\d+)", figure)
        return number is None, int(number[1]) if number else 0, figure

    return sorted((each for each in experiments if each.scenario.figure), key=place)


def flat(experiments: Sequence[ScenarioRuns]) -> list[results.Value]:
    """All checks of all experiments."""
    return [o for experiment in experiments for part in experiment.outcomes for o in part]


def render(
    experiments: Sequence[ScenarioRuns], seeds: Sequence[int], *, is_paper: bool = False
) -> str:
    """The page as HTML. `is_paper`: its table has the figures of the paper."""
    demanded = [outcome for outcome in flat(experiments) if outcome.target is not None]
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.from_string(_TEMPLATE.read_text()).render(
        style=drawing.style_sheet(),
        experiments=experiments,
        is_paper=is_paper,
        met=sum(outcome.met is True for outcome in demanded),
        demanded=len(demanded),
        span=f"seed {seeds[0]}"
        if len(seeds) == 1
        else f"median of seeds {seeds[0]} to {seeds[-1]}",
        flat=flat,
        number=number,
    )


def group_row(result: SimRun, group: str) -> tuple[object, ...]:
    """Of the flows of a group: how many, the slowest, the mean, and packets retransmitted."""
    numbers = result.of_group(group)
    rates = [result.goodput_bps(i) for i in numbers]
    again = sum(result.infos[i].retransmitted_packets for i in numbers)
    return (
        len(numbers),
        scaled(min(rates), "bit/s"),
        scaled(sum(rates) / len(rates), "bit/s"),
        again,
    )


def number(value: float | None) -> str:
    return "none" if value is None else f"{digits(value, 4)}"


# ---- Results -------------------------------------------------------------------------------------


def scenario_result(scenario: Scenario) -> results.ScenarioParameters:
    return like(
        results.ScenarioParameters,
        scenario,
        topology=like(results.TopologyParameters, scenario.topology),
        variants=tuple(part.variant for part in scenario.variants),
    )


def checks_of(outcomes: Sequence[results.Value]) -> tuple[results.Check, ...]:
    return tuple(each for each in outcomes if isinstance(each, results.Check))


def values_of(outcomes: Sequence[results.Value]) -> tuple[results.Value, ...]:
    """The values without a target."""
    return tuple(each for each in outcomes if not isinstance(each, results.Check))


def figure_of(experiment: ScenarioRuns) -> results.Figure:
    return like(
        results.Figure,
        experiment.scenario,
        scenario=experiment.scenario.name,
        met=not experiment.missed,
        seconds=experiment.seconds,
    )


MOST_FLOWS = 1024
"""A run of more flows reports its totals alone, unless details are requested."""


def run_result(result: SimRun, *, details: bool = False) -> results.Run:
    """The result of one run: totals; and flows, goodput over time, events and links."""
    details = details or len(result.flows) <= MOST_FLOWS
    times = sorted(message.done_ns - message.wanted_ns for message in result.messages)
    quantiles = {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}
    write_ns = {name: times[round((len(times) - 1) * q)] for name, q in quantiles.items() if times}
    return results.Run(
        seed=result.seed,
        transport=result.scenario.transport.kind,
        variant=result.scenario.variant,
        stats=result.stats,
        flows=tuple(_flow_of(result, i) for i in range(len(result.flows)) if details),
        ev_events=tuple(map(_event_of, result.events if details else ())),
        write_ns=results.WriteTimes(**write_ns) if write_ns else None,
        last_hops=tuple(
            like(results.LastHop, port, host=host, plane=plane)
            for (host, plane), port in (result.last_hops.items() if details else ())
        ),
    )


def _flow_of(result: SimRun, number: int) -> results.Flow:
    flow, info, curve = result.flows[number], result.infos[number], result.curves[number]
    return like(
        results.Flow,
        info,
        flow=number,
        group=flow.traffic.group,
        sender=flow.sender,
        receiver=flow.receiver,
        writes=flow.writes,
        write_bytes=flow.traffic.bytes,
        rtt_ns=None if info.rtt_ns < 0 else info.rtt_ns,
        goodput_bits_per_second=result.goodput_bps(number),
        line_rate_bits_per_second=line_rate_bps(result.scenario, [flow]),
        samples=results.FlowSamples(
            now_ns=tuple(curve.times_ns),
            received_bytes=tuple(curve.bytes),
            retransmitted_packets=result.retransmitted[number] if result.retransmitted else (),
        ),
    )


def _event_of(event: native.EngineEvent) -> results.Event:
    path = percent = None
    if event.type == native.EngineEvent.EV_STATE:
        word, path = EvState(event.status).name, event.path
    elif event.type == native.EngineEvent.PLANE_STATE:
        word = "plane resumed" if event.status else "plane suspended"
    elif event.type == native.EngineEvent.PLANE_SHARE:
        word, percent = "plane no longer slow" if event.status else "plane slow", event.percent
    else:
        word = WcStatus(event.status).name
    end = "receiver" if event.receiver else "sender"
    return like(results.Event, event, end=end, event=word, path=path, percent=percent)


def seed_rows(
    parts: Sequence[Scenario], summaries: Sequence[Sequence[Summary]]
) -> Iterator[dict[str, Any]]:
    """Lines of CSV: the value of each check in each run, of each part of a scenario."""
    for part, seeds in zip(parts, summaries, strict=True):
        yield from rows_of(part, [summary.measured for summary in seeds])


def rows_of(part: Scenario, seeds: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """The same of one part."""
    for found in seeds:
        runs = {part.transport.kind: found.values, **found.baselines}
        for transport, measured in runs.items():
            for check, value in zip(part.checks, measured, strict=True):
                demanded = not check.variants or part.variant in check.variants
                yield {
                    "scenario": part.name,
                    "variant": part.variant,
                    "seed": found.seed,
                    "transport": transport,
                    "check": check.name,
                    "value": value,
                    "relation": check.relation,
                    "target": check.target if demanded else None,
                }
