# SPDX-License-Identifier: Apache-2.0
"""The properties of a fabric's links and switch ports, and its faults over time: the tables
`[topology]`, `[[links]]` and `[[faults]]` of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, Self, get_args

from msgspec import Struct
from msgspec.structs import replace

from mrc import units
from mrc.fabric.document import Table
from mrc.testbed.topology import (
    MAX_ALL_T1,
    MAX_MTU,
    MAX_T2,
    MIN_MTU,
    Topology,
    multiples,
    wrong_pods,
)

MAX_HOSTS, MAX_PLANES, MAX_T0 = 131072, 32, 4096
Routing = Literal["source-routes", "ecmp"]


class Tiers(Topology, frozen=True, kw_only=True):
    """A fabric of identical planes, for the simulator or a test bed: the table `[topology]`."""

    routing: Routing
    host_rate_bps: int
    fabric_rate_bps: int
    core_rate_bps: int  # of a link between T1 and T2
    host_delay_ns: int
    fabric_delay_ns: int
    core_delay_ns: int
    jitter_ns: int
    buffer_bytes: int  # of a switch port, for data and for control; 0: no limit
    ecn_low_bytes: int
    ecn_high_bytes: int  # 0: no marking
    ecn_last_hop: bool  # whether ports to hosts mark, too
    trimming: bool
    control_first: bool  # in every queue, control packets before data; False: in order
    wake_ns: int  # from the arrival of a packet to the run of the host's driver
    wake_noise_ns: int  # largest additional delay of a wake-up, drawn for each one
    sndbuf_bytes: int
    mtu: int
    max_hosts: ClassVar[int] = MAX_HOSTS  # a simulated host needs less than one of a test bed
    ROUTING: ClassVar[tuple[Routing, ...]] = get_args(Routing)

    def sized_as(self, fabric: Topology) -> Tiers:
        """With the hosts, planes and switches of another fabric, and without what it lacks."""
        sizes = {name: getattr(fabric, name) for name in Topology.__struct_fields__}
        return replace(self, **sizes)

    @classmethod
    def read(cls, table: Table) -> Tiers:
        """From `[topology]`; raises ConfigError."""
        hosts, t0, t1, pods, t2 = _switches(table)
        topology = cls(
            hosts=hosts,
            t0=t0,
            t1=t1,
            pods=pods,
            t2=t2,
            planes=table.integer("planes", 1, MAX_PLANES),
            routing=table.choice("routing", cls.ROUTING, "source-routes"),
            host_rate_bps=table.parsed("host_rate", units.parse_rate, "100Gbit/s"),
            fabric_rate_bps=table.parsed("fabric_rate", units.parse_rate, "100Gbit/s"),
            core_rate_bps=0,
            host_delay_ns=table.parsed("host_delay", units.parse_time, "500ns"),
            fabric_delay_ns=table.parsed("fabric_delay", units.parse_time, "500ns"),
            core_delay_ns=0,
            jitter_ns=table.parsed("jitter", units.parse_time, "0ns"),
            buffer_bytes=table.parsed("buffer", units.parse_size, "1MiB"),
            ecn_low_bytes=table.parsed("ecn_low", units.parse_size, "100KiB"),
            ecn_high_bytes=table.parsed("ecn_high", units.parse_size, "400KiB"),
            ecn_last_hop=table.boolean("ecn_last_hop", False),
            trimming=table.boolean("trimming", True),
            control_first=table.boolean("control_first", True),
            wake_ns=table.parsed("wake", units.parse_time, "1us"),
            wake_noise_ns=table.parsed("wake_noise", units.parse_time, "0ns"),
            mtu=table.integer("mtu", MIN_MTU, MAX_MTU, 9000),
            sndbuf_bytes=table.parsed("send_buffer", units.parse_size, "64KiB"),
        )
        topology = replace(topology, absent=_absent(table, topology))
        if table.has("oversubscription"):  # of the total rate of a T0's hosts, to its uplinks'
            if table.has("fabric_rate"):
                raise table.error(
                    "oversubscription", "sets fabric_rate, too: remove one of the two"
                )
            below = topology.host_rate_bps * topology.hosts_per_t0
            rate = below / topology.t1s_per_pod / table.number("oversubscription", 0.01, 1000.0)
            topology = replace(topology, fabric_rate_bps=round(rate))
        topology = _with_core(table, topology)
        table.close()
        if not topology.host_rate_bps or not topology.fabric_rate_bps:
            raise table.error("host_rate", "host_rate and fabric_rate must not be 0")
        if 0 < topology.ecn_high_bytes <= topology.ecn_low_bytes:
            raise table.error("ecn_high", "must be above ecn_low")
        return topology


def _switches(table: Table) -> tuple[int, int, int, int, int]:
    """The numbers of hosts, T0s, T1s, pods and T2s."""
    hosts, t2 = table.integer("hosts", 2, MAX_HOSTS), table.integer("t2", 0, MAX_T2, 0)
    t0 = table.integer("t0", 1, MAX_T0, hosts)
    t1 = table.integer("t1", 1, MAX_ALL_T1 if t2 else Topology.MAX_T1)
    pods = table.integer("pods", 1, MAX_T0, 1)
    if hosts % t0:
        remedy = f"use {multiples(hosts, t0)}"
        raise table.error("hosts", f"{hosts} is not a multiple of t0 ({t0}): {remedy}")
    if (wrong := wrong_pods(t0, t1, pods, t2)) is not None:
        raise table.error(*wrong)
    return hosts, t0, t1, pods, t2


def _with_core(table: Table, topology: Tiers) -> Tiers:
    """With what the links between T1s and T2s have: without keys of their own, what those below
    them have.
    """
    core = replace(
        topology, core_rate_bps=topology.fabric_rate_bps, core_delay_ns=topology.fabric_delay_ns
    )
    if table.has("core_rate"):
        core = replace(core, core_rate_bps=table.parsed("core_rate", units.parse_rate))
    if table.has("core_delay"):
        core = replace(core, core_delay_ns=table.parsed("core_delay", units.parse_time))
    for key in ("core_rate", "core_delay"):
        if table.has(key) and not topology.t2:
            raise table.error(key, "requires T2s: set t2 and pods")
    if not core.core_rate_bps and topology.fabric_rate_bps:
        raise table.error("core_rate", "must not be 0")
    return core


class LinkChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Other properties of a target's links, or of one direction; None: those of their tier."""

    target: str
    rate_bps: int | None = None
    delay_ns: int | None = None
    loss: float | None = None
    """share of packets lost by chance, from 0 to 1"""
    mtu: int | None = None
    """the network drops larger packets on these links"""

    @classmethod
    def read(cls, table: Table, tiers: Tiers) -> Self:
        """A table of `[[links]]`; raises ConfigError."""
        target = table.text("target")
        table.parsed("target", tiers.target)
        change = cls(
            target,
            rate_bps=table.parsed("rate", units.parse_rate) if table.has("rate") else None,
            delay_ns=table.parsed("delay", units.parse_time) if table.has("delay") else None,
            loss=table.parsed("loss", units.parse_share) / 1e6 if table.has("loss") else None,
            mtu=table.integer("mtu", MIN_MTU, tiers.mtu) if table.has("mtu") else None,
        )
        table.close()
        if change == cls(target):
            raise table.error("target", "requires rate, delay, loss or mtu")
        if change.rate_bps == 0:
            raise table.error("rate", "must not be 0")
        return change


