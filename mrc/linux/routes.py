# SPDX-License-Identifier: Apache-2.0
"""Routes of the kernel, also those that act on carriers of SRv6, and their messages as bytes.

pyroute2 lacks the encap.red mode and the NEXT-C-SID flavour of End, and takes ten times as long: a
test bed may have 100,000 routes.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from msgspec import Struct

from mrc.errors import NetlinkError
from mrc.linux.rtnetlink import attribute, attributes

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


# ---- Messages ------------------------------------------------------------------------------------


_MAIN_TABLE = 254
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_PROTOCOL_STATIC = 4
_HEADER = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
_HOP = struct.Struct("=HBBi")  # length, flags, hops, interface
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC = 1, 4, 5, 6, 7
_RTA_MULTIPATH, _RTA_ENCAP_TYPE, _RTA_ENCAP = 9, 21, 22
_NESTED = 1 << 15

_LWTUNNEL_SEG6, _LWTUNNEL_SEG6_LOCAL = 5, 7
_SEG6_IPTUNNEL_SRH, _MODE_ENCAP_RED = 1, 3
_SRH = struct.Struct("=iBBBBBBH")  # mode, then the SRH: next, length, type, left, first, flags, tag
_SRH_TYPE = 4
_LOCAL_ACTION, _LOCAL_TABLE, _LOCAL_FLAVORS = 1, 3, 11
_ACTION_END, _ACTION_END_DT6 = 1, 7
_FLAVOR_OPERATION, _FLAVOR_BLOCK_BITS, _FLAVOR_USID_BITS = 1, 2, 3
_NEXT_CSID = 1 << 4

# The first release with both encap.red and NEXT-C-SID.
SEG6_NEEDS = "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL"

ALL = _HEADER.pack(socket.AF_INET6, *[0] * 8)
"""the request for all IPv6 routes"""


def encode_route(route: Route, index: int) -> bytes:
    """The request to add a route; `index` is its interface."""
    table, kind = (LOCAL_TABLE, _RTN_LOCAL) if route.local else (_MAIN_TABLE, _RTN_UNICAST)
    length = route.dst.prefixlen
    body = _HEADER.pack(socket.AF_INET6, length, 0, 0, table, _PROTOCOL_STATIC, 0, kind, 0)
    body += attribute(_RTA_DST, route.dst.network_address.packed)
    body += attribute(_RTA_OIF, _u32(index)) + attribute(_RTA_PRIORITY, _u32(route.metric))
    if route.via is not None:
        body += attribute(_RTA_GATEWAY, route.via.packed)
    if route.src is not None:
        body += attribute(_RTA_PREFSRC, route.src.packed)
    if isinstance(route.action, EncapRed):
        last = len(route.action.segments) - 1
        srh = _SRH.pack(_MODE_ENCAP_RED, 0, 2 * last + 2, _SRH_TYPE, last, last, 0, 0)
        srh += b"".join(each.packed for each in reversed(route.action.segments))
        body += attribute(_RTA_ENCAP_TYPE, _u16(_LWTUNNEL_SEG6))
        body += attribute(_RTA_ENCAP | _NESTED, attribute(_SEG6_IPTUNNEL_SRH, srh))
    elif route.action is not None:
        body += attribute(_RTA_ENCAP_TYPE, _u16(_LWTUNNEL_SEG6_LOCAL))
        body += attribute(_RTA_ENCAP | _NESTED, _local(route.action))
    return body


def encode_gateway(via: IPv4Address, index: int) -> bytes:
    """The request to add the IPv4 default route over a next hop."""
    body = _HEADER.pack(socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _PROTOCOL_STATIC, 0, _RTN_UNICAST, 0)
    return body + attribute(_RTA_OIF, _u32(index)) + attribute(_RTA_GATEWAY, via.packed)


def _local(action: EndUN | EndDT6) -> bytes:
    if isinstance(action, EndDT6):
        kind = attribute(_LOCAL_ACTION, _u32(_ACTION_END_DT6))
        return kind + attribute(_LOCAL_TABLE, _u32(action.table))
    flavors = attribute(_FLAVOR_OPERATION, _u32(_NEXT_CSID))
    flavors += attribute(_FLAVOR_BLOCK_BITS, bytes([action.block_bits]))
    flavors += attribute(_FLAVOR_USID_BITS, bytes([action.usid_bits]))
    kind = attribute(_LOCAL_ACTION, _u32(_ACTION_END))
    return kind + attribute(_LOCAL_FLAVORS | _NESTED, flavors)


def decode_routes(body: bytes, names: Mapping[int, str]) -> Iterator[Route]:
    """The unicast routes of tables main and local in a message, over these interfaces. The kernel
    lists routes that share a destination as one.
    """
    _, length, _, _, table, _, _, kind, _ = _HEADER.unpack_from(body)
    if table not in (_MAIN_TABLE, LOCAL_TABLE) or kind not in (_RTN_UNICAST, _RTN_LOCAL):
        return
    whole = attributes(body, _HEADER.size)
    dst = IPv6Network((whole.get(_RTA_DST, bytes(16)), length))
    metric = _int(whole, _RTA_PRIORITY)
    shared = whole.get(_RTA_MULTIPATH)
    hops = [(_int(whole, _RTA_OIF), whole)] if shared is None else _hops(shared)
    for index, hop in hops:
        if index in names:
            yield Route(
                dst=dst,
                dev=names[index],
                via=_address(hop.get(_RTA_GATEWAY)),
                src=_address(whole.get(_RTA_PREFSRC)),
                action=_action(hop),
                local=kind == _RTN_LOCAL,
                metric=metric,
                shared=shared is not None,
            )


def _hops(data: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Interface and attributes of each route that shares a destination."""
    start = 0
    while start + _HOP.size <= len(data):
        length, _, _, index = _HOP.unpack_from(data, start)
        yield index, attributes(data[start : start + length], _HOP.size)
        start += max((length + 3) & ~3, _HOP.size)


