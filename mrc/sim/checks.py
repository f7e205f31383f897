# SPDX-License-Identifier: Apache-2.0
"""The checks of a scenario: computes values from its runs, and compares them with targets.

A value is None if the run cannot give it, for example the time of an event that did not happen.
None misses every target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct

from mrc.enums import EvState
from mrc.fabric.faults import NEVER
from mrc.sim import jobs, maxmin, native
from mrc.sim.curves import Curve
from mrc.sim.jobs import percentile
from mrc.sim.run import Result
from mrc.sim.scenario import Check, Scenario, dead_paths
from mrc.sim.traffic import line_rate_bps

Values = tuple[float | None, ...]
"""One value for each check of a scenario."""


class Measured(Struct, frozen=True):
    """The check values of one seed: for the run, and for each of its baselines."""

    seed: int
    values: Values
    baselines: dict[str, Values]


class Outcome(Struct, frozen=True):
    """The result of a check, as in JSON. Values are medians over the seeds."""

    scenario: str
    name: str
    value: float | None
    relation: str  # ">=" or "<="
    target: float | None  # None: the value is only shown
    met: bool | None
    low: float | None  # lower quartile of the seeds
    high: float | None  # upper quartile
    baselines: dict[str, float | None]


def needs_reference(scenario: Scenario) -> bool:
    return any(check.of == "reference" for check in scenario.checks)


def values(scenario: Scenario, result: Result, reference: Result | None) -> Values:
    """The values of a scenario's checks in one run, of the scenario or of a baseline."""
    return tuple(_value(check, result, reference) for check in scenario.checks)


def evaluate(scenario: Scenario, runs: Sequence[Measured]) -> list[Outcome]:
    """The results of a scenario's checks over its seeds. None counts as the worst value."""
    return [_outcome(scenario, number, runs) for number in range(len(scenario.checks))]


def _outcome(scenario: Scenario, number: int, runs: Sequence[Measured]) -> Outcome:
    check = scenario.checks[number]
    low, middle, high = _quartiles(check, [one.values[number] for one in runs])
    is_demanded = not check.variants or scenario.variant in check.variants
    met = middle is not None and (
        middle >= check.target if check.relation == ">=" else middle <= check.target
    )
    return Outcome(
        scenario=scenario.name,
        name=", ".join(filter(None, (check.name, scenario.variant))),
        value=middle,
        relation=check.relation,
        target=check.target if is_demanded else None,
        met=met if is_demanded else None,
        low=low,
        high=high,
        baselines={
            kind: _quartiles(check, [one.baselines[kind][number] for one in runs])[1]
            for kind in scenario.baselines
        },
    )


def _quartiles(check: Check, found: Sequence[float | None]) -> tuple[float | None, ...]:
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


def _value(check: Check, result: Result, reference: Result | None) -> float | None:
    if check.measure == "goodput":
        return _goodput_share(check, result, reference)
    if check.measure in _TIMES:
        return _time(check, result, reference)
    if check.measure == "failure_convergence":
        return _failure_convergence(check, result, reference)
    measure: Callable[[Check, Result], float | None] = _MEASURES[check.measure]
    return measure(check, result)


def _window(check: Check, result: Result) -> tuple[int, int]:
    """The time of a check, cut where the first flow of its group had nothing left to send."""
    ends = []
    for i in result.of_group(check.group):
        info = result.infos[i]
        over = info.completed + info.failed == result.flows[i].writes
        ends.append(info.last_ns if over else result.stats.now_ns)
    return check.from_ns, min(check.to_ns, *ends)


def _bytes(result: Result, flow: int, window: tuple[int, int], plane: int = 0) -> float:
    curve = (result.planes[plane - 1] if plane else result.curves)[flow]
    return curve.at(window[1]) - curve.at(window[0])


def goodput_bps(check: Check, result: Result) -> float | None:
    """Payload bits per second of a group that arrived in the time of a check."""
    window = _window(check, result)
    if window[1] <= window[0]:
        return None
    numbers = result.of_group(check.group)
    arrived = sum(_bytes(result, i, window, check.plane) for i in numbers)
    return arrived * 8e9 / (window[1] - window[0])


def _goodput_share(check: Check, result: Result, reference: Result | None) -> float | None:
    goodput = goodput_bps(check, result)
    whole = _line_bps(check, result)
    if check.of == "reference":
        assert reference is not None
        # The reference may end sooner: its own window is cut at its own end.
        whole = goodput_bps(check, reference)
    elif check.of == "max-min":
        planes = (check.plane,) if check.plane else result.scenario.topology.plane_numbers()
        window = _window(check, result)
        fair = maxmin.goodputs_bps(result.scenario, result.flows, *window, planes)
        whole = sum(fair[i] for i in result.of_group(check.group))
    return None if goodput is None or not whole else goodput / (whole * check.share)


