# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario in the simulator: makes the flows of its traffic, runs them, and keeps the result
with the samples as the simulator wrote them. The seed determines everything random.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, product
from typing import Any, TypeVar, overload

from msgspec import Struct
from msgspec.structs import asdict, replace

from mrc.errors import ConfigError
from mrc.sim import native
from mrc.sim.native import EngineEvent, FlowInfo, PortInfo, Rows, Sample, Simulation, WriteRecord
from mrc.sim.results import Stats, Traffic
from mrc.sim.scenario import Scenario, payload_share
from mrc.testbed.tiers import TimedFault
from mrc.testbed.topology import Target

# ---- Flows ---------------------------------------------------------------------------------------


class FlowSpec(Struct, frozen=True):
    """Writes from one host to another over a separate QP, or a TCP flow."""

    sender: int
    receiver: int
    traffic: Traffic
    writes: int
    after: int | None = None  # flow whose n-th write must arrive before write n + 1 starts
    job: tuple[int, int] | None = None  # the first of the flows that work in steps; how many

    def native(self) -> dict[str, int]:
        """The flow as a `struct mrc_sim_flow_config`."""
        return {
            "from": self.sender,
            "to": self.receiver,
            "start_ns": self.traffic.start_ns + self.traffic.compute_ns,
            "interval_ns": self.traffic.interval_ns,
            "paths": sum(1 << path for path in set(self.traffic.paths)),
            "paths_until_ns": self.traffic.paths_until_ns,
            "bytes": self.traffic.bytes,
            "writes": self.writes,
            "redundant": int(self.traffic.redundant),
            "depth": self.traffic.depth,
            "tcp_plane": self.traffic.plane,
            "after": 0 if self.after is None else self.after + 1,
        } | (
            {}
            if self.job is None
            else {
                "step_writes": self.step_writes,
                "job": self.job[0] + 1,
                "job_flows": self.job[1],
                "pause_ns": self.traffic.compute_ns,
            }
        )

    @property
    def step_writes(self) -> int:
        """Writes of a step."""
        return self.writes // self.traffic.steps


def make_flows(scenario: Scenario, seed: int) -> list[FlowSpec]:
    """All flows of a scenario; the number of a flow is its index."""
    flows: list[FlowSpec] = []
    for traffic in scenario.traffic:
        found: list[FlowSpec] = []
        for hosts in groups(scenario.topology.host_numbers(), traffic, seed):
            first = len(flows) + len(found)
            if traffic.kind == "ring":
                found += _ring(hosts, traffic, first)
                continue
            pairs = _pairs_of(hosts, traffic, random.Random(seed))
            writes = traffic.writes * traffic.steps
            found += [FlowSpec(a, b, traffic, writes) for a, b in pairs for _ in range(traffic.qps)]
        if traffic.steps > 1:
            job = len(flows), len(found)
            found = [replace(flow, job=job) for flow in found]
        flows += found
    for flow in flows if scenario.topology.absent else ():
        if not scenario.topology.planes_between(flow.sender, flow.receiver):
            raise ConfigError(f"{scenario.name}: h{flow.sender} has no path to h{flow.receiver}")
    return flows


def groups(every: Sequence[int], traffic: Traffic, seed: int) -> list[list[int]]:
    """The groups of hosts among which such traffic flows, of all hosts."""
    members = list(traffic.hosts or every)
    size = traffic.group_size or len(members)
    if traffic.placement == "random":
        random.Random(f"placement {seed}").shuffle(members)
    if traffic.placement == "spread":
        n = len(members) // size
        return [members[i::n] for i in range(n)]
    return [members[i : i + size] for i in range(0, len(members), size)]


def n_flows(hosts: int, traffic: Traffic) -> tuple[int, int]:
    """How many flows such traffic has, and how many hosts receive them, without making them."""
    members = receivers = len(traffic.hosts) or hosts
    match traffic.kind:
        case "all-to-all":
            pairs = members * ((traffic.group_size or members) - 1)
        case "incast":
            pairs, receivers = len(traffic.senders) or members - 1, 1
        case "checkpoint":
            receivers = len(traffic.receivers)
            pairs = len(traffic.senders) or members - receivers
        case "permutation" | "ring":
            pairs = members
        case _:
            pairs, receivers = len(traffic.pairs), len({receiver for _, receiver in traffic.pairs})
    return pairs * traffic.qps, receivers


def least_ns(scenario: Scenario) -> int:
    """A time that a run takes at least, without making its flows: to compute, to wait between
    writes, and to send all bytes at line rate.
    """
    topology = scenario.topology
    everyone = len(topology.host_numbers())
    host_bps = topology.planes * topology.host_rate_bps
    longest = 0.0
    for traffic in scenario.traffic:
        if traffic.kind == "tcp":
            return scenario.until_ns
        writes = traffic.writes * traffic.steps
        if traffic.kind == "ring":
            writes *= 2 * ((traffic.group_size or len(traffic.hosts) or everyone) - 1)
        flows, receivers = n_flows(everyone, traffic)
        busy_ns = flows * writes * traffic.bytes * 8e9 / (receivers * host_bps)
        waits_ns = traffic.compute_ns * traffic.steps + traffic.interval_ns * (writes - 1)
        longest = max(longest, traffic.start_ns + max(busy_ns, waits_ns))
    return min(round(longest), scenario.until_ns)


