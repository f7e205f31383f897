# SPDX-License-Identifier: Apache-2.0
"""A scenario in the simulator and on a test bed, side by side on one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mrc.sim import drawing, plot
from mrc.sim.axes import Chart
from mrc.sim.checks import Measured
from mrc.sim.page import number
from mrc.sim.run import Result
from mrc.sim.scenario import Scenario
from mrc.sim.trial import Summary, series_of
from mrc.workload import judge
from mrc.workload.compare import Compared, title
from mrc.workload.results import CheckVerdict

_TEMPLATE = Path(__file__).with_name("page.html")


class Side(Struct, frozen=True):
    """A scenario or variant on the page."""

    title: str
    simulated: str
    """SVG"""
    measured: str
    """SVG"""
    columns: Sequence[str]
    judged: Sequence[CheckVerdict]
    explanations: Sequence[str]


def render(scenario: Scenario, compared: Sequence[Compared], notes: Sequence[str]) -> str:
    """The page as HTML."""
    demanded = [each for part in compared for each in part.judged if each.met is not None]
    return drawing.fill(
        _TEMPLATE,
        scenario=scenario,
        sides=[_side(each) for each in compared],
        met=sum(each.met is True for each in demanded),
        demanded=len(demanded),
        differing=sum(bool(each.differs) for part in compared for each in part.judged),
        notes=notes,
        seeds=sorted({ran.result.seed for each in compared for ran in each.ran}),
        number=number,
        value_of=value_of,
    )


def _side(compared: Compared) -> Side:
    part = compared.part
    charts = [
        _chart(part, [_summary(one, "mrc") for one in compared.simulated], "in the simulator"),
        _chart(part, [_summary(ran.result, ran.over) for ran in compared.ran], "on the test bed"),
    ]
    ends = [chart.x_end for chart in charts], [chart.y_end for chart in charts]
    for chart in charts:
        chart.x_end, chart.y_end = map(max, ends)
    simulated, measured = (chart.svg() for chart in charts)
    return Side(
        title=title(part),
        simulated=simulated,
        measured=measured,
        columns=(judge.SIMULATOR, *compared.overs),
        judged=compared.judged,
        explanations=judge.explanations(compared.judged),
    )


def value_of(judged: CheckVerdict, column: str) -> float | None:
    """The value in a column of the table."""
    return judged.baselines.get(column, judged.value)


def _summary(result: Result, kind: str) -> Summary:
    """One run for a chart: its line ends when the run ends."""
    return Summary(
        measured=Measured(seed=result.seed, values=(), baselines={}),
        series=tuple(replace(each, kind=kind) for each in series_of(result)),
        end_ns=result.stats.now_ns,
    )


def _chart(part: Scenario, summaries: Sequence[Summary], where: str) -> Chart:
    chart = plot.time_chart(part, summaries)
    chart.title = f"{title(part)}, {where}"
    chart.y_end = plot.y_end(chart)
    return chart
