# SPDX-License-Identifier: Apache-2.0
"""The parameters of a test bed, the names of its nodes and interfaces, and topology files. Pure.

Plane P, T0 N, T1 S, T2 M, host H:

    mrc-NAME-hH         p1..pP, mgmt
    mrc-NAME-t0-P-N     hH down to each host below it, t1-S up to each T1
    mrc-NAME-t1-P-S     t0-N down to each T0, t2-M up to each T2
    mrc-NAME-t2-P-M     t1-S down to each T1
    mrc-NAME-mgmt       hH to each host

In an emulated fabric one namespace stands for all switches:

    mrc-NAME-fabric     hH-P to each host in each plane

A test bed that is joined to the world names the namespace from which it has interfaces:

    mrc-NAME-machine    mrc-NAME to `mgmt`

A topology file is TOML with a scenario's table `[topology]`, and keys of test beds. A scenario is
also a topology file. Its traffic and checks are for the simulator and ignored here.
mrc/testbed/topologies/README.md lists every key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import ModuleType
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, force_setattr, replace

from mrc import products, units
from mrc.errors import ArgumentError
from mrc.fabric import document
from mrc.fabric.document import Table
from mrc.results import KEYS
from mrc.testbed.tiers import LinkChange, Tiers
from mrc.testbed.topology import Addresses, Target, Topology
from mrc.units import scaled

DEFAULT_NAME = "lab"
FABRIC = "fabric"
MANAGEMENT = "mgmt"

_EMULATED = ("ecn_low_bytes", "ecn_high_bytes", "trim")
_NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def extra(name: str) -> ModuleType:
    """A module of the lab that adds to test beds: `machines` and `remote` (several machines),
    `outside` (what joins one to the world) or `uplink` (which does that). It is loaded only for a
    test bed that has what it adds. Raises ConfigError in a tree without it.
    """
    return products.need(f"mrc.lab.{name}", "this test bed")


def check_name(name: str) -> None:
    """Raises ArgumentError for an invalid name of a test bed."""
    if not _NAME_FORM.fullmatch(name):
        raise ArgumentError(f"name {name!r} is not 1 to 32 letters, digits, '-' or '_'")


def namespace_of(name: str, node: str) -> str:
    return f"mrc-{name}-{node}"


def is_namespace_of(name: str, candidate: str) -> bool:
    """Whether a namespace belongs to the test bed of this name, and not to `NAME-more`."""
    node = r"(h\d+|t[012]-\d+-\d+|mgmt|fabric)"
    return re.fullmatch(re.escape(namespace_of(name, "")) + node, candidate) is not None


def host_name(host: int) -> str:
    return f"h{host}"


def t0_name(plane: int, number: int) -> str:
    return f"t0-{plane}-{number}"


def t1_name(plane: int, number: int) -> str:
    return f"t1-{plane}-{number}"


def t2_name(plane: int, number: int) -> str:
    return f"t2-{plane}-{number}"


def is_host(part: str) -> bool:
    """Whether it is the name of a host, of this test bed or another."""
    return re.fullmatch(r"h\d+", part) is not None


def part_name(node: str) -> str:
    """The name of a node on the command line. Faults use the same names: `t1-2-0` is `t1:2.0`."""
    return re.sub(r"^(t[012])-(\d+)-(\d+)$", r"\1:\2.\3", node)


def node_name(part: str) -> str:
    """The node of a switch, from its name on the command line."""
    return re.sub(r"[:.]", "-", part)


def interface_name(host: int, plane: int) -> str:
    """The emulator's end of a host's link."""
    return f"h{host}-{plane}"


# ---- Shapes --------------------------------------------------------------------------------------


DEFAULT_RATE = "500mbit"
MIN_RATE_BPS, MAX_RATE_BPS = 1000, 100_000_000_000_000
NO_RATE_BPS = 1_000_000_000_000  # the emulator requires a rate; at this one 4 KiB take 33 ns
_QUEUE_SECONDS = 0.010
_MIN_QUEUE_BYTES = 256 * 1024
# A hop through the kernel alone takes almost this long. A shorter delay would have no effect.
MIN_KERNEL_DELAY_NS = 50_000


class RealHost(Struct, frozen=True):
    """A host that is no namespace, but the machine at the other end of these interfaces."""

    host: str
    """Its name: h1."""
    interfaces: tuple[str, ...]
    """The interface of each plane."""
    management: str | None
    """The interface of the management network; null: mrc exchanges attributes over the planes."""


class Outside(Struct, frozen=True):
    """What joins a test bed to the world."""

    uplink: str | None = None
    """The interface over which hosts reach the world by NAT; null: there is none."""
    hosts: tuple[RealHost, ...] = ()
    """Hosts that are no namespaces."""

    def __bool__(self) -> bool:
        return self != Outside()

    def real_host(self, host: str) -> RealHost | None:
        return next((each for each in self.hosts if each.host == host), None)


class LinkProperties(Struct, frozen=True, rename=KEYS | {"loss": "loss_share"}):
    """A link, each way."""

    rate_bps: int | None
    """Its rate; null: no limit."""
    delay_ns: int
    """Its delay."""
    loss: float
    """Packets lost by chance, as a part of all packets, from 0 to 1."""
    mtu: int
    """Larger packets are dropped."""


BothWays = tuple[LinkProperties, LinkProperties]
"""The properties of a link, up and down."""


class Fabric(StrEnum):
    """The kind of the switches between the hosts."""

    KERNEL = "kernel"
    """a namespace for each switch, in which Linux forwards by uSID"""
    EMULATED = "emulated"
    """one process with the simulator's switches, in real time"""


