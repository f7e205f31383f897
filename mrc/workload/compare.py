# SPDX-License-Identifier: Apache-2.0
"""All runs of a scenario on a test bed beside the simulator: which checks apply and what they
find, as JSON, and as a page.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mrc.enums import CcKind
from mrc.fabric.faults import NEVER
from mrc.results.plain import like
from mrc.sim import checks, drawing, page
from mrc.sim.checks import Measured, Outcome, evaluate
from mrc.sim.drawing import Chart
from mrc.sim.page import number
from mrc.sim.run import SimRun, reference_of
from mrc.sim.run import run as simulate
from mrc.sim.scenario import INNER, Criterion, Scenario
from mrc.sim.trials import Summary, series_of
from mrc.testbed.bed import Testbed
from mrc.workload import results
from mrc.workload.results import CheckVerdict, Over
from mrc.workload.run import BedResult, Told, fault_differences, run

# ---- Which checks apply --------------------------------------------------------------------------


SIMULATOR = "simulator"
"""the name of its values beside those of the transports"""

TOLERANCE = 0.1
"""a larger difference is marked and must be explained"""
BUSY = 0.95
"""from this share of the processors' time on, the machine may have been slower than the links"""

# Near zero, the ratio of counts and shares of packets has no meaning. They differ if they are
# further apart than this.
_NEGLIGIBLE = {"retransmitted": 0.005, "spurious": 5, "qp_errors": 0, "ev_changes": 10}

_COUNTS = (
    "completed", "qp_errors", "spurious", "retransmitted", "qps_hit", "lost_per_qp", "ev_changes",
)  # fmt: skip
"""measures that do not depend on the speed of the machine"""
_IN_RTTS = ("ev_bad_after", "failure_convergence")
_OF_PACKETS = {
    "retransmitted": ("mrc", "tcp"),
    "spurious": ("mrc",),
    "qps_hit": ("mrc",),
    "lost_per_qp": ("mrc",),
    "lost_per_dead_path": ("mrc",),
    "least_plane": ("mrc",),
    "ev_changes": ("mrc",),
}
"""measures of what not every transport counts"""
_OF_WRITES = ("completion", "step_time", "job_completion", "bus_bandwidth")


class Values(Struct, frozen=True):
    """The values of one seed."""

    seed: int
    found: Mapping[str, Sequence[float | None]]
    """by transport, and by SIMULATOR"""
    busy: Mapping[Over, float]
    """share of the processors' time that was used, by transport"""


def inapplicable(check: Criterion, over: Over) -> str:
    """Why a test bed cannot tell this figure of a transport; empty: it can."""
    measure = check.measure
    if measure in INNER:
        return "a test bed records no queues between T0s and T1s"
    if measure in _IN_RTTS or (measure == "completion" and check.of == "line"):
        return "it is in base RTTs, and processors add more than that to a round trip"
    if over not in _OF_PACKETS.get(measure, (over,)):
        return f"{over} does not count this"
    if check.plane and over != "mrc":
        return f"{over} does not count the bytes of each plane"
    if measure == "lost_per_qp" and (check.from_ns, check.to_ns) != (0, NEVER):
        return "hosts count the packets of the whole run"
    if over == "iperf3" and measure in _OF_WRITES:
        return "iperf3 sends all writes of a flow as one"
    return ""


def unjudged(check: Criterion, busy: float) -> str:
    """Why a figure is shown without a verdict; empty: it can be judged."""
    if busy < BUSY or check.measure in _COUNTS:
        return ""
    return f"the processors were {busy:.0%} busy, so they may have set the rates, not the links"


