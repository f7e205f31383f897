# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario in the simulator, and keeps its result."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from mrc.fabric.faults import Fault
from mrc.fabric.targets import Target, parse_target
from mrc.sim import native
from mrc.sim.curves import Curve, LastHops, Recorded, curves, retransmitted
from mrc.sim.draw import with_seed
from mrc.sim.native import Event, FlowInfo, Message, PortInfo, Simulation
from mrc.sim.results import Stats
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import Flow, make_flows

MAX_SLICES = 2000
"""Number of slices of virtual time in a run. Signals and progress are handled between slices."""

Progress = Callable[[float, int], None]
"""Called with the share of the bytes that have arrived and the virtual time."""


class Result(Struct, frozen=True):
    """The result of one run."""

    scenario: Scenario
    seed: int
    flows: tuple[Flow, ...]
    infos: Sequence[FlowInfo]  # one for each flow
    curves: Sequence[Curve]  # one for each flow
    planes: tuple[tuple[Curve, ...], ...]  # curves of each plane; empty unless a check uses them
    retransmitted: Sequence[tuple[int, ...]]  # packets of each flow, at the times of its curve
    events: Sequence[Event]
    messages: Sequence[Message]
    last_hops: Mapping[tuple[int, int], PortInfo]  # by receiving host and plane
    stats: Stats
    inner_ports: Sequence[PortInfo] = ()  # between switches; empty unless a check uses them

    def of_group(self, group: str) -> list[int]:
        """Numbers of the flows of a group; of all flows if `group` is empty."""
        return [i for i, flow in enumerate(self.flows) if group in ("", flow.traffic.group)]


def run(
    scenario: Scenario,
    seed: int,
    *,
    trace: str | None = None,
    progress: Progress | None = None,
    threads: int = 1,
) -> Result:
    """Runs a scenario once. `trace` names a file that gets one line for each packet. No result
    depends on `threads`, which simulate parts of a large fabric side by side.
    """
    scenario = with_seed(scenario, seed)
    flows = make_flows(scenario, seed)
    with Simulation({**_config(scenario, flows, seed), "threads": threads}) as sim:
        whole = replace(scenario.topology, absent=())
        for name in scenario.topology.absent:
            sim.remove_links(native_target(parse_target(name, whole)))
        for flow in flows:
            sim.add_flow(flow.native())
        for change in scenario.links:
            sim.set_links(_native_fault(change, scenario))
        for fault in scenario.faults:
            sim.add_fault(_native_fault(fault, scenario))
        if trace is not None:
            sim.trace_to(trace)
        _advance(sim, scenario, flows, progress)
        sim.end_trace()
        return _result(sim, scenario, seed, flows)


def baseline_of(scenario: Scenario, kind: str) -> Scenario:
    """The scenario with another transport."""
    return replace(scenario, transport=replace(scenario.transport, kind=kind), baselines=())


def reference_of(scenario: Scenario) -> Scenario:
    """The scenario of the reference run, which checks compare with."""
    groups = scenario.reference.groups
    return replace(
        scenario,
        traffic=tuple(t for t in scenario.traffic if not groups or t.group in groups),
        faults=scenario.faults if scenario.reference.faults else (),
        baselines=(),
    )


