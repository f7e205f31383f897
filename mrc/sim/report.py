# SPDX-License-Identifier: Apache-2.0
"""Converts runs into the declared results of `mrc sim`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mrc.enums import EvState, WcStatus
from mrc.results.plain import like
from mrc.sim import native, results
from mrc.sim.checks import Measured, Outcome, flow_goodput_bps
from mrc.sim.page import Experiment
from mrc.sim.run import Result
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import line_rate_bps
from mrc.sim.trial import Summary


def scenario_result(scenario: Scenario) -> results.Scenario:
    return like(
        results.Scenario,
        scenario,
        topology=like(results.Topology, scenario.topology),
        variants=tuple(part.variant for part in scenario.variants),
    )


def checks(outcomes: Sequence[Outcome]) -> tuple[results.Check, ...]:
    return tuple(like(results.Check, each) for each in outcomes if each.target is not None)


def values(outcomes: Sequence[Outcome]) -> tuple[results.Value, ...]:
    """The values without a target."""
    return tuple(like(results.Value, each) for each in outcomes if each.target is None)


def figure(experiment: Experiment) -> results.Figure:
    return like(
        results.Figure,
        experiment.scenario,
        scenario=experiment.scenario.name,
        met=not experiment.missed,
        seconds=experiment.seconds,
    )


MOST_FLOWS = 1024
"""A run of more flows reports its totals alone, unless details are requested."""


def run_result(result: Result, *, details: bool = False) -> results.Run:
    """The result of one run: totals; and flows, goodput over time, events and links."""
    details = details or len(result.flows) <= MOST_FLOWS
    return results.Run(
        seed=result.seed,
        transport=result.scenario.transport.kind,
        variant=result.scenario.variant,
        stats=result.stats,
        flows=tuple(_flow(result, i) for i in range(len(result.flows)) if details),
        ev_events=tuple(map(_event, result.events if details else ())),
        write_ns=_quantiles([m.done_ns - m.wanted_ns for m in result.messages]),
        last_hops=tuple(
            like(results.LastHop, port, host=host, plane=plane)
            for (host, plane), port in (result.last_hops.items() if details else ())
        ),
    )


def _flow(result: Result, number: int) -> results.Flow:
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
        goodput_bits_per_second=flow_goodput_bps(result, number),
        line_rate_bits_per_second=line_rate_bps(result.scenario, [flow]),
        samples=results.Samples(
            now_ns=tuple(curve.times_ns),
            received_bytes=tuple(curve.bytes),
            retransmitted_packets=result.retransmitted[number] if result.retransmitted else (),
        ),
    )


def _event(event: native.Event) -> results.Event:
    path = percent = None
    if event.type == native.EV_STATE:
        word, path = EvState(event.status).name, event.path
    elif event.type == native.PLANE_STATE:
        word = "plane resumed" if event.status else "plane suspended"
    elif event.type == native.PLANE_SHARE:
        word, percent = "plane no longer slow" if event.status else "plane slow", event.percent
    else:
        word = WcStatus(event.status).name
    end = "receiver" if event.receiver else "sender"
    return like(results.Event, event, end=end, event=word, path=path, percent=percent)


def _quantiles(durations: list[int]) -> results.WriteTimes | None:
    if not durations:
        return None
    durations = sorted(durations)
    last = len(durations) - 1
    parts = {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}
    return results.WriteTimes(**{k: durations[round(last * part)] for k, part in parts.items()})


def seed_rows(
    parts: Sequence[Scenario], summaries: Sequence[Sequence[Summary]]
) -> Iterator[dict[str, Any]]:
    """Lines of CSV: the value of each check in each run, of each part of a scenario."""
    for part, seeds in zip(parts, summaries, strict=True):
        yield from rows(part, [summary.measured for summary in seeds])


def rows(part: Scenario, seeds: Sequence[Measured]) -> Iterator[dict[str, Any]]:
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
