# SPDX-License-Identifier: Apache-2.0
"""The checks of a scenario: computes values from its runs, and compares them with targets. Pure.

A value is None if the run cannot give it, for example the time of an event that did not happen.
None misses every target.

A flow without steps is a job of one step. The flows of a check may belong to several jobs of equal
work: a step then lasts until the last job has ended it.

Max-min fair goodputs are found by progressive filling, in each plane separately. A flow uses the
port of its sender, the port of its receiver and, between two T0s, the uplinks that its paths allow;
between two pods also links to T2s. The uplinks of one T0 count as one link with the sum of their
rates, because spraying can fill all of them; so do the links between one pod and the T2s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict, replace

from mrc.enums import EvState
from mrc.sim import native
from mrc.sim.results import Check, Value
from mrc.sim.run import Curve, FlowSpec, SimRun, line_rate_bps
from mrc.sim.scenario import Criterion, Scenario, dead_paths, payload_share
from mrc.testbed.tiers import TimedFault
from mrc.testbed.topology import Target

# ---- Times of jobs -------------------------------------------------------------------------------


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that `percent` percent of the values do not exceed."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


def step_times_ns(result: SimRun, numbers: Sequence[int]) -> list[int] | None:
    """How long each step of these flows took, from the end of the one before; None: not all steps
    ended.
    """
    if any(result.infos[i].completed < result.flows[i].writes for i in numbers):
        return None
    chosen, done = set(numbers), Counter[int]()
    ends = Counter({-1: min(result.flows[i].traffic.start_ns for i in numbers)})
    for message in result.messages:
        if message.flow in chosen:
            step = done[message.flow] // result.flows[message.flow].step_writes
            done[message.flow] += 1
            ends[step] = max(ends[step], message.done_ns)
    return [ends[step] - ends[step - 1] for step in range(max(ends) + 1)]


def job_ns(result: SimRun, numbers: Sequence[int]) -> int | None:
    """How long all steps of these flows took."""
    times = step_times_ns(result, numbers)
    return None if times is None else sum(times)


def ideal_step_ns(result: SimRun, numbers: Sequence[int]) -> float:
    """How long a step takes at line rate: to compute, and to send or receive the data of the host
    that has most.
    """
    traffic = result.flows[numbers[0]].traffic
    topology, payload = result.scenario.topology, payload_share(traffic, result.scenario.transport)
    sent, received = Counter[int](), Counter[int]()
    for flow in (result.flows[i] for i in numbers):
        sent[flow.sender] += flow.step_writes * flow.traffic.bytes
        received[flow.receiver] += flow.step_writes * flow.traffic.bytes
    most = max(*sent.values(), *received.values())
    return traffic.compute_ns + most * 8e9 / (topology.planes * topology.host_rate_bps * payload)


def bus_bandwidth(result: SimRun, numbers: Sequence[int]) -> float | None:
    """The data that the busiest host sends or receives while it does not compute, of line rate. For
    a ring this is the bus bandwidth of NCCL's tests.
    """
    whole_ns = job_ns(result, numbers)
    traffic = result.flows[numbers[0]].traffic
    if whole_ns is None:
        return None
    ideal_ns = ideal_step_ns(result, numbers) - traffic.compute_ns
    return ideal_ns * traffic.steps / (whole_ns - traffic.compute_ns * traffic.steps)


# ---- Checks --------------------------------------------------------------------------------------


Values = tuple[float | None, ...]
"""One value for each check of a scenario."""


class Measured(Struct, frozen=True):
    """The check values of one seed: for the run, and for each of its baselines."""

    seed: int
    values: Values
    baselines: Mapping[str, Values]


def values_of(scenario: Scenario, result: SimRun, reference: SimRun | None) -> Values:
    """The values of a scenario's checks in one run, of the scenario or of a baseline."""
    return tuple(value_of(check, result, reference) for check in scenario.checks)


def evaluate(scenario: Scenario, runs: Sequence[Measured]) -> list[Value]:
    """The results of a scenario's checks over its seeds. None counts as the worst value."""
    return [_outcome(scenario, number, runs) for number in range(len(scenario.checks))]