def _config(scenario: Scenario, flows: list[Flow], seed: int) -> dict[str, int]:
    topology, transport = asdict(scenario.topology), asdict(scenario.transport)
    kind = transport.pop("kind")
    transport["probed"] = native.PROBING[scenario.transport.probed]
    hashed = scenario.topology.routing if kind == "mrc" else "ecmp"
    topology["routing"] = native.ROUTING[hashed]
    topology["ecn_last_hop"] = int(scenario.topology.ecn_last_hop)
    topology["one_class"] = int(not topology.pop("control_first"))
    topology["trims"] = int(topology.pop("trimming"))
    del topology["mtu"]  # path_mtu sets the size of packets
    del topology["addresses"]  # simulated hosts have no addresses
    del topology["absent"]
    if kind == "ecmp-planes":
        transport["evs_per_plane"] = 1
    ends = Counter(host for flow in flows for host in (flow.sender, flow.receiver))
    return {
        "seed": seed,
        **topology,
        **transport,
        "transport": native.TRANSPORTS.get(kind, native.MRC),
        "single_path": int(kind == "ecmp"),
        "audit": int(scenario.audit and kind != "go-back-n"),
        "sample_ns": scenario.sample_ns,
        "samples_planes": int(scenario.tells_planes_apart),
        "cc_base_rtt_ns": scenario.transport.cc_base_rtt_ns or scenario.base_rtt_ns,
        "memory_bytes": max(flow.traffic.bytes for flow in flows),
        "qps_per_host": max(ends.values()),
    }


def _native_fault(fault: Fault, scenario: Scenario) -> dict[str, int]:
    return {
        **native_target(parse_target(fault.target, scenario.topology)),
        "at_ns": fault.at_ns,
        "until_ns": fault.end_ns,
        "kind": native.KINDS[fault.kind],
        "class": native.CLASSES[fault.packets],
        "a": fault.a,
        "b": fault.b,
    }


def native_target(target: Target) -> dict[str, int]:
    """The members of a `struct mrc_sim_fault` that describe its target."""
    index = {"link": target.host, "t1": target.t1, "t2": target.t2, "core": target.t1}
    return {
        "target": native.TARGETS[target.kind],
        "plane": target.plane,
        "index": index.get(target.kind, target.t0) or 0,
        "t1": (target.t1 if target.kind == "uplink" else 0) or 0,
        "t2": (target.t2 if target.kind == "core" else 0) or 0,
        "direction": native.DIRECTIONS[target.direction],
    }


def _advance(
    sim: Simulation, scenario: Scenario, flows: list[Flow], progress: Progress | None
) -> None:
    slice_ns = max(scenario.until_ns // MAX_SLICES, scenario.sample_ns, 1)
    total = sum(flow.traffic.bytes * flow.writes for flow in flows if flow.traffic.kind != "tcp")
    now_ns, ended = 0, False
    while not ended and now_ns < scenario.until_ns:
        now_ns = min(now_ns + slice_ns, scenario.until_ns)
        ended = sim.run(now_ns)
        if progress is not None:
            share = sim.received_bytes() / total if total else now_ns / scenario.until_ns
            progress(share, now_ns)


def _result(sim: Simulation, scenario: Scenario, seed: int, flows: list[Flow]) -> Result:
    stats = sim.stats()
    recorded = Recorded.of(sim.flows(len(flows)), sim.samples(), stats.now_ns)
    receivers = array("I", sorted({flow.receiver for flow in flows}))
    planes = scenario.topology.plane_numbers()
    apart = planes if scenario.tells_planes_apart else ()
    return Result(
        scenario=scenario,
        seed=seed,
        flows=tuple(flows),
        infos=recorded.infos,
        curves=curves(recorded),
        planes=tuple(tuple(_plane_curves(sim, plane, recorded)) for plane in apart),
        retransmitted=retransmitted(recorded),
        events=sim.events(),
        messages=sim.messages(),
        last_hops=LastHops(receivers, planes, sim.last_hops(receivers, planes)),
        stats=stats,
        inner_ports=sim.inner_ports(planes if scenario.looks_inside else ()),
    )


def _plane_curves(sim: Simulation, plane: int, recorded: Recorded) -> Iterator[Curve]:
    """The curve of each flow in a plane, at the times of its own curve."""
    found, count = sim.plane_samples(plane), len(recorded.infos)
    for i in range(count):
        arrived = found[i::count]
        if len(arrived) < len(recorded.times_ns):
            arrived.append(sim.plane_bytes(i, plane))
        yield Curve(recorded.times_ns, tuple(arrived))
