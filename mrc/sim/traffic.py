# SPDX-License-Identifier: Apache-2.0
"""Makes the flows of a scenario's traffic. Pure: the seed determines everything random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle

from msgspec import Struct
from msgspec.structs import replace

from mrc.errors import ConfigError
from mrc.sim.results import Traffic
from mrc.sim.scenario import Scenario, payload_share


class Flow(Struct, frozen=True):
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
            "depth": self.traffic.depth,
            "tcp_plane": self.traffic.plane,
            "after": 0 if self.after is None else self.after + 1,
            **self._job(),
        }

    def _job(self) -> dict[str, int]:
        if self.job is None:
            return {}
        return {
            "step_writes": self.step_writes,
            "job": self.job[0] + 1,
            "job_flows": self.job[1],
            "pause_ns": self.traffic.compute_ns,
        }

    @property
    def step_writes(self) -> int:
        """Writes of a step."""
        return self.writes // self.traffic.steps


def make_flows(scenario: Scenario, seed: int) -> list[Flow]:
    """All flows of a scenario; the number of a flow is its index."""
    flows: list[Flow] = []
    for traffic in scenario.traffic:
        found: list[Flow] = []
        for hosts in groups(scenario.topology.host_numbers(), traffic, seed):
            first = len(flows) + len(found)
            if traffic.kind == "ring":
                found += _ring(hosts, traffic, first)
                continue
            pairs = _pairs(hosts, traffic, random.Random(seed))
            writes = traffic.writes * traffic.steps
            found += [Flow(a, b, traffic, writes) for a, b in pairs for _ in range(traffic.qps)]
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


def n_flows(hosts: int, traffic: Traffic) -> int:
    """How many flows such traffic has, without making them."""
    members = len(traffic.hosts) or hosts
    match traffic.kind:
        case "all-to-all":
            pairs = members * ((traffic.group_size or members) - 1)
        case "incast":
            pairs = len(traffic.senders) or members - 1
        case "checkpoint":
            pairs = len(traffic.senders) or members - len(traffic.receivers)
        case "permutation" | "ring":
            pairs = members
        case _:
            pairs = len(traffic.pairs)
    return pairs * traffic.qps


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
        n_bytes = n_flows(everyone, traffic) * writes * traffic.bytes
        busy_ns = n_bytes * 8e9 / (_n_receivers(everyone, traffic) * host_bps)
        waits_ns = traffic.compute_ns * traffic.steps + traffic.interval_ns * (writes - 1)
        longest = max(longest, traffic.start_ns + max(busy_ns, waits_ns))
    return min(round(longest), scenario.until_ns)


def _n_receivers(hosts: int, traffic: Traffic) -> int:
    match traffic.kind:
        case "incast":
            return 1
        case "checkpoint":
            return len(traffic.receivers)
        case "pairs":
            return len({receiver for _, receiver in traffic.pairs})
        case _:
            return len(traffic.hosts) or hosts


def _pairs(hosts: list[int], traffic: Traffic, rng: random.Random) -> list[tuple[int, int]]:
    match traffic.kind:
        case "permutation":
            return _permutation(hosts, rng)
        case "all-to-all":
            return [(a, b) for a in hosts for b in hosts if a != b]
        case "incast":
            return [(a, traffic.to) for a in traffic.senders or hosts if a != traffic.to]
        case "checkpoint":
            senders = traffic.senders or [a for a in hosts if a not in traffic.receivers]
            return list(zip(senders, cycle(traffic.receivers), strict=False))
        case _:
            return list(traffic.pairs)


def _permutation(hosts: list[int], rng: random.Random) -> list[tuple[int, int]]:
    """A random cycle: every host sends to one host and receives from one host."""
    order = list(hosts)
    rng.shuffle(order)
    return sorted(zip(order, [*order[1:], order[0]], strict=True))


def _ring(hosts: list[int], traffic: Traffic, first: int) -> list[Flow]:
    """Ring all-reduce: a reduce-scatter and an all-gather, of n - 1 writes each. A write sends the
    data that the write before it brought. Each QP of a host is part of a ring of its own.
    """
    n, qps = len(hosts), traffic.qps
    return [
        Flow(
            host,
            hosts[(i + 1) % n],
            traffic,
            writes=2 * (n - 1) * traffic.steps,
            after=first + (i - 1) % n * qps + qp,
        )
        for i, host in enumerate(hosts)
        for qp in range(qps)
    ]


def line_rate_bps(scenario: Scenario, flows: list[Flow]) -> float:
    """Goodput in bit/s that the links of senders and receivers allow these flows together."""
    links = min(_links(scenario, flows, of) for of in ("sender", "receiver"))
    payload = payload_share(flows[0].traffic, scenario.transport)
    return links * scenario.topology.host_rate_bps * payload


def _links(scenario: Scenario, flows: list[Flow], of: str) -> int:
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
