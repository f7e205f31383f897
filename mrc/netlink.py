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
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import sched_tbf, tcmsg

from mrc import netns
from mrc.errors import NetlinkError
from mrc.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request, Rtnetlink
from mrc.srv6 import LOCAL_TABLE, EncapRed, End, EndDT6, Route

_RTM_NEWLINK, _RTM_GETLINK, _RTM_SETLINK = 16, 18, 19
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTM_NEWNEIGH = 28
_RTM_NEWQDISC = 36

_IFF_UP = 0x1
_IFA_F_NODAD = 0x2
_NUD_PERMANENT = 0x80
_MAIN_TABLE = 254
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_PROTOCOL_STATIC = 4
_LWTUNNEL_SEG6, _LWTUNNEL_SEG6_LOCAL = 5, 7
_ACTION_END, _ACTION_END_DT6 = 1, 7
_NEXT_CSID = 1 << 4
_TC_ROOT = 0xFFFFFFFF
_LINKLAYER_ETHERNET = 1

# The first release with both encap.red and NEXT-C-SID.
_SEG6_NEEDS = "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL"

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
    mac: str
    peer_mac: str
    gso_max_segs: int | None = None
    """packets that it takes from the stack in one piece; None: as many as come"""


def interfaces(namespace: str | None = None) -> list[Interface]:
    """The interfaces of this namespace, or of a named one, by index; needs no privilege."""
    with Netlink(namespace) as link:
        return link.interfaces()


