# SPDX-License-Identifier: Apache-2.0
"""Faults of a test bed, the hops that they affect, and the nftables rules that drop packets. Pure.

A hop is one direction of a link with the port that sends on it. Every packet passes one hop of a
target, so 20% loss is 20% and 1 ms of delay is 1 ms. Switches drop the packets, never the sending
host's interface, because the sender's stack would notice the loss there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import compress
from typing import Any, Literal, NamedTuple, Self

from msgspec import Struct

from mrc import units
from mrc.results import KEYS, like
from mrc.testbed.shape import (
    FABRIC,
    MIN_RATE_BPS,
    LinkProperties,
    Shape,
    host_name,
    interface_name,
    parse_rate,
    t0_name,
    t1_name,
    t2_name,
)
from mrc.testbed.tiers import TimedFault
from mrc.testbed.topology import Target, Topology
from mrc.units import digits

LOSSY = "mrc_lossy"
"""Name of the nftables table with the losses that links have without a fault."""

_LOSS_STEPS = 10_000
_ALL_PPM = 1_000_000
_SHARES = {each: f"{each}_share" for each in ("loss", "corrupt", "duplicate", "reorder")}


class Mode(StrEnum):
    SILENT = "silent"
    """the switch drops packets, the link stays up"""
    DOWN = "down"
    """the switch's side of the link is down, and the other side loses its carrier"""


class TargetFault(Struct, frozen=True, kw_only=True, rename=KEYS | _SHARES):
    """What fails, and how. A share is a part of all packets, from 0 to 1."""

    target: str
    """What fails: plane:2, t1:3.0, link:h0.1, ..."""
    mode: Literal["silent", "down"]
    """silent: packets are dropped and the link stays up; down: the link is down."""
    loss: float
    """Packets dropped."""
    corrupt: float
    """Packets in which a bit is flipped."""
    duplicate: float
    """Packets delivered twice."""
    reorder: float
    """Packets delivered late."""
    reorder_ns: int | None
    """Delay of reordered and duplicate packets at most; null: there are none."""
    delay_ns: int
    """Delay added to every packet."""
    jitter_ns: int
    """Random delay added at most; the order of packets is kept."""
    rate_bps: int | None
    """Rate of each link of the target; null: its own."""
    rate_share: float | None
    """Rate of each link as a share of its own; null: all of it."""
    mtu: int | None
    """Size of the largest IPv6 packet that is not lost; null: that of each link."""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """The fault of a target. If any field after `loss` is set, loss may be 0."""

    mode: Mode = Mode.SILENT
    loss: float = 1.0
    """share of packets lost, in steps of 0.0001; below 1 only when silent"""
    corrupt: float = 0.0
    """share of packets in which a bit flips"""
    duplicate: float = 0.0
    """share of packets that arrive twice"""
    reorder: float = 0.0
    """share of packets that arrive later"""
    by_ns: int = 1_000_000
    """largest extra delay of a reordered packet or of a duplicate"""
    delay_ns: int = 0
    """added to every packet"""
    jitter_ns: int = 0
    """largest random addition to the delay; it keeps the order"""
    rate_bps: int | None = None
    """limit of every link of the target"""
    rate_share: float = 0.0
    """limit as a share of each link's own rate; 0: no limit"""
    mtu: int | None = None
    """size of the largest IPv6 packet that is not lost; None: that of each link"""

    def __post_init__(self) -> None:
        if not 0 <= self.loss <= 1:
            raise ValueError(f"loss is {self.loss}, not in 0..1")
        if self.mode is Mode.DOWN and (self.loss != 1 or self.is_impairment):
            raise ValueError("a target that is down drops all packets: use mode silent for a share")
        for share in (self.corrupt, self.duplicate, self.reorder, self.rate_share):
            if not 0 <= share <= 1:
                raise ValueError(f"share is {share}, not in 0..1")
        if self.mtu is not None and self.mtu not in (mtus := TimedFault.MTUS):
            raise ValueError(f"mtu is {self.mtu}, not in {mtus[0]}..{mtus[-1]}")
        if not self.loss and not self.is_impairment:
            raise ValueError("the fault has no effect: give a loss, a delay or a rate above 0")

    @property
    def is_dead(self) -> bool:
        """Whether no packet passes."""
        return self.loss == 1

    @property
    def is_impairment(self) -> bool:
        """Whether the fault has an effect besides loss."""
        return self.touches_packets or self.cuts_rate or self.mtu is not None

    @property
    def touches_packets(self) -> bool:
        """Whether the fault delays, corrupts, duplicates or reorders packets."""
        shares = (self.corrupt, self.duplicate, self.reorder)
        return any((*shares, self.delay_ns, self.jitter_ns))

    @property
    def cuts_rate(self) -> bool:
        return bool(self.rate_bps or self.rate_share)

    def rate_of(self, link_bps: int | None) -> int | None:
        """The rate of a link under this fault, from its usual rate, in bits a second.

        None: no limit. Raises ValueError for a share of a link without a limit.
        """
        if self.rate_share and link_bps is None:
            raise ValueError("the link has no rate limit: give the rate in bit/s, not as a share")
        share = max(1, round((link_bps or 0) * self.rate_share)) if self.rate_share else None
        return min((rate for rate in (self.rate_bps, share, link_bps) if rate), default=None)

    def result(self, target: str) -> TargetFault:
        """For programs, as the fault of a target."""
        return like(
            TargetFault,
            self,
            target=target,
            reorder_ns=self.by_ns if self.duplicate or self.reorder else None,
            rate_share=self.rate_share or None,
        )

    def __str__(self) -> str:
        if not self.is_impairment:
            return self.mode if self.loss == 1 else f"loss {self.loss:.2%}"
        names = ("loss", "corrupt", "duplicate", "reorder")
        shares = [(name, getattr(self, name)) for name in names]
        words = [f"{name} {share:.2%}" for name, share in shares if share]
        words += [f"delay +{digits(self.delay_ns / 1000)} us"] if self.delay_ns else []
        words += [f"jitter {digits(self.jitter_ns / 1000)} us"] if self.jitter_ns else []
        words += [f"rate {digits(self.rate_bps / 1e6)} Mbit/s"] if self.rate_bps else []
        words += [f"rate {self.rate_share:.2%} of its own"] if self.rate_share else []
        words += [f"MTU {self.mtu}"] if self.mtu else []
        return ", ".join(words)


