# SPDX-License-Identifier: Apache-2.0
"""Routes of the kernel as data, also those that act on carriers of SRv6: a plan needs no socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network

from msgspec import Struct

LOCAL_TABLE = 255
"""the routing table that holds a host's own addresses"""


class EncapRed(Struct, frozen=True):
    """Put the packet into an IPv6 packet to the first segment. More segments go into an SRH."""

    segments: tuple[IPv6Address, ...]


class EndUN(Struct, frozen=True):
    """Shift the carrier by one uSID and route the packet again (End with NEXT-C-SID)."""

    block_bits: int = 32
    usid_bits: int = 16


class EndDT6(Struct, frozen=True):
    """Take the packet out of its carrier and look its own destination up in a table."""

    table: int = LOCAL_TABLE


@dataclass(frozen=True, slots=True)
class Route:
    """One IPv6 route of the kernel."""

    dst: IPv6Network
    dev: str
    via: IPv6Address | None = None
    """next hop; None if the destination is on the link, or the packet is not forwarded"""
    src: IPv6Address | None = None
    """source address for packets of a socket that is not bound to one"""
    action: EncapRed | EndUN | EndDT6 | None = None
    local: bool = False
    """every address of dst is the host's own"""
    metric: int = 1024  # the kernel's metric for a route without one
    """the kernel uses the route with the smallest metric"""
    shared: bool = field(default=False, compare=False)
    """one of several routes to dst, among which the kernel divides the flows (ECMP)"""
