# SPDX-License-Identifier: Apache-2.0
"""Interfaces whose other end is on another machine: VXLAN (RFC 7348) to one peer."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct

from mrc.linux.netlink.messages import ifinfmsg
from mrc.linux.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, Request

_RTM_NEWLINK = 16


class Vxlan(Struct, frozen=True):
    """An interface in a namespace. The namespace of the request carries its packets."""

    name: str
    namespace: str
    mtu: int
    mac: str
    vni: int
    remote: IPv4Address | IPv6Address
    """address of the machine with the other end"""
    port: int
    """UDP port, the same on both machines"""


def request(vxlan: Vxlan, namespace: int) -> Request:
    """The request that makes the interface, down. `namespace`: a descriptor of the namespace."""
    group = "IFLA_VXLAN_GROUP" if vxlan.remote.version == 4 else "IFLA_VXLAN_GROUP6"
    data = [
        ("IFLA_VXLAN_ID", vxlan.vni),
        (group, str(vxlan.remote)),
        ("IFLA_VXLAN_PORT", vxlan.port),
        ("IFLA_VXLAN_LEARNING", 0),  # all packets go to the one peer
    ]
    message = ifinfmsg()
    message["attrs"] = [
        ("IFLA_IFNAME", vxlan.name),
        ("IFLA_MTU", vxlan.mtu),
        ("IFLA_ADDRESS", vxlan.mac),
        ("IFLA_NET_NS_FD", namespace),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "vxlan"), ("IFLA_INFO_DATA", {
            "attrs": data})]}),
    ]  # fmt: skip
    what = f"make vxlan {vxlan.name} in {vxlan.namespace}"
    return Request(what, _RTM_NEWLINK, message, NLM_F_CREATE | NLM_F_EXCL, "CONFIG_VXLAN")
