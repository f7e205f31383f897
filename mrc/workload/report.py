# SPDX-License-Identifier: Apache-2.0
"""Converts runs on a test bed into their declared results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrc.enums import CcKind
from mrc.results.plain import like
from mrc.sim import report
from mrc.sim.scenario import Scenario
from mrc.workload import faults, results
from mrc.workload.compare import Compared
from mrc.workload.run import BedResult


def workload(scenario: Scenario, compared: Sequence[Compared]) -> results.Workload:
    return results.Workload(
        scenario=report.scenario_result(scenario),
        checks=tuple(judged for each in compared for judged in each.judged),
        runs=tuple(run(ran) for each in compared for ran in each.ran),
        simulated=tuple(report.run_result(one) for each in compared for one in each.simulated),
        notes=tuple(notes(scenario, [ran.over for each in compared for ran in each.ran])),
    )


def run(ran: BedResult) -> results.BedRun:
    plain = report.run_result(ran.result, details=True)
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
    yield from faults.differ(part.faults)
