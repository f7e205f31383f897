# SPDX-License-Identifier: Apache-2.0
"""Scenarios: topology, transport, traffic, faults and checks of an experiment. Pure.

Planes are numbered from 1; hosts, T0s, T1s and flows from 0. Times are nanoseconds from the start.
"""

from __future__ import annotations

from msgspec import Struct

from mrc.enums import CcKind, PlaneShares
from mrc.fabric.faults import NEVER, Fault
from mrc.fabric.targets import parse_target
from mrc.fabric.tiers import Tiers

OVERHEAD_BYTES = 126  # of a packet on a link, besides its UDP payload; csrc/sim/frame.h
DATA_HEADER_BYTES = 44  # of a packet in the middle of a message, ICRC included
SACK_BYTES = 52  # UDP payload of a SACK
TCP_HEADER_BYTES = 24  # csrc/sim/tcp_host.c

TRANSPORTS = ("mrc", "ecmp", "ecmp-planes", "go-back-n")
"""The transports of QPs; all except "mrc" are baselines.

ecmp: the reliability of MRC over one path, which switches choose by a hash. ecmp-planes: the same
with one path in every plane. go-back-n: one path, packets in order only, as in RoCE.
"""
PLOTS = ("time", "flows")
TRAFFIC_KINDS = ("permutation", "incast", "all-to-all", "ring", "pairs", "tcp")
MEASURES = (
    "completed", "qp_errors", "goodput", "slowest_flow", "fairness", "last_hop_busy",
    "retransmitted", "spurious", "lost_per_dead_path", "ev_bad_after", "completion",
    "least_plane",
)  # fmt: skip


class Transport(Struct, frozen=True):
    """The parameters of every QP."""

    kind: str  # one of TRANSPORTS
    path_mtu: int
    mpr: int
    spray: int
    evs_per_plane: int  # 0: all paths
    ev_active_per_plane: int  # EVs in rotation, the others are backups; 0: all
    probed: bool  # QPs probe every EV before the run, as a connect does
    timeout: int
    retry_linear: int
    retry_exp: int
    plane_shares: PlaneShares
    cc: CcKind
    cc_base_rtt_ns: int  # base RTT configured for NSCC; 0: the base RTT of the topology
    sack_threshold_bytes: int
    sack_delay_ns: int
    noise_ns: int  # how late hosts may run; sets the minimum timeouts


class Traffic(Struct, frozen=True):
    """Flows of one kind; mrc.sim.traffic makes them."""

    kind: str
    group: str  # name that checks use
    bytes: int  # of a write, or of a TCP segment
    start_ns: int
    pairs: tuple[tuple[int, int], ...]
    paths: tuple[int, ...]  # T1s that the QPs may use in every plane; empty: all
    writes: int = 1  # of each flow; 1 for TCP, whose flows never end
    depth: int = 1  # maximum number of writes in the send queue
    interval_ns: int = 0  # open loop: mean time between writes; 0: closed loop
    to: int = 0  # incast: the receiver
    senders: tuple[int, ...] = ()  # incast: the senders; empty: all other hosts
    paths_until_ns: int = 0  # EVs of other paths are DENIED until then; 0: to the end
    plane: int = 0  # the plane of a TCP flow; 0: all planes


class Check(Struct, frozen=True):
    """A value that is computed from a run, and its target."""

    name: str
    measure: str
    group: str  # empty: all flows
    from_ns: int
    to_ns: int  # NEVER: to the end
    of: str  # the value is a share of "line", "reference" or "max-min"
    share: float  # the expected part of that, such as 7/8
    relation: str  # ">=" or "<=": the required relation of the value to the target
    target: float
    variants: tuple[str, ...]  # variants that must meet it, others only show it; empty: all
    percentile: float = 50.0  # of the completion times of writes
    plane: int = 0  # count the goodput of this plane only; 0: of all planes
    note: str = ""  # why hosts on an emulated fabric give another value


class Reference(Struct, frozen=True):
    """The run that checks compare with: the same scenario, without faults or some traffic."""

    faults: bool  # with the faults
    groups: tuple[str, ...]  # traffic groups; empty: all


class Scenario(Struct, frozen=True):
    """One experiment."""

    name: str
    title: str
    claim: str  # the paper's claim about this experiment; empty: none
    topology: Tiers
    transport: Transport
    traffic: tuple[Traffic, ...]
    faults: tuple[Fault, ...]
    checks: tuple[Check, ...]
    reference: Reference
    until_ns: int  # the run ends here, or sooner when all writes have ended
    sample_ns: int
    audit: bool = False  # check the invariants after every event
    baselines: tuple[str, ...] = ()  # TRANSPORTS that are run too, for comparison
    links: tuple[Fault, ...] = ()  # rates and delays that override those of the tier
    plot: str = "time"  # goodput over "time", or of all "flows"
    variant: str = ""  # the variant's name if this is a variant of a scenario
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


def base_rtt_ns(topology: Tiers, transport: Transport) -> int:
    """Time in ns from the sending of a full packet to its SACK, in an empty fabric.

    The packet crosses a T1, unless all hosts are below a single T0.
    """
    links = [(topology.host_delay_ns, topology.host_rate_bps)]
    if topology.t0 > 1:
        links.append((topology.fabric_delay_ns, topology.fabric_rate_bps))
    sent = packet_bytes(transport) + SACK_BYTES + OVERHEAD_BYTES
    ways = 2 * sum(delay for delay, _ in links) + topology.wake_ns
    return round(2 * ways + sent * sum(2 * 8e9 / rate for _, rate in links))


def dead_paths(scenario: Scenario, sender: int, receiver: int) -> int:
    """Number of paths between two hosts, in all planes, that are dead during the whole run."""
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
