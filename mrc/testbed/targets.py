# SPDX-License-Identifier: Apache-2.0
"""What can fail in a test bed, and where a fault has to be put. Pure.

Faults sit in the switches, never on the interface of the host that sends: its stack would see
them there. A lossy place is one that each packet passes exactly once per target, so that 20% is
20%.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from mrc.fabric.topology import Topology
from mrc.testbed.names import t0_name, t1_name

FORMS = "plane:P, t0:P.N, t1:P.S, link:hH.P or uplink:P.N.S"

_TARGET = re.compile(
    r"plane:(?P<plane>\d+)"
    r"|t1:(?P<t1>\d+\.\d+)"
    r"|t0:(?P<t0>\d+\.\d+)"
    r"|link:h(?P<link>\d+\.\d+)"
    r"|uplink:(?P<uplink>\d+\.\d+\.\d+)"
)
_LOSS = re.compile(r"(\d+(?:\.\d{1,2})?)%?")
_LOSS_STEPS = 10_000


class Mode(StrEnum):
    SILENT = "silent"
    """packets vanish, the link stays up"""
    DOWN = "down"
    """the switch's side of the link is down, and the other side sees it"""


@dataclass(frozen=True, slots=True)
class Target:
    """A plane, switch or link of a fabric, by its numbers (None: does not apply)."""

    kind: str
    plane: int
    host: int | None = None
    t0: int | None = None
    t1: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case "plane":
                return f"plane:{self.plane}"
            case "t1":
                return f"t1:{self.plane}.{self.t1}"
            case "t0":
                return f"t0:{self.plane}.{self.t0}"
            case "link":
                return f"link:h{self.host}.{self.plane}"
            case _:
                return f"uplink:{self.plane}.{self.t0}.{self.t1}"


@dataclass(frozen=True, slots=True)
class Fault:
    """How a target fails. With anything of what follows `loss`, loss may be 0."""

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
    """so much later at most comes what is reordered, or the second of two"""
    delay_ns: int = 0
    """added to every packet"""
    jitter_ns: int = 0
    """added at random, up to this; order is kept"""
    rate_bps: int | None = None
    """of every link of the target"""
    rate_share: float = 0.0
    """the same as a share of what these links have; 0: all"""

    def __post_init__(self) -> None:
        if not (0 if self.is_impairment else 1e-9) <= self.loss <= 1:
            raise ValueError(f"loss is {self.loss}, not above 0 and up to 1")
        if self.mode is Mode.DOWN and (self.loss != 1 or self.is_impairment):
            raise ValueError("a target that is down loses everything: loss goes with silent")
        for share in (self.corrupt, self.duplicate, self.reorder, self.rate_share):
            if not 0 <= share <= 1:
                raise ValueError(f"a share is {share}, not in 0..1")

    @property
    def is_impairment(self) -> bool:
        """Whether it does more than lose packets."""
        return self.touches_packets or self.cuts_rate

    @property
    def touches_packets(self) -> bool:
        """Whether those that are not lost arrive otherwise than they were sent."""
        shares = (self.corrupt, self.duplicate, self.reorder)
        return any((*shares, self.delay_ns, self.jitter_ns))

    @property
    def cuts_rate(self) -> bool:
        return bool(self.rate_bps or self.rate_share)

    def rate_of(self, link_bps: int | None) -> int | None:
        """Bits a second that it leaves a link of so many; None: no limit.

        Raises ValueError for a share of no limit.
        """
        if self.rate_share and link_bps is None:
            raise ValueError("a link without a rate has none to take a share of")
        share = max(1, round((link_bps or 0) * self.rate_share)) if self.rate_share else None
        return min((rate for rate in (self.rate_bps, share, link_bps) if rate), default=None)

    def __str__(self) -> str:
        if not self.is_impairment:
            return self.mode if self.loss == 1 else f"loss {self.loss:.2%}"
        names = ("loss", "corrupt", "duplicate", "reorder")
        shares = [(name, getattr(self, name)) for name in names]
        words = [f"{name} {share:.2%}" for name, share in shares if share]
        words += [f"delay +{self.delay_ns / 1000:g} us"] if self.delay_ns else []
        words += [f"jitter {self.jitter_ns / 1000:g} us"] if self.jitter_ns else []
        words += [f"rate {self.rate_bps / 1e6:g} Mbit/s"] if self.rate_bps else []
        words += [f"rate {self.rate_share:.2%} of its own"] if self.rate_share else []
        return ", ".join(words)


