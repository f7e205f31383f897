# SPDX-License-Identifier: Apache-2.0
"""One rtnetlink socket in a namespace, and the operations on it."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, IPv6Network
from typing import Any, Self

from msgspec import Struct

from mrc.errors import NetlinkError
from mrc.fabric.srv6 import Route
from mrc.linux import netns
from mrc.linux.interfaces import Interface, is_up, read_interfaces
from mrc.linux.netlink import qdiscs, vxlan
from mrc.linux.netlink.messages import ifaddrmsg, ifinfmsg, ndmsg
from mrc.linux.netlink.qdiscs import Counters, Netem
from mrc.linux.netlink.routes import (
    DUMP,
    SEG6_NEEDS,
    compare,
    decode,
    encode,
    encode_gateway,
)
from mrc.linux.netlink.vxlan import Vxlan
from mrc.linux.rtnetlink import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Request,
    Rtnetlink,
)
from mrc.units import digits

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK, _RTM_SETLINK = 16, 17, 18, 19
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_RTM_NEWROUTE, _RTM_DELROUTE, _RTM_GETROUTE = 24, 25, 26
_RTM_NEWNEIGH = 28
_RTM_NEWQDISC, _RTM_DELQDISC, _RTM_GETQDISC = 36, 37, 38

_IFF_UP = 0x1
_IFA_F_NODAD = 0x2
_NUD_PERMANENT = 0x80
_WRITE = NLM_F_CREATE | NLM_F_REPLACE
_APPEND = NLM_F_CREATE | NLM_F_APPEND
_POLL_SECONDS = 0.01


class Veth(Struct, frozen=True):
    """A pair of joined interfaces: `name` here and `peer_name` in another namespace."""

    name: str
    peer_name: str
    peer_namespace: str
    mtu: int
    mac: str
    peer_mac: str
    gso_max_segs: int | None = None
    """most packets that the stack hands to it as one; None: the kernel's default"""


def wait_until_up(wanted: Iterable[tuple[Netlink, Iterable[str]]], timeout: float) -> None:
    """Wait until all interfaces can carry packets.

    The kernel may update a veth's state up to a second late. A request for that one interface makes
    it update the state at once. Raises NetlinkError naming the first interface that stays down.
    """
    deadline = time.monotonic() + timeout
    for link, names in wanted:
        for name in names:
            while not link.is_up(name):
                if time.monotonic() > deadline:
                    where = f" in {link.namespace}" if link.namespace else ""
                    raise NetlinkError(
                        f"interface {name}{where} stays down after {digits(timeout)} s"
                    )
                time.sleep(_POLL_SECONDS)


