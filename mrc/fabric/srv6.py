# SPDX-License-Identifier: Apache-2.0
"""MRC's part of SRv6: uSIDs, the carriers that hold them, and routes that act on carriers.

Pure arithmetic and data; `mrc.linux.netlink` writes the routes to the kernel.

A carrier (F3216) is an IPv6 address. A switch whose uSID comes first shifts the rest forward and
routes the packet by the result. One destination address therefore holds the whole path:

    | locator block: 32 bits | uSID | uSID | uSID | uSID | uSID | uSID |    16 bits each; 0 = none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network

from msgspec import Struct

BLOCK_BITS = 32
USID_BITS = 16
USIDS_PER_CARRIER = (128 - BLOCK_BITS) // USID_BITS

# The routing table that holds a host's own addresses.
LOCAL_TABLE = 255
# The kernel's metric for a route without one.
DEFAULT_METRIC = 1024

_MAX_USID = (1 << USID_BITS) - 1


def pack(block: IPv6Network, usids: Sequence[int]) -> IPv6Address:
    """Put one to six uSIDs, in the order of their use, into a carrier of the locator block."""
    if block.prefixlen != BLOCK_BITS:
        raise ValueError(f"locator block {block} is not a /{BLOCK_BITS}")
    if not 1 <= len(usids) <= USIDS_PER_CARRIER:
        raise ValueError(f"a carrier holds 1 to {USIDS_PER_CARRIER} uSIDs, not {len(usids)}")
    carrier = block.network_address.packed[: BLOCK_BITS // 8]
    for usid in usids:
        _check_usid(usid)
        carrier += usid.to_bytes(USID_BITS // 8)
    return IPv6Address(carrier.ljust(16, b"\0"))


def segments(
    block: IPv6Network, usids: Sequence[int], each: int = USIDS_PER_CARRIER
) -> tuple[IPv6Address, ...]:
    """The segment list for any number of uSIDs, `each` to a carrier. One carrier needs no SRH."""
    if not usids:
        raise ValueError("a segment list requires at least one uSID")
    return tuple(pack(block, usids[start : start + each]) for start in range(0, len(usids), each))


def locator(block: IPv6Network, usid: int) -> IPv6Network:
    """The prefix that routes to the node with this uSID inside a locator block."""
    return IPv6Network((pack(block, (usid,)), BLOCK_BITS + USID_BITS))


def format_usid(usid: int) -> str:
    """Four hex digits, as in the carrier."""
    _check_usid(usid)
    return f"{usid:04x}"


def _check_usid(usid: int) -> None:
    if not 1 <= usid <= _MAX_USID:
        raise ValueError(f"uSID {usid:#x} is not in 0x1..{_MAX_USID:#x}")


class EncapRed(Struct, frozen=True):
    """Put the packet into an IPv6 packet to the first segment. More segments go into an SRH."""

    segments: tuple[IPv6Address, ...]


class EndUN(Struct, frozen=True):
    """Shift the carrier by one uSID and route the packet again (End with NEXT-C-SID)."""

    block_bits: int = BLOCK_BITS
    usid_bits: int = USID_BITS


class EndDT6(Struct, frozen=True):
    """Take the packet out of its carrier and look its own destination up in a table."""

    table: int


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
    metric: int = DEFAULT_METRIC
    """the kernel uses the route with the smallest metric"""
    shared: bool = field(default=False, compare=False)
    """one of several routes to dst, among which the kernel divides the flows (ECMP)"""