def _action(hop: Mapping[int, bytes]) -> EncapRed | EndUN | EndDT6 | None:
    """The action of a route; None for a route without action or with one that mrc does not use."""
    kind, encap = _int(hop, _RTA_ENCAP_TYPE), attributes(hop.get(_RTA_ENCAP, b""), 0)
    if kind == _LWTUNNEL_SEG6 and (srh := encap.get(_SEG6_IPTUNNEL_SRH)):
        mode, _, _, _, _, first, _, _ = _SRH.unpack_from(srh)
        if mode == _MODE_ENCAP_RED:
            starts = range(_SRH.size + 16 * first, 0, -16)
            return EncapRed(tuple(IPv6Address(srh[start : start + 16]) for start in starts))
    if kind == _LWTUNNEL_SEG6_LOCAL:
        behaviour = _int(encap, _LOCAL_ACTION)
        if behaviour == _ACTION_END_DT6:
            return EndDT6(_int(encap, _LOCAL_TABLE))
        flavors = attributes(encap.get(_LOCAL_FLAVORS, b""), 0)
        if behaviour == _ACTION_END and _int(flavors, _FLAVOR_OPERATION) == _NEXT_CSID:
            return EndUN(_int(flavors, _FLAVOR_BLOCK_BITS), _int(flavors, _FLAVOR_USID_BITS))
    return None


def compare_routes(wanted: Route, found: Route | None) -> None:
    if found == wanted:
        return
    if found is None:
        raise NetlinkError(
            f"route {wanted.dst} dev {wanted.dev}: the kernel accepted it, but does not list it"
        )
    for each in (each for each in fields(Route) if each.compare):
        ours, kernels = getattr(wanted, each.name), getattr(found, each.name)
        if ours != kernels:
            raise NetlinkError(
                f"route {wanted.dst} dev {wanted.dev}: the kernel has {each.name} {kernels}, "
                f"not {ours}" + (f"; it requires {SEG6_NEEDS}" if wanted.action else "")
            )


def _u16(value: int) -> bytes:
    return struct.pack("=H", value)


def _u32(value: int) -> bytes:
    return struct.pack("=I", value)


def _int(found: Mapping[int, bytes], kind: int) -> int:
    """The number in an attribute of any width; 0 without the attribute."""
    return int.from_bytes(found.get(kind, b""), sys.byteorder)


def _address(packed: bytes | None) -> IPv6Address | None:
    return None if packed is None else IPv6Address(packed)
