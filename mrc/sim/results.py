# SPDX-License-Identifier: Apache-2.0
"""What `mrc sim` prints as JSON, and the lines that sweeps write. Times count from the start of a
run, in virtual time.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from mrc.enums import CcKind, PlaneShares
from mrc.results import KEYS, Result
from mrc.testbed.tiers import Routing, TimedFault

TransportKind = Literal["mrc", "ecmp", "ecmp-planes", "go-back-n"]
TrafficKind = Literal["permutation", "incast", "checkpoint", "all-to-all", "ring", "pairs", "tcp"]
Placement = Literal["packed", "spread", "random"]
Plot = Literal["time", "flows"]


class TopologyParameters(Struct, frozen=True, kw_only=True, rename=KEYS):
    """The fabric. Rates, delays and queues are of each link and each switch port."""

    hosts: int
    """Number of hosts."""
    planes: int
    """Number of planes."""
    t0: int
    """T0s of each plane."""
    t1: int
    """T1s of each plane."""
    pods: int
    """Pods of each plane; 1 without T2s."""
    t2: int
    """T2s of each plane; 0: two tiers."""
    routing: Routing
    """source-routes: the sender chooses the path; ecmp: switches do, by a hash."""
    host_rate_bps: int
    """Rate of a link between host and T0."""
    fabric_rate_bps: int
    """Rate of a link between T0 and T1."""
    core_rate_bps: int
    """Rate of a link between T1 and T2."""
    host_delay_ns: int
    """Delay of a link between host and T0."""
    fabric_delay_ns: int
    """Delay of a link between T0 and T1."""
    core_delay_ns: int
    """Delay of a link between T1 and T2."""
    jitter_ns: int
    """Random delay added at most."""
    buffer_bytes: int
    """Queue of a switch port; 0: no limit."""
    ecn_low_bytes: int
    """Queue from which packets are marked at random."""
    ecn_high_bytes: int
    """Queue from which every packet is marked; 0: no marking."""
    ecn_last_hop: bool
    """Ports to hosts mark, too."""
    trimming: bool
    """A full queue trims packets; false: it drops them."""
    control_first: bool
    """Every queue sends control packets before data; false: in order of arrival."""
    wake_ns: int
    """Time from the arrival of a packet until the host's driver runs."""
    wake_noise_ns: int
    """Random time added to it at most."""
    sndbuf_bytes: int
    """Send buffer of a socket."""
    mtu: int
    """MTU of all links."""
    absent: tuple[str, ...]
    """Links that do not exist."""


class Transport(Struct, frozen=True, kw_only=True, rename=KEYS):
    """Parameters of every QP."""

    kind: TransportKind
    """mrc, or a baseline: ecmp (the reliability of MRC over one path, which switches choose by a
    hash), ecmp-planes (one such path in each plane), go-back-n (in order over one path, as in
    RoCE).
    """
    path_mtu: int
    """Payload of a packet at most."""
    mpr: int
    """Packets, counted by PSN, that may be in flight (maximum PSN range)."""
    spray: int
    """Packets that a burst sends on one EV."""
    evs_per_plane: int
    """EVs of each plane; 0: all paths."""
    ev_active_per_plane: int
    """EVs of each plane that are in rotation; 0: all."""
    probed: bool | Literal["computed"]
    """QPs probe every EV before they send; computed: they have what probes would find, and send
    none.
    """
    timeout: int
    """Local timeout, as the exponent of 1.024 us * 2^timeout."""
    retry_linear: int
    """Retransmissions of a packet before its timeout begins to double."""
    retry_exp: int
    """Retransmissions of a packet with a doubled timeout before the QP fails."""
    plane_shares: PlaneShares
    """How the planes share the load."""
    backups: tuple[int, ...]
    """Planes that carry data only while no other plane can."""
    cc: CcKind
    """Congestion control."""
    cc_base_rtt_ns: int
    """Base RTT that the congestion control is given; 0: that of the topology."""
    sack_threshold_bytes: int
    """Bytes received after which the receiver sends a SACK."""
    sack_delay_ns: int
    """Time after which the receiver sends a SACK in any case."""
    noise_ns: int
    """How late hosts may run; minimum timeouts follow from it."""


