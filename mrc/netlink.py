# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and queues of a namespace: the only importer of pyroute2.

pyroute2 encodes and decodes the messages. What pyroute2 0.9 lacks (the encap.red mode, the
NEXT-C-SID flavour of End, tbf's burst in bytes) are message classes of ours. It drops without a
word what it does not know, so every route is read back from the kernel and compared.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from ipaddress import (
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_interface,
)
from typing import Any, Self

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import sched_tbf, tcmsg

from mrc import netns
from mrc.errors import NetlinkError
from mrc.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request, Rtnetlink
from mrc.srv6 import EncapRed, End, EndDT6, Route

_RTM_NEWLINK, _RTM_GETLINK, _RTM_SETLINK = 16, 18, 19
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTM_NEWQDISC = 36

_IFF_UP = 0x1
_IFA_F_NODAD = 0x2
_TABLE_MAIN, TABLE_LOCAL = 254, 255
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_PROTOCOL_STATIC = 4
_LWTUNNEL_SEG6, _LWTUNNEL_SEG6_LOCAL = 5, 7
_ACTION_END, _ACTION_END_DT6 = 1, 7
_NEXT_CSID = 1 << 4
_TC_ROOT = 0xFFFFFFFF
_LINKLAYER_ETHERNET = 1

_POLL_SECONDS = 0.01


class _Seg6Encap(rtmsg.seg6_encap_info):  # type: ignore[misc]
    """With the modes of linux/seg6_iptunnel.h that pyroute2 takes for plain encap."""

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
    """With the attributes of linux/seg6_local.h that came after VRFTABLE."""

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


class _RouteMessage(rtmsg):  # type: ignore[misc]
    __slots__ = ()
    encaps: Mapping[int, type] = {
        **rtmsg.encaps,
        _LWTUNNEL_SEG6: _Seg6Encap,
        _LWTUNNEL_SEG6_LOCAL: _Seg6Local,
    }


class _TbfMessage(tcmsg):  # type: ignore[misc]
    """A tbf whose burst is given in bytes, so that no rate table has to be computed."""

    __slots__ = ()
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "tbf"))

    class tbf(nla):  # type: ignore[misc]
        __slots__ = ()
        nla_map = (
            ("TCA_TBF_UNSPEC", "none"),
            ("TCA_TBF_PARMS", "parms"),
            ("TCA_TBF_RTAB", "hex"),
            ("TCA_TBF_PTAB", "hex"),
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

        class parms(nla):  # type: ignore[misc]
            __slots__ = ()
            fields = sched_tbf.options.tbf_parms.fields


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface as the kernel has it now."""

    name: str
    index: int
    mtu: int
    up: bool
    """able to carry packets: set up, and with a carrier where it knows of one"""
    addresses: tuple[IPv4Interface | IPv6Interface, ...]


@dataclass(frozen=True, slots=True)
class Veth:
    """A pair of joined interfaces: ours here, the peer's in another namespace."""

    name: str
    peer_name: str
    peer_namespace: str
    mtu: int


@dataclass(frozen=True, slots=True)
class Shaper:
    """A token bucket on what leaves an interface (tbf)."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int
    """the longest queue, the burst included"""


def interfaces(namespace: str | None = None) -> list[Interface]:
    """The interfaces of this namespace, or of a named one, by index; needs no privilege."""
    with Netlink(namespace) as link:
        return link.interfaces()


def wait_until_up(wanted: Iterable[tuple[Netlink, Iterable[str]]], timeout: float) -> None:
    """Wait until all interfaces can carry packets: a veth may take a second after its set-up.

    Raises NetlinkError naming the first one that does not come up.
    """
    deadline = time.monotonic() + timeout
    for link, names in wanted:
        missing = set(names)
        while missing := missing - {i.name for i in link.interfaces() if i.up}:
            if time.monotonic() > deadline:
                where = f" in {link.namespace}" if link.namespace else ""
                raise NetlinkError(f"interface {min(missing)}{where} does not come up")
            time.sleep(_POLL_SECONDS)


class Netlink:
    """One rtnetlink socket; it stays in the namespace it was made in.

    Every call raises NetlinkError, naming what was refused and why, and where it can the remedy.
    """

    def __init__(self, namespace: str | None = None) -> None:
        self.namespace = namespace
        if namespace is None:
            self._rtnetlink = Rtnetlink()
        else:
            with netns.inside(namespace):
                self._rtnetlink = Rtnetlink()
        self._indices: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._rtnetlink.close()

    def interfaces(self) -> list[Interface]:
        links = self._rtnetlink.dump(_RTM_GETLINK, ifinfmsg())
        addresses: dict[int, list[IPv4Interface | IPv6Interface]] = {}
        for message in self._rtnetlink.dump(_RTM_GETADDR, ifaddrmsg()):
            # IFA_ADDRESS is the far end's on a point-to-point link; IFA_LOCAL, where given, ours.
            text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            if text is not None:
                own = ip_interface(f"{text}/{message['prefixlen']}")
                addresses.setdefault(message["index"], []).append(own)
        found = [_interface(message, addresses) for message in links]
        self._indices = {each.name: each.index for each in found}
        return sorted(found, key=lambda each: each.index)

    def add_veths(self, veths: Iterable[Veth]) -> None:
        """Make pairs of interfaces; both ends stay down."""
        peers: dict[str, int] = {}
        try:
            for veth in (veths := list(veths)):
                if veth.peer_namespace not in peers:
                    path = netns.FOLDER / veth.peer_namespace
                    peers[veth.peer_namespace] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._rtnetlink.request(
                [_veth_request(veth, peers[veth.peer_namespace]) for veth in veths]
            )
        except OSError as exc:
            raise NetlinkError(f"cannot open namespace: {exc}") from exc
        finally:
            for fd in peers.values():
                os.close(fd)

    def set_links(self, names: Iterable[str], *, up: bool) -> None:
        """Set interfaces up or down. Down takes an interface's IPv6 routes and addresses away."""
        requests = []
        for name in names:
            message = ifinfmsg()
            message["index"] = self._index(name)
            message["flags"] = _IFF_UP if up else 0
            message["change"] = _IFF_UP
            what = f"set {name} {'up' if up else 'down'}"
            requests.append(Request(what, _RTM_SETLINK, message))
        self._rtnetlink.request(requests)

    def add_addresses(self, addresses: Iterable[tuple[str, IPv6Interface]]) -> None:
        """Give interfaces addresses that are usable at once (no duplicate detection)."""
        requests = []
        for name, address in addresses:
            message = ifaddrmsg()
            message["family"] = socket.AF_INET6
            message["prefixlen"] = address.network.prefixlen
            message["index"] = self._index(name)
            message["attrs"] = [
                ("IFA_ADDRESS", str(address.ip)),
                ("IFA_LOCAL", str(address.ip)),
                ("IFA_FLAGS", _IFA_F_NODAD),
            ]
            what = f"add address {address} to {name}"
            flags = NLM_F_CREATE | NLM_F_REPLACE
            requests.append(Request(what, _RTM_NEWADDR, message, flags))
        self._rtnetlink.request(requests)

    def add_shapers(self, shapers: Iterable[tuple[str, Shaper]]) -> None:
        """Limit the rate at which interfaces send."""
        requests = []
        for name, shaper in shapers:
            message = _tbf_message(self._index(name), shaper)
            what = f"shape {name} to {shaper.rate_bps} bit/s"
            flags = NLM_F_CREATE | NLM_F_REPLACE
            requests.append(Request(what, _RTM_NEWQDISC, message, flags, "NET_SCH_TBF"))
        self._rtnetlink.request(requests)

    def add_routes(self, routes: Sequence[Route]) -> None:
        """Write routes, read them back, and insist that the kernel has what was meant."""
        requests = []
        for route in routes:
            message = _route_message(route, self._index(route.dev))
            what = f"add route {route.dst} dev {route.dev}"
            flags = NLM_F_CREATE | NLM_F_REPLACE
            option = "" if route.action is None else "IPV6_SEG6_LWTUNNEL"
            requests.append(Request(what, _RTM_NEWROUTE, message, flags, option))
        self._rtnetlink.request(requests)
        found = {(route.dst, route.dev, route.local): route for route in self.routes()}
        for route in routes:
            _compare(route, found.get((route.dst, route.dev, route.local)))

    def routes(self) -> list[Route]:
        """The IPv6 routes of tables main and local that are for unicast."""
        names = {each.index: each.name for each in self.interfaces()}
        message = _RouteMessage()
        message["family"] = socket.AF_INET6
        return [
            _route(each, names)
            for each in self._rtnetlink.dump(_RTM_GETROUTE, message)
            if each["table"] in (_TABLE_MAIN, TABLE_LOCAL)
            and each["type"] in (_RTN_UNICAST, _RTN_LOCAL)
            and each.get_attr("RTA_OIF") in names
        ]

    def _index(self, name: str) -> int:
        if name not in self._indices:
            self.interfaces()
        try:
            return self._indices[name]
        except KeyError:
            where = f" in {self.namespace}" if self.namespace else ""
            raise NetlinkError(f"no interface {name}{where}") from None


def _interface(
    message: ifinfmsg, addresses: Mapping[int, list[IPv4Interface | IPv6Interface]]
) -> Interface:
    state = message.get_attr("IFLA_OPERSTATE")
    is_up = bool(message["flags"] & _IFF_UP)
    return Interface(
        name=message.get_attr("IFLA_IFNAME"),
        index=message["index"],
        mtu=message.get_attr("IFLA_MTU"),
        up=is_up and state in ("UP", "UNKNOWN"),  # loopback and tunnels know of no carrier
        addresses=tuple(addresses.get(message["index"], ())),
    )


def _veth_request(veth: Veth, peer_namespace: int) -> Request:
    peer = {
        "attrs": [
            ("IFLA_IFNAME", veth.peer_name),
            ("IFLA_MTU", veth.mtu),
            ("IFLA_NET_NS_FD", peer_namespace),
        ]
    }
    message = ifinfmsg()
    message["attrs"] = [
        ("IFLA_IFNAME", veth.name),
        ("IFLA_MTU", veth.mtu),
        (
            "IFLA_LINKINFO",
            {
                "attrs": [
                    ("IFLA_INFO_KIND", "veth"),
                    ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]}),
                ]
            },
        ),
    ]
    what = f"make veth {veth.name} to {veth.peer_name} in {veth.peer_namespace}"
    return Request(what, _RTM_NEWLINK, message, NLM_F_CREATE | NLM_F_EXCL, "VETH")