def _line_bps(check: Check, result: Result) -> float | None:
    flows = [result.flows[i] for i in result.of_group(check.group)]
    whole = line_rate_bps(result.scenario, flows)
    is_part = check.plane and not all(flow.traffic.plane for flow in flows)
    return whole / result.scenario.topology.planes if is_part else whole


def _failure_convergence(check: Check, result: Result, reference: Result | None) -> float | None:
    """Base RTTs whose goodput is missing, of what the reference leads to expect: the loss-derived
    convergence time of RFC 6412.
    """
    assert reference is not None
    share, window = _goodput_share(check, result, reference), _window(check, result)
    if share is None:
        return None
    return max(0.0, 1 - share) * (window[1] - window[0]) / result.scenario.base_rtt_ns


def _time(check: Check, result: Result, reference: Result | None) -> float | None:
    """A time, of the ideal one or of that of the reference."""
    measure, ideal = _TIMES[check.measure]
    time_ns, whole = measure(check, result), ideal(check, result)
    if check.of == "reference":
        assert reference is not None
        whole = measure(check, reference)
    return None if time_ns is None or not whole else time_ns / (whole * check.share)


def completion_ns(check: Check, result: Result) -> float | None:
    """Percentile of the durations of the writes that became due in the time of a check.

    This is the least duration within which `check.percentile` percent of them completed.
    """
    numbers = set(result.of_group(check.group))
    times = sorted(
        message.done_ns - message.wanted_ns
        for message in result.messages
        if message.flow in numbers and check.from_ns <= message.wanted_ns < check.to_ns
    )
    return percentile(times, check.percentile) if times else None


def _completed(check: Check, result: Result) -> float | None:
    numbers = [i for i in result.of_group(check.group) if result.flows[i].traffic.kind != "tcp"]
    if not numbers:
        return None
    wanted = sum(result.flows[i].writes for i in numbers)
    return sum(result.infos[i].completed for i in numbers) / wanted


def _qp_errors(check: Check, result: Result) -> float:
    numbers = set(result.of_group(check.group))
    return sum(event.type == native.QP_ERROR and event.flow in numbers for event in result.events)


def flow_goodput_bps(result: Result, flow: int) -> float:
    """Goodput of a flow from its first post to its last completion, or to the end of the run."""
    info = result.infos[flow]
    last_ns = info.last_ns if info.completed == result.flows[flow].writes else result.stats.now_ns
    span_ns = last_ns - info.first_ns
    return info.received_bytes * 8e9 / span_ns if span_ns > 0 else 0.0


def _slowest_flow(check: Check, result: Result) -> float:
    return min(
        flow_goodput_bps(result, i) / line_rate_bps(result.scenario, [result.flows[i]])
        for i in result.of_group(check.group)
    )


def _fairness(check: Check, result: Result) -> float | None:
    """Jain's index: 1 if all flows of the group received the same number of bytes."""
    window = _window(check, result)
    if window[1] <= window[0]:
        return None
    shares = [_bytes(result, i, window) for i in result.of_group(check.group)]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def _least_plane(check: Check, result: Result) -> float | None:
    """Payload of the plane that carried least, as a share of the mean of all planes."""
    window = _window(check, result)
    if window[1] <= window[0]:
        return None
    planes = result.scenario.topology.plane_numbers()
    numbers = result.of_group(check.group)
    arrived = [sum(_bytes(result, i, window, plane) for i in numbers) for plane in planes]
    return min(arrived) * len(arrived) / sum(arrived) if sum(arrived) else None


def _qps_hit(check: Check, result: Result) -> float:
    """Share of the QPs that lost packets."""
    numbers = result.of_group(check.group)
    return sum(result.infos[i].lost_packets > 0 for i in numbers) / len(numbers)


def _lost_per_qp(check: Check, result: Result) -> float:
    lost = sorted(_lost(check, result, i) for i in result.of_group(check.group))
    return percentile(lost, check.percentile)


def _lost(check: Check, result: Result, flow: int) -> float:
    """Packets that a flow lost; in a part of the run: that it sent again."""
    if (check.from_ns, check.to_ns) == (0, NEVER):
        return result.infos[flow].lost_packets
    again = Curve(result.curves[flow].times_ns, result.retransmitted[flow])
    return again.at(check.to_ns) - again.at(check.from_ns)


def _step_time(check: Check, result: Result) -> float | None:
    times = jobs.step_times_ns(result, result.of_group(check.group))
    return None if times is None else percentile(sorted(times), check.percentile)


def _ideal_step(check: Check, result: Result) -> float:
    return jobs.ideal_step_ns(result, result.of_group(check.group))