class Traffic(Struct, frozen=True, kw_only=True):
    """Flows of one kind."""

    kind: TrafficKind
    """Which hosts send to which."""
    group: str
    """Name of these flows."""
    bytes: int
    """Size of a write; for TCP of a segment."""
    start_ns: int
    """When the flows begin."""
    pairs: tuple[tuple[int, int], ...]
    """pairs, tcp: sender and receiver of each flow."""
    paths: tuple[int, ...]
    """Paths of each plane that the flows may use: T1s, or T2s between pods; empty: all."""
    writes: int = 1
    """Writes of each flow; TCP never ends."""
    redundant: bool = False
    """Each packet leaves on two planes at once."""
    depth: int = 1
    """Writes in the send queue at most."""
    interval_ns: int = 0
    """Mean time between writes; 0: the next follows when the send queue has room."""
    to: int = 0
    """incast: the receiver."""
    senders: tuple[int, ...] = ()
    """incast: the senders; empty: all other hosts."""
    paths_until_ns: int = 0
    """EVs of other paths are DENIED until then; 0: to the end."""
    plane: int = 0
    """Plane of a TCP flow; 0: all."""
    hosts: tuple[int, ...] = ()
    """Hosts that take part; empty: all."""
    group_size: int = 0
    """Hosts of each of the groups that the hosts form; 0: one group of all."""
    placement: Placement = "packed"
    """packed: neighbours form a group; spread: every n-th host; random: drawn with the seed."""
    receivers: tuple[int, ...] = ()
    """checkpoint: the hosts that are written to, in turn."""
    qps: int = 1
    """QPs of each pair of hosts, each with all of the writes."""
    steps: int = 1
    """Steps of a job; each starts at all hosts when all have ended the one before."""
    compute_ns: int = 0
    """Time of a step before its first write."""


class Reference(Struct, frozen=True, kw_only=True):
    """The run that goodput is compared with."""

    faults: bool
    """It has the same faults."""
    groups: tuple[str, ...]
    """Groups of flows that it has; empty: all."""


class Parameters(Struct, frozen=True, kw_only=True):
    """What an experiment is, besides its fabric, checks and variants."""

    name: str
    """Name of the scenario."""
    title: str
    """What happens."""
    claim: str
    """What the MRC paper says of such an experiment; empty: nothing."""
    figure: str
    """Where the paper shows it, such as Fig. 9a; empty: nowhere."""
    slow: bool
    """It takes minutes, so only its name runs it: `mrc sim report` leaves it out."""
    transport: Transport
    """The QPs."""
    traffic: tuple[Traffic, ...]
    """The flows."""
    faults: tuple[TimedFault, ...]
    """What fails, and when."""
    reference: Reference
    """The run that goodput is compared with."""
    until_ns: int
    """When a run ends, unless all writes have ended before."""
    sample_ns: int
    """Time between samples."""
    audit: bool = False
    """The engine's invariants are checked after every event."""
    baselines: tuple[str, ...] = ()
    """Baselines that run along."""
    links: tuple[TimedFault, ...] = ()
    """Links whose rate or delay differs from the others'."""
    plot: Plot = "time"
    """What the picture shows: goodput over time, or of all flows."""
    variant: str = ""
    """Name of this variant; empty: there are none."""


class ScenarioParameters(Parameters, frozen=True, kw_only=True):
    """Every parameter of an experiment, defaults included."""

    topology: TopologyParameters
    """The fabric."""
    variants: tuple[str, ...]
    """Variants that run instead; empty: none."""
    base_rtt_ns: int
    """From the sending of a full packet to its SACK, in an empty fabric."""


class Value(Struct, frozen=True, kw_only=True):
    """A figure of a scenario: median and quartiles over the seeds."""

    scenario: str
    """Name of the scenario."""
    name: str
    """What the figure is."""
    value: float | None
    """The median; null: the runs did not show it."""
    low: float | None
    """The lower quartile."""
    high: float | None
    """The upper quartile."""
    baselines: dict[str, float | None]
    """The same figure of each baseline."""

    @property
    def relation(self) -> str:
        return ""

    @property
    def target(self) -> float | None:
        """None: the value is only shown."""
        return None

    @property
    def met(self) -> bool | None:
        return None


class Check(Value, frozen=True, kw_only=True):
    """A figure that must meet a target."""

    relation: Literal["<=", ">="]
    """How the value must stand to the target."""
    target: float
    """The target."""
    met: bool | None
    """The value meets the target; null: the runs did not show it."""


