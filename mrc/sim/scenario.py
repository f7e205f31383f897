# SPDX-License-Identifier: Apache-2.0
"""Scenarios: topology, transport, traffic, faults and checks of experiments, and their files. Pure.

Planes are numbered from 1; hosts, switches and flows from 0. Times are nanoseconds from the start.

Faults on targets with `*` become those of parts, all or some at random; with `every`, each of the
parts fails at random times of its own.

The functions that read a file read every key, with its range and default. An unknown key, a wrong
unit or a target outside the topology is an error that names the file and the key.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from mrc import limits, units
from mrc.enums import CcKind, PlaneShares
from mrc.errors import ConfigError
from mrc.fabric import document
from mrc.fabric.document import Table
from mrc.sim.results import (
    Parameters,
    Placement,
    Plot,
    Reference,
    Traffic,
    TrafficKind,
    Transport,
    TransportKind,
)
from mrc.testbed.tiers import LinkChange, Tiers, TimedFault
from mrc.testbed.topology import Target, Topology
from mrc.units import counted

OVERHEAD_BYTES = 126  # of a packet on a link, besides its UDP payload; csrc/sim/hop.h
DATA_HEADER_BYTES = 44  # of a packet in the middle of a message, ICRC included
SACK_BYTES = 52  # UDP payload of a SACK
TCP_HEADER_BYTES = 24  # csrc/sim/baseline.c

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
PERCENTILES = ("completion", "lost_per_qp", "step_time", "inner_busy", "inner_queue")
"""The measures of which a check can take a percentile."""


Relation = Literal["<=", ">="]


class Criterion(Struct, frozen=True):
    """A value that is computed from a run, and its target."""

    name: str
    measure: str
    group: str  # empty: all flows
    from_ns: int
    to_ns: int  # TimedFault.NEVER: to the end
    of: str  # the value is compared with "line", "reference" or "max-min"
    share: float  # the expected part of that, such as 7/8
    relation: Relation  # the required relation of the value to the target
    target: float
    variants: tuple[str, ...]  # variants that must meet it, others only show it; empty: all
    percentile: float = 50.0  # of one of PERCENTILES
    plane: int = 0  # count the goodput of this plane only; 0: of all planes
    note: str = ""  # why hosts on an emulated fabric give another value

    @property
    def looks_inside(self) -> bool:
        """Whether it requires the links between switches."""
        return self.measure in ("inner_busy", "inner_queue")


class Scenario(Parameters, frozen=True, kw_only=True):
    """One experiment."""

    topology: Tiers
    checks: tuple[Criterion, ...]
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
        return any(check.looks_inside for check in self.checks)

    @property
    def needs_reference(self) -> bool:
        return any(check.of == "reference" for check in self.checks)

    @property
    def base_rtt_ns(self) -> int:
        return base_rtt_ns(self.topology, self.transport)

    def with_seed(self, seed: int) -> Scenario:
        """With the faults that this seed draws."""
        faults = [
            each
            for number, fault in enumerate(self.faults)
            for each in _drawn(fault, self, random.Random(f"faults {number} {seed}"))
        ]
        return replace(self, faults=tuple(faults))

    def as_baseline(self, kind: str) -> Scenario:
        """With another transport."""
        return replace(self, transport=replace(self.transport, kind=kind), baselines=())

    def as_reference(self) -> Scenario:
        """The run that checks compare with."""
        groups = self.reference.groups
        return replace(
            self,
            traffic=tuple(t for t in self.traffic if not groups or t.group in groups),
            faults=self.faults if self.reference.faults else (),
            baselines=(),
        )


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
        target = topology.target(fault.target)
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
        for host, way in ((sender, Target.UP), (receiver, Target.DOWN))
    )


# ---- Faults of a seed ----------------------------------------------------------------------------


def _parts_of(target: str, fabric: Topology) -> Sequence[str]:
    """Those of a target with `*` that exist. Raises ValueError."""
    parts = fabric.parts(target)
    if not fabric.absent:
        return parts
    return [part for part in parts if fabric.has_target(part)]


def _drawn(fault: TimedFault, scenario: Scenario, rng: random.Random) -> Iterator[TimedFault]:
    if Target.ANY not in fault.target:
        yield fault
        return
    every = _parts_of(fault.target, scenario.topology)
    chosen = rng.sample(every, fault.draw) if fault.draw else every
    for part, begin, end in _fault_times(fault, chosen, scenario.until_ns, rng):
        yield replace(fault, target=part, at_ns=begin, until_ns=end, every_ns=0, for_ns=0, draw=0)


def _fault_times(
    fault: TimedFault, chosen: Sequence[str], end_ns: int, rng: random.Random
) -> Iterator[tuple[str, int, int | None]]:
    """Part, begin and end of each occurrence."""
    if not fault.every_ns:
        yield from ((part, fault.at_ns, fault.until_ns) for part in chosen)
        return
    last_ns = min(fault.end_ns, end_ns)
    for part in chosen:
        begin = fault.at_ns
        while (
            begin := begin + round(rng.expovariate(1 / (fault.every_ns - fault.for_ns)))
        ) < last_ns:
            end = min(begin + fault.for_ns, fault.end_ns)
            yield part, begin, end
            begin = end


# ---- Files ---------------------------------------------------------------------------------------


_COMPUTED: Literal["computed"] = "computed"

SAMPLES = 10_000
"""Maximum number of samples of each flow, unless `run.sample` is set. It limits the memory of
long runs.
"""

_TO_SOME = ("incast", "checkpoint")
"""The kinds of traffic that have receivers."""

_MEASURED_OF = {
    "goodput": ("line", "reference", "max-min"),
    "completion": ("line", "reference"),
    "step_time": ("line", "reference"),
    "job_completion": ("line", "reference"),
    "failure_convergence": ("reference",),
}
"""The choices of `of`, for the measures that have that key."""

_USUAL: dict[str, tuple[str, Relation, float]] = {
    "completed": ("writes completed", ">=", 1.0),
    "qp_errors": ("QPs in ERROR", "<=", 0.0),
    "spurious": ("spurious retransmissions", "<=", 0.0),
}
"""The measures of checks that need no target, with their name, relation and target."""


def scenario_names() -> list[str]:
    """The names of the built-in scenarios."""
    return sorted(document.builtin("sim/scenarios"))


def load_scenario(
    name: str, settings: Mapping[str, Any] | None = None, fabric: Topology | None = None
) -> Scenario:
    """Reads a built-in scenario or, when `name` looks like a path, a file.

    `settings` replaces values: {"topology.hosts": 8, "traffic.0.writes": 2}. `fabric`: as in
    `parse`.
    """
    found = document.read(name, document.builtin("sim/scenarios"), "scenario")
    for key, value in (settings or {}).items():
        replace_value(found.values, key, value)
    return parse_scenario(found.values, found.name, found.place, fabric=fabric)


def replace_value(values: Any, key: str, value: Any) -> None:
    """Sets the value of a dotted key in a document; a number selects a member of an array."""
    *parents, last = key.split(".")
    at = values
    for name in parents:
        if isinstance(at, list) and name.isdigit() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, dict):
            at = at.setdefault(name, {})
        else:
            raise ConfigError(f"{key}: {name} does not exist")
    if not isinstance(at, dict):
        raise ConfigError(f"{key}: {last} is not in a table")
    at[last] = value


def parse_scenario(
    values: Mapping[str, Any],
    name: str,
    place: str,
    variant: str = "",
    fabric: Topology | None = None,
) -> Scenario:
    """Makes a scenario from a document; raises ConfigError.

    The hosts, planes and switches of `fabric` take the place of those in the document, whose
    `[[links]]` are left out then: hosts of a test bed run the traffic.
    """
    table = Table(values, place)
    for key in ("addresses", "outside"):  # for test beds: simulated hosts have neither
        table.has(key)
    variants = _variants(table.tables("variants"), values, name, place, fabric)
    topology, links = Tiers.read(table.table("topology")), table.tables("links")
    if fabric is not None:
        topology, links = topology.sized_as(fabric), []
    transport = _transport(table.table("transport"), topology)
    rtt_ns = base_rtt_ns(topology, transport)
    run = table.table("run")
    until_ns = run.parsed("until", units.parse_time, "100ms")
    checks, reference = table.tables("checks"), table.table("reference")
    for measure in run.texts("usual", tuple(_USUAL)):
        checks.append(Table({"measure": measure}, "run.usual"))
    scenario = Scenario(
        name=name,
        title=table.text("title"),
        claim=table.text("claim", ""),
        figure=table.text("figure", ""),
        slow=table.boolean("slow", False),
        topology=topology,
        transport=transport,
        traffic=tuple(_traffic(item, topology, rtt_ns) for item in table.tables("traffic")),
        links=link_faults(LinkChange.read(item, topology) for item in links),
        faults=_faults(table.tables("faults"), topology, rtt_ns, until_ns),
        checks=tuple(_check(item, rtt_ns, topology) for item in checks),
        reference=Reference(
            faults=reference.boolean("faults", False),
            groups=tuple(reference.text("groups").split()) if reference.has("groups") else (),
        ),
        until_ns=until_ns,
        sample_ns=run.parsed("sample", units.parse_time, f"{max(10_000, until_ns // SAMPLES)}ns"),
        audit=run.boolean("audit", False),
        baselines=table.texts("baselines", TRANSPORTS[1:]),
        plot=table.choice("plot", PLOTS, PLOTS[0]),
        variant=variant,
        variants=variants,
    )
    if until_ns == 0:
        raise run.error("until", "must be above 0")
    for each in (run, reference, table):
        each.close()
    _check_groups(table, scenario)
    return scenario


def _variants(
    tables: list[Table],
    values: Mapping[str, Any],
    name: str,
    place: str,
    fabric: Topology | None,
) -> tuple[Scenario, ...]:
    """A scenario for each variant: the document with the values that the variant sets."""
    found = []
    for table in tables:
        title = table.text("name")
        document = deepcopy({key: value for key, value in values.items() if key != "variants"})
        for key, value in table.mapping("set").items():
            replace_value(document, key, value)
        table.close()
        found.append(
            parse_scenario(document, name, f"{place} ({title})", variant=title, fabric=fabric)
        )
    return tuple(found)


def _check_groups(table: Table, scenario: Scenario) -> None:
    if not scenario.traffic:
        raise table.error("traffic", "is missing: a scenario needs at least one [[traffic]]")
    known = {traffic.group for traffic in scenario.traffic} | {""}
    named = [("checks", check.group) for check in scenario.checks]
    for key, group in [*named, *(("reference", group) for group in scenario.reference.groups)]:
        if group not in known:
            raise table.error(key, f"no traffic has the group {group!r}")
    for check in scenario.checks:
        groups = [t for t in scenario.traffic if check.group in ("", t.group)]
        if check.of == "max-min" and any(traffic.interval_ns for traffic in groups):
            raise table.error("checks", "max-min does not support traffic with an interval")
    variants = {part.variant for part in scenario.variants}
    for check in scenario.checks:
        if not scenario.variant and not variants.issuperset(check.variants):
            raise table.error("checks", f"{list(check.variants)} are not names of variants")


def _transport(table: Table, topology: Tiers) -> Transport:
    transport = Transport(
        kind=table.choice("kind", TRANSPORTS, TRANSPORTS[0]),
        path_mtu=table.integer("path_mtu", 256, 16384, 4096),
        mpr=table.integer("mpr", 128, 4096, 1024),
        spray=table.integer("spray", 0, 64, 1),
        evs_per_plane=table.integer("evs_per_plane", 0, Topology.MAX_T1, 0),
        ev_active_per_plane=table.integer("ev_active_per_plane", 0, Topology.MAX_T1, 0),
        probed=table.boolean_or("probed", _COMPUTED, True),
        timeout=table.integer("timeout", 1, 24, 16),
        retry_linear=table.integer("retry_linear", 0, 7, 7),
        retry_exp=table.integer("retry_exp", 0, 25, 6),
        plane_shares=PlaneShares[
            table.choice(
                "plane_shares", [one.name.lower() for one in PlaneShares], "measured"
            ).upper()
        ],
        backups=table.integers("backups", 1, topology.planes),
        cc=CcKind[table.choice("cc", [kind.name.lower() for kind in CcKind], "nscc").upper()],
        cc_base_rtt_ns=table.parsed("cc_base_rtt", units.parse_time, "0ns"),
        sack_threshold_bytes=table.parsed("sack_threshold", units.parse_size, "16KiB"),
        sack_delay_ns=table.parsed("sack_delay", units.parse_time, "10us"),
        noise_ns=table.parsed("noise", units.parse_time, "2us"),
    )
    table.close()
    if not 1000 <= transport.noise_ns <= 10**9:
        raise table.error("noise", "is not between 1 us and 1 s")
    if transport.path_mtu % 4:
        raise table.error("path_mtu", f"{transport.path_mtu} is not a multiple of 4")
    evs = evs_of_qp(topology, transport)
    if transport.kind == "mrc" and evs > limits.MAX_EVS:
        most = limits.MAX_EVS // topology.planes
        raise table.error(
            "evs_per_plane",
            f"{counted(evs, 'EV')} exceed the {limits.MAX_EVS} of a QP: 1 to {most}",
        )
    if transport.mpr % 128:
        raise table.error("mpr", f"{transport.mpr} is not a multiple of 128")
    return transport


def _traffic(table: Table, topology: Tiers, rtt_ns: int) -> Traffic:
    kind = table.choice("kind", TRAFFIC_KINDS)
    if kind == "tcp":
        return _tcp(table, topology, rtt_ns)
    traffic = Traffic(
        kind=kind,
        group=table.text("group", kind),
        bytes=table.parsed("write", units.parse_size),
        writes=1 if kind == "ring" else table.integer("writes", 1, 10**7, 1),
        hosts=() if kind == "pairs" else table.parsed("hosts", _hosts(topology.hosts), ""),
        group_size=table.integer("group_size", 0, topology.hosts, 0) if kind in GROUPED else 0,
        placement=table.choice("placement", PLACEMENTS, "packed") if kind in GROUPED else "packed",
        receivers=table.integers("to", 0, topology.hosts - 1) if kind == "checkpoint" else (),
        qps=table.integer("qps", 1, 256, 1),
        steps=table.integer("steps", 1, 10**6, 1),
        compute_ns=table.time("compute", rtt_ns, "0ns"),
        redundant=table.boolean("redundant", False),
        depth=table.integer("depth", 1, 4096, 4),
        start_ns=table.time("start", rtt_ns, "0ns"),
        interval_ns=0 if kind == "ring" else table.time("interval", rtt_ns, "0ns"),
        to=table.integer("to", 0, topology.hosts - 1, 0) if kind == "incast" else 0,
        senders=table.integers("from", 0, topology.hosts - 1) if kind in _TO_SOME else (),
        pairs=_pairs(table, topology) if kind == "pairs" else (),
        paths=table.integers("paths", 0, min(topology.t2 or topology.t1, 64) - 1),
        paths_until_ns=table.time("paths_until", rtt_ns, "0ns"),
    )
    if not 0 < traffic.bytes < 1 << 32:
        raise table.error("write", "is not from 1 byte to 4 GiB - 1")
    if traffic.redundant and traffic.bytes > limits.MAX_REDUNDANT:
        raise table.error("redundant", "takes writes of at most 64 KiB")
    if traffic.paths:
        _need_paths(table, "paths", traffic, topology)
    if traffic.paths and kind != "pairs":
        raise table.error("paths", "requires traffic of kind pairs")
    if traffic.paths_until_ns and not traffic.paths:
        raise table.error("paths_until", "requires paths")
    _check_groups_of_hosts(table, traffic, topology)
    table.close()
    return traffic


def _check_groups_of_hosts(table: Table, traffic: Traffic, topology: Tiers) -> None:
    members = len(traffic.hosts) or len(topology.host_numbers())
    size = traffic.group_size or members
    if traffic.kind in GROUPED and (size < 2 or members % size):
        raise table.error(
            "group_size", f"{counted(members, 'host')} cannot form groups of {size}: 2 or more"
        )
    if traffic.kind == "checkpoint" and not traffic.receivers:
        raise table.error("to", "is missing: the hosts that are written to")
    if traffic.steps > 1 and traffic.interval_ns:
        raise table.error("interval", "does not go with steps")
    if traffic.steps > 1 and traffic.compute_ns < topology.fabric_delay_ns:
        raise table.error("compute", "is shorter than topology.fabric_delay")
    if traffic.compute_ns and traffic.steps == 1:
        raise table.error("compute", "requires steps")


def _hosts(n: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of hosts: ranges with steps, such as "0-7, 16-31/2"."""

    def parse(text: str) -> tuple[int, ...]:
        found: list[int] = []
        for part in text.split(",") if text else ():
            match = re.fullmatch(r"\s*(\d+)(?:-(\d+)(?:/([1-9]\d*))?)?\s*", part)
            if match is None:
                raise ValueError(f"{part.strip()!r} is not a range of hosts such as 0-7 or 0-30/2")
            first, last = int(match[1]), int(match[2] or match[1])
            if not first <= last < n:
                raise ValueError(f"{part.strip()!r} is not within 0-{n - 1}")
            found += range(first, last + 1, int(match[3] or 1))
        if len(set(found)) < len(found):
            raise ValueError(f"{text!r} names a host twice")
        return tuple(found)

    return parse