def _job(check: Check, result: Result) -> float | None:
    return jobs.job_ns(result, result.of_group(check.group))


def _ideal_job(check: Check, result: Result) -> float:
    return _ideal_step(check, result) * result.flows[result.of_group(check.group)[0]].traffic.steps


def _bus_bandwidth(check: Check, result: Result) -> float | None:
    return jobs.bus_bandwidth(result, result.of_group(check.group))


def _last_hop_busy(check: Check, result: Result) -> float:
    """Share of the time in which the ports to the group's receivers were sending."""
    receivers = {result.flows[i].receiver for i in result.of_group(check.group)}
    has_link = result.scenario.topology.has_link
    busy = [
        port.busy_ns
        for (host, plane), port in result.last_hops.items()
        if host in receivers and has_link(host, plane)
    ]
    return sum(busy) / len(busy) / _sending_ns(check, result)


def _sending_ns(check: Check, result: Result) -> int:
    """From the first post of the group to its last completion."""
    infos = [result.infos[i] for i in result.of_group(check.group)]
    return max(max(info.last_ns for info in infos) - min(info.first_ns for info in infos), 1)


def _inner_busy(check: Check, result: Result) -> float | None:
    busy = sorted(port.busy_ns for port in result.inner_ports)
    return percentile(busy, check.percentile) / _sending_ns(check, result) if busy else None


def _inner_queue(check: Check, result: Result) -> float | None:
    """The longest queue of a link, as base RTTs in which an uplink sends it."""
    longest = sorted(port.peak_bytes for port in result.inner_ports)
    if not longest:
        return None
    queue_ns = (
        percentile(longest, check.percentile) * 8e9 / result.scenario.topology.fabric_rate_bps
    )
    return queue_ns / result.scenario.base_rtt_ns


def _sent_again(check: Check, result: Result) -> float:
    numbers = result.of_group(check.group)
    sent = sum(result.infos[i].sent_packets for i in numbers)
    return sum(result.infos[i].retransmitted_packets for i in numbers) / max(sent, 1)


def _spurious(check: Check, result: Result) -> float:
    """Repeated packets that the simulator counted at receivers, whatever senders declared lost."""
    return sum(result.infos[i].repeated_packets for i in result.of_group(check.group))


def _lost_per_dead_path(check: Check, result: Result) -> float | None:
    """Packets that the worst flow lost, per path of it that was dead from the start."""
    shares = []
    for i in result.of_group(check.group):
        flow = result.flows[i]
        dead = dead_paths(result.scenario, flow.sender, flow.receiver)
        if dead:
            shares.append(result.infos[i].lost_packets / dead)
    return max(shares, default=None)


def _ev_changes(check: Check, result: Result) -> float:
    """How often EVs of the group became GOOD, ASSUMED_BAD or DENIED in the time of a check."""
    numbers = set(result.of_group(check.group))
    return sum(
        event.type == native.EV_STATE
        and event.flow in numbers
        and check.from_ns <= event.now_ns < check.to_ns
        for event in result.events
    )


def _ev_bad_after(check: Check, result: Result) -> float | None:
    """Base RTTs from the first packet that a fault dropped to the first EV in ASSUMED_BAD."""
    numbers = set(result.of_group(check.group))
    bad = [
        event.now_ns
        for event in result.events
        if event.type == native.EV_STATE
        and event.status == EvState.ASSUMED_BAD
        and event.flow in numbers
    ]
    if not bad or not result.stats.first_lost_ns:
        return None
    return (min(bad) - result.stats.first_lost_ns) / result.scenario.base_rtt_ns


_TIMES: dict[str, tuple[Callable[[Check, Result], float | None], ...]] = {
    "completion": (completion_ns, lambda _, result: result.scenario.base_rtt_ns),
    "step_time": (_step_time, _ideal_step),
    "job_completion": (_job, _ideal_job),
}
"""The measures of times, and the ideal of each."""

_MEASURES: dict[str, Callable[[Check, Result], float | None]] = {
    "completed": _completed,
    "qp_errors": _qp_errors,
    "slowest_flow": _slowest_flow,
    "fairness": _fairness,
    "last_hop_busy": _last_hop_busy,
    "retransmitted": _sent_again,
    "spurious": _spurious,
    "lost_per_dead_path": _lost_per_dead_path,
    "ev_bad_after": _ev_bad_after,
    "ev_changes": _ev_changes,
    "least_plane": _least_plane,
    "qps_hit": _qps_hit,
    "lost_per_qp": _lost_per_qp,
    "bus_bandwidth": _bus_bandwidth,
    "inner_busy": _inner_busy,
    "inner_queue": _inner_queue,
}