class Stats(Struct, frozen=True, kw_only=True, rename=KEYS):
    """The whole fabric over the whole run."""

    now_ns: int
    """When the run ended."""
    events: int
    """Events that the simulator processed."""
    packets: int
    """Packets sent by hosts."""
    hops: int
    """Links that they crossed."""
    lost: int
    """Lost by faults."""
    corrupt: int
    """Damaged by faults."""
    dropped: int
    """Dropped by full queues."""
    trimmed: int
    """Trimmed by full queues."""
    marked: int
    """Marked by ECN."""
    unroutable: int
    """Dropped without a route."""
    first_lost_ns: int | None
    """When a fault lost the first packet; null: none was lost."""
    completed_writes: int
    """Writes of all flows."""
    trace: str
    """Hash of everything that happened: equal for equal runs."""


class ArrivalSamples(Struct, frozen=True, kw_only=True):
    """One flow over time: lists of equal length."""

    now_ns: tuple[int, ...]
    """When."""
    received_bytes: tuple[int, ...]
    """Payload that had arrived."""


class FlowSamples(ArrivalSamples, frozen=True, kw_only=True):
    """One flow over time: lists of equal length."""

    retransmitted_packets: tuple[int, ...]
    """Packets that had been sent again."""


class FlowTotals(Struct, frozen=True, kw_only=True):
    """One flow. What its transport does not count is null."""

    flow: int
    """Its number, from 0."""
    group: str
    """Its group."""
    sender: int
    """Number of the host that sends."""
    receiver: int
    """Number of the host that receives."""
    writes: int
    """Writes asked for."""
    write_bytes: int
    """Size of a write."""
    first_ns: int
    """When its first write was posted."""
    last_ns: int
    """When its last write was completed."""
    posted: int
    """Writes posted."""
    completed: int
    """Writes completed."""
    failed: int
    """Writes that failed."""
    received_bytes: int
    """Payload that arrived, each byte once."""
    sent_packets: int | None
    """Data packets sent, retransmissions included."""
    retransmitted_packets: int | None
    """Packets sent again because they were declared lost."""
    spurious_packets: int | None
    """Retransmitted packets whose original had arrived, as the sender found out."""
    lost_packets: int | None
    """Packets declared lost."""
    rtt_ns: int | None
    """Smoothed round trip at the end; null: never measured."""
    goodput_bits_per_second: float
    """Payload from the first post to the last completion."""
    line_rate_bits_per_second: float
    """Payload that the slowest of its links can carry."""


class Flow(FlowTotals, frozen=True, kw_only=True):
    """One flow."""

    sent_packets: int
    retransmitted_packets: int
    spurious_packets: int
    repeated_packets: int
    """Packets that arrived with payload that had arrived before."""
    lost_packets: int
    samples: FlowSamples
    """The flow over time."""


class Event(Struct, frozen=True, kw_only=True):
    """What an engine reported."""

    now_ns: int
    """When."""
    flow: int
    """Number of the flow."""
    end: Literal["sender", "receiver"]
    """The end whose engine reported it."""
    event: str
    """The new state of an EV, what became of a plane, or the status of a failed QP."""
    plane: int
    """The plane, from 1; 0: none."""
    path: int | None
    """Number of the path in its plane; null: the event is not about an EV."""
    percent: int | None
    """What a slow plane carries, of the mean of the others; null: the event is another."""


class WriteTimes(Struct, frozen=True, kw_only=True):
    """Time of a write, from the moment when it was wanted to its completion."""

    min: int
    """The shortest, in ns."""
    p50: int
    """The median, in ns."""
    p99: int
    """The 99th percentile, in ns."""
    max: int
    """The longest, in ns."""


class LastHop(Struct, frozen=True, kw_only=True, rename=KEYS):
    """The link from a T0 to a host."""

    host: int
    """Number of the host."""
    plane: int
    """The plane, from 1."""
    busy_ns: int
    """Time that the link was sending."""
    peak_bytes: int
    """Longest queue."""
    trimmed: int
    """Trimmed by a full queue."""
    dropped: int
    """Dropped by a full queue."""
    marked: int
    """Marked by ECN."""


class Run(Struct, frozen=True, kw_only=True):
    """One run: a seed, a transport and a variant."""

    seed: int
    """Seed of everything that is random."""
    transport: str
    """Kind of the transport."""
    variant: str
    """Name of the variant; empty: there are none."""
    stats: Stats
    """The whole fabric."""
    flows: tuple[Flow, ...]
    """Every flow. A run of more than 1,024 flows has these, ev_events and last_hops only with
    --details.
    """
    ev_events: tuple[Event, ...]
    """What engines reported, in order."""
    write_ns: WriteTimes | None
    """Times of the writes; null: there were none."""
    last_hops: tuple[LastHop, ...]
    """The links to hosts that received."""