def _tcp(table: Table, topology: Tiers, rtt_ns: int) -> Traffic:
    pairs = _pairs(table, topology)
    path = table.integer("path", 0, min(topology.t2 or topology.t1, 64) - 1, 0)
    table.choice("algorithm", ("cubic",), "cubic")
    traffic = Traffic(
        kind="tcp",
        group=table.text("group", "tcp"),
        bytes=table.integer("mss", 256, 16384, 1448),
        start_ns=table.time("start", rtt_ns, "0ns"),
        pairs=pairs,
        paths=(path,),
        plane=table.integer("plane", 1, topology.planes, 1),
    )
    if path:
        _need_paths(table, "path", traffic, topology)
    table.close()
    return traffic


def _pairs(table: Table, topology: Tiers) -> tuple[tuple[int, int], ...]:
    pairs, last = table.pairs("pairs"), topology.hosts - 1
    if not pairs:
        raise table.error("pairs", "is empty: [[0, 1]] are writes from host 0 to host 1")
    for pair in pairs:
        if not all(0 <= host <= last for host in pair) or pair[0] == pair[1]:
            raise table.error("pairs", f"{list(pair)} are not two hosts of 0..{last}")
    return pairs


def _need_paths(table: Table, key: str, traffic: Traffic, topology: Tiers) -> None:
    for pair in traffic.pairs:
        if topology.are_near(*pair):
            raise table.error(key, f"{list(pair)} are below the same T0: their path has no T1")
        n = topology.n_paths(pair[1], topology.origin(*pair))
        if max(traffic.paths) >= n:
            raise table.error(key, f"{list(pair)} are in one pod: their paths are 0 to {n - 1}")


