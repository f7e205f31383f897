# SPDX-License-Identifier: Apache-2.0
"""Scenarios: topology, transport, traffic, faults and checks of an experiment. Pure.

Planes are numbered from 1; hosts, switches and flows from 0. Times are nanoseconds from the start.
"""

from __future__ import annotations

from typing import get_args

from msgspec import Struct

from mrc.fabric.faults import Tiers
from mrc.fabric.targets import DOWN, UP, Target, parse_target
from mrc.sim.results import (
    Parameters,
    Placement,
    Plot,
    Traffic,
    TrafficKind,
    Transport,
    TransportKind,
)

OVERHEAD_BYTES = 126  # of a packet on a link, besides its UDP payload; csrc/sim/frame.h
DATA_HEADER_BYTES = 44  # of a packet in the middle of a message, ICRC included
SACK_BYTES = 52  # UDP payload of a SACK
TCP_HEADER_BYTES = 24  # csrc/sim/tcp_host.c

TRANSPORTS: tuple[TransportKind, ...] = get_args(TransportKind)
"""The transports of QPs; all except the first, "mrc", are baselines."""
PLOTS: tuple[Plot, ...] = get_args(Plot)
TRAFFIC_KINDS: tuple[TrafficKind, ...] = get_args(TrafficKind)
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
GROUPED = ("permutation", "all-to-all", "ring")
"""The kinds of traffic within groups of hosts."""
MEASURES = (
    "completed", "qp_errors", "goodput", "slowest_flow", "fairness", "last_hop_busy",
    "retransmitted", "spurious", "lost_per_dead_path", "ev_bad_after", "completion",
    "least_plane", "qps_hit", "lost_per_qp", "step_time", "job_completion", "bus_bandwidth",
    "failure_convergence", "inner_busy", "inner_queue", "ev_changes",
)  # fmt: skip
INNER = ("inner_busy", "inner_queue")
"""The measures of links between switches."""
PERCENTILES = ("completion", "lost_per_qp", "step_time", *INNER)
"""The measures of which a check can take a percentile."""


class Check(Struct, frozen=True):
    """A value that is computed from a run, and its target."""

    name: str
    measure: str
    group: str  # empty: all flows
    from_ns: int
    to_ns: int  # NEVER of mrc.fabric.faults: to the end
    of: str  # the value is compared with "line", "reference" or "max-min"
    share: float  # the expected part of that, such as 7/8
    relation: str  # ">=" or "<=": the required relation of the value to the target
    target: float
    variants: tuple[str, ...]  # variants that must meet it, others only show it; empty: all
    percentile: float = 50.0  # of one of PERCENTILES
    plane: int = 0  # count the goodput of this plane only; 0: of all planes
    note: str = ""  # why hosts on an emulated fabric give another value


class Scenario(Parameters, frozen=True, kw_only=True):
    """One experiment."""

    topology: Tiers
    checks: tuple[Check, ...]
    variants: tuple[Scenario, ...] = ()  # they run instead of this scenario; empty: none

    @property
    def parts(self) -> tuple[Scenario, ...]:
        """The scenarios that run: the variants, or the scenario itself."""
        return self.variants or (self,)

    @property
    def tells_planes_apart(self) -> bool:
        """Whether a check requires the bytes that arrived in each plane."""
        return any(check.plane or check.measure == "least_plane" for check in self.checks)

    @property
    def looks_inside(self) -> bool:
        """Whether a check requires the links between switches."""
        return any(check.measure in INNER for check in self.checks)

    @property
    def base_rtt_ns(self) -> int:
        return base_rtt_ns(self.topology, self.transport)


def packet_bytes(transport: Transport) -> int:
    """Bytes that a full packet takes on a link."""
    return transport.path_mtu + DATA_HEADER_BYTES + OVERHEAD_BYTES


def payload_share(traffic: Traffic, transport: Transport) -> float:
    """Payload of a full packet of a flow, as a share of its bytes on a link."""
    if traffic.kind == "tcp":
        return traffic.bytes / (traffic.bytes + TCP_HEADER_BYTES + OVERHEAD_BYTES)
    return transport.path_mtu / packet_bytes(transport)


def evs_of_qp(topology: Tiers, transport: Transport) -> int:
    """EVs of a QP between the hosts with the most paths."""
    paths = topology.most_paths
    return topology.planes * min(paths, transport.evs_per_plane or paths)


def base_rtt_ns(topology: Tiers, transport: Transport) -> int:
    """Time in ns from the sending of a full packet to its SACK, in an empty fabric.

    The packet crosses a T1, unless all hosts are below a single T0, and with T2s one of them.
    """
    links = [(topology.host_delay_ns, topology.host_rate_bps)]
    if topology.t0 > 1:
        links.append((topology.fabric_delay_ns, topology.fabric_rate_bps))
    if topology.t2:
        links.append((topology.core_delay_ns, topology.core_rate_bps))
    sent = packet_bytes(transport) + SACK_BYTES + OVERHEAD_BYTES
    ways = 2 * sum(delay for delay, _ in links) + topology.wake_ns
    return round(2 * ways + sent * sum(2 * 8e9 / rate for _, rate in links))


def dead_paths(scenario: Scenario, sender: int, receiver: int) -> int:
    """Number of paths between two hosts, in all planes, that are dead during the whole run, because
    a switch above the T0s, or a link between switches, is.
    """
    topology = scenario.topology
    origin = topology.origin(sender, receiver)
    dead: set[tuple[int, int]] = set()
    for fault in scenario.faults:
        if fault.kind not in ("silent", "down") or fault.at_ns > 0 or fault.until_ns is not None:
            continue
        target = parse_target(fault.target, topology)
        dead |= {
            (target.plane, number)
            for number in range(topology.n_paths(receiver, origin) if origin is not None else 0)
            if _crosses(topology, target, (sender, receiver), number)
        }
    return sum(topology.has_path(sender, receiver, *path) for path in dead)


def _crosses(topology: Tiers, target: Target, ends: tuple[int, int], number: int) -> bool:
    """Whether a path between two T0s goes over a switch above them, or a link of such a switch."""
    if target.kind not in ("t1", "t2", "uplink", "core"):
        return False
    sender, receiver = ends
    is_far = topology.pod_of(sender) != topology.pod_of(receiver)
    if target.t2 is not None and not (is_far and target.t2 == number):
        return False
    return target.kind == "t2" or any(
        target.t1 == topology.t1_on(topology.pod_of(host), number)
        and target.t0 in (None, topology.t0_of(host))
        and target.direction in ("", way)
        for host, way in ((sender, UP), (receiver, DOWN))
    )