def wait_until_up(wanted: Iterable[tuple[Netlink, Iterable[str]]], timeout: float) -> None:
    """Wait until all interfaces can carry packets.

    The kernel may take a second to notice that a veth can, unless asked for that one interface.
    Raises NetlinkError naming the first one that does not come up.
    """
    deadline = time.monotonic() + timeout
    for link, names in wanted:
        for name in names:
            while not link.is_up(name):
                if time.monotonic() > deadline:
                    where = f" in {link.namespace}" if link.namespace else ""
                    raise NetlinkError(f"interface {name}{where} does not come up")
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
        links = self._links()
        addresses: dict[int, list[IPv4Interface | IPv6Interface]] = {}
        for message in self._rtnetlink.dump(_RTM_GETADDR, ifaddrmsg()):
            # IFA_ADDRESS is the far end's on a point-to-point link; IFA_LOCAL, where given, ours.
            text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            if text is not None:
                own = ip_interface(f"{text}/{message['prefixlen']}")
                addresses.setdefault(message["index"], []).append(own)
        found = [_interface(message, addresses) for message in links]
        return sorted(found, key=lambda each: each.index)

    def is_up(self, name: str) -> bool:
        """Whether an interface can carry packets."""
        message = ifinfmsg()
        message["index"] = self._index(name)
        return _is_up(self._rtnetlink.get(_RTM_GETLINK, message, f"read the state of {name}"))

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

    def add_neighbours(self, neighbours: Iterable[tuple[str, IPv6Address, str]]) -> None:
        """Say, for an interface, which MAC address a next hop has, so that nobody has to ask."""
        requests = []
        for name, address, mac in neighbours:
            message = ndmsg()
            message["family"] = socket.AF_INET6
            message["ifindex"] = self._index(name)
            message["state"] = _NUD_PERMANENT
            message["attrs"] = [("NDA_DST", str(address)), ("NDA_LLADDR", mac)]
            what = f"add neighbour {address} to {name}"
            flags = NLM_F_CREATE | NLM_F_REPLACE
            requests.append(Request(what, _RTM_NEWNEIGH, message, flags))
        self._rtnetlink.request(requests)

    def add_shaper(self, name: str, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> None:
        """Limit the rate at which an interface sends; the queue holds limit_bytes (tbf)."""
        parms = {
            "rate___reserved": _LINKLAYER_ETHERNET,
            "rate": rate_bps // 8,
            "limit": limit_bytes,
        }
        options = [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", burst_bytes)]
        message = _TbfMessage()
        message["index"] = self._index(name)
        message["parent"] = _TC_ROOT
        message["attrs"] = [("TCA_KIND", "tbf"), ("TCA_OPTIONS", {"attrs": options})]
        what = f"shape {name} to {rate_bps} bit/s"
        flags = NLM_F_CREATE | NLM_F_REPLACE
        self._rtnetlink.request(
            [Request(what, _RTM_NEWQDISC, message, flags, "CONFIG_NET_SCH_TBF")]
        )

    def add_routes(self, routes: Sequence[Route]) -> None:
        """Write routes, read them back, and insist that the kernel has what was meant."""
        requests = []
        for route in routes:
            message = _route_message(route, self._index(route.dev))
            what = f"add route {route.dst} dev {route.dev}"
            flags = NLM_F_CREATE | NLM_F_REPLACE
            needs = "" if route.action is None else _SEG6_NEEDS
            requests.append(Request(what, _RTM_NEWROUTE, message, flags, needs))
        self._rtnetlink.request(requests)
        found = {(route.dst, route.dev, route.local): route for route in self.routes()}
        for route in routes:
            _compare(route, found.get((route.dst, route.dev, route.local)))

    def routes(self) -> list[Route]:
        """The IPv6 routes of tables main and local that are for unicast."""
        self._links()
        names = {index: name for name, index in self._indices.items()}
        message = _RouteMessage()
        message["family"] = socket.AF_INET6
        return [
            _route(each, names)
            for each in self._rtnetlink.dump(_RTM_GETROUTE, message)
            if each["table"] in (_MAIN_TABLE, LOCAL_TABLE)
            and each["type"] in (_RTN_UNICAST, _RTN_LOCAL)
            and each.get_attr("RTA_OIF") in names
        ]

    def _links(self) -> list[ifinfmsg]:
        links = self._rtnetlink.dump(_RTM_GETLINK, ifinfmsg())
        self._indices = {each.get_attr("IFLA_IFNAME"): each["index"] for each in links}
        return links

    def _index(self, name: str) -> int:
        if name not in self._indices:
            self._links()
        try:
            return self._indices[name]
        except KeyError:
            where = f" in {self.namespace}" if self.namespace else ""
            raise NetlinkError(f"no interface {name}{where}") from None


def _interface(
    message: ifinfmsg, addresses: Mapping[int, list[IPv4Interface | IPv6Interface]]
) -> Interface:
    return Interface(
        name=message.get_attr("IFLA_IFNAME"),
        index=message["index"],
        mtu=message.get_attr("IFLA_MTU"),
        up=_is_up(message),
        addresses=tuple(addresses.get(message["index"], ())),
    )


def _is_up(message: ifinfmsg) -> bool:
    # Loopback and tunnels know of no carrier, so their state is unknown.
    state = message.get_attr("IFLA_OPERSTATE")
    return bool(message["flags"] & _IFF_UP) and state in ("UP", "UNKNOWN")


def _veth_request(veth: Veth, peer_namespace: int) -> Request:
    peer = {
        "attrs": [
            ("IFLA_IFNAME", veth.peer_name),
            ("IFLA_MTU", veth.mtu),
            ("IFLA_ADDRESS", veth.peer_mac),
            ("IFLA_NET_NS_FD", peer_namespace),
        ]
    }
    message = ifinfmsg()
    message["attrs"] = [
        ("IFLA_IFNAME", veth.name),
        ("IFLA_MTU", veth.mtu),
        ("IFLA_ADDRESS", veth.mac),
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
    if veth.gso_max_segs is not None:
        message["attrs"].append(("IFLA_GSO_MAX_SEGS", veth.gso_max_segs))
    what = f"make veth {veth.name} to {veth.peer_name} in {veth.peer_namespace}"
    return Request(what, _RTM_NEWLINK, message, NLM_F_CREATE | NLM_F_EXCL, "CONFIG_VETH")


def _route_message(route: Route, index: int) -> _RouteMessage:
    message = _RouteMessage()
    message["family"] = socket.AF_INET6
    message["dst_len"] = route.dst.prefixlen
    message["table"] = LOCAL_TABLE if route.local else _MAIN_TABLE
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
                f"not {ours}" + (f"; this needs {_SEG6_NEEDS}" if wanted.action else "")
            )
