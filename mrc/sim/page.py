# SPDX-License-Identifier: Apache-2.0
"""All experiments on one HTML page that loads nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from mrc.sim import drawing, plot
from mrc.sim.checks import Outcome, evaluate
from mrc.sim.scenario import Scenario
from mrc.sim.trial import Summary
from mrc.units import digits

_TEMPLATE = Path(__file__).with_name("report.html")


class Experiment(Struct, frozen=True):
    """A scenario, and for each of its parts the summaries of all seeds."""

    scenario: Scenario
    summaries: Sequence[Sequence[Summary]]
    seconds: float = 0  # that all of its runs took

    def plot(self) -> str:
        """The plot as SVG: goodput, or the first check of each variant."""
        if not all(self.summaries):
            return ""  # nothing to draw
        if not self.scenario.variants:
            return plot.draw(self.scenario, self.summaries[0])
        seeds = [summary.measured.seed for summary in self.summaries[0]]
        return plot.variants_svg(self.scenario, self.outcomes, seeds)

    @property
    def outcomes(self) -> list[list[Outcome]]:
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
        shares = (o for o in flat([self]) if o.relation == ">=" and o.value is not None)
        return any(float(number(o.value)) > 1 for o in shares)


def of_paper(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Those that reproduce a figure of the paper, in its order; sections follow the figures."""
    shown = (experiment for experiment in experiments if experiment.scenario.figure)
    return sorted(shown, key=lambda experiment: _place(experiment.scenario.figure))


def _place(figure: str) -> tuple[bool, int, str]:
    number = re.search(r"Fig\. (\d+)", figure)
    return number is None, int(number[1]) if number else 0, figure


def flat(experiments: Sequence[Experiment]) -> list[Outcome]:
    """All checks of all experiments."""
    return [o for experiment in experiments for part in experiment.outcomes for o in part]


def render(
    experiments: Sequence[Experiment], seeds: Sequence[int], *, is_paper: bool = False
) -> str:
    """The page as HTML. `is_paper`: its table has the figures of the paper."""
    demanded = [outcome for outcome in flat(experiments) if outcome.target is not None]
    return drawing.fill(
        _TEMPLATE,
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


def number(value: float | None) -> str:
    return "none" if value is None else f"{digits(value, 4)}"