class LostTrial(Struct, frozen=True, kw_only=True):
    """A trial whose process failed or ended, or that was interrupted."""

    scenario: str
    """Its name."""
    variant: str
    """Of the scenario; empty: it has none."""
    seed: int
    """Seed of the random numbers."""
    reason: str
    """In words."""

    def __str__(self) -> str:
        name = ", ".join(filter(None, (self.scenario, self.variant)))
        return f"{name}, seed {self.seed}: no result: {self.reason}"


class Experiment(Result, frozen=True, kw_only=True):
    """`mrc sim run`."""

    scenario: ScenarioParameters
    """Every parameter."""
    checks: tuple[Check, ...]
    """Figures that must meet a target."""
    values: tuple[Value, ...]
    """Other figures."""
    runs: tuple[Run, ...]
    """Every run."""
    lost: tuple[LostTrial, ...]
    """Trials without a result."""


class Figure(Struct, frozen=True, kw_only=True):
    """A scenario that reproduces a figure of the MRC paper."""

    figure: str
    """The figure, such as Fig. 9a."""
    scenario: str
    """Name of the scenario."""
    claim: str
    """What the paper says."""
    met: bool
    """The scenario meets all of its targets."""
    seconds: float
    """How long all of its runs took."""


class Report(Result, frozen=True, kw_only=True):
    """`mrc sim report`."""

    seeds: tuple[int, ...]
    """Seeds of every scenario."""
    checks: tuple[Check, ...]
    """Figures that must meet a target."""
    values: tuple[Value, ...]
    """Other figures."""
    figures: tuple[Figure, ...]
    """The scenarios that reproduce a figure of the MRC paper."""
    lost: tuple[LostTrial, ...]
    """Trials without a result."""


class Title(Struct, frozen=True, kw_only=True):
    """A built-in scenario."""

    name: str
    """Its name."""
    title: str
    """What happens."""


class Scenarios(Result, frozen=True, kw_only=True):
    """`mrc sim list`."""

    scenarios: tuple[Title, ...]
    """The built-in scenarios."""


# ---- Sweeps ----------------------------------------------------------------------------------


class CheckValue(Struct, frozen=True, kw_only=True):
    """The value of a check in one run."""

    check: str
    """Its name."""
    value: float | None
    """null: the run did not show it."""


class SweptRun(Struct, frozen=True, kw_only=True):
    """One run of a job: the scenario's, or that of a baseline."""

    transport: str
    """Kind of the transport."""
    stats: Stats
    """The whole fabric."""
    figures: tuple[CheckValue, ...]
    """The values of the checks."""


class SweptJob(Result, frozen=True, kw_only=True):
    """A line in the folder of `mrc sim sweep`."""

    job: str
    """Hash of parameters, scenario, seed and version."""
    version: str
    """Version of mrc."""
    scenario: str
    """Name of the scenario."""
    variant: str
    """Name of the variant; empty: there are none."""
    seed: int
    """Seed of everything that is random."""
    parameters: dict[str, Any]
    """Values of --set and --grid, by their keys."""
    runs: tuple[SweptRun, ...]
    """The run itself, then those of the baselines."""


class GridPoint(Struct, frozen=True, kw_only=True):
    """A point of the grid, over its seeds that have a result."""

    parameters: dict[str, Any]
    """Values of --grid, by their keys."""
    checks: tuple[Check, ...]
    """Figures that must meet a target."""
    values: tuple[Value, ...]
    """Other figures."""


class LostJob(LostTrial, frozen=True, kw_only=True):
    """A job without a result."""

    parameters: dict[str, Any]
    """Values of --set and --grid, by their keys."""

    def __str__(self) -> str:
        given = "".join(f"{key}={value}, " for key, value in self.parameters.items())
        return f"{given}{LostTrial.__str__(self)}"


class Sweep(Result, frozen=True, kw_only=True):
    """`mrc sim sweep`."""

    scenario: str
    """Name of the scenario."""
    seeds: tuple[int, ...]
    """Seeds of every point."""
    jobs: int
    """Jobs of the whole grid."""
    missing: int
    """How many of them have no result yet, here or of another part."""
    points: tuple[GridPoint, ...]
    """The grid."""
    lost: tuple[LostJob, ...]
    """Jobs of this call without a result."""