def _pairs_of(hosts: list[int], traffic: Traffic, rng: random.Random) -> list[tuple[int, int]]:
    match traffic.kind:
        case "permutation":  # a random cycle: every host receives from one host
            order = list(hosts)
            rng.shuffle(order)
            return sorted(zip(order, [*order[1:], order[0]], strict=True))
        case "all-to-all":
            return [(a, b) for a in hosts for b in hosts if a != b]
        case "incast":
            return [(a, traffic.to) for a in traffic.senders or hosts if a != traffic.to]
        case "checkpoint":
            senders = traffic.senders or [a for a in hosts if a not in traffic.receivers]
            return list(zip(senders, cycle(traffic.receivers), strict=False))
        case _:
            return list(traffic.pairs)


def _ring(hosts: list[int], traffic: Traffic, first: int) -> list[FlowSpec]:
    """Ring all-reduce: a reduce-scatter and an all-gather, of n - 1 writes each. A write sends the
    data that the write before it brought. Each QP of a host is part of a ring of its own.
    """
    n, qps = len(hosts), traffic.qps
    return [
        FlowSpec(
            host,
            hosts[(i + 1) % n],
            traffic,
            writes=2 * (n - 1) * traffic.steps,
            after=first + (i - 1) % n * qps + qp,
        )
        for i, host in enumerate(hosts)
        for qp in range(qps)
    ]


def line_rate_bps(scenario: Scenario, flows: list[FlowSpec]) -> float:
    """Goodput in bit/s that the links of senders and receivers allow these flows together."""
    links = min(_n_links(scenario, flows, of) for of in ("sender", "receiver"))
    payload = payload_share(flows[0].traffic, scenario.transport)
    return links * scenario.topology.host_rate_bps * payload


def _n_links(scenario: Scenario, flows: list[FlowSpec], of: str) -> int:
    """How many links the senders or the receivers use."""
    topology = scenario.topology
    if all(flow.traffic.plane for flow in flows):
        return len({getattr(flow, of) for flow in flows})
    if not topology.absent:
        return len({getattr(flow, of) for flow in flows}) * topology.planes
    return len(
        {
            (getattr(flow, of), plane)
            for flow in flows
            for plane in topology.planes_between(flow.sender, flow.receiver)
        }
    )


# ---- Samples -------------------------------------------------------------------------------------


T = TypeVar("T")

AT_HAND = 1024
"""Flows whose samples are kept as objects, because checks read them often. More take memory."""


class Curve(Struct, frozen=True):
    """Payload bytes of a flow that have arrived, over time."""

    times_ns: tuple[int, ...]
    bytes: tuple[int, ...]

    def at(self, now_ns: int) -> float:
        """Bytes at a time, interpolated linearly between two samples."""
        i = bisect_right(self.times_ns, now_ns)
        if i == len(self.times_ns):
            return self.bytes[-1]
        before_ns, before = (self.times_ns[i - 1], self.bytes[i - 1]) if i else (0, 0)
        part = (now_ns - before_ns) / (self.times_ns[i] - before_ns)
        return before + part * (self.bytes[i] - before)


class Recorded(Struct, frozen=True):
    """The samples of all flows, taken at the same times, and the end of the run as a last one."""

    infos: Rows[FlowInfo]
    samples: Rows[Sample]
    times_ns: tuple[int, ...]

    @classmethod
    def of(cls, infos: Rows[FlowInfo], samples: Rows[Sample], end_ns: int) -> Recorded:
        times = samples.column("now_ns", 0, len(infos))
        return cls(infos, samples, (*times, *([end_ns] if not times or times[-1] < end_ns else ())))

    def column(self, name: str, flow: int) -> tuple[int, ...]:
        """A field of a flow at each time."""
        found = self.samples.column(name, flow, len(self.infos))
        if len(found) < len(self.times_ns):
            found.append(getattr(self.infos[flow], name))
        return tuple(found)

    def curve(self, flow: int) -> Curve:
        return Curve(self.times_ns, self.column("received_bytes", flow))

    def retransmitted(self, flow: int) -> tuple[int, ...]:
        """The packets that a flow sent again, at the times of its curve."""
        return self.column("retransmitted_packets", flow)

    def each(self, make: Callable[[Recorded, int], T]) -> Sequence[T]:
        """What a method of this class makes of each flow."""
        found = _OfFlows(self, make)
        return tuple(found) if len(found) <= AT_HAND else found


class _OfFlows(Sequence[T]):
    """Something of each flow, made when it is read."""

    def __init__(self, recorded: Recorded, make: Callable[[Recorded, int], T]) -> None:
        self._recorded, self._make = recorded, make

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        flows = range(len(self))[at]
        if isinstance(flows, range):
            return [self[i] for i in flows]
        return self._make(self._recorded, flows)

    def __len__(self) -> int:
        return len(self._recorded.infos)