def verdicts(part: Scenario, overs: Sequence[Over], seeds: Sequence[Values]) -> list[CheckVerdict]:
    """The checks of a scenario or variant; the first transport must meet the targets."""
    first, *others = overs
    beside = (*others, SIMULATOR)
    whys: list[dict[str, str]] = [
        {over: why for over in overs if (why := inapplicable(check, over))} for check in part.checks
    ]
    busy = max(each.busy[first] for each in seeds)
    measured = [
        Measured(
            seed=each.seed,
            values=_applying(each.found[first], whys, first),
            baselines={name: _applying(each.found[name], whys, name) for name in beside},
        )
        for each in seeds
    ]
    outcomes = evaluate(replace(part, baselines=beside), measured)
    return [
        _verdict(check, outcome, first, why, unjudged(check, busy))
        for check, outcome, why in zip(part.checks, outcomes, whys, strict=True)
    ]


def _applying(
    values: Sequence[float | None], whys: Sequence[Mapping[str, str]], over: str
) -> tuple[float | None, ...]:
    return tuple(None if why.get(over) else value for value, why in zip(values, whys, strict=True))


def _verdict(
    check: Criterion, outcome: Outcome, first: Over, whys: dict[str, str], not_judged: str
) -> CheckVerdict:
    simulated = outcome.baselines[SIMULATOR]
    values = {first: outcome.value, **outcome.baselines}
    return like(
        CheckVerdict,
        outcome,
        met=None if first in whys or not_judged else outcome.met,
        not_judged="" if first in whys or outcome.target is None else not_judged,
        not_applicable=whys,
        differs=tuple(
            over
            for over, value in values.items()
            if over != SIMULATOR and over not in whys and differs(check.measure, simulated, value)
        ),
        note=check.note,
    )


def differs(measure: str, simulated: float | None, value: float | None) -> bool:
    """Whether two values of a measure are further apart than TOLERANCE."""
    if simulated is None or value is None:
        return simulated is not value
    if abs(value - simulated) <= _NEGLIGIBLE.get(measure, 0):
        return False
    return not math.isclose(value, simulated, rel_tol=TOLERANCE)


def explanations(found: Sequence[CheckVerdict]) -> list[str]:
    """The note of each figure that differs; why figures do not apply, or are not judged."""
    lines = [
        f"{each.name}: {each.note or 'differs, and the scenario does not say why'}"
        for each in found
        if each.differs
    ]
    lines += [
        f"{each.name} does not apply to {over}: {why}"
        for each in found
        for over, why in each.not_applicable.items()
    ]
    lines += [f"not judged: {each.not_judged}" for each in found if each.not_judged]
    return list(dict.fromkeys(lines))


# ---- All runs ------------------------------------------------------------------------------------


class Compared(Struct, frozen=True):
    """A scenario or variant, with all seeds."""

    part: Scenario
    overs: tuple[Over, ...]
    ran: tuple[BedResult, ...]
    """seed by seed, and in each in the order of `overs`"""
    simulated: tuple[SimRun, ...]
    """of each seed"""
    judged: tuple[CheckVerdict, ...]

    def of(self, over: Over) -> list[BedResult]:
        return [each for each in self.ran if each.over == over]


async def compare(
    bed: Testbed,
    part: Scenario,
    seeds: Sequence[int],
    overs: Sequence[Over],
    note: Callable[[str], None],
    told: Told,
) -> Compared:
    """Runs a scenario or variant. `note` gets a line before each run."""
    ran: list[BedResult] = []
    simulated, values = [], []
    for seed in seeds:
        note(f"{title(part)}, seed {seed}: simulator")
        result, of_simulator = await asyncio.to_thread(_simulated, part, seed)
        simulated.append(result)
        found, busy = {SIMULATOR: of_simulator}, dict[Over, float]()
        for over in overs:
            note(f"{title(part)}, seed {seed}: {over}")
            one, found[over] = await _on_bed(bed, part, seed, over, told)
            busy[over] = one.busy
            ran.append(one)
        values.append(Values(seed, found, busy))
    judged = tuple(verdicts(part, overs, values))
    return Compared(part, tuple(overs), tuple(ran), tuple(simulated), judged)


def title(part: Scenario) -> str:
    return ", ".join(filter(None, (part.name, part.variant)))


def _simulated(part: Scenario, seed: int) -> tuple[SimRun, checks.Values]:
    result = simulate(part, seed)
    reference = simulate(reference_of(part), seed) if checks.needs_reference(part) else None
    return result, checks.values_of(part, result, reference)


