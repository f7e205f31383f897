# SPDX-License-Identifier: Apache-2.0
"""IPv6 routes with SRv6 actions, as messages and back (uapi/linux: rtnetlink.h, lwtunnel.h,
seg6_iptunnel.h, seg6_local.h).

A kernel may drop without a word what it does not know, so what it has is compared with what was
meant.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import fields
from ipaddress import IPv6Address, IPv6Network

from mrc.errors import NetlinkError
from mrc.nlsocket import number, pack, read_number, unpack
from mrc.srv6 import LOCAL_TABLE, EncapRed, End, EndDT6, Route

# Family, lengths of destination and source, type of service, table, protocol, scope, type, flags.
_ROUTE = struct.Struct("=8BI")
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC = 1, 4, 5, 6, 7
_RTA_ENCAP_TYPE, _RTA_ENCAP = 21, 22
_MAIN_TABLE = 254
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_PROTOCOL_STATIC = 4

# Mode; next header, length, type, segments left, last entry, flags, tag.
_SEG6 = struct.Struct("=i6BH")
_LWTUNNEL_SEG6, _SEG6_IPTUNNEL_SRH, _MODE_ENCAP_RED, _ROUTING_TYPE = 5, 1, 3, 4

_LWTUNNEL_SEG6_LOCAL, _SEG6_LOCAL_ACTION, _SEG6_LOCAL_TABLE, _SEG6_LOCAL_FLAVORS = 7, 1, 3, 11
_ACTION_END, _ACTION_END_DT6 = 1, 7
_FLAVOR_OPERATION, _FLAVOR_BLOCK_BITS, _FLAVOR_USID_BITS = 1, 2, 3
_NEXT_CSID = 1 << 4

# The first release with both encap.red and NEXT-C-SID.
SEG6_NEEDS = "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL"

ALL_ROUTES = _ROUTE.pack(socket.AF_INET6, *bytes(8))


def encode(route: Route, index: int) -> bytes:
    table, kind = (LOCAL_TABLE, _RTN_LOCAL) if route.local else (_MAIN_TABLE, _RTN_UNICAST)
    head = (socket.AF_INET6, route.dst.prefixlen, 0, 0, table, _PROTOCOL_STATIC, 0, kind, 0)
    attributes = [
        (_RTA_DST, route.dst.network_address.packed),
        (_RTA_OIF, number(index)),
        (_RTA_PRIORITY, number(route.metric)),
    ]
    if route.via is not None:
        attributes.append((_RTA_GATEWAY, route.via.packed))
    if route.src is not None:
        attributes.append((_RTA_PREFSRC, route.src.packed))
    if route.action is not None:
        tunnel, action = _encode_action(route.action)
        attributes += [(_RTA_ENCAP_TYPE, number(tunnel, 2)), (_RTA_ENCAP, action)]
    return _ROUTE.pack(*head) + pack(*attributes)


def _encode_action(action: EncapRed | End | EndDT6) -> tuple[int, bytes]:
    if isinstance(action, EncapRed):
        last = len(action.segments) - 1
        srh = _SEG6.pack(_MODE_ENCAP_RED, 0, 2 * last + 2, _ROUTING_TYPE, last, last, 0, 0)
        srh += b"".join(each.packed for each in reversed(action.segments))
        return _LWTUNNEL_SEG6, pack((_SEG6_IPTUNNEL_SRH, srh))
    if isinstance(action, EndDT6):
        kind = (_SEG6_LOCAL_ACTION, number(_ACTION_END_DT6))
        return _LWTUNNEL_SEG6_LOCAL, pack(kind, (_SEG6_LOCAL_TABLE, number(action.table)))
    flavors = pack(
        (_FLAVOR_OPERATION, number(_NEXT_CSID)),
        (_FLAVOR_BLOCK_BITS, number(action.block_bits, 1)),
        (_FLAVOR_USID_BITS, number(action.usid_bits, 1)),
    )
    kind = (_SEG6_LOCAL_ACTION, number(_ACTION_END))
    return _LWTUNNEL_SEG6_LOCAL, pack(kind, (_SEG6_LOCAL_FLAVORS, flavors))


def decode(body: bytes, names: Mapping[int, str]) -> Route | None:
    """None for what is not for unicast, in neither table main nor local, or on no named device."""
    _, prefix, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(body)
    if table not in (_MAIN_TABLE, LOCAL_TABLE) or kind not in (_RTN_UNICAST, _RTN_LOCAL):
        return None
    found = unpack(body[_ROUTE.size :])
    dev = names.get(read_number(found.get(_RTA_OIF, b"")))
    if dev is None:
        return None
    via, src = found.get(_RTA_GATEWAY), found.get(_RTA_PREFSRC)
    return Route(
        dst=IPv6Network((found.get(_RTA_DST, bytes(16)), prefix)),
        dev=dev,
        via=None if via is None else IPv6Address(via),
        src=None if src is None else IPv6Address(src),
        action=_decode_action(found),
        local=kind == _RTN_LOCAL,
        metric=read_number(found.get(_RTA_PRIORITY, b"")),
    )


def _decode_action(route: Mapping[int, bytes]) -> EncapRed | End | EndDT6 | None:
    """What the kernel does on a route; None also for what is none of our three."""
    tunnel = read_number(route.get(_RTA_ENCAP_TYPE, b""))
    found = unpack(route.get(_RTA_ENCAP, b""))
    if tunnel == _LWTUNNEL_SEG6:
        srh = found[_SEG6_IPTUNNEL_SRH]
        if _SEG6.unpack_from(srh)[0] == _MODE_ENCAP_RED:
            starts = range(_SEG6.size, len(srh), 16)
            return EncapRed(tuple(IPv6Address(srh[at : at + 16]) for at in reversed(starts)))
    if tunnel == _LWTUNNEL_SEG6_LOCAL:
        action = read_number(found[_SEG6_LOCAL_ACTION])
        flavors = unpack(found.get(_SEG6_LOCAL_FLAVORS, b""))
        if action == _ACTION_END_DT6 and _SEG6_LOCAL_TABLE in found:
            return EndDT6(read_number(found[_SEG6_LOCAL_TABLE]))
        if action == _ACTION_END and read_number(flavors.get(_FLAVOR_OPERATION, b"")) == _NEXT_CSID:
            return End(flavors[_FLAVOR_BLOCK_BITS][0], flavors[_FLAVOR_USID_BITS][0])
    return None


def compare(wanted: Route, found: Route | None) -> None:
    if found is None:
        raise NetlinkError(f"route {wanted.dst} dev {wanted.dev} was accepted, but is not there")
    for each in fields(Route):
        ours, kernels = getattr(wanted, each.name), getattr(found, each.name)
        if ours != kernels:
            raise NetlinkError(
                f"route {wanted.dst} dev {wanted.dev}: the kernel has {each.name} {kernels}, "
                f"not {ours}" + (f"; this needs {SEG6_NEEDS}" if wanted.action else "")
            )