class LastHops(Mapping[tuple[int, int], PortInfo]):
    """The port of a T0 to each host that receives, by host and plane; made when it is read."""

    def __init__(self, hosts: array[int], planes: range, ports: Rows[PortInfo]) -> None:
        self._hosts, self._planes, self._ports = hosts, planes, ports

    def __getitem__(self, key: tuple[int, int]) -> PortInfo:
        host, plane = key
        at = bisect_left(self._hosts, host)
        if plane not in self._planes or at == len(self._hosts) or self._hosts[at] != host:
            raise KeyError(key)
        return self._ports[at * len(self._planes) + self._planes.index(plane)]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return product(self._hosts, self._planes)

    def __len__(self) -> int:
        return len(self._ports)


# ---- Runs ----------------------------------------------------------------------------------------


MAX_SLICES = 2000
"""Number of slices of virtual time in a run. Signals and progress are handled between slices."""

Progress = Callable[[float, int], None]
"""Called with the share of the bytes that have arrived and the virtual time."""


class SimRun(Struct, frozen=True):
    """The result of one run."""

    scenario: Scenario
    seed: int
    flows: tuple[FlowSpec, ...]
    infos: Sequence[FlowInfo]  # one for each flow
    curves: Sequence[Curve]  # one for each flow
    planes: tuple[tuple[Curve, ...], ...]  # curves of each plane; empty unless a check uses them
    retransmitted: Sequence[tuple[int, ...]]  # packets of each flow, at the times of its curve
    events: Sequence[EngineEvent]
    messages: Sequence[WriteRecord]
    last_hops: Mapping[tuple[int, int], PortInfo]  # by receiving host and plane
    stats: Stats
    inner_ports: Sequence[PortInfo] = ()  # between switches; empty unless a check uses them

    def of_group(self, group: str) -> list[int]:
        """Numbers of the flows of a group; of all flows if `group` is empty."""
        return [i for i, flow in enumerate(self.flows) if group in ("", flow.traffic.group)]

    def goodput_bps(self, flow: int) -> float:
        """Of a flow, from its first post to its last completion, or to the end of the run."""
        info = self.infos[flow]
        has_ended = info.completed == self.flows[flow].writes
        span_ns = (info.last_ns if has_ended else self.stats.now_ns) - info.first_ns
        return info.received_bytes * 8e9 / span_ns if span_ns > 0 else 0.0


def run(
    scenario: Scenario,
    seed: int,
    *,
    trace: str | None = None,
    progress: Progress | None = None,
    threads: int = 1,
) -> SimRun:
    """Runs a scenario once. `trace` names a file that gets one line for each packet. No result
    depends on `threads`, which simulate parts of a large fabric side by side.
    """
    scenario = scenario.with_seed(seed)
    flows = make_flows(scenario, seed)
    with Simulation({**_config(scenario, flows, seed), "threads": threads}) as sim:
        whole = replace(scenario.topology, absent=())
        for name in scenario.topology.absent:
            sim.remove_links(native_target(whole.target(name)))
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


def _config(scenario: Scenario, flows: list[FlowSpec], seed: int) -> dict[str, Any]:
    fabric, transport = scenario.topology, asdict(scenario.transport)
    kind = transport.pop("kind")
    transport["backups"] = sum(1 << plane - 1 for plane in set(scenario.transport.backups))
    transport["probed"] = native.PROBING[scenario.transport.probed]
    if kind == "ecmp-planes":
        transport["evs_per_plane"] = 1
    ends = Counter(host for flow in flows for host in (flow.sender, flow.receiver))
    return {
        "seed": seed,
        "topology": {
            "trims": int(fabric.trimming),
            **{name: getattr(fabric, name) for name in native.TOPOLOGY if name != "trims"},
        },
        "routing": native.ROUTING[fabric.routing if kind == "mrc" else "ecmp"],
        "ecn_last_hop": int(fabric.ecn_last_hop),
        "one_class": int(not fabric.control_first),
        "wake_ns": fabric.wake_ns,
        "wake_noise_ns": fabric.wake_noise_ns,
        "sndbuf_bytes": fabric.sndbuf_bytes,
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


def _native_fault(fault: TimedFault, scenario: Scenario) -> dict[str, int]:
    return {
        **native_target(scenario.topology.target(fault.target)),
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
    sim: Simulation, scenario: Scenario, flows: list[FlowSpec], progress: Progress | None
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


def _result(sim: Simulation, scenario: Scenario, seed: int, flows: list[FlowSpec]) -> SimRun:
    stats = sim.stats()
    recorded = Recorded.of(sim.flows(len(flows)), sim.samples(), stats.now_ns)
    receivers = array("I", sorted({flow.receiver for flow in flows}))
    planes = scenario.topology.plane_numbers()
    apart = planes if scenario.tells_planes_apart else ()
    return SimRun(
        scenario=scenario,
        seed=seed,
        flows=tuple(flows),
        infos=recorded.infos,
        curves=recorded.each(Recorded.curve),
        planes=tuple(tuple(_plane_curves(sim, plane, recorded)) for plane in apart),
        retransmitted=recorded.each(Recorded.retransmitted),
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
