# SPDX-License-Identifier: Apache-2.0
"""The max-min fair goodputs of a scenario's flows, by progressive filling. Pure.

Each plane is filled separately. A flow uses the port of its sender, the port of its receiver and,
between two T0s, the uplinks that its paths allow; between two pods also links to T2s. The uplinks
of one T0 count as one link with the sum of their rates, because spraying can fill all of them; so
do the links between one pod and the T2s.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from mrc.fabric.faults import Fault
from mrc.fabric.targets import DOWN, UP, Target, links_of, parse_target
from mrc.sim.scenario import Scenario, payload_share
from mrc.sim.traffic import Flow

_RATE_FAULTS = ("rate", "silent", "down")

Link = tuple[str, str, int, int]
"""A direction of a link of a plane: (UP, "host", host, 0), (DOWN, "uplink", t0, t1) or
(UP, "core", t1, t2).
"""

Rates = dict[Link, float]
"""Bits per second."""


def goodputs_bps(
    scenario: Scenario, flows: Sequence[Flow], from_ns: int, to_ns: int, planes: Sequence[int]
) -> list[float]:
    """Payload bits per second of each flow in `planes`: the mean from `from_ns` to `to_ns`.

    All flows are assumed to send all the time. Open-loop flows count as 0.
    """
    edges = {from_ns, to_ns}
    edges |= {time for fault in scenario.faults for time in (fault.at_ns, fault.end_ns)}
    times = sorted(time for time in edges if from_ns <= time <= to_ns)
    at_time: dict[tuple[Fault, ...], list[float]] = {}
    found = [0.0] * len(flows)
    for begin, end in pairwise(times):
        faults = tuple(
            fault
            for fault in scenario.faults
            if fault.kind in _RATE_FAULTS and fault.at_ns <= begin < fault.end_ns
        )
        if faults not in at_time:
            at_time[faults] = _goodputs_bps(scenario, flows, faults, planes)
        for i, rate in enumerate(at_time[faults]):
            found[i] += rate * (end - begin) / (to_ns - from_ns)
    return found


def _goodputs_bps(
    scenario: Scenario, flows: Sequence[Flow], faults: Sequence[Fault], planes: Sequence[int]
) -> list[float]:
    """The same while `faults` last."""
    closed = [i for i, flow in enumerate(flows) if not flow.traffic.interval_ns]
    found = [0.0] * len(flows)
    for plane in planes:
        rates = link_rates_bps(scenario, plane, faults)
        here = [i for i in closed if flows[i].traffic.plane in (0, plane)]
        crossed = [_crossed(scenario, flows[i]) for i in here]
        capacity: dict[Hashable, float] = {
            key: sum(rates.get(link, 0.0) for link in key) for keys in crossed for key in keys
        }
        for i, rate in zip(here, fill(crossed, capacity), strict=True):
            found[i] += rate * payload_share(flows[i].traffic, scenario.transport)
    return found


def fill(crossed: Sequence[Sequence[Hashable]], capacity: Mapping[Hashable, float]) -> list[float]:
    """Increases the rates of all flows equally; a flow stops when one of its links is full.

    `crossed` lists the links of each flow, `capacity` the rate of each link. Returns the rates.
    """
    rates = [0.0] * len(crossed)
    left = dict(capacity)
    growing: dict[Hashable, set[int]] = {key: set() for key in capacity}
    for i, keys in enumerate(crossed):
        for key in keys:
            growing[key].add(i)
    level = 0.0
    while any(growing.values()):
        step, full = min(
            ((left[key] / len(flows), key) for key, flows in growing.items() if flows),
            key=lambda found: found[0],
        )
        level += step
        for key, flows in growing.items():
            left[key] = max(0.0, left[key] - step * len(flows))
        for i in list(growing[full]):
            rates[i] = level
            for key in crossed[i]:
                growing[key].discard(i)
    return rates


def link_rates_bps(scenario: Scenario, plane: int, faults: Sequence[Fault]) -> Rates:
    """The rates of a plane's links, after `[[links]]` and then the faults are applied."""
    topology = scenario.topology
    tiers = {
        "host": topology.host_rate_bps,
        "uplink": topology.fabric_rate_bps,
        "core": topology.core_rate_bps,
    }
    every = Target("plane", plane)
    rates: Rates = {link: tiers[link[1]] for link in _links(scenario, every)}
    for change in scenario.links:
        if change.kind == "rate":
            rates |= dict.fromkeys(_hit(scenario, change, plane), change.a)
    base = dict(rates)
    for fault in sorted(faults, key=lambda fault: fault.at_ns):
        for link in _hit(scenario, fault, plane):
            slowed = fault.a or base[link] * fault.b / 1e6
            rates[link] = slowed if fault.kind == "rate" and rates[link] else 0.0
    return rates


def _hit(scenario: Scenario, change: Fault, plane: int) -> Iterator[Link]:
    """The links of a plane that a change applies to."""
    target = parse_target(change.target, scenario.topology)
    if target.plane in (0, plane):
        yield from _links(scenario, replace(target, plane=plane))


def _links(scenario: Scenario, target: Target) -> Iterator[Link]:
    for link in links_of(target, scenario.topology):
        for way in (target.direction,) if target.direction else (UP, DOWN):
            if link.host is not None:
                yield way, "host", link.host, 0
            elif link.t2 is not None:
                yield way, "core", link.t1 or 0, link.t2
            else:
                yield way, "uplink", link.t0 or 0, link.t1 or 0


_Shared = tuple[Link, ...]
"""Links that count as one."""


def _crossed(scenario: Scenario, flow: Flow) -> list[_Shared]:
    topology = scenario.topology
    keys: list[_Shared] = [
        ((UP, "host", flow.sender, 0),),
        ((DOWN, "host", flow.receiver, 0),),
    ]
    if topology.are_near(flow.sender, flow.receiver):
        return keys
    origin = topology.origin(flow.sender, flow.receiver)
    every = tuple(range(topology.n_paths(flow.receiver, origin)))
    named = () if flow.traffic.paths_until_ns else tuple(sorted(set(flow.traffic.paths)))
    ends = (UP, flow.sender), (DOWN, flow.receiver)
    crosses_core = topology.pod_of(flow.sender) != topology.pod_of(flow.receiver)
    for paths in dict.fromkeys((every, named or every)):
        for way, host in ends:
            t0, pod = topology.t0_of(host), topology.pod_of(host)
            t1s = {path: topology.t1_on(pod, path) for path in paths}
            keys.append(tuple((way, "uplink", t0, t1) for t1 in dict.fromkeys(t1s.values())))
            if crosses_core:
                keys.append(tuple((way, "core", t1, path) for path, t1 in t1s.items()))
    return keys