async def _on_bed(
    bed: Testbed, part: Scenario, seed: int, over: Over, told: Told
) -> tuple[BedResult, checks.Values]:
    ran, reference = await run(bed, part, seed, over, told), None
    if checks.needs_reference(part):
        reference = (await run(bed, reference_of(part), seed, over, told)).result
    return ran, _values(part, ran.result, reference, over)


def _values(part: Scenario, result: SimRun, reference: SimRun | None, over: Over) -> checks.Values:
    """The values of the checks that apply to a transport; None for the others, whose values need
    what nobody recorded.
    """
    found: list[float | None] = []
    for check in part.checks:
        one = replace(part, checks=(check,))
        why = inapplicable(check, over)
        found += [None] if why else checks.values_of(one, result, reference)
    return tuple(found)


# ---- JSON ----------------------------------------------------------------------------------------


def workload_result(scenario: Scenario, compared: Sequence[Compared]) -> results.Workload:
    return results.Workload(
        scenario=page.scenario_result(scenario),
        checks=tuple(judged for each in compared for judged in each.judged),
        runs=tuple(run_result(ran) for each in compared for ran in each.ran),
        simulated=tuple(page.run_result(one) for each in compared for one in each.simulated),
        notes=tuple(notes(scenario, [ran.over for each in compared for ran in each.ran])),
    )


def run_result(ran: BedResult) -> results.BedRun:
    plain = page.run_result(ran.result, details=True)
    counts = {one.number: one for answer in ran.answers for one in answer.sent}
    return results.BedRun(
        seed=plain.seed,
        transport=ran.over,
        variant=plain.variant,
        stats=like(results.BedStats, plain.stats),
        flows=tuple(
            like(
                results.BedFlow,
                flow,
                counts[flow.flow].counts,
                error=counts[flow.flow].error,
                samples=like(results.BedSamples, flow.samples),
            )
            for flow in plain.flows
        ),
        ev_events=plain.ev_events,
        write_ns=plain.write_ns,
        last_hops=tuple(like(results.BedLastHop, hop) for hop in plain.last_hops),
        processors_busy=round(ran.busy, 3),
        latest_fault_ns=ran.late_ns,
    )


def notes(scenario: Scenario, overs: Sequence[results.Over]) -> Iterator[str]:
    """What a test bed does otherwise than the simulator."""
    part = scenario.parts[0]
    if any(each.steps > 1 for each in part.traffic):
        yield "a step begins some ms after the one before: the barrier goes through this command"
    if part.transport.cc is CcKind.DELAY and not part.topology.trimming:
        yield "the switches neither mark nor trim"
    if "iperf3" in overs:
        yield "iperf3 does not count what is in the sender's socket buffer at the end"
    yield from fault_differences(part.faults)


# ---- The page ------------------------------------------------------------------------------------


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


def render_page(scenario: Scenario, compared: Sequence[Compared], notes: Sequence[str]) -> str:
    """The page as HTML."""
    demanded = [each for part in compared for each in part.judged if each.met is not None]
    return drawing.fill_page(
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
        columns=(SIMULATOR, *compared.overs),
        judged=compared.judged,
        explanations=explanations(compared.judged),
    )


def value_of(judged: CheckVerdict, column: str) -> float | None:
    """The value in a column of the table."""
    return judged.baselines.get(column, judged.value)


def _summary(result: SimRun, kind: str) -> Summary:
    """One run for a chart: its line ends when the run ends."""
    return Summary(
        measured=Measured(seed=result.seed, values=(), baselines={}),
        series=tuple(replace(each, kind=kind) for each in series_of(result)),
        end_ns=result.stats.now_ns,
    )


def _chart(part: Scenario, summaries: Sequence[Summary], where: str) -> Chart:
    chart = page.time_chart(part, summaries)
    chart.title = f"{title(part)}, {where}"
    chart.y_end = page.y_end(chart)
    return chart
