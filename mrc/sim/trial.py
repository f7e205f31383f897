# SPDX-License-Identifier: Apache-2.0
"""One seed of a scenario: its run, and the runs for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from msgspec import Struct

from mrc.sim import checks
from mrc.sim.checks import Measured
from mrc.sim.curves import Curve
from mrc.sim.many import Job
from mrc.sim.run import Progress, Result, baseline_of, reference_of, run
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import line_rate_bps

_MOST_FLOWS = 2000


class Trial(Struct, frozen=True):
    """The runs of one seed. There is a reference if a check compares with it."""

    result: Result
    reference: Result | None
    baselines: dict[str, tuple[Result, Result | None]]  # by name, each with its own reference

    @property
    def results(self) -> list[Result]:
        """The run itself, then the baselines."""
        return [self.result, *(result for result, _ in self.baselines.values())]


class Series(Struct, frozen=True):
    """The data that a plot draws for one traffic group in one run."""

    group: str
    kind: str  # one of scenario.TRANSPORTS
    curve: Curve  # bytes of all flows of the group
    line_bps: float  # line rate of the group
    flows: tuple[float, ...]  # goodput of each flow as a share of line rate; slowest first


class Summary(Struct, frozen=True):
    """A trial without its details, small enough to keep for every seed."""

    measured: Measured
    series: tuple[Series, ...]
    end_ns: int  # of the run itself, not of the baselines


def run_trial(
    scenario: Scenario,
    seed: int,
    *,
    trace: str | None = None,
    progress: Progress | None = None,
    threads: int = 1,
) -> Trial:
    """Runs a scenario, its baselines, and the references of all of them, with one seed."""
    return Trial(
        result=run(scenario, seed, trace=trace, progress=progress, threads=threads),
        reference=_reference(scenario, seed, progress, threads),
        baselines={
            kind: (
                run(baseline_of(scenario, kind), seed, progress=progress, threads=threads),
                _reference(baseline_of(scenario, kind), seed, progress, threads),
            )
            for kind in scenario.baselines
        },
    )


def n_runs(scenario: Scenario) -> int:
    """Number of runs in one trial."""
    return (1 + len(scenario.baselines)) * (2 if checks.needs_reference(scenario) else 1)


def _reference(
    scenario: Scenario, seed: int, progress: Progress | None, threads: int
) -> Result | None:
    if not checks.needs_reference(scenario):
        return None
    return run(reference_of(scenario), seed, progress=progress, threads=threads)


def measured(trial: Trial) -> Measured:
    """The values of all checks."""
    scenario = trial.result.scenario
    return Measured(
        seed=trial.result.seed,
        values=checks.values(scenario, trial.result, trial.reference),
        baselines={
            kind: checks.values(scenario, result, reference)
            for kind, (result, reference) in trial.baselines.items()
        },
    )


def summarize(trial: Trial) -> Summary:
    """The values of all checks, and the series for plots."""
    return Summary(
        measured=measured(trial),
        series=tuple(series for result in trial.results for series in series_of(result)),
        end_ns=trial.result.stats.now_ns,
    )


def series_of(result: Result) -> Iterator[Series]:
    """A series for each group of flows."""
    scenario = result.scenario
    for group in dict.fromkeys(flow.traffic.group for flow in result.flows):
        numbers = result.of_group(group)
        times = result.curves[numbers[0]].times_ns
        arrived = [
            sum(column) for column in zip(*(result.curves[i].bytes for i in numbers), strict=True)
        ]
        shares = (
            checks.flow_goodput_bps(result, i) / line_rate_bps(scenario, [result.flows[i]])
            for i in numbers
        )
        yield Series(
            group=group,
            kind=scenario.transport.kind,
            curve=Curve(times, tuple(arrived)),
            line_bps=line_rate_bps(scenario, [result.flows[i] for i in numbers]),
            flows=_thinned(sorted(shares)),
        )


def _thinned(values: Sequence[float]) -> tuple[float, ...]:
    """As many of them as a plot can show, with the first and the last."""
    last = len(values) - 1
    step = max(last / (_MOST_FLOWS - 1), 1)
    return tuple(values[round(i * step)] for i in range(min(len(values), _MOST_FLOWS)))


class Timed(Struct, frozen=True):
    """A summary, and how long its runs took."""

    summary: Summary
    seconds: float


def timed_summary_of(job: Job) -> Timed:
    begin = perf_counter()
    return Timed(summary_of(job), perf_counter() - begin)


def full_trial(job: Job) -> Trial:
    return run_trial(*job)


def summary_of(job: Job) -> Summary:
    return summarize(run_trial(*job))