def _absent(table: Table, topology: Tiers) -> tuple[str, ...]:
    try:
        found = topology.absent_links(table.texts("absent"))
    except ValueError as error:
        raise table.error("absent", str(error)) from error
    if len(replace(topology, absent=found).host_numbers()) < 2:
        raise table.error("absent", "leaves less than two hosts with a link")
    return found


# ---- Faults --------------------------------------------------------------------------------------


Packets = Literal["all", "control", "data"]


class TimedFault(Struct, frozen=True):
    """What befalls a part of the fabric, from one time to another."""

    NEVER: ClassVar = (1 << 64) - 1  # ns
    MTUS: ClassVar = range(1280, (1 << 16) + 1)  # from that of IPv6 to that of a loopback interface
    KINDS: ClassVar = (
        "silent", "down", "loss", "lose", "mask", "burst", "corrupt", "duplicate", "reorder",
        "delay", "jitter", "rate", "mtu",
    )  # fmt: skip
    CLASSES: ClassVar[tuple[Packets, ...]] = get_args(Packets)

    target: str
    """What fails: plane:2, t1:3.0, uplink:1.0.0, ..."""
    kind: str
    """How it fails: silent, down, loss, delay, rate, ..."""
    packets: Packets
    """Packets that it affects."""
    at_ns: int
    """Begin."""
    until_ns: int | None
    """End; None: the end of the run."""
    a: int
    """Degree: parts per million for loss, corrupt, duplicate and reorder; ns for delay and jitter;
    bit/s for rate; bytes for mtu.
    """
    b: int
    """Second number: ns for duplicate and reorder; parts per million for rate when `a` is 0."""
    every_ns: int = 0
    """Period of a repeated fault; 0: it occurs once."""
    for_ns: int = 0
    """Duration of each occurrence of a repeated fault."""
    draw: int = 0
    """Parts that the seed draws from those that a target with `*` names; 0: all of them."""

    @property
    def end_ns(self) -> int:
        """As `until_ns`; NEVER: the end of the run."""
        return self.NEVER if self.until_ns is None else self.until_ns

    @classmethod
    def read(
        cls, table: Table, parse_target: Callable[[str], object], rtt_ns: int | None = None
    ) -> Self:
        """Reads one table. `parse_target` raises ValueError for a target that does not exist.

        Raises ConfigError.
        """
        target = table.text("target")
        table.parsed("target", parse_target)
        kind = table.choice("kind", cls.KINDS)
        a, b = _degree(table, kind)
        fault = cls(
            target=target,
            kind=kind,
            packets=table.choice("packets", cls.CLASSES, "all"),
            at_ns=table.time("at", rtt_ns, "0ns"),
            until_ns=table.time("until", rtt_ns) if table.has("until") else None,
            a=a,
            b=b,
            every_ns=table.time("every", rtt_ns) if table.has("every") else 0,
            for_ns=table.time("for", rtt_ns) if table.has("for") else 0,
        )
        table.close()
        if kind == "down" and ">" in target:
            raise table.error("kind", "a link goes down in both directions: use silent for one")
        if fault.end_ns <= fault.at_ns:
            raise table.error("until", "must be later than at")
        if bool(fault.every_ns) != bool(fault.for_ns):
            raise table.error("every", "requires for, and for requires every: set both or neither")
        if fault.for_ns and fault.for_ns >= fault.every_ns:
            raise table.error("for", "must be shorter than every")
        return fault

    def occurrences(self, end_ns: int = NEVER) -> Iterator[tuple[int, int]]:
        """Begin and end in ns of each occurrence. Repeated occurrences begin before `end_ns`."""
        begin, last = self.at_ns, min(self.end_ns, end_ns)
        if not self.every_ns:
            yield begin, self.end_ns
            return
        while begin < last:
            yield begin, min(begin + self.for_ns, self.end_ns)
            begin += self.every_ns


def _degree(table: Table, kind: str) -> tuple[int, int]:
    """The two numbers of a fault, from the keys of its kind. A rate is bits a second and 0, or 0
    and a share of the link's rate in parts per million.
    """
    match kind:
        case "silent" | "down":
            return 0, 0
        case "loss" | "corrupt":
            return table.parsed("share", units.parse_share), 0
        case "lose":
            return table.integer("n", 1, 10**6), table.integer("of", 1, 10**6)
        case "mask":
            return table.integer("mask", 1, (1 << 63) - 1), 0
        case "burst":
            return table.parsed("share", units.parse_share), table.integer("length", 1, 10**6)
        case "duplicate" | "reorder":
            return table.parsed("share", units.parse_share), table.parsed("by", units.parse_time)
        case "mtu":
            return table.integer("mtu", TimedFault.MTUS[0], TimedFault.MTUS[-1]), 0
        case "delay" | "jitter":
            return table.parsed(kind, units.parse_time), 0
        case _:
            is_share = table.text("rate").endswith(("%", "ppm"))
            found = table.parsed("rate", units.parse_share if is_share else units.parse_rate)
            if found == 0:
                raise table.error("rate", "must not be 0; for a dead link use kind silent")
            return (0, found) if is_share else (found, 0)
