# SPDX-License-Identifier: Apache-2.0
"""All experiments on one HTML page that needs no network. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mrc.sim import axes, plot
from mrc.sim.checks import Outcome, evaluate
from mrc.sim.scenario import Scenario
from mrc.sim.trial import Summary

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --rule: #ccc; --note: #666;
  --met: #00684a; --unmet: #b03a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #181a1b; --rule: #444; --note: #999;
    --met: #3fc896; --unmet: #ff9a5c; } }
body { font: 15px/1.5 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--paper); }
h2 { margin-top: 2.2em; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 0.15em 1.2em 0.15em 0; }
th { font-weight: normal; color: var(--note); border-bottom: 1px solid var(--rule); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.note { color: var(--note); } .met { color: var(--met); }
.unmet { color: var(--unmet); font-weight: bold; }
"""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A scenario that was run; for each of its parts a summary of every seed."""

    scenario: Scenario
    summaries: Sequence[Sequence[Summary]]

    def plot(self) -> str:
        """As SVG: goodput, or what the variants did."""
        if not self.scenario.variants:
            return plot.draw(self.scenario, self.summaries[0])
        return plot.variants_svg(self.outcomes, [part.variant for part in self.scenario.variants])

    @property
    def outcomes(self) -> list[list[Outcome]]:
        """The checks of each part."""
        return [
            evaluate(part, [summary.measured for summary in summaries])
            for part, summaries in zip(self.scenario.parts, self.summaries, strict=True)
        ]


def flat(experiments: Sequence[Experiment]) -> list[Outcome]:
    """All checks of all experiments."""
    return [o for experiment in experiments for part in experiment.outcomes for o in part]


def render(experiments: Sequence[Experiment], seeds: Sequence[int]) -> str:
    """The page."""
    demanded = [outcome for outcome in flat(experiments) if outcome.target is not None]
    met = sum(outcome.met is True for outcome in demanded)
    span = f"seed {seeds[0]}" if len(seeds) == 1 else f"median of seeds {seeds[0]} to {seeds[-1]}"
    sections = "\n".join(_section(experiment) for experiment in experiments)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>mrc: experiments</title>\n<style>{_STYLE}{axes.STYLE}</style>\n"
        "<h1>mrc in a simulated fabric</h1>\n"
        f"<p>{met} of {len(demanded)} checks met; virtual time, {span}.</p>\n"
        '<p class="note">Lines are medians over the seeds, bands and brackets lie between the'
        " quartiles; grey is a fault; dashed lines are baselines. Line rate is what full packets"
        " leave of the hosts' links for payload, over all planes. Baselines run over the same"
        " fabric: ecmp gives a QP one path that switches choose by a hash, ecmp-planes one such"
        " path in every plane, both with the reliability of MRC; go-back-n is in order on one"
        f" path, as RoCE.</p>\n{_summary(experiments)}\n{sections}\n</html>\n"
    )


def _summary(experiments: Sequence[Experiment]) -> str:
    rows = []
    for experiment in experiments:
        found = [o for part in experiment.outcomes for o in part if o.target is not None]
        missed = sum(not outcome.met for outcome in found)
        verdict = f'<td class="unmet">{missed} not met' if missed else '<td class="met">met'
        name = escape(experiment.scenario.name)
        title = escape(experiment.scenario.title)
        rows.append(f'<tr><td><a href="#{name}">{name}</a><td>{title}{verdict}')
    return "<table>\n<tr><th>scenario<th>what happens<th>checks\n" + "\n".join(rows) + "\n</table>"


def _section(experiment: Experiment) -> str:
    scenario = experiment.scenario
    claim = escape(scenario.claim) if scenario.claim else "says nothing of this."
    rtt_us = scenario.parts[0].base_rtt_ns / 1000
    outcomes = experiment.outcomes
    return (
        f'<h2 id="{escape(scenario.name)}">{escape(scenario.name)}</h2>\n'
        f"<p>{escape(scenario.title)}; base RTT {rtt_us:.3g} us.<br>The paper: {claim}</p>\n"
        f"{experiment.plot()}{_table(outcomes, scenario.baselines)}"
    )


def _table(outcomes: Sequence[Sequence[Outcome]], baselines: Sequence[str]) -> str:
    head = "".join(f'<th class="number">{escape(kind)}' for kind in baselines)
    rows = "\n".join(_row(outcome, baselines) for part in outcomes for outcome in part)
    return (
        f'<table>\n<tr><th>check<th class="number">value<th>quartiles{head}<th>target<th>\n'
        f"{rows}\n</table>"
    )


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _row(outcome: Outcome, baselines: Sequence[str]) -> str:
    beside = "".join(f'<td class="number">{number(outcome.baselines[k])}' for k in baselines)
    if outcome.target is None:
        verdict = '<td class="note">none<td>'
    else:
        met = '<td class="met">met' if outcome.met else '<td class="unmet">not met'
        verdict = f"<td>{escape(f'{outcome.relation} {outcome.target:g}')}{met}"
    return (
        f'<tr><td>{escape(outcome.name)}<td class="number">{number(outcome.value)}'
        f'<td class="note">[{number(outcome.low)}, {number(outcome.high)}]{beside}{verdict}'
    )