class Netlink:
    """One rtnetlink socket. It stays in the namespace in which it was made.

    Every call raises NetlinkError with the refused action, the reason and, if known, the remedy.
    """

    def __init__(self, namespace: str | None = None) -> None:
        self.namespace = namespace
        self._rtnetlink = Rtnetlink.inside(namespace)
        self._indices: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._rtnetlink.close()

    def interfaces(self) -> list[Interface]:
        return read_interfaces(self._rtnetlink)

    def is_up(self, name: str) -> bool:
        """Whether an interface can carry packets."""
        return is_up(self._rtnetlink, self._index(name), name)

    def add_veths(self, veths: Iterable[Veth]) -> None:
        """Make pairs of interfaces. Both ends start down."""
        veths = list(veths)
        with _opened({veth.peer_namespace for veth in veths}) as peers:
            self._rtnetlink.request(
                [_veth_request(veth, peers[veth.peer_namespace]) for veth in veths]
            )

    def add_vxlans(self, vxlans: Iterable[Vxlan]) -> None:
        """Make interfaces in other namespaces whose packets this namespace carries. They start
        down.
        """
        for each in vxlans:
            with _opened({each.namespace}) as namespaces:
                self._rtnetlink.request([vxlan.request(each, namespaces[each.namespace])])

    def set_links(self, names: Iterable[str], *, up: bool) -> None:
        """Set interfaces up or down. Setting one down removes its IPv6 routes and addresses."""
        requests = []
        for name in names:
            message = ifinfmsg()
            flags = _IFF_UP if up else 0
            message |= {"index": self._index(name), "flags": flags, "change": _IFF_UP}
            what = f"set {name} {'up' if up else 'down'}"
            requests.append(Request(what, _RTM_SETLINK, message))
        self._rtnetlink.request(requests)

    def set_mtu(self, name: str, mtu: int) -> None:
        self._set(f"set the MTU of {name} to {mtu}", name, ("IFLA_MTU", mtu))

    def set_gso_max_segs(self, name: str, most: int) -> None:
        """Limits how many packets the stack hands to the interface as one."""
        self._set(f"limit bursts of {name}", name, ("IFLA_GSO_MAX_SEGS", most))

    def move(self, name: str, namespace: str, new_name: str) -> None:
        """Move an interface into another namespace, with a new name. It loses its addresses and
        routes and goes down.
        """
        self.set_links([name], up=False)  # older kernels rename only an interface that is down
        try:
            target = os.open(netns.FOLDER / namespace, os.O_RDONLY)
        except OSError as exc:
            raise NetlinkError(f"cannot open namespace: {exc}") from exc
        try:
            attributes = ("IFLA_NET_NS_FD", target), ("IFLA_IFNAME", new_name)
            self._set(f"move {name} to {namespace} as {new_name}", name, *attributes)
        finally:
            os.close(target)
        self._indices = {}

    def remove_link(self, name: str) -> None:
        """Remove an interface, and the other end of a veth."""
        message = ifinfmsg()
        message |= {"index": self._index(name)}
        self._rtnetlink.request([Request(f"remove {name}", _RTM_DELLINK, message)])

    def add_bridge(self, name: str, ports: Iterable[str]) -> None:
        """Join interfaces by a bridge that is up. It floods multicast."""
        data = {"attrs": [("IFLA_BR_MCAST_SNOOPING", 0)]}
        message = ifinfmsg()
        message["attrs"] = [
            ("IFLA_IFNAME", name),
            ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", data)]}),
        ]
        flags = NLM_F_CREATE | NLM_F_EXCL
        request = Request(f"make bridge {name}", _RTM_NEWLINK, message, flags, "CONFIG_BRIDGE")
        self._rtnetlink.request([request])
        for port in ports:
            self._set(f"join {port} to {name}", port, ("IFLA_MASTER", self._index(name)))
        self.set_links([name], up=True)

    def _set(self, what: str, name: str, *attributes: tuple[str, object]) -> None:
        message = ifinfmsg()
        message |= {"index": self._index(name), "attrs": list(attributes)}
        self._rtnetlink.request([Request(what, _RTM_SETLINK, message)])

    def add_addresses(self, addresses: Iterable[tuple[str, IPv6Interface]]) -> None:
        """Add addresses to interfaces. They are usable at once (no duplicate detection)."""
        requests = []
        for name, address in addresses:
            message, text = ifaddrmsg(), str(address.ip)
            message |= {
                "family": socket.AF_INET6,
                "prefixlen": address.network.prefixlen,
                "index": self._index(name),
                "attrs": [("IFA_ADDRESS", text), ("IFA_LOCAL", text), ("IFA_FLAGS", _IFA_F_NODAD)],
            }
            what = f"add address {address} to {name}"
            requests.append(Request(what, _RTM_NEWADDR, message, _WRITE))
        self._rtnetlink.request(requests)

    def add_ipv4(self, addresses: Iterable[tuple[str, IPv4Interface, IPv4Address | None]]) -> None:
        """Add IPv4 addresses to interfaces, each with the only host behind the interface, or None
        for a network.
        """
        requests = []
        for name, address, other in addresses:
            message = ifaddrmsg()
            ends = [("IFA_LOCAL", str(address.ip)), ("IFA_ADDRESS", str(other or address.ip))]
            message |= {
                "family": socket.AF_INET,
                "prefixlen": address.network.prefixlen,
                "index": self._index(name),
                "attrs": ends,
            }
            what = f"add address {address} to {name}"
            requests.append(Request(what, _RTM_NEWADDR, message, _WRITE))
        self._rtnetlink.request(requests)

    def add_gateway(self, name: str, via: IPv4Address) -> None:
        """Add the IPv4 default route, over a next hop on this link."""
        message = encode_gateway(via, self._index(name))
        what = f"add IPv4 route default via {via} dev {name}"
        self._rtnetlink.request([Request(what, _RTM_NEWROUTE, message, _WRITE)])

    def add_neighbours(
        self, neighbours: Iterable[tuple[str, IPv6Address | IPv4Address, str]]
    ) -> None:
        """Add permanent neighbours: the MAC addresses of next hops. They save the discovery."""
        requests = []
        for name, address, mac in neighbours:
            message = ndmsg()
            message |= {
                "family": socket.AF_INET6 if address.version == 6 else socket.AF_INET,
                "ifindex": self._index(name),
                "state": _NUD_PERMANENT,
                "attrs": [("NDA_DST", str(address)), ("NDA_LLADDR", mac)],
            }
            what = f"add neighbour {address} to {name}"
            requests.append(Request(what, _RTM_NEWNEIGH, message, _WRITE))
        self._rtnetlink.request(requests)

    def add_shaper(self, name: str, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> None:
        """Limit an interface's send rate with a tbf, or change the limit. Its queue holds at most
        limit_bytes.
        """
        index = self._index(name)
        message = qdiscs.shaper(
            index, rate_bps=rate_bps, burst_bytes=burst_bytes, limit_bytes=limit_bytes
        )
        self._add_qdisc(f"shape {name} to {rate_bps} bit/s", message, "CONFIG_NET_SCH_TBF")

    def add_netem(self, name: str, wanted: Netem, *, below_tbf: bool) -> None:
        """Delay or impair the packets that an interface sends. Replaces its earlier netem."""
        message = qdiscs.netem(self._index(name), wanted, below_tbf=below_tbf)
        needs = "CONFIG_NET_SCH_NETEM, or --fabric emulated"
        self._add_qdisc(f"delay or impair {name}", message, needs)

    def remove_qdisc(self, name: str) -> None:
        """Remove an interface's queue, if it has one, and drop the packets in it."""
        message = qdiscs.at_root(self._index(name))
        try:
            self._rtnetlink.request([Request(f"free {name}", _RTM_DELQDISC, message)])
        except NetlinkError as exc:
            if exc.code != errno.ENOENT:
                raise

    def has_qdisc(self, kind: str) -> bool:
        """Whether the kernel supports a kind of queue. Adds one to lo and removes it."""
        index = self._index("lo")
        message = qdiscs.empty(index, kind)
        try:
            self._add_qdisc(f"try {kind}", message, "")
        except NetlinkError as exc:
            # Other errors mean that the kernel supports it, but requires options.
            return exc.code not in (errno.ENOENT, errno.EOPNOTSUPP)
        self.remove_qdisc("lo")
        return True

    def _add_qdisc(self, what: str, message: Any, needs: str) -> None:
        self._rtnetlink.request([Request(what, _RTM_NEWQDISC, message, _WRITE, needs)])

    def counters(self) -> dict[str, Counters]:
        """Counters of the packets that each interface has sent so far."""
        return qdiscs.counters(
            self._rtnetlink.dump_bytes(_RTM_GETLINK, bytes(16)),
            self._rtnetlink.dump_bytes(_RTM_GETQDISC, bytes(20)),
        )

    def add_routes(self, routes: Sequence[Route]) -> None:
        """Add routes and read them back. Raises NetlinkError if the kernel's differ from ours."""
        requests = []
        for route in routes:
            message = encode(route, self._index(route.dev))
            what = partial(_add, route)  # the text of 100,000 addresses takes a second
            needs = "" if route.action is None else SEG6_NEEDS
            if route.shared:  # a repeated one is refused, all others replace their predecessor
                request = Request(what, _RTM_NEWROUTE, message, _APPEND, needs, errno.EEXIST)
            else:
                request = Request(what, _RTM_NEWROUTE, message, _WRITE, needs)
            requests.append(request)
        self._rtnetlink.request(requests)
        shared = {route.dst for route in routes if route.shared}
        found = {_identity(route, shared): route for route in self.routes()}
        for route in routes:
            compare(route, found.get(_identity(route, shared)))

    def remove_routes(self, routes: Sequence[Route]) -> None:
        """Remove routes that are not shared. No error if one is gone."""
        self._rtnetlink.request(
            [
                Request(
                    f"remove route {route.dst} dev {route.dev}",
                    _RTM_DELROUTE,
                    encode(route, self._index(route.dev)),
                    done=errno.ESRCH,
                )
                for route in routes
            ]
        )

    def routes(self) -> list[Route]:
        """The IPv6 unicast routes of tables main and local."""
        names = {each.index: each.name for each in self.interfaces()}
        return [
            route
            for each in self._rtnetlink.dump_bytes(_RTM_GETROUTE, DUMP)
            for route in decode(each, names)
        ]

    def _index(self, name: str) -> int:
        if name not in self._indices:
            self._indices = {each.name: each.index for each in self.interfaces()}
        try:
            return self._indices[name]
        except KeyError:
            where = f" in {self.namespace}" if self.namespace else ""
            raise NetlinkError(f"no interface {name}{where}") from None


@contextmanager
def _opened(namespaces: Collection[str]) -> Iterator[dict[str, int]]:
    """Namespace -> an open descriptor of it."""
    found: dict[str, int] = {}
    try:
        for name in namespaces:
            try:
                found[name] = os.open(netns.FOLDER / name, os.O_RDONLY)
            except OSError as exc:
                raise NetlinkError(f"cannot open namespace: {exc}") from exc
        yield found
    finally:
        for fd in found.values():
            os.close(fd)


def _add(route: Route) -> str:
    return f"add route {route.dst} dev {route.dev}"


def _identity(route: Route, shared: Collection[IPv6Network]) -> Any:
    """What tells a route from others. Routes to a shared destination may differ only in their
    action.
    """
    return route.dst, route.dev, route.local, route.action if route.dst in shared else None


def _veth_request(veth: Veth, peer_namespace: int) -> Request:
    peer = {
        "attrs": [
            ("IFLA_IFNAME", veth.peer_name),
            ("IFLA_MTU", veth.mtu),
            ("IFLA_ADDRESS", veth.peer_mac),
            ("IFLA_NET_NS_FD", peer_namespace),
        ]
    }
    data = {"attrs": [("VETH_INFO_PEER", peer)]}
    message = ifinfmsg()
    message["attrs"] = [
        ("IFLA_IFNAME", veth.name),
        ("IFLA_MTU", veth.mtu),
        ("IFLA_ADDRESS", veth.mac),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}),
    ]
    if veth.gso_max_segs is not None:
        message["attrs"].append(("IFLA_GSO_MAX_SEGS", veth.gso_max_segs))
    what = f"make veth {veth.name} to {veth.peer_name} in {veth.peer_namespace}"
    return Request(what, _RTM_NEWLINK, message, NLM_F_CREATE | NLM_F_EXCL, "CONFIG_VETH")