class Shape(Topology, frozen=True, forbid_unknown_fields=True):
    """The parameters of a test bed."""

    hosts: int = 2
    planes: int = 4
    t0: int = 0
    """T0s per plane; 0: one for each host"""
    t1: int = 2
    """T1s per plane"""
    host_rate_bps: int | None = 500_000_000
    """of a link between host and T0, each way; None: as fast as the machine can"""
    fabric_rate_bps: int | None = 500_000_000
    """of a link between T0 and T1"""
    core_rate_bps: int | None = 500_000_000
    """of a link between T1 and T2"""
    host_delay_ns: int = 0
    fabric_delay_ns: int = 0
    core_delay_ns: int = 0
    jitter_ns: int = 0
    """largest random addition to every delay; it keeps the order"""
    links: tuple[LinkChange, ...] = ()
    """later changes override earlier ones"""
    mtu: int = 9000
    buffer_bytes: int | None = None
    """of a switch port, for data and for control; 0: no limit; None: 10 ms, at least 256 KiB. The
    10 ms are at the host rate in an emulated fabric, at the link's rate in a kernel fabric.
    """
    ecn_low_bytes: int | None = None
    """queue depth from which data is marked at random; None: 10% of the buffer"""
    ecn_high_bytes: int | None = None
    """queue depth from which all data is marked; 0: never; None: 40% of the buffer"""
    trim: bool = True
    """a full buffer trims data packets; False: it drops them"""
    fabric: Fabric = Fabric.KERNEL
    outside: Outside = Outside()
    """what joins it to the world"""

    def __post_init__(self) -> None:
        force_setattr(self, "fabric", Fabric(self.fabric))
        Topology.__post_init__(self)
        force_setattr(self, "absent", self.absent_links(self.absent))
        self.check_mtu(self.mtu)
        rates = [self.host_rate_bps, self.fabric_rate_bps, self.core_rate_bps]
        for rate_bps in [*rates, *(link.rate_bps for link in self.links)]:
            if rate_bps is not None and not MIN_RATE_BPS <= rate_bps <= MAX_RATE_BPS:
                raise ValueError(f"rate is {rate_bps} bit/s, not in 1kbit..100tbit (or none)")
        if not self.is_emulated and self.jitter_ns:
            raise ValueError("jitter would reorder in a kernel fabric: use --fabric emulated")
        if self.is_emulated:
            size, low, high = self.port_queue().values()
            if 0 < size < self.mtu:
                raise ValueError(
                    f"buffer is {size} B, which holds no packet of {self.mtu} B (the MTU)"
                )
            if 0 < high <= low:
                raise ValueError(f"ecn_low is {low} B, not below ecn_high, which is {high} B")
        for link in self.links:
            self.target(link.target)
        if self.outside:
            extra("outside").check(self.outside, self)

    @property
    def is_emulated(self) -> bool:
        """Whether its switches are those of the simulator, in real time."""
        return self.fabric is Fabric.EMULATED

    @property
    def least_delay_ns(self) -> int:
        """A shorter delay of a link has no effect."""
        return 0 if self.is_emulated else MIN_KERNEL_DELAY_NS

    def node_of(self, part: str) -> str:
        """The node with this name on the command line. Raises ValueError, also for a switch that is
        no namespace.
        """
        hosts = [host_name(number) for number in self.host_numbers()]
        if part == MANAGEMENT or part in hosts:
            return part
        if part.partition(":")[0] not in ("t0", "t1", "t2"):
            used = f"{hosts[0]}..{hosts[-1]}, t0:P.N, t1:P.S, t2:P.M or mgmt"
            raise ValueError(f"{part} is no host or switch: use {used}")
        self.target(part)
        if self.is_emulated:
            raise ValueError(
                f"{part} is no namespace: one process stands for all switches of an emulated "
                "fabric; a kernel fabric has switches to enter"
            )
        return node_name(part)

    def port_queue(self) -> dict[str, int]:
        """The buffer of a switch port, and the depths from which it marks; a kernel fabric does
        not.
        """
        buffer_bytes = self.buffer_bytes
        if buffer_bytes is None:
            buffer_bytes = usual_queue_bytes(self.host_rate_bps or NO_RATE_BPS)
        low, high = self.ecn_low_bytes, self.ecn_high_bytes
        return {
            "buffer_bytes": buffer_bytes,
            "ecn_low_bytes": buffer_bytes // 10 if low is None else low,
            "ecn_high_bytes": buffer_bytes * 4 // 10 if high is None else high,
        }

    def link_properties(self) -> dict[Target, BothWays]:
        """The properties of every link in this fabric, up and down, plane by plane: first the
        hosts' links, then those between switches.
        """
        tiers = {
            "link": self._link(self.host_rate_bps, self.host_delay_ns),
            "uplink": self._link(self.fabric_rate_bps, self.fabric_delay_ns),
            "core": self._link(self.core_rate_bps, self.core_delay_ns),
        }
        found = {link: (tiers[link.kind], tiers[link.kind]) for link in self.every_link()}
        for change in self.links:
            target = self.target(change.target)
            for link in self.links_of(target):
                up, down = (
                    self._changed(usual, change) if is_changed else usual
                    for usual, is_changed in zip(found[link], target.ways, strict=True)
                )
                found[link] = up, down
        return found

    def _changed(self, usual: LinkProperties, change: LinkChange) -> LinkProperties:
        return self._link(
            change.rate_bps or usual.rate_bps,
            usual.delay_ns if change.delay_ns is None else change.delay_ns,
            usual.loss if change.loss is None else change.loss,
            min(change.mtu or usual.mtu, self.mtu),
        )

    def _link(
        self, rate_bps: int | None, delay_ns: int, loss: float = 0.0, mtu: int | None = None
    ) -> LinkProperties:
        delay_ns = delay_ns if delay_ns >= self.least_delay_ns else 0
        return LinkProperties(rate_bps, delay_ns, loss, mtu or self.mtu)


