# SPDX-License-Identifier: Apache-2.0
"""Routes of the kernel as data, also those that act on carriers of SRv6: a plan needs no socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from typing import ClassVar, Literal

from msgspec import Struct


class Srv6Action(Struct, frozen=True):
    """encap.red: put the packet into an IPv6 packet to the first segment; more segments go into an
    SRH. End: shift the carrier by one uSID and route the packet again (with NEXT-C-SID). End.DT6:
    take the packet out of its carrier and look its own destination up in the local table.
    """

    behaviour: Literal["encap.red", "End", "End.DT6"]
    segments: tuple[IPv6Address, ...] = ()
    """of encap.red"""
    block_bits: int = 32
    """of End, as below"""
    usid_bits: int = 16


@dataclass(frozen=True, slots=True)
class Route:
    """One IPv6 route of the kernel."""

    LOCAL_TABLE: ClassVar = 255
    """the routing table that holds a host's own addresses"""

    dst: IPv6Network
    dev: str
    via: IPv6Address | None = None
    """next hop; None if the destination is on the link, or the packet is not forwarded"""
    src: IPv6Address | None = None
    """source address for packets of a socket that is not bound to one"""
    action: Srv6Action | None = None
    local: bool = False
    """every address of dst is the host's own"""
    metric: int = 1024  # the kernel's metric for a route without one
    """the kernel uses the route with the smallest metric"""
    shared: bool = field(default=False, compare=False)
    """one of several routes to dst, among which the kernel divides the flows (ECMP)"""
