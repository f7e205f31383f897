# SPDX-License-Identifier: Apache-2.0
"""Scenarios: topology, transport, traffic, faults and checks of an experiment. Pure.

Planes count from 1; hosts, T0s, T1s and flows from 0. Times are nanoseconds from the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from mrc.enums import CcKind, PlaneShares
from mrc.fabric.faults import NEVER, Fault
from mrc.fabric.targets import parse_target
from mrc.fabric.tiers import Tiers

OVERHEAD_BYTES = 126  # of a packet on a link, around the UDP payload; csrc/sim/frame.h
DATA_HEADER_BYTES = 44  # of a write in the middle of a message, ICRC included
SACK_BYTES = 52  # UDP payload of a SACK
TCP_HEADER_BYTES = 24  # csrc/sim/tcp_host.c

TRANSPORTS = ("mrc", "ecmp", "ecmp-planes", "go-back-n")
"""What QPs run on; all but the first are baselines.

ecmp: the same reliability over one path, which switches choose by a hash; ecmp-planes: over one
such path in every plane; go-back-n: in order over one path, as RoCE does it.
"""
PLOTS = ("time", "flows")
TRAFFIC_KINDS = ("permutation", "incast", "all-to-all", "ring", "pairs", "tcp")
MEASURES = (
    "completed", "qp_errors", "goodput", "slowest_flow", "fairness", "last_hop_busy",
    "retransmitted", "spurious", "lost_per_dead_path", "ev_bad_after", "completion",
    "least_plane",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Transport:
    """Every QP."""

    kind: str  # of TRANSPORTS
    path_mtu: int
    mpr: int
    spray: int
    evs_per_plane: int  # 0: all paths
    ev_active_per_plane: int  # of these, in rotation; 0: all
    probed: bool  # whether QPs have probed every EV before they send, as a connect does
    timeout: int
    retry_linear: int
    retry_exp: int
    plane_shares: PlaneShares
    cc: CcKind
    cc_base_rtt_ns: int  # what NSCC is told; 0: the base RTT of the topology
    sack_threshold_bytes: int
    sack_delay_ns: int
    noise_ns: int  # how late hosts may run; floors of patience follow from it


@dataclass(frozen=True, slots=True)
class Traffic:
    """Flows of one kind; mrc.sim.traffic says which."""

    kind: str
    group: str  # name that checks use
    bytes: int  # of a write; of a segment of TCP
    start_ns: int
    pairs: tuple[tuple[int, int], ...]
    paths: tuple[int, ...]  # T1s that the QPs may use in every plane; empty: all
    writes: int = 1  # of each flow; 1 for TCP, which never ends
    depth: int = 1  # writes in the send queue at most
    interval_ns: int = 0  # open loop: mean time between writes; 0: closed loop
    to: int = 0  # incast: the host that all send to
    senders: tuple[int, ...] = ()  # incast: empty for all other hosts
    paths_until_ns: int = 0  # until then, and all others are DENIED; 0: to the end
    plane: int = 0  # of a TCP flow; 0: all


@dataclass(frozen=True, slots=True)
class Check:
    """A value computed from a run, and what it must be."""

    name: str
    measure: str
    group: str  # empty: all flows
    from_ns: int
    to_ns: int  # NEVER: to the end
    of: str  # "line", "reference" or "max-min": what the value is a share of
    share: float  # part of that which can be expected, such as 7/8
    relation: str  # ">=" or "<=": how the value must stand to the target
    target: float
    variants: tuple[str, ...]  # that must meet it, the others only show it; empty: all
    percentile: float = 50.0  # of the completion times of writes
    plane: int = 0  # whose goodput it is; 0: of all
    note: str = ""  # why hosts on an emulated fabric get another value, where they do


@dataclass(frozen=True, slots=True)
class Reference:
    """The run that goodput is compared with: the same, without faults or without some traffic."""

    faults: bool
    groups: tuple[str, ...]  # empty: all


@dataclass(frozen=True, slots=True)
class Scenario:
    """One experiment."""

    name: str
    title: str
    claim: str  # what the paper says of such an experiment; empty: nothing
    topology: Tiers
    transport: Transport
    traffic: tuple[Traffic, ...]
    faults: tuple[Fault, ...]
    checks: tuple[Check, ...]
    reference: Reference
    until_ns: int  # the run ends here, if its writes have not
    sample_ns: int
    audit: bool = False  # check the invariants after every event
    baselines: tuple[str, ...] = ()  # of TRANSPORTS: run along, their values stand beside
    links: tuple[Fault, ...] = ()  # what links have beside their tier: of kind rate or delay
    plot: str = "time"  # goodput over "time", or of all "flows"
    variant: str = ""  # which one of another scenario's this is; empty: none
    variants: tuple[Scenario, ...] = ()  # run instead of this one; empty: it is run itself

    @property
    def parts(self) -> tuple[Scenario, ...]:
        """What is run: the variants, or the scenario itself."""
        return self.variants or (self,)

    @property
    def tells_planes_apart(self) -> bool:
        """Whether a check needs to know what arrived in each plane."""
        return any(check.plane or check.measure == "least_plane" for check in self.checks)

    @property
    def base_rtt_ns(self) -> int:
        return base_rtt_ns(self.topology, self.transport)


def packet_bytes(transport: Transport) -> int:
    """Bytes that a full packet takes on a link."""
    return transport.path_mtu + DATA_HEADER_BYTES + OVERHEAD_BYTES


def payload_share(traffic: Traffic, transport: Transport) -> float:
    """Payload's part of what the full packets of a flow take on a link."""
    if traffic.kind == "tcp":
        return traffic.bytes / (traffic.bytes + TCP_HEADER_BYTES + OVERHEAD_BYTES)
    return transport.path_mtu / packet_bytes(transport)


def base_rtt_ns(topology: Tiers, transport: Transport) -> int:
    """From the sending of a full packet to its SACK, in an empty fabric.

    It goes over a T1, unless a single T0 has all hosts below it.
    """
    links = [(topology.host_delay_ns, topology.host_rate_bps)]
    if topology.t0 > 1:
        links.append((topology.fabric_delay_ns, topology.fabric_rate_bps))
    sent = packet_bytes(transport) + SACK_BYTES + OVERHEAD_BYTES
    ways = 2 * sum(delay for delay, _ in links) + topology.wake_ns
    return round(2 * ways + sent * sum(2 * 8e9 / rate for _, rate in links))


def dead_paths(scenario: Scenario, sender: int, receiver: int) -> int:
    """Paths between two hosts, over all planes, that are silent from the start to the end."""
    topology = scenario.topology
    ends = {topology.t0_of(host) for host in (sender, receiver)}
    dead: set[tuple[int, int | None]] = set()
    for fault in scenario.faults:
        if fault.kind not in ("silent", "down") or fault.at_ns > 0 or fault.until_ns < NEVER:
            continue
        target = parse_target(fault.target, topology, whole=True)
        if target.kind == "t1" or (target.kind == "uplink" and target.t0 in ends):
            dead.add((target.plane, target.t1))
    return len(dead)
