# SPDX-License-Identifier: Apache-2.0
"""All experiments on one HTML page that needs no network. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mrc.sim.checks import Outcome
from mrc.sim.plot import goodput_svg
from mrc.sim.run import Result

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 0.1em 1em 0.1em 0; }
.met { color: #00684a; } .unmet { color: #b03a00; font-weight: bold; }
"""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A scenario that was run: the first seed's result stands for the plot."""

    result: Result
    outcomes: Sequence[Outcome]


def render(experiments: Sequence[Experiment], seeds: Sequence[int]) -> str:
    """The page."""
    outcomes = [outcome for experiment in experiments for outcome in experiment.outcomes]
    met = sum(outcome.met for outcome in outcomes)
    span = f"seed {seeds[0]}" if len(seeds) == 1 else f"median of seeds {seeds[0]} to {seeds[-1]}"
    sections = "\n".join(_section(experiment) for experiment in experiments)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"<title>mrc: experiments</title>\n<style>{_STYLE}</style>\n"
        "<h1>mrc in a simulated fabric</h1>\n"
        f"<p>{met} of {len(outcomes)} checks met; virtual time, {span}."
        f" The plots show seed {seeds[0]}; grey is a fault.</p>\n{sections}\n</html>\n"
    )


def _section(experiment: Experiment) -> str:
    scenario = experiment.result.scenario
    claim = f"<p>The paper: {escape(scenario.claim)}</p>\n" if scenario.claim else ""
    rows = "\n".join(_row(outcome) for outcome in experiment.outcomes)
    return (
        f'<h2 id="{escape(scenario.name)}">{escape(scenario.name)}</h2>\n'
        f"<p>{escape(scenario.title)}; base RTT {scenario.base_rtt_ns / 1000:.3g} us.</p>\n{claim}"
        f"{goodput_svg(experiment.result)}<table>\n"
        f"<tr><th>check<th>value<th>target<th></tr>\n{rows}\n</table>"
    )


def _row(outcome: Outcome) -> str:
    value = "none" if outcome.value is None else f"{outcome.value:.4g}"
    met = '<td class="met">met' if outcome.met else '<td class="unmet">not met'
    target = escape(f"{outcome.relation} {outcome.target:g}")
    return f"<tr><td>{escape(outcome.name)}<td>{value}<td>{target}{met}</tr>"