def parse_loss(text: str) -> float:
    """A percentage such as `20%` or `0.5%`, as a share."""
    steps = units.quantity(text, {"": _LOSS_STEPS // 100, "%": _LOSS_STEPS // 100}) or 0.0
    if not 0 < steps <= _LOSS_STEPS or abs(steps - round(steps)) > 1e-6:
        raise ValueError(f"{text!r} is not a percentage from 0.01% to 100%, in steps of 0.01%")
    return steps / _LOSS_STEPS


def rate_fields(text: str) -> dict[str, Any]:
    """The fields of a Fault for a rate such as `50mbit`, or a share of each link's own: `10%`."""
    if text.endswith("%"):
        return {"rate_share": parse_loss(text)}
    rate_bps = parse_rate(text)
    if rate_bps is None or rate_bps < MIN_RATE_BPS:
        raise ValueError(f"{text!r} is not a rate of at least 1kbit")
    return {"rate_bps": rate_bps}


def table_of(target: Target) -> str:
    """Name of the nftables table that holds the target's fault."""
    return "mrc_fail_" + re.sub(r"\W", "_", str(target))


def drop_rules(name: str, conditions: Iterable[str]) -> str:
    """nftables rules that drop the forwarded packets for which one of the conditions holds. They
    replace the earlier rules of the table.
    """
    drops = "".join(f"    {each} counter drop\n" for each in conditions)
    # A delete costs the kernel a grace period of 10 ms, even if nothing exists: flush instead.
    return f"""\
table ip6 {name} {{
  chain forward {{
    type filter hook forward priority filter
  }}
}}
flush chain ip6 {name} forward
table ip6 {name} {{
  chain forward {{
{drops}  }}
}}
"""


def by_chance(match: str, loss: float) -> str:
    """A condition that holds for a share of the packets that match."""
    ppm = round(loss * _ALL_PPM)
    return match if ppm == _ALL_PPM else f"{match} numgen random mod {_ALL_PPM} < {ppm}"


def no_drop_rules(target: Target) -> str:
    """nftables commands that end a fault, or do nothing if there is none."""
    return f"table ip6 {table_of(target)}\ndelete table ip6 {table_of(target)}\n"


# ---- Hops ----------------------------------------------------------------------------------------


SOCKET = "fabric.sock"

# The order is that of the enums in csrc/sim/emu.h.
HOP_KINDS = ("host-up", "host-down", "t0-up", "t1-down", "t1-up", "t2-down")
HOST_UP, HOST_DOWN, T0_UP, T1_DOWN, T1_UP, T2_DOWN = HOP_KINDS


class Hop(NamedTuple):
    """One of six: from a host to its T0, from a T0 to a T1, from a T1 to a T2, or back."""

    kind: str
    plane: int
    switch: int
    """number of the T0, or of the T1 of a link to a T2"""
    end: int
    """number of the host, T1 or T2 at the other end"""

    @classmethod
    def both_ways(cls, link: Target, fabric: Topology) -> tuple[Self, Self]:
        """Both directions of a link, up first."""
        host, plane, t1, t2 = link.host, link.plane, link.t1, link.t2
        if host is not None:
            t0 = fabric.t0_of(host)
            return cls(HOST_UP, plane, t0, host), cls(HOST_DOWN, plane, t0, host)
        assert t1 is not None
        if t2 is not None:
            return cls(T1_UP, plane, t1, t2), cls(T2_DOWN, plane, t1, t2)
        assert link.t0 is not None
        return cls(T0_UP, plane, link.t0, t1), cls(T1_DOWN, plane, link.t0, t1)

    @classmethod
    def every(cls, shape: Shape) -> dict[Self, LinkProperties]:
        """Every hop, plane by plane, with its properties without faults."""
        return {
            hop: properties
            for link, both in shape.link_properties().items()
            for hop, properties in zip(cls.both_ways(link, shape), both, strict=True)
        }

    def __str__(self) -> str:
        near = "t1" if self.kind in (T1_UP, T2_DOWN) else "t0"
        far = {HOST_UP: "h", HOST_DOWN: "h", T0_UP: "t1", T1_DOWN: "t1"}.get(self.kind, "t2")
        switch = f"{near}:{self.plane}.{self.switch}"
        end = f"h{self.end}" if far == "h" else f"{far}:{self.plane}.{self.end}"
        return f"{switch}>{end}" if self.kind in (HOST_DOWN, T0_UP, T1_UP) else f"{end}>{switch}"

    @property
    def port(self) -> tuple[str, str]:
        """Node and interface that send on it, in a kernel fabric."""
        match self.kind:
            case "host-up":
                return host_name(self.end), f"p{self.plane}"
            case "host-down":
                return t0_name(self.plane, self.switch), host_name(self.end)
            case "t0-up":
                return t0_name(self.plane, self.switch), f"t1-{self.end}"
            case "t1-down":
                return t1_name(self.plane, self.end), f"t0-{self.switch}"
            case "t1-up":
                return t1_name(self.plane, self.switch), f"t2-{self.end}"
        return t2_name(self.plane, self.end), f"t1-{self.switch}"


FaultRow = tuple[str, int, int]
"""kind and its two numbers, see csrc/sim/emu.h"""


def hops_of(target: Target, fabric: Topology) -> list[Hop]:
    """The lossy hops of a target. Each packet through the target passes exactly one of them."""
    kinds = {
        "all": (HOST_UP,),
        "plane": (HOST_UP,),
        "t0": (HOST_UP, T1_DOWN),
        "t1": (T1_DOWN, T1_UP),
        "t2": (T2_DOWN,),
    }
    return [
        hop for hop in all_hops_of(target, fabric) if hop.kind in kinds.get(target.kind, HOP_KINDS)
    ]


def all_hops_of(target: Target, fabric: Topology) -> list[Hop]:
    """Both directions of all links of a target, or the one that it names."""
    return [
        hop
        for link in fabric.links_of(target)
        for hop in compress(Hop.both_ways(link, fabric), target.ways)
    ]


def filters_of(target: Target, fabric: Topology) -> dict[str, dict[str, Hop]]:
    """In a kernel fabric: node -> nftables match -> the hop of the matched packets.

    All nodes are switches. At a host, its stack would notice the loss.
    """
    return _filters(hops_of(target, fabric))


Drops = dict[str, list[tuple[str, Hop]]]
"""Node -> nftables conditions of the packets that it drops, in the order of its rules, each with
the hop of these packets.
"""


def dropped_by(target: Target, fault: Fault, fabric: Topology) -> Drops:
    """What nftables drops in a kernel fabric because of a fault."""
    found: Drops = {}
    for node, matches in filters_of(target, fabric).items() if fault.mode is Mode.SILENT else ():
        for match, hop in matches.items():
            # A host would notice a limit of its own port, and send smaller packets. Those of
            # switches have limits of their own (`mrc.testbed.build`).
            if fault.mtu is not None and hop.kind == HOST_UP:
                found.setdefault(node, []).append((f"{match} meta length > {fault.mtu}", hop))
            if fault.loss:
                found.setdefault(node, []).append((by_chance(match, fault.loss), hop))
    return found


def lossy(shape: Shape) -> Drops:
    """What nftables drops in a kernel fabric without a fault."""
    usual = Hop.every(shape)
    matches = _filters(hop for hop, its in usual.items() if its.loss)
    return {
        node: [(by_chance(match, usual[hop].loss), hop) for match, hop in found.items()]
        for node, found in matches.items()
    }


def _filters(hops: Iterable[Hop]) -> dict[str, dict[str, Hop]]:
    found: dict[str, dict[str, Hop]] = {}
    for hop in hops:
        node, interface = hop.port
        match = f"oifname {interface}"
        if hop.kind == HOST_UP:
            node, match = t0_name(hop.plane, hop.switch), f"iifname {host_name(hop.end)}"
        found.setdefault(node, {})[match] = hop
    return found


def emulated_ends(target: Target, fabric: Topology) -> list[tuple[str, str]]:
    """Node and interface of every link end that goes down with the target, in an emulated fabric.

    Only links of hosts have interfaces there.
    """
    return [
        (FABRIC, interface_name(link.host, link.plane))
        for link in fabric.links_of(target)
        if link.host is not None
    ]


def kernel_ends(target: Target, fabric: Topology) -> list[tuple[str, str]]:
    """Node and interface of every link end that goes down with the target, in a kernel fabric.

    The lower end of a link between switches goes down, because the upper switch's route that shifts
    needs its own end. Only a whole T1 or T2 loses its ends.
    """
    whole = {"t1": (T1_DOWN, T1_UP), "t2": (T2_DOWN,)}
    kinds = whole.get(target.kind, (HOST_DOWN, T0_UP, T1_UP))
    return [hop.port for hop in all_hops_of(target, fabric) if hop.kind in kinds]


def place_faults(faults: Mapping[Target, Fault], shape: Shape) -> dict[Hop, list[FaultRow]]:
    """The combined faults of every failing hop.

    Raises ValueError for a share of a link without a rate.
    """
    usual = Hop.every(shape)
    suffered: dict[Hop, list[Fault]] = {}
    rates: dict[Hop, list[int]] = {}
    mtus: dict[Hop, int] = {}
    for target, fault in faults.items():
        for hop in hops_of(target, shape):
            suffered.setdefault(hop, []).append(fault)
            if fault.mtu is not None:
                mtus[hop] = min(fault.mtu, mtus.get(hop, usual[hop].mtu))
        for hop in all_hops_of(target, shape) if fault.cuts_rate else ():
            rates.setdefault(hop, []).append(fault.rate_of(usual[hop].rate_bps) or 0)
    placed = {hop: _rows(found, usual[hop], shape.jitter_ns) for hop, found in suffered.items()}
    for hop, found in rates.items():
        placed.setdefault(hop, []).append(("rate", min(found), 0))
    for hop, mtu in mtus.items():
        placed[hop].append(("mtu", mtu, 0))
    return placed


def _rows(faults: list[Fault], usual: LinkProperties, jitter_ns: int) -> list[FaultRow]:
    """Combines faults of one hop: chances are independent, delays add up."""
    rows: list[FaultRow] = []
    for kind in ("loss", "corrupt", "duplicate", "reorder"):
        spared = math.prod(1 - float(getattr(fault, kind)) for fault in faults)
        spared *= 1 - usual.loss if kind == "loss" else 1
        ppm = round((1 - spared) * _ALL_PPM)
        if kind == "loss" and ppm == _ALL_PPM:
            rows.append(("silent", 0, 0))
        elif ppm > 0:
            rows.append((kind, ppm, max(fault.by_ns for fault in faults)))
    delay_ns = usual.delay_ns + sum(fault.delay_ns for fault in faults)
    jitter_ns += sum(fault.jitter_ns for fault in faults)
    return [*rows, ("delay", delay_ns, 0), ("jitter", jitter_ns, 0)]


def decode_faults(stored: list[Any]) -> dict[Hop, list[FaultRow]]:
    """The result of `place`, from its items after JSON."""
    return {Hop(*hop): [(kind, a, b) for kind, a, b in rows] for hop, rows in stored}
