# SPDX-License-Identifier: Apache-2.0
"""Converts IPv6 routes with SRv6 actions to messages and back.

pyroute2 lacks the encap.red mode and the NEXT-C-SID flavour of End, and silently drops unsupported
values. This module adds both, and `compare` checks the kernel's route against the requested one.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import fields
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.rtmsg import nh, rtmsg

from mrc.errors import NetlinkError
from mrc.fabric.srv6 import LOCAL_TABLE, EncapRed, End, EndDT6, Route

_MAIN_TABLE = 254
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_PROTOCOL_STATIC = 4
_LWTUNNEL_SEG6, _LWTUNNEL_SEG6_LOCAL = 5, 7
_ACTION_END, _ACTION_END_DT6 = 1, 7
_NEXT_CSID = 1 << 4

# The first release with both encap.red and NEXT-C-SID.
SEG6_NEEDS = "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL"


class _Seg6Encap(rtmsg.seg6_encap_info):  # type: ignore[misc]
    """Adds the modes of linux/seg6_iptunnel.h that pyroute2 reads as plain encap."""

    __slots__ = ()

    class ipv6_sr_hdr(rtmsg.seg6_encap_info.ipv6_sr_hdr):  # type: ignore[misc]
        __slots__ = ()
        encapmodes: Mapping[str, int] = {
            "inline": 0,
            "encap": 1,
            "l2encap": 2,
            "encap.red": 3,
            "l2encap.red": 4,
        }
        r_encapmodes: Mapping[int, str] = {value: name for name, value in encapmodes.items()}


class _Seg6Local(rtmsg.seg6local_encap_info):  # type: ignore[misc]
    """Adds the attributes of linux/seg6_local.h after VRFTABLE."""

    __slots__ = ()
    nla_map = (
        *rtmsg.seg6local_encap_info.nla_map,
        ("SEG6_LOCAL_COUNTERS", "hex"),
        ("SEG6_LOCAL_FLAVORS", "flavors"),
    )

    class flavors(nla):  # type: ignore[misc]
        __slots__ = ()
        nla_map = (
            ("SEG6_LOCAL_FLV_UNSPEC", "none"),
            ("SEG6_LOCAL_FLV_OPERATION", "uint32"),
            ("SEG6_LOCAL_FLV_LCBLOCK_BITS", "uint8"),
            ("SEG6_LOCAL_FLV_LCNODE_FN_BITS", "uint8"),
        )


_ENCAPS: Mapping[int, type] = {
    **rtmsg.encaps,
    _LWTUNNEL_SEG6: _Seg6Encap,
    _LWTUNNEL_SEG6_LOCAL: _Seg6Local,
}


class _Hop(nh):  # type: ignore[misc]
    """One of the routes that share a destination."""

    __slots__ = ()
    encaps = _ENCAPS


class RouteMessage(rtmsg):  # type: ignore[misc]
    __slots__ = ()
    encaps = _ENCAPS

    @staticmethod
    def get_nh(*_: Any, **__: Any) -> type:
        return _Hop


def dump_request() -> RouteMessage:
    """The request for all IPv6 routes."""
    message = RouteMessage()
    message["family"] = socket.AF_INET6
    return message


def is_unicast(message: RouteMessage) -> bool:
    """Whether this is a unicast route of table main or local."""
    tables, types = (_MAIN_TABLE, LOCAL_TABLE), (_RTN_UNICAST, _RTN_LOCAL)
    return message["table"] in tables and message["type"] in types


def encode(route: Route, index: int) -> RouteMessage:
    message = RouteMessage()
    message["family"] = socket.AF_INET6
    message["dst_len"] = route.dst.prefixlen
    message["table"] = LOCAL_TABLE if route.local else _MAIN_TABLE
    message["proto"] = _PROTOCOL_STATIC
    message["type"] = _RTN_LOCAL if route.local else _RTN_UNICAST
    attributes: list[tuple[str, Any]] = [
        ("RTA_DST", str(route.dst.network_address)),
        ("RTA_OIF", index),
        ("RTA_PRIORITY", route.metric),
    ]
    if route.via is not None:
        attributes.append(("RTA_GATEWAY", str(route.via)))
    if route.src is not None:
        attributes.append(("RTA_PREFSRC", str(route.src)))
    if route.action is not None:
        attributes += _action_attributes(route.action)
    message["attrs"] = attributes
    return message


def _action_attributes(action: EncapRed | End | EndDT6) -> list[tuple[str, Any]]:
    if isinstance(action, EncapRed):
        srh = {"mode": "encap.red", "segs": [str(each) for each in reversed(action.segments)]}
        attributes: list[tuple[str, Any]] = [("SEG6_IPTUNNEL_SRH", srh)]
        return [("RTA_ENCAP_TYPE", _LWTUNNEL_SEG6), ("RTA_ENCAP", {"attrs": attributes})]
    if isinstance(action, EndDT6):
        attributes = [
            ("SEG6_LOCAL_ACTION", {"value": "End.DT6"}),
            ("SEG6_LOCAL_TABLE", {"value": action.table}),
        ]
    else:
        flavors = [
            ("SEG6_LOCAL_FLV_OPERATION", _NEXT_CSID),
            ("SEG6_LOCAL_FLV_LCBLOCK_BITS", action.block_bits),
            ("SEG6_LOCAL_FLV_LCNODE_FN_BITS", action.usid_bits),
        ]
        attributes = [
            ("SEG6_LOCAL_ACTION", {"value": "End"}),
            ("SEG6_LOCAL_FLAVORS", {"attrs": flavors}),
        ]
    return [("RTA_ENCAP_TYPE", _LWTUNNEL_SEG6_LOCAL), ("RTA_ENCAP", {"attrs": attributes})]


def decode(message: RouteMessage, names: Mapping[int, str]) -> Iterator[Route]:
    """The routes over these interfaces. The kernel lists routes that share a destination as one."""
    src = message.get_attr("RTA_PREFSRC")
    shared = message.get_attr("RTA_MULTIPATH")
    for hop in shared or [message]:
        via, dev = hop.get_attr("RTA_GATEWAY"), hop["oif"] if shared else hop.get_attr("RTA_OIF")
        if dev in names:
            yield Route(
                dst=IPv6Network((message.get_attr("RTA_DST") or "::", message["dst_len"])),
                dev=names[dev],
                via=None if via is None else IPv6Address(via),
                src=None if src is None else IPv6Address(src),
                action=_action(hop),
                local=message["type"] == _RTN_LOCAL,
                metric=message.get_attr("RTA_PRIORITY") or 0,
                shared=shared is not None,
            )


def _action(message: RouteMessage | _Hop) -> EncapRed | End | EndDT6 | None:
    """The action of a route; None for a route without action or with one that mrc does not use."""
    kind, encap = message.get_attr("RTA_ENCAP_TYPE"), message.get_attr("RTA_ENCAP")
    if kind == _LWTUNNEL_SEG6:
        srh = encap.get_attr("SEG6_IPTUNNEL_SRH")
        if srh["mode"] == "encap.red":
            return EncapRed(tuple(IPv6Address(each) for each in reversed(srh["segs"])))
    if kind == _LWTUNNEL_SEG6_LOCAL:
        behaviour = encap.get_attr("SEG6_LOCAL_ACTION")
        flavors = encap.get_attr("SEG6_LOCAL_FLAVORS")
        if behaviour == _ACTION_END_DT6:
            return EndDT6(encap.get_attr("SEG6_LOCAL_TABLE"))
        if behaviour == _ACTION_END and flavors is not None:
            return _end(flavors)
    return None


def _end(flavors: nla) -> End | None:
    if flavors.get_attr("SEG6_LOCAL_FLV_OPERATION") != _NEXT_CSID:
        return None
    return End(
        flavors.get_attr("SEG6_LOCAL_FLV_LCBLOCK_BITS"),
        flavors.get_attr("SEG6_LOCAL_FLV_LCNODE_FN_BITS"),
    )


def compare(wanted: Route, found: Route | None) -> None:
    if found is None:
        raise NetlinkError(
            f"route {wanted.dst} dev {wanted.dev}: the kernel accepted it, but does not list it"
        )
    for each in (field for field in fields(Route) if field.compare):
        ours, kernels = getattr(wanted, each.name), getattr(found, each.name)
        if ours != kernels:
            raise NetlinkError(
                f"route {wanted.dst} dev {wanted.dev}: the kernel has {each.name} {kernels}, "
                f"not {ours}" + (f"; it requires {SEG6_NEEDS}" if wanted.action else "")
            )
