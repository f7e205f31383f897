# SPDX-License-Identifier: Apache-2.0
"""The flows of a scenario as the tasks of its hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrc.sim.scenario import Scenario
from mrc.sim.traffic import Flow
from mrc.testbed.shape import Shape
from mrc.workload.results import Over
from mrc.workload.task import FlowTask, HostTask

_MANY = 256
_MANY_SAMPLE_NS = 100_000_000  # of many flows: a host reads the counters of each


def unsupported(scenario: Scenario, over: Over) -> str | None:
    """Why these flows cannot run over a transport."""
    for traffic in scenario.traffic:
        if traffic.kind == "tcp" and traffic.paths != (0,):
            return "a TCP flow takes T1 0 of its plane: remove path"
        if traffic.kind == "tcp" or over == "mrc":
            continue
        if traffic.paths:
            return f"paths requires mrc: {over} does not choose its path"
        if over == "iperf3" and (traffic.kind == "ring" or traffic.steps > 1):
            return "iperf3 sends all of a flow at once: it has no rings and no steps"
        if over == "iperf3" and traffic.interval_ns:
            return "iperf3 sends all of a flow at once: it has no interval"
    return None


def over_of(flow: Flow, over: Over) -> Over:
    """TCP of the scenario is TCP whatever the others are."""
    return "tcp" if flow.traffic.kind == "tcp" else over


def tasks(
    scenario: Scenario, flows: Sequence[Flow], shape: Shape, over: Over, seed: int
) -> list[HostTask]:
    """The task of each host that has flows."""
    awaited = {flow.after for flow in flows}
    told = [
        _task(scenario, number, flow, shape, over, is_awaited=number in awaited)
        for number, flow in enumerate(flows)
    ]
    sample_ns = max(scenario.sample_ns, _MANY_SAMPLE_NS if len(flows) > _MANY else 0)
    transport = scenario.transport
    return [
        HostTask(
            host=host,
            seed=seed,
            planes=scenario.topology.planes,
            sample_ns=sample_ns,
            until_ns=scenario.until_ns,
            memory_bytes=max((each.bytes for each in told if not each.is_endless), default=1),
            link_bps=scenario.topology.host_rate_bps,
            base_rtt_ns=transport.cc_base_rtt_ns or scenario.base_rtt_ns,
            transport=transport,
            sends=tuple(told[i] for i, flow in enumerate(flows) if flow.sender == host),
            receives=tuple(told[i] for i, flow in enumerate(flows) if flow.receiver == host),
        )
        for host in sorted({host for flow in flows for host in (flow.sender, flow.receiver)})
    ]


def _task(
    scenario: Scenario, number: int, flow: Flow, shape: Shape, over: Over, *, is_awaited: bool
) -> FlowTask:
    traffic, addresses = flow.traffic, shape.addresses
    source, route = "", str(addresses.host(flow.receiver))
    if traffic.plane:
        source, route = (
            str(addresses.in_plane(host, traffic.plane)) for host in (flow.sender, flow.receiver)
        )
    its = over_of(flow, over)
    whole = flow.writes if its == "iperf3" else 1  # one write that has all bytes
    return FlowTask(
        number=number,
        over=its,
        peer=f"h{flow.receiver}",
        route=(source, route),
        plane=traffic.plane,
        bytes=traffic.bytes * whole,
        writes=flow.writes // whole,
        depth=traffic.depth,
        start_ns=traffic.start_ns + traffic.compute_ns,
        interval_ns=traffic.interval_ns,
        step_writes=flow.step_writes if flow.job else 0,
        after=flow.after,
        notify=is_awaited,
        denied=tuple(_denied(scenario, flow)),
        allow_ns=traffic.paths_until_ns,
        is_endless=traffic.kind == "tcp",
    )


def _denied(scenario: Scenario, flow: Flow) -> Iterator[str]:
    """Names of the paths that the flow may not use from the start."""
    if not flow.traffic.paths or flow.traffic.kind == "tcp":
        return
    topology, receiver = scenario.topology, flow.receiver
    origin = topology.origin(flow.sender, receiver)
    for plane in topology.plane_numbers():
        for number in range(topology.n_paths(receiver, origin)):
            if number not in flow.traffic.paths:
                yield topology.path(plane, number, receiver, origin).name
