# SPDX-License-Identifier: Apache-2.0
"""Makes the flows of a scenario's traffic. Pure: the seed determines everything random."""

from __future__ import annotations

import random

from msgspec import Struct

from mrc.results.sim import Traffic
from mrc.sim.scenario import Scenario, payload_share


class Flow(Struct, frozen=True):
    """Writes from one host to another over a separate QP, or a TCP flow."""

    sender: int
    receiver: int
    traffic: Traffic
    writes: int
    after: int | None = None  # flow whose n-th write must arrive before write n + 1 starts

    def native(self) -> dict[str, int]:
        """The flow as a `struct mrc_sim_flow_config`."""
        return {
            "from": self.sender,
            "to": self.receiver,
            "start_ns": self.traffic.start_ns,
            "interval_ns": self.traffic.interval_ns,
            "paths": sum(1 << path for path in set(self.traffic.paths)),
            "paths_until_ns": self.traffic.paths_until_ns,
            "bytes": self.traffic.bytes,
            "writes": self.writes,
            "depth": self.traffic.depth,
            "tcp_plane": self.traffic.plane,
            "after": 0 if self.after is None else self.after + 1,
        }


def make_flows(scenario: Scenario, seed: int) -> list[Flow]:
    """All flows of a scenario; the number of a flow is its index."""
    flows: list[Flow] = []
    for traffic in scenario.traffic:
        if traffic.kind == "ring":
            flows += _ring(scenario.topology.hosts, traffic, first=len(flows))
            continue
        pairs = _pairs(scenario.topology.hosts, traffic, random.Random(seed))
        flows += [Flow(a, b, traffic, traffic.writes) for a, b in pairs]
    return flows


def n_flows(hosts: int, traffic: Traffic) -> int:
    """How many flows such traffic has, without making them."""
    match traffic.kind:
        case "all-to-all":
            return hosts * (hosts - 1)
        case "incast":
            return len(traffic.senders) or hosts - 1
        case "permutation" | "ring":
            return hosts
        case _:
            return len(traffic.pairs)


def _pairs(hosts: int, traffic: Traffic, rng: random.Random) -> list[tuple[int, int]]:
    match traffic.kind:
        case "permutation":
            return _permutation(hosts, rng)
        case "all-to-all":
            return [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
        case "incast":
            return [(a, traffic.to) for a in traffic.senders or range(hosts) if a != traffic.to]
        case _:
            return list(traffic.pairs)


def _permutation(hosts: int, rng: random.Random) -> list[tuple[int, int]]:
    """A random cycle: every host sends to one host and receives from one host."""
    order = list(range(hosts))
    rng.shuffle(order)
    return sorted(zip(order, [*order[1:], order[0]], strict=True))


def _ring(hosts: int, traffic: Traffic, first: int) -> list[Flow]:
    """Ring all-reduce: 2 (n - 1) steps; a step sends the data that the last step received."""
    return [
        Flow(
            host,
            (host + 1) % hosts,
            traffic,
            writes=2 * (hosts - 1),
            after=first + (host - 1) % hosts,
        )
        for host in range(hosts)
    ]


def line_rate_bps(scenario: Scenario, flows: list[Flow]) -> float:
    """Goodput in bit/s that the links of senders and receivers allow these flows together."""
    hosts = min(len({flow.sender for flow in flows}), len({flow.receiver for flow in flows}))
    planes = 1 if all(flow.traffic.plane for flow in flows) else scenario.topology.planes
    payload = payload_share(flows[0].traffic, scenario.transport)
    return hosts * planes * scenario.topology.host_rate_bps * payload