def _tbf_message(index: int, shaper: Shaper) -> _TbfMessage:
    parms = {
        "rate___reserved": _LINKLAYER_ETHERNET,
        "rate": shaper.rate_bps // 8,
        "limit": shaper.limit_bytes,
    }
    message = _TbfMessage()
    message["index"] = index
    message["parent"] = _TC_ROOT
    message["attrs"] = [
        ("TCA_KIND", "tbf"),
        (
            "TCA_OPTIONS",
            {"attrs": [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", shaper.burst_bytes)]},
        ),
    ]
    return message


def _route_message(route: Route, index: int) -> _RouteMessage:
    message = _RouteMessage()
    message["family"] = socket.AF_INET6
    message["dst_len"] = route.dst.prefixlen
    message["table"] = TABLE_LOCAL if route.local else _TABLE_MAIN
    message["proto"] = _PROTOCOL_STATIC
    message["type"] = _RTN_LOCAL if route.local else _RTN_UNICAST
    attributes: list[tuple[str, Any]] = [
        ("RTA_DST", str(route.dst.network_address)),
        ("RTA_OIF", index),
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


def _route(message: _RouteMessage, names: Mapping[int, str]) -> Route:
    via, src = message.get_attr("RTA_GATEWAY"), message.get_attr("RTA_PREFSRC")
    return Route(
        dst=IPv6Network((message.get_attr("RTA_DST") or "::", message["dst_len"])),
        dev=names[message.get_attr("RTA_OIF")],
        via=None if via is None else IPv6Address(via),
        src=None if src is None else IPv6Address(src),
        action=_action(message),
        local=message["type"] == _RTN_LOCAL,
    )


def _action(message: _RouteMessage) -> EncapRed | End | EndDT6 | None:
    """What the kernel does on a route; None also for what is none of our three."""
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


def _compare(wanted: Route, found: Route | None) -> None:
    if found is None:
        raise NetlinkError(f"route {wanted.dst} dev {wanted.dev} was accepted, but is not there")
    for each in fields(Route):
        ours, kernels = getattr(wanted, each.name), getattr(found, each.name)
        if ours != kernels:
            raise NetlinkError(
                f"route {wanted.dst} dev {wanted.dev}: the kernel has {each.name} {kernels}, "
                f"not {ours}"
            )
