# SPDX-License-Identifier: Apache-2.0
"""Results of simulations as plain data, for JSON and for tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mrc.enums import EvState, WcStatus
from mrc.fabric.faults import NEVER
from mrc.sim import native
from mrc.sim.checks import Outcome, flow_goodput_bps
from mrc.sim.native import Event
from mrc.sim.run import Result
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import line_rate_bps


def scenario_json(scenario: Scenario) -> dict[str, Any]:
    """Every parameter of an experiment, defaults included."""
    values = asdict(scenario)
    values["variants"] = [part.variant for part in scenario.variants]
    values["transport"]["cc"] = scenario.transport.cc.name.lower()
    for fault in values["faults"]:
        fault["until_ns"] = None if fault["until_ns"] == NEVER else fault["until_ns"]
        del fault["every_ns"], fault["for_ns"]  # each time it comes is one by itself here
    del values["checks"], values["topology"]["addresses"]
    return values | {"base_rtt_ns": scenario.base_rtt_ns}


def checks_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The checks, and apart from them the values that need not meet anything."""
    shown = ("scenario", "name", "value", "low", "high", "baselines")
    return {
        "checks": [asdict(outcome) for outcome in outcomes if outcome.target is not None],
        "values": [
            {name: getattr(outcome, name) for name in shown}
            for outcome in outcomes
            if outcome.target is None
        ],
    }


def result_json(result: Result) -> dict[str, Any]:
    """One run: totals, flows, goodput over time, events."""
    stats = asdict(result.stats) | {"trace": f"{result.stats.trace:016x}"}
    return {
        "seed": result.seed,
        "transport": result.scenario.transport.kind,
        "variant": result.scenario.variant,
        "stats": stats,
        "flows": [flow_json(result, i) for i in range(len(result.flows))],
        "ev_events": [event_json(event) for event in result.events],
        "write_ns": _quantiles([m.done_ns - m.wanted_ns for m in result.messages]),
        "last_hops": [
            {"host": host, "plane": plane, **asdict(port)}
            for (host, plane), port in result.last_hops.items()
        ],
    }


def flow_json(result: Result, number: int) -> dict[str, Any]:
    """One flow; `samples` are counts since the start."""
    flow, info, curve = result.flows[number], result.infos[number], result.curves[number]
    return {
        "flow": number,
        "group": flow.traffic.group,
        "from": flow.sender,
        "to": flow.receiver,
        "writes": flow.writes,
        "write_bytes": flow.traffic.bytes,
        **asdict(info),
        "goodput_bits_per_second": flow_goodput_bps(result, number),
        "line_rate_bits_per_second": line_rate_bps(result.scenario, [flow]),
        "samples": {
            "now_ns": curve.times_ns,
            "received_bytes": curve.bytes,
            "retransmitted_packets": result.retransmitted[number],
        },
    }


def event_json(event: Event) -> dict[str, Any]:
    """What an engine told, in words."""
    where = {"now_ns": event.now_ns, "flow": event.flow, "plane": event.plane}
    end = {"end": "receiver" if event.receiver else "sender"}
    if event.type == native.EV_STATE:
        return where | {"path": event.path, "event": EvState(event.status).name} | end
    if event.type == native.PLANE_STATE:
        return where | {"event": "plane resumed" if event.status else "plane suspended"} | end
    if event.type == native.PLANE_SHARE:
        word = "plane no longer slow" if event.status else "plane slow"
        return where | {"event": word, "percent": event.percent} | end
    return where | {"event": WcStatus(event.status).name} | end


def _quantiles(values: list[int]) -> dict[str, int] | None:
    """Time of a write from the moment it was wanted; None without writes."""
    if not values:
        return None
    values = sorted(values)
    last = len(values) - 1
    return {
        name: values[round(last * part)]
        for name, part in (("min", 0.0), ("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }
