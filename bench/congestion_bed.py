# SPDX-License-Identifier: Apache-2.0
"""A scenario over real sockets: an emulated fabric of its shape, with a process in each host.

The result has the simulator's form, so the same code computes its checks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import congestion_faults
import congestion_tcp
from end import BenchError, End

from mrc.fabric.tiers import LinkChange
from mrc.fabric.topology import Addresses
from mrc.results.sim import Stats
from mrc.sim import native
from mrc.sim.curves import Curve
from mrc.sim.native import Event, FlowInfo, PortInfo
from mrc.sim.run import Result
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import Flow, make_flows
from mrc.testbed import reader as testbed
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric, Shape

HERE = Path(__file__).resolve().parent
_AHEAD_NS = 200_000_000  # from the start command until the flows begin
_LINK_KEYS = {"rate": "rate_bps", "delay": "delay_ns", "loss": "loss", "mtu": "mtu"}
_COUNTED = (
    "received", "sent", "lost", "dropped", "trimmed", "marked", "unroutable", "overloaded",
)  # fmt: skip

Counts = dict[str, dict[str, int]]


class Hosts:
    """A test bed as the `Commands` of its ends."""

    def __init__(self, bed: Testbed) -> None:
        self.bed = bed

    def command(self, host: int, argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        return self.bed.host_command(f"h{host}", list(argv))


def check(scenario: Scenario) -> None:
    """Raises BenchError for features that hosts and an emulated fabric lack."""
    wrong = [
        (scenario.transport.kind != "mrc", f"transport.kind {scenario.transport.kind}"),
        (scenario.transport.evs_per_plane > 0, "transport.evs_per_plane"),
        (any(t.interval_ns for t in scenario.traffic), "traffic.interval"),
        (any(t.kind == "ring" for t in scenario.traffic), "a ring"),
        (not all(congestion_tcp.is_possible(t) for t in scenario.traffic if t.kind == "tcp"),
         "TCP that starts later, or not over T1 0"),
        (scenario.topology.ecn_last_hop, "topology.ecn_last_hop"),
        (any(c.measure == "completion" for c in scenario.checks), "the measure completion"),
        (scenario.topology.routing != "source-routes", "topology.routing ecmp"),
        (not all(congestion_faults.is_possible(fault) for fault in scenario.faults),
         "faults other than rates, and loss, delay and jitter of links"),
    ]  # fmt: skip
    for is_wrong, what in wrong:
        if is_wrong:
            raise BenchError(f"{scenario.name}: {what}: only the simulator supports this")


def is_tcp(flow: Flow) -> bool:
    return flow.traffic.kind == "tcp"


def shape_of(scenario: Scenario) -> Shape:
    """The emulated fabric of a scenario."""
    links = []
    for change in scenario.links:
        value: Any = change.a / 1e6 if change.kind == "loss" else change.a
        links.append(LinkChange(change.target, **{_LINK_KEYS[change.kind]: value}))
    return testbed.shape_of(scenario.topology, Addresses(), tuple(links), Fabric.EMULATED)


def tasks(scenario: Scenario, flows: Sequence[Flow]) -> dict[int, dict[str, Any]]:
    """The task of each host that has flows, by its number."""
    transport = scenario.transport
    common = {
        "until_ns": scenario.until_ns,
        "sample_ns": scenario.sample_ns,
        "planes": scenario.topology.planes,
        "memory_bytes": max(flow.traffic.bytes for flow in flows if not is_tcp(flow)),
        "context": {
            "cc": transport.cc.name,
            "cc_parameters": {
                "link_bps": scenario.topology.host_rate_bps,
                "base_rtt_ns": transport.cc_base_rtt_ns or scenario.base_rtt_ns,
            },
            "plane_shares": transport.plane_shares.name,
            "queues": {"mpr": transport.mpr},
            "retries": {
                "ack_timeout_exponent": transport.timeout,
                "linear": transport.retry_linear,
                "exponential": transport.retry_exp,
            },
            "spraying": {
                "burst_packets": transport.spray,
                "evs_active_per_plane": transport.ev_active_per_plane,
                "mtu_limit": transport.path_mtu,
            },
        },
    }
    found: dict[int, dict[str, Any]] = {}
    for number, flow in enumerate(flows):
        if is_tcp(flow):
            continue
        told = {
            "number": number,
            "to": f"h{flow.receiver}",
            "bytes": flow.traffic.bytes,
            "writes": flow.writes,
            "depth": flow.traffic.depth,
            "start_ns": flow.traffic.start_ns,
            "denied": list(_denied(scenario, flow)),
            "allow_ns": flow.traffic.paths_until_ns,
        }
        for role, host in (("senders", flow.sender), ("receivers", flow.receiver)):
            task = found.setdefault(host, {"senders": [], "receivers": [], **common})
            task[role].append(told)
    return found


def _denied(scenario: Scenario, flow: Flow) -> Iterator[str]:
    """Names of the paths that the flow may not use from the start."""
    topology, receiver = scenario.topology, flow.receiver
    origin = topology.origin(flow.sender, receiver)
    for plane in topology.plane_numbers() if flow.traffic.paths else ():
        for number in range(topology.n_paths(receiver, origin)):
            if number not in flow.traffic.paths:
                yield topology.path(plane, number, receiver, origin).name


def run(scenario: Scenario, seed: int) -> Result:
    """Runs a scenario once. Raises BenchError, or an MrcError if no test bed can be built."""
    check(scenario)
    flows = make_flows(scenario, seed)
    with ExitStack() as stack:
        bed = stack.enter_context(Testbed.of(f"congest{os.getpid()}", shape_of(scenario)))
        congestion_faults.begin(bed, scenario)
        congestion_tcp.prepare(bed, list(filter(is_tcp, flows)))
        program = [sys.executable, str(HERE / "congestion_end")]
        ends = {}
        for host, task in tasks(scenario, flows).items():
            ends[host] = End(Hosts(bed), host, *program, json.dumps(task))
            stack.callback(ends[host].close)
        rivals = [
            congestion_tcp.TcpFlow(stack, Hosts(bed), bed, number, flow)
            for number, flow in enumerate(flows)
            if is_tcp(flow)
        ]
        for end in ends.values():
            end.run("connect")
        before = _counts(bed)
        start_ns = time.monotonic_ns() + _AHEAD_NS
        for end in ends.values():
            end.start("start", start_ns)
        for rival in rivals:
            rival.start(scenario)
        congestion_faults.let_happen(bed, scenario, start_ns)
        answers = [end.result() for end in ends.values()]
        answers += [rival.result(start_ns) for rival in rivals]
        return _result(scenario, seed, flows, answers, _between(before, _counts(bed)))


def _counts(bed: Testbed) -> Counts:
    """Counters of the whole fabric, and of each direction of each link."""
    fabric = bed.counters()
    return {"fabric": {key: fabric[key] for key in _COUNTED}, **bed.links()}


def _between(before: Counts, after: Counts) -> Counts:
    return {
        name: {key: count - before[name][key] for key, count in counts.items()}
        for name, counts in after.items()
    }


def _result(
    scenario: Scenario,
    seed: int,
    flows: list[Flow],
    answers: Sequence[dict[str, Any]],
    moved: Counts,
) -> Result:
    if moved["fabric"]["overloaded"]:
        lost = moved["fabric"]["overloaded"]
        raise BenchError(f"this machine is too slow: the emulator lost {lost} packets, lower rates")
    sent: dict[str, dict[str, int]] = {}
    samples: dict[str, list[list[int]]] = {}
    for answer in answers:
        sent |= answer["sent"]
        samples |= answer["samples"]
    infos, curves = [], []
    planes: list[list[Curve]] = [[] for _ in scenario.topology.plane_numbers()]
    for number in map(str, range(len(flows))):
        times, arrived, *by_plane = zip(*samples[number], strict=True)
        curves.append(Curve(times, arrived))
        for found, counts in zip(planes, by_plane, strict=True):
            found.append(Curve(times, counts))
        told = sent[number]
        repeated = told["spurious_packets"]  # hosts count no other repeated packets
        infos.append(
            FlowInfo(**told, repeated_packets=repeated, received_bytes=arrived[-1], lost_packets=0)
        )
    return Result(
        scenario=scenario,
        seed=seed,
        flows=tuple(flows),
        infos=tuple(infos),
        curves=tuple(curves),
        planes=tuple(map(tuple, planes)),
        retransmitted=(),
        events=tuple(
            Event(info.last_ns, i, 0, 0, native.QP_ERROR, 0, 0, 0)
            for i, info in enumerate(infos)
            if info.failed
        ),
        messages=(),
        last_hops=dict(_last_hops(scenario, flows, moved)),
        stats=_stats(max(curve.times_ns[-1] for curve in curves), moved),
    )


def _last_hops(
    scenario: Scenario, flows: Sequence[Flow], moved: Counts
) -> Iterator[tuple[tuple[int, int], PortInfo]]:
    topology = scenario.topology
    for host in sorted({flow.receiver for flow in flows}):
        t0 = host * topology.t0 // topology.hosts
        for plane in range(1, topology.planes + 1):
            hop = moved[f"t0:{plane}.{t0}>h{host}"]
            counts = {key: hop[key] for key in ("busy_ns", "trimmed", "dropped", "marked")}
            yield (host, plane), PortInfo(**counts, peak_bytes=hop["peak_bytes"])


def _stats(now_ns: int, moved: Counts) -> Stats:
    fabric = moved["fabric"]
    counted = {key: fabric[key] for key in ("lost", "dropped", "trimmed", "marked", "unroutable")}
    unknown = dict.fromkeys(("events", "hops", "corrupt", "completed_writes"), 0)
    return Stats(
        now_ns=now_ns,
        packets=fabric["received"],
        first_lost_ns=None,
        trace="",
        **counted,
        **unknown,
    )