def parse_target(text: str, fabric: Topology) -> Target:
    """Raises ValueError for what is no target, or not in this fabric."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ValueError(f"target {text!r} is not {FORMS}")
    kind = str(match.lastgroup)
    target = _target(kind, [int(number) for number in match[kind].split(".")])
    if target.plane not in fabric.plane_numbers():
        raise ValueError(f"target {text}: no plane {target.plane}, they are 1..{fabric.planes}")
    if target.host is not None and target.host not in fabric.host_numbers():
        raise ValueError(f"target {text}: no host h{target.host}, they are 0..{fabric.hosts - 1}")
    if target.t0 is not None and target.t0 not in fabric.t0_numbers():
        raise ValueError(f"target {text}: no T0 {target.t0}, they are 0..{fabric.t0 - 1}")
    if target.t1 is not None and target.t1 not in fabric.t1_numbers():
        raise ValueError(f"target {text}: no T1 {target.t1}, they are 0..{fabric.t1 - 1}")
    return target


def _target(kind: str, numbers: list[int]) -> Target:
    match kind, numbers:
        case "t1", [plane, t1]:
            return Target(kind, plane, t1=t1)
        case "t0", [plane, t0]:
            return Target(kind, plane, t0=t0)
        case "link", [host, plane]:
            return Target(kind, plane, host)
        case "uplink", [plane, t0, t1]:
            return Target(kind, plane, t0=t0, t1=t1)
    return Target(kind, numbers[0])


def parse_loss(text: str) -> float:
    """A percentage such as `20%` or `0.5%`, as a share."""
    match = _LOSS.fullmatch(text)
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"loss {text!r} is not a percentage above 0% and up to 100%")
    return share


def all_links(fabric: Topology) -> list[Target]:
    """Every link: in each plane first those of the hosts, then the uplinks."""
    found = []
    for plane in fabric.plane_numbers():
        found += [Target("link", plane, host) for host in fabric.host_numbers()]
        for t0 in fabric.t0_numbers():
            found += [Target("uplink", plane, t0=t0, t1=t1) for t1 in fabric.t1_numbers()]
    return found


def links_of(target: Target, fabric: Topology) -> list[Target]:
    """The links that belong to a target."""
    found = [link for link in all_links(fabric) if link.plane == target.plane]
    match target.kind:
        case "plane":
            return found
        case "t0":
            return [link for link in found if _t0_of(link, fabric) == target.t0]
        case "t1":
            return [link for link in found if link.t1 == target.t1]
    return [target]


def _t0_of(link: Target, fabric: Topology) -> int:
    """The T0 at a link's one end."""
    if link.t0 is not None:
        return link.t0
    assert link.host is not None
    return fabric.t0_of(link.host)


def links(target: Target, fabric: Topology) -> list[tuple[str, str]]:
    """Node and interface of every link end that goes down with the target.

    Never a single link of a T1, whose shifting hangs on one of them.
    """
    if target.kind == "t1":
        assert target.t1 is not None
        node = t1_name(target.plane, target.t1)
        return [(node, f"t0-{t0}") for t0 in fabric.t0_numbers()]
    return [
        (
            t0_name(target.plane, _t0_of(link, fabric)),
            f"t1-{link.t1}" if link.host is None else f"h{link.host}",
        )
        for link in links_of(target, fabric)
    ]


def table(target: Target) -> str:
    """Name of the nftables table that holds the target's fault."""
    return "mrc_fail_" + re.sub(r"\W", "_", str(target))


def rules(target: Target, fault: Fault, matches: tuple[str, ...]) -> str:
    """nftables rules that drop forwarded packets, in place of earlier ones of the target."""
    steps = round(fault.loss * _LOSS_STEPS)
    chance = "" if steps == _LOSS_STEPS else f"numgen random mod {_LOSS_STEPS} < {steps} "
    drops = "".join(f"    {match} {chance}counter drop\n" for match in matches)
    # To delete anything takes the kernel a grace period of 10 ms, even where there is nothing.
    return (
        f"table ip6 {table(target)} {{\n"
        "  chain forward {\n"
        "    type filter hook forward priority filter\n"
        "  }\n"
        "}\n"
        f"flush chain ip6 {table(target)} forward\n"
        f"table ip6 {table(target)} {{\n"
        "  chain forward {\n"
        f"{drops}"
        "  }\n"
        "}\n"
    )


def no_rules(target: Target) -> str:
    """nftables commands that end a fault, whether or not it is there."""
    return f"table ip6 {table(target)}\ndelete table ip6 {table(target)}\n"
