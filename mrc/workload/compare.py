# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario on a test bed, over several transports, and in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mrc.sim import checks
from mrc.sim.run import Result, reference_of
from mrc.sim.run import run as simulate
from mrc.sim.scenario import Scenario
from mrc.testbed.bed import Testbed
from mrc.workload import judge
from mrc.workload.faults import Told
from mrc.workload.results import CheckVerdict, Over
from mrc.workload.run import BedResult, run


class Compared(Struct, frozen=True):
    """A scenario or variant, with all seeds."""

    part: Scenario
    overs: tuple[Over, ...]
    ran: tuple[BedResult, ...]
    """seed by seed, and in each in the order of `overs`"""
    simulated: tuple[Result, ...]
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
        found, busy = {judge.SIMULATOR: of_simulator}, dict[Over, float]()
        for over in overs:
            note(f"{title(part)}, seed {seed}: {over}")
            one, found[over] = await _on_bed(bed, part, seed, over, told)
            busy[over] = one.busy
            ran.append(one)
        values.append(judge.Values(seed, found, busy))
    judged = tuple(judge.judged(part, overs, values))
    return Compared(part, tuple(overs), tuple(ran), tuple(simulated), judged)


def title(part: Scenario) -> str:
    return ", ".join(filter(None, (part.name, part.variant)))


def _simulated(part: Scenario, seed: int) -> tuple[Result, checks.Values]:
    result = simulate(part, seed)
    reference = simulate(reference_of(part), seed) if checks.needs_reference(part) else None
    return result, checks.values(part, result, reference)


async def _on_bed(
    bed: Testbed, part: Scenario, seed: int, over: Over, told: Told
) -> tuple[BedResult, checks.Values]:
    ran, reference = await run(bed, part, seed, over, told), None
    if checks.needs_reference(part):
        reference = (await run(bed, reference_of(part), seed, over, told)).result
    return ran, _values(part, ran.result, reference, over)


def _values(part: Scenario, result: Result, reference: Result | None, over: Over) -> checks.Values:
    """The values of the checks that apply to a transport; None for the others, whose values need
    what nobody recorded.
    """
    found: list[float | None] = []
    for check in part.checks:
        one = replace(part, checks=(check,))
        why = judge.inapplicable(check, over)
        found += [None] if why else checks.values(one, result, reference)
    return tuple(found)