def link_faults(links: Iterable[LinkChange]) -> tuple[TimedFault, ...]:
    """What links have in place of their tier's properties, as faults that last for ever."""
    found = []
    for link in links:
        loss = None if link.loss is None else round(link.loss * 1e6)
        values = {"rate": link.rate_bps, "delay": link.delay_ns, "loss": loss, "mtu": link.mtu}
        for kind, value in values.items():
            if value is not None:
                found.append(TimedFault(link.target, kind, "all", 0, None, value, 0))
    return tuple(found)


def _faults(
    tables: list[Table], topology: Tiers, rtt_ns: int, end_ns: int
) -> tuple[TimedFault, ...]:
    """The faults; a fault with `every` once for each occurrence before the run ends."""
    found: list[TimedFault] = []
    for table in tables:
        target = table.text("target")
        if Target.ANY in target:
            found.append(_drawn_fault(table, target, topology, rtt_ns))
            continue
        fault = TimedFault.read(table, topology.target, rtt_ns)
        found += [
            replace(fault, at_ns=begin, until_ns=end, every_ns=0, for_ns=0)
            for begin, end in fault.occurrences(end_ns)
        ] if fault.every_ns else [fault]  # fmt: skip
    return tuple(found)


def _drawn_fault(table: Table, target: str, topology: Tiers, rtt_ns: int) -> TimedFault:
    """A fault whose target has `*`; `Scenario.with_seed` finds its parts."""

    def check_target(text: str) -> None:
        topology.target(_parts_of(text, topology)[0])

    table.parsed("target", check_target)
    most, count = len(_parts_of(target, topology)), 0
    if table.has("draw"):
        value = table.text_or_number("draw")
        share = _fraction(table, "draw") or 0.0
        count = round(share * most) if isinstance(value, str) else int(share)
        if not 1 <= count <= most:
            raise table.error("draw", f"{value!r} is not 1 to {most} parts")
    return replace(TimedFault.read(table, check_target, rtt_ns), draw=count)


