# SPDX-License-Identifier: Apache-2.0
"""Faults of parts of a test bed, and the nftables rules that drop packets. Pure.

Switches drop the packets, never the sending host's interface, because the sender's stack would
notice the loss there. Each packet passes exactly one lossy place of a target, so 20% loss is 20%.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from mrc.fabric.faults import LARGEST_MTU, LEAST_MTU
from mrc.fabric.targets import Target
from mrc.units import digits, quantity

LOSSY = "mrc_lossy"
"""Name of the nftables table with the losses that links have without a fault."""

_LOSS_STEPS = 10_000
_ALL_PPM = 1_000_000


class Mode(StrEnum):
    SILENT = "silent"
    """the switch drops packets, the link stays up"""
    DOWN = "down"
    """the switch's side of the link is down, and the other side loses its carrier"""


class Fault(Struct, frozen=True):
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
        if self.mtu is not None and not LEAST_MTU <= self.mtu <= LARGEST_MTU:
            raise ValueError(f"mtu is {self.mtu}, not in {LEAST_MTU}..{LARGEST_MTU}")
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
    steps = quantity(text, {"": _LOSS_STEPS // 100, "%": _LOSS_STEPS // 100}) or 0.0
    if not 0 < steps <= _LOSS_STEPS or abs(steps - round(steps)) > 1e-6:
        raise ValueError(f"{text!r} is not a percentage from 0.01% to 100%, in steps of 0.01%")
    return steps / _LOSS_STEPS


def table(target: Target) -> str:
    """Name of the nftables table that holds the target's fault."""
    return "mrc_fail_" + re.sub(r"\W", "_", str(target))


def rules(name: str, conditions: Iterable[str]) -> str:
    """nftables rules that drop the forwarded packets for which one of the conditions holds. They
    replace the earlier rules of the table.
    """
    drops = "".join(f"    {each} counter drop\n" for each in conditions)
    # A delete costs the kernel a grace period of 10 ms, even if nothing exists: flush instead.
    return (
        f"table ip6 {name} {{\n"
        "  chain forward {\n"
        "    type filter hook forward priority filter\n"
        "  }\n"
        "}\n"
        f"flush chain ip6 {name} forward\n"
        f"table ip6 {name} {{\n"
        "  chain forward {\n"
        f"{drops}"
        "  }\n"
        "}\n"
    )


def by_chance(match: str, loss: float) -> str:
    """A condition that holds for a share of the packets that match."""
    ppm = round(loss * _ALL_PPM)
    return match if ppm == _ALL_PPM else f"{match} numgen random mod {_ALL_PPM} < {ppm}"


def no_rules(target: Target) -> str:
    """nftables commands that end a fault, or do nothing if there is none."""
    return f"table ip6 {table(target)}\ndelete table ip6 {table(target)}\n"
