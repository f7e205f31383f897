# SPDX-License-Identifier: Apache-2.0
"""All runs of a scenario on a test bed beside the simulator, for `mrc testbed run` of a file with
traffic: which checks apply and what they find, as text, as JSON, and as a page.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from mrc.cli.output import Exit, Output, format_table
from mrc.cli.runner import run_async
from mrc.enums import CcKind
from mrc.errors import BadFileError, ConfigError, StateError
from mrc.linux import system
from mrc.results import KEYS, Result, like
from mrc.sim import checks, page
from mrc.sim import results as sim
from mrc.sim.options import loaded, seeds_of
from mrc.sim.run import SimRun
from mrc.sim.run import run as simulate
from mrc.sim.scenario import Criterion, Scenario, load_scenario
from mrc.sim.task import IPERF3, Over
from mrc.sim.traffic import (
    BedResult,
    Told,
    fault_differences,
    load,
    run,
    scheduled_faults,
    unsupported,
)
from mrc.testbed import schedule
from mrc.testbed.bed import Testbed
from mrc.testbed.tiers import TimedFault
from mrc.units import digits, scaled

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


def inapplicable(check: Criterion, over: Over) -> str:
    """Why a test bed cannot tell this figure of a transport; empty: it can."""
    measure = check.measure
    if check.looks_inside:
        return "a test bed records no queues between T0s and T1s"
    if measure in _IN_RTTS or (measure == "completion" and check.of == "line"):
        return "it is in base RTTs, and processors add more than that to a round trip"
    if over not in _OF_PACKETS.get(measure, (over,)):
        return f"{over} does not count this"
    if check.plane and over != "mrc":
        return f"{over} does not count the bytes of each plane"
    if measure == "lost_per_qp" and (check.from_ns, check.to_ns) != (0, TimedFault.NEVER):
        return "hosts count the packets of the whole run"
    if over == "iperf3" and measure in _OF_WRITES:
        return "iperf3 sends all writes of a flow as one"
    return ""


def verdicts(
    part: Scenario, overs: Sequence[Over], seeds: Sequence[checks.Measured], busy: float
) -> list[CheckVerdict]:
    """The checks of a scenario or variant; the first transport must meet the targets. Of each seed
    the values of that, and as baselines those of the others and of the simulator. `busy`: the
    largest share of the processors' time that was used while the first one ran.
    """
    baselines = (*overs[1:], SIMULATOR)
    outcomes = checks.evaluate(replace(part, baselines=baselines), seeds)
    return [
        _verdict(check, outcome, overs, busy)
        for check, outcome in zip(part.checks, outcomes, strict=True)
    ]


def _verdict(
    check: Criterion, outcome: sim.Value, overs: Sequence[Over], busy: float
) -> CheckVerdict:
    first, simulated = overs[0], outcome.baselines[SIMULATOR]
    whys: dict[str, str] = {over: why for over in overs if (why := inapplicable(check, over))}
    not_judged = ""
    if busy >= BUSY and check.measure not in _COUNTS:
        not_judged = (
            f"the processors were {busy:.0%} busy, so they may have set the rates, not the links"
        )
    values = {first: outcome.value, **outcome.baselines}
    return like(
        CheckVerdict,
        outcome,
        relation=check.relation,
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


class Comparison(Struct, frozen=True):
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
) -> Comparison:
    """Runs a scenario or variant. `note` gets a line before each run."""
    ran: list[BedResult] = []
    simulated, measured = [], []
    for seed in seeds:
        note(f"{title(part)}, seed {seed}: simulator")
        result = await asyncio.to_thread(simulate, part, seed)
        reference = None
        if part.needs_reference:
            reference = await asyncio.to_thread(simulate, part.as_reference(), seed)
        simulated.append(result)
        found = {SIMULATOR: checks.values_of(part, result, reference)}
        for over in overs:
            note(f"{title(part)}, seed {seed}: {over}")
            one, reference = await run(bed, part, seed, over, told), None
            if part.needs_reference:
                reference = (await run(bed, part.as_reference(), seed, over, told)).result
            found[over] = tuple(  # what does not apply needs what nobody recorded
                None if inapplicable(check, over) else checks.value_of(check, one.result, reference)
                for check in part.checks
            )
            ran.append(one)
        measured.append(checks.Measured(seed, found.pop(overs[0]), found))
    busy = max(one.busy for one in ran if one.over == overs[0])
    judged = tuple(verdicts(part, overs, measured, busy))
    return Comparison(part, tuple(overs), tuple(ran), tuple(simulated), judged)


def title(part: Scenario) -> str:
    return ", ".join(filter(None, (part.name, part.variant)))


# ---- JSON ----------------------------------------------------------------------------------------


def workload_result(scenario: Scenario, compared: Sequence[Comparison]) -> Workload:
    return Workload(
        scenario=page.scenario_result(scenario),
        checks=tuple(judged for each in compared for judged in each.judged),
        runs=tuple(run_result(ran) for each in compared for ran in each.ran),
        simulated=tuple(page.run_result(one) for each in compared for one in each.simulated),
        notes=tuple(notes(scenario, [ran.over for each in compared for ran in each.ran])),
    )


def run_result(ran: BedResult) -> BedRun:
    plain = page.run_result(ran.result, details=True)
    counts = {one.number: one for answer in ran.answers for one in answer.sent}
    return BedRun(
        seed=plain.seed,
        transport=ran.over,
        variant=plain.variant,
        stats=like(BedStats, plain.stats),
        flows=tuple(
            like(
                BedFlow,
                flow,
                counts[flow.flow].counts,
                error=counts[flow.flow].error,
                samples=like(sim.ArrivalSamples, flow.samples),
            )
            for flow in plain.flows
        ),
        ev_events=plain.ev_events,
        write_ns=plain.write_ns,
        last_hops=tuple(like(BedLastHop, hop) for hop in plain.last_hops),
        processors_busy=round(ran.busy, 3),
        latest_fault_ns=ran.late_ns,
    )


def notes(scenario: Scenario, overs: Sequence[Over]) -> Iterator[str]:
    """What a test bed does otherwise than the simulator."""
    part = scenario.parts[0]
    if any(each.steps > 1 for each in part.traffic):
        yield "a step begins some ms after the one before: the barrier goes through this command"
    if part.transport.cc is CcKind.DELAY and not part.topology.trimming:
        yield "the switches neither mark nor trim"
    if "iperf3" in overs:
        yield "iperf3 does not count what is in the sender's socket buffer at the end"
    yield from fault_differences(part.faults)


# ---- The command ---------------------------------------------------------------------------------


_LATE_NS = 50_000_000  # a change of a fault takes less, on a machine that is not too busy


def run_traffic(args: argparse.Namespace, out: Output, bed: Testbed) -> int:
    """Runs the traffic of the scenario `args.file`."""
    scenario = loaded(args, partial(_load, args, bed))
    if "iperf3" in args.over:
        system.require(IPERF3)
    if "mptcp" in args.over and not Testbed.has_mptcp():
        raise StateError("this kernel has no MPTCP: it requires CONFIG_MPTCP")
    bed.connect()
    compared = run_async(_compare(args, out, bed, scenario))
    noted = list(notes(scenario, args.over))
    for each in compared:
        _print(out, each)
    for line in noted:
        out.note(line)
    if out.as_json:
        out.result(workload_result(scenario, compared))
    missed = any(judged.met is False for each in compared for judged in each.judged)
    return Exit.FAILED if missed else Exit.OK


def _load(args: argparse.Namespace, bed: Testbed, settings: dict[str, Any]) -> Scenario:
    """Raises ConfigError, also for what this test bed or a transport cannot do."""
    try:
        scenario = load(args.file, settings, bed.shape, args.scale)
    except BadFileError as error:
        load_scenario(args.file, settings)  # raises the same error, if the file itself is wrong
        raise ConfigError(
            f"{error}: the test bed has another shape; mrc testbed up {args.file} builds that of "
            "the file"
        ) from error
    if args.until is not None:
        scenario = _until(scenario, args.until)
    for part in scenario.parts:
        for over in args.over:
            if wrong := unsupported(part, over):
                raise ConfigError(f"{title(part)}: {wrong}")
        for seed in seeds_of(args):
            scheduled_faults(part.with_seed(seed), bed.plan)
    return scenario


def _until(scenario: Scenario, until_ns: int) -> Scenario:
    """Ends every run at this time."""
    variants = tuple(_until(part, until_ns) for part in scenario.variants)
    return replace(scenario, until_ns=min(scenario.until_ns, until_ns), variants=variants)


async def _compare(
    args: argparse.Namespace, out: Output, bed: Testbed, scenario: Scenario
) -> list[Comparison]:
    loop = asyncio.get_running_loop()

    def told(event: schedule.FaultChange, seconds: float) -> None:
        what = "healed" if event.fault is None else f"fails: {event.fault}"
        line = f"{seconds:9.4f} s  {event.target} {what}"
        loop.call_soon_threadsafe(out.note, line)

    return [
        await compare(bed, part, seeds_of(args), args.over, out.note, told)
        for part in scenario.parts
    ]


def _print(out: Output, compared: Comparison) -> None:
    out.text(f"{title(compared.part)}: {compared.part.title}\n")
    head = ["traffic", "over", "flows", "slowest", "mean", "packets retransmitted", "took"]
    out.text(format_table(head, list(_traffic_rows(compared))) + "\n")
    columns = (SIMULATOR, *compared.overs)
    rows = [list(_check_row(judged, columns)) for judged in compared.judged]
    out.text(format_table(["check", *columns, "target", "met"], rows) + "\n")
    for line in explanations(compared.judged):
        out.text(f"* {line}")
    for ran in compared.ran:
        if ran.late_ns > _LATE_NS:
            late = scaled(ran.late_ns / 1e9, "s")
            out.warn(f"{ran.over}: a fault was {late} late: this machine is too busy")


def _traffic_rows(compared: Comparison) -> Iterator[tuple[object, ...]]:
    """The first seed: each group in the simulator, and over each transport."""
    first = {SIMULATOR: compared.simulated[0]}
    first |= {over: compared.of(over)[0].result for over in compared.overs}
    for group in dict.fromkeys(traffic.group for traffic in compared.part.traffic):
        for name, result in first.items():
            *counts, again = page.group_row(result, group)
            end_ns = max(result.infos[i].last_ns for i in result.of_group(group))
            again = "-" if name == "mptcp" else again
            yield (group, name, *counts, again, scaled(end_ns / 1e9, "s"))


def _check_row(judged: CheckVerdict, columns: Sequence[str]) -> Iterator[str]:
    yield judged.name
    for name in columns:
        if name in judged.not_applicable:
            yield "does not apply *"
        else:
            yield page.number(judged.baselines.get(name, judged.value)) + (
                " *" if name in judged.differs else ""
            )
    yield "" if judged.target is None else f"{judged.relation} {digits(judged.target)}"
    unmet = "" if judged.target is None else "not judged"
    yield unmet if judged.met is None else "yes" if judged.met else "no"


# ---- What it prints as JSON: as `mrc sim run` where a value means the same -----------------------


class CheckVerdict(sim.Value, frozen=True, kw_only=True):
    """A figure of the first transport. `baselines` has those of the others, and as `simulator` that
    of the simulator.
    """

    relation: Literal["<=", ">="]
    """How the value must stand to the target."""
    target: float | None
    """The target; null: the figure has none."""
    met: bool | None
    """The value meets the target; null: it has none, or the figure does not apply, or is not
    judged.
    """
    not_judged: str
    """Why the machine does not allow a verdict; empty: it does."""
    not_applicable: dict[str, str]
    """Transports of which a test bed cannot tell this figure, and why."""
    differs: tuple[str, ...]
    """Transports whose value is more than 10% from the simulator's."""
    note: str
    """Why real hosts differ, as the scenario says."""