def _check(table: Table, rtt_ns: int, topology: Tiers) -> Criterion:
    measure = table.choice("measure", MEASURES)
    at_least, at_most = _fraction(table, "at_least"), _fraction(table, "at_most")
    relation: Relation | None
    name, relation, target = _USUAL.get(measure, (measure, None, 0.0))
    if at_least is not None or at_most is not None:
        relation, target = ("<=", at_most or 0.0) if at_least is None else (">=", at_least)
    if relation is None or (at_least is not None and at_most is not None):
        raise table.error("at_least", "a check requires exactly one of at_least and at_most")
    share = _fraction(table, "share")
    choices = _MEASURED_OF.get(measure, ("line",))
    check = Criterion(
        name=table.text("name", name),
        measure=measure,
        group=table.text("group", ""),
        from_ns=table.time("from", rtt_ns, "0ns"),
        to_ns=table.time("to", rtt_ns) if table.has("to") else TimedFault.NEVER,
        of=table.choice("of", choices, choices[0]),
        share=1.0 if share is None else share,
        relation=relation,
        target=target,
        variants=table.texts("variants"),
        percentile=table.number("percentile", 0.0, 100.0) if table.has("percentile") else 50.0,
        plane=table.integer("plane", 1, topology.planes) if table.has("plane") else 0,
        note=table.text("note", ""),
    )
    if check.plane and measure != "goodput":
        raise table.error("plane", "requires measure = goodput")
    if table.has("percentile") and measure not in PERCENTILES:
        raise table.error("percentile", f"requires one of the measures {', '.join(PERCENTILES)}")
    table.close()
    if check.to_ns <= check.from_ns:
        raise table.error("to", "is not after from")
    if check.share <= 0:
        raise table.error("share", "is not above 0")
    return check


def _fraction(table: Table, key: str) -> float | None:
    """A number, or a share such as "97%" or "7/8"; None if the key is missing."""
    if not table.has(key):
        return None
    value = table.text_or_number(key)
    if isinstance(value, float):
        return value
    try:
        above, _, below = value.partition("/")
        return int(above) / int(below) if below else units.parse_share(value) / 1e6
    except (ValueError, ZeroDivisionError) as error:
        wrong = f'{value!r} is not a share such as "97%" or "7/8"; write a number without quotes'
        raise table.error(key, wrong) from error