def _outcome(scenario: Scenario, number: int, runs: Sequence[Measured]) -> Value:
    check = scenario.checks[number]
    low, middle, high = _quartiles(check, [one.values[number] for one in runs])
    shown = Value(
        scenario=scenario.name,
        name=", ".join(filter(None, (check.name, scenario.variant))),
        value=middle,
        low=low,
        high=high,
        baselines={
            kind: _quartiles(check, [one.baselines[kind][number] for one in runs])[1]
            for kind in scenario.baselines
        },
    )
    if check.variants and scenario.variant not in check.variants:
        return shown
    met = middle is not None and (
        middle >= check.target if check.relation == ">=" else middle <= check.target
    )
    return Check(**asdict(shown), relation=check.relation, target=check.target, met=met)


def _quartiles(check: Criterion, found: Sequence[float | None]) -> tuple[float | None, ...]:
    worst = float("-inf") if check.relation == ">=" else float("inf")
    if not found:  # no seed has a result
        return (None, None, None)
    three = quartiles([worst if value is None else value for value in found])
    return tuple(None if value in (worst, -worst) else value for value in three)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 4], median(ordered), ordered[last - last // 4]


def value_of(check: Criterion, result: SimRun, reference: SimRun | None) -> float | None:
    """The value of a check in one run."""
    if check.measure == "goodput":
        return _goodput_share(check, result, reference)
    if check.measure in _TIMES:
        return _time(check, result, reference)
    if check.measure == "failure_convergence":
        # Base RTTs whose goodput is missing, of what the reference leads to expect: the
        # loss-derived convergence time of RFC 6412.
        share, window = _goodput_share(check, result, reference), _window(check, result)
        if share is None:
            return None
        return max(0.0, 1 - share) * (window[1] - window[0]) / result.scenario.base_rtt_ns
    return _MEASURES[check.measure](check, result, result.of_group(check.group))


def _window(check: Criterion, result: SimRun) -> tuple[int, int]:
    """The time of a check, cut where the first flow of its group had nothing left to send."""
    ends = []
    for i in result.of_group(check.group):
        info = result.infos[i]
        over = info.completed + info.failed == result.flows[i].writes
        ends.append(info.last_ns if over else result.stats.now_ns)
    return check.from_ns, min(check.to_ns, *ends)


def _bytes(result: SimRun, flow: int, window: tuple[int, int], plane: int = 0) -> float:
    curve = (result.planes[plane - 1] if plane else result.curves)[flow]
    return curve.at(window[1]) - curve.at(window[0])


def goodput_bps(check: Criterion, result: SimRun) -> float | None:
    """Payload bits per second of a group that arrived in the time of a check."""
    window = _window(check, result)
    if window[1] <= window[0]:
        return None
    numbers = result.of_group(check.group)
    arrived = sum(_bytes(result, i, window, check.plane) for i in numbers)
    return arrived * 8e9 / (window[1] - window[0])


def _goodput_share(check: Criterion, result: SimRun, reference: SimRun | None) -> float | None:
    goodput = goodput_bps(check, result)
    flows = [result.flows[i] for i in result.of_group(check.group)]
    whole: float | None = line_rate_bps(result.scenario, flows)
    if check.plane and not all(flow.traffic.plane for flow in flows):
        whole = line_rate_bps(result.scenario, flows) / result.scenario.topology.planes
    if check.of == "reference":
        assert reference is not None
        # The reference may end sooner: its own window is cut at its own end.
        whole = goodput_bps(check, reference)
    elif check.of == "max-min":
        planes = (check.plane,) if check.plane else result.scenario.topology.plane_numbers()
        window = _window(check, result)
        fair = goodputs_bps(result.scenario, result.flows, *window, planes)
        whole = sum(fair[i] for i in result.of_group(check.group))
    return None if goodput is None or not whole else goodput / (whole * check.share)


def _time(check: Criterion, result: SimRun, reference: SimRun | None) -> float | None:
    """A time, of the ideal one or of that of the reference."""
    measure, ideal = _TIMES[check.measure]
    numbers = result.of_group(check.group)
    time_ns, whole = measure(check, result, numbers), ideal(check, result, numbers)
    if check.of == "reference":
        assert reference is not None
        whole = measure(check, reference, reference.of_group(check.group))
    return None if time_ns is None or not whole else time_ns / (whole * check.share)


def completion_ns(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    """Percentile of the durations of the writes that became due in the time of a check.

    This is the least duration within which `check.percentile` percent of them completed.
    """
    chosen = set(numbers)
    times = sorted(
        message.done_ns - message.wanted_ns
        for message in result.messages
        if message.flow in chosen and check.from_ns <= message.wanted_ns < check.to_ns
    )
    return percentile(times, check.percentile) if times else None


def _completed(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    numbers = [i for i in numbers if result.flows[i].traffic.kind != "tcp"]
    if not numbers:
        return None
    wanted = sum(result.flows[i].writes for i in numbers)
    return sum(result.infos[i].completed for i in numbers) / wanted


def _qp_errors(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float:
    chosen = set(numbers)
    return sum(
        event.type == native.EngineEvent.QP_ERROR and event.flow in chosen
        for event in result.events
    )


def _slowest_flow(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float:
    return min(
        result.goodput_bps(i) / line_rate_bps(result.scenario, [result.flows[i]]) for i in numbers
    )


def _fairness(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    """Jain's index: 1 if all flows of the group received the same number of bytes."""
    window = _window(check, result)
    if window[1] <= window[0]:
        return None
    shares = [_bytes(result, i, window) for i in numbers]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def _least_plane(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    """Payload of the plane that carried least, as a share of the mean of all planes."""
    window = _window(check, result)
    if window[1] <= window[0]:
        return None
    planes = result.scenario.topology.plane_numbers()
    arrived = [sum(_bytes(result, i, window, plane) for i in numbers) for plane in planes]
    return min(arrived) * len(arrived) / sum(arrived) if sum(arrived) else None


def _lost(check: Criterion, result: SimRun, flow: int) -> float:
    """Packets that a flow lost; in a part of the run: that it sent again."""
    if (check.from_ns, check.to_ns) == (0, TimedFault.NEVER):
        return result.infos[flow].lost_packets
    again = Curve(result.curves[flow].times_ns, result.retransmitted[flow])
    return again.at(check.to_ns) - again.at(check.from_ns)


def _last_hop_busy(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float:
    """Share of the time in which the ports to the group's receivers were sending."""
    receivers = {result.flows[i].receiver for i in numbers}
    has_link = result.scenario.topology.has_link
    busy = [
        port.busy_ns
        for (host, plane), port in result.last_hops.items()
        if host in receivers and has_link(host, plane)
    ]
    return sum(busy) / len(busy) / _sending_ns(result, numbers)


def _sending_ns(result: SimRun, numbers: Sequence[int]) -> int:
    """From the first post of the group to its last completion."""
    infos = [result.infos[i] for i in numbers]
    return max(max(info.last_ns for info in infos) - min(info.first_ns for info in infos), 1)


def _inner_busy(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    busy = sorted(port.busy_ns for port in result.inner_ports)
    return percentile(busy, check.percentile) / _sending_ns(result, numbers) if busy else None


def _inner_queue(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    """The longest queue of a link, as base RTTs in which an uplink sends it."""
    longest = sorted(port.peak_bytes for port in result.inner_ports)
    if not longest:
        return None
    queue_ns = (
        percentile(longest, check.percentile) * 8e9 / result.scenario.topology.fabric_rate_bps
    )
    return queue_ns / result.scenario.base_rtt_ns


def _sent_again(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float:
    sent = sum(result.infos[i].sent_packets for i in numbers)
    return sum(result.infos[i].retransmitted_packets for i in numbers) / max(sent, 1)


def _lost_per_dead_path(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    """Packets that the worst flow lost, per path of it that was dead from the start."""
    shares = []
    for i in numbers:
        flow = result.flows[i]
        dead = dead_paths(result.scenario, flow.sender, flow.receiver)
        if dead:
            shares.append(result.infos[i].lost_packets / dead)
    return max(shares, default=None)


def _ev_changes(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float:
    """How often EVs of the group became GOOD, ASSUMED_BAD or DENIED in the time of a check."""
    chosen = set(numbers)
    return sum(
        event.type == native.EngineEvent.EV_STATE
        and event.flow in chosen
        and check.from_ns <= event.now_ns < check.to_ns
        for event in result.events
    )


def _ev_bad_after(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    """Base RTTs from the first packet that a fault dropped to the first EV in ASSUMED_BAD."""
    chosen = set(numbers)
    bad = [
        event.now_ns
        for event in result.events
        if event.type == native.EngineEvent.EV_STATE
        and event.status == EvState.ASSUMED_BAD
        and event.flow in chosen
    ]
    if not bad or not result.stats.first_lost_ns:
        return None
    return (min(bad) - result.stats.first_lost_ns) / result.scenario.base_rtt_ns


def _step_time(check: Criterion, result: SimRun, numbers: Sequence[int]) -> float | None:
    times = step_times_ns(result, numbers)
    return None if times is None else percentile(sorted(times), check.percentile)


_Measure = Callable[[Criterion, SimRun, Sequence[int]], float | None]
"""A check, a run, and the numbers of the flows in the check's group."""

_TIMES: dict[str, tuple[_Measure, _Measure]] = {
    "completion": (completion_ns, lambda _, result, __: result.scenario.base_rtt_ns),
    "step_time": (_step_time, lambda _, *flows: ideal_step_ns(*flows)),
    "job_completion": (
        lambda _, *flows: job_ns(*flows),
        lambda _, run, flows: ideal_step_ns(run, flows) * run.flows[flows[0]].traffic.steps,
    ),
}
"""The measures of times, and the ideal of each."""

_MEASURES: dict[str, _Measure] = {
    "completed": _completed,
    "qp_errors": _qp_errors,
    "slowest_flow": _slowest_flow,
    "fairness": _fairness,
    "last_hop_busy": _last_hop_busy,
    "retransmitted": _sent_again,
    # Repeated packets that the simulator counted at receivers, whatever senders declared lost.
    "spurious": lambda _, run, flows: sum(run.infos[i].repeated_packets for i in flows),
    "lost_per_dead_path": _lost_per_dead_path,
    "ev_bad_after": _ev_bad_after,
    "ev_changes": _ev_changes,
    "least_plane": _least_plane,
    "qps_hit": lambda _, run, flows: sum(run.infos[i].lost_packets > 0 for i in flows) / len(flows),
    "lost_per_qp": lambda check, run, flows: percentile(
        sorted(_lost(check, run, i) for i in flows), check.percentile
    ),
    "bus_bandwidth": lambda _, *flows: bus_bandwidth(*flows),
    "inner_busy": _inner_busy,
    "inner_queue": _inner_queue,
}


# ---- Max-min fair goodputs -----------------------------------------------------------------------


_RATE_FAULTS = ("rate", "silent", "down")

LinkWay = tuple[str, str, int, int]
"""A direction of a link of a plane: ("up", "host", host, 0), ("down", "uplink", t0, t1) or
("up", "core", t1, t2).
"""

LinkRates = dict[LinkWay, float]
"""Bits per second."""


def goodputs_bps(
    scenario: Scenario, flows: Sequence[FlowSpec], from_ns: int, to_ns: int, planes: Sequence[int]
) -> list[float]:
    """Payload bits per second of each flow in `planes`: the mean from `from_ns` to `to_ns`.

    All flows are assumed to send all the time. Open-loop flows count as 0.
    """
    edges = {from_ns, to_ns}
    edges |= {time for fault in scenario.faults for time in (fault.at_ns, fault.end_ns)}
    times = sorted(time for time in edges if from_ns <= time <= to_ns)
    at_time: dict[tuple[TimedFault, ...], list[float]] = {}
    found = [0.0] * len(flows)
    for begin, end in pairwise(times):
        faults = tuple(
            fault
            for fault in scenario.faults
            if fault.kind in _RATE_FAULTS and fault.at_ns <= begin < fault.end_ns
        )
        if faults not in at_time:
            at_time[faults] = _goodputs_while(scenario, flows, faults, planes)
        for i, rate in enumerate(at_time[faults]):
            found[i] += rate * (end - begin) / (to_ns - from_ns)
    return found


def _goodputs_while(
    scenario: Scenario,
    flows: Sequence[FlowSpec],
    faults: Sequence[TimedFault],
    planes: Sequence[int],
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
        for i, rate in zip(here, fill_fairly(crossed, capacity), strict=True):
            found[i] += rate * payload_share(flows[i].traffic, scenario.transport)
    return found


def fill_fairly(
    crossed: Sequence[Sequence[Hashable]], capacity: Mapping[Hashable, float]
) -> list[float]:
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


def link_rates_bps(scenario: Scenario, plane: int, faults: Sequence[TimedFault]) -> LinkRates:
    """The rates of a plane's links, after `[[links]]` and then the faults are applied."""
    topology = scenario.topology
    tiers = {
        "host": topology.host_rate_bps,
        "uplink": topology.fabric_rate_bps,
        "core": topology.core_rate_bps,
    }
    every = Target("plane", plane)
    rates: LinkRates = {link: tiers[link[1]] for link in _ways_of(scenario, every)}
    for change in scenario.links:
        if change.kind == "rate":
            rates |= dict.fromkeys(_hit(scenario, change, plane), change.a)
    base = dict(rates)
    for fault in sorted(faults, key=lambda fault: fault.at_ns):
        for link in _hit(scenario, fault, plane):
            slowed = fault.a or base[link] * fault.b / 1e6
            rates[link] = slowed if fault.kind == "rate" and rates[link] else 0.0
    return rates


def _hit(scenario: Scenario, change: TimedFault, plane: int) -> Iterator[LinkWay]:
    """The links of a plane that a change applies to."""
    target = scenario.topology.target(change.target)
    if target.plane in (0, plane):
        yield from _ways_of(scenario, replace(target, plane=plane))


def _ways_of(scenario: Scenario, target: Target) -> Iterator[LinkWay]:
    for link in scenario.topology.links_of(target):
        for way in (target.direction,) if target.direction else (Target.UP, Target.DOWN):
            if link.host is not None:
                yield way, "host", link.host, 0
            elif link.t2 is not None:
                yield way, "core", link.t1 or 0, link.t2
            else:
                yield way, "uplink", link.t0 or 0, link.t1 or 0


_Shared = tuple[LinkWay, ...]
"""Links that count as one."""


def _crossed(scenario: Scenario, flow: FlowSpec) -> list[_Shared]:
    topology = scenario.topology
    keys: list[_Shared] = [
        ((Target.UP, "host", flow.sender, 0),),
        ((Target.DOWN, "host", flow.receiver, 0),),
    ]
    if topology.are_near(flow.sender, flow.receiver):
        return keys
    origin = topology.origin(flow.sender, flow.receiver)
    every = tuple(range(topology.n_paths(flow.receiver, origin)))
    named = () if flow.traffic.paths_until_ns else tuple(sorted(set(flow.traffic.paths)))
    ends = (Target.UP, flow.sender), (Target.DOWN, flow.receiver)
    crosses_core = topology.pod_of(flow.sender) != topology.pod_of(flow.receiver)
    for paths in dict.fromkeys((every, named or every)):
        for way, host in ends:
            t0, pod = topology.t0_of(host), topology.pod_of(host)
            t1s = {path: topology.t1_on(pod, path) for path in paths}
            keys.append(tuple((way, "uplink", t0, t1) for t1 in dict.fromkeys(t1s.values())))
            if crosses_core:
                keys.append(tuple((way, "core", t1, path) for path, t1 in t1s.items()))
    return keys