class BedStats(Struct, frozen=True, kw_only=True, rename=KEYS):
    """The whole fabric over the whole run."""

    texts_of: ClassVar = sim.Stats

    now_ns: int
    packets: int
    """Packets sent by hosts; a kernel fabric counts the segments of a burst."""
    hops: int
    dropped: int
    trimmed: int
    marked: int
    completed_writes: int


class BedFlow(sim.FlowTotals, frozen=True, kw_only=True):
    """One flow. What its transport does not count is null."""

    samples: sim.ArrivalSamples
    """The flow over time."""
    error: str
    """Why writes failed; empty: none did."""


class BedLastHop(Struct, frozen=True, kw_only=True, rename=KEYS):
    """The link from a T0 to a host."""

    texts_of: ClassVar = sim.LastHop

    host: int
    plane: int
    busy_ns: int
    trimmed: int
    dropped: int
    marked: int


class BedRun(Struct, frozen=True, kw_only=True):
    """One run: a seed, a transport and a variant."""

    seed: int
    """Seed of everything that is random."""
    transport: Over
    """What carried the flows."""
    variant: str
    """Name of the variant; empty: there are none."""
    stats: BedStats
    """The whole fabric."""
    flows: tuple[BedFlow, ...]
    """Every flow."""
    ev_events: tuple[sim.Event, ...]
    """What the engines of the senders reported, in order."""
    write_ns: sim.WriteTimes | None
    """Times of the writes; null: none was completed."""
    last_hops: tuple[BedLastHop, ...]
    """The links to hosts that received."""
    processors_busy: float
    """Share of the time of this machine's processors that was used, by whatever program."""
    latest_fault_ns: int
    """The largest delay of a fault's begin or end."""


class Workload(Result, frozen=True, kw_only=True):
    """`mrc testbed run` of a file with traffic."""

    scenario: sim.ScenarioParameters
    """Every parameter, as the test bed and the simulator ran it."""
    checks: tuple[CheckVerdict, ...]
    """Figures, with a target or without."""
    runs: tuple[BedRun, ...]
    """Every run on the test bed."""
    simulated: tuple[sim.Run, ...]
    """The same runs in the simulator."""
    notes: tuple[str, ...]
    """What a test bed does otherwise than the simulator."""