@contextmanager
def as_argument_error() -> Iterator[None]:
    """Turns a ValueError of the body into an ArgumentError."""
    try:
        yield
    except ValueError as exc:
        raise ArgumentError(str(exc)) from exc


def usual_queue_bytes(rate_bps: int) -> int:
    """10 ms at this rate, at least 256 KiB."""
    return max(round(rate_bps / 8 * _QUEUE_SECONDS), _MIN_QUEUE_BYTES)


def parse_rate(text: str) -> int | None:
    """Bits a second, from the notation of tc(8) or of scenarios: `500mbit`, `10 Gbit/s` or plain
    bit/s. None for `none`: no limit.
    """
    if text == "none":
        return None
    try:
        return units.parse_short_rate(text)
    except ValueError as error:
        raise ValueError(f"{error}, or none") from error


def rate_text(rate_bps: int | None) -> str:
    """A rate for people."""
    return "no rate limit" if rate_bps is None else scaled(rate_bps, "bit/s")


def scale_rates(shape: Shape, host_rate_bps: int | None) -> Shape:
    """Changes the rate of the hosts' links. All other rates keep their ratio to it. None: no link
    has a limit.
    """
    usual_bps = shape.host_rate_bps

    def scaled(rate_bps: int | None) -> int | None:
        if host_rate_bps is None or rate_bps is None or usual_bps is None:
            return None
        return max(MIN_RATE_BPS, rate_bps * host_rate_bps // usual_bps)

    links = tuple(replace(link, rate_bps=scaled(link.rate_bps)) for link in shape.links)
    return replace(
        shape,
        links=links,
        host_rate_bps=host_rate_bps,
        fabric_rate_bps=scaled(shape.fabric_rate_bps),
        core_rate_bps=scaled(shape.core_rate_bps),
    )


def with_delay(shape: Shape, delay_ns: int) -> Shape:
    """Sets the delay of every link."""
    links = tuple(replace(link, delay_ns=None) for link in shape.links)
    every = dict.fromkeys(("host_delay_ns", "fabric_delay_ns", "core_delay_ns"), delay_ns)
    return replace(shape, links=links, **every)


def chosen_shape(file: str | None, fabric: Fabric, options: Mapping[str, Any]) -> Shape:
    """The shape of a topology file, or the usual one, with these fields of Shape. `rate`: of the
    hosts' links in bit/s, to which other rates keep their ratio, None without a limit; `delay`: of
    every link in ns. Raises ArgumentError for invalid options, ConfigError for an invalid file.
    """
    wanted = {key: value for key, value in options.items() if key not in ("rate", "delay")}
    if fabric == Fabric.KERNEL and not wanted.keys().isdisjoint(_EMULATED):
        raise ArgumentError("a kernel fabric cannot mark or trim: use --fabric emulated")
    shape = load_topology(file, fabric).shape if file else None
    wanted["fabric"] = fabric
    with as_argument_error():
        shape = Shape(**wanted) if shape is None else replace(shape, **wanted)
        if "rate" in options:
            shape = scale_rates(shape, options["rate"])
        return with_delay(shape, options["delay"]) if "delay" in options else shape


# ---- Topology files ------------------------------------------------------------------------------


# Keys about the use of a fabric. The simulator reads them, and mrc.testbed.schedule the faults.
_OF_OTHERS = (
    "claim", "baselines", "plot", "transport", "traffic", "reference", "run", "checks", "variants",
    "faults", "figure", "slow",
)  # fmt: skip


class TopologyFile(Struct, frozen=True):
    """The contents of a topology file."""

    name: str
    title: str
    shape: Shape


def topology_names() -> list[str]:
    """The built-in topologies."""
    return sorted(document.builtin("testbed/topologies"))


def load_topology(name: str, fabric: Fabric = Fabric.KERNEL) -> TopologyFile:
    """Reads a built-in topology, a built-in scenario or, if `name` looks like a path, a file.

    Raises ConfigError with the file and the key.
    """
    known = document.builtin("sim/scenarios") | document.builtin("testbed/topologies")
    found = document.read(name, known, "topology")
    return parse_topology(found.values, found.name, found.place, fabric)


def parse_topology(
    values: dict[str, Any], name: str, place: str, fabric: Fabric = Fabric.KERNEL
) -> TopologyFile:
    """Converts a document; raises ConfigError."""
    table = Table(values, place)
    for key in _OF_OTHERS:
        table.has(key)
    title = table.text("title", "")
    within = table.table("topology")
    tiers = Tiers.read(within)
    if tiers.routing != "source-routes":
        raise within.error("routing", "must be source-routes: ecmp is for the simulator")
    if tiers.ecn_last_hop:
        raise within.error("ecn_last_hop", "is for the simulator: remove it for a test bed")
    tiers = replace(tiers, addresses=Addresses.read(table.table("addresses")))
    try:
        links = tuple(LinkChange.read(item, tiers) for item in table.tables("links"))
        shape = shape_of(tiers, links, fabric)
    except ValueError as error:
        raise table.error("topology", str(error)) from error
    world = shape.outside
    if table.has("outside"):
        world = extra("outside").read(table.table("outside"))
    table.close()
    try:
        shape = replace(shape, outside=world)
    except ValueError as error:
        raise table.error("outside", str(error)) from error
    return TopologyFile(name, title, shape)


def shape_of(tiers: Tiers, links: tuple[LinkChange, ...], fabric: Fabric) -> Shape:
    """The shape of a test bed with these tiers and links; raises ValueError."""
    both = {each.name for each in fields(Tiers)} & {each.name for each in fields(Shape)}
    same: dict[str, Any] = {name: getattr(tiers, name) for name in both}
    return Shape(**same | {"trim": tiers.trimming, "links": links, "fabric": fabric})
